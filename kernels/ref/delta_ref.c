/* Reference kernels of layers with states: the gated delta rule, the Mamba-2 scan, their
 * convolution, sigmoid gates, and the sums of compressed entries. */
#include "kernels/ref/ref.h"

#include "kernels/elementary_body.h"

#include <math.h>

static void k_sigmoid_mul_f32_ref(const float *gate, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++) x[i] *= el_sigmoid_body(gate[i]);
}

static void k_conv_silu_f32_ref(const float *const *x, size_t n_taps, const float *w,
                                size_t w_stride, size_t n, float *y)
{
    for (size_t c = 0; c < n; c++) {
        float acc = 0;
        for (size_t j = 0; j < n_taps; j++) acc = fmaf(x[j][c], w[j * w_stride + c], acc);
        y[c] = el_silu_body(acc);
    }
}

/* Computes one column of one row; s [key_dim], stride apart, is that column of the state. */
REF_INLINE float delta_column(const float *q, const float *k, float v, float decay, float beta,
                              const struct state_run *r, float *s)
{
    const size_t stride = r->state_stride;
    float m = 0, o = 0;
    for (size_t i = 0; i < r->key_dim; i++) m = fmaf(k[i], s[i * stride], m);
    const float d = (v - decay * m) * beta;
    for (size_t i = 0; i < r->key_dim; i++) {
        s[i * stride] = fmaf(k[i], d, decay * s[i * stride]);
        o = fmaf(q[i], s[i * stride], o);
    }
    return o;
}

/* As delta_column, with a decay for each channel. */
REF_INLINE float channel_column(const struct state_run *r, size_t t, size_t j)
{
    const float *q = r->q + t * r->key_stride, *k = r->k + t * r->key_stride;
    const float *decay = r->decay + t * r->gate_stride;
    float *s = r->state + j, m = 0, o = 0;
    for (size_t i = 0; i < r->key_dim; i++) m = fmaf(k[i] * decay[i], s[i * r->state_stride], m);
    const float d = (r->v[t * r->value_stride + j] - m) * r->beta[t * r->gate_stride];
    for (size_t i = 0; i < r->key_dim; i++) {
        float *at = s + i * r->state_stride;
        *at = fmaf(k[i], d, decay[i] * *at);
        o = fmaf(q[i], *at, o);
    }
    return o;
}

REF_CLONES void k_delta_rule_f32_ref(const struct state_run *r)
{
    for (size_t t = 0; r->by_channel && t < r->n_rows; t++)
        for (size_t j = 0; j < r->n; j++) r->out[t * r->out_stride + j] = channel_column(r, t, j);
    for (size_t t = 0; !r->by_channel && t < r->n_rows; t++) {
        const float decay = r->decay[t * r->gate_stride], beta = r->beta[t * r->gate_stride];
        for (size_t j = 0; j < r->n; j++)
            r->out[t * r->out_stride + j] =
                delta_column(r->q + t * r->key_stride, r->k + t * r->key_stride,
                             r->v[t * r->value_stride + j], decay, beta, r, r->state + j);
    }
}

/* As delta_column, for the scan. */
REF_INLINE float scan_column(const struct state_run *r, size_t t, size_t j)
{
    const float *q = r->q + t * r->key_stride, *k = r->k + t * r->key_stride;
    const float decay = r->decay[t * r->gate_stride], v = r->v[t * r->value_stride + j];
    const float d = v * r->beta[t * r->gate_stride];
    float o = 0;
    for (size_t i = 0; i < r->key_dim; i++) {
        float *s = r->state + i * r->state_stride + j;
        *s = fmaf(k[i], d, decay * *s);
        o = fmaf(q[i], *s, o);
    }
    return fmaf(r->skip, v, o);
}

REF_CLONES void k_scan_f32_ref(const struct state_run *r)
{
    for (size_t t = 0; t < r->n_rows; t++)
        for (size_t j = 0; j < r->n; j++) r->out[t * r->out_stride + j] = scan_column(r, t, j);
}

REF_CLONES void k_pool_add_f32_ref(const struct pool_sums *p, const float *z, const float *bias,
                                   const float *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float x = z[i] + bias[i], old = p->m[i], m = old > x ? old : x;
        const float a = el_exp_body(old - m), b = el_exp_body(x - m);
        p->l[i] = fmaf(p->l[i], a, b);
        p->s[i] = fmaf(p->s[i], a, b * v[i]);
        p->m[i] = m;
    }
}

void fill_delta_ref(struct kern_table *t)
{
    t->sigmoid_mul = k_sigmoid_mul_f32_ref;
    t->conv_silu = k_conv_silu_f32_ref;
}
