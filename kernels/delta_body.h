/* The kernels of recurrent layers on vectors of 16 lanes. The file that includes this has included
 * its instruction set's vec.h, and defines
 *     DELTA_VECTORS     vectors of columns in a tile of the delta rule
 *
 * A state is read and written once per row, and read once more before a run's first row: the pass
 * that updates it with row t also reads it with q of row t and with k of row t + 1.
 *
 *     row t:    d = (v - decay * m) * beta
 *     for i:    S_i = k_i d + decay S_i;    o += q_i S_i;    next m += k'_i S_i   (k' of row t + 1)
 *
 * With a decay for each channel:
 *
 *     row t:    d = (v - m) * beta
 *     for i:    S_i = k_i d + decay_i S_i;    o += q_i S_i;    next m += (k'_i decay'_i) S_i
 *                                                              (k', decay' of row t + 1)
 */
#ifndef SHOAL_KERNELS_DELTA_BODY_H
#define SHOAL_KERNELS_DELTA_BODY_H

/* Unrolls the constant loops over a tile's vectors, so that they stay in registers. Not with
 * AddressSanitizer, which checks every access. */
#ifdef __SANITIZE_ADDRESS__
#define DELTA_UNROLL
#else
#define DELTA_UNROLL _Pragma("GCC unroll 4")
#endif

#include "kernels/elementary_body.h"

enum { DELTA_LANES = 16 };

/* Computes m of the first row, without the decay of its head. */
ALWAYS_INLINE void delta_read(const struct state_run *r, size_t j, size_t w, bool by_channel,
                              struct v16 *m)
{
    DELTA_UNROLL
    for (size_t c = 0; c < w; c++) m[c] = v16_zero();
    for (size_t i = 0; i < r->key_dim; i++) {
        const struct v16 k = v16_set1(by_channel ? r->k[i] * r->decay[i] : r->k[i]);
        const float *s = r->state + i * r->state_stride + j;
        DELTA_UNROLL
        for (size_t c = 0; c < w; c++)
            m[c] = v16_madd(k, v16_load(DTYPE_F32, s, c * DELTA_LANES), m[c]);
    }
}

/* Compile-time constants of a call of delta_row. */
struct delta_row_kind {
    bool has_next; /* there is a next row, for which m is set */
    bool by_channel;
};

/* Computes row t in w vectors of columns, from column j on: writes its output, and sets m for the
 * next row. */
ALWAYS_INLINE void delta_row(const struct state_run *r, size_t t, size_t j, size_t w,
                             struct delta_row_kind kind, struct v16 *m)
{
    const float *q = r->q + t * r->key_stride, *k = r->k + t * r->key_stride;
    const float *next = k + r->key_stride, *decay = r->decay + t * r->gate_stride;
    const float *next_decay = decay + r->gate_stride;
    const struct v16 beta = v16_set1(r->beta[t * r->gate_stride]), whole = v16_set1(decay[0]);
    struct v16 d[DELTA_VECTORS], o[DELTA_VECTORS];
    DELTA_UNROLL
    for (size_t c = 0; c < w; c++) {
        const struct v16 v = v16_load(DTYPE_F32, r->v + t * r->value_stride + j, c * DELTA_LANES);
        d[c] = v16_mul(v16_sub(v, kind.by_channel ? m[c] : v16_mul(whole, m[c])), beta);
        o[c] = m[c] = v16_zero();
    }
    for (size_t i = 0; i < r->key_dim; i++) {
        float *s = r->state + i * r->state_stride + j;
        const float n = kind.has_next ? next[i] : 0;
        const struct v16 ki = v16_set1(k[i]), qi = v16_set1(q[i]);
        const struct v16 ni = v16_set1(kind.by_channel && kind.has_next ? n * next_decay[i] : n);
        const struct v16 keeps = kind.by_channel ? v16_set1(decay[i]) : whole;
        DELTA_UNROLL
        for (size_t c = 0; c < w; c++) {
            const struct v16 old = v16_load(DTYPE_F32, s, c * DELTA_LANES);
            const struct v16 now = v16_madd(ki, d[c], v16_mul(keeps, old));
            v16_store(s + c * DELTA_LANES, now);
            o[c] = v16_madd(qi, now, o[c]);
            if (kind.has_next) m[c] = v16_madd(ni, now, m[c]);
        }
    }
    DELTA_UNROLL
    for (size_t c = 0; c < w; c++)
        v16_store(r->out + t * r->out_stride + j + c * DELTA_LANES, o[c]);
}

