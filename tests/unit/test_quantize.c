/* Quantizing in every format: exact inverses, nearest values, and the same bytes for any number of
 * threads. */
#include "quant/quantize.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"int8",      "int8-g32",      "int8-asym-g64", "int4-g32",
                                    "int4-g128", "int4-asym-g32", "int4-asym-g64", "fp8",
                                    "fp8-g128",  "mxfp4"};
enum { N_NAMES = sizeof names / sizeof names[0], ROWS = 13, INPUTS = 300 };

static float next_value(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    const float u = (float)(*state >> 8) * 0x1p-24f - 0.5f;
    return u * u * u * 0.4f;
}

static void fill(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) x[i] = next_value(&seed);
}

static bool is_code(struct quant_format f, int code)
{
    if (f.kind == QUANT_INT8) return f.has_zeros || (uint8_t)code != 0x80;
    if (f.kind == QUANT_FP8) return (code & 0x7F) != 0x7F;
    return code < 16;
}

/* In every format, the value of each code is quantized to a code of the same value. */
static void codes_are_inverse(void)
{
    for (size_t i = 0; i < N_NAMES; i++) {
        struct quant_format f;
        CU_ASSERT_TRUE_FATAL(quant_format_parse(names[i], &f));
        const struct quant_param p = quant_param_of(f, 0.03125f, 5);
        for (int code = 0; code < 256; code++) {
            if (!is_code(f, code)) continue;
            const float value = quant_decode(f, p, (uint8_t)code);
            CU_ASSERT_EQUAL(quant_decode(f, p, quant_encode(f, p, value)), value);
        }
    }
}

/* No other code is nearer to the value than the one chosen. */
static void codes_are_nearest(void)
{
    float x[INPUTS];
    fill(x, INPUTS, 3);
    for (size_t i = 0; i < N_NAMES; i++) {
        struct quant_format f;
        CU_ASSERT_TRUE_FATAL(quant_format_parse(names[i], &f));
        const struct quant_param p = quant_fit(f, x, INPUTS);
        for (size_t k = 0; k < INPUTS; k++) {
            const float chosen = quant_decode(f, p, quant_encode(f, p, x[k]));
            float best = INFINITY;
            for (int code = 0; code < 256; code++) {
                if (!is_code(f, code)) continue;
                best = fminf(best, fabsf(quant_decode(f, p, (uint8_t)code) - x[k]));
            }
            CU_ASSERT(fabsf(chosen - x[k]) <= best * 1.00001f);
        }
    }
}

