/* Linears with quantized weights and float activations, for some tens of rows: the tiles are
 * smaller than in linear_codes.cu, so there are more blocks. */
#include "kernels/cuda/launch.h"

enum {
    HALF_ROWS = CUDA_ROWS_linear_codes_mid,
    HALF_OUTPUTS = CUDA_OUTPUTS_linear_codes_mid,
    HALF_SHARED = CUDA_SHARED_linear_codes_mid,
    HALF_WARPS_DOWN = 2,
    HALF_STEP = 64,
    HALF_STAGES = 5,
};
#include "kernels/cuda/linear_half.h"
HALF_FITS(2 * RUN_CODES_BYTES);

BLOCK_INLINE void linear_codes_mid_block(const struct linear_work *a, struct cuda_block b,
                                         void *shared)
{
    half_codes(a, b, shared);
}
CUDA_KERNEL(linear_codes_mid, linear_work)
