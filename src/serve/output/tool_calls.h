/* Finds the tool calls in the text of an answer to a chat that names tools; depends on nothing
 * else. Two ways of writing calls are known; the chat template says which one a model was taught:
 *
 *   TAGGED   text <tool_call>{"name": .., "arguments": {..}}</tool_call> ..   Hermes, Qwen2.5 to 3
 *   JSON     {"name": .., "parameters": {..}}, several joined by ; or lines    Llama 3
 *            [{"name": .., "arguments": {..}}, ..]                             Mistral
 *
 * Called by result_row.c and result_stream.c. */
#ifndef SHOAL_SERVE_OUTPUT_TOOL_CALLS_H
#define SHOAL_SERVE_OUTPUT_TOOL_CALLS_H

#include "serve/request/request.h"

enum { TOOL_CALLS_MAX = 128 };

struct tool_call {
    char *name;      /* owned, NUL-terminated */
    char *arguments; /* owned, [n_arguments]: a compact JSON object */
    size_t n_arguments;
};

/* Zero-initialise it; tool_calls_fini frees it. */
struct tool_calls {
    struct tool_call *calls; /* [n], owned */
    size_t n;                /* 0: the whole content is text */
    size_t content;          /* where the content begins, after the thoughts */
    size_t n_content;        /* bytes of the content before the first call, without trailing
                                blanks */
};

/* Local. Finds the calls in the content of the finished answer c. Finds none if any call cannot be
 * read or names a tool that the request does not name, or if there are more than TOOL_CALLS_MAX.
 * Errors: STATUS_MEMORY. */
struct status tool_calls_find(const struct request *c, struct tool_calls *out);
void tool_calls_fini(struct tool_calls *t);

/* Local. Returns how many bytes of the content of the unfinished answer c cannot become a part of a
 * call, whatever follows; all if the request names no tools. content: where the content begins in
 * c's text. */
size_t tool_calls_n_sure(const struct request *c, size_t content);

/* Local. Appends the member "tool_calls" as OpenAI writes it, with ids made from the line's
 * custom_id. indexed: each call has its "index", as in streams. Errors stay in `out`. */
void tool_calls_write(const struct tool_calls *t, const struct request *c, bool indexed,
                      struct strbuf *out);

/* Local. Appends text [n], the part of a chat's result row that holds its "choices", with the tool
 * calls' ids replaced by those for this custom_id. Errors stay in `out`. */
void tool_calls_rename(const char *text, size_t n, const char *custom_id, struct strbuf *out);

#endif
