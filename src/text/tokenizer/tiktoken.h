/* Writes a tokenizer.json for a tiktoken.model, which Kimi-K2 publishes instead.
 * Pure: reads no file. Called by the converter (checkpoint). */
#ifndef SHOAL_TEXT_TOKENIZER_TIKTOKEN_H
#define SHOAL_TEXT_TOKENIZER_TIKTOKEN_H

#include "base/json.h"
#include "base/status.h"
#include "base/strbuf.h"

#include <stddef.h>

/* Local. Appends the JSON text to `out` (initialised by the caller, who owns it). `ranks` [n_bytes]
 * is the file: a line for each token, its bytes in base64, a blank and its rank, which is its id.
 * `config` is tokenizer_config.json or NULL: the 256 ids behind the ranks are special tokens, named
 * by its added_tokens_decoder or else <|reserved_token_ID|>. The pieces are Kimi-K2's. The model's
 * type is "Tiktoken", whose merges follow from the ranks (tokenizer_load_ranks); other readers of
 * tokenizer.json refuse it.
 * Errors: STATUS_INPUT names the line, rank or tokenizer class that is not understood;
 * STATUS_MEMORY. */
struct status tokenizer_json_from_tiktoken(const char *ranks, size_t n_bytes,
                                           const struct js_node *config, struct strbuf *out);

#endif
