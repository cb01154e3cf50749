/* Tests linears with quantized weights: the reference against the stored form in double, and all
 * other instruction sets against the reference, bit for bit, over odd shapes, unusual scales,
 * slices and threads. */
#include "util_cases.h"
#include "util_quant.h"

#include "kernels/cpu.h"
#include "kernels/fp8_plain.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>

/* One linear with its arrays, and the outputs of two runs. */
struct problem {
    struct quant_weight q;
    struct quant_rows xq;
    struct linear_group group;
    float *x, *y[2];
    int64_t *sums[2];
    size_t n_rows, x_stride, y_stride;
    bool weight_only;
};

static struct problem problem_make(struct rng *r, struct quant_format f, size_t n_rows,
                                   size_t n_out, size_t n_in, size_t leaf, size_t every)
{
    const struct kern_table ref = table_ref();
    struct problem p = {.n_rows = n_rows, .x_stride = rng_stride(r, n_in), .y_stride = n_out + 5};
    p.q = quant_weight_make(r, f, n_out, n_in, leaf, every);
    p.xq = quant_rows_make(n_rows, n_in, f);
    p.x = test_floats(n_rows * p.x_stride);
    rng_floats(r, p.x, n_rows * p.x_stride, 2.0f);
    if (every > 0) rng_specials(r, p.x, n_rows * p.x_stride, every * 20);
    op_quantize_rows(&ref, p.x, p.x_stride, n_rows, n_in, &p.xq);
    for (int i = 0; i < 2; i++) {
        p.y[i] = test_floats(n_rows * p.y_stride);
        p.sums[i] = test_memory(n_rows * (n_out + 1) * sizeof(int64_t));
    }
    return p;
}

static void problem_free(struct problem *p)
{
    quant_weight_free(&p->q);
    quant_rows_free(&p->xq);
    free(p->x);
    for (int i = 0; i < 2; i++) {
        free(p->y[i]);
        free(p->sums[i]);
    }
}

static struct linear_args problem_args(struct problem *p, int which)
{
    p->group = (struct linear_group){&p->q.w, 0, p->n_rows};
    return (struct linear_args){.groups = &p->group,
                                .n_groups = 1,
                                .x = p->x,
                                .x_stride = p->x_stride,
                                .xq = p->weight_only ? NULL : &p->xq,
                                .y = p->y[which],
                                .y_stride = p->y_stride,
                                .sums = p->sums[which]};
}

/* Calls the table's entries on rows and panels divided at random places. */
static void run_args(struct rng *r, const struct kern_table *k, const struct problem *p,
                     const struct linear_args *args)
{
    const struct linear_args a = *args;
    const struct packed *w = &p->q.w;
    const size_t n_panels = (w->n_out + 15) / 16;
    for (size_t r0 = 0, r1 = 0; r0 < p->n_rows; r0 = r1) {
        r1 = r0 + 1 + rng_below(r, p->n_rows - r0);
        if (rng_below(r, 2)) r1 = p->n_rows;
        for (size_t p0 = 0, p1 = 0; p0 < n_panels; p0 = p1) {
            p1 = p0 + 1 + rng_below(r, n_panels - p0);
            const struct linear_slice s = {0, p0, p1, r0, r1};
            if (w->leaf > 0)
                k->linear_quant_leaf[w->quant.kind](&a, &s);
            else
                k->linear_quant[w->quant.kind](&a, &s);
        }
    }
}

static void run_slices(struct rng *r, const struct kern_table *k, struct problem *p, int which)
{
    const struct linear_args a = problem_args(p, which);
    const struct packed *w = &p->q.w;
    for (size_t row = 0; row < p->n_rows; row++)
        p->sums[which][row * (w->n_out + 1) + w->n_out] = 0;
    run_args(r, k, p, &a);
}

/* Without linear_args.sums, y gets the sums (p->sums[0]) as floats, and the counts of sums that do
 * not fit the grid are added to the rows' counters. */
