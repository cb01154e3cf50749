/* Finds stop strings in a text that arrives in pieces. Holds back text that may begin a stop
 * string. Called by serve/request, on the lead, for every running request with stop strings. */
#ifndef SHOAL_TEXT_TOKENIZER_STOP_H
#define SHOAL_TEXT_TOKENIZER_STOP_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stddef.h>

struct stop_matcher; /* the strings, and the state of one text */

/* Local. Makes a matcher of strings[i], each of n_bytes[i] bytes (copied). Owner of *out: the
 * caller, stop_destroy. Errors: STATUS_REQUEST for an empty string, STATUS_MEMORY. */
struct status stop_create(const char *const *strings, const size_t *n_bytes, size_t n_strings,
                          struct stop_matcher **out);
void stop_destroy(struct stop_matcher **m);

/* Local. Sets *out to a matcher of the same strings that has seen no text. Owner: the caller.
 * Errors: STATUS_MEMORY. */
struct status stop_copy(const struct stop_matcher *m, struct stop_matcher **out);

/* Local. Takes n more bytes of text. Appends to `out` the text that can no longer belong to a stop
 * string. At a match *stopped is true, and `out` has the text before it; later calls append
 * nothing. Of several matches the one that ends first counts; of those that end together, the
 * longest. If the stop strings and the input consist of whole UTF-8 sequences, so does the output.
 * Takes time n times the number of strings. Errors: STATUS_MEMORY. */
struct status stop_feed(struct stop_matcher *m, const char *text, size_t n, struct strbuf *out,
                        bool *stopped);

/* Local. True when a stop string would end in these n bytes if they followed the text, and always
 * after a match of stop_feed. Until the next stop_feed each call must pass the bytes of the call
 * before, perhaps with more bytes after them; only the new bytes are searched. */
bool stop_peek(struct stop_matcher *m, const char *text, size_t n);

/* Local. Ends the text: appends the text that was held back, unless there was a match. Errors:
 * STATUS_MEMORY. */
struct status stop_flush(struct stop_matcher *m, struct strbuf *out);

#endif
