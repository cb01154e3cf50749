/* Writes an answer piece by piece as server-sent events, in the forms of OpenAI's streams. The
 * pieces of an answer, joined, are the text that result_row.h writes at once. Called by the server.
 */
#ifndef SHOAL_SERVE_OUTPUT_RESULT_STREAM_H
#define SHOAL_SERVE_OUTPUT_RESULT_STREAM_H

#include "serve/request/request.h"

/* How much of one answer was written. All zeros: nothing. */
struct result_stream {
    size_t n_text, n_tokens;
    bool has_begun, has_ended;
};

/* Both are Local and append events to `out`, where errors stick. */

/* The text that the answer c has beyond what was written, with the log-probabilities of its tokens
 * if they are asked for; nothing if there is no such text. A finished answer's last event has its
 * finish_reason, and the tool calls of a chat; text that may become one is held back. Errors:
 * STATUS_MEMORY. */
struct status result_stream_write(struct result_stream *s, const struct request *c,
                                  const struct request_rules *rules, const char *model_name,
                                  struct strbuf *out);

/* The end of the stream of r, whose answers have been written: the usage if r asks for it, then
 * "[DONE]". */
void result_stream_end(const struct request *r, const char *model_name, struct strbuf *out);

#endif
