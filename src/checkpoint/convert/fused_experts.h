/* Splits the experts of gpt-oss, Llama-4, Qwen3.5-MoE, MiniMax-M3, Mistral-4 and Gemma-4
 * checkpoints, which store gate and up as one tensor (gpt-oss: with alternating outputs).
 * Unquantized matrices are [experts, inputs, outputs] (the last four families: [experts, outputs,
 * inputs]). Tells which of shoal's tensors a source tensor contains, and where. Reads no file.
 * Called by source.c. */
#ifndef SHOAL_CHECKPOINT_CONVERT_FUSED_EXPERTS_H
#define SHOAL_CHECKPOINT_CONVERT_FUSED_EXPERTS_H

#include "base/json.h"
#include "checkpoint/file/ckpt.h"

enum { FUSED_PARTS_MAX = 2 };

/* One of shoal's tensors: a bias [experts, outputs] or a matrix [experts, outputs, inputs]. Its
 * output r is output first + r * apart of the source, which has `step` times as many outputs. */
struct fused_part {
    char name[CKPT_NAME_MAX];
    uint32_t n_dims;
    uint64_t dims[CKPT_DIMS_MAX];
    uint64_t step, first, apart;
    bool by_output; /* stored [experts, outputs, inputs] */
};

/* Local. Finds the parts [*n] of a source tensor of these dimensions; *n = 0 when the tensor is not
 * fused or the model's family is not named above. `by_output`: the source is quantized (MXFP4) and
 * has one row per output, as shoal's tensors have. Errors: STATUS_INPUT names the tensor if it has
 * other dimensions, an odd number of outputs for gate and up, too long a name, or is quantized with
 * gate and up as halves instead of alternating outputs. */
struct status fused_experts_parts(const struct js_node *config, const char *name, uint32_t n_dims,
                                  const uint64_t *dims, bool by_output,
                                  struct fused_part parts[FUSED_PARTS_MAX], size_t *n);

/* Local. Copies one expert's part to out [n_out, n_in], from stored elements [n_in, n_out * step]
 * (n_in 1 for a bias) or, with p->by_output, [n_out * step, n_in]. */
void fused_experts_take(const struct fused_part *p, const float *stored, uint64_t n_out,
                        uint64_t n_in, float *out);

#endif
