/* Ops over whole arrays, for the rooms above. Without a device, most ops divide their work among
 * the threads of the table's team, set the floating-point environment of each thread (round to
 * nearest, no flush to zero), and call the table's kernels on slices. The bits do not depend on the
 * number of threads. With a device (kernels/device.h) the op calls the device's table
 * (kernels/device_ops.h); arrays are then device memory, lists stay host memory, and failures show
 * in device_status. All ops are Local; only op_check_weight returns errors. Without a device they
 * allocate nothing. */
#ifndef SHOAL_KERNELS_OPS_H
#define SHOAL_KERNELS_OPS_H

#include "kernels/kern.h"

/* Announces the rows of a step. On a device op_rope_table, op_kv_write, op_rope_kv and op_attention
 * take positions and blocks from this call, until the next one. seqs [n_seqs] cover all n_rows. */
void op_step_begin(const struct kern_table *k, const struct seq_rows *seqs, size_t n_seqs,
                   size_t n_rows);

/* Announces a part of the step: on a device the ops named above then work on the rows
 * [row0, row0 + n_rows). */
void op_step_part(const struct kern_table *k, size_t row0, size_t n_rows);

/* y = x w^T for each group (weights without leaves). All groups have weights of one type or
 * format. */
void op_linear(const struct kern_table *k, const struct linear_args *a);

/* Computes n linears that do not depend on each other (q, k and v), waking the threads only once.
 */
void op_linears(const struct kern_table *k, const struct linear_args *a, size_t n);

/* sums = the integer sums of x w^T for each group, for weights with leaves; zeroes the rows'
 * counters first. With sums NULL: y = the values of the sums (y += with a->adds, on devices), and
 * bad += the counters. */
void op_linear_leaf(const struct kern_table *k, const struct linear_args *a);

/* Quantizes rows [0, n_rows) of x, n inputs each, into the first groups of out's rows. Leaves
 * further groups of these rows as they are (on the CPU). */
void op_quantize_rows(const struct kern_table *k, const float *x, size_t x_stride, size_t n_rows,
                      size_t n, const struct quant_rows *out);

/* y = the values of sums on the grid, or y += them; bad[t] += the counter of row t. */
struct grid_args {
    const int64_t *sums;  /* [T, N + 1] */
    size_t n_rows, n_out; /* T, N */
    uint32_t grid_bits;
    bool adds;    /* whether to add to y */
    float *y;     /* [T, N] */
    int32_t *bad; /* [T] saturating at INT32_MAX */
};
void op_grid(const struct kern_table *k, const struct grid_args *a);

/* y = rmsnorm of each row of x. With codes, y is quantized too, to the bits of op_quantize_rows,
 * while a cache still holds the row. */
struct norm_args {
    const float *x; /* [n_rows, n] */
    const float *w; /* [n] */
    size_t n_rows, n;
    float eps;
    float *y;                       /* [n_rows, n]; may be x */
    const struct quant_rows *codes; /* NULL: none */
    const float *bias;              /* [n]: layernorm of the table instead; NULL: rmsnorm */
};
void op_rmsnorm(const struct kern_table *k, const struct norm_args *a);

/* Copies the rotary part of each head from x to out and rotates the copy (rope). */
struct rope_tails {
    const float *x; /* [T, n_heads], x_stride apart, rot elements each */
    float *out;     /* [T, n_heads], out_stride apart, rot elements each */
    size_t x_stride, out_stride;
    const float *cos, *sin; /* [T, rot / 2] */
    size_t n_rows, n_heads, rot;
    bool pairs; /* elements 2i and 2i + 1 of x are a pair; in out they are i and i + rot / 2 */
};
void op_rope_tails(const struct kern_table *k, const struct rope_tails *a);

/* The first half of a norm over a projection whose heads are spread over several ranks: entry h of
 * row t of `sums` becomes the square_sum of head h, stored as the bits of a float. */
struct square_sums_args {
    const float *x; /* [T, n_heads, head_dim] */
    size_t n_rows, n_heads, head_dim;
    size_t width; /* of a row of x, whose last head may be shorter; 0: n_heads * head_dim. Not on a
                     device */
    uint32_t *sums; /* [T, stride] */
    size_t stride;
};
void op_head_square_sums(const struct kern_table *k, const struct square_sums_args *a);

