/* Replaces the reference's entries that AVX2, FMA and F16C make faster. The reference keeps
 * index_choose, and the storing of keys and values in f32 and fp8. */
#include "kernels/avx2/avx2.h"

void kern_fill_avx2(struct kern_table *t)
{
    t->name = "avx2";
    fill_linear_avx2(t);
    fill_linear_quant_avx2(t);
    fill_attention_avx2(t);
    fill_quantize_avx2(t);
    fill_row_avx2(t);
    fill_weighted_avx2(t);
    fill_delta_avx2(t);
    fill_scan_avx2(t);
    fill_choose_avx2(t);
    fill_pack_avx2(t);
}
