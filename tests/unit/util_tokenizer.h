/* Checking a tokenizer against golden lines; shared by the unit suite and tool_tokenize.
 * Lines are JSON strings, one a line. A golden file has 8 bytes per line, little-endian: FNV-1a (32
 * bits) over the ids as 4 bytes each, then over the text that they decode to without specials. */
#ifndef SHOAL_TESTS_UTIL_TOKENIZER_H
#define SHOAL_TESTS_UTIL_TOKENIZER_H

#include "base/status.h"
#include "base/strbuf.h"
#include "text/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>

/* A tokenizer of a tokenizer.json, or of a folder with tiktoken.model and tokenizer_config.json. */
struct status util_tokenizer_open(const char *path, struct tokenizer **out);

/* The encode flags of a line: lines take turns. */
unsigned util_line_flags(size_t line);

/* The next line's text; false at the end or when it is no JSON string (*st says so). */
bool util_next_line(const char *lines, size_t n, size_t *at, struct strbuf *text,
                    struct status *st);

/* Checks the lines that the golden has; prints the first n_shown that differ. Fails when it has
 * more lines, or a part of one. */
struct status util_check_golden(struct tokenizer *t, const char *lines_path,
                                const char *golden_path, size_t n_shown, size_t *n_lines,
                                size_t *n_wrong);

/* Decodes ids incrementally, every piece checked to be whole UTF-8 (else *split is set). */
struct status util_decode(const struct tokenizer *t, const struct token_list *ids,
                          bool skip_special, struct strbuf *out, bool *split);

#endif
