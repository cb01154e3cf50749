/* Takes AVX2's entries, then replaces those that AVX-512 makes faster. */
#include "kernels/avx512/avx512.h"

void kern_fill_avx512(struct kern_table *t)
{
    kern_fill_avx2(t);
    t->name = "avx512";
    fill_linear_avx512(t);
    fill_linear_quant_avx512(t);
    fill_attention_avx512(t);
    fill_quantize_avx512(t);
    fill_row_avx512(t);
    fill_weighted_avx512(t);
    fill_delta_avx512(t);
    fill_scan_avx512(t);
    fill_pack_avx512(t);
}
