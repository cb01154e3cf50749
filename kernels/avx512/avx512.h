/* The kernels for AVX-512 F, BW, VL, DQ and VNNI. Used by avx512/fill_avx512.c only. */
#ifndef SHOAL_KERNELS_AVX512_H
#define SHOAL_KERNELS_AVX512_H

#include "kernels/kern.h"

#define AVX512_LINEAR(name)                                                                        \
    void name(const struct linear_args *a, size_t group, size_t panel0, size_t panel1,             \
              size_t row0, size_t row1)
AVX512_LINEAR(k_linear_f32_avx512);
AVX512_LINEAR(k_linear_f16_avx512);
AVX512_LINEAR(k_linear_bf16_avx512);
AVX512_LINEAR(k_linear_leaf_f32_avx512);
AVX512_LINEAR(k_linear_leaf_f16_avx512);
AVX512_LINEAR(k_linear_leaf_bf16_avx512);
AVX512_LINEAR(k_linear_dequant_avx512);
AVX512_LINEAR(k_linear_leaf_dequant_avx512);
AVX512_LINEAR(k_linear_quant_avx512_6x32);
AVX512_LINEAR(k_linear_quant_leaf_avx512_6x32);
#undef AVX512_LINEAR

void k_quantize_row_avx512(const float *x, size_t n, const struct quant_rows *out, size_t row);

void k_grid_to_f32_avx512(const int64_t *sums, size_t n, uint32_t grid_bits, float *y);
void k_grid_add_avx512(const int64_t *sums, size_t n, uint32_t grid_bits, float *h);
void k_rmsnorm_f32_avx512(const float *x, const float *w, size_t n, float eps, float *y);
void k_swiglu_f32_avx512(const float *gate, const float *up, size_t n, float *y);
void k_axpy_f32_avx512(float w, const float *y, size_t n, float *acc);

#define AVX512_ATTENTION(name) void name(const struct attn_args *a, const struct attn_slice *s)
AVX512_ATTENTION(k_attention_f32_avx512);
AVX512_ATTENTION(k_attention_f16_avx512);
AVX512_ATTENTION(k_attention_bf16_avx512);
AVX512_ATTENTION(k_attention_i8_avx512);
AVX512_ATTENTION(k_attention_fp8_avx512);
AVX512_ATTENTION(k_attention_fold_avx512);
#undef AVX512_ATTENTION

void k_pack_halves_avx512(const void *rows, size_t row_stride_bytes, size_t n, void *panel);
void k_pack_words_avx512(enum pack_words_kind kind, const void *rows, size_t row_stride_bytes,
                         size_t n, void *panel);

#endif