ALWAYS_INLINE void delta_tile(const struct state_run *r, size_t j, size_t w, bool by_channel)
{
    const struct delta_row_kind inner = {true, by_channel}, last = {false, by_channel};
    struct v16 m[DELTA_VECTORS];
    if (r->n_rows == 0) return;
    delta_read(r, j, w, by_channel, m);
    for (size_t t = 0; t + 1 < r->n_rows; t++) delta_row(r, t, j, w, inner, m);
    delta_row(r, r->n_rows - 1, j, w, last, m);
}

/* Computes a single column, after the last whole vector. */
ALWAYS_INLINE void delta_one(const struct state_run *r, size_t j, bool by_channel)
{
    for (size_t t = 0; t < r->n_rows; t++) {
        const float *q = r->q + t * r->key_stride, *k = r->k + t * r->key_stride;
        const float *decay = r->decay + t * r->gate_stride, beta = r->beta[t * r->gate_stride];
        float *s = r->state + j, m = 0, o = 0;
        for (size_t i = 0; i < r->key_dim; i++)
            m = fmaf(by_channel ? k[i] * decay[i] : k[i], s[i * r->state_stride], m);
        const float d = (r->v[t * r->value_stride + j] - (by_channel ? m : decay[0] * m)) * beta;
        for (size_t i = 0; i < r->key_dim; i++) {
            float *at = s + i * r->state_stride;
            *at = fmaf(k[i], d, decay[by_channel ? i : 0] * *at);
            o = fmaf(q[i], *at, o);
        }
        r->out[t * r->out_stride + j] = o;
    }
}

ALWAYS_INLINE void delta_columns(const struct state_run *r, bool by_channel)
{
    const size_t wide = DELTA_VECTORS * DELTA_LANES;
    size_t j = 0;
    for (; j + wide <= r->n; j += wide) delta_tile(r, j, DELTA_VECTORS, by_channel);
    for (; j + DELTA_LANES <= r->n; j += DELTA_LANES) delta_tile(r, j, 1, by_channel);
    for (; j < r->n; j++) delta_one(r, j, by_channel);
}

static void delta_rule(const struct state_run *r)
{
    if (r->by_channel)
        delta_columns(r, true);
    else
        delta_columns(r, false);
}

ALWAYS_INLINE struct v16 delta_sigmoid(struct v16 x)
{
    const struct v16 one = v16_set1(1);
    return v16_div(one, v16_add(one, v16_exp(v16_sub(v16_set1(-0.0f), x))));
}

static void delta_sigmoid_mul(const float *gate, size_t n, float *x)
{
    size_t i = 0;
    for (; i + DELTA_LANES <= n; i += DELTA_LANES) {
        const struct v16 g = v16_load(DTYPE_F32, gate, i);
        v16_store(x + i, v16_mul(v16_load(DTYPE_F32, x, i), delta_sigmoid(g)));
    }
    for (; i < n; i++) x[i] *= el_sigmoid_body(gate[i]);
}

static void delta_conv_silu(const float *const *x, size_t n_taps, const float *w, size_t w_stride,
                            size_t n, float *y)
{
    const struct v16 one = v16_set1(1);
    size_t c = 0;
    for (; c + DELTA_LANES <= n; c += DELTA_LANES) {
        struct v16 acc = v16_zero();
        for (size_t j = 0; j < n_taps; j++)
            acc = v16_madd(v16_load(DTYPE_F32, x[j], c), v16_load(DTYPE_F32, w + j * w_stride, c),
                           acc);
        const struct v16 e = v16_exp(v16_sub(v16_set1(-0.0f), acc));
        v16_store(y + c, v16_div(acc, v16_add(one, e)));
    }
    for (; c < n; c++) {
        float acc = 0;
        for (size_t j = 0; j < n_taps; j++) acc = fmaf(x[j][c], w[j * w_stride + c], acc);
        y[c] = el_silu_body(acc);
    }
}

#endif