static void check_rounded(struct rng *r, const struct kern_table *k, struct problem *p)
{
    const struct kern_table ref = table_ref();
    const struct packed *w = &p->q.w;
    struct linear_args a = problem_args(p, 1);
    size_t n_wrong = 0;
    float *want = test_floats(w->n_out);
    a.sums = NULL;
    a.bad = test_memory(p->n_rows * sizeof *a.bad);
    for (size_t row = 0; row < p->n_rows; row++) a.bad[row] = 3;
    run_args(r, k, p, &a);
    for (size_t row = 0; row < p->n_rows; row++) {
        const int64_t *sums = p->sums[0] + row * ((size_t)w->n_out + 1);
        ref.grid_to_f32(sums, w->n_out, w->grid_bits, want);
        n_wrong += memcmp(want, a.y + row * a.y_stride, w->n_out * sizeof *want) != 0;
        n_wrong += a.bad[row] != 3 + sums[w->n_out];
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    free(want);
    free(a.bad);
}

static size_t differences(const struct problem *p)
{
    const struct packed *w = &p->q.w;
    if (w->leaf == 0) return count_different(p->y[0], p->y[1], p->n_rows * p->y_stride);
    size_t n = 0;
    for (size_t i = 0; i < p->n_rows * ((size_t)w->n_out + 1); i++)
        n += p->sums[0][i] != p->sums[1][i];
    return n;
}

static void check_problem(struct rng *r, struct problem *p)
{
    const struct kern_table ref = table_ref();
    struct kern_table fast[FAST_SETS];
    const size_t n_fast = tables_fast(fast);
    run_slices(r, &ref, p, 0);
    if (p->q.w.leaf > 0) check_rounded(r, &ref, p);
    for (size_t i = 0; i < n_fast; i++) {
        if (p->q.w.leaf > 0) check_rounded(r, &fast[i], p);
        run_slices(r, &fast[i], p, 1);
        const size_t n = differences(p);
        CU_ASSERT_EQUAL(n, 0);
        if (n == 0) continue;
        char name[32];
        quant_format_name(p->q.w.quant, name, sizeof name);
        printf("%zu of [%zu, %u] differ in %s: %s%s, K %u, leaf %u\n", n, p->n_rows, p->q.w.n_out,
               fast[i].name, name, p->weight_only ? ", weight-only" : "", p->q.w.n_in, p->q.w.leaf);
    }
}

/* Replaces NaN codes, and tells kernels that none is left. */
static void make_plain(struct quant_weight *q)
{
    const size_t n = packed_quant_bytes(q->w.quant, q->w.n_out, q->w.n_in).data;
    uint8_t *codes = q->data;
    for (size_t i = 0; i < n; i++)
        if ((codes[i] & 0x7F) == 0x7F) codes[i] ^= 1;
    q->w.fp8_plain = true;
}

static void compare_sets(size_t every, uint64_t seed, size_t n)
{
    static const size_t outs[] = {1, 15, 16, 17, 32, 33, 48, 63, 64, 65, 100, 130};
    static const size_t ins[] = {0, 1, 7, 32, 64, 127, 128, 129, 255, 256, 257, 515, 600, 1100};
    static const size_t rows[] = {0,  1,  1,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                  12, 13, 14, 15, 16, 17, 18, 24, 31, 32, 33, 47, 65, 258};
    static const size_t leaves[] = {0, 0, 1, 2, 3, 8};
    struct rng r = {seed};
    for (size_t i = 0; i < n * QUANT_TEST_FORMATS; i++) {
        const struct quant_format f = quant_test_format(i % QUANT_TEST_FORMATS);
        struct problem p = problem_make(&r, f, rows[rng_below(&r, 28)], outs[rng_below(&r, 12)],
                                        ins[rng_below(&r, 14)],
                                        leaves[rng_below(&r, 6)] * quant_kernel_group(f), every);
        p.weight_only = f.kind == QUANT_FP8 || i / QUANT_TEST_FORMATS % 3 == 2;
        if (f.kind == QUANT_FP8 && i / QUANT_TEST_FORMATS % 2 == 1) make_plain(&p.q);
        check_problem(&r, &p);
        problem_free(&p);
    }
}

static void sets_agree(void)
{
    compare_sets(0, 1, 30);
}

static void sets_agree_on_special_values(void)
{
    compare_sets(60, 2, util_cases(30));
    compare_sets(4, 3, util_cases(30));
}

/* So many inputs that AMX divides the rows. Of 97 rows, less than a tile would be left for a third
 * part. */
static void sets_agree_on_many_long_rows(void)
{
    struct rng r = {12};
    for (size_t i = 0; i < 2 * QUANT_TEST_FORMATS; i++) {
        const struct quant_format f = quant_test_format(i / 2);
        if (f.kind != QUANT_INT8 && f.kind != QUANT_INT4) continue;
        struct problem p =
            problem_make(&r, f, 97, 17, 16400, i % 2 ? 4 * quant_kernel_group(f) : 0, 5000);
        check_problem(&r, &p);
        problem_free(&p);
    }
}

/* The largest possible sums: every product of a group is extreme, so an overflow of 16 bits or a
 * saturating pair would show. */
static void sets_agree_on_extreme_codes(void)
{
    static const size_t rows[] = {1, 4, 19};
    static const uint8_t bytes[] = {0x00, 0x7F, 0x81, 0xFF, 0x77};
    struct rng r = {9};
    for (size_t i = 0; i < 2 * QUANT_TEST_FORMATS; i++) {
        const struct quant_format f = quant_test_format(i / 2);
        if (f.kind == QUANT_FP8) continue;
        for (size_t b = 0; b < sizeof bytes; b++) {
            struct problem p = problem_make(&r, f, rows[b % 3], 33, 300, 0, 0);
            memset(p.q.data, bytes[b], packed_quant_bytes(f, 33, 300).data);
            for (size_t k = 0; k < p.n_rows * p.x_stride; k++) p.x[k] = i % 2 ? 1.0f : -1.0f;
            const struct kern_table ref = table_ref();
            op_quantize_rows(&ref, p.x, p.x_stride, p.n_rows, 300, &p.xq);
            check_problem(&r, &p);
            problem_free(&p);
        }
    }
}

/* Compares |y - dot| with a bound made from the sizes of the terms. */
static void check_dot(const struct problem *p, size_t row, size_t n)
{
    const struct packed *w = &p->q.w;
    double dot = 0, size = 0;
    for (size_t k = 0; k < w->n_in; k++) {
        const size_t g = row * p->xq.n_groups + k / p->xq.group;
        const double x = p->weight_only ? p->x[row * p->x_stride + k]
                                        : p->xq.codes[row * p->xq.n_groups * p->xq.group + k] *
                                              (double)p->xq.scales[g];
        const double term = x * quant_weight_at(&p->q, n, k);
        dot += term;
        size += fabs(term);
    }
    const double y = w->leaf > 0 ? (double)p->sums[0][row * ((size_t)w->n_out + 1) + n] * 0x1p-32
                                 : p->y[0][row * p->y_stride + n];
    CU_ASSERT_DOUBLE_EQUAL(y, dot, size * (double)(w->n_in + 8) * 0x1p-24 + 1e-8);
}

static void reference_is_a_dot_product(void)
{
    const struct kern_table ref = table_ref();
    struct rng r = {4};
    for (size_t i = 0; i < 4 * QUANT_TEST_FORMATS; i++) {
        const struct quant_format f = quant_test_format(i % QUANT_TEST_FORMATS);
        const size_t leaf = i / QUANT_TEST_FORMATS % 2 ? quant_kernel_group(f) : 0;
        struct problem p = problem_make(&r, f, 3, 37, 300, leaf, 0);
        p.weight_only = f.kind == QUANT_FP8 || i >= 2 * QUANT_TEST_FORMATS;
        run_slices(&r, &ref, &p, 0);
        for (size_t row = 0; row < 3; row++)
            for (size_t n = 0; n < 37; n++) check_dot(&p, row, n);
        problem_free(&p);
    }
}

/* Makes fp8 weights [33, 259] whose first panels have each of the 256 values in each place of a
 * quad. All outputs have the same scale, except that output 20 has 2^10 times as much if `scale` is
 * at most 1: kernels choose their way by a tile's largest scale. NaNs are replaced by 448, because
 * they would show in all rows; with_nan keeps those of output 7. Kernels treat quads with a
 * subnormal value apart, so zeros replace the subnormal values of output 32 and, with_nan, of the
 * first panel.
 */
static struct quant_weight every_fp8_value(struct quant_format f, float scale, bool with_nan)
{
    struct rng r = {13};
    struct quant_weight q = quant_weight_make(&r, f, 33, 259, 0, 0);
    const size_t n_scales = quant_groups(f, 259);
    for (size_t n = 0; n < 33; n++) {
        for (size_t k = 0; k < 259; k++) {
            uint8_t code = (uint8_t)(k + n * 5);
            if ((code & 0x7F) == 0x7F && !(with_nan && n == 7)) code ^= 1;
            if ((code & 0x7F) < 8 && (n == 32 || (n < 16 && with_nan))) code &= 0x80;
            q.codes[n * 259 + k] = code;
        }
    }
    for (size_t i = 0; i < 33 * n_scales; i++) {
        const float here = i / n_scales == 20 && scale <= 1.0f ? scale * 0x1p10f : scale;
        dtype_from_f32(f.scale_dtype, &here, 1, q.scales + i * dtype_bytes(f.scale_dtype));
    }
    const struct kern_table ref = table_ref();
    const size_t row_bytes = n_scales * dtype_bytes(f.scale_dtype);
    op_pack_quant(&ref, &q.w, PACKED_CODES, &(struct matrix_rows){q.codes, 259, 0, 33});
    op_pack_quant(&ref, &q.w, PACKED_SCALES, &(struct matrix_rows){q.scales, row_bytes, 0, 33});
    return q;
}

/* Returns the number of weights that a linear gets wrong: row i is 1 at input i and 0 elsewhere, so
 * its outputs are the weights of input i (-0 as +0). If a weight of output 7 is a NaN, this output
 * must be a NaN in all rows. */
static size_t wrong_weights(const struct kern_table *k, const struct quant_weight *q)
{
    float *x = test_floats(259 * 259), *y = test_floats(259 * 33);
    struct linear_group group = {&q->w, 0, 259};
    const struct linear_args a = {
        .groups = &group, .n_groups = 1, .x = x, .x_stride = 259, .y = y, .y_stride = 33};
    size_t n_wrong = 0;
    memset(x, 0, 259 * 259 * sizeof *x);
    for (size_t i = 0; i < 259; i++) x[i * 259 + i] = 1.0f;
    for (size_t row = 0, n = 1; row < 259; row += n, n = n % 14 + 1) {
        if (n > 259 - row) n = 259 - row;
        const struct linear_slice s = {0, 0, 3, row, row + n};
        k->linear_quant[QUANT_FP8](&a, &s);
    }
    for (size_t i = 0; i < 259; i++) {
        for (size_t n = 0; n < 33; n++) {
            const float want = (float)quant_weight_at(q, n, i) + 0.0f, found = y[i * 33 + n];
            const bool has_nan = n == 7 && isnan(y[7]);
            n_wrong += has_nan ? !isnan(found) : f32_bits(found) != f32_bits(want);
        }
    }
    free(x);
    free(y);
    return n_wrong;
}

/* Subnormal values, both zeros, 448 and NaN; scales of both types that make normal, subnormal and
 * large weights, and scales into which kernels cannot fold a power of two. */
static void every_fp8_value_is_decoded(void)
{
    static const char *const names[] = {"fp8", "fp8-g32", "fp8-g64", "fp8-g128"};
    static const float scales[] = {1.0f,      0.0123f,  0x1.fffffep-1f, 0x1p-14f,
                                   0x1p-130f, -0.37f,   0x1.8p-149f,    0x1.fffffep7f,
                                   0x1p8f,    60000.0f, 0x1p118f,       0.0f};
    struct kern_table tables[1 + FAST_SETS] = {table_ref()};
    const size_t n_tables = 1 + tables_fast(tables + 1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
            struct quant_format f;
            CU_ASSERT_FATAL(quant_format_parse(names[i], &f));
            f.scale_dtype = (i + s) % 2 && scales[s] <= 65504.0f ? DTYPE_F16 : DTYPE_F32;
            struct quant_weight q = every_fp8_value(f, scales[s], s % 3 == 1);
            for (size_t t = 0; t < n_tables; t++) CU_ASSERT_EQUAL(wrong_weights(&tables[t], &q), 0);
            q.w.fp8_plain = s % 3 != 1;
            for (size_t t = 0; t < n_tables; t++) CU_ASSERT_EQUAL(wrong_weights(&tables[t], &q), 0);
            quant_weight_free(&q);
        }
    }
}

