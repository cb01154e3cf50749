/* Helpers for HDF5: errors as sentences, the stored types, and access to plain files without
 * plugins or locks. Called by the writers and readers of HDF5 files in this room, by the callers of
 * these writers, by convert and quantize, and by the reader of inputs. */
#ifndef SHOAL_CHECKPOINT_FILE_H5_H
#define SHOAL_CHECKPOINT_FILE_H5_H

#include "base/status.h"
#include "base/strbuf.h"
#include "tensor/dtype.h"

#include <hdf5.h>

/* Local. From now on HDF5 prints nothing, loads no plugins and does not clean up at exit. */
void h5_quiet(void);

/* Local. Returns a status with "path: what: HDF5's innermost reason", and a remedy if the reason is
 * file locking. Call it right after the call that failed. */
struct status h5_error(enum status_code code, const char *path, const char *what, ...)
    __attribute__((format(printf, 3, 4)));

/* Local. Returns a dtype's HDF5 type, little endian; the caller closes it. Negative on failure. */
hid_t h5_dtype_create(enum dtype t);
/* Local. True when `type` is exactly the HDF5 type of a dtype, to which *out is set. */
bool h5_dtype_match(hid_t type, enum dtype *out);

/* Local. Appends text [n] for an HDF5 string. Such a string ends at its first NUL, so each NUL of
 * the text is written as \u0000. */
void h5_add_string(struct strbuf *out, const char *text, size_t n);

/* Local. Returns file access properties: plain POSIX file, no locks, the file format of HDF5 1.8.
 * The caller closes them. */
hid_t h5_access_create(void);

#endif