/* The second half of the norm of op_head_square_sums, for x [T, n] in place: x_i = (x_i * r) * w_i
 * with r = 1 / sqrt(sum / (float)n_whole + eps), where sum = the chain of plain adds, from +0, of
 * the row's n_sums entries of sums [T, stride]. */
struct norm_whole {
    float *x;
    const float *w;       /* [n] */
    const uint32_t *sums; /* floats as bits */
    size_t n_rows, n, n_whole, n_sums, stride;
    float eps;
};
void op_norm_whole(const struct kern_table *k, const struct norm_whole *a);

/* Rounds rows x [T, n] to 8 bits in place, as BitNet's linears read them: x_i = q_i / r with r =
 * 127 / max(m, 1e-5) and q_i = x_i * r, rounded to the nearest integer, ties to even, then clamped
 * to [-128, 127]. m is the largest |x| of the whole row: the largest of the row's n_maxima entries
 * of maxima [T, stride]. A NaN in a row makes all of it NaN. Not on a device. */
struct round_rows {
    float *x;
    size_t n_rows, n;
    const uint32_t *maxima; /* floats as bits; NULL: of x's own rows */
    size_t n_maxima, stride;
};
void op_round_rows(const struct kern_table *k, const struct round_rows *a);

/* Entry t * stride of maxima = the largest |x| of row t of x [n_rows, n], as the bits of a float; a
 * NaN is larger than any number. Not on a device. */
void op_row_maxima(const struct kern_table *k, const float *x, size_t n_rows, size_t n,
                   uint32_t *maxima, size_t stride);

/* x_i = min(max(x_i, -limit), limit); a NaN stays NaN. */
void op_clamp(const struct kern_table *k, float *x, float limit, size_t n);

/* Applies the table's softcap to x [n]. */
void op_softcap(const struct kern_table *k, float *x, float cap, size_t n);

/* Applies the table's xielu to x [n]; law [4] = alpha_p, alpha_n, beta, eps. */
void op_xielu(const struct kern_table *k, float *x, const float law[4], size_t n);

/* Applies the table's gelu to x [n]. Not on a device. */
void op_gelu(const struct kern_table *k, float *x, size_t n);

/* x_i = max(x_i, 0) * max(x_i, 0) for x [n], in place; a NaN stays NaN. Not on a device. */
void op_relu2(const struct kern_table *k, float *x, size_t n);

/* gate_i = (max(gate_i, 0) * max(gate_i, 0)) * up_i for gate [n], in place; a NaN stays NaN. Not on
 * a device. */
void op_relu2_gate(const struct kern_table *k, float *gate, const float *up, size_t n);

/* y [n_rows, n]: row t = row t of x times scale[t]; y may be x. Not on a device. */
void op_scale_rows(const struct kern_table *k, const float *x, const float *scale, size_t n_rows,
                   size_t n, float *y);
/* x[t] [n] = x[t] * (1 / (1 + exp(-gate[t]))) for each of n_rows rows. */
void op_sigmoid_rows(const struct kern_table *k, float *x, const float *gate, size_t n_rows,
                     size_t n);

/* Prepares attention in one pass over the rows: normalizes each head of q and k in place (rmsnorm
 * over Hd, if there is a weight), rotates it (rope), and writes k and v into the rows' cache slots
 * (kv_store). k is undefined afterwards. */
struct rope_kv_args {
    float *q, *k;                 /* [T, H, Hd], [T, G, Hd] */
    const float *v;               /* [T, G, Hd] */
    const float *q_norm, *k_norm; /* [Hd]; NULL: none */
    float eps;
    bool norms_last;        /* normalize after the rotation */
    const float *cos, *sin; /* [T, rot / 2] */
    size_t n_rows, n_heads, rot;
    struct kv_view kv;
    const struct seq_rows *seqs; /* [n_seqs], covering all T rows */
    size_t n_seqs;
};
void op_rope_kv(const struct kern_table *k, const struct rope_kv_args *a);

/* Writes k, v [T, G, Hd] as they are into the cache slots of the rows. With latents, v is not
 * read. */
void op_kv_write(const struct kern_table *k, const float *key, const float *value,
                 const struct kv_view *kv, const struct seq_rows *seqs, size_t n_seqs);

/* Runs struct attn_args (kern.h). */
void op_attention(const struct kern_table *k, const struct attn_args *a);

/* Where heads of rows lie: head h of row t begins at x + t * row_stride + h * head_stride. */
struct head_view {
    const float *x;
    size_t row_stride, head_stride;
};

