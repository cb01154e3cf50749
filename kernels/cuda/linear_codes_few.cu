/* Linears with quantized weights and float activations, which half_rows.cu has rounded to bf16, for
 * few rows. */
#include "kernels/cuda/launch.h"

enum {
    HALF_ROWS = CUDA_ROWS_linear_codes_few,
    HALF_OUTPUTS = CUDA_OUTPUTS_linear_codes_few,
    HALF_SHARED = CUDA_SHARED_linear_codes_few,
    HALF_WARPS_DOWN = 1,
    HALF_STEP = 256,
    HALF_STAGES = 5,
};
#include "kernels/cuda/linear_half.h"
HALF_FITS(2 * RUN_CODES_BYTES);

BLOCK_INLINE void linear_codes_few_block(const struct linear_work *a, struct cuda_block b,
                                         void *shared)
{
    half_codes(a, b, shared);
}
CUDA_KERNEL(linear_codes_few, linear_work)
