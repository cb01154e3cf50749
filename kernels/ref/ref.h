/* The reference kernels: plain C, most of it one element at a time, in the order of kern.h. The
 * kernels of every instruction set must give the same bits. */
#ifndef SHOAL_KERNELS_REF_H
#define SHOAL_KERNELS_REF_H

#include "kernels/kern.h"

/* Compiles a function twice: for any CPU, and for CPUs with FMA, where fmaf is an instruction
 * instead of a call. The result is the same, and tests are five times faster. */
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&                \
    !defined(__SANITIZE_THREAD__)
#define REF_CLONES __attribute__((target_clones("default", "arch=x86-64-v3")))
#else
#define REF_CLONES
#endif
#define REF_INLINE static inline __attribute__((always_inline))

/* Each function fills table entries with the kernels of one file; kern_fill_ref itself sets the
 * entries that are left. */
void fill_attention_ref(struct kern_table *t);
void fill_choose_ref(struct kern_table *t);
void fill_delta_ref(struct kern_table *t);
void fill_index_ref(struct kern_table *t);
void fill_linear_ref(struct kern_table *t);
void fill_linear_quant_ref(struct kern_table *t);
void fill_pack_ref(struct kern_table *t);
void fill_row_ref(struct kern_table *t);

/* Kernels with REF_CLONES cannot be static. */
#define REF_LINEAR(name) void name(const struct linear_args *a, const struct linear_slice *s)
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

void k_delta_rule_f32_ref(const struct state_run *r);
void k_scan_f32_ref(const struct state_run *r);
void k_pool_add_f32_ref(const struct pool_sums *p, const float *z, const float *bias,
                        const float *v, size_t n);

#define REF_INDEX(name) void name(const struct index_args *a, const struct index_slice *s)
REF_INDEX(k_index_scores_f32_ref);
REF_INDEX(k_index_scores_f16_ref);
REF_INDEX(k_index_scores_bf16_ref);
REF_INDEX(k_index_scores_i8_ref);
REF_INDEX(k_index_scores_fp8_ref);
#undef REF_INDEX

/* Reference kernels that are also called directly. */
void k_quantize_row_ref(const float *x, size_t n, const struct quant_rows *out, size_t row);
void k_pack_halves_ref(const void *rows, size_t row_stride_bytes, size_t n, void *panel);
uint32_t k_pack_word_ref(enum pack_words_kind kind, uint32_t word);
void k_pack_words_ref(enum pack_words_kind kind, const void *rows, size_t row_stride_bytes,
                      size_t n, void *panel);

#endif
