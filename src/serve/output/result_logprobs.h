/* Writes log-probabilities into result lines: natural logarithms as the shortest decimals that read
 * back as the same f32. Called by result_row.c and result_stream.c. */
#ifndef SHOAL_SERVE_OUTPUT_RESULT_LOGPROBS_H
#define SHOAL_SERVE_OUTPUT_RESULT_LOGPROBS_H

#include "serve/request/request.h"

/* All functions are Local and append a JSON value, without its key, to `out`. Errors stay in `out`.
 */

/* Appends r's sampled tokens: [{"id","logprob","top":[[id,logprob],..]},..]. */
void result_logprobs_plain(const struct request *r, struct strbuf *out);

/* Appends r's prompt tokens in the same form; the first is null. */
void result_logprobs_prompt(const struct request *r, struct strbuf *out);

/* The next two append the sampled tokens from number `from` on; 0: all of them. */

/* Appends them in the form of OpenAI chat completions: {"content":[{"token","logprob","bytes",
 * "top_logprobs"}],"refusal":null}. A token that is a part of a character has U+FFFD in "token";
 * "bytes" are exact. */
void result_logprobs_chat(const struct request *r, const struct request_rules *rules, size_t from,
                          struct strbuf *out);

/* Appends them in the form of OpenAI completions:
 * {"tokens","token_logprobs","top_logprobs","text_offset"}. A token that is a part of a character
 * is written "bytes:\xe2\x80". top_logprobs include the token itself; they are null if the request
 * wants no likely tokens. Offsets count characters of the strings in "tokens". With an echo the
 * prompt's tokens come first; their log-probabilities are those of `echo`, the first answer to the
 * same prompt, and the first token has none (null). echo NULL: only the sampled tokens. */
void result_logprobs_completion(const struct request *r, const struct request *echo,
                                const struct request_rules *rules, size_t from, struct strbuf *out);

#endif
