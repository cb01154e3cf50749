/* The kernels for AVX2, FMA and F16C. */
#ifndef SHOAL_KERNELS_AVX2_H
#define SHOAL_KERNELS_AVX2_H

#include "kernels/kern.h"

/* Each function replaces entries of the table with the kernels of one file. */
void fill_attention_avx2(struct kern_table *t);
void fill_choose_avx2(struct kern_table *t);
void fill_delta_avx2(struct kern_table *t);
void fill_scan_avx2(struct kern_table *t);
void fill_linear_avx2(struct kern_table *t);
void fill_linear_quant_avx2(struct kern_table *t);
void fill_pack_avx2(struct kern_table *t);
void fill_quantize_avx2(struct kern_table *t);
void fill_row_avx2(struct kern_table *t);
void fill_weighted_avx2(struct kern_table *t);

void k_grid_to_f32_avx2(const int64_t *sums, size_t n, uint32_t grid_bits, float *y);

/* Linears with int8, int4 or mxfp4 weights and float activations; linear_quant_avx2.c uses them
 * for weight-only arithmetic. */
void k_linear_dequant_avx2(const struct linear_args *a, const struct linear_slice *s);
void k_linear_leaf_dequant_avx2(const struct linear_args *a, const struct linear_slice *s);

#endif
