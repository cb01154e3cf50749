/* The strings of an HDF5 dataset as JSON lines, {"prompt":"..."}, read piece by piece. Called by
 * byte_source.c and input_files.c. */
#ifndef SHOAL_SERVE_INPUT_DATASET_LINES_H
#define SHOAL_SERVE_INPUT_DATASET_LINES_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Local. True when `path` names a dataset: FILE.h5:/PATH or FILE.hdf5:/PATH. Then *n_file is the
 * length of FILE.h5; otherwise *n_file is undefined. */
bool dataset_lines_split(const char *path, size_t *n_file);

struct dataset_lines;

/* Local. Opens the dataset, which must have one dimension and strings of fixed or variable length.
 * Owner: the caller, dataset_lines_close. Errors: STATUS_INPUT (no HDF5 file, no such dataset,
 * another type or shape), STATUS_MEMORY. */
struct status dataset_lines_open(const char *path, struct dataset_lines **out);
void dataset_lines_close(struct dataset_lines **d);

/* Local. Copies the next bytes of the lines, up to n_most (at least 1); *n is 0 at the end. Bytes
 * that are not UTF-8 become U+FFFD. Errors: STATUS_INPUT (damaged data; names the rows),
 * STATUS_MEMORY. */
struct status dataset_lines_read(struct dataset_lines *d, void *to, size_t n_most, size_t *n);

/* Local. Returns approximately the fraction of the rows that dataset_lines_read has returned; 1 for
 * an empty dataset. */
double dataset_lines_done(const struct dataset_lines *d);

#endif
