/* Quantizes rows to int8; a block has CUDA_QUANTIZE_SPAN elements of a row, in whole groups. */
#include "kernels/cuda/quantize_tile.h"

BLOCK_INLINE void quantize_block(const struct quantize_work *a, struct cuda_block b, void *shared)
{
    const size_t group = a->out.group, at_once = CUDA_QUANTIZE_SPAN / group, g = b.x * at_once;
    const size_t left = a->out.n_groups - g, n_groups = left < at_once ? left : at_once;
    const size_t rest = a->n - g * group, all = n_groups * group;
    const struct quantize_part p = {.x = a->x + b.y * a->x_stride + g * group,
                                    .n = (uint32_t)(rest < all ? rest : all),
                                    .n_groups = (uint32_t)n_groups,
                                    .out = &a->out,
                                    .shift = quantize_shift(a->out.group),
                                    .first = b.y * a->out.n_groups + g,
                                    .shared = (uint32_t *)shared};
    quantize_groups(&p);
}
CUDA_KERNEL(quantize, quantize_work)
