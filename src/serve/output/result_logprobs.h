/* Log-probabilities as result lines have them: natural logs of f32 values, in the shortest decimals
 * that read back as the same. Called by result_row.c. */
#ifndef SHOAL_SERVE_OUTPUT_RESULT_LOGPROBS_H
#define SHOAL_SERVE_OUTPUT_RESULT_LOGPROBS_H

#include "serve/request/request.h"

/* Local, all of them; errors stick to `out`. They append a value without its key. */

/* [{"id","logprob","top":[[id,logprob],..]},..]: r's sampled tokens, and its prompt's, of which the
 * first is null. */
void result_logprobs_plain(const struct request *r, struct strbuf *out);
void result_logprobs_prompt(const struct request *r, struct strbuf *out);

/* {"content":[{"token","logprob","bytes","top_logprobs"}],"refusal":null}, as chat completions have
 * it. A token whose bytes are no whole characters has U+FFFD in "token"; "bytes" are exact. */
void result_logprobs_chat(const struct request *r, const struct request_rules *rules,
                          struct strbuf *out);

/* {"tokens","token_logprobs","top_logprobs","text_offset"}, as completions have it. A token whose
 * bytes are no whole characters is "bytes:\xE2\x80"; top_logprobs hold the sampled token, too;
 * offsets count characters of the strings in "tokens". */
void result_logprobs_completion(const struct request *r, const struct request_rules *rules,
                                struct strbuf *out);

#endif
