/* Activation functions and layer norm on rows of f32, shared by the instruction sets: sixteen
 * values at a time. Activation functions pass the last few values of a row through a buffer; their
 * results are those of elementary_body.h, bit for bit. The including file has the functions v16_...
 * of its vec.h. */
#ifndef SHOAL_KERNELS_ACTIVATION_BODY_H
#define SHOAL_KERNELS_ACTIVATION_BODY_H

#include "kernels/body.h"

/* Computes el_tanh_body. v16_min and v16_max return their second operand if either is NaN. */
ALWAYS_INLINE struct v16 v16_tanh(struct v16 x)
{
    const struct v16 top = v16_set1(EL_TANH_TOP), one = v16_set1(1.0f);
    const struct v16 t = v16_min(top, v16_max(v16_set1(-EL_TANH_TOP), x)), z = v16_mul(t, t);
    struct v16 p = v16_madd(v16_set1(EL_TANH_P5), z, v16_set1(EL_TANH_P4));
    struct v16 q = v16_madd(v16_set1(EL_TANH_Q4), z, v16_set1(EL_TANH_Q3));
    p = v16_madd(p, z, v16_set1(EL_TANH_P3));
    p = v16_madd(p, z, v16_set1(EL_TANH_P2));
    p = v16_madd(p, z, v16_set1(EL_TANH_P1));
    q = v16_madd(q, z, v16_set1(EL_TANH_Q2));
    q = v16_madd(q, z, v16_set1(EL_TANH_Q1));
    return v16_div(v16_mul(t, v16_madd(p, z, one)), v16_madd(q, z, one));
}

ALWAYS_INLINE struct v16 v16_softcap(struct v16 x, struct v16 cap)
{
    return v16_mul(cap, v16_tanh(v16_div(x, cap)));
}

ALWAYS_INLINE struct v16 v16_geglu(struct v16 gate, struct v16 up)
{
    const struct v16 cube = v16_mul(v16_mul(gate, gate), gate);
    const struct v16 v = v16_madd(cube, v16_set1(EL_GELU_CUBE), gate);
    const struct v16 e = v16_exp(v16_mul(v, v16_set1(EL_GELU_TWICE)));
    return v16_mul(v16_div(gate, v16_add(v16_set1(1.0f), e)), up);
}

/* Computes el_xielu_body. */
ALWAYS_INLINE struct v16 v16_xielu(struct v16 x, const float law[4])
{
    const struct v16 line = v16_mul(v16_set1(law[2]), x), t = v16_min(v16_set1(law[3]), x);
    struct v16 q = v16_set1(EL_EXP_Q4);
    q = v16_madd(q, t, v16_set1(EL_EXP_Q3));
    q = v16_madd(q, t, v16_set1(EL_EXP_Q2));
    q = v16_madd(q, t, v16_set1(EL_EXP_Q1));
    q = v16_madd(q, t, v16_set1(EL_EXP_Q0));
    const struct v16 near = v16_mul(q, v16_mul(t, t));
    const struct v16 far = v16_sub(v16_sub(v16_exp(t), v16_set1(1.0f)), t);
    const struct v16 rest = v16_above(v16_set1(EL_REST_NEAR), t, far, near);
    const struct v16 up = v16_madd(v16_mul(v16_set1(law[0]), x), x, line);
    const struct v16 down = v16_madd(v16_add(rest, v16_sub(t, x)), v16_set1(law[1]), line);
    return v16_above(x, v16_zero(), up, down);
}

/* Computes el_gelu_body. */
ALWAYS_INLINE struct v16 v16_gelu(struct v16 x)
{
    const struct v16 zero = v16_zero(), size = v16_above(zero, x, v16_sub(v16_set1(-0.0f), x), x);
    const struct v16 z = v16_min(v16_set1(EL_GELU_TOP), size), one = v16_set1(1.0f);
    const struct v16 t = v16_div(one, v16_madd(v16_set1(EL_GELU_T), z, one));
    struct v16 p = v16_madd(v16_set1(EL_GELU_P5), t, v16_set1(EL_GELU_P4));
    p = v16_madd(p, t, v16_set1(EL_GELU_P3));
    p = v16_madd(p, t, v16_set1(EL_GELU_P2));
    p = v16_madd(p, t, v16_set1(EL_GELU_P1));
    const struct v16 e = v16_exp(v16_mul(v16_mul(z, z), v16_set1(-0.5f)));
    return v16_sub(v16_above(x, zero, x, zero), v16_mul(z, v16_mul(v16_mul(p, t), e)));
}

