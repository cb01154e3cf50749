/* The experts of gpt-oss checkpoints, whose gate and up rows alternate in one tensor and whose
 * plain matrices are stored [experts, inputs, outputs]: which tensors of ours one of theirs makes,
 * and how its elements are found. Reads nothing. Called by source.c. */
#ifndef SHOAL_CHECKPOINT_CONVERT_FUSED_EXPERTS_H
#define SHOAL_CHECKPOINT_CONVERT_FUSED_EXPERTS_H

#include "base/json.h"
#include "checkpoint/file/ckpt.h"

enum { FUSED_PARTS_MAX = 2 };

/* One tensor of ours. Its output r is the source's output first + r * step; a bias is [experts,
 * outputs], a matrix [experts, outputs, inputs]. */
struct fused_part {
    char name[CKPT_NAME_MAX];
    uint32_t n_dims;
    uint64_t dims[CKPT_DIMS_MAX];
    uint64_t step, first;
};

/* Local. The parts [*n] that a source tensor of these dimensions makes; *n = 0: it is none of the
 * fused kind, or the model is another. `by_output`: the source has a row for each output (MXFP4),
 * as ours has. Errors: STATUS_INPUT names the tensor and its shape. */
struct status fused_experts_parts(const struct js_node *config, const char *name, uint32_t n_dims,
                                  const uint64_t *dims, bool by_output,
                                  struct fused_part parts[FUSED_PARTS_MAX], size_t *n);

/* Local. One expert's part out of its stored elements [n_in, n_out * step] (a bias: n_in 1) into
 * out [n_out, n_in]. */
void fused_experts_take(const struct fused_part *p, const float *stored, uint64_t n_out,
                        uint64_t n_in, float *out);

#endif
