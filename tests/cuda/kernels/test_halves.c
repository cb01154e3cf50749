/* Tests linears on tensor cores, which a device uses unless it must be exact: results are near the
 * exact sums as kern.h says, each quantized value has its exact value, and the bits do not depend
 * on the number of rows, the place in a tile, the list of experts or how outputs and leaves are
 * divided. */
#include "util_device.h"

#include "kernels/quant_body.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_FLOATS = 2, N_KINDS = N_FLOATS + QUANT_TEST_FORMATS, GRID_BITS = 30 };

/* A weight of one of N_KINDS: f16, bf16, or a quantized format. */
struct weight {
    struct packed w;
    struct quant_weight q;
    struct weight_twin twin;
};

/* Sets the values after the last input of every output to NaN (in E4M3), if a value takes a byte.
 * No result may use them. */
static void spoil_padding(struct packed *w)
{
    const size_t panel_bytes = kern_quant_panel_bytes(w->quant, w->n_in);
    uint8_t *data = (uint8_t *)(uintptr_t)w->data;
    if (quant_is_nibbles(w->quant.kind)) return;
    for (size_t at = 0; at < packed_quant_bytes(w->quant, w->n_out, w->n_in).data; at++) {
        const size_t i = at % panel_bytes;
        const size_t k = i / (PANEL_COLUMNS * QUANT_QUAD) * QUANT_QUAD + i % QUANT_QUAD;
        if (k >= w->n_in) data[at] = 0x7F;
    }
}

static struct weight weight_make(struct both *b, size_t kind, size_t n_out, size_t n_in,
                                 size_t leaf)
{
    struct weight w = {.w = {0}};
    if (kind < N_FLOATS) {
        const enum dtype t = kind == 0 ? DTYPE_F16 : DTYPE_BF16;
        w.w = random_packed(&b->rng, t, n_out, n_in, leaf, GRID_BITS, 0);
    } else {
        const struct quant_format f = quant_test_format(kind - N_FLOATS);
        w.q = quant_weight_make(&b->rng, f, n_out, n_in, leaf, 0);
        w.w = w.q.w;
        spoil_padding(&w.w);
    }
    w.twin = weight_twin_of(b, &w.w);
    return w;
}

static void weight_free(struct both *b, struct weight *w)
{
    weight_twin_free(b, &w->twin);
    if (w->w.quant.kind == QUANT_NONE)
        free(packed_memory(&w->w));
    else
        quant_weight_free(&w->q);
}

static double weight_at(const struct weight *w, size_t n, size_t k)
{
    return w->w.quant.kind == QUANT_NONE ? (double)packed_at(&w->w, n, k)
                                         : quant_weight_at(&w->q, n, k);
}

/* x rounded to the 16-bit type of the products' operands. */
static double rounded(const struct packed *w, float x)
{
    const bool is_f16 = w->quant.kind == QUANT_NONE && w->dtype == DTYPE_F16;
    return is_f16 ? f32_from_f16(f16_from_f32(x)) : f32_from_bf16(bf16_from_f32(x));
}

/* A product: rows of x, divided into n_groups groups of rows[g] rows, times the weight w (in device
 * memory). */
struct product {
    const struct packed *w;
    const float *x;
    size_t stride, n_groups;
    size_t rows[8];
    bool exact;
};

static size_t result_bytes(const struct product *p)
{
    size_t rows = 0;
    for (size_t g = 0; g < p->n_groups; g++) rows += p->rows[g];
    return p->w->leaf > 0 ? rows * (p->w->n_out + 1u) * sizeof(int64_t)
                          : rows * p->w->n_out * sizeof(float);
}