static void check_nan(struct packed *w, bool has_nan)
{
    const struct kern_table ref = table_ref();
    const bool is_fp8 = w->quant.kind == QUANT_FP8;
    if (is_fp8) CU_ASSERT_EQUAL(op_fp8_has_nan(&ref, w), has_nan);
    op_fp8_plain(&ref, w);
    CU_ASSERT_EQUAL(w->fp8_plain, is_fp8 && !has_nan && cpu_subnormals_are_fast());
}

/* A NaN is found wherever it is. A weight without one is plain if the CPU allows it. */
static void nan_codes_are_found(void)
{
    for (size_t i = 0; i < QUANT_TEST_FORMATS; i++) {
        const struct quant_format f = quant_test_format(i);
        struct rng r = {i};
        struct quant_weight q = quant_weight_make(&r, f, 33, 259, 0, 0);
        uint8_t *codes = q.data;
        const size_t n_codes = packed_quant_bytes(f, 33, 259).data;
        check_nan(&q.w, false);
        for (size_t at = 0; at < n_codes; at += at + 97 < n_codes ? 97 : 1) {
            const uint8_t code = codes[at];
            codes[at] = at % 2 ? 0x7F : 0xFF;
            check_nan(&q.w, true);
            codes[at] = code;
        }
        quant_weight_free(&q);
    }
}

