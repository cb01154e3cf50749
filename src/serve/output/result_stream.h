/* Writes an answer piece by piece as server-sent events, in the forms of OpenAI's streams. The
 * pieces of an answer, joined, are the text that result_row.h writes as a whole. Called by the
 * server. */
#ifndef SHOAL_SERVE_OUTPUT_RESULT_STREAM_H
#define SHOAL_SERVE_OUTPUT_RESULT_STREAM_H

#include "serve/request/request.h"

/* How much of one answer has been written. All zeros: nothing yet. */
struct result_stream {
    size_t n_thoughts, n_text, n_tokens; /* bytes of its thoughts; bytes of its content or text;
                                            tokens */
    bool has_begun, has_ended;
};

/* Both are Local and append events to `out`. Errors stay in `out`. */

/* Appends the thoughts and the text of the answer c that have not been written yet, with the
 * log-probabilities of its tokens if the request asks for them. While c is unfinished, writes only
 * if there are new thoughts or new text. The last event of a finished answer has its finish_reason
 * and a chat's tool calls. Holds back text that may become a call. Errors: STATUS_MEMORY. */
struct status result_stream_write(struct result_stream *s, const struct request *c,
                                  const struct request_rules *rules, const char *model_name,
                                  struct strbuf *out);

/* Ends the stream of r, all of whose answers have been written: appends the usage if r asks for it,
 * then "[DONE]". */
void result_stream_end(const struct request *r, const char *model_name, struct strbuf *out);

#endif