static void *multiply(struct both *b, const struct product *p)
{
    const size_t n_bytes = result_bytes(p);
    struct twin out = twin_zeros(b, n_bytes);
    struct linear_group groups[8];
    size_t row = 0;
    for (size_t g = 0; g < p->n_groups; row += p->rows[g++])
        groups[g] = (struct linear_group){p->w, row, p->rows[g]};
    const struct linear_args a = {.groups = groups,
                                  .n_groups = p->n_groups,
                                  .x = p->x,
                                  .x_stride = p->stride,
                                  .y = out.device,
                                  .y_stride = p->w->n_out,
                                  .sums = out.device,
                                  .exact = p->exact};
    (p->w->leaf > 0 ? op_linear_leaf : op_linear)(&b->gpu, &a);
    void *found = test_memory(n_bytes);
    mem_ops_get(&b->gpu, found, out.device, n_bytes);
    twin_free(b, &out);
    return found;
}

static const struct {
    size_t n_out, n_in, leaf_runs; /* a leaf has this many times 32 inputs or, with quantized
                                      weights, groups */
} shapes[] = {{1, 1, 1}, {17, 65, 1}, {130, 96, 2}, {129, 333, 1}, {40, 700, 3}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static size_t leaf_of(size_t kind, size_t shape)
{
    const size_t unit =
        kind < N_FLOATS ? 32 : quant_kernel_group(quant_test_format(kind - N_FLOATS));
    return shapes[shape].leaf_runs * unit;
}

/* --- against exact sums ---------------------------------------------------------------------- */

/* Whether one output of one row is as near to the exact sum as the contract says. */
static bool is_near(const struct weight *w, const float *x, size_t n, double found)
{
    const size_t n_in = w->w.n_in, leaf = w->w.leaf > 0 ? w->w.leaf : n_in;
    double sum = 0, allowed = 0;
    for (size_t k0 = 0; k0 < n_in; k0 += leaf) {
        const size_t k1 = n_in - k0 < leaf ? n_in : k0 + leaf;
        double size = 0;
        for (size_t k = k0; k < k1; k++) {
            const double p = rounded(&w->w, x[k]) * weight_at(w, n, k);
            sum += p;
            size += fabs(p);
        }
        allowed += (double)(k1 - k0 + 8) * 0x1p-23 * size;
        if (w->w.leaf > 0) allowed += ldexp(1, -(int)w->w.grid_bits);
    }
    return fabs(found - sum) <= allowed;
}

static size_t count_far(const struct weight *w, const float *x, size_t rows, const void *found)
{
    const size_t n_out = w->w.n_out;
    size_t n_far = 0;
    for (size_t r = 0; r < rows; r++) {
        for (size_t n = 0; n < n_out; n++) {
            const double y = w->w.leaf > 0
                                 ? ldexp((double)((const int64_t *)found)[r * (n_out + 1) + n],
                                         -(int)w->w.grid_bits)
                                 : (double)((const float *)found)[r * n_out + n];
            n_far += !is_near(w, x + r * w->w.n_in, n, y);
        }
    }
    return n_far;
}

static void near_the_exact(void)
{
    static const size_t counts[] = {1, 19};
    struct both b = both_open_as(51, DEVICE_LAW);
    for (size_t i = 0; i < N_KINDS * 2 * N_SHAPES; i++) {
        const size_t kind = i % N_KINDS, s = i / N_KINDS % N_SHAPES;
        const size_t leaf = i / N_KINDS / N_SHAPES ? leaf_of(kind, s) : 0;
        struct weight w = weight_make(&b, kind, shapes[s].n_out, shapes[s].n_in, leaf);
        const size_t rows = counts[i % 2];
        struct twin x = twin_floats(&b, rows * w.w.n_in, 1.0f, 0);
        void *found = multiply(&b, &(struct product){.w = &w.twin.gpu,
                                                     .x = x.device,
                                                     .stride = w.w.n_in,
                                                     .n_groups = 1,
                                                     .rows = {rows}});
        CU_ASSERT_EQUAL(count_far(&w, x.host, rows, found), 0);
        free(found);
        twin_free(&b, &x);
        weight_free(&b, &w);
    }
    both_close(&b);
}

/* Rows that have a single 1: each output must be one weight with the CPU's value, NaN included. */
static void single_weights(void)
{
    enum { N = 50, K = 261 };
    struct both b = both_open_as(52, DEVICE_LAW);
    float *x = test_floats(K * K);
    memset(x, 0, K * K * sizeof *x);
    for (size_t k = 0; k < K; k++) x[k * K + k] = 1;
    struct twin ones = twin_of(&b, x, K * K * sizeof *x);
    for (size_t i = 0; i < N_KINDS; i++) {
        struct weight w = weight_make(&b, i, N, K, 0);
        if (w.w.quant.kind == QUANT_FP8) {
            op_pack_quant(&b.cpu, &w.w, PACKED_CODES,
                          &(struct matrix_rows){"\x7F\x01\xFF", 3, 7, 1});
            op_pack_quant(&b.gpu, &w.twin.gpu, PACKED_CODES,
                          &(struct matrix_rows){"\x7F\x01\xFF", 3, 7, 1});
        }
        for (size_t rows = 16; rows <= K; rows += K - 16) {
            struct twin y = twin_zeros(&b, rows * N * sizeof(float));
            const struct linear_group cpu = {&w.w, 0, rows}, gpu = {&w.twin.gpu, 0, rows};
            struct linear_args a = {
                .groups = &cpu, .n_groups = 1, .x = x, .x_stride = K, .y = y.host, .y_stride = N};
            op_linear(&b.cpu, &a);
            a.groups = &gpu;
            a.x = ones.device;
            a.y = y.device;
            op_linear(&b.gpu, &a);
            twin_same_floats(&b, &y, "single weights");
            twin_free(&b, &y);
        }
        weight_free(&b, &w);
    }
    twin_free(&b, &ones);
    free(x);
    both_close(&b);
}

/* --- the same bits --------------------------------------------------------------------------- */

enum { ROWS = 150 }; /* more than any block has */

/* Asserts that all 4-byte words are the same; a NaN equals every NaN. */
static void same_words(const void *a, const void *b, size_t n_bytes, const char *what, size_t kind)
{
    const size_t n = count_different(a, b, n_bytes / sizeof(float));
    if (n > 0) printf("\n  %s, kind %zu: %zu words of %zu differ\n", what, kind, n, n_bytes / 4);
    CU_ASSERT_EQUAL(n, 0);
}

/* Computes rows [row0, ...) in groups and compares them with the same rows among all ROWS. */
static void same_rows(struct both *b, const struct product *all, const char *want, size_t row0,
                      const struct product *some, size_t kind)
{
    struct product p = *some;
    p.w = all->w;
    p.stride = all->stride;
    p.x = all->x + row0 * all->stride;
    void *found = multiply(b, &p);
    same_words(found, want + row0 * (result_bytes(all) / ROWS), result_bytes(&p), "rows", kind);
    free(found);
}

static void rows_and_experts(void)
{
    static const struct {
        size_t row0;
        struct product p;
    } cuts[] = {
        {ROWS - 1, {.n_groups = 1, .rows = {1}}},     {77, {.n_groups = 1, .rows = {5}}},
        {3, {.n_groups = 1, .rows = {16}}},           {60, {.n_groups = 1, .rows = {17}}},
        {1, {.n_groups = 1, .rows = {140}}},          {0, {.n_groups = 3, .rows = {1, 10, 2}}},
        {9, {.n_groups = 4, .rows = {1, 100, 2, 31}}}};
    struct both b = both_open_as(53, DEVICE_LAW);
    for (size_t i = 0; i < 2 * N_KINDS; i++) {
        const size_t kind = i / 2, leaf = i % 2 ? leaf_of(kind, 2) : 0;
        struct weight w = weight_make(&b, kind, 144, 320 + 7 * (i % 3), leaf);
        struct twin x = twin_floats(&b, ROWS * w.w.n_in, 1.0f, 4000);
        const struct product all = {
            .w = &w.twin.gpu, .x = x.device, .stride = w.w.n_in, .n_groups = 1, .rows = {ROWS}};
        void *want = multiply(&b, &all);
        for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++)
            same_rows(&b, &all, want, cuts[c].row0, &cuts[c].p, kind);
        free(want);
        twin_free(&b, &x);
        weight_free(&b, &w);
    }
    both_close(&b);
}

