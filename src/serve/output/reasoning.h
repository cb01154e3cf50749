/* Divides the text of an answer to a chat into the model's thoughts and its content. Depends on
 * nothing else than the text and what the request says about thoughts. Called by tool_calls.c,
 * result_row.c and result_stream.c. */
#ifndef SHOAL_SERVE_OUTPUT_REASONING_H
#define SHOAL_SERVE_OUTPUT_REASONING_H

#include "serve/request/request.h"

/* Places in the text of an answer. Blanks around the thoughts and before the content belong to
 * neither. */
struct reasoning {
    size_t begin, end; /* the thoughts; empty: there are none */
    size_t content;    /* where the content begins, which goes on to the end of the text */
};

/* Local. Finds the parts of the answer c. If c is not finished, the thoughts and the content end
 * where text that follows could still change them; later calls only extend both. */
struct reasoning reasoning_of(const struct request *c);

/* Local. Appends the member "reasoning_content": bytes [begin, end) of c's text. Errors stay in
 * `out`. */
void reasoning_write(const struct request *c, size_t begin, size_t end, struct strbuf *out);

#endif
