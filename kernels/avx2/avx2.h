/* The kernels for AVX2, FMA and F16C. Used by avx2/fill_avx2.c only. */
#ifndef SHOAL_KERNELS_AVX2_H
#define SHOAL_KERNELS_AVX2_H

#include "kernels/kern.h"

#define AVX2_LINEAR(name)                                                                          \
    void name(const struct linear_args *a, size_t group, size_t panel0, size_t panel1,             \
              size_t row0, size_t row1)
AVX2_LINEAR(k_linear_f32_avx2);
AVX2_LINEAR(k_linear_f16_avx2);
AVX2_LINEAR(k_linear_bf16_avx2);
AVX2_LINEAR(k_linear_leaf_f32_avx2);
AVX2_LINEAR(k_linear_leaf_f16_avx2);
AVX2_LINEAR(k_linear_leaf_bf16_avx2);
AVX2_LINEAR(k_linear_dequant_avx2);
AVX2_LINEAR(k_linear_leaf_dequant_avx2);
AVX2_LINEAR(k_linear_quant_avx2);
AVX2_LINEAR(k_linear_quant_leaf_avx2);
#undef AVX2_LINEAR

#define AVX2_ATTENTION(name) void name(const struct attn_args *a, const struct attn_slice *s)
AVX2_ATTENTION(k_attention_f32_avx2);
AVX2_ATTENTION(k_attention_f16_avx2);
AVX2_ATTENTION(k_attention_bf16_avx2);
AVX2_ATTENTION(k_attention_i8_avx2);
AVX2_ATTENTION(k_attention_fp8_avx2);
AVX2_ATTENTION(k_attention_fold_avx2);
#undef AVX2_ATTENTION

void k_quantize_row_avx2(const float *x, size_t n, const struct quant_rows *out, size_t row);
void k_grid_to_f32_avx2(const int64_t *sums, size_t n, uint32_t grid_bits, float *y);
void k_grid_add_avx2(const int64_t *sums, size_t n, uint32_t grid_bits, float *h);
float k_square_sum_f32_avx2(const float *x, size_t n);
void k_rmsnorm_f32_avx2(const float *x, const float *w, size_t n, float eps, float *y);
void k_rope_f32_avx2(float *x, const float *cos, const float *sin, size_t rot);
void k_kv_store_f16_avx2(const float *x, size_t n, void *out, float *scale);
void k_kv_store_bf16_avx2(const float *x, size_t n, void *out, float *scale);
void k_kv_store_i8_avx2(const float *x, size_t n, void *out, float *scale);
void k_swiglu_f32_avx2(const float *gate, const float *up, size_t n, float *y);
void k_swiglu_clamped_f32_avx2(const float *gate, const float *up, size_t n, float alpha,
                               float limit, float *y);
void k_add_f32_avx2(float *h, const float *x, size_t n);
void k_axpy_f32_avx2(float w, const float *y, size_t n, float *acc);
void k_router_f32_avx2(const struct router_args *a, size_t row);
uint64_t k_mass_f32_avx2(const float *logits, size_t n, float max, float inv_t, uint64_t *mass);
uint64_t k_argmax_f32_avx2(const float *logits, size_t n, uint32_t id0, uint64_t *n_bad);

void k_pack_halves_avx2(const void *rows, size_t row_stride_bytes, size_t n, void *panel);
void k_pack_words_avx2(enum pack_words_kind kind, const void *rows, size_t row_stride_bytes,
                       size_t n, void *panel);

#endif
