/* Linears with quantized weights and float activations, for many rows: a block converts each
 * quantized value once. */
#include "kernels/cuda/launch.h"

enum {
    HALF_ROWS = CUDA_ROWS_linear_codes,
    HALF_OUTPUTS = CUDA_OUTPUTS_linear_codes,
    HALF_SHARED = CUDA_SHARED_linear_codes,
    HALF_WARPS_DOWN = 1,
    HALF_STEP = 32,
    HALF_STAGES = 5,
};
#include "kernels/cuda/linear_half.h"
HALF_FITS(2 * RUN_CODES_BYTES);

BLOCK_INLINE void linear_codes_block(const struct linear_work *a, struct cuda_block b, void *shared)
{
    half_codes(a, b, shared);
}
CUDA_KERNEL(linear_codes, linear_work)
