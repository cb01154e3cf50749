/* The kernels for AVX-512 (F, BW, VL, DQ and VNNI). */
#ifndef SHOAL_KERNELS_AVX512_H
#define SHOAL_KERNELS_AVX512_H

#include "kernels/kern.h"

/* Each function replaces entries of the table with the kernels of one file. */
void fill_attention_avx512(struct kern_table *t);
void fill_delta_avx512(struct kern_table *t);
void fill_scan_avx512(struct kern_table *t);
void fill_linear_avx512(struct kern_table *t);
void fill_linear_quant_avx512(struct kern_table *t);
void fill_pack_avx512(struct kern_table *t);
void fill_quantize_avx512(struct kern_table *t);
void fill_row_avx512(struct kern_table *t);
void fill_weighted_avx512(struct kern_table *t);

void k_grid_to_f32_avx512(const int64_t *sums, size_t n, uint32_t grid_bits, float *y);

/* Linears with int8, int4 or mxfp4 weights and float activations; linear_quant_avx512.c uses them
 * for weight-only arithmetic. */
void k_linear_dequant_avx512(const struct linear_args *a, const struct linear_slice *s);
void k_linear_leaf_dequant_avx512(const struct linear_args *a, const struct linear_slice *s);

/* Linears with int8, int4 or mxfp4 weights; the AMX kernels use them where tiles are no faster. */
void k_linear_quant_avx512_6x32(const struct linear_args *a, const struct linear_slice *s);
void k_linear_quant_leaf_avx512_6x32(const struct linear_args *a, const struct linear_slice *s);

#endif
