/* Overrides the table's entries with what AVX2, FMA and F16C make faster; storing f32 keys and
 * values stays a copy, storing fp8 the reference. */
#include "kernels/avx2/avx2.h"

static void fill_linear_quant(struct kern_table *t)
{
    static const enum quant_kind kinds[] = {QUANT_INT8, QUANT_INT4, QUANT_MXFP4};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        t->linear_quant[kinds[i]] = k_linear_quant_avx2;
        t->linear_quant_leaf[kinds[i]] = k_linear_quant_leaf_avx2;
    }
    t->linear_quant[QUANT_FP8] = k_linear_dequant_avx2;
    t->linear_quant_leaf[QUANT_FP8] = k_linear_leaf_dequant_avx2;
}

void kern_fill_avx2(struct kern_table *t)
{
    t->name = "avx2";
    t->linear[DTYPE_F32] = k_linear_f32_avx2;
    t->linear[DTYPE_F16] = k_linear_f16_avx2;
    t->linear[DTYPE_BF16] = k_linear_bf16_avx2;
    t->linear_leaf[DTYPE_F32] = k_linear_leaf_f32_avx2;
    t->linear_leaf[DTYPE_F16] = k_linear_leaf_f16_avx2;
    t->linear_leaf[DTYPE_BF16] = k_linear_leaf_bf16_avx2;
    fill_linear_quant(t);
    t->quantize_row = k_quantize_row_avx2;
    t->grid_to_f32 = k_grid_to_f32_avx2;
    t->grid_add = k_grid_add_avx2;
    t->square_sum = k_square_sum_f32_avx2;
    t->rmsnorm = k_rmsnorm_f32_avx2;
    t->rope = k_rope_f32_avx2;
    t->kv_store[DTYPE_F16] = k_kv_store_f16_avx2;
    t->kv_store[DTYPE_BF16] = k_kv_store_bf16_avx2;
    t->kv_store[DTYPE_I8] = k_kv_store_i8_avx2;
    t->attention[DTYPE_F32] = k_attention_f32_avx2;
    t->attention[DTYPE_F16] = k_attention_f16_avx2;
    t->attention[DTYPE_BF16] = k_attention_bf16_avx2;
    t->attention[DTYPE_I8] = k_attention_i8_avx2;
    t->attention[DTYPE_F8_E4M3] = k_attention_fp8_avx2;
    t->attention_fold = k_attention_fold_avx2;
    t->swiglu = k_swiglu_f32_avx2;
    t->swiglu_clamped = k_swiglu_clamped_f32_avx2;
    t->add = k_add_f32_avx2;
    t->axpy = k_axpy_f32_avx2;
    t->router = k_router_f32_avx2;
    t->mass = k_mass_f32_avx2;
    t->argmax = k_argmax_f32_avx2;
    t->pack_halves = k_pack_halves_avx2;
    t->pack_words = k_pack_words_avx2;
}
