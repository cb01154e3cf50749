/* Linears with 16-bit weights on tensor cores, for few rows. Some of the 16 rows of a product may
 * be unused; that costs nothing, because reading the weights takes longer. */
#include "kernels/cuda/launch.h"

enum {
    HALF_ROWS = CUDA_ROWS_linear_half_few,
    HALF_OUTPUTS = CUDA_OUTPUTS_linear_half_few,
    HALF_SHARED = CUDA_SHARED_linear_half_few,
    HALF_WARPS_DOWN = 1,
    HALF_STEP = 128,
    HALF_STAGES = 6,
};
#include "kernels/cuda/linear_half.h"
HALF_FITS(RUN_FLOATS_BYTES);

BLOCK_INLINE void linear_half_few_block(const struct linear_work *a, struct cuda_block b,
                                        void *shared)
{
    half_floats(a, b, shared);
}
CUDA_KERNEL(linear_half_few, linear_work)
