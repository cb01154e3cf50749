/* The elementary functions as functions, and the double ones: sin, cos and log.
 * Series instead of tables: the arguments are reduced until few terms suffice. */
#include "kernels/elementary.h"

#include "kernels/elementary_body.h"

static double f64_from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static uint64_t f64_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

float el_expf(float x)
{
    return el_exp_body(x);
}

/* Taylor series on |r| <= pi/4; the first term left out is below 2^-53 of the result. */
static double sin_series(double r)
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

static double cos_series(double r)
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

void el_sincosf(float x, float *sin, float *cos)
{
    /* pi/2 = hi + lo to 107 bits. k < 2^24, so x - k * hi is exact in one fma. */
    const double hi = 0x1.921fb54442d18p+0, lo = 0x1.1a62633145c07p-54;
    const double two_over_pi = 0x1.45f306dc9c883p-1, shift = 0x1.8p+52;
    const double shifted = fma((double)x, two_over_pi, shift);
    const double k = shifted - shift;
    const double r = fma(-k, lo, fma(-k, hi, (double)x));
    const double s = sin_series(r), c = cos_series(r);
    const uint64_t quadrant = f64_bits(shifted) & 3u;
    const double sine = quadrant & 1u ? c : s, cosine = quadrant & 1u ? s : c;
    *sin = (float)(quadrant & 2u ? -sine : sine);
    *cos = (float)(quadrant == 1 || quadrant == 2 ? -cosine : cosine);
}

/* x = m * 2^e with m in [sqrt(1/2), sqrt(2)); with f = m - 1 and s = f / (2 + f),
 *     log m = 2 atanh(s) = f - s * (f - r),  r = 2 (s^2/3 + s^4/5 + ...)
 * whose only rounded large term is f, and f is exact. */
double el_log(double x)
{
    if (!(x > 0.0)) return f64_from_bits(x == 0.0 ? 0xFFF0000000000000u : 0x7FF8000000000000u);
    uint64_t u = f64_bits(x);
    if (u >= 0x7FF0000000000000u) return x;
    int64_t e = 0;
    if (u < 0x0010000000000000u) {
        u = f64_bits(x * 0x1p54);
        e = -54;
    }
    /* the exponent of x / sqrt(1/2), rounded down */
    const uint64_t root_half = 0x3FE6A09E667F3BCDu;
    const int64_t step = (int64_t)(u - root_half) >> 52;
    e += step;
    const double f = f64_from_bits(u - ((uint64_t)step << 52)) - 1.0;
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