/* Computes outputs [16 * panel, ...) of a weight by themselves, for few rows and many. */
static void cuts_of_outputs(void)
{
    enum { N = 200, PANEL = 3, CUT = N - PANEL * PANEL_COLUMNS };
    struct both b = both_open_as(54, DEVICE_LAW);
    for (size_t kind = 0; kind < N_KINDS; kind++) {
        struct weight w = weight_make(&b, kind, N, 200, 0);
        struct packed cut = w.twin.gpu;
        const struct packed_quant_sizes sizes =
            kind < N_FLOATS
                ? (struct packed_quant_sizes){.data = packed_bytes(w.w.dtype, 1, w.w.n_in)}
                : packed_quant_bytes(w.w.quant, 1, w.w.n_in);
        cut.n_out = CUT;
        cut.data = (const char *)cut.data + PANEL * sizes.data;
        cut.scales = (const char *)cut.scales + PANEL * sizes.scales;
        if (cut.zeros != NULL) cut.zeros += PANEL * sizes.zeros;
        struct twin x = twin_floats(&b, ROWS * w.w.n_in, 1.0f, 0);
        struct product p = {.w = &w.twin.gpu, .x = x.device, .stride = w.w.n_in, .n_groups = 1};
        p.rows[0] = ROWS;
        float *all = multiply(&b, &p);
        p.w = &cut;
        p.rows[0] = kind % 2 ? ROWS : 9;
        float *some = multiply(&b, &p);
        for (size_t r = 0; r < p.rows[0]; r++)
            same_words(some + r * CUT, all + r * N + N - CUT, CUT * sizeof *all, "outputs", kind);
        free(all);
        free(some);
        twin_free(&b, &x);
        weight_free(&b, &w);
    }
    both_close(&b);
}

