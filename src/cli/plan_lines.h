/* Samples an input's lines; shoal plan simulates a job on the sample. Does not parse JSON. */
#ifndef SHOAL_CLI_PLAN_LINES_H
#define SHOAL_CLI_PLAN_LINES_H

#include "base/status.h"
#include "serve/input/input_files.h"

struct plan_lines {
    char path[64];   /* of a file in memory that holds the sample */
    int fd;          /* its descriptor, owned; -1: path is empty, and the input itself is used */
    double n_all, n; /* lines of the input, and of the sample */
    double spread;   /* standard deviation of a line's bytes, divided by their mean */
};

/* Local. Counts the lines of the inputs and, if there are more than n_most, copies runs of
 * neighbouring lines, evenly spread, to a file in memory. plan_lines_fini closes it. Errors:
 * STATUS_INPUT, STATUS_IO, STATUS_MEMORY. */
struct status plan_lines_read(const struct input_files *inputs, double n_most,
                              struct plan_lines *out);
void plan_lines_fini(struct plan_lines *lines);

#endif