/* The shape of a layer with a gated delta rule, for the key heads that a rank holds. Each key head
 * serves `per_key` value heads; value head v reads key head v / per_key. The channels of the
 * convolution, C in all, are q of all heads, then k of all heads, then v of all value heads that
 * are here. */
struct delta_shape {
    uint32_t n_heads, per_key; /* key heads; value heads of each */
    bool is_cut; /* Mamba-2: all key heads are here, but of their value heads only n_own, from
                    first_own on */
    uint32_t first_own, n_own;   /* 0 unless is_cut */
    uint32_t key_dim, value_dim; /* elements of a key head's q and k; of a value head's v */
    uint32_t n_taps;             /* rows that the convolution reads, at most DELTA_TAPS_MAX */
    float norm_eps;
    bool by_channel; /* a value head has a decay for each of key_dim channels, not one */
    bool is_bounded; /* of a decay by channel, which then is at least exp(least_log) */
    float least_log; /* at most 0 */
};
enum { DELTA_TAPS_MAX = 16, DELTA_TILE = 64 };

static inline size_t delta_value_heads(const struct delta_shape *s)
{
    return s->is_cut ? s->n_own : (size_t)s->n_heads * s->per_key;
}

/* Returns the number of a row's decays. */
static inline size_t delta_decays(const struct delta_shape *s)
{
    return delta_value_heads(s) * (s->by_channel ? s->key_dim : 1);
}

/* Returns the number of a row's gates: its decays and, after them, its betas. */
static inline size_t delta_gates(const struct delta_shape *s)
{
    return delta_decays(s) + delta_value_heads(s);
}

static inline size_t delta_channels(const struct delta_shape *s)
{
    return 2 * (size_t)s->n_heads * s->key_dim + delta_value_heads(s) * s->value_dim;
}

/* The states of a layer. Each slot has the last n_taps - 1 inputs of the convolution, the oldest
 * first, and the states of its value heads. A state [key_dim, value_dim] is stored in tiles of
 * DELTA_TILE columns, the last one perhaps narrower: tile after tile, each [key_dim, its columns].
 * So a tile is contiguous; with a key_dim of 128 it has 32 KiB and fits a first-level cache. */
struct delta_states {
    float *conv;  /* [slots, n_taps - 1, C] */
    float *heads; /* [slots, value heads, tiles] */
};

/* Computes the inputs of the output projection from the projections of rows, row by row:
 *   q, k, v = conv_silu of the projections, over this row and the n_taps - 1 rows before it
 *   q, k: x_i = x_i * (1 / sqrt(square_sum(x) + 1e-6)) of each head; then q_i = q_i * query_scale
 *   beta = 1 / (1 + exp(-b));  decay = exp(-(exp(decay_log) * softplus(a + step_bias))), with
 *   softplus(x) = x > 20 ? x : (float)log(1 + (double)exp(x))
 *   o = delta_rule;  out_i = swiglu(gate z_i, rmsnorm(o of a value head, norm)_i)
 * With by_channel, each value head has key_dim values of a and of step_bias, and thus key_dim
 * decays, all from its decay_log; and out_i = rmsnorm(o, norm)_i * sigmoid(z_i). If decays are
 * bounded, decay = exp(least_log * (1 / (1 + exp(-(exp(decay_log) * (a + step_bias)))))).
 * Before the call, a sequence's slot holds its states after its earlier rows; afterwards, after its
 * last row. */
struct delta_args {
    struct delta_shape shape;
    struct head_view q, k, v, z;        /* key heads; in v and z each [per_key, value_dim] */
    struct head_view a, b;              /* key heads, each [per_key]; with by_channel,
                                           a: each [per_key, key_dim] */
    const float *conv;                  /* [n_taps, C] */
    const float *decay_log, *step_bias; /* [value heads]; with by_channel, step_bias:
                                           [value heads, key_dim] */
    const float *norm;                  /* [value_dim] */
    float query_scale;
    struct delta_states states;
    const struct seq_rows *seqs; /* [n_seqs], covering all T rows */
    size_t n_seqs, n_rows;
    float *mixed; /* [T, C] work */
    float *gates; /* [T, delta_gates] work */
    float *out;   /* [T, value heads, value_dim] */
};
/* Runs struct delta_args. Not on a device. */
void op_delta(const struct kern_table *k, const struct delta_args *a);

