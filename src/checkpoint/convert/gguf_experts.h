/* The experts of Granite-MoE in a GGUF file. llama.cpp's converter cuts input_linear [experts, 2 *
 * inner, width] into ffn_gate_exps and ffn_up_exps [experts, inner, width]. Hugging Face's tensor
 * has, for each expert, its rows of gate and then those of up. Called by source.c. */
#ifndef SHOAL_CHECKPOINT_CONVERT_GGUF_EXPERTS_H
#define SHOAL_CHECKPOINT_CONVERT_GGUF_EXPERTS_H

#include "checkpoint/convert/gguf_join.h"

/* Local. Sets *found, and *out when t is an ffn_gate_exps of a family that joins it with its
 * ffn_up_exps. Errors: STATUS_INPUT: the other half is missing, or a half's shape is not that of
 * the metadata. */
struct status gguf_experts_find(const struct gguf_model *m, const struct gguf_tensor *t,
                                bool *found, struct gguf_join *out);

#endif