/* The part of a weight that a rank with leaves [first, first + n) has. */
static struct packed take_leaves(struct both *b, const struct weight *w, size_t first, size_t n,
                                 struct weight_twin *twin)
{
    const struct quant_format f = w->w.quant;
    const size_t k0 = first * w->w.leaf, left = w->w.n_in - k0;
    struct packed part = w->w;
    part.n_in = (uint32_t)(left < n * w->w.leaf ? left : n * w->w.leaf);
    const struct packed_quant_sizes sizes =
        f.kind == QUANT_NONE
            ? (struct packed_quant_sizes){.data = packed_bytes(part.dtype, part.n_out, part.n_in)}
            : packed_quant_bytes(f, part.n_out, part.n_in);
    twin->data = twin_zeros(b, sizes.data);
    twin->scales = twin_zeros(b, sizes.scales);
    twin->zeros = twin_zeros(b, sizes.zeros);
    part.data = twin->data.device;
    part.scales = twin->scales.device;
    part.zeros = f.has_zeros ? twin->zeros.device : NULL;
    if (f.kind == QUANT_NONE) {
        uint16_t *rows = test_memory(part.n_out * part.n_in * sizeof *rows);
        for (size_t i = 0; i < (size_t)part.n_out * part.n_in; i++) {
            const float v = packed_at(&w->w, i / part.n_in, k0 + i % part.n_in);
            rows[i] = part.dtype == DTYPE_F16 ? f16_from_f32(v) : bf16_from_f32(v);
        }
        op_pack_rows(&b->gpu, &part,
                     &(struct matrix_rows){rows, part.n_in * sizeof *rows, 0, part.n_out});
        device_wait(b->gpu.device);
        free(rows);
        return part;
    }
    const size_t groups = quant_groups(f, w->w.n_in), g0 = f.group == 0 ? 0 : k0 / f.group;
    const size_t bytes = dtype_bytes(quant_scale_dtype(f));
    op_pack_quant(&b->gpu, &part, PACKED_CODES,
                  &(struct matrix_rows){w->q.codes + quant_code_bytes(f.kind, k0),
                                        quant_code_bytes(f.kind, w->w.n_in), 0, part.n_out});
    op_pack_quant(&b->gpu, &part, PACKED_SCALES,
                  &(struct matrix_rows){w->q.scales + g0 * bytes, groups * bytes, 0, part.n_out});
    if (f.has_zeros)
        op_pack_quant(&b->gpu, &part, PACKED_ZEROS,
                      &(struct matrix_rows){w->q.zeros + g0, groups, 0, part.n_out});
    return part;
}