/* Computes the gated outputs of a Mamba-2 layer from the projections of rows, row by row. The shape
 * and the states are those of a delta rule whose key heads are the groups: q is Mamba's C, k its B
 * and v its x. "Heads" are those of delta_value_heads.
 *   q, k, v = conv_silu of the projections; the convolution has one tap more than the shape says,
 *   before the others: the bias, whose input is always 1
 *   step = min(max(softplus(dt + step_bias), step_least), step_most)
 *   decay = exp(-(exp(decay_log) * step)), with the softplus of struct delta_args
 *   o = scan;  out = swiglu(gate z, o);  sums = square_sum of each head of out, as bits
 * Slots hold states as in struct delta_args. */
struct mamba_args {
    struct delta_shape shape;
    const float *q, *k, *v, *z, *dt; /* [T, groups * key_dim], the same, [T, heads * value_dim], the
                                        same, [T, heads] */
    const float *conv;               /* [1 + n_taps, C] */
    const float *decay_log, *step_bias, *skip; /* [heads] */
    float step_least, step_most;
    struct delta_states states;
    const struct seq_rows *seqs; /* [n_seqs], covering all T rows */
    size_t n_seqs, n_rows;
    float *mixed;   /* [T, C] work */
    float *gates;   /* [T, 2, heads] work */
    float *out;     /* [T, heads, value_dim] */
    uint32_t *sums; /* [T, all heads of all groups]; only those here are written */
};
/* Runs struct mamba_args. Not on a device. */
void op_mamba(const struct kern_table *k, const struct mamba_args *a);

/* The norm of op_mamba's outputs over the heads of each group, of which other ranks may hold some:
 *   m = (sums of the group's heads, added in their order from +0) / (float)(elements of the group)
 *   out_i = (out_i * (1 / sqrt(m + norm_eps))) * norm_i */
struct mamba_norm {
    struct delta_shape shape;
    const uint32_t *sums; /* [T, all heads of all groups] */
    const float *norm;    /* [heads * value_dim] */
    size_t n_rows;
    float *out; /* [T, heads, value_dim], changed in place */
};
/* Runs struct mamba_norm. Not on a device. */
void op_mamba_norm(const struct kern_table *k, const struct mamba_norm *a);

/* x [n_rows, n_heads, width] = x * sigmoid(gate), where each head has its own gate values. Not on
 * a device. */
struct sigmoid_heads {
    float *x;
    struct head_view gate;
    size_t n_rows, n_heads, width;
};
void op_sigmoid_heads(const struct kern_table *k, const struct sigmoid_heads *a);

/* y = activation(gate) * up, as kern_gate computes it by `kind`, for n columns of each row. With a
 * limit, the same of min(gate_i, limit) and min(max(up_i, -limit), limit); with caps, y =
 * min(activation(gate_i), limit) * min(max(up_i, -limit), limit). A NaN stays NaN. */
struct swiglu_args {
    const float *gate, *up; /* [n_rows, stride] */
    size_t stride, n_rows, n;
    float *y; /* [n_rows, y_stride]; may be gate */
    size_t y_stride;
    enum gate_kind kind;
    float limit; /* 0: none. Not on a device */
    bool caps;   /* the limit is that of the activation's result, not of its input */
};
void op_swiglu(const struct kern_table *k, const struct swiglu_args *a);

/* The first half of a gated FFN: gate.y [n_rows, F] = op_swiglu of the outputs of the two linears
 * `gate` and `up`. up.y is undefined afterwards. */
struct gated_args {
    struct linear_args gate, up; /* same groups of rows, ascending over all n_rows; y_stride F */
    size_t n_rows;
    const struct quant_rows *codes; /* gets gate.y, as op_quantize_rows quantizes it; NULL: none */
    enum gate_kind kind;
    bool codes_alone; /* gate.y is not read afterwards and need not be written */
};
void op_gated(const struct kern_table *k, const struct gated_args *a);

/* gate [n] = swiglu_clamped(gate, up). */
void op_swiglu_clamped(const struct kern_table *k, float *gate, const float *up, size_t n,
                       float alpha, float limit);

/* h [n] += x [n]. */
void op_add(const struct kern_table *k, float *h, const float *x, size_t n);

/* Adds bias [n] to each row of y [n_rows, n]. */
void op_add_bias(const struct kern_table *k, float *y, const float *bias, size_t n_rows, size_t n);