/* Loads the last n < 16 values of a row; the other lanes are zeros. */
ALWAYS_INLINE struct v16 activation_tail(const float *x, size_t n)
{
    float last[16] = {0};
    memcpy(last, x, n * sizeof *x);
    return v16_load(DTYPE_F32, last, 0);
}

ALWAYS_INLINE void activation_put_tail(float *y, size_t n, struct v16 v)
{
    float last[16];
    v16_store(last, v);
    memcpy(y, last, n * sizeof *y);
}

ALWAYS_INLINE void row_geglu(const float *gate, const float *up, size_t n, float *y)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16_store(y + i, v16_geglu(v16_load(DTYPE_F32, gate, i), v16_load(DTYPE_F32, up, i)));
    if (i == n) return;
    const struct v16 v =
        v16_geglu(activation_tail(gate + i, n - i), activation_tail(up + i, n - i));
    activation_put_tail(y + i, n - i, v);
}

ALWAYS_INLINE void row_xielu(float *x, size_t n, const float law[4])
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v16_store(x + i, v16_xielu(v16_load(DTYPE_F32, x, i), law));
    if (i < n) activation_put_tail(x + i, n - i, v16_xielu(activation_tail(x + i, n - i), law));
}

ALWAYS_INLINE void row_gelu(float *x, size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v16_store(x + i, v16_gelu(v16_load(DTYPE_F32, x, i)));
    if (i < n) activation_put_tail(x + i, n - i, v16_gelu(activation_tail(x + i, n - i)));
}

/* Computes kern.h's layer norm. Lanes beyond the row's end add nothing. */
ALWAYS_INLINE void row_layernorm(const float *x, const float *w, const float *b, size_t n,
                                 float eps, float *y)
{
    const size_t whole = n / 16 * 16, rest = n - whole;
    struct v16 sums = v16_zero(), squares = v16_zero();
    float last[16] = {0};
    for (size_t d = 0; d < whole; d += 16) sums = v16_add(sums, v16_load(DTYPE_F32, x, d));
    v16_store(last, sums);
    for (size_t i = 0; i < rest; i++) last[i] += x[whole + i];
    const float mean = v16_tree(v16_load(DTYPE_F32, last, 0)) / (float)n;
    for (size_t d = 0; d < whole; d += 16) {
        const struct v16 c = v16_sub(v16_load(DTYPE_F32, x, d), v16_set1(mean));
        squares = v16_madd(c, c, squares);
    }
    v16_store(last, squares);
    for (size_t i = 0; i < rest; i++) {
        const float c = x[whole + i] - mean;
        last[i] = fmaf(c, c, last[i]);
    }
    const float r = 1.0f / sqrtf(v16_tree(v16_load(DTYPE_F32, last, 0)) / (float)n + eps);
    for (size_t d = 0; d < whole; d += 16) {
        const struct v16 c = v16_sub(v16_load(DTYPE_F32, x, d), v16_set1(mean));
        v16_store(y + d, v16_madd(v16_mul(c, v16_set1(r)), v16_load(DTYPE_F32, w, d),
                                  v16_load(DTYPE_F32, b, d)));
    }
    for (size_t d = whole; d < n; d++) y[d] = fmaf((x[d] - mean) * r, w[d], b[d]);
}

ALWAYS_INLINE void row_softcap(float *x, size_t n, float cap_)
{
    const struct v16 cap = v16_set1(cap_);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) v16_store(x + i, v16_softcap(v16_load(DTYPE_F32, x, i), cap));
    if (i == n) return;
    activation_put_tail(x + i, n - i, v16_softcap(activation_tail(x + i, n - i), cap));
}

#endif
