/* Tests linears, packing, quantization and embeddings on the device against the reference: every
 * element type and format, with and without leaves, one row and many, groups of experts with
 * different numbers of rows. */
#include "util_device.h"

#include "kernels/act.h"
#include "kernels/quant_body.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>

enum { GROUPS_MAX = 8 };

/* One linear over groups of rows. */
struct job {
    size_t rows[GROUPS_MAX];
    size_t n_groups;
    struct packed *w; /* [n_groups], host */
    bool codes;       /* activations are quantized */
    size_t every;     /* NaN, infinities and so on in about one of `every` elements */
};

static struct twin codes_of(struct both *b, const struct packed *w, size_t rows,
                            const struct twin *x, struct quant_rows *cpu, struct quant_rows *gpu)
{
    const size_t n_bytes = act_codes_bytes(rows, w->n_in);
    struct twin memory = twin_zeros(b, n_bytes);
    struct act_rows in = {
        .x = x->host, .stride = w->n_in, .n_rows = rows, .n = w->n_in, .memory = memory.host};
    *cpu = *act_codes(&b->cpu, &in, w);
    in = (struct act_rows){
        .x = x->device, .stride = w->n_in, .n_rows = rows, .n = w->n_in, .memory = memory.device};
    *gpu = *act_codes(&b->gpu, &in, w);
    return memory;
}

/* Runs a linear with leaves again, for the values of its sums: written, then added to others. */
static void check_values(struct both *b, struct linear_args cpu, struct linear_args gpu)
{
    const size_t n = cpu.groups[0].w->n_out, first = cpu.groups[0].row0;
    const size_t rows = first + cpu.groups[0].n_rows;
    struct twin y = twin_floats(b, rows * n, 1.0f, 0), h = twin_floats(b, rows * n, 1.0f, 0);
    struct twin bad = twin_zeros(b, rows * sizeof(int32_t));
    cpu.sums = gpu.sums = NULL;
    cpu.y_stride = gpu.y_stride = n;
    cpu.y = y.host;
    cpu.bad = bad.host;
    op_linear_leaf(&b->cpu, &cpu);
    gpu.y = y.device;
    gpu.bad = bad.device;
    op_linear_leaf(&b->gpu, &gpu);
    twin_same_floats(b, &y, "values of leaf sums");
    twin_same(b, &bad, "counters");
    for (size_t i = first * n; i < rows * n; i++) {
        twin_host(&h)[i] += twin_host(&y)[i];
        if (i % n == 0) ((int32_t *)bad.host)[i / n] *= 2;
    }
    gpu.y = h.device;
    gpu.adds = true;
    op_linear_leaf(&b->gpu, &gpu);
    twin_same_floats(b, &h, "added values of leaf sums");
    twin_same(b, &bad, "counters of added values");
    twin_free(b, &y);
    twin_free(b, &h);
    twin_free(b, &bad);
}

static void check(struct both *b, const struct job *j)
{
    const struct packed *first = &j->w[0];
    const bool leafy = first->leaf > 0;
    size_t rows = 3; /* rows before those of the first group */
    struct weight_twin weights[GROUPS_MAX];
    struct linear_group cpu[GROUPS_MAX], gpu[GROUPS_MAX];
    for (size_t g = 0; g < j->n_groups; g++) {
        weights[g] = weight_twin_of(b, &j->w[g]);
        cpu[g] = (struct linear_group){&weights[g].cpu, rows, j->rows[g]};
        gpu[g] = (struct linear_group){&weights[g].gpu, rows, j->rows[g]};
        rows += j->rows[g];
    }
    struct twin x = twin_floats(b, rows * first->n_in, 1.0f, j->every);
    struct twin y = twin_floats(b, rows * (first->n_out + 1u), 1.0f, 0);
    struct twin sums = twin_zeros(b, rows * (first->n_out + 1u) * sizeof(int64_t));
    struct quant_rows xq[2];
    struct twin memory = {0};
    if (j->codes) memory = codes_of(b, first, rows, &x, &xq[0], &xq[1]);
    struct linear_args a = {.groups = cpu,
                            .n_groups = j->n_groups,
                            .x = x.host,
                            .x_stride = first->n_in,
                            .xq = j->codes ? &xq[0] : NULL,
                            .y = y.host,
                            .y_stride = first->n_out + 1u,
                            .sums = sums.host};
    (leafy ? op_linear_leaf : op_linear)(&b->cpu, &a);
    const struct linear_args on_cpu = a;
    a.groups = gpu;
    a.x = x.device;
    a.xq = j->codes ? &xq[1] : NULL;
    a.y = y.device;
    a.sums = sums.device;
    (leafy ? op_linear_leaf : op_linear)(&b->gpu, &a);
    twin_same_floats(b, &y, "linear");
    twin_same(b, &sums, "leaf sums");
    if (leafy && j->n_groups == 1) check_values(b, on_cpu, a);
    for (size_t g = 0; g < j->n_groups; g++) weight_twin_free(b, &weights[g]);
    twin_free(b, &x);
    twin_free(b, &y);
    twin_free(b, &sums);
    if (j->codes) twin_free(b, &memory);
}

