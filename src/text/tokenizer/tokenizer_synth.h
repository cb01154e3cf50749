/* Writes a tokenizer.json for the vocabulary in the arrays of a GGUF file. Reads no file and parses
 * no GGUF. Called by the converter (checkpoint) and by tiktoken.c. */
#ifndef SHOAL_TEXT_TOKENIZER_TOKENIZER_SYNTH_H
#define SHOAL_TEXT_TOKENIZER_TOKENIZER_SYNTH_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stddef.h>
#include <stdint.h>

struct gguf_text {
    const char *bytes; /* borrowed; need not be NUL-terminated */
    size_t n;
};

/* The values of tokenizer.ggml.token_type. */
enum gguf_token_type {
    GGUF_TOKEN_NORMAL = 1,
    GGUF_TOKEN_UNKNOWN = 2,
    GGUF_TOKEN_CONTROL = 3,
    GGUF_TOKEN_USER_DEFINED = 4,
    GGUF_TOKEN_UNUSED = 5,
    GGUF_TOKEN_BYTE = 6,
};

/* The values of the metadata keys tokenizer.ggml.*; everything is borrowed. */
struct gguf_vocab {
    const char *model; /* "model": "gpt2" (byte-level BPE) or "llama" (SentencePiece's BPE) */
    const char *pre;   /* "pre", for gpt2: "gpt-2", "smollm", "llama-bpe", "qwen2", ... */
    const struct gguf_text *tokens; /* [n_tokens], "tokens": the index is the id */
    const int32_t *token_types;     /* [n_tokens], "token_type"; NULL: all normal */
    size_t n_tokens;
    const struct gguf_text *merges; /* [n_merges], "merges": "left right", best first */
    size_t n_merges;
    const float *scores; /* [n_tokens], "scores", for llama: higher scores merge first */
    int64_t bos_id;      /* "bos_token_id", -1 when the file has none */
    int64_t eos_id;      /* "eos_token_id", -1 when the file has none */
    int add_bos;   /* "add_bos_token": 0 or 1; -1 when absent: the default of `pre` (of llama: yes),
                      but no if bos_id is -1 */
    int add_eos;   /* "add_eos_token": 0 or 1; -1 when absent: no */
    int add_blank; /* "add_space_prefix", for llama: 0 or 1; -1 when absent: yes */
};

/* Local. Appends the JSON text to `out` (initialised and owned by the caller). Control and unknown
 * tokens become special added tokens, user-defined tokens become plain added tokens. Unused tokens
 * are left out, and their ids stay unused. For llama the merges are all splits of an ordinary token
 * into two ordinary tokens, highest score of the whole token first. Errors: STATUS_INPUT names the
 * key, token or merge at fault; STATUS_MEMORY. */
struct status tokenizer_json_from_gguf(const struct gguf_vocab *v, struct strbuf *out);

/* Local. Returns the pre_tokenizer of Kimi-K2, as JSON for tokenizer.json. */
const char *tokenizer_synth_kimi(void);

#endif
