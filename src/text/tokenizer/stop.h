/* Finds stop strings in text that arrives in pieces.
 * Text that might still turn out to begin a stop string is held back. Called by the lead for every
 * running request that has stop strings. */
#ifndef SHOAL_TEXT_TOKENIZER_STOP_H
#define SHOAL_TEXT_TOKENIZER_STOP_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stddef.h>

struct stop_matcher; /* the strings, and the state of one text */

/* Local. strings[i] has n_bytes[i] bytes (copied) and must not be empty. Owner of *out: the caller,
 * stop_destroy. Errors: STATUS_REQUEST for an empty string, STATUS_MEMORY. */
struct status stop_create(const char *const *strings, const size_t *n_bytes, size_t n_strings,
                          struct stop_matcher **out);
void stop_destroy(struct stop_matcher **m);

/* Local. A matcher of the same strings, before any text. Errors: STATUS_MEMORY. */
struct status stop_copy(const struct stop_matcher *m, struct stop_matcher **out);

/* Local. Takes n more bytes of text; appends to `out` what is now safe to emit. The match that ends
 * first wins, among those the longest; then *stopped is true, the text before the match has been
 * appended, and later calls append nothing. Pieces of whole UTF-8 sequences give pieces of whole
 * sequences. Time: n bytes times the number of strings. Errors: STATUS_MEMORY. */
struct status stop_feed(struct stop_matcher *m, const char *text, size_t n, struct strbuf *out,
                        bool *stopped);

/* Local. Looks ahead into text that may follow what was fed: true when a stop string ends in it.
 * The next call without a stop_feed between them gives the same bytes again, with more behind: only
 * those are looked at. */
bool stop_peek(struct stop_matcher *m, const char *text, size_t n);

/* Local. The text has ended: appends what was held back; nothing after a match. */
struct status stop_flush(struct stop_matcher *m, struct strbuf *out);

#endif
