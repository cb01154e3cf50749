/* Writes config fields as typed attributes. */
#include "checkpoint/file/ckpt_config.h"

#include "base/mem.h"

#include <string.h>

/* Writes one attribute of the given types. Closes none of its arguments. */
static struct status attribute_write(hid_t object, const char *path, const char *name, hid_t type,
                                     hid_t memory_type, const void *value)
{
    const hid_t space = H5Screate(value != NULL ? H5S_SCALAR : H5S_NULL);
    const hid_t attribute =
        space < 0 ? -1 : H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    struct status st = status_ok();
    if (attribute < 0 || (value != NULL && H5Awrite(attribute, memory_type, value) < 0)) {
        st = h5_error(STATUS_IO, path, "attribute %s", name);
    }
    if (attribute >= 0) H5Aclose(attribute);
    if (space >= 0) H5Sclose(space);
    return st;
}

struct status h5_string_attribute(hid_t object, const char *path, const char *name,
                                  const char *text, size_t n)
{
    const hid_t type = H5Tcopy(H5T_C_S1);
    struct status st;
    if (type < 0 || H5Tset_size(type, n > 0 ? n : 1) < 0 ||
        H5Tset_strpad(type, H5T_STR_NULLPAD) < 0 || H5Tset_cset(type, H5T_CSET_UTF8) < 0) {
        st = h5_error(STATUS_IO, path, "attribute %s", name);
    } else {
        st = attribute_write(object, path, name, type, type, n > 0 ? text : "");
    }
    if (type >= 0) H5Tclose(type);
    return st;
}

struct status h5_int_attribute(hid_t object, const char *path, const char *name, int64_t value)
{
    return attribute_write(object, path, name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}

struct status h5_real_attribute(hid_t object, const char *path, const char *name, double value)
{
    return attribute_write(object, path, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
}

static struct status bool_attribute(hid_t object, const char *path, const char *name, bool value)
{
    const hid_t type = H5Tenum_create(H5T_STD_I8LE);
    const int8_t no = 0, yes = 1, stored = value;
    struct status st;
    if (type < 0 || H5Tenum_insert(type, "FALSE", &no) < 0 ||
        H5Tenum_insert(type, "TRUE", &yes) < 0) {
        st = h5_error(STATUS_IO, path, "attribute %s", name);
    } else {
        st = attribute_write(object, path, name, type, type, &stored);
    }
    if (type >= 0) H5Tclose(type);
    return st;
}

static struct status field_write(hid_t group, const char *path, const char *key,
                                 const struct js_node *value)
{
    int64_t i = 0;
    double x = 0;
    bool b = false;
    size_t n = 0;
    char *text = NULL;
    switch (js_type(value)) {
    case JS_NULL:
        return attribute_write(group, path, key, H5T_STD_I8LE, H5T_NATIVE_INT8, NULL);
    case JS_INT:
        js_int(value, &i);
        return h5_int_attribute(group, path, key, i);
    case JS_REAL:
        js_number(value, &x);
        return h5_real_attribute(group, path, key, x);
    case JS_BOOL:
        js_bool(value, &b);
        return bool_attribute(group, path, key, b);
    case JS_STRING: {
        const char *s = js_string(value, &n);
        if (n > CONFIG_ATTRIBUTE_MAX) return status_ok();
        return h5_string_attribute(group, path, key, s, n);
    }
    case JS_ARRAY:
    case JS_OBJECT:
        break;
    }
    TRY(js_dump(value, &text, &n));
    struct status st = status_ok();
    if (n <= CONFIG_ATTRIBUTE_MAX) st = h5_string_attribute(group, path, key, text, n);
    mem_free(&text);
    return st;
}

struct status config_attributes_write(hid_t group, const char *path, const struct js_node *config)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(config, &it, &key, &value)) {
        if (key[0] == '\0' || strlen(key) > 255) continue;
        TRY(field_write(group, path, key, value));
    }
    return status_ok();
}
