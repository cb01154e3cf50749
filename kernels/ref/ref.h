/* The reference kernels: plain C, one element at a time, in the order that kern.h writes down.
 * They are the oracle of every other set. Used by ref/fill_ref.c, and by other sets' quantized
 * linears where the activations are floats. */
#ifndef SHOAL_KERNELS_REF_H
#define SHOAL_KERNELS_REF_H

#include "kernels/kern.h"

/* The same plain C, compiled once for any CPU and once for CPUs with FMA, where fmaf is an
 * instruction instead of a call. It is correctly rounded either way; tests become five times
 * faster. */
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&                \
    !defined(__SANITIZE_THREAD__)
#define REF_CLONES __attribute__((target_clones("default", "arch=x86-64-v3")))
#else
#define REF_CLONES
#endif
#define REF_INLINE static inline __attribute__((always_inline))

#define REF_LINEAR(name)                                                                           \
    void name(const struct linear_args *a, size_t group, size_t panel0, size_t panel1,             \
              size_t row0, size_t row1)
REF_LINEAR(k_linear_f32_ref);
REF_LINEAR(k_linear_f16_ref);
REF_LINEAR(k_linear_bf16_ref);
REF_LINEAR(k_linear_leaf_f32_ref);
REF_LINEAR(k_linear_leaf_f16_ref);
REF_LINEAR(k_linear_leaf_bf16_ref);
REF_LINEAR(k_linear_quant_ref);
REF_LINEAR(k_linear_quant_leaf_ref);
#undef REF_LINEAR

#define REF_ATTENTION(name) void name(const struct attn_args *a, const struct attn_slice *s)
REF_ATTENTION(k_attention_f32_ref);
REF_ATTENTION(k_attention_f16_ref);
REF_ATTENTION(k_attention_bf16_ref);
REF_ATTENTION(k_attention_i8_ref);
REF_ATTENTION(k_attention_fp8_ref);
REF_ATTENTION(k_attention_fold_ref);
#undef REF_ATTENTION

void k_quantize_row_ref(const float *x, size_t n, const struct quant_rows *out, size_t row);
void k_grid_to_f32_ref(const int64_t *sums, size_t n, uint32_t grid_bits, float *y);
void k_grid_add_ref(const int64_t *sums, size_t n, uint32_t grid_bits, float *h);
float k_square_sum_f32_ref(const float *x, size_t n);
void k_rmsnorm_f32_ref(const float *x, const float *w, size_t n, float eps, float *y);
void k_rope_f32_ref(float *x, const float *cos, const float *sin, size_t rot);
void k_kv_store_f32_ref(const float *x, size_t n, void *out, float *scale);
void k_kv_store_f16_ref(const float *x, size_t n, void *out, float *scale);
void k_kv_store_bf16_ref(const float *x, size_t n, void *out, float *scale);
void k_kv_store_i8_ref(const float *x, size_t n, void *out, float *scale);
void k_kv_store_fp8_ref(const float *x, size_t n, void *out, float *scale);
void k_swiglu_f32_ref(const float *gate, const float *up, size_t n, float *y);
void k_swiglu_clamped_f32_ref(const float *gate, const float *up, size_t n, float alpha,
                              float limit, float *y);
void k_add_f32_ref(float *h, const float *x, size_t n);
void k_axpy_f32_ref(float w, const float *y, size_t n, float *acc);
void k_router_f32_ref(const struct router_args *a, size_t row);
uint64_t k_mass_f32_ref(const float *logits, size_t n, float max, float inv_t, uint64_t *mass);
uint64_t k_argmax_f32_ref(const float *logits, size_t n, uint32_t id0, uint64_t *n_bad);

void k_pack_halves_ref(const void *rows, size_t row_stride_bytes, size_t n, void *panel);
uint32_t k_pack_word_ref(enum pack_words_kind kind, uint32_t word);
void k_pack_words_ref(enum pack_words_kind kind, const void *rows, size_t row_stride_bytes,
                      size_t n, void *panel);

#endif
