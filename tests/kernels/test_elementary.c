/* Compares exp over every seventh float from -87 to 88 (fewer under AddressSanitizer), sin and cos
 * over the angles of RoPE, and log over many doubles with the C library. */
#include "kernels/elementary.h"

#include "util_cases.h"
#include "util_kernels.h"

#include <CUnit/CUnit.h>
#include <math.h>

/* The step from one float that is tried to the next, in bit patterns. */
static uint32_t stride(void)
{
    return 7 * 4 / (uint32_t)util_cases(4);
}

/* |got - want| in units of the last place of a float of want's size. */
static double ulps(float got, long double want)
{
    int e;
    frexpl(want, &e);
    return (double)fabsl(((long double)got - want) / ldexpl(1.0L, (e < -125 ? -125 : e) - 24));
}

/* The same for a positive want of a normal float's size. Gives what `ulps` gives, because the
 * difference and its product with a power of two are exact in double, and is faster. */
static double ulps_of_normal(float got, double want)
{
    uint64_t bits;
    double unit;
    memcpy(&bits, &want, sizeof bits);
    bits = (uint64_t)(2 * 1023 + 23 - (int64_t)(bits >> 52)) << 52; /* 1 / ulp */
    memcpy(&unit, &bits, sizeof unit);
    return fabs((double)got - want) * unit;
}

static void exp_is_within_one_ulp_over_all_floats(void)
{
    double worst = 0;
    uint32_t worst_at = 0;
    /* floats of both signs, up to the cutoffs */
    for (uint64_t u = 0; u < 0x100000000u; u += stride()) {
        const float x = f32_from_bits((uint32_t)u);
        if (!(x >= -87.0f && x <= 88.0f)) continue;
        /* the C library's exp in double is within 2^-52, which is 2^-28 of a float's ulp */
        const double e = ulps_of_normal(el_expf(x), exp((double)x));
        if (e > worst) {
            worst = e;
            worst_at = (uint32_t)u;
        }
    }
    printf("exp: at most %.3f ulp (at %a) ", worst, f32_from_bits(worst_at));
    CU_ASSERT(worst < 1.0);
}

static void exp_has_exact_ends(void)
{
    CU_ASSERT_EQUAL(el_expf(0.0f), 1.0f);
    CU_ASSERT_EQUAL(el_expf(-0.0f), 1.0f);
    CU_ASSERT_EQUAL(el_expf(0x1p-149f), 1.0f);
    CU_ASSERT_EQUAL(f32_bits(el_expf(nextafterf(-87.0f, -INFINITY))), 0);
    CU_ASSERT(el_expf(-87.0f) > 0x1p-126f);
    CU_ASSERT_EQUAL(f32_bits(el_expf(-INFINITY)), 0);
    CU_ASSERT(isfinite(el_expf(88.0f)));
    CU_ASSERT_EQUAL(el_expf(nextafterf(88.0f, INFINITY)), INFINITY);
    CU_ASSERT_EQUAL(el_expf(INFINITY), INFINITY);
    CU_ASSERT(isnan(el_expf(NAN)));
}

/* exp never decreases as x grows, so masses keep the order of logits. */
static void exp_is_monotonic(void)
{
    unsigned n_falls = 0;
    float before = 0.0f;
    for (uint32_t u = 0xC2AE0000u; u > 0x80000000u; u -= stride()) {
        const float y = el_expf(f32_from_bits(u));
        n_falls += y < before;
        before = y;
    }
    CU_ASSERT_EQUAL(n_falls, 0);
}

static void check_angle(float x, double *worst)
{
    float s, c;
    el_sincosf(x, &s, &c);
    const double es = ulps(s, sinl((long double)x)), ec = ulps(c, cosl((long double)x));
    *worst = es > *worst ? es : *worst;
    *worst = ec > *worst ? ec : *worst;
}

static void sin_and_cos_round_right_over_rope_angles(void)
{
    double worst = 0;
    for (int i = 0; i < 64; i += 3) {
        const float inv_freq = (float)pow(500000.0, -i / 64.0);
        for (int32_t p = 0; p <= 1 << 20; p += 1 + p / 512)
            check_angle((float)p * inv_freq, &worst);
    }
    struct rng r = {1};
    for (uint64_t i = 0; i < util_cases(300000); i++) check_angle(rng_float(&r, 0x1p24f), &worst);
    for (uint64_t i = 0; i < util_cases(100000); i++) check_angle(rng_float(&r, 1e-3f), &worst);
    check_angle(0x1.921fb6p+0f, &worst); /* the float nearest to pi / 2 */
    check_angle(0x1.921fb6p+1f, &worst);
    printf("sin, cos: at most %.5f ulp ", worst);
    CU_ASSERT(worst < 0.5001);
    float s, c;
    el_sincosf(0.0f, &s, &c);
    CU_ASSERT(s == 0.0f && c == 1.0f);
}

static void log_is_within_two_ulp(void)
{
    struct rng r = {2};
    double worst = 0;
    for (uint64_t i = 0; i < util_cases(2000000); i++) {
        uint64_t u = rng_next(&r) >> 1;
        if (i % 2) u = 0x3FE0000000000000u + (u & 0x1FFFFFFFFFFFFFu); /* around 1 */
        double x;
        memcpy(&x, &u, sizeof x);
        if (!isfinite(x) || x == 0) continue;
        const long double want = logl((long double)x);
        int e;
        frexpl(want, &e);
        const double err = (double)fabsl(((long double)el_log(x) - want) / ldexpl(1.0L, e - 53));
        worst = err > worst ? err : worst;
    }
    printf("log: at most %.3f ulp ", worst);
    CU_ASSERT(worst < 2.0);
    CU_ASSERT_EQUAL(el_log(1.0), 0.0);
    CU_ASSERT_EQUAL(el_log(0.0), -INFINITY);
    CU_ASSERT_EQUAL(el_log(INFINITY), INFINITY);
    CU_ASSERT(isnan(el_log(-1.0)) && isnan(el_log(NAN)));
}

void suite_elementary(CU_pSuite suite);
void suite_elementary(CU_pSuite suite)
{
    CU_add_test(suite, "exp is within one ulp", exp_is_within_one_ulp_over_all_floats);
    CU_add_test(suite, "exp has exact ends", exp_has_exact_ends);
    CU_add_test(suite, "exp is monotonic", exp_is_monotonic);
    CU_add_test(suite, "sin and cos round right over rope angles",
                sin_and_cos_round_right_over_rope_angles);
    CU_add_test(suite, "log is within two ulp", log_is_within_two_ulp);
}