/* Quantized values are the nearest multiples of the scale, and each group has their sum. */
static void rows_are_quantized(void)
{
    const struct kern_table ref = table_ref();
    struct rng r = {5};
    float x[2 * 300];
    rng_floats(&r, x, 600, 3.0f);
    struct quant_format f = quant_test_format(1);
    struct quant_rows q = quant_rows_make(2, 300, f);
    op_quantize_rows(&ref, x, 300, 2, 300, &q);
    for (size_t row = 0; row < 2; row++) {
        for (size_t g = 0; g < q.n_groups; g++) {
            int32_t sum = 0;
            float max = 0;
            for (size_t k = g * 32; k < g * 32 + 32; k++) {
                const int8_t code = q.codes[row * q.n_groups * 32 + k];
                const float value = k < 300 ? x[row * 300 + k] : 0.0f;
                const float scale = q.scales[row * q.n_groups + g];
                sum += code;
                max = fabsf(value) > max ? fabsf(value) : max;
                CU_ASSERT_DOUBLE_EQUAL(code * (double)scale, value, 0.5001 * scale);
            }
            CU_ASSERT_EQUAL(sum, q.sums[row * q.n_groups + g]);
            CU_ASSERT_EQUAL(max / 127.0f, q.scales[row * q.n_groups + g]);
        }
    }
    quant_rows_free(&q);
}

