/* Elementary functions and activation functions, as inline functions. elementary.c exports exp,
 * sincos, log, softplus and GELU; kernels of every instruction set and of the GPU call them for
 * single elements. They are compiled with and without FMA instructions; fma is
 * correctly rounded either way, so the bits are the same. */
#ifndef SHOAL_KERNELS_ELEMENTARY_BODY_H
#define SHOAL_KERNELS_ELEMENTARY_BODY_H

#include "tensor/dtype.h"

#include <math.h>

/* exp(x) = 2^n exp(r) with n the integer nearest x / ln 2, and exp(r) = 1 + r + r^2 q(r).
 * ln 2 = hi + lo with hi short enough that n * hi is exact. q is the minimax polynomial of degree 4
 * for the relative error on |r| <= ln 2 / 2 (3e-9). Adding EL_SHIFT rounds to an integer. */
#define EL_EXP_LOW  (-87.0f)
#define EL_EXP_HIGH 88.0f
#define EL_LOG2E    0x1.715476p+0f
#define EL_LN2_HI   0x1.63p-1f
#define EL_LN2_LO   (-0x1.bd0106p-13f)
#define EL_SHIFT    0x1.8p+23f
#define EL_EXP_Q0   0x1.fffffcp-2f
#define EL_EXP_Q1   0x1.555492p-3f
#define EL_EXP_Q2   0x1.5558f2p-5f
#define EL_EXP_Q3   0x1.123ap-7f
#define EL_EXP_Q4   0x1.6a2402p-10f

DEVICE_INLINE float el_exp_body(float x)
{
    if (x != x) return x + x;
    if (x < EL_EXP_LOW) return 0.0f;
    if (x > EL_EXP_HIGH) return f32_from_bits(0x7F800000u);
    const float shifted = fmaf(x, EL_LOG2E, EL_SHIFT);
    const float n = shifted - EL_SHIFT;
    const float r = fmaf(-n, EL_LN2_LO, fmaf(-n, EL_LN2_HI, x));
    float q = EL_EXP_Q4;
    q = fmaf(q, r, EL_EXP_Q3);
    q = fmaf(q, r, EL_EXP_Q2);
    q = fmaf(q, r, EL_EXP_Q1);
    q = fmaf(q, r, EL_EXP_Q0);
    const float p = fmaf(fmaf(q, r, 1.0f), r, 1.0f);
    /* the low bits of `shifted` hold n as an integer; -126 <= n <= 127 */
    return p * f32_from_bits((f32_bits(shifted) + 127u) << 23);
}

/* g / (1 + exp(-g)) * u */
DEVICE_INLINE float el_swiglu_body(float gate, float up)
{
    return gate / (1.0f + el_exp_body(-gate)) * up;
}

DEVICE_INLINE float el_silu_body(float x)
{
    return x / (1.0f + el_exp_body(-x));
}

DEVICE_INLINE float el_sigmoid_body(float x)
{
    return 1.0f / (1.0f + el_exp_body(-x));
}

/* g / (1 + exp(-(alpha g))) * (u + 1) of clamped g and u; the comparisons keep a NaN */
DEVICE_INLINE float el_swiglu_clamped_body(float gate, float up, float alpha, float limit)
{
    const float g = limit < gate ? limit : gate, below = limit < up ? limit : up;
    const float u = -limit > below ? -limit : below;
    return g / (1.0f + el_exp_body(-(alpha * g))) * (u + 1.0f);
}

/* tanh(x) = x P(x^2) / Q(x^2) on |x| <= 9; beyond, 1 - |tanh| is below an ulp. P and Q are
 * minimax for the relative error (1.3e-9); with the roundings it stays below 4 ulp. A NaN stays
 * NaN. */
#define EL_TANH_TOP 9.0f
#define EL_TANH_P1  0x1.18305p-3f
#define EL_TANH_P2  0x1.fb38cp-9f
#define EL_TANH_P3  0x1.d660cp-16f
#define EL_TANH_P4  0x1.0750f6p-25f
#define EL_TANH_P5  (-0x1.af21ecp-37f)
#define EL_TANH_Q1  0x1.e16d7cp-2f
#define EL_TANH_Q2  0x1.be7be8p-6f
#define EL_TANH_Q3  0x1.9d43e8p-12f
#define EL_TANH_Q4  0x1.5a1e62p-20f

