/* Reads and checks a checkpoint's quantized tensors: groups of /weights that have the attribute
 * "format" and the datasets codes, scales and, in some formats, zeros. Does no arithmetic. */
#include "base/mem.h"
#include "checkpoint/file/ckpt_private.h"
#include "tensor/leaf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { METHOD_BYTES_MAX = 256, FORMAT_BYTES_MAX = 31 };

const char *ckpt_part_name(enum ckpt_part part)
{
    static const char *const names[CKPT_PART_COUNT] = {"codes", "scales", "zeros"};
    return names[part];
}

enum dtype ckpt_part_dtype(enum ckpt_part part, struct quant_format f)
{
    if (part == CKPT_CODES) return quant_code_dtype(f);
    return part == CKPT_SCALES ? quant_scale_dtype(f) : DTYPE_U8;
}

uint64_t ckpt_part_columns(enum ckpt_part part, struct quant_format f, uint64_t n_in)
{
    return part == CKPT_CODES ? quant_code_bytes(f.kind, n_in) : quant_groups(f, n_in);
}

/* Reads the attributes of an open group that has the attribute "format". */
static struct status attributes_read(struct ckpt *c, const char *path, hid_t group,
                                     struct ckpt_tensor *t, char **method)
{
    char *format = NULL;
    uint64_t n_in = 0, group_size = UINT64_MAX;
    TRY(ckpt_string_attribute(c, path, group, "format", FORMAT_BYTES_MAX, &format));
    const bool known = quant_format_parse(format, &t->quant);
    struct status st = status_ok();
    if (!known) {
        st = status_make(STATUS_INPUT, "%s: %s: format '%s' is not known to this version", c->path,
                         path, format);
    }
    mem_free(&format);
    TRY(st);
    TRY(ckpt_int_attribute(c, path, group, "inputs", UINT32_MAX, &n_in));
    TRY(ckpt_int_attribute(c, path, group, "group_size", UINT32_MAX, &group_size));
    if (n_in == 0 || group_size != t->quant.group) {
        return status_make(STATUS_INPUT,
                           "%s: %s: expected attributes inputs, above 0, and group_size %u",
                           c->path, path, t->quant.group);
    }
    t->n_cols = n_in;
    TRY(ckpt_leaf_read(c, path, group, t));
    return ckpt_string_attribute(c, path, group, "method", METHOD_BYTES_MAX, method);
}

struct status ckpt_quant_read(struct ckpt *c, const char *path)
{
    const hid_t group = H5Gopen2(c->file, path, H5P_DEFAULT);
    if (group < 0) return h5_error(STATUS_INPUT, c->path, "%s", path);
    struct status st = status_ok();
    if (H5Aexists(group, "format") > 0) {
        struct ckpt_tensor t = {0};
        char *method = NULL;
        st = attributes_read(c, path, group, &t, &method);
        if (!status_failed(&st)) st = ckpt_entry_add(c, path, &t);
        if (status_failed(&st)) {
            mem_free(&method);
        } else {
            struct ckpt_entry *entry = &c->entries[c->n_entries - 1];
            entry->method = method;
            entry->tensor.method = method;
        }
    }
    H5Gclose(group);
    return st;
}

static int entry_compare(const void *a, const void *b)
{
    const struct ckpt_entry *x = a, *y = b;
    if (x->is_part != y->is_part) return x->is_part ? 1 : -1;
    return strcmp(x->name, y->name);
}

static void sort(struct ckpt *c)
{
    if (c->n_entries > 0) qsort(c->entries, c->n_entries, sizeof c->entries[0], entry_compare);
    for (size_t i = 0; i < c->n_entries; i++) c->entries[i].tensor.index = (uint32_t)i;
}

