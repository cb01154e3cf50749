/* Writes a tokenizer.json from a tiktoken.model, the file that Kimi-K2 publishes instead. Reads no
 * file. Called by the converter (checkpoint). */
#ifndef SHOAL_TEXT_TOKENIZER_TIKTOKEN_H
#define SHOAL_TEXT_TOKENIZER_TIKTOKEN_H

#include "base/json.h"
#include "base/status.h"
#include "base/strbuf.h"

#include <stddef.h>

/* Local. Appends the text of a tokenizer.json to `out` (initialised and owned by the caller).
 * `ranks` [n_bytes] is the file: one line per token, with its bytes in base64, a blank and its
 * rank, which is its id. `config` is tokenizer_config.json or NULL. The 256 ids after the ranks are
 * added tokens, as added_tokens_decoder in `config` names them, or else special tokens
 * <|reserved_token_ID|>. Text is split into pieces as in Kimi-K2. The model's type is "Tiktoken":
 * its merges follow from the ranks (tokenizer_load_ranks), and other readers of tokenizer.json
 * refuse it. Errors: STATUS_INPUT names the entry (its number among the lines that are not
 * empty), the rank or the tokenizer class that is not supported; STATUS_MEMORY. */
struct status tokenizer_json_from_tiktoken(const char *ranks, size_t n_bytes,
                                           const struct js_node *config, struct strbuf *out);

#endif