/* acc_i = fma(w, x_i, acc_i); w 1 gives the bits of op_add. */
void op_axpy(const struct kern_table *k, float w, const float *x, size_t n, float *acc);

/* x_i = x_i * w */
void op_scale(const struct kern_table *k, float *x, float w, size_t n);

/* Hyper-connections (mHC; Xie et al., 2025, arXiv 2512.24880): the weights of n streams for a
 * block, from the outputs `mix` of a linear. All arithmetic is in f32 and each step is rounded.
 *   pre_j  = 1 / (1 + exp(-(mix_j * scale_0 + base_j))) + eps
 *   post_j = 2 * (1 / (1 + exp(-(mix_(n+j) * scale_1 + base_(n+j)))))
 *   comb_jk = e_jk / (sum over k of e_jk) + eps,  e_jk = exp(l_jk - the largest l_j of its row),
 *       l_jk = mix_(2n + jn + k) * scale_2 + base_(2n + jn + k)
 *   comb_jk /= (sum over j of comb_jk) + eps; then, iterations - 1 times,
 *   comb_jk /= (sum over k of comb_jk) + eps; comb_jk /= (sum over j of comb_jk) + eps
 * Sums are chains of plain adds, ascending, from +0. With `pre` alone, post and comb are NULL. Not
 * on a device. */
struct stream_weights_args {
    const float *mix;          /* [n_rows, (2 + n) n]; with pre alone [n_rows, n] */
    const float *base, *scale; /* [(2 + n) n], [3]; with pre alone [n], [1] */
    size_t n_rows;
    uint32_t n, iterations;
    float eps;
    float *pre, *post, *comb; /* [n_rows, n], [n_rows, n], [n_rows, n, n] */
};
void op_stream_weights(const struct kern_table *k, const struct stream_weights_args *a);

/* y_d = fma chain over j ascending, from +0, of pre_j * h_jd. Not on a device. */
struct stream_sum_args {
    const float *h;   /* rows of [n, width] */
    const float *pre; /* [n_rows, n] */
    size_t n_rows;
    uint32_t n, width;
    const int32_t *rows; /* list [n_rows]: the rows of h; NULL: rows 0, 1, ... */
    float *y;            /* [n_rows, width] */
};
void op_stream_sum(const struct kern_table *k, const struct stream_sum_args *a);

/* h_kd = fma(post_k, y_d, fma chain over j ascending, from +0, of comb_jk * h_jd). Not on a device.
 */
struct stream_add_args {
    float *h;                 /* [n_rows, n, width] */
    const float *y;           /* [n_rows, width] */
    const float *post, *comb; /* [n_rows, n], [n_rows, n, n] */
    size_t n_rows;
    uint32_t n, width;
};
void op_stream_add(const struct kern_table *k, const struct stream_add_args *a);

/* Rotates the last `rot` elements of each head in place: elements 2i and 2i + 1 are a pair, rotated
 * as elements i and i + rot / 2 of the table's rope; with `back` by the negative angle. Not on a
 * device. */
struct rope_ends_args {
    float *x;               /* [n_rows, n_heads, width] */
    const float *cos, *sin; /* [n_rows, rot / 2] */
    size_t n_rows, n_heads, width, rot;
    bool back;
};
void op_rope_ends(const struct kern_table *k, const struct rope_ends_args *a);

/* Local. Rotates x [rot], neighbouring elements as pairs, as op_rope_ends does; on the calling
 * thread. */
void rope_end(const struct kern_table *k, float *x, const float *cos, const float *sin, size_t rot);

/* Moves rows into the order of their experts: to[slots[i]] = x[i / per_row] for each of the
 * n_slots slots that is not negative. */
struct scatter_args {
    const float *x;       /* [ceil(n_slots / per_row), D] */
    const int32_t *slots; /* list [n_slots]: each row of `to` at most once; negative: none */
    size_t n_slots, per_row, width;
    float *to; /* [.., D] */
};
void op_scatter_rows(const struct kern_table *k, const struct scatter_args *a);

/* The combine of an MoE layer: for each token t, the sum on the integer grid (struct
 * weighted_rows) of weights[t][k] * y[slots[t][k]] over the choices k; negative slots are skipped.
 * Without sums: out[t] = the sum as floats, and the row's counter is added to marks[t][0]. With
 * sums: the sum and the counter are added to sums[t], so that other ranks' sums over their choices
 * can be added before op_grid rounds them. The counter is the number of values that are too large
 * for the grid, plus the `bad` counters of the choices. */