/* Published values of E4M3 and E2M1, ties to even, and saturation. */
static void known_small_floats(void)
{
    static const struct {
        const char *format;
        float value;
        uint8_t code;
    } cases[] = {
        {"fp8", 448.0f, 0x7E},  {"fp8", 1000.0f, 0x7E}, {"fp8", -1.0f, 0xB8},
        {"fp8", 0x1p-9f, 0x01}, {"fp8", 0x1p-6f, 0x08}, {"fp8", 0x1p-10f, 0x00},
        {"fp8", 1.0625f, 0x38}, {"fp8", 1.1875f, 0x3A}, {"fp8", 0x1.FFp-7f, 0x08},
        {"mxfp4", 0.25f, 0},    {"mxfp4", 0.75f, 2},    {"mxfp4", 1.25f, 2},
        {"mxfp4", 2.5f, 4},     {"mxfp4", 3.5f, 6},     {"mxfp4", 5.0f, 6},
        {"mxfp4", 5.1f, 7},     {"mxfp4", 100.0f, 7},   {"mxfp4", -0.5f, 9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct quant_format f;
        CU_ASSERT_TRUE_FATAL(quant_format_parse(cases[i].format, &f));
        const struct quant_param p = quant_param_of(f, 1.0f, 0);
        CU_ASSERT_EQUAL(quant_encode(f, p, cases[i].value), cases[i].code);
    }
}

/* Quantizes rows, and dequantizes them with the stored scales and zero points: the squared error
 * stays below a small part of the squared values, according to the kind of format. */
static void rows_come_back(void)
{
    float *x = malloc(ROWS * INPUTS * sizeof *x), *y = malloc(ROWS * INPUTS * sizeof *y);
    fill(x, ROWS * INPUTS, 11);
    memset(x + 2 * INPUTS, 0, INPUTS * sizeof *x); /* a row of zeros stays a row of zeros */
    for (size_t i = 0; i < N_NAMES; i++) {
        struct quant_format f;
        struct quant_block b;
        CU_ASSERT_TRUE_FATAL(quant_format_parse(names[i], &f));
        struct status st = quant_block_create(f, ROWS, INPUTS, &b);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        CU_ASSERT_EQUAL(quant_rtn_rows(NULL, f, x, ROWS, INPUTS, &b), 0);
        quant_dequantize_rows(NULL, f, &b, ROWS, INPUTS, y);
        double error = 0, size = 0;
        for (size_t k = 0; k < ROWS * INPUTS; k++) {
            error += (x[k] - y[k]) * (x[k] - y[k]);
            size += x[k] * x[k];
        }
        const double bound = f.kind == QUANT_INT8 ? 1e-4 : f.kind == QUANT_FP8 ? 1.2e-3 : 2.5e-2;
        CU_ASSERT(error > 0 && error / size < bound);
        for (size_t k = 2 * INPUTS; k < 3 * INPUTS; k++) CU_ASSERT_EQUAL(y[k], 0.0f);
        quant_block_destroy(&b);
    }
    free(y);
    free(x);
}

static void threads_do_not_show(void)
{
    float *x = malloc(ROWS * INPUTS * sizeof *x);
    struct quant_format f;
    struct quant_block one, many;
    struct team *team;
    fill(x, ROWS * INPUTS, 17);
    CU_ASSERT_TRUE_FATAL(quant_format_parse("int4-asym-g32", &f));
    struct status st = quant_block_create(f, ROWS, INPUTS, &one);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = quant_block_create(f, ROWS, INPUTS, &many);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = team_create(3, &team);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    quant_rtn_rows(NULL, f, x, ROWS, INPUTS, &one);
    quant_rtn_rows(team, f, x, ROWS, INPUTS, &many);
    CU_ASSERT_EQUAL(memcmp(one.codes, many.codes, ROWS * INPUTS / 2), 0);
    CU_ASSERT_EQUAL(memcmp(one.zeros, many.zeros, ROWS * quant_groups(f, INPUTS)), 0);
    team_destroy(&team);
    quant_block_destroy(&many);
    quant_block_destroy(&one);
    free(x);
}

/* Fills x with values that are hard to round: ties, zeros of both signs, subnormals, groups of
 * zeros, a large value among small ones, and some that are not finite. */
static void fill_hard(float *x, size_t n)
{
    static const float hard[] = {0.0f,   -0.0f,   0.5f,     -0.5f,     1.5f,   2.5f,
                                 1e-40f, -1e-40f, 127.5f,   1e30f,     -1e30f, NAN,
                                 6.0f,   -8.5f,   INFINITY, -INFINITY, 0.25f,  1.75f};
    fill(x, n, 31);
    for (size_t i = 0; i < n; i += 3) {
        const size_t at = i / 3 * 7 % (sizeof hard / sizeof hard[0]);
        if (i / 256 % 2 == 0 || at < 6) x[i] = hard[at];
    }
    for (size_t i = 0; i < 300; i++) x[i] = 0;
}

/* Quantizing and dequantizing a whole row gives the same as each value alone. */
static void rows_are_their_values(void)
{
    static const char *const forms[] = {"int8",     "int8-g32",       "int8-asym", "int8-asym-g64",
                                        "int4-g32", "int4-asym-g128", "fp8",       "fp8-g64",
                                        "mxfp4",    "int4-asym-g32",  "int4-g128"};
    enum { WIDE = 803, HIGH = 5 };
    float *x = malloc(WIDE * HIGH * sizeof *x), *y = malloc(WIDE * HIGH * sizeof *y);
    fill_hard(x, WIDE * HIGH);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        struct quant_format f;
        struct quant_block b;
        unsigned n_wrong = 0;
        CU_ASSERT_TRUE_FATAL(quant_format_parse(forms[i], &f));
        CU_ASSERT_EQUAL_FATAL(quant_block_create(f, HIGH, WIDE, &b).code, STATUS_OK);
        memset(b.codes, 0xFF, HIGH * quant_code_bytes(f.kind, WIDE)); /* all old bytes must be
                                                                         overwritten */
        CU_ASSERT_TRUE(quant_rtn_rows(NULL, f, x, HIGH, WIDE, &b) > 0);
        quant_dequantize_rows(NULL, f, &b, HIGH, WIDE, y);
        const size_t group = f.group == 0 ? WIDE : f.group;
        for (size_t row = 0; row < HIGH; row++) {
            for (size_t k = 0; k < WIDE; k++) {
                const size_t g = k / group, n = WIDE - g * group;
                const float *from = x + row * WIDE + g * group;
                const struct quant_param p = quant_fit(f, from, n < group ? n : group);
                const uint8_t code = quant_get_code(f, &b, WIDE, row, k);
                const float value = quant_decode(f, p, code);
                const struct quant_param stored = quant_get_param(f, &b, WIDE, row, g);
                n_wrong += code != quant_encode(f, p, x[row * WIDE + k]);
                n_wrong += memcmp(&value, &y[row * WIDE + k], sizeof value) != 0;
                n_wrong +=
                    memcmp(&p.scale, &stored.scale, sizeof p.scale) != 0 || p.zero != stored.zero;
            }
            const uint8_t *codes = (uint8_t *)b.codes + (row + 1) * quant_code_bytes(f.kind, WIDE);
            if (quant_is_nibbles(f.kind)) CU_ASSERT_EQUAL(codes[-1] >> 4, 0);
        }
        CU_ASSERT_EQUAL(n_wrong, 0);
        if (n_wrong > 0) fprintf(stderr, "%s: %u\n", forms[i], n_wrong);
        quant_block_destroy(&b);
    }
    free(y);
    free(x);
}

