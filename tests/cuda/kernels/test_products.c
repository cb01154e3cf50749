/* Tests products of row-major weights: of few rows on the kernel gemm_few, values of leaf sums by
 * the kernel gemm_sums, and a library that stops taking products. Only on the emulated driver. */
#include "util_device.h"

#include "cuda/driver_emulated.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

enum { GRID_BITS = 30 };

/* A weight that the library reads, on the device, and the same one for the reference. */
struct flat_weight {
    struct packed cpu, gpu;
    void *data;
};

static struct both open_with(struct emulated e, enum device_arithmetic arithmetic)
{
    emulated_set(e);
    return both_open_as(51, arithmetic);
}

static struct flat_weight flat_make(struct both *b, enum dtype t, size_t n_out, size_t n_in,
                                    size_t leaf)
{
    const size_t row_bytes = n_in * dtype_bytes(t), n_bytes = packed_bytes(t, n_out, n_in);
    char *rows = test_memory(n_out * row_bytes);
    float *values = test_floats(n_in);
    struct flat_weight w = {.gpu = {.dtype = t,
                                    .n_out = (uint32_t)n_out,
                                    .n_in = (uint32_t)n_in,
                                    .leaf = (uint32_t)leaf,
                                    .grid_bits = GRID_BITS}};
    for (size_t n = 0; n < n_out; n++) {
        rng_floats(&b->rng, values, n_in, 1.0f);
        dtype_from_f32(t, values, n_in, rows + n * row_bytes);
    }
    const struct matrix_rows all = {rows, row_bytes, 0, n_out};
    w.cpu = w.gpu;
    void *packed = test_memory(n_bytes);
    memset(packed, 0, n_bytes);
    packed_put_rows(t, packed, n_in, &all);
    w.cpu.data = packed;
    op_place_weight(&b->gpu, &w.gpu);
    CU_ASSERT_NOT_EQUAL_FATAL(w.gpu.flat, 0);
    const size_t n_flat = packed_bytes_of(&w.gpu);
    CU_ASSERT_EQUAL_FATAL(mem_ops_alloc(&b->gpu, &w.data, n_flat, 1, "a weight").code, STATUS_OK);
    w.gpu.data = w.data;
    CU_ASSERT_EQUAL(op_check_weight(&b->gpu, &w.gpu).code, STATUS_OK);
    void *zeros = calloc(n_flat, 1);
    mem_ops_put(&b->gpu, w.data, zeros, n_flat);
    op_pack_rows(&b->gpu, &w.gpu, &all);
    free(zeros);
    free(values);
    free(rows);
    return w;
}

static void flat_free(struct both *b, struct flat_weight *w)
{
    mem_ops_free(&b->gpu, &w->data);
    free(packed_memory(&w->cpu));
}

/* Runs the linear for rows [row0, row0 + n) of x on the device. */
static void run_rows(struct both *b, const struct packed *w, const struct twin *x, struct twin *y,
                     size_t row0, size_t n)
{
    const struct linear_group group = {w, row0, n};
    op_linear(&b->gpu, &(struct linear_args){.groups = &group,
                                             .n_groups = 1,
                                             .x = x->device,
                                             .x_stride = w->n_in,
                                             .y = y->device,
                                             .y_stride = w->n_out});
}

/* Up to 16 rows have the bits that they have among 40, and need no library. */
static void few_rows(void)
{
    static const enum dtype types[] = {DTYPE_F16, DTYPE_BF16};
    static const size_t counts[] = {1, 7, 16}, outputs[] = {40, 131};
    enum { ROWS = 40, N_IN = 200 };
    struct both b = open_with((struct emulated){.gemm_cores = 1}, DEVICE_LAW);
    for (size_t i = 0; i < 4; i++) {
        emulated_leave_products(UINT32_MAX);
        struct flat_weight w = flat_make(&b, types[i / 2], outputs[i % 2], N_IN, 0);
        struct twin x = twin_floats(&b, ROWS * N_IN, 1.0f, 0);
        struct twin y = twin_zeros(&b, ROWS * outputs[i % 2] * sizeof(float));
        run_rows(&b, &w.gpu, &x, &y, 0, ROWS);
        free(y.host);
        y.host = twin_found(&b, &y);
        emulated_leave_products(0);
        for (size_t c = 0, row = 3; c < 3; row += counts[c++]) {
            void *zeros = calloc(counts[c] * outputs[i % 2], sizeof(float));
            mem_ops_put(&b.gpu, twin_device(&y) + row * outputs[i % 2], zeros,
                        counts[c] * outputs[i % 2] * sizeof(float));
            run_rows(&b, &w.gpu, &x, &y, row, counts[c]);
            free(zeros);
        }
        twin_same(&b, &y, "few rows");
        twin_free(&b, &x);
        twin_free(&b, &y);
        flat_free(&b, &w);
    }
    both_close(&b);
}

/* Sets values [rows, n_out] and bad [rows] to the values and the counters of the integer sums
 * [rows, n_out + 1]. */
