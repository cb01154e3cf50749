/* Error sentences, types and access properties for HDF5. */
#include "checkpoint/file/h5.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void h5_quiet(void)
{
    H5dont_atexit(); /* after a failed write the library would fail again, or crash, at exit */
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    H5PLset_loading_state(0);
}

struct reason {
    char text[160];
    bool locking;
};

/* Sets the reason to HDF5's description, up to its first comma or line end; for a failed system
 * call, to the system's message alone. */
static void reason_set(struct reason *reason, const char *text)
{
    static const char label[] = "error message = ";
    const char *message = strstr(text, label);
    const char *from = message != NULL ? message + strlen(label) : text;
    snprintf(reason->text, sizeof reason->text, "%.*s", (int)strcspn(from, "\n,"), from);
}

static herr_t reason_visit(unsigned n, const H5E_error2_t *error, void *ctx)
{
    struct reason *reason = ctx;
    const char *text = error->desc != NULL ? error->desc : "";
    if (n == 0) reason_set(reason, text);
    if (strstr(text, "lock") != NULL && strstr(text, "block") == NULL) reason->locking = true;
    return 0;
}

struct status h5_error(enum status_code code, const char *path, const char *what, ...)
{
    struct reason reason = {.text = "no reason given"};
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, reason_visit, &reason);
    H5Eclear2(H5E_DEFAULT);
    char sentence[STATUS_TEXT_MAX / 2];
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(sentence, sizeof sentence, what, arguments);
    va_end(arguments);
    return status_make(code, "%s: %s: HDF5: %s%s", path, sentence, reason.text,
                       reason.locking ? "; file systems without locks (Lustre, NFS) need "
                                        "HDF5_USE_FILE_LOCKING=FALSE in the environment"
                                      : "");
}

/* Makes a float type of 2 bytes: from the top, sign, e bits of exponent, m bits of mantissa. */
static hid_t half_create(size_t e, size_t m)
{
    const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    if (type < 0) return type;
    if (H5Tset_fields(type, 15, m, e, 0, m) < 0 || H5Tset_precision(type, 16) < 0 ||
        H5Tset_size(type, 2) < 0 || H5Tset_ebias(type, ((size_t)1 << (e - 1)) - 1) < 0) {
        H5Tclose(type);
        return -1;
    }
    return type;
}

hid_t h5_dtype_create(enum dtype t)
{
    switch (t) {
    case DTYPE_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case DTYPE_F16:
        return half_create(5, 10);
    case DTYPE_BF16:
        return half_create(8, 7);
    case DTYPE_I8:
        return H5Tcopy(H5T_STD_I8LE);
    case DTYPE_U8:
        return H5Tcopy(H5T_STD_U8LE);
    case DTYPE_F8_E4M3: /* stored only in other programs' files */
    case DTYPE_F8_E5M2:
    case DTYPE_F8_E8M0:
    case DTYPE_I32:
    case DTYPE_I64:
    case DTYPE_COUNT: /* not types */
    case DTYPE_STORED_COUNT:
        break;
    }
    return -1;
}

bool h5_dtype_match(hid_t type, enum dtype *out)
{
    for (int i = 0; i < DTYPE_STORED_COUNT; i++) {
        const hid_t ours = h5_dtype_create((enum dtype)i);
        const bool equal = ours >= 0 && H5Tequal(type, ours) > 0;
        if (ours >= 0) H5Tclose(ours);
        if (equal) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return false;
}

void h5_add_string(struct strbuf *out, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] != '\0')
            strbuf_add(out, &text[i], 1);
        else
            strbuf_puts(out, "\\u0000");
    }
}

hid_t h5_access_create(void)
{
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (access < 0) return access;
    if (H5Pset_fapl_sec2(access) < 0 || H5Pset_file_locking(access, 0, 1) < 0 ||
        H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18) < 0 ||
        H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) < 0) {
        H5Pclose(access);
        return -1;
    }
    return access;
}
