/* Fills the table with the complete reference. */
#include "kernels/ref/ref.h"

void kern_fill_ref(struct kern_table *t)
{
    *t = (struct kern_table){
        .name = "ref",
        .linear = {[DTYPE_F32] = k_linear_f32_ref,
                   [DTYPE_F16] = k_linear_f16_ref,
                   [DTYPE_BF16] = k_linear_bf16_ref},
        .linear_leaf = {[DTYPE_F32] = k_linear_leaf_f32_ref,
                        [DTYPE_F16] = k_linear_leaf_f16_ref,
                        [DTYPE_BF16] = k_linear_leaf_bf16_ref},
        .linear_quant = {[QUANT_INT8] = k_linear_quant_ref,
                         [QUANT_INT4] = k_linear_quant_ref,
                         [QUANT_FP8] = k_linear_quant_ref,
                         [QUANT_MXFP4] = k_linear_quant_ref},
        .linear_quant_leaf = {[QUANT_INT8] = k_linear_quant_leaf_ref,
                              [QUANT_INT4] = k_linear_quant_leaf_ref,
                              [QUANT_FP8] = k_linear_quant_leaf_ref,
                              [QUANT_MXFP4] = k_linear_quant_leaf_ref},
        .quantize_row = k_quantize_row_ref,
        .grid_to_f32 = k_grid_to_f32_ref,
        .grid_add = k_grid_add_ref,
        .square_sum = k_square_sum_f32_ref,
        .rmsnorm = k_rmsnorm_f32_ref,
        .rope = k_rope_f32_ref,
        .kv_store = {[DTYPE_F32] = k_kv_store_f32_ref,
                     [DTYPE_F16] = k_kv_store_f16_ref,
                     [DTYPE_BF16] = k_kv_store_bf16_ref},
        .attention = {[DTYPE_F32] = k_attention_f32_ref,
                      [DTYPE_F16] = k_attention_f16_ref,
                      [DTYPE_BF16] = k_attention_bf16_ref},
        .swiglu = k_swiglu_f32_ref,
        .swiglu_clamped = k_swiglu_clamped_f32_ref,
        .add = k_add_f32_ref,
        .axpy = k_axpy_f32_ref,
        .router = k_router_f32_ref,
        .mass = k_mass_f32_ref,
        .argmax = k_argmax_f32_ref,
    };
}
