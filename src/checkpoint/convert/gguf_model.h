/* Translates a GGUF file into a Hugging Face checkpoint's terms: tensor names, the order of q and k
 * rows, config.json, generation_config.json and tokenizer.json. Reads no tensor's values but those
 * of GGUF_ROPE_FREQS. Called by source.c, gguf_latent.c, gguf_delta.c and gguf_experts.c. The
 * architectures are in gguf_family.c. */
#ifndef SHOAL_CHECKPOINT_CONVERT_GGUF_MODEL_H
#define SHOAL_CHECKPOINT_CONVERT_GGUF_MODEL_H

#include "base/strbuf.h"
#include "checkpoint/convert/gguf.h"
#include "checkpoint/convert/gguf_family.h"

/* A model's sizes, read from the metadata and checked to be in range. */
struct gguf_model {
    const struct gguf *file; /* borrowed */
    enum gguf_arch arch;
    const struct gguf_family *family; /* of arch */
    int64_t n_layers, n_predict; /* n_layers without the prediction layers, which are left out */
    int64_t n_context, width, ffn, expert_ffn, n_vocab;
    int64_t n_heads, n_kv_heads;
    int64_t head_dim, value_dim; /* elements of a head's queries and keys, and of its values */
    int64_t rotary;              /* the rotated elements of head_dim */
    int64_t kv_lora;             /* width of latent attention's compressed keys and values; 0: no
                                    latent attention */
    struct {
        int64_t n_key_heads, key_dim;  /* key heads; elements of one */
        int64_t value_dim, value_rows; /* elements of a value head, and of all value heads that
                                          share a key head */
    } delta;                           /* sizes of a gated delta rule; 0: none */
    double rope_theta, norm_eps;
    bool tied;           /* no output.weight: the head is the embedding */
    bool attention_bias; /* q, k and v have biases */
    bool sigmoid;        /* the router's probabilities are sigmoids, not a softmax */
};

/* Local. Reads the metadata. Errors: STATUS_INPUT names the architecture, key or value that is not
 * supported; an unknown key of the architecture is refused, never ignored. */
struct status gguf_model_read(const struct gguf *g, struct gguf_model *out);

/* A tensor in Hugging Face's terms. */
struct gguf_target {
    char name[256];
    uint32_t n_dims;
    uint64_t dims[GGUF_DIMS_MAX];
    uint32_t pair_rows; /* 0, or the head dimension when rows are stored in pairs for interleaved
                           rotation: within a head, stored row 2i + j is Hugging Face's row j *
                           pair_rows / 2 + i */
    bool is_decay;      /* the values are -exp(A_log); gguf_delta_decays turns them into A_log */
};

/* Local. Translates t's name and dimensions. Errors: STATUS_INPUT for an unknown tensor, for paired
 * q or k of another number of rows than their heads have, and for decays that are not F32. */
struct status gguf_model_target(const struct gguf_model *m, const struct gguf_tensor *t,
                                struct gguf_target *out);

/* Two tensors of one layer that are one tensor of Hugging Face's. */
struct gguf_pair {
    const struct gguf_tensor *first, *second; /* borrowed */
    int64_t layer;
};

/* Local. Sets *found, and *out when t is its layer's tensor with the first suffix. Errors:
 * STATUS_INPUT when that layer has no tensor with the second suffix. */
struct status gguf_model_pair(const struct gguf_model *m, const struct gguf_tensor *t,
                              const char *const suffixes[2], bool *found, struct gguf_pair *out);

/* Local. Splits a name "blk.N.suffix"; the suffix is borrowed. False when the name has another form
 * or N is not a block. */
bool gguf_model_layer(const struct gguf_model *m, const char *name, int64_t *layer,
                      const char **suffix);

/* Local. True for a tensor of the file that has no Hugging Face tensor of its own: one of a
 * prediction layer, an attn_v_b (gguf_latent.h joins it with its attn_k_b), the second half of a
 * tensor that gguf_join.h joins, or one whose values go into the config. */
bool gguf_model_leaves_out(const struct gguf_model *m, const struct gguf_tensor *t);

/* gguf_texts.c. Local. Append a text to `out` (initialised by the caller). Errors: STATUS_INPUT
 * names the key that is not supported, STATUS_MEMORY. */
struct status gguf_model_config(const struct gguf_model *m, struct strbuf *out);
struct status gguf_model_generation_config(const struct gguf_model *m, struct strbuf *out);
struct status gguf_model_tokenizer(const struct gguf_model *m, struct strbuf *out);

/* The tensor of Llama 3's rotary scaling, which goes into the config. */
#define GGUF_ROPE_FREQS "rope_freqs.weight"

/* gguf_rope.c. Local. Appends "rope_scaling" if the file scales RoPE; `prefix` is the prefix of the
 * architecture's keys. Errors: STATUS_INPUT for a kind that is not supported, STATUS_MEMORY. */
struct status gguf_model_rope(const struct gguf_model *m, const char *prefix, struct strbuf *out);

#endif
