/* Overrides the AVX2 set's entries with what AVX-512 makes faster. One function for each file. */
#include "kernels/avx512/avx512.h"

static void fill_linear(struct kern_table *t)
{
    t->linear[DTYPE_F32] = k_linear_f32_avx512;
    t->linear[DTYPE_F16] = k_linear_f16_avx512;
    t->linear[DTYPE_BF16] = k_linear_bf16_avx512;
    t->linear_leaf[DTYPE_F32] = k_linear_leaf_f32_avx512;
    t->linear_leaf[DTYPE_F16] = k_linear_leaf_f16_avx512;
    t->linear_leaf[DTYPE_BF16] = k_linear_leaf_bf16_avx512;
}

static void fill_linear_quant(struct kern_table *t)
{
    static const enum quant_kind kinds[] = {QUANT_INT8, QUANT_INT4, QUANT_MXFP4};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        t->linear_quant[kinds[i]] = k_linear_quant_avx512_6x32;
        t->linear_quant_leaf[kinds[i]] = k_linear_quant_leaf_avx512_6x32;
    }
    t->quantize_row = k_quantize_row_avx512;
    t->linear_quant[QUANT_FP8] = k_linear_dequant_avx512;
    t->linear_quant_leaf[QUANT_FP8] = k_linear_leaf_dequant_avx512;
}

static void fill_attention(struct kern_table *t)
{
    t->attention[DTYPE_F32] = k_attention_f32_avx512;
    t->attention[DTYPE_F16] = k_attention_f16_avx512;
    t->attention[DTYPE_BF16] = k_attention_bf16_avx512;
    t->attention[DTYPE_I8] = k_attention_i8_avx512;
    t->attention[DTYPE_F8_E4M3] = k_attention_fp8_avx512;
    t->attention_fold = k_attention_fold_avx512;
}

static void fill_row(struct kern_table *t)
{
    t->grid_to_f32 = k_grid_to_f32_avx512;
    t->grid_add = k_grid_add_avx512;
    t->rmsnorm = k_rmsnorm_f32_avx512;
    t->swiglu = k_swiglu_f32_avx512;
    t->axpy = k_axpy_f32_avx512;
}

void kern_fill_avx512(struct kern_table *t)
{
    kern_fill_avx2(t);
    t->name = "avx512";
    fill_linear(t);
    fill_linear_quant(t);
    fill_attention(t);
    fill_row(t);
    t->pack_halves = k_pack_halves_avx512;
    t->pack_words = k_pack_words_avx512;
}