/* The sums of two ranks' leaves equal those of all leaves. */
static void cuts_of_leaves(void)
{
    enum { N_ROWS = 40 };
    struct both b = both_open_as(55, DEVICE_LAW);
    for (size_t kind = 0; kind < N_KINDS; kind++) {
        struct weight w = weight_make(&b, kind, 33, 480, leaf_of(kind, 1));
        struct twin x = twin_floats(&b, N_ROWS * w.w.n_in, 1.0f, 0);
        struct product p = {
            .w = &w.twin.gpu, .x = x.device, .stride = w.w.n_in, .n_groups = 1, .rows = {N_ROWS}};
        int64_t *all = multiply(&b, &p);
        struct weight_twin twins[2];
        for (size_t rank = 0; rank < 2; rank++) {
            const struct packed part =
                take_leaves(&b, &w, rank * 2, rank == 0 ? 2 : 1000, &twins[rank]);
            p.w = &part;
            p.x = (const float *)x.device + rank * 2 * w.w.leaf;
            int64_t *own = multiply(&b, &p);
            for (size_t i = 0; i < result_bytes(&p) / sizeof *own; i++) all[i] -= own[i];
            free(own);
            weight_twin_free(&b, &twins[rank]);
        }
        size_t n_other = 0;
        for (size_t i = 0; i < N_ROWS * (w.w.n_out + 1u); i++) n_other += all[i] != 0;
        CU_ASSERT_EQUAL(n_other, 0);
        free(all);
        twin_free(&b, &x);
        weight_free(&b, &w);
    }
    both_close(&b);
}

/* --- what stays in the CPU's order ----------------------------------------------------------- */

static void still_exact(void)
{
    enum { N = 70, K = 200, N_ROWS = 30 };
    static const struct {
        enum dtype type;
        size_t leaf;
        bool exact;
    } cases[] = {{DTYPE_BF16, 0, true},
                 {DTYPE_F16, 0, true},
                 {DTYPE_F32, 0, false},
                 {DTYPE_F32, 64, false},
                 {DTYPE_BF16, 48, false}};
    struct both b = both_open_as(56, DEVICE_LAW);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct packed w = random_packed(&b.rng, cases[i].type, N, K, cases[i].leaf, GRID_BITS, 0);
        struct weight_twin twin = weight_twin_of(&b, &w);
        struct twin x = twin_floats(&b, N_ROWS * K, 1.0f, 0);
        const struct product p = {.w = &twin.gpu,
                                  .x = x.device,
                                  .stride = K,
                                  .n_groups = 1,
                                  .rows = {N_ROWS},
                                  .exact = cases[i].exact};
        const size_t n_bytes = result_bytes(&p);
        void *found = multiply(&b, &p), *want = test_memory(n_bytes);
        const struct linear_group group = {&w, 0, N_ROWS};
        const struct linear_args a = {.groups = &group,
                                      .n_groups = 1,
                                      .x = x.host,
                                      .x_stride = K,
                                      .y = want,
                                      .y_stride = N,
                                      .sums = want};
        (w.leaf > 0 ? op_linear_leaf : op_linear)(&b.cpu, &a);
        same_words(found, want, n_bytes, "exact", i);
        free(found);
        free(want);
        twin_free(&b, &x);
        weight_twin_free(&b, &twin);
        free(packed_memory(&w));
    }
    both_close(&b);
}

void suite_halves(CU_pSuite suite);
void suite_halves(CU_pSuite suite)
{
    CU_ADD_TEST(suite, near_the_exact);
    CU_ADD_TEST(suite, single_weights);
    CU_ADD_TEST(suite, rows_and_experts);
    CU_ADD_TEST(suite, cuts_of_outputs);
    CU_ADD_TEST(suite, cuts_of_leaves);
    CU_ADD_TEST(suite, still_exact);
}
