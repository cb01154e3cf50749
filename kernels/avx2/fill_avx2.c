/* Overrides the reference's entries with what AVX2, FMA and F16C make faster. Storing f32 and fp8
 * keys and values stays the reference's. */
#include "kernels/avx2/avx2.h"

void kern_fill_avx2(struct kern_table *t)
{
    t->name = "avx2";
    fill_linear_avx2(t);
    fill_linear_quant_avx2(t);
    fill_attention_avx2(t);
    fill_quantize_avx2(t);
    fill_row_avx2(t);
    fill_choose_avx2(t);
    fill_pack_avx2(t);
}
