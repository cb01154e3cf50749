/* Linears with 16-bit weights for some tens of rows: the tiles are smaller than in linear_half.cu,
 * so there are more blocks; a warp computes 32 outputs of 32 rows. */
#include "kernels/cuda/launch.h"

enum {
    HALF_ROWS = CUDA_ROWS_linear_half_mid,
    HALF_OUTPUTS = CUDA_OUTPUTS_linear_half_mid,
    HALF_SHARED = CUDA_SHARED_linear_half_mid,
    HALF_WARPS_DOWN = 2,
    HALF_STEP = 64,
    HALF_STAGES = 5,
};
#include "kernels/cuda/linear_half.h"
HALF_FITS(RUN_FLOATS_BYTES);

BLOCK_INLINE void linear_half_mid_block(const struct linear_work *a, struct cuda_block b,
                                        void *shared)
{
    half_floats(a, b, shared);
}
CUDA_KERNEL(linear_half_mid, linear_work)
