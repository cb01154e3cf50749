/* fp8 weights expressed anew as int8 (kernels/fp8_int8.h): codes and scales are those of the
 * formula, group by group, for each format. */
#include "util_quant.h"

#include "kernels/fp8_int8.h"
#include "kernels/quant_body.h"

#include <CUnit/CUnit.h>
#include <math.h>

enum { OUTS = 37, INS = 331, EVERY = 9 /* one scale in so many is unusual */ };

/* The largest magnitude of inputs [first, end) of output n; NAN if one of them is NaN. */
static float largest_of(const struct packed *w, size_t n, size_t first, size_t end)
{
    float most = 0.0f;
    for (size_t k = first; k < end; k++) {
        const float v = f32_from_e4m3(kern_quant_code(w, n, k));
        most = isnan(v) || isnan(most) ? NAN : fmaxf(most, fabsf(v));
    }
    return most;
}

/* Returns how many codes and scales of group g of output n are wrong in `to`, which was made from
 * the fp8 weight `from`. */
static size_t wrong_group(const struct packed *from, const struct packed *to, size_t n, size_t g)
{
    const size_t group = quant_kernel_group(from->quant), first = g * group;
    const size_t end = first + group < INS ? first + group : INS;
    const float m = largest_of(from, n, first, end);
    const bool is_usual = m > 0.0f;
    float scale = is_usual ? kern_quant_scale(from, n, g) * (m / 127.0f) : m; /* 0 or NaN */
    uint16_t half;
    if (from->quant.scale_dtype == DTYPE_F16) {
        dtype_from_f32(DTYPE_F16, &scale, 1, &half);
        dtype_to_f32(DTYPE_F16, &half, 1, &scale);
    }
    const float found = kern_quant_scale(to, n, g);
    size_t n_wrong = isnan(scale) ? !isnan(found) : f32_bits(found) != f32_bits(scale);
    for (size_t k = first; k < end; k++) {
        const float v = f32_from_e4m3(kern_quant_code(from, n, k));
        const long want = is_usual ? lrintf(v * (127.0f / m)) : 0;
        n_wrong += (long)kern_quant_code(to, n, k) - QUANT_INT8_BIAS != want;
    }
    return n_wrong;
}

static void groups_are_those_of_the_formula(void)
{
    static const char *const names[] = {"fp8", "fp8-g32", "fp8-g64", "fp8-g128"};
    const struct kern_table ref = table_ref();
    struct rng r = {23};
    for (size_t i = 0; i < 2 * sizeof names / sizeof *names; i++) {
        struct quant_format f;
        CU_ASSERT_FATAL(quant_format_parse(names[i / 2], &f));
        f.scale_dtype = i % 2 == 0 ? DTYPE_F16 : DTYPE_F32;
        struct rng again = r;
        struct quant_weight from = quant_weight_make(&r, f, OUTS, INS, 0, i < 4 ? 0 : EVERY);
        struct quant_weight to = quant_weight_make(&again, f, OUTS, INS, 0, i < 4 ? 0 : EVERY);
        CU_ASSERT(fp8_int8_fits(&to.w));
        op_fp8_to_int8(&ref, &to.w);
        CU_ASSERT_EQUAL(to.w.quant.kind, QUANT_INT8);
        CU_ASSERT_EQUAL(to.w.quant.group, quant_kernel_group(f));
        size_t n_wrong = 0;
        for (size_t n = 0; n < OUTS; n++)
            for (size_t g = 0; g < kern_quant_groups(f, INS); g++)
                n_wrong += wrong_group(&from.w, &to.w, n, g);
        CU_ASSERT_EQUAL(n_wrong, 0);
        quant_weight_free(&from);
        quant_weight_free(&to);
    }
}

static void only_whole_groups_fit(void)
{
    struct packed w = {.leaf = 256, .quant = {QUANT_FP8, false, DTYPE_F32, 128}};
    CU_ASSERT(fp8_int8_fits(&w));
    w.leaf = 192;
    CU_ASSERT(!fp8_int8_fits(&w));
    w.quant.group = 64;
    CU_ASSERT(fp8_int8_fits(&w));
    w.quant.kind = QUANT_INT8;
    CU_ASSERT(!fp8_int8_fits(&w));
}

void suite_fp8_int8(CU_pSuite suite);
void suite_fp8_int8(CU_pSuite suite)
{
    CU_add_test(suite, "groups are those of the formula", groups_are_those_of_the_formula);
    CU_add_test(suite, "only whole groups fit", only_whole_groups_fit);
}
