/* Quantized linears on tensor cores, for many rows. A warp computes 32 outputs of all 64 rows of a
 * block, so a block unpacks each of its weights once. */
#include "kernels/cuda/launch.h"

enum {
    MMA_ROWS = CUDA_ROWS_linear_mma,
    MMA_OUTPUTS = CUDA_OUTPUTS_linear_mma,
    MMA_SHARED = CUDA_SHARED_linear_mma,
    MMA_WARPS_DOWN = 1,
    MMA_STEP = 64,
    MMA_STAGES = 4,
    MMA_WINDOWS = 2,
    MMA_FOLDS = 0,
};
#include "kernels/cuda/linear_mma.h"

BLOCK_INLINE void linear_mma_block(const struct linear_work *a, struct cuda_block b, void *shared)
{
    mma_block(a, b, shared);
}
CUDA_KERNEL(linear_mma, linear_work)