static void strange_groups_are_zeros_or_errors(void)
{
    struct kern_table tables[1 + FAST_SETS] = {table_ref()};
    const size_t n_tables = 1 + tables_fast(tables + 1);
    /* the largest is 127, so the scale is 1 and a code is x rounded; halves round to even */
    float x[7 * 32] = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -126.5f};
    x[32] = 0x1p-121f;
    x[64] = 0x1p-120f;
    x[96 + 5] = NAN;
    x[96 + 6] = 3.0f;
    x[128 + 31] = -INFINITY;
    x[160] = 0x1.fffffep127f;
    for (size_t t = 0; t < n_tables; t++) {
        struct quant_rows q = quant_rows_make(1, 7 * 32, quant_test_format(1));
        tables[t].quantize_row(x, 7 * 32, &q, 0);
        static const int8_t want[7] = {127, 0, 2, 2, 0, -2, -126};
        CU_ASSERT_EQUAL(memcmp(q.codes, want, 7), 0);
        CU_ASSERT_EQUAL(q.sums[0], 127 + 2 + 2 - 2 - 126);
        CU_ASSERT_EQUAL(f32_bits(q.scales[1]), 0);
        CU_ASSERT_EQUAL(q.codes[32], 0);
        CU_ASSERT_EQUAL(q.codes[64], 127);
        CU_ASSERT(isnan(q.scales[3]));
        CU_ASSERT_EQUAL(q.codes[96 + 6], 0);
        CU_ASSERT_EQUAL(q.sums[3], 0);
        CU_ASSERT(isnan(q.scales[4]));
        CU_ASSERT_EQUAL(q.codes[160], 127);
        CU_ASSERT_EQUAL(f32_bits(q.scales[6]), 0);
        quant_rows_free(&q);
    }
}

