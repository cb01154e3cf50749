/* Quantized weights that meet floats, few rows. */
#include "kernels/cuda/launch.h"

enum {
    HALF_ROWS = CUDA_HALF_FEW_ROWS,
    HALF_OUTPUTS = CUDA_HALF_FEW_OUTPUTS,
    HALF_WARPS_DOWN = 1,
    HALF_STEP = 256,
    HALF_STAGES = 3,
};
#include "kernels/cuda/linear_half.h"

BLOCK_INLINE void linear_codes_few_block(const struct linear_work *a, struct cuda_block b,
                                         void *shared)
{
    half_codes(a, b, shared);
}
CUDA_KERNEL(linear_codes_few, linear_work)