struct combine_choices {
    const float *y; /* rows of D with a stride */
    size_t y_stride, width;
    const int32_t *slots;    /* list [T, K] */
    const float *weights;    /* [T, K] */
    size_t n_rows, n_chosen; /* n_chosen at most ROUTER_CHOSEN_MAX */
    uint32_t grid_bits;
    float *out;         /* [T, D] */
    const int32_t *bad; /* counters of y's rows, bad_stride apart; NULL: none */
    size_t bad_stride;
    int32_t *marks; /* [T, 2] */
    int64_t *sums;  /* [T, D + 1], the counter last; NULL: writes out and marks */
};
void op_combine_choices(const struct kern_table *k, const struct combine_choices *a);
/* bad[t] += marks[t, 0] and dropped[t] += marks[t, 1], for n tokens. */
void op_take_marks(const struct kern_table *k, const int32_t *marks, size_t n, int32_t *bad,
                   int32_t *dropped);
/* Runs struct router_args (kern.h) for n_rows rows. */
void op_router(const struct kern_table *k, const struct router_args *a, size_t n_rows);

/* h[T, D] = rows of a packed weight [V, D], one for each token (a list). The weight holds the
 * tokens [vocab_begin, vocab_end); other tokens get zeros. */
struct embed_args {
    const struct packed *w;
    const int32_t *tokens;
    size_t n_rows;
    uint32_t vocab_begin, vocab_end;
    float *h;
};
void op_embed(const struct kern_table *k, const struct embed_args *a);

/* to[i] = from[rows[i]], `width` floats each; rows is a list. */
struct gather_args {
    const float *from;
    const int32_t *rows;
    size_t n_rows, width;
    float *to;
};
void op_gather_rows(const struct kern_table *k, const struct gather_args *a);

/* Moves rows of 4-byte words: to[to_row[i] * to_stride ..] = from[from_row[i]], `width` words
 * each; to_row and from_row are lists. With extra, the word extra[from_row[i]] follows. */
struct move_args {
    const void *from;
    const int32_t *from_row, *to_row;
    size_t n_rows, width, to_stride;
    const int32_t *extra; /* or NULL */
    void *to;
};
void op_move_rows(const struct kern_table *k, const struct move_args *a);

/* For sampling on a device; on the CPU sample/vocab_parallel.c calls the table itself. keys[row] =
 * the table's argmax of a row of logits, and n_bad[row] its counter. */
struct argmax_args {
    const float *logits; /* [n_rows, n] */
    size_t n_rows, n;
    uint32_t id0;   /* id of the first column */
    uint64_t *keys; /* array [n_rows] */
    int64_t *n_bad; /* array [n_rows] */
};
void op_argmax_rows(const struct kern_table *k, const struct argmax_args *a);

/* The parts of a row's log-probability, on a device: totals[row] = the table's mass of the row at
 * temperature 1, relative to the row's maximum; bits[row] = the bits of the target's logit. */
struct score_args {
    const float *logits; /* [n_rows, n] */
    size_t n_rows, n;
    const float *maxima;    /* list [n_rows] */
    const int32_t *targets; /* list [n_rows] of columns; bits are 0 outside [0, n) */
    int64_t *totals;        /* array [n_rows] */
    uint32_t *bits;         /* array [n_rows] */
};
void op_score_rows(const struct kern_table *k, const struct score_args *a);

enum { LOGIT_FORBIDDEN = 1, LOGIT_REPEATED = 2, LOGIT_SAMPLED = 4 };

/* Bias and penalties of one logit l: x = l + bias. REPEATED: x / repetition if x > 0, else x *
 * repetition. SAMPLED: x - often - presence. An infinite result becomes the nearest finite
 * float. FORBIDDEN: the lowest finite float. */
struct logit_change {
    uint32_t row, at, flags;
    float bias, repetition, often, presence;
};

/* Changes logits [.., n] in place; changes is a list, with at most one entry for each logit. */
struct change_logits_args {
    float *logits;
    size_t n;
    const struct logit_change *changes;
    size_t n_changes;
};
void op_change_logits(const struct kern_table *k, const struct change_logits_args *a);

/* Draws a token by sample/pick.h from each row of logits [n_rows, n], which holds a whole
 * vocabulary; rows is a list. */
