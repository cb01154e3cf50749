/* Row-parallel quantized linears on tensor cores, for so many rows that each block can compute all
 * leaves (K-blocks) of its outputs. */
#include "kernels/cuda/launch.h"

enum {
    MMA_ROWS = CUDA_ROWS_linear_mma_fold,
    MMA_OUTPUTS = CUDA_OUTPUTS_linear_mma_fold,
    MMA_SHARED = CUDA_SHARED_linear_mma_fold,
    MMA_WARPS_DOWN = 1,
    MMA_STEP = 64,
    MMA_STAGES = 5,
    MMA_WINDOWS = 2,
    MMA_FOLDS = 1,
};
#include "kernels/cuda/linear_mma.h"

BLOCK_INLINE void linear_mma_fold_block(const struct linear_work *a, struct cuda_block b,
                                        void *shared)
{
    mma_block(a, b, shared);
}
CUDA_KERNEL(linear_mma_fold, linear_work)