/* The loss equals that of a plain loop, with one thread and with three, and several calls add
 * up. */
static void loss_is_measured(void)
{
    enum { N = ROWS * INPUTS };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    struct quant_format f;
    struct quant_block b;
    struct team *team;
    struct quant_loss one = {0}, many = {0};
    const struct quant_values from = {.rows = x, .n_rows = ROWS, .n_in = INPUTS};
    double error = 0, energy = 0;
    fill(x, N, 23);
    CU_ASSERT_TRUE_FATAL(quant_format_parse("int4-g32", &f));
    CU_ASSERT_EQUAL_FATAL(quant_block_create(f, ROWS, INPUTS, &b).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(team_create(3, &team).code, STATUS_OK);
    quant_rtn_rows(NULL, f, x, ROWS, INPUTS, &b);
    quant_dequantize_rows(NULL, f, &b, ROWS, INPUTS, y);
    for (size_t i = 0; i < N; i++) {
        error += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
        energy += (double)x[i] * (double)x[i];
    }
    CU_ASSERT_EQUAL(quant_loss_rms(&one), 0);
    CU_ASSERT_EQUAL(quant_loss_add(NULL, f, &from, &b, &one).code, STATUS_OK);
    CU_ASSERT_EQUAL(quant_loss_add(team, f, &from, &b, &many).code, STATUS_OK);
    CU_ASSERT_TRUE(error > 0 && fabs(one.error - error) < 1e-12 * error);
    CU_ASSERT_TRUE(fabs(one.energy - energy) < 1e-12 * energy);
    CU_ASSERT_TRUE(one.error == many.error && one.energy == many.energy && one.n_rows == ROWS);
    CU_ASSERT_EQUAL(quant_loss_add(NULL, f, &from, &b, &one).code, STATUS_OK);
    CU_ASSERT_EQUAL(one.error, 2 * many.error);
    CU_ASSERT_TRUE(fabs(quant_loss_rms(&many) - sqrt(error / energy)) < 1e-12);
    team_destroy(&team);
    quant_block_destroy(&b);
    free(y);
    free(x);
}

/* Values that are not finite are counted. Very small and very large values do not break the scale.
 */
static void bad_values(void)
{
    float x[64] = {0};
    struct quant_format f;
    struct quant_block b;
    CU_ASSERT_TRUE_FATAL(quant_format_parse("int4-g32", &f));
    struct status st = quant_block_create(f, 1, 64, &b);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    x[1] = NAN;
    x[2] = -INFINITY;
    x[3] = 1.0f;
    x[40] = 1e-30f;
    CU_ASSERT_EQUAL(quant_rtn_rows(NULL, f, x, 1, 64, &b), 2);
    CU_ASSERT_EQUAL(
        quant_decode(f, quant_get_param(f, &b, 64, 0, 0), quant_get_code(f, &b, 64, 0, 3)), 1.0f);
    CU_ASSERT_EQUAL(quant_get_code(f, &b, 64, 0, 40), QUANT_INT4_ZERO);
    CU_ASSERT_TRUE(isfinite(quant_param_of(f, 1e30f, 0).scale));
    quant_block_destroy(&b);
}

void suite_quantize(CU_pSuite suite);
void suite_quantize(CU_pSuite suite)
{
    CU_add_test(suite, "codes are inverse", codes_are_inverse);
    CU_add_test(suite, "codes are nearest", codes_are_nearest);
    CU_add_test(suite, "known small floats", known_small_floats);
    CU_add_test(suite, "rows come back", rows_come_back);
    CU_add_test(suite, "threads do not show", threads_do_not_show);
    CU_add_test(suite, "rows are their values", rows_are_their_values);
    CU_add_test(suite, "loss is measured", loss_is_measured);
    CU_add_test(suite, "bad values", bad_values);
}
