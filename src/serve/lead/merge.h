/* Joins the outputs of a job array (a command with --input-part) into the file that one job
 * over the whole input would have written. Checks that every part was given once and is complete,
 * that all parts had the same settings, and that every line of the input has exactly one row, the
 * one that the part's journal recorded for the line's bytes. Runs in one process. Memory grows with
 * the input only by the set of custom_ids. Called by cmd_merge.c. */
#ifndef SHOAL_SERVE_LEAD_MERGE_H
#define SHOAL_SERVE_LEAD_MERGE_H

#include "base/status.h"
#include "serve/input/input_files.h"

#include <stddef.h>
#include <stdint.h>

/* Everything is borrowed. */
struct merge_options {
    const struct input_files *input; /* the input of the whole array */
    const char *output_path;         /* replaced once all checks have passed, otherwise left
                                        alone */
    size_t frame_bytes;              /* of rows in a compressed frame; 0: ROW_FRAMES_BYTES */
    const char *journal_folder;      /* the parts' --journal; NULL: beside each part */
    const char *const *parts;        /* [n_parts] the array's outputs, in any order */
    size_t n_parts;
};

struct merge_result {
    uint64_t n_rows, n_error_rows;
    uint64_t n_duplicates; /* rows that became errors because an earlier part has the custom_id */
    double sum_logprob;    /* of a score job: the sum over the rows, in input order */
    uint64_t n_scored;
};

/* Local. Joins the parts. If an earlier part has a row's custom_id and the row's line ran, the row
 * becomes the error row that a single job would have written. Errors: STATUS_INPUT (a part is
 * missing, named twice, not complete, of another job or another input; a file is damaged),
 * STATUS_USAGE (the output would replace a file that is read or is not regular, has the ending of
 * another format, or is being written by another merge), STATUS_IO, STATUS_MEMORY. */
struct status merge_run(const struct merge_options *options, struct merge_result *out);

#endif
