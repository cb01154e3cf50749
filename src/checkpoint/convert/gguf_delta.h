/* Tensors of a gated delta rule in a GGUF file whose rows or values are not Hugging Face's.
 * llama.cpp's converter cuts in_proj_qkvz into two tensors: attn_qkv, the rows of q of all key
 * heads, then those of k, then those of v; and attn_gate, those of z. Hugging Face's tensor has,
 * for each key head, its rows of q, k, v and z. Called by source.c. */
#ifndef SHOAL_CHECKPOINT_CONVERT_GGUF_DELTA_H
#define SHOAL_CHECKPOINT_CONVERT_GGUF_DELTA_H

#include "checkpoint/convert/gguf_model.h"

struct gguf_delta {
    const struct gguf_tensor *qkv, *z; /* borrowed */
    int64_t layer;
    uint64_t n_heads, key, value; /* key heads; a head's rows of q (and of k), of v (and of z) */
};

/* Local. Sets *found and *out when t is an attn_qkv; *out then has its attn_gate. Errors:
 * STATUS_INPUT: the other half is missing, or a shape is not that of the metadata. */
struct status gguf_delta_find(const struct gguf_model *m, const struct gguf_tensor *t, bool *found,
                              struct gguf_delta *out);

/* Local. Returns the rows, and the bytes of scratch for reading n_rows of them. */
uint64_t gguf_delta_row_count(const struct gguf_delta *d);
size_t gguf_delta_scratch_bytes(const struct gguf_delta *d, uint64_t n_rows);

/* Local. Read rows [row0, row0 + n_rows): as floats, out [n_rows][n_cols]; or, if gguf_quant_format
 * gives both halves the same format, as quantized values, of which *fits is false when gguf_codes
 * refuses some. Errors: STATUS_INPUT when the file cannot be read. */
struct status gguf_delta_rows(const struct gguf *g, const struct gguf_delta *d, uint64_t row0,
                              uint64_t n_rows, void *scratch, float *out);
struct status gguf_delta_codes(const struct gguf *g, const struct gguf_delta *d, uint64_t row0,
                               uint64_t n_rows, void *scratch, const struct quant_block *out,
                               bool *fits);

/* Local. Turns values of ssm_a, which are -exp(A_log) in f32, into A_log. Published models have
 * A_log in bf16: it is taken as such where -exp of that is the value, but for f32's rounding.
 * False when a value is not below 0 or not finite. */
bool gguf_delta_decays(float *values, size_t n);

#endif
