/* Jobs with a journal over the fake engine, which end after a given number of steps and are
 * resumed. */
#ifndef SHOAL_TESTS_UTIL_JOURNAL_H
#define SHOAL_TESTS_UTIL_JOURNAL_H

#include "util_serve.h"

enum { UTIL_GROUPS_MAX = 4, UTIL_REPLICAS_MAX = 3, UTIL_TO_THE_END = 1 << 30 };

extern const char util_job_settings[];

/* The files of a job, and the output of an uninterrupted run without a journal. */
struct util_job {
    char folder[64], input[96], output[96], journal[96];
    struct tokenizer *tokenizer;
    struct lead_options o;
    struct strbuf expected;
    bool bad_arithmetic; /* some rows fail with numeric errors */
};

/* How far one run came. */
struct util_outcome {
    struct status st;
    bool done;
    size_t n_wrong;
    struct serve_summary summary;
};

void util_write_file(const char *path, const char *bytes, size_t n);
void util_read_file(const char *path, struct strbuf *out);

/* Makes a job in a folder of its own, over n_lines lines of all kinds or over the lines `text`. */
void util_job_init(struct util_job *job, int n_lines, bool bad_arithmetic);
void util_job_init_text(struct util_job *job, const char *text, size_t n, bool bad_arithmetic);
void util_job_fini(struct util_job *job);

/* Runs the job for at most n_steps. If it is not done then, the run ends like a killed process:
 * nothing is flushed. With `drains` the run ends in order instead. */
void util_job_run(struct util_job *job, int64_t n_steps, bool drains, struct util_outcome *out);

/* Removes the output and the journal. */
void util_job_remove(const struct util_job *job);

/* Whether the output has the bytes of the uninterrupted run; whether it has the first ones of
 * them. */
bool util_job_is_expected(const struct util_job *job);
bool util_job_is_prefix(const struct util_job *job);

#endif