static const struct {
    size_t n_out, n_in;
} shapes[] = {{1, 1}, {16, 64}, {17, 65}, {130, 96}, {129, 33}, {300, 200}, {40, 1400}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };
static const size_t row_counts[] = {1, 2, 7, 8, 9, 12, 33, 80};
enum { N_ROW_COUNTS = sizeof row_counts / sizeof row_counts[0] };

static void plain_linears(void)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    struct both b = both_open(21);
    for (size_t i = 0; i < 3 * N_SHAPES * 2; i++) {
        const size_t s = i / 6, leaf = i % 2 ? s == 6 ? 600 : 32 : 0;
        struct packed w = random_packed(&b.rng, types[i / 2 % 3], shapes[s].n_out, shapes[s].n_in,
                                        leaf, 30, i % 4 == 3 ? 500 : 0);
        for (size_t r = 0; r < N_ROW_COUNTS; r++)
            check(&b, &(struct job){.rows = {row_counts[r]},
                                    .n_groups = 1,
                                    .w = &w,
                                    .every = i % 4 == 2 ? 300 : 0});
        free(packed_memory(&w));
    }
    both_close(&b);
}

static void quantized_linears(void)
{
    struct both b = both_open(22);
    for (size_t i = 0; i < QUANT_TEST_FORMATS * 2; i++) {
        const struct quant_format f = quant_test_format(i / 2);
        const size_t s = i % N_SHAPES, groups = s == 6 ? 5 : 1;
        const size_t leaf = i % 2 ? groups * quant_kernel_group(f) : 0;
        struct quant_weight w = quant_weight_make(&b.rng, f, shapes[s].n_out, shapes[s].n_in, leaf,
                                                  i % 5 == 4 ? 40 : 0);
        for (int codes = 0; codes < (f.kind == QUANT_FP8 ? 1 : 2); codes++)
            for (size_t r = 0; r < N_ROW_COUNTS; r += 1 + (size_t)codes)
                check(&b, &(struct job){.rows = {row_counts[r]},
                                        .n_groups = 1,
                                        .w = &w.w,
                                        .codes = codes == 1,
                                        .every = i % 3 == 2 ? 300 : 0});
        quant_weight_free(&w);
    }
    both_close(&b);
}

/* Experts with one to many rows. Experts without rows are not listed, as moe_experts.c leaves them
 * out. */
static void grouped_linears(void)
{
    static const size_t rows[3][GROUPS_MAX] = {
        {1, 9, 8, 1, 40}, {3, 1, 66, 17, 2}, {70, 1, 129, 64, 80}};
    struct both b = both_open(23);
    for (size_t i = 0; i < 2 * (1 + QUANT_TEST_FORMATS); i++) {
        const size_t leaf = i % 2 ? 128 : 0, n_in = 200, n_out = 40;
        struct packed w[5];
        struct quant_weight q[5];
        struct job j = {.n_groups = 5, .w = w};
        for (size_t g = 0; g < 5; g++) {
            j.rows[g] = rows[i % 3][g];
            if (i / 2 == 0) {
                w[g] = random_packed(&b.rng, DTYPE_BF16, n_out, n_in, leaf, 30, 0);
                continue;
            }
            q[g] = quant_weight_make(&b.rng, quant_test_format(i / 2 - 1), n_out, n_in, leaf, 0);
            w[g] = q[g].w;
            j.codes = w[g].quant.kind != QUANT_FP8;
        }
        check(&b, &j);
        for (size_t g = 0; g < 5 && i / 2 == 0; g++) free(packed_memory(&w[g]));
        for (size_t g = 0; g < 5 && i / 2 > 0; g++) quant_weight_free(&q[g]);
    }
    both_close(&b);
}

/* Tiles of linear_mma of every shape, full or not, with weights of every format but fp8; some last
 * groups are padded. */
