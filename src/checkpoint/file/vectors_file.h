/* Writes vectors of equal length as a NumPy array (NAME.npy, format 1.0) or as an HDF5 file
 * (NAME.h5) with the datasets `vectors`, [N, D] f32, and `ids`, [N] strings. Writes to a temporary
 * file in the target's folder and renames it to the target when it is complete. The bytes depend on
 * the vectors and their ids alone. Called on the lead by job_vectors.c and job_paths.c. */
#ifndef SHOAL_CHECKPOINT_FILE_VECTORS_FILE_H
#define SHOAL_CHECKPOINT_FILE_VECTORS_FILE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vectors_file;

/* Local. Tells whether the path ends in .npy or .h5. */
bool vectors_file_is_name(const char *path);

/* Local. Begins a file for exactly n vectors of d numbers; both are above 0. Errors: STATUS_USAGE
 * (the path exists and is no regular file), STATUS_IO, STATUS_MEMORY. */
struct status vectors_file_create(const char *path, uint64_t n, uint32_t d,
                                  struct vectors_file **out);

/* Local. Adds the next vector x [d]; id is copied. Errors: STATUS_IO, STATUS_MEMORY. */
struct status vectors_file_add(struct vectors_file *f, const char *id, const float *x);

/* Local. Completes the file if all n vectors were added and `st` is ok, otherwise removes it; frees
 * *f. Accepts NULL. Returns st if that is an error. Errors: STATUS_BUG (not n vectors), STATUS_IO,
 * STATUS_MEMORY. */
struct status vectors_file_end(struct vectors_file **f, struct status st);

#endif
