/* shoal status --nodes: the time left by the cost model. The rate of a job's rows so far misleads
 * where the rows that are left have longer prompts or answers. */
#ifndef SHOAL_CLI_STATUS_FORECAST_H
#define SHOAL_CLI_STATUS_FORECAST_H

#include "base/status.h"
#include "options/flags.h"
#include "serve/journal/journal_format.h"

#define STATUS_FORECAST_FLAGS(FLAG)                                                                \
    FLAG(const char *, model, "model", OF_TEXT("FILE.h5"),                                         \
         .help = "with --nodes: the job's model")                                                  \
    FLAG(const char *, nodes, "nodes", OF_TEXT("NODE.json"),                                       \
         .help = "estimate the time left by these speeds of a node and the lines that are left, "  \
                 "instead of the mean of the rows so far; needs --model and --input")              \
    FLAG(struct flag_list, input, "input", OF_LIST("IN.jsonl"),                                    \
         .help = "with --nodes: the job's lines")                                                  \
    FLAG(uint32_t, max_batch, "max-batch", OF_COUNT(1, 1 << 20, "N"), .preset = "64",              \
         .help = "with --nodes: sequences that run at a time")

struct status_forecast_flags {
    STATUS_FORECAST_FLAGS(FLAG_FIELD)
};

/* Local. *left_s = the seconds of the last session so far, times the cost model's time for the
 * lines that are left, divided by its time for the session's rows. Prompt tokens are estimated by
 * the lines' bytes, answers by max_tokens. 0: no line is left; -1: the session has generated no
 * token yet. Errors: STATUS_USAGE (a flag is missing, or the job has --input-part), STATUS_INPUT,
 * STATUS_IO, STATUS_MEMORY. */
struct status status_forecast_left(const struct status_forecast_flags *flags,
                                   const struct journal_facts *f, double *left_s);

#endif
