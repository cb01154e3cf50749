/* Tests ops on rows: the reference against straightforward arithmetic in double, and all other
 * instruction sets against the reference, bit for bit, for short rows and special values. */
#include "kernels/elementary.h"
#include "kernels/elementary_body.h"
#include "kernels/ops.h"
#include "util_kernels.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>

enum { MAX_N = 83, TRIALS = 200 };

/* Inputs a, b, c of n elements and two outputs, each in memory of its exact size. */
struct arrays {
    size_t n;
    float *in[3], *out[2];
};

static struct arrays arrays_make(struct rng *r, size_t n, float magnitude, size_t every)
{
    struct arrays a = {.n = n};
    for (int i = 0; i < 3; i++) {
        a.in[i] = test_floats(n);
        rng_floats(r, a.in[i], n, magnitude);
        if (every > 0) rng_specials(r, a.in[i], n, every);
    }
    for (int i = 0; i < 2; i++) a.out[i] = test_floats(n);
    return a;
}

static void arrays_free(struct arrays *a)
{
    for (int i = 0; i < 3; i++) free(a->in[i]);
    for (int i = 0; i < 2; i++) free(a->out[i]);
}

/* Runs an op of a table on the arrays; the result goes to out[which]. */
typedef void row_op(const struct kern_table *k, const struct arrays *a, int which);

static void compare(row_op *op, float magnitude, size_t even)
{
    const struct kern_table ref = table_ref(), sets[] = {table_in_turn(0), table_in_turn(1)};
    struct rng r = {11};
    for (int i = 0; i < TRIALS; i++) {
        const size_t n = (size_t)i % MAX_N / even * even;
        struct arrays a = arrays_make(&r, n, magnitude, i < TRIALS / 2 ? 0 : 6);
        op(&ref, &a, 0);
        op(&sets[i / MAX_N % 2], &a, 1);
        CU_ASSERT_EQUAL(count_different(a.out[0], a.out[1], n), 0);
        arrays_free(&a);
    }
}

static void run_rmsnorm(const struct kern_table *k, const struct arrays *a, int which)
{
    /* in place, as callers are allowed to */
    memcpy(a->out[which], a->in[0], a->n * sizeof(float));
    k->rmsnorm(a->out[which], a->in[1], a->n, 1e-5f, a->out[which]);
}

static void run_swiglu(const struct kern_table *k, const struct arrays *a, int which)
{
    memcpy(a->out[which], a->in[0], a->n * sizeof(float));
    k->swiglu(a->out[which], a->in[1], a->n, a->out[which]);
}

static void run_geglu(const struct kern_table *k, const struct arrays *a, int which)
{
    memcpy(a->out[which], a->in[0], a->n * sizeof(float));
    k->geglu(a->out[which], a->in[1], a->n, a->out[which]);
}

static void run_softcap(const struct kern_table *k, const struct arrays *a, int which)
{
    memcpy(a->out[which], a->in[0], a->n * sizeof(float));
    k->softcap(a->out[which], a->n, 2.5f);
}

static void run_xielu(const struct kern_table *k, const struct arrays *a, int which)
{
    memcpy(a->out[which], a->in[0], a->n * sizeof(float));
    k->xielu(a->out[which], a->n, (const float[4]){0.7f, 1.3f, 0.5f, -1e-6f});
}

static void run_gelu(const struct kern_table *k, const struct arrays *a, int which)
{
    memcpy(a->out[which], a->in[0], a->n * sizeof(float));
    k->gelu(a->out[which], a->n);
}

static void run_layernorm(const struct kern_table *k, const struct arrays *a, int which)
{
    memcpy(a->out[which], a->in[0], a->n * sizeof(float));
    k->layernorm(a->out[which], a->in[1], a->in[2], a->n, 1e-5f, a->out[which]);
}

