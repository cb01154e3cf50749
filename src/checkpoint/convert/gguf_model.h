/* Translates a GGUF file into a Hugging Face checkpoint's terms: tensor names, the order of q and k
 * rows, config.json, generation_config.json and tokenizer.json. Reads no weights. Called by
 * convert. Architectures: llama (dense, and Mixtral with experts), qwen2, qwen3, qwen3moe,
 * gpt-oss. */
#ifndef SHOAL_CHECKPOINT_CONVERT_GGUF_MODEL_H
#define SHOAL_CHECKPOINT_CONVERT_GGUF_MODEL_H

#include "base/strbuf.h"
#include "checkpoint/convert/gguf.h"

enum gguf_arch {
    GGUF_LLAMA,
    GGUF_MIXTRAL,
    GGUF_QWEN2,
    GGUF_QWEN3,
    GGUF_QWEN3_MOE,
    GGUF_GPT_OSS,
    GGUF_ARCH_COUNT
};

/* A model's sizes, read from the metadata and checked to be in range. */
struct gguf_model {
    const struct gguf *file; /* borrowed */
    enum gguf_arch arch;
    int64_t n_layers, n_context, width, ffn, n_heads, n_kv_heads, head_dim, n_vocab;
    int64_t n_experts, n_experts_used, expert_ffn; /* 0 without experts */
    int64_t window; /* sliding window of gpt-oss; 0: another architecture */
    double rope_theta, norm_eps;
    bool tied;           /* no output.weight: the head is the embedding */
    bool attention_bias; /* q, k and v have biases */
};

/* Local. Reads the metadata. Errors: STATUS_INPUT names the architecture, key or value that is not
 * supported; an unknown key of the architecture is refused, never ignored. */
struct status gguf_model_read(const struct gguf *g, struct gguf_model *out);

/* Local. Writes the Hugging Face name of a tensor to name [n_max]. *pair_rows is 0, or the head
 * dimension when rows are stored in pairs for interleaved rotation: within a head, stored row 2i +
 * j is Hugging Face's row j * pair_rows / 2 + i. Errors: STATUS_INPUT for an unknown tensor. */
struct status gguf_model_name(const struct gguf_model *m, const struct gguf_tensor *t, char *name,
                              size_t n_max, uint32_t *pair_rows);

/* Local. Append a text to `out` (initialised by the caller). Errors: STATUS_INPUT names the key
 * that is not supported, STATUS_MEMORY. */
struct status gguf_model_config(const struct gguf_model *m, struct strbuf *out);
struct status gguf_model_generation_config(const struct gguf_model *m, struct strbuf *out);
struct status gguf_model_tokenizer(const struct gguf_model *m, struct strbuf *out);

/* The tensor of Llama 3's rotary scaling, which goes into the config. */
#define GGUF_ROPE_FREQS "rope_freqs.weight"

/* gguf_rope.c. Local. Appends "rope_scaling" if the file has any; `prefix` is the prefix of the
 * architecture's keys. Errors: STATUS_INPUT for a kind that is not supported, STATUS_MEMORY. */
struct status gguf_model_rope(const struct gguf_model *m, const char *prefix, struct strbuf *out);

#endif
