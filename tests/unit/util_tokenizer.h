/* Checks a tokenizer against golden lines, for the unit suite and tool_tokenize. Lines are JSON
 * strings, one a line. A golden file has 8 bytes per line, little-endian: FNV-1a (32 bits) over the
 * ids as 4 bytes each, then over the text that the ids decode to without special tokens. */
#ifndef SHOAL_TESTS_UTIL_TOKENIZER_H
#define SHOAL_TESTS_UTIL_TOKENIZER_H

#include "base/status.h"
#include "base/strbuf.h"
#include "text/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>

/* Opens a tokenizer from a tokenizer.json, or from a folder with tiktoken.model and
 * tokenizer_config.json. */
struct status util_tokenizer_open(const char *path, struct tokenizer **out);

/* Returns the flags for encoding a line; they alternate from line to line. */
unsigned util_line_flags(size_t line);

/* Reads the next line's text. False: the lines have ended, or the line is not a JSON string (then
 * *st is an error). */
bool util_next_line(const char *lines, size_t n, size_t *at, struct strbuf *text,
                    struct status *st);

/* Compares as many lines as the golden has, and prints the first n_shown that differ. An error when
 * the golden has more lines or ends within one. */
struct status util_check_golden(struct tokenizer *t, const char *lines_path,
                                const char *golden_path, size_t n_shown, size_t *n_lines,
                                size_t *n_wrong);

/* Decodes ids one by one. Sets *split when a piece is not whole UTF-8. */
struct status util_decode(const struct tokenizer *t, const struct token_list *ids,
                          bool skip_special, struct strbuf *out, bool *split);

#endif