static void tiles_of_codes(void)
{
    static const struct {
        size_t rows, n_out, n_in;
    } cases[] = {{12, 17, 200}, {17, 40, 1400}, {64, 130, 200},  {33, 17, 65},
                 {65, 300, 96}, {300, 130, 33}, {129, 300, 600}, {64, 200, 1400}};
    enum { N_CASES = sizeof cases / sizeof cases[0] };
    struct both b = both_open(29);
    for (size_t i = 0; i < QUANT_TEST_FORMATS * N_CASES; i++) {
        const struct quant_format f = quant_test_format(i / N_CASES);
        const size_t c = i % N_CASES;
        const size_t leaf = (i / N_CASES + c) % 3 == 1 ? 3 * quant_kernel_group(f) : 0;
        if (f.kind == QUANT_FP8) continue;
        struct quant_weight w =
            quant_weight_make(&b.rng, f, cases[c].n_out, cases[c].n_in, leaf, 0);
        check(&b, &(struct job){.rows = {cases[c].rows},
                                .n_groups = 1,
                                .w = &w.w,
                                .codes = true,
                                .every = c == 2 ? 300 : 0});
        quant_weight_free(&w);
    }
    both_close(&b);
}

static void many_rows(void)
{
    struct both b = both_open(24);
    struct packed w = random_packed(&b.rng, DTYPE_F16, 5, 32, 0, 0, 0);
    check(&b, &(struct job){.rows = {8192}, .n_groups = 1, .w = &w});
    free(packed_memory(&w));
    struct quant_weight q = quant_weight_make(&b.rng, quant_test_format(0), 33, 128, 0, 0);
    check(&b, &(struct job){.rows = {1024}, .n_groups = 1, .w = &q.w, .codes = true});
    quant_weight_free(&q);
    both_close(&b);
}

static void codes_of_rows(void)
{
    static const char *const names[] = {"int8-g32", "int8-g64", "int8"};
    struct both b = both_open(25);
    for (size_t i = 0; i < 12; i++) {
        const size_t rows = i % 4 == 3 ? 8192 : 1 + 7 * (i % 4), n = i % 4 == 3 ? 40 : 1 + 97 * i;
        struct quant_format f;
        CU_ASSERT_TRUE(quant_format_parse(names[i / 4], &f));
        const struct packed w = {.n_in = (uint32_t)n, .quant = f};
        struct twin x = twin_floats(&b, rows * n, 2.0f, i % 2 ? 200 : 0);
        struct quant_rows cpu, gpu;
        struct twin memory = codes_of(&b, &w, rows, &x, &cpu, &gpu);
        twin_same(&b, &memory, "codes");
        twin_free(&b, &x);
        twin_free(&b, &memory);
    }
    both_close(&b);
}

static void embeddings(void)
{
    static const int32_t tokens[] = {0, 5, 39, 40, 12, -1, 5, 1000000};
    enum { N = sizeof tokens / sizeof tokens[0], V = 30, D = 200 };
    struct both b = both_open(26);
    for (size_t i = 0; i < 3 + QUANT_TEST_FORMATS; i++) {
        struct packed plain = {0};
        struct quant_weight q;
        if (i < 3)
            plain = random_packed(&b.rng, (enum dtype)i, V, D, 0, 0, 60);
        else
            q = quant_weight_make(&b.rng, quant_test_format(i - 3), V, D, 0, 20);
        struct weight_twin w = weight_twin_of(&b, i < 3 ? &plain : &q.w);
        struct twin h = twin_zeros(&b, N * D * sizeof(float));
        struct embed_args a = {.w = &w.cpu,
                               .tokens = tokens,
                               .n_rows = N,
                               .vocab_begin = 10,
                               .vocab_end = 10 + V,
                               .h = h.host};
        op_embed(&b.cpu, &a);
        a.w = &w.gpu;
        a.h = h.device;
        op_embed(&b.gpu, &a);
        twin_same_floats(&b, &h, "embedding");
        twin_free(&b, &h);
        weight_twin_free(&b, &w);
        if (i < 3)
            free(packed_memory(&plain));
        else
            quant_weight_free(&q);
    }
    both_close(&b);
}

