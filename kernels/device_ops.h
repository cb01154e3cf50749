/* The table of a device's ops. kernels/cuda fills it; the ops of kernels/ops.h and device.h call it
 * when a kernel table has a device. An entry has the contract of the op of its name, with arrays in
 * device memory. No entry is NULL. All are Local; all but step_part, place_weight, check_weight,
 * get, get_later and arrive put their work on the compute stream and return before it is done. A
 * failure sticks to the device (device_status); only check_weight and alloc also return it. */
#ifndef SHOAL_KERNELS_DEVICE_OPS_H
#define SHOAL_KERNELS_DEVICE_OPS_H

#include "kernels/kern.h"

struct device;

/* Arguments of the ops (ops.h). */
struct argmax_args;
struct change_logits_args;
struct combine_choices;
struct embed_args;
struct gated_args;
struct gather_args;
struct grid_args;
struct move_args;
struct norm_args;
struct norm_whole;
struct pick_args;
struct place_args;
struct rope_kv_args;
struct rope_table_args;
struct rope_tails;
struct scatter_args;
struct score_args;
struct square_sums_args;
struct swiglu_args;

/* Rounds integer sums one by one. The elements of a row-parallel linear's sums [T, N + 1], counted
 * over all rows, are values and, at each row's end, the row's counter. words[i] = element first +
 * i: a value as the bits of its f32, a counter clipped to INT32_MAX. */
struct grid_words_args {
    const int64_t *sums; /* [n] */
    size_t first, n, n_out;
    uint32_t grid_bits;
    uint32_t *words; /* [n] */
};

/* Takes rows of words that grid_words made, in the way that op_grid takes sums. */
struct take_words_args {
    const uint32_t *words; /* [T, N + 1] */
    size_t n_rows, n_out;
    bool adds;
    float *y;
    int32_t *bad;
};

/* Rows of a checkpoint on their way into a packed weight in device memory. */
struct device_pack_args {
    const struct packed *w;
    enum packed_part part;
    bool transposed;  /* a row of the source is an input, not an output */
    size_t n_columns; /* elements of a row; of a quantized weight, bytes */
    size_t row_bytes;
    struct matrix_rows rows;
};

struct device_ops {
    void (*step_begin)(struct device *d, const struct seq_rows *seqs, size_t n_seqs, size_t n_rows);
    void (*step_part)(struct device *d, size_t row0, size_t n_rows);

    void (*embed)(struct device *d, const struct embed_args *a);
    void (*linears)(struct device *d, const struct linear_args *a, size_t n);
    void (*linear_leaf)(struct device *d, const struct linear_args *a);
    void (*quantize_rows)(struct device *d, const float *x, size_t x_stride, size_t n_rows,
                          size_t n, const struct quant_rows *out);
    void (*grid)(struct device *d, const struct grid_args *a);
    void (*rmsnorm)(struct device *d, const struct norm_args *a);
    void (*head_square_sums)(struct device *d, const struct square_sums_args *a);
    void (*norm_whole)(struct device *d, const struct norm_whole *a);
    void (*rope_table)(struct device *d, const struct rope_table_args *a);
    void (*rope_tails)(struct device *d, const struct rope_tails *a);
    void (*rope_kv)(struct device *d, const struct rope_kv_args *a);
    void (*kv_write)(struct device *d, const float *key, const float *value,
                     const struct kv_view *kv);
    void (*attention)(struct device *d, const struct attn_args *a);
    void (*swiglu)(struct device *d, const struct swiglu_args *a);
    void (*swiglu_clamped)(struct device *d, float *gate, const float *up, size_t n, float alpha,
                           float limit);
    void (*gated)(struct device *d, const struct gated_args *a);
    void (*sigmoid_rows)(struct device *d, float *x, const float *gate, size_t n_rows, size_t n);
    void (*add)(struct device *d, float *h, const float *x, size_t n);
    void (*axpy)(struct device *d, float w, const float *x, size_t n, float *acc);
    void (*scale)(struct device *d, float *x, float w, size_t n);
    void (*clamp)(struct device *d, float *x, float limit, size_t n);
    void (*softcap)(struct device *d, float *x, float cap, size_t n);
    void (*xielu)(struct device *d, float *x, const float law[4], size_t n);
    void (*add_bias)(struct device *d, float *y, const float *bias, size_t n_rows, size_t n);

    void (*router)(struct device *d, const struct router_args *a, size_t n_rows);
    void (*scatter_rows)(struct device *d, const struct scatter_args *a);
    void (*combine_choices)(struct device *d, const struct combine_choices *a);
    void (*take_marks)(struct device *d, const int32_t *marks, size_t n, int32_t *bad,
                       int32_t *dropped);
    void (*gather_rows)(struct device *d, const struct gather_args *a);
    void (*move_rows)(struct device *d, const struct move_args *a);
    void (*place_rows)(struct device *d, const struct place_args *a);

    void (*argmax_rows)(struct device *d, const struct argmax_args *a);
    void (*score_rows)(struct device *d, const struct score_args *a);
    void (*change_logits)(struct device *d, const struct change_logits_args *a);
    void (*pick_rows)(struct device *d, const struct pick_args *a);

    /* For the collectives of devices (src/collective); ops.h has no such ops. `stream`: NULL is the
     * compute stream. */
    void (*grid_words)(struct device *d, const struct grid_words_args *a, void *stream);
    void (*take_words)(struct device *d, const struct take_words_args *a);

    /* Weights: op_place_weight, op_check_weight and the op_pack_* functions. */
    void (*place_weight)(struct device *d, struct packed *w);
    struct status (*check_weight)(struct device *d, const struct packed *w);
    void (*pack)(struct device *d, const struct device_pack_args *a);

    /* Memory: mem_ops_* of device.h. */
    struct status (*alloc)(struct device *d, void **out, size_t n_bytes, const char *what);
    void (*release)(struct device *d, void **inout);
    void (*put)(struct device *d, void *to, const void *from, size_t n_bytes);
    void (*get)(struct device *d, void *to, const void *from, size_t n_bytes);
    void (*get_later)(struct device *d, void *to, const void *from, size_t n_bytes);
    void (*arrive)(struct device *d);
    void (*copy)(struct device *d, void *to, const void *from, size_t n_bytes);
    void (*fill)(struct device *d, void *p, int byte, size_t n_bytes);
};

/* Local. Returns the table of an open device. */
const struct device_ops *device_ops_of(const struct device *d);

#endif
