/* The ops of kernels/ops.h on a device: the same arguments and meaning, arrays in device memory.
 * Called by ops.c and its neighbours where a table has a device. All are Local, return before the
 * work is done, and never fail (a failure sticks to the device). */
#ifndef SHOAL_KERNELS_CUDA_OPS_CUDA_H
#define SHOAL_KERNELS_CUDA_OPS_CUDA_H

#include "kernels/ops.h"

struct device;

void cuda_op_step_begin(struct device *d, const struct seq_rows *seqs, size_t n_seqs,
                        size_t n_rows);
void cuda_op_step_part(struct device *d, size_t row0, size_t n_rows);
void cuda_op_embed(struct device *d, const struct embed_args *a);
void cuda_op_gather_rows(struct device *d, const struct gather_args *a);
void cuda_op_linears(struct device *d, const struct linear_args *a, size_t n);
void cuda_op_linear_leaf(struct device *d, const struct linear_args *a);
void cuda_op_quantize_rows(struct device *d, const float *x, size_t x_stride, size_t n_rows,
                           size_t n, const struct quant_rows *out);
void cuda_op_grid(struct device *d, const int64_t *sums, size_t n_rows, size_t n_out,
                  uint32_t grid_bits, bool adds, float *y, int32_t *bad);
/* launch.h: grid_words_work, on a stream (NULL: compute), and take_words_work. */
struct grid_words_work;
struct take_words_work;
void cuda_op_grid_words(struct device *d, const struct grid_words_work *a, void *stream);
void cuda_op_take_words(struct device *d, const struct take_words_work *a);
void cuda_op_rmsnorm(struct device *d, const float *x, const float *w, size_t n_rows, size_t n,
                     float eps, float *y);
void cuda_op_rope(struct device *d, float *x, const float *cos, const float *sin, size_t n_rows,
                  size_t n_heads, size_t head_dim, size_t rot);
void cuda_op_rope_table(struct device *d, size_t n_rows, const float *inv_freq, size_t rot,
                        float scale, float *cos, float *sin);
void cuda_op_kv_write(struct device *d, const float *key, const float *value,
                      const struct kv_view *kv);
void cuda_op_attention(struct device *d, const struct attn_args *a);
void cuda_op_swiglu(struct device *d, const float *gate, const float *up, size_t stride,
                    size_t n_rows, size_t n, float *y, size_t y_stride);
void cuda_op_swiglu_clamped(struct device *d, float *gate, const float *up, size_t n, float alpha,
                            float limit);
void cuda_op_sigmoid_rows(struct device *d, float *x, const float *gate, size_t n_rows, size_t n);
void cuda_op_rope_tails(struct device *d, const struct rope_tails *a);
void cuda_op_head_square_sums(struct device *d, const float *x, size_t n_rows, size_t n_heads,
                              size_t head_dim, uint32_t *sums, size_t stride);
void cuda_op_norm_whole(struct device *d, const struct norm_whole *a);
void cuda_op_add(struct device *d, float *h, const float *x, size_t n);
void cuda_op_axpy(struct device *d, float w, const float *x, size_t n, float *acc);
void cuda_op_scale(struct device *d, float *x, float w, size_t n);
void cuda_op_clamp(struct device *d, float *x, float limit, size_t n);
void cuda_op_add_bias(struct device *d, float *y, const float *bias, size_t n_rows, size_t n);
void cuda_op_router(struct device *d, const struct router_args *a, size_t n_rows);
void cuda_op_scatter_rows(struct device *d, const struct scatter_args *a);
void cuda_op_combine_rows(struct device *d, const struct combine_args *a);
void cuda_op_take_marks(struct device *d, const int32_t *marks, size_t n, int32_t *bad,
                        int32_t *dropped);
void cuda_op_move_rows(struct device *d, const struct move_args *a);
void cuda_op_place_rows(struct device *d, const struct place_args *a);
void cuda_op_argmax_rows(struct device *d, const struct argmax_args *a);
void cuda_op_score_rows(struct device *d, const struct score_args *a);
void cuda_op_change_logits(struct device *d, const struct change_logits_args *a);
void cuda_op_pick_rows(struct device *d, const struct pick_args *a);

/* gemm_cuda.c. As op_place_weight and op_check_weight. */
void cuda_place_weight(struct device *d, struct packed *w);
struct status cuda_check_weight(struct device *d, const struct packed *w);

/* Rows of the checkpoint into a packed weight in device memory, through pinned staging; n_columns
 * are elements, of a quantized part bytes. */
struct cuda_pack_args {
    const struct packed *w;
    enum packed_part part;
    bool transposed; /* rows are inputs */
    size_t row0, n_rows, n_columns;
    const void *rows; /* host memory, row_stride_bytes apart */
    size_t row_bytes, row_stride_bytes;
};
void cuda_pack(struct device *d, const struct cuda_pack_args *a);

#endif
