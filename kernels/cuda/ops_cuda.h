/* The CUDA device's table of ops, and those of its ops that are outside ops_cuda.c. */
#ifndef SHOAL_KERNELS_CUDA_OPS_CUDA_H
#define SHOAL_KERNELS_CUDA_OPS_CUDA_H

#include "kernels/device_ops.h"
#include "kernels/ops.h"

extern const struct device_ops device_ops_cuda;

/* ops_cuda.c, for linear_cuda.c */
void op_grid_cuda(struct device *d, const struct grid_args *a);

/* linear_cuda.c */
void op_linears_cuda(struct device *d, const struct linear_args *a, size_t n);
void op_linear_leaf_cuda(struct device *d, const struct linear_args *a);
void pack_cuda(struct device *d, const struct device_pack_args *a);

/* gemm_trials.c */
void place_weight_cuda(struct device *d, struct packed *w);
struct status check_weight_cuda(struct device *d, const struct packed *w);

/* attention_cuda.c */
void op_attention_cuda(struct device *d, const struct attn_args *a);

#endif
