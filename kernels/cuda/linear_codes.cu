/* Quantized weights that meet floats, many rows: each code becomes a number once a block. */
#include "kernels/cuda/launch.h"

enum {
    HALF_ROWS = CUDA_CODES_ROWS,
    HALF_OUTPUTS = CUDA_CODES_OUTPUTS,
    HALF_WARPS_DOWN = 1,
    HALF_STEP = 32,
    HALF_STAGES = 5,
};
#include "kernels/cuda/linear_half.h"

BLOCK_INLINE void linear_codes_block(const struct linear_work *a, struct cuda_block b, void *shared)
{
    half_codes(a, b, shared);
}
CUDA_KERNEL(linear_codes, linear_work)
