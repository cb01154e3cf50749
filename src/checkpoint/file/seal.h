/* The seal: a trailer after HDF5's own bytes, with an XXH3-128 of every part of the file that is
 * not weights. A flipped bit in HDF5's metadata can make the library hang or answer wrongly, so the
 * seal is checked before the library opens the file. HDF5 and its tools ignore the trailer.
 *
 *   [0, eoa)    the bytes that HDF5 wrote
 *   entries     n_entries x {offset, bytes, hash low, hash high}, u64 little endian, ascending
 *   footer      magic[16], n_entries, eoa, hash low, hash high (of the entries and the footer's
 *               first 32 bytes); it ends the file */
#ifndef SHOAL_CHECKPOINT_FILE_SEAL_H
#define SHOAL_CHECKPOINT_FILE_SEAL_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct seal_extent {
    uint64_t offset, n_bytes;
};

struct seal_info {
    uint64_t file_bytes;
    uint64_t eoa;                 /* size of the part that HDF5 wrote */
    uint64_t hash_low, hash_high; /* the footer's */
};

/* Local. Appends a seal to the closed file at `path`. The seal covers all bytes except the raw
 * extents [n], which hold weights with their own checksums; the array is sorted in place. Errors:
 * STATUS_IO, STATUS_INPUT (the file cannot be read back), STATUS_MEMORY. */
struct status seal_append(const char *path, struct seal_extent *raw, size_t n);

/* Local. Verifies a file's seal. Errors: STATUS_INPUT names the file and the first region that
 * differs, or says what is wrong with the seal; STATUS_MEMORY. */
struct status seal_check(const char *path, struct seal_info *out);

#endif