static void values_of(const struct twin *sums, size_t rows, size_t n_out, float *values,
                      int32_t *bad)
{
    for (size_t r = 0; r < rows; r++) {
        const int64_t *row = (const int64_t *)sums->host + r * (n_out + 1);
        for (size_t i = 0; i < n_out; i++)
            values[r * n_out + i] = (float)((double)row[i] / (double)(1 << GRID_BITS));
        bad[r] = (int32_t)row[n_out];
    }
}

/* The values of leaf sums are those of the integer sums; a bad leaf counts, and adds nothing. */
static void check_sums(struct both *b, enum dtype t, size_t rows, size_t n_out, size_t every)
{
    enum { N_IN = 200, LEAF = 32 };
    struct flat_weight w = flat_make(b, t, n_out, N_IN, LEAF);
    struct twin x = twin_floats(b, rows * N_IN, 1.0f, every);
    struct twin y = twin_zeros(b, rows * n_out * sizeof(float));
    struct twin bad = twin_zeros(b, rows * sizeof(int32_t));
    struct twin sums = twin_zeros(b, rows * (n_out + 1) * sizeof(int64_t));
    const struct linear_group group = {&w.gpu, 0, rows};
    struct linear_args a = {.groups = &group,
                            .n_groups = 1,
                            .x = x.device,
                            .x_stride = N_IN,
                            .y = y.device,
                            .y_stride = n_out,
                            .sums = sums.device};
    op_linear_leaf(&b->gpu, &a);
    free(sums.host);
    sums.host = twin_found(b, &sums);
    values_of(&sums, rows, n_out, y.host, bad.host);
    a.sums = NULL;
    a.bad = bad.device;
    op_linear_leaf(&b->gpu, &a);
    twin_same(b, &y, "values of products");
    twin_same(b, &bad, "bad leaves");
    a.adds = true;
    op_linear_leaf(&b->gpu, &a);
    for (size_t i = 0; i < rows * n_out; i++) twin_host(&y)[i] += twin_host(&y)[i];
    twin_same(b, &y, "added values of products");
    twin_free(b, &x);
    twin_free(b, &y);
    twin_free(b, &bad);
    twin_free(b, &sums);
    flat_free(b, &w);
}

static void values_of_leaves(void)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    struct both b = open_with((struct emulated){.gemm_cores = 1}, DEVICE_LAW);
    for (size_t i = 0; i < 6; i++)
        check_sums(&b, types[i % 3], i < 3 ? 9 : 530, i % 2 ? 40 : 131, i > 1 ? 3000 : 0);
    both_close(&b);
}

/* Runs a linear with leaves over `rows` rows; the library takes only n of its products. Returns the
 * device's status. is_compared: the values must be the reference's. */
static struct status run_with_products(uint64_t n, size_t n_in, size_t rows, bool is_compared)
{
    enum { N_OUT = 4 };
    struct both b = open_with((struct emulated){0}, DEVICE_FREE);
    struct flat_weight w = flat_make(&b, DTYPE_F32, N_OUT, n_in, n_in / 4);
    struct twin x = twin_floats(&b, rows * n_in, 0.01f, 0);
    struct twin y = twin_zeros(&b, rows * N_OUT * sizeof(float));
    struct twin bad = twin_zeros(&b, rows * sizeof(int32_t));
    struct linear_group group = {&w.cpu, 0, rows};
    struct linear_args a = {.groups = &group,
                            .n_groups = 1,
                            .x = x.host,
                            .x_stride = n_in,
                            .y = y.host,
                            .y_stride = N_OUT,
                            .bad = bad.host};
    if (is_compared) op_linear_leaf(&b.cpu, &a);
    emulated_leave_products(n);
    group.w = &w.gpu;
    a.x = x.device;
    a.y = y.device;
    a.bad = bad.device;
    op_linear_leaf(&b.gpu, &a);
    device_wait(b.gpu.device);
    const struct status st = device_status(b.gpu.device);
    if (is_compared) twin_same(&b, &y, "values without the library");
    twin_free(&b, &x);
    twin_free(&b, &y);
    twin_free(&b, &bad);
    flat_free(&b, &w);
    device_close(&b.gpu.device);
    emulated_set((struct emulated){0});
    return st;
}

/* If the library refuses the first product, shoal's kernels multiply. If it refuses a later one,
 * the output has changed already: the device is given up. 33 rows of 2^18 inputs take two products.
 */
static void a_library_that_stops(void)
{
    CU_ASSERT_EQUAL(run_with_products(0, 256, 5, true).code, STATUS_OK);
    CU_ASSERT_EQUAL(run_with_products(2, 1 << 18, 33, false).code, STATUS_OK);
    const struct status st = run_with_products(1, 1 << 18, 33, false);
    CU_ASSERT_EQUAL(st.code, STATUS_LOST);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "takes a product no more"));
}

void suite_products(CU_pSuite suite);
void suite_products(CU_pSuite suite)
{
    CU_ADD_TEST(suite, few_rows);
    CU_ADD_TEST(suite, values_of_leaves);
    CU_ADD_TEST(suite, a_library_that_stops);
}