static void quantized_rows_agree(void)
{
    const struct kern_table ref = table_ref();
    struct kern_table fast[FAST_SETS];
    const size_t n_fast = tables_fast(fast);
    struct rng r = {6};
    for (size_t i = 0; i < 300; i++) {
        const struct quant_format f = quant_test_format(1 + i % 3);
        const size_t n = rng_below(&r, 500), n_groups = (n + f.group - 1) / f.group;
        float *x = test_floats(n);
        rng_floats(&r, x, n, 5.0f);
        if (i % 2) rng_specials(&r, x, n, 40);
        struct quant_rows a = quant_rows_make(1, n, f), b = quant_rows_make(1, n, f);
        ref.quantize_row(x, n, &a, 0);
        for (size_t t = 0; t < n_fast; t++) {
            fast[t].quantize_row(x, n, &b, 0);
            CU_ASSERT_EQUAL(memcmp(a.codes, b.codes, n_groups * f.group), 0);
            CU_ASSERT_EQUAL(count_different(a.scales, b.scales, n_groups), 0);
            CU_ASSERT_EQUAL(memcmp(a.sums, b.sums, n_groups * sizeof(int32_t)), 0);
        }
        free(x);
        quant_rows_free(&a);
        quant_rows_free(&b);
    }
}

/* Groups (experts) with different numbers of rows, one without any, on 1 and 2 threads and with all
 * instruction sets. */
static void threads_and_groups_do_not_change_bits(void)
{
    enum { N_GROUPS = 5, N_ROWS = 150, N_OUT = 200, N_IN = 320 };
    static const size_t n_rows[N_GROUPS] = {1, 0, 108, 9, 32};
    struct kern_table tables[1 + FAST_SETS] = {table_ref()};
    const size_t n_tables = 1 + tables_fast(tables + 1);
    struct team *team = test_team(2);
    struct rng r = {7};
    for (size_t i = 0; i < 2 * QUANT_TEST_FORMATS; i++) {
        const struct quant_format f = quant_test_format(i / 2);
        const size_t leaf = i % 2 * 2 * quant_kernel_group(f);
        struct quant_weight w[N_GROUPS];
        struct linear_group groups[N_GROUPS];
        struct quant_rows xq = quant_rows_make(N_ROWS, N_IN, f);
        const size_t y_bytes = N_ROWS * N_OUT * sizeof(float);
        const size_t sums_bytes = N_ROWS * (N_OUT + 1) * sizeof(int64_t);
        float *x = test_floats(N_ROWS * N_IN), *want = NULL;
        int64_t *want_sums = NULL;
        rng_floats(&r, x, N_ROWS * N_IN, 1.0f);
        op_quantize_rows(&tables[0], x, N_IN, N_ROWS, N_IN, &xq);
        for (size_t g = 0, row = 0; g < N_GROUPS; row += n_rows[g++]) {
            w[g] = quant_weight_make(&r, f, N_OUT, N_IN, leaf, 0);
            groups[g] = (struct linear_group){&w[g].w, row, n_rows[g]};
        }
        for (size_t run = 0; run < 2 * n_tables; run++) {
            float *y = test_memory(y_bytes);
            int64_t *sums = test_memory(sums_bytes);
            const struct linear_args a = {.groups = groups,
                                          .n_groups = N_GROUPS,
                                          .x = x,
                                          .x_stride = N_IN,
                                          .xq = &xq,
                                          .y = y,
                                          .y_stride = N_OUT,
                                          .sums = sums};
            tables[run % n_tables].team = run < n_tables ? NULL : team;
            (leaf > 0 ? op_linear_leaf : op_linear)(&tables[run % n_tables], &a);
            if (run == 0) {
                want = y;
                want_sums = sums;
                continue;
            }
            CU_ASSERT_EQUAL(memcmp(y, want, y_bytes), 0);
            CU_ASSERT_EQUAL(memcmp(sums, want_sums, sums_bytes), 0);
            free(y);
            free(sums);
        }
        for (int g = 0; g < N_GROUPS; g++) quant_weight_free(&w[g]);
        quant_rows_free(&xq);
        free(x);
        free(want);
        free(want_sums);
    }
    team_destroy(&team);
}