DEVICE_INLINE float el_tanh_body(float x)
{
    const float low = x < -EL_TANH_TOP ? -EL_TANH_TOP : x;
    const float t = low > EL_TANH_TOP ? EL_TANH_TOP : low, z = t * t;
    float p = fmaf(EL_TANH_P5, z, EL_TANH_P4), q = fmaf(EL_TANH_Q4, z, EL_TANH_Q3);
    p = fmaf(p, z, EL_TANH_P3);
    p = fmaf(p, z, EL_TANH_P2);
    p = fmaf(p, z, EL_TANH_P1);
    q = fmaf(q, z, EL_TANH_Q2);
    q = fmaf(q, z, EL_TANH_Q1);
    return t * fmaf(p, z, 1.0f) / fmaf(q, z, 1.0f);
}

/* cap tanh(x / cap) */
DEVICE_INLINE float el_softcap_body(float x, float cap)
{
    return cap * el_tanh_body(x / cap);
}

/* The tanh form of GELU times u: 0.5 g (1 + tanh(a v)) = g / (1 + exp(-2 a v)) with
 * a = sqrt(2 / pi) and v = g + 0.044715 g^3. EL_GELU_TWICE is -2 a. */
#define EL_GELU_CUBE  0x1.6e4e26p-5f
#define EL_GELU_TWICE (-0x1.988454p+0f)

DEVICE_INLINE float el_geglu_body(float gate, float up)
{
    const float v = fmaf(gate * gate * gate, EL_GELU_CUBE, gate);
    return gate / (1.0f + el_exp_body(v * EL_GELU_TWICE)) * up;
}

/* GELU(x) = x F(x), where F is the standard normal distribution function, computed as
 *     max(x, 0) - z Q(z)   with z = |x| and the upper tail Q(z) = 1 - F(z) = erfc(z / sqrt 2) / 2
 * By Abramowitz and Stegun 7.1.26, Q(z) = t P(t) exp(-z^2 / 2) with t = 1 / (1 + EL_GELU_T z) and
 * P(t) = P1 + P2 t + ... + P5 t^4; EL_GELU_T is 0.3275911 / sqrt 2, and P1 to P5 are half of their
 * coefficients. The error of Q is below 1e-7. z is clamped to EL_GELU_TOP, where Q is 0 already, so
 * that an infinite x gives no NaN. A NaN stays NaN. */
#define EL_GELU_TOP 16.0f
#define EL_GELU_T   0.23164189f
#define EL_GELU_P1  0.127414796f
#define EL_GELU_P2  (-0.142248368f)
#define EL_GELU_P3  0.7107068705f
#define EL_GELU_P4  (-0.7265760135f)
#define EL_GELU_P5  0.5307027145f

DEVICE_INLINE float el_gelu_body(float x)
{
    const float size = x < 0 ? -x : x, z = EL_GELU_TOP < size ? EL_GELU_TOP : size;
    const float t = 1.0f / fmaf(EL_GELU_T, z, 1.0f);
    float p = fmaf(EL_GELU_P5, t, EL_GELU_P4);
    p = fmaf(p, t, EL_GELU_P3);
    p = fmaf(p, t, EL_GELU_P2);
    p = fmaf(p, t, EL_GELU_P1);
    const float tail = p * t * el_exp_body(z * z * -0.5f);
    return (0.0f < x ? x : 0.0f) - z * tail;
}

/* exp(x) - 1 - x for x <= 0. Near 0 the difference would cancel, so the polynomial of exp without
 * its first terms is used. */
#define EL_REST_NEAR (-0.34f)

DEVICE_INLINE float el_exp_rest_body(float x)
{
    float q = EL_EXP_Q4;
    q = fmaf(q, x, EL_EXP_Q3);
    q = fmaf(q, x, EL_EXP_Q2);
    q = fmaf(q, x, EL_EXP_Q1);
    q = fmaf(q, x, EL_EXP_Q0);
    return x < EL_REST_NEAR ? (el_exp_body(x) - 1.0f) - x : q * (x * x);
}

/* xIELU (Huang and Schlag 2024), law = alpha_p, alpha_n, beta, eps. For x > 0: fma(alpha_p * x, x,
 * beta * x). Otherwise, with t = min(x, eps): fma(exp(t) - 1 - t + (t - x), alpha_n, beta * x). */
DEVICE_INLINE float el_xielu_body(float x, const float law[4])
{
    const float t = law[3] < x ? law[3] : x, line = law[2] * x;
    if (x > 0.0f) return fmaf(law[0] * x, x, line);
    return fmaf(el_exp_rest_body(t) + (t - x), law[1], line);
}

DEVICE_INLINE double el_f64_from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

