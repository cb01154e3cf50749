/* HDF5 helpers of the checkpoint's reader and writer: errors as sentences, the stored types, and
 * opening a file without plugins, locks or drivers. Called by the writers and readers of HDF5 files
 * in this room, and by convert and quantize. */
#ifndef SHOAL_CHECKPOINT_FILE_H5_H
#define SHOAL_CHECKPOINT_FILE_H5_H

#include "base/status.h"
#include "tensor/dtype.h"

#include <hdf5.h>

/* Local. HDF5 prints nothing and loads no plugins from now on. */
void h5_quiet(void);

/* Local. A status with "path: what: HDF5's innermost reason", and the remedy where that reason is
 * file locking. Call it right after the call that failed. */
struct status h5_error(enum status_code code, const char *path, const char *what, ...)
    __attribute__((format(printf, 3, 4)));

/* Local. The HDF5 type of a dtype, little endian; the caller closes it. Negative on failure. */
hid_t h5_dtype_create(enum dtype t);
/* Local. True when `type` is exactly the HDF5 type of a dtype: *out. */
bool h5_dtype_match(hid_t type, enum dtype *out);

/* Local. File access properties: plain POSIX file, no locks, the file format of HDF5 1.8. */
hid_t h5_access_create(void);

#endif