/* Every packed element equals the stored one, and a row is read back as floats. */
static void elements_are_read_back(void)
{
    struct rng r = {8};
    for (size_t i = 0; i < QUANT_TEST_FORMATS; i++) {
        struct quant_weight q = quant_weight_make(&r, quant_test_format(i), 41, 133, 0, 0);
        float row[133];
        for (uint32_t n = 0; n < 41; n++) {
            op_embed_row(&q.w, n, row);
            for (size_t k = 0; k < 133; k++) {
                CU_ASSERT_EQUAL(row[k], (float)quant_weight_at(&q, n, k));
                CU_ASSERT_EQUAL(row[k], packed_quant_value(&q.w, n, k));
            }
        }
        quant_weight_free(&q);
    }
}

static void sizes_follow_the_contract(void)
{
    struct packed_quant_sizes s = packed_quant_bytes(quant_test_format(14), 17, 33); /* mxfp4 */
    CU_ASSERT_EQUAL(s.data, 32 * 64 / 2);
    CU_ASSERT_EQUAL(s.scales, 32 * 2);
    CU_ASSERT_EQUAL(s.zeros, 0);
    s = packed_quant_bytes(quant_test_format(4), 16, 129); /* int8-asym, per channel, f16 */
    CU_ASSERT_EQUAL(s.data, 16 * 256);
    CU_ASSERT_EQUAL(s.scales, 16 * 2 * 2);
    CU_ASSERT_EQUAL(s.zeros, 16 * 2);
    s = packed_quant_bytes(quant_test_format(1), SIZE_MAX, 1);
    CU_ASSERT_EQUAL(s.data, SIZE_MAX);
    s = packed_quant_bytes(quant_test_format(8), (size_t)1 << 40, (size_t)1 << 40);
    CU_ASSERT_EQUAL(s.data, SIZE_MAX);
    CU_ASSERT_EQUAL(s.scales, SIZE_MAX);
}

void suite_linear_quant(CU_pSuite suite);
void suite_linear_quant(CU_pSuite suite)
{
    CU_add_test(suite, "sizes follow the contract", sizes_follow_the_contract);
    CU_add_test(suite, "elements are read back", elements_are_read_back);
    CU_add_test(suite, "rows are quantized", rows_are_quantized);
    CU_add_test(suite, "strange groups are zeros or errors", strange_groups_are_zeros_or_errors);
    CU_add_test(suite, "quantized rows agree", quantized_rows_agree);
    CU_add_test(suite, "the reference is a dot product", reference_is_a_dot_product);
    CU_add_test(suite, "every fp8 value is decoded", every_fp8_value_is_decoded);
    CU_add_test(suite, "NaN codes are found", nan_codes_are_found);
    CU_add_test(suite, "sets agree", sets_agree);
    CU_add_test(suite, "sets agree on special values", sets_agree_on_special_values);
    CU_add_test(suite, "sets agree on many long rows", sets_agree_on_many_long_rows);
    CU_add_test(suite, "sets agree on extreme codes", sets_agree_on_extreme_codes);
    CU_add_test(suite, "threads and groups do not change bits",
                threads_and_groups_do_not_change_bits);
}