static void xielu_and_layernorm_are_their_equations(void)
{
    const struct kern_table ref = table_ref();
    struct rng r = {17};
    for (size_t n = 1; n < MAX_N; n++) {
        struct arrays a = arrays_make(&r, n, n % 2 ? 3.0f : 0.02f, 0);
        double mean = 0, squares = 0;
        for (size_t i = 0; i < n; i++) mean += (double)a.in[0][i] / (double)n;
        for (size_t i = 0; i < n; i++) squares += ((double)a.in[0][i] - mean) * (a.in[0][i] - mean);
        const double scale = 1 / sqrt(squares / (double)n + (double)1e-5f);
        run_layernorm(&ref, &a, 0);
        run_xielu(&ref, &a, 1);
        for (size_t i = 0; i < n; i++) {
            const double x = a.in[0][i], w = a.in[1][i], norm = (x - mean) * scale * w + a.in[2][i];
            const double bent = x > 0 ? (double)0.7f * x * x : (expm1(x) - x) * (double)1.3f;
            CU_ASSERT_DOUBLE_EQUAL(a.out[0][i], norm, 1e-5);
            CU_ASSERT_DOUBLE_EQUAL(a.out[1][i], bent + 0.5 * x, 1e-6 * fabs(x) + 2e-6);
        }
        arrays_free(&a);
    }
}

/* For values from -16 to 16, and for the same values divided by 4,096. */
static void geglu_and_softcap_are_their_equations(void)
{
    const struct kern_table ref = table_ref();
    for (int i = -4000; i < 4000; i++) {
        const float x = (float)i * 0.004f, up = 1.5f, small = x * 0x1p-12f;
        const double v = sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * (double)x);
        const double gelu = 0.5 * x * (1 + tanh(v)) * up;
        float y, capped[2] = {x * 2.5f, small};
        ref.geglu(&x, &up, 1, &y);
        CU_ASSERT_DOUBLE_EQUAL(y, gelu, 2e-6 * fabs(gelu) + 1e-9);
        ref.softcap(capped, 2, 2.5f);
        CU_ASSERT_DOUBLE_EQUAL(capped[0], 2.5 * tanh(x), 6e-7 * fabs(2.5 * tanh(x)));
        CU_ASSERT_DOUBLE_EQUAL(capped[1], 2.5 * tanh(small / 2.5), 6e-7 * fabs((double)small));
    }
}

/* For values from -24 to 24, for the same values divided by 4,096, and for values that are not
 * finite. */
static void gelu_is_its_equation(void)
{
    const struct kern_table ref = table_ref();
    for (int i = -6000; i < 6000; i++) {
        const float x = (float)i * 0.004f, small = x * 0x1p-12f;
        float y[2] = {x, small};
        ref.gelu(y, 2);
        CU_ASSERT_DOUBLE_EQUAL(y[0], 0.5 * x * erfc(-x / sqrt(2)), 2e-7 * (1 + fabs((double)x)));
        CU_ASSERT_DOUBLE_EQUAL(y[1], 0.5 * small * erfc(-small / sqrt(2)),
                               3e-7 * fabs((double)small));
    }
    float ends[3] = {INFINITY, -INFINITY, NAN};
    ref.gelu(ends, 3);
    CU_ASSERT(ends[0] == INFINITY && ends[1] == 0 && isnan(ends[2]));
}

/* The result goes to another array, or replaces the gate. */
static void exact_geglu_is_gelu_times_up(void)
{
    const struct kern_table k = table_best();
    float gate[40], up[40], y[40], gelu[40];
    for (int i = 0; i < 40; i++) {
        gate[i] = gelu[i] = (float)(i - 20) * 0.3f;
        up[i] = (float)(i % 7) - 2.5f;
        CU_ASSERT_EQUAL(el_geluf(gate[i]), el_gelu_body(gate[i]));
    }
    k.gelu(gelu, 40);
    kern_gate(&k, GATE_GEGLU_EXACT, gate, up, 40, y);
    for (int i = 0; i < 40; i++) CU_ASSERT_EQUAL(y[i], gelu[i] * up[i]);
    kern_gate(&k, GATE_GEGLU_EXACT, gate, up, 40, gate);
    CU_ASSERT_EQUAL(memcmp(gate, y, sizeof y), 0);
}

