/* Divides the text of an answer to a chat into the model's thoughts and its content. Depends only
 * on the text, on whether the answer is finished, and on the request's `thoughts`. Called by
 * tool_calls.c, result_row.c and result_stream.c. */
#ifndef SHOAL_SERVE_OUTPUT_REASONING_H
#define SHOAL_SERVE_OUTPUT_REASONING_H

#include "serve/request/request.h"

/* Places in the text of an answer. Blanks around the thoughts belong to neither part. An answer
 * without thoughts is all content, with its first blanks. */
struct reasoning {
    size_t begin, end; /* the thoughts; empty if the answer has none */
    size_t content;    /* where the content begins; it ends with the text */
};

/* Local. Finds the thoughts and the content of the answer c. While c is unfinished, both end before
 * text that later tokens may turn into a tag or into blanks around them, so that later calls only
 * extend them. */
struct reasoning reasoning_of(const struct request *c);

/* Local. Appends the member "reasoning_content": bytes [begin, end) of c's text. Errors stay in
 * `out`. */
void reasoning_write(const struct request *c, size_t begin, size_t end, struct strbuf *out);

#endif