struct pick_row {
    float max, inv_t; /* largest logit; 1 / temperature */
    float top_p, min_p;
    int32_t top_k, best; /* the largest logit's token */
    uint64_t random;
};
struct pick_args {
    const float *logits;
    const struct pick_row *rows;
    size_t n_rows, n;
    int32_t *tokens; /* array [n_rows] */
};
void op_pick_rows(const struct kern_table *k, const struct pick_args *a);

/* Copies rows between arrays of different widths: to[i * to_stride ..] = from[i * from_stride ..],
 * `width` floats each. */
struct place_args {
    const float *from;
    size_t n_rows, width, to_stride;
    float *to;
    size_t from_stride; /* 0: width */
};
void op_place_rows(const struct kern_table *k, const struct place_args *a);
/* As op_place_rows, but adds to the floats of `to`. Not on a device. */
void op_add_rows(const struct kern_table *k, const struct place_args *a);

/* Decides the layout of a plain weight (w->flat): on a device, row-major if a library multiplies
 * with it. For weights of linears with one group; called before the weight has memory. */
void op_place_weight(const struct kern_table *k, struct packed *w);

/* Returns the bytes of a plain weight in its layout; SIZE_MAX: overflow. */
size_t packed_bytes_of(const struct packed *w);

/* Checks that the library's products with weights of w's shape keep the numerics law. Call it when
 * w has memory, which it may overwrite, and before w's first rows. Errors: STATUS_USAGE, or the
 * device's first failure. */
struct status op_check_weight(const struct kern_table *k, const struct packed *w);

/* Pack rows (outputs) of the checkpoint's matrix [N, K]: op_pack_rows into a plain weight;
 * op_pack_quant into one part of a quantized weight, from rows as the checkpoint stores them
 * (tensor/quant_format.h). The weight's memory must have been zeroed before its first rows. */
void op_pack_rows(const struct kern_table *k, const struct packed *w,
                  const struct matrix_rows *rows);
void op_pack_quant(const struct kern_table *k, const struct packed *w, enum packed_part part,
                   const struct matrix_rows *rows);

/* Packs into a plain weight in panels (flat 0) from a matrix [K, N], whose rows are inputs. */
void op_pack_columns(const struct kern_table *k, const struct packed *w,
                     const struct matrix_rows *rows);

/* out[D] = row `id` of a packed weight [V, D], in f32 (exact; a quantized weight as in weight-only
 * linears). */
void op_embed_row(const struct packed *w, uint32_t id, float *out);

/* cos and sin of (float)positions[t] * inv_freq[i], each times `scale`. */
struct rope_table_args {
    const int32_t *positions; /* list [T]; a device takes them from op_step_begin */
    size_t n_rows;            /* T */
    const float *inv_freq;    /* [rot / 2] */
    size_t rot;
    float scale;
    float *cos, *sin; /* [T, rot / 2] */
};
void op_rope_table(const struct kern_table *k, const struct rope_table_args *a);

/* Local. Returns outputs [first, first + n) of a weight in panels as a weight of its own, which
 * borrows w's memory. first and n are multiples of PANEL_COLUMNS. */
struct packed packed_outputs(const struct packed *w, size_t first, size_t n);

/* Local. Returns the bytes of a packed weight [n_out, n_in] of a type; SIZE_MAX: overflow. */
size_t packed_bytes(enum dtype t, size_t n_out, size_t n_in);

/* Local. Packs rows of a matrix [N, n_in] into `data` (a packed weight's memory, zeroed before the
 * first call), like op_pack_rows on the CPU, but without a kernel table. */
void packed_put_rows(enum dtype t, void *data, size_t n_in, const struct matrix_rows *rows);

/* Local. Packs input k of all n_out outputs from consecutive elements, as a transposed matrix has
 * them. */
void packed_put_column(enum dtype t, void *data, size_t n_in, size_t k, size_t n_out,
                       const void *elements);

/* Local. Returns the bytes of the three arrays of a packed quantized weight [n_out, n_in]:
 * SIZE_MAX where they overflow, 0 for zeros if the format has none. */
struct packed_quant_sizes {
    size_t data, scales, zeros;
};
struct packed_quant_sizes packed_quant_bytes(struct quant_format f, size_t n_out, size_t n_in);

/* Local. Returns element (n, k) of a packed quantized weight as the float with which weight-only
 * linears and op_embed_row multiply. */
float packed_quant_value(const struct packed *w, size_t n, size_t k);

#endif