/* kern_gate gives the kernel's bits, and so does op_swiglu with a limit that clamps nothing. */
static void gates_run_the_kernel_of_their_kind(void)
{
    struct kern_table k = table_best();
    float gate[40], up[40], want[40], y[40];
    for (int i = 0; i < 80; i++) (i < 40 ? gate : up)[i % 40] = (float)(i * 7 % 40 - 20) * 0.3f;
    for (int geglu = 0; geglu < 2; geglu++) {
        const enum gate_kind kind = geglu ? GATE_GEGLU : GATE_SWIGLU;
        (geglu ? k.geglu : k.swiglu)(gate, up, 40, want);
        kern_gate(&k, kind, gate, up, 40, y);
        CU_ASSERT_EQUAL(memcmp(y, want, sizeof y), 0);
        op_swiglu(&k, &(struct swiglu_args){.gate = gate,
                                            .up = up,
                                            .stride = 40,
                                            .n_rows = 1,
                                            .n = 40,
                                            .y = y,
                                            .y_stride = 40,
                                            .kind = kind,
                                            .limit = 9});
        CU_ASSERT_EQUAL(memcmp(y, want, sizeof y), 0);
    }
}

static void run_swiglu_clamped(const struct kern_table *k, const struct arrays *a, int which)
{
    memcpy(a->out[which], a->in[0], a->n * sizeof(float));
    k->swiglu_clamped(a->out[which], a->in[1], a->n, 1.702f, 7.0f, a->out[which]);
}

static void clamped_swiglu_is_its_equation(void)
{
    const struct kern_table ref = table_ref();
    for (int i = -400; i < 400; i++) {
        const float gate = (float)i * 0.05f, up = (float)(i * 37 % 401) * 0.05f;
        const double g = fmin((double)gate, 7), u = fmax(fmin((double)up, 7), -7);
        float y;
        ref.swiglu_clamped(&gate, &up, 1, 1.702f, 7.0f, &y);
        const double want = g / (1 + exp(-(double)1.702f * g)) * (u + 1);
        CU_ASSERT(fabs((double)y - want) <= 1e-6 * fabs(want) + 1e-7);
    }
}

static void run_add(const struct kern_table *k, const struct arrays *a, int which)
{
    memcpy(a->out[which], a->in[0], a->n * sizeof(float));
    k->add(a->out[which], a->in[1], a->n);
}

static void run_axpy(const struct kern_table *k, const struct arrays *a, int which)
{
    memcpy(a->out[which], a->in[0], a->n * sizeof(float));
    k->axpy(0.3f, a->in[1], a->n, a->out[which]);
}

static void run_rope(const struct kern_table *k, const struct arrays *a, int which)
{
    memcpy(a->out[which], a->in[0], a->n * sizeof(float));
    k->rope(a->out[which], a->in[1], a->in[2], a->n);
}

static void run_f16(const struct kern_table *k, const struct arrays *a, int which)
{
    uint16_t *h = test_memory(a->n * 2);
    k->kv_store[DTYPE_F16](a->in[0], a->n, h, NULL);
    for (size_t i = 0; i < a->n; i++) a->out[which][i] = f32_from_bits(h[i]);
    free(h);
}

static void run_bf16(const struct kern_table *k, const struct arrays *a, int which)
{
    uint16_t *h = test_memory(a->n * 2);
    k->kv_store[DTYPE_BF16](a->in[0], a->n, h, NULL);
    for (size_t i = 0; i < a->n; i++) a->out[which][i] = f32_from_bits(h[i]);
    free(h);
}

static void sets_agree(void)
{
    compare(run_rmsnorm, 3.0f, 1);
    compare(run_swiglu, 95.0f, 1);
    compare(run_swiglu_clamped, 12.0f, 1);
    compare(run_geglu, 12.0f, 1);
    compare(run_geglu, 0.01f, 1);
    compare(run_softcap, 40.0f, 1);
    compare(run_xielu, 5.0f, 1);
    compare(run_xielu, 0.4f, 1);
    compare(run_gelu, 6.0f, 1);
    compare(run_gelu, 40.0f, 1);
    compare(run_gelu, 0.01f, 1);
    compare(run_layernorm, 3.0f, 1);
    compare(run_softcap, 0.1f, 1);
    compare(run_add, 3.0f, 1);
    compare(run_axpy, 3.0f, 1);
    compare(run_rope, 2.0f, 2);
    compare(run_f16, 70000.0f, 1);
    compare(run_f16, 0x1p-13f, 1);
    compare(run_bf16, 3.0f, 1);
}