/* Finds a part's entry among entries [low, high), which are sorted by name; NULL when absent. */
static struct ckpt_entry *part_find(struct ckpt *c, size_t low, size_t high,
                                    const struct ckpt_tensor *t, enum ckpt_part part)
{
    char name[CKPT_PATH_MAX];
    snprintf(name, sizeof name, "%s.%s", t->name, ckpt_part_name(part));
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(name, c->entries[middle].name);
        if (order == 0) return &c->entries[middle];
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

static struct status bad_part(const struct ckpt *c, const struct ckpt_tensor *t,
                              enum ckpt_part part, const char *what)
{
    return status_make(STATUS_INPUT, "%s: quantized tensor %s: %s: %s", c->path, t->name,
                       ckpt_part_name(part), what);
}

/* Checks a part's type and number of columns, and that its outer dimensions equal the codes'. */
static struct status part_check(const struct ckpt *c, const struct ckpt_tensor *t,
                                enum ckpt_part part)
{
    const struct ckpt_tensor *p = t->parts[part], *codes = t->parts[CKPT_CODES];
    const bool free_type = part == CKPT_SCALES && t->quant.kind != QUANT_MXFP4;
    const bool type_fits = free_type ? p->dtype == DTYPE_F16 || p->dtype == DTYPE_F32
                                     : p->dtype == ckpt_part_dtype(part, t->quant);
    if (!type_fits) return bad_part(c, t, part, "has another element type than its format");
    if (p->n_dims < 2 || p->n_dims != codes->n_dims ||
        memcmp(p->dims, codes->dims, (p->n_dims - 1) * sizeof p->dims[0]) != 0 ||
        p->n_cols != ckpt_part_columns(part, t->quant, t->n_cols) || p->leaf_elems != 0) {
        return bad_part(c, t, part, "its shape does not fit format, inputs and codes");
    }
    return status_ok();
}

/* Completes a quantized tensor; all entries must be at their final addresses. */
static struct status tensor_link(struct ckpt *c, struct ckpt_tensor *t)
{
    for (enum ckpt_part part = CKPT_CODES; part < CKPT_PART_COUNT; part++) {
        const struct ckpt_entry *e = part_find(c, c->n_tensors, c->n_entries, t, part);
        if ((e != NULL) != (part != CKPT_ZEROS || t->quant.has_zeros)) {
            return bad_part(c, t, part, e == NULL ? "is missing" : "is not part of its format");
        }
        if (e == NULL) continue;
        t->parts[part] = &e->tensor;
        TRY(part_check(c, t, part));
        t->n_bytes += e->tensor.n_bytes;
    }
    const struct ckpt_tensor *codes = t->parts[CKPT_CODES];
    t->n_dims = codes->n_dims;
    memcpy(t->dims, codes->dims, sizeof t->dims);
    t->dims[t->n_dims - 1] = t->n_cols;
    t->n_rows = codes->n_rows;
    if (t->quant.kind != QUANT_MXFP4) t->quant.scale_dtype = t->parts[CKPT_SCALES]->dtype;
    if (t->leaf_elems % quant_kernel_group(t->quant) == 0) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: quantized tensor %s: leaf of %u columns, expected whole groups of %u",
                       c->path, t->name, t->leaf_elems, quant_kernel_group(t->quant));
}

struct status ckpt_quant_link(struct ckpt *c)
{
    sort(c);
    for (size_t i = 0; i < c->n_entries; i++) {
        const struct ckpt_tensor *t = &c->entries[i].tensor;
        if (t->quant.kind == QUANT_NONE) continue;
        for (enum ckpt_part part = CKPT_CODES; part < CKPT_PART_COUNT; part++) {
            struct ckpt_entry *e = part_find(c, 0, c->n_entries, t, part);
            if (e != NULL && e->tensor.quant.kind == QUANT_NONE) e->is_part = true;
        }
    }
    sort(c);
    while (c->n_tensors < c->n_entries && !c->entries[c->n_tensors].is_part) c->n_tensors++;
    for (size_t i = 0; i < c->n_tensors; i++) {
        struct ckpt_tensor *t = &c->entries[i].tensor;
        if (t->quant.kind != QUANT_NONE) {
            TRY(tensor_link(c, t));
        } else if (t->dtype > DTYPE_COUNT) {
            return status_make(STATUS_INPUT, "%s: tensor %s: type %s outside a quantized tensor",
                               c->path, t->name, dtype_name(t->dtype));
        }
    }
    return status_ok();
}
