/* Linears with 16-bit weights on tensor cores, for many rows; a warp computes 64 outputs of
 * 64 rows. */
#include "kernels/cuda/launch.h"

enum {
    HALF_ROWS = CUDA_ROWS_linear_half,
    HALF_OUTPUTS = CUDA_OUTPUTS_linear_half,
    HALF_SHARED = CUDA_SHARED_linear_half,
    HALF_WARPS_DOWN = 2,
    HALF_STEP = 32,
    HALF_STAGES = 3,
};
#include "kernels/cuda/linear_half.h"
HALF_FITS(RUN_FLOATS_BYTES);

BLOCK_INLINE void linear_half_block(const struct linear_work *a, struct cuda_block b, void *shared)
{
    half_floats(a, b, shared);
}
CUDA_KERNEL(linear_half, linear_work)