/* Every 1,021st bit pattern of floats, so that each case of rounding to f16 and bf16 occurs. */
static void rounding_agrees_over_all_floats(void)
{
    const struct kern_table ref = table_ref(), best = table_best();
    size_t n_wrong = 0;
    uint64_t u = 0;
    while (u < 0x100000000u) {
        float x[64];
        uint16_t a[64], b[64];
        for (size_t i = 0; i < 64; i++, u += 1021) x[i] = f32_from_bits((uint32_t)u);
        for (int t = DTYPE_F16; t <= DTYPE_BF16; t++) {
            ref.kv_store[t](x, 64, a, NULL);
            best.kv_store[t](x, 64, b, NULL);
            n_wrong += memcmp(a, b, sizeof a) != 0;
        }
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
}

static void grid_sets_agree(void)
{
    const struct kern_table ref = table_ref(), sets[] = {table_in_turn(0), table_in_turn(1)};
    struct rng r = {12};
    for (size_t i = 0; i < 400; i++) {
        const struct kern_table best = sets[i / 37 % 2];
        const size_t n = i % 37;
        int64_t *sums = test_memory(n * sizeof *sums);
        struct arrays a = arrays_make(&r, n, 5.0f, 8);
        for (size_t j = 0; j < n; j++) sums[j] = (int64_t)rng_next(&r) >> rng_below(&r, 64);
        ref.grid_to_f32(sums, n, (uint32_t)i % 60, a.out[0]);
        best.grid_to_f32(sums, n, (uint32_t)i % 60, a.out[1]);
        CU_ASSERT_EQUAL(count_different(a.out[0], a.out[1], n), 0);
        memcpy(a.out[0], a.in[0], n * sizeof(float));
        memcpy(a.out[1], a.in[0], n * sizeof(float));
        ref.grid_add(sums, n, 32, a.out[0]);
        best.grid_add(sums, n, 32, a.out[1]);
        CU_ASSERT_EQUAL(count_different(a.out[0], a.out[1], n), 0);
        arrays_free(&a);
        free(sums);
    }
}

static void reference_norm_and_swiglu_are_right(void)
{
    const struct kern_table ref = table_ref();
    struct rng r = {13};
    for (size_t n = 1; n < MAX_N; n++) {
        struct arrays a = arrays_make(&r, n, 4.0f, 0);
        double squares = 0;
        for (size_t i = 0; i < n; i++) squares += (double)a.in[0][i] * a.in[0][i];
        const double scale = 1 / sqrt(squares / (double)n + (double)1e-5f);
        ref.rmsnorm(a.in[0], a.in[1], n, 1e-5f, a.out[0]);
        ref.swiglu(a.in[0], a.in[1], n, a.out[1]);
        for (size_t i = 0; i < n; i++) {
            const double x = a.in[0][i], w = a.in[1][i], norm = x * scale * w;
            const double swiglu = x / (1 + exp(-x)) * w;
            CU_ASSERT_DOUBLE_EQUAL(a.out[0][i], norm, 1e-6 * fabs(norm));
            CU_ASSERT_DOUBLE_EQUAL(a.out[1][i], swiglu, 1e-6 * fabs(swiglu));
        }
        arrays_free(&a);
    }
}

static void reference_rope_turns_pairs(void)
{
    const struct kern_table ref = table_ref();
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, c[3], s[3];
    const double angles[3] = {0.5, -1.25, 3.0};
    for (size_t i = 0; i < 3; i++) {
        c[i] = (float)cos(angles[i]);
        s[i] = (float)sin(angles[i]);
    }
    ref.rope(x, c, s, 6);
    for (size_t i = 0; i < 3; i++) {
        const double a = (double)i + 1, b = (double)i + 4;
        CU_ASSERT_DOUBLE_EQUAL(x[i], a * cos(angles[i]) - b * sin(angles[i]), 1e-6);
        CU_ASSERT_DOUBLE_EQUAL(x[i + 3], b * cos(angles[i]) + a * sin(angles[i]), 1e-6);
    }
    CU_ASSERT(x[6] == 7 && x[7] == 8);
}

enum { WHOLE_ROWS = 3, WHOLE_N = 72, WHOLE_UNIT = 16, WHOLE_SUMS = 5 };

/* y = the normed rows of x, both [WHOLE_ROWS, WHOLE_N], by op_head_square_sums and op_norm_whole,
 * if one rank has the columns before `cut` and another rank the rest. */
static void norm_cut(const float *x, const float *w, size_t cut, float *y)
{
    const struct kern_table k = table_best();
    uint32_t sums[WHOLE_ROWS * WHOLE_SUMS] = {0};
    float half[WHOLE_ROWS * WHOLE_N];
    for (int pass = 0; pass < 2; pass++) {
        for (size_t begin = 0, end = cut; begin < WHOLE_N; begin = end, end = WHOLE_N) {
            const size_t n = end - begin;
            for (size_t t = 0; t < WHOLE_ROWS; t++)
                memcpy(half + t * n, x + t * WHOLE_N + begin, n * sizeof *x);
            const struct square_sums_args squares = {.x = half,
                                                     .n_rows = WHOLE_ROWS,
                                                     .n_heads = (n + WHOLE_UNIT - 1) / WHOLE_UNIT,
                                                     .head_dim = WHOLE_UNIT,
                                                     .width = n,
                                                     .sums = sums + begin / WHOLE_UNIT,
                                                     .stride = WHOLE_SUMS};
            if (pass == 0) op_head_square_sums(&k, &squares);
            if (pass == 0) continue;
            op_norm_whole(&k, &(struct norm_whole){half, w + begin, sums, WHOLE_ROWS, n, WHOLE_N,
                                                   WHOLE_SUMS, WHOLE_SUMS, 1e-5f});
            for (size_t t = 0; t < WHOLE_ROWS; t++)
                memcpy(y + t * WHOLE_N + begin, half + t * n, n * sizeof *y);
        }
    }
}

/* The last unit of a row is shorter: 72 columns are four units of 16 and one of 8. */
static void whole_norm_has_no_cuts(void)
{
    struct rng r = {37};
    float x[WHOLE_ROWS * WHOLE_N], w[WHOLE_N], y[2][WHOLE_ROWS * WHOLE_N];
    rng_floats(&r, x, WHOLE_ROWS * WHOLE_N, 2.0f);
    rng_floats(&r, w, WHOLE_N, 2.0f);
    norm_cut(x, w, WHOLE_N, y[0]);
    for (size_t cut = WHOLE_UNIT; cut < WHOLE_N; cut += WHOLE_UNIT) {
        norm_cut(x, w, cut, y[1]);
        CU_ASSERT_EQUAL(memcmp(y[0], y[1], sizeof y[0]), 0);
    }
    for (size_t t = 0; t < WHOLE_ROWS; t++) {
        double sum = 0;
        for (size_t i = 0; i < WHOLE_N; i++) sum += pow(x[t * WHOLE_N + i], 2);
        const double scale = 1 / sqrt(sum / WHOLE_N + 1e-5);
        for (size_t i = 0; i < WHOLE_N; i++)
            CU_ASSERT_DOUBLE_EQUAL(y[0][t * WHOLE_N + i], x[t * WHOLE_N + i] * scale * w[i], 1e-5);
    }
}

void suite_rows(CU_pSuite suite);
void suite_rows(CU_pSuite suite)
{
    CU_add_test(suite, "reference norm and swiglu are right", reference_norm_and_swiglu_are_right);
    CU_add_test(suite, "reference rope turns pairs", reference_rope_turns_pairs);
    CU_add_test(suite, "sets agree", sets_agree);
    CU_add_test(suite, "clamped SwiGLU is its equation", clamped_swiglu_is_its_equation);
    CU_add_test(suite, "GEGLU and softcap are their equations",
                geglu_and_softcap_are_their_equations);
    CU_add_test(suite, "GELU is its equation", gelu_is_its_equation);
    CU_add_test(suite, "exact GEGLU is GELU times up", exact_geglu_is_gelu_times_up);
    CU_add_test(suite, "gates run the kernel of their kind", gates_run_the_kernel_of_their_kind);
    CU_add_test(suite, "xIELU and layer norm are their equations",
                xielu_and_layernorm_are_their_equations);
    CU_add_test(suite, "the norm of a whole row has no cuts", whole_norm_has_no_cuts);
    CU_add_test(suite, "rounding agrees over all floats", rounding_agrees_over_all_floats);
    CU_add_test(suite, "grid: sets agree", grid_sets_agree);
}
