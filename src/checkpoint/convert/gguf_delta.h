/* The tensors of a gated delta rule whose rows or values are others in a GGUF file than in a
 * Hugging Face checkpoint. llama.cpp's converter cuts in_proj_qkvz into two tensors: attn_qkv, the
 * rows of q of all key heads, then those of k, then those of v; and attn_gate, those of z. Hugging
 * Face's tensor has, for each key head, its rows of q, k, v and z. Called by source.c. */
#ifndef SHOAL_CHECKPOINT_CONVERT_GGUF_DELTA_H
#define SHOAL_CHECKPOINT_CONVERT_GGUF_DELTA_H

#include "checkpoint/convert/gguf_join.h"

/* Local. Sets *found, and *out when t is an attn_qkv; *out then joins it with its attn_gate.
 * Errors: STATUS_INPUT: the other half is missing, or a shape is not that of the metadata. */
struct status gguf_delta_find(const struct gguf_model *m, const struct gguf_tensor *t, bool *found,
                              struct gguf_join *out);

/* Local. Turns values of ssm_a, which are -exp(A_log) in f32, into A_log. Published models have
 * A_log in bf16, so a result is rounded to bf16 if -exp of the rounded number is the given value
 * within f32's rounding. False when a value is not below 0 or not finite. */
bool gguf_delta_decays(float *values, size_t n);

#endif
