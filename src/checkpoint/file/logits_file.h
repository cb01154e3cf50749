/* Writes the HDF5 file of `shoal score --logits`: one dataset per request line, named by the line's
 * number, [T, V] f32. On the lead only; called through the lead's logits sink. */
#ifndef SHOAL_CHECKPOINT_FILE_LOGITS_FILE_H
#define SHOAL_CHECKPOINT_FILE_LOGITS_FILE_H

#include "base/status.h"

#include <stdint.h>

struct logits_file;

/* Local. Creates (truncates) the file. Errors: STATUS_IO, STATUS_MEMORY. */
struct status logits_file_create(const char *path, struct logits_file **out);

/* Local. Writes rows [n_rows, vocab] as rows [row0, row0 + n_rows) of a line's dataset, which
 * grows. Replaces rows that are already there. Errors: STATUS_IO. */
struct status logits_file_write(struct logits_file *f, uint64_t line, int32_t row0,
                                const float *rows, int32_t n_rows, int32_t vocab);

/* Local. Closes the file; accepts NULL. Errors: STATUS_IO when it could not be completed. */
struct status logits_file_close(struct logits_file **f);

#endif