/* Packs rows in the checkpoint's form, some at a time, and transposed. */
static void packing(void)
{
    enum { N = 45, K = 70 };
    struct both b = both_open(27);
    struct twin rows = twin_floats(&b, N * K, 1.0f, 0);
    for (int t = 0; t < DTYPE_COUNT; t++) {
        const size_t n_bytes = packed_bytes((enum dtype)t, N, K),
                     row = K * dtype_bytes((enum dtype)t);
        struct twin data = twin_zeros(&b, n_bytes), turned = twin_zeros(&b, n_bytes);
        for (int gpu = 0; gpu < 2; gpu++) {
            const struct kern_table *k = gpu ? &b.gpu : &b.cpu;
            struct packed w = {.dtype = (enum dtype)t, .n_out = N, .n_in = K};
            w.data = gpu ? data.device : data.host;
            op_pack_rows(k, &w, &(struct matrix_rows){rows.host, row, 0, 19});
            op_pack_rows(k, &w,
                         &(struct matrix_rows){(char *)rows.host + 19 * row, row, 19, N - 19});
            w.data = gpu ? turned.device : turned.host;
            op_pack_columns(
                k, &w, &(struct matrix_rows){rows.host, N * dtype_bytes((enum dtype)t), 5, K - 5});
        }
        twin_same(&b, &data, "packed rows");
        twin_same(&b, &turned, "packed columns");
        twin_free(&b, &data);
        twin_free(&b, &turned);
    }
    twin_free(&b, &rows);
    both_close(&b);
}

/* Compares the quantized values of all inputs; padding after the last input may differ. */
static void same_codes(const struct both *b, const struct packed *like, const struct twin *data)
{
    void *found = test_memory(data->n_bytes);
    struct packed cpu = *like, gpu = *like;
    size_t n_different = 0;
    mem_ops_get(&b->gpu, found, data->device, data->n_bytes);
    cpu.data = data->host;
    gpu.data = found;
    for (size_t n = 0; n < like->n_out; n++)
        for (size_t k = 0; k < like->n_in; k++)
            n_different += kern_quant_code(&cpu, n, k) != kern_quant_code(&gpu, n, k);
    CU_ASSERT_EQUAL(n_different, 0);
    free(found);
}

static void pack_stored(struct both *b, const struct quant_weight *q)
{
    const struct quant_format f = q->w.quant;
    const size_t code_row = quant_code_bytes(f.kind, q->w.n_in);
    const size_t n_scales = quant_groups(f, q->w.n_in);
    const size_t scale_row = n_scales * dtype_bytes(quant_scale_dtype(f));
    const struct packed_quant_sizes n = packed_quant_bytes(f, q->w.n_out, q->w.n_in);
    struct twin data = twin_zeros(b, n.data), scales = twin_zeros(b, n.scales);
    struct twin zeros = twin_zeros(b, n.zeros);
    for (int gpu = 0; gpu < 2; gpu++) {
        const struct kern_table *k = gpu ? &b->gpu : &b->cpu;
        struct packed w = q->w;
        w.data = gpu ? data.device : data.host;
        w.scales = gpu ? scales.device : scales.host;
        if (f.has_zeros) w.zeros = gpu ? zeros.device : zeros.host;
        op_pack_quant(k, &w, PACKED_CODES, &(struct matrix_rows){q->codes, code_row, 0, w.n_out});
        op_pack_quant(k, &w, PACKED_SCALES,
                      &(struct matrix_rows){q->scales, scale_row, 0, w.n_out});
        if (f.has_zeros)
            op_pack_quant(k, &w, PACKED_ZEROS,
                          &(struct matrix_rows){q->zeros, n_scales, 0, w.n_out});
    }
    same_codes(b, &q->w, &data);
    twin_same(b, &scales, "packed scales");
    twin_same(b, &zeros, "packed zeros");
    twin_free(b, &data);
    twin_free(b, &scales);
    twin_free(b, &zeros);
}

static void packing_of_codes(void)
{
    struct both b = both_open(28);
    for (size_t i = 0; i < QUANT_TEST_FORMATS; i++) {
        struct quant_weight q =
            quant_weight_make(&b.rng, quant_test_format(i), 35, 150 + 3 * i, 0, 0);
        pack_stored(&b, &q);
        quant_weight_free(&q);
    }
    both_close(&b);
}

void suite_linears(CU_pSuite suite);
void suite_linears(CU_pSuite suite)
{
    CU_ADD_TEST(suite, plain_linears);
    CU_ADD_TEST(suite, quantized_linears);
    CU_ADD_TEST(suite, grouped_linears);
    CU_ADD_TEST(suite, tiles_of_codes);
    CU_ADD_TEST(suite, many_rows);
    CU_ADD_TEST(suite, codes_of_rows);
    CU_ADD_TEST(suite, embeddings);
    CU_ADD_TEST(suite, packing);
    CU_ADD_TEST(suite, packing_of_codes);
}