DEVICE_INLINE uint64_t el_f64_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* Taylor series on |r| <= pi/4; the first omitted term is below 2^-53 of the result. */
DEVICE_INLINE double el_sin_series(double r)
{
    const double z = r * r;
    double s = -1.0 / 1307674368000.0; /* 15! */
    s = fma(s, z, 1.0 / 6227020800.0);
    s = fma(s, z, -1.0 / 39916800.0);
    s = fma(s, z, 1.0 / 362880.0);
    s = fma(s, z, -1.0 / 5040.0);
    s = fma(s, z, 1.0 / 120.0);
    s = fma(s, z, -1.0 / 6.0);
    return fma(s * z, r, r);
}

DEVICE_INLINE double el_cos_series(double r)
{
    const double z = r * r;
    double c = 1.0 / 20922789888000.0; /* 16! */
    c = fma(c, z, -1.0 / 87178291200.0);
    c = fma(c, z, 1.0 / 479001600.0);
    c = fma(c, z, -1.0 / 3628800.0);
    c = fma(c, z, 1.0 / 40320.0);
    c = fma(c, z, -1.0 / 720.0);
    c = fma(c, z, 1.0 / 24.0);
    c = fma(c, z, -0.5);
    return fma(c, z, 1.0);
}

/* Computes sin and cos of x, |x| < 2^24, in double and rounds them to f32. */
DEVICE_INLINE void el_sincos_body(float x, float *sin, float *cos)
{
    /* pi/2 = hi + lo to 107 bits. k < 2^24, so x - k * hi is exact in one fma. */
    const double hi = 0x1.921fb54442d18p+0, lo = 0x1.1a62633145c07p-54;
    const double two_over_pi = 0x1.45f306dc9c883p-1, shift = 0x1.8p+52;
    const double shifted = fma((double)x, two_over_pi, shift);
    const double k = shifted - shift;
    const double r = fma(-k, lo, fma(-k, hi, (double)x));
    const double s = el_sin_series(r), c = el_cos_series(r);
    const uint64_t quadrant = el_f64_bits(shifted) & 3u;
    const double sine = quadrant & 1u ? c : s, cosine = quadrant & 1u ? s : c;
    *sin = (float)(quadrant & 2u ? -sine : sine);
    *cos = (float)(quadrant == 1 || quadrant == 2 ? -cosine : cosine);
}

/* x = m * 2^e with m in [sqrt(1/2), sqrt(2)). With f = m - 1 and s = f / (2 + f)
 *     log m = 2 atanh(s) = f - s * (f - r),  r = 2 (s^2/3 + s^4/5 + ...)
 * f is exact. The other terms are small, and so are their rounding errors. */
DEVICE_INLINE double el_log_body(double x)
{
    if (!(x > 0.0)) return el_f64_from_bits(x == 0.0 ? 0xFFF0000000000000u : 0x7FF8000000000000u);
    uint64_t u = el_f64_bits(x);
    if (u >= 0x7FF0000000000000u) return x;
    int64_t e = 0;
    if (u < 0x0010000000000000u) {
        u = el_f64_bits(x * 0x1p54);
        e = -54;
    }
    /* the exponent of x / sqrt(1/2), rounded down */
    const uint64_t root_half = 0x3FE6A09E667F3BCDu;
    const int64_t step = (int64_t)(u - root_half) >> 52;
    e += step;
    const double f = el_f64_from_bits(u - ((uint64_t)step << 52)) - 1.0;
    const double s = f / (2.0 + f), z = s * s;
    double r = 2.0 / 25.0;
    r = fma(r, z, 2.0 / 23.0);
    r = fma(r, z, 2.0 / 21.0);
    r = fma(r, z, 2.0 / 19.0);
    r = fma(r, z, 2.0 / 17.0);
    r = fma(r, z, 2.0 / 15.0);
    r = fma(r, z, 2.0 / 13.0);
    r = fma(r, z, 2.0 / 11.0);
    r = fma(r, z, 2.0 / 9.0);
    r = fma(r, z, 2.0 / 7.0);
    r = fma(r, z, 2.0 / 5.0);
    r = fma(r, z, 2.0 / 3.0);
    r *= z;
    /* ln 2 = hi + lo; hi has 32 bits, so e * hi is exact */
    const double hi = 0x1.62e42feep-1, lo = 0x1.a39ef35793c76p-33;
    return fma((double)e, hi, f - fma(s, f - r, -(double)e * lo));
}

/* log(1 + exp(x)); above 20: x */
DEVICE_INLINE float el_softplus_body(float x)
{
    return x <= 20.0f ? (float)el_log_body(1.0 + (double)el_exp_body(x)) : x;
}

#endif
