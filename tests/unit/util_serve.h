/* Files, a byte tokenizer and a whole lead run over the fake engine, for tests of serve. */
#ifndef SHOAL_TESTS_UTIL_SERVE_H
#define SHOAL_TESTS_UTIL_SERVE_H

#include "base/strbuf.h"
#include "serve/lead/lead.h"
#include "util_fake_engine.h"

/* A tokenizer whose ids 0..255 are the bytes and whose id 256 is the special token "<|end|>". */
struct tokenizer *util_byte_tokenizer(void);

/* A new file of n bytes; *path is its name (in a static size). util_file_remove removes it. */
enum { UTIL_PATH_MAX = 64 };
void util_file_create(char path[UTIL_PATH_MAX], const char *bytes, size_t n);
void util_file_remove(const char path[UTIL_PATH_MAX]);

/* Rules of a fake model with a context of 20 tokens, and the request of a line, number 12. */
struct request_rules util_request_rules(struct tokenizer *t);
struct request *util_request_parse(const struct request_rules *rules, const char *line);

/* Options for a fake model: context of 200 tokens, one replica, one group, a wide pool. */
struct lead_options util_lead_options(struct tokenizer *t, const char *input, const char *output);

/* Runs a job to its end as main's loop does, over a fake engine. Returns the first error; *n_wrong
 * is what of the plans the engine found wrong. */
struct status util_lead_run(const struct lead_options *o, struct serve_summary *summary,
                            uint64_t *n_wrong);

/* Runs a job over the lines `in`, which must go well; its output file's bytes go to `out`
 * (initialized). */
void util_lead_run_text(struct lead_options *o, const struct strbuf *in,
                        struct serve_summary *summary, struct strbuf *out);

#endif
