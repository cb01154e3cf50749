/* Quantized linears on tensor cores, for some tens of rows, where reading the weights takes longer
 * than the products. A warp computes 16 outputs of 16 rows. */
#include "kernels/cuda/launch.h"

enum {
    MMA_ROWS = CUDA_ROWS_linear_mma_few,
    MMA_OUTPUTS = CUDA_OUTPUTS_linear_mma_few,
    MMA_SHARED = CUDA_SHARED_linear_mma_few,
    MMA_WARPS_DOWN = 2,
    MMA_STEP = 128,
    MMA_STAGES = 6,
    MMA_WINDOWS = 4,
    MMA_FOLDS = 0,
};
#include "kernels/cuda/linear_mma.h"

BLOCK_INLINE void linear_mma_few_block(const struct linear_work *a, struct cuda_block b,
                                       void *shared)
{
    mma_block(a, b, shared);
}
CUDA_KERNEL(linear_mma_few, linear_work)
