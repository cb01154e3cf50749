/* Latent attention's up-projection in a GGUF file, which llama.cpp's converter cuts into two
 * tensors: attn_k_b [heads][lora][nope], the transposed rows of the keys, and attn_v_b
 * [heads][value][lora], those of the values. Hugging Face's kv_b_proj has, for each head, `nope`
 * rows for keys and then `value` rows for values: [heads * (nope + value)][lora]. Called by
 * source.c. */
#ifndef SHOAL_CHECKPOINT_CONVERT_GGUF_LATENT_H
#define SHOAL_CHECKPOINT_CONVERT_GGUF_LATENT_H

#include "checkpoint/convert/gguf_model.h"

struct gguf_latent {
    const struct gguf_tensor *k, *v; /* borrowed */
    int64_t layer;
    uint64_t n_heads, nope, value, lora;
};

/* Local. Sets *found, and *out when t is an attn_k_b; *out then has its attn_v_b. Errors:
 * STATUS_INPUT: the other half is missing, or a shape is not that of the metadata. */
struct status gguf_latent_find(const struct gguf_model *m, const struct gguf_tensor *t, bool *found,
                               struct gguf_latent *out);

/* Local. Returns the bytes of scratch that gguf_latent_rows needs. */
size_t gguf_latent_scratch_bytes(const struct gguf_latent *l);

/* Local. Reads the rows of heads [head0, head0 + n_heads) as floats: out [n_heads * (nope +
 * value)][lora]. Errors: STATUS_INPUT when the file cannot be read. */
struct status gguf_latent_rows(const struct gguf *g, const struct gguf_latent *l, uint64_t head0,
                               uint64_t n_heads, void *scratch, float *out);

#endif
