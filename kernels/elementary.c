/* Exports the elementary functions; defines log and softplus. They use polynomials instead of
 * tables: the argument is reduced until a few terms suffice. */
#include "kernels/elementary.h"

#include "kernels/elementary_body.h"
#include "kernels/ref/ref.h"

REF_CLONES float el_expf(float x)
{
    return el_exp_body(x);
}

REF_CLONES void el_sincosf(float x, float *sin, float *cos)
{
    el_sincos_body(x, sin, cos);
}

/* x = m * 2^e with m in [sqrt(1/2), sqrt(2)). With f = m - 1 and s = f / (2 + f)
 *     log m = 2 atanh(s) = f - s * (f - r),  r = 2 (s^2/3 + s^4/5 + ...)
 * f is exact. The other terms are small, and so are their rounding errors. */
REF_CLONES double el_log(double x)
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

REF_CLONES float el_softplusf(float x)
{
    return x <= 20.0f ? (float)el_log(1.0 + (double)el_expf(x)) : x;
}

REF_CLONES float el_geluf(float x)
{
    return el_gelu_body(x);
}
