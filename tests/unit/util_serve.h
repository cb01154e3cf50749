/* Files, a byte tokenizer and a whole lead run over the fake engine, for tests of serve. */
#ifndef SHOAL_TESTS_UTIL_SERVE_H
#define SHOAL_TESTS_UTIL_SERVE_H

#include "base/strbuf.h"
#include "serve/lead/lead.h"
#include "util_fake_engine.h"

/* A tokenizer whose ids 0..255 are the bytes and whose id 256 is the special token "<|end|>". */
struct tokenizer *util_byte_tokenizer(void);

/* Makes a new file of n bytes in /tmp, and writes its name to `path`; util_file_remove removes the
 * file. */
enum { UTIL_PATH_MAX = 64 };
void util_file_create(char path[UTIL_PATH_MAX], const char *bytes, size_t n);
void util_file_remove(const char path[UTIL_PATH_MAX]);

/* Sets the process's peak memory (mem_peak_bytes) to the memory that it has now, if the kernel can,
 * and returns the peak. Without it, an earlier peak could hide the one that a test looks for. */
uint64_t util_peak_restart(void);

/* Rules for a fake model with a context of 20 tokens; the request of `line` under such rules, as
 * line number 12. */
struct request_rules util_request_rules(struct tokenizer *t);
struct request *util_request_parse(const struct request_rules *rules, const char *line);

/* Returns the request of a chat that names tools: n bytes of names, each but the last followed by a
 * NUL. *ask: its fields, which the test may change; `ask` may be NULL. */
struct request *util_request_chat(const char *tools, size_t n, struct request_ask **ask);

/* Options for a fake model: a context of 200 tokens, one replica, one group, and a large pool of
 * blocks. */
struct lead_options util_lead_options(struct tokenizer *t, const char *input, const char *output);

/* Runs a job to its end over a fake engine, which fails at token 1 in position 1. Returns the first
 * error; *n_wrong is the number of errors that the engine found in plans. */
struct status util_lead_run(const struct lead_options *o, struct serve_summary *summary,
                            uint64_t *n_wrong);

/* Runs a job over the lines `in` and puts the bytes of its output file into `out` (initialized).
 * The job must not fail. */
void util_lead_run_text(struct lead_options *o, const struct strbuf *in,
                        struct serve_summary *summary, struct strbuf *out);

#endif
