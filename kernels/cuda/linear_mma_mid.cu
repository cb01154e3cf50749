/* Quantized linears on tensor cores, where the tiles of linear_mma.cu would be too few; a warp
 * computes 16 outputs of 64 rows. */
#include "kernels/cuda/launch.h"

enum {
    MMA_ROWS = CUDA_ROWS_linear_mma_mid,
    MMA_OUTPUTS = CUDA_OUTPUTS_linear_mma_mid,
    MMA_SHARED = CUDA_SHARED_linear_mma_mid,
    MMA_WARPS_DOWN = 1,
    MMA_STEP = 64,
    MMA_STAGES = 5,
    MMA_WINDOWS = 2,
    MMA_FOLDS = 0,
};
#include "kernels/cuda/linear_mma.h"

BLOCK_INLINE void linear_mma_mid_block(const struct linear_work *a, struct cuda_block b,
                                       void *shared)
{
    mma_block(a, b, shared);
}
CUDA_KERNEL(linear_mma_mid, linear_work)
