/* Tests row-parallel sums over the emulated NCCL: the bits must be those of the CPU's sums, in
 * parts and as one all-reduce, for sizes that do not divide by the ranks, one after the other and
 * two at a time. */
#include "../driver_emulated.h"
#include "collective/device_comm.h"
#include "collective/grid_sum.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "mpi/util_mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_PAIRS = 2 };

/* One sum: random values and counters, the CPU's result and the device's. */
struct sample {
    size_t n_rows, n_out;
    int64_t *sums; /* [T, N + 1] of this rank */
    float *y, *want_y;
    int32_t *bad, *want_bad;
    struct grid_sum on_device;
};

struct bench {
    struct comm *c;
    struct kern_table cpu, gpu;
};

static struct bench start(size_t parts_from)
{
    const struct util_shape shape = {.width = 96,
                                     .n_experts = 8,
                                     .n_chosen = 2,
                                     .expert_ffn = 96,
                                     .expert_leaf = 16,
                                     .vocab = 96};
    static struct arch arch;
    const struct layout_model model = util_layout_model(&shape, &arch);
    const uint32_t n = util_n_ranks();
    const struct layout_flags flags = {.tp = n, .pp = 1, .dp = 1, .ep = n};
    struct layout *l = malloc(sizeof *l);
    CU_ASSERT_EQUAL_FATAL(layout_build(&model, n, &flags, l).code, STATUS_OK);
    struct bench b = {.c = util_comm(l, 0)};
    free(l);
    CU_ASSERT_EQUAL_FATAL(kern_select("ref", &b.cpu).code, STATUS_OK);
    b.gpu = b.cpu;
    setenv("SHOAL_EMULATED", "nccl_late=3", 1);
    emulated_set((struct emulated){.devices = n});
    const struct device_options o = {
        .name = "cuda", .local_rank = util_rank(), .n_local_ranks = n, .arithmetic = DEVICE_EXACT};
    CU_ASSERT_EQUAL_FATAL(device_open(&o, &b.gpu.device).code, STATUS_OK);
    const struct device_comm_options links = {
        .host = "here",
        .previous = -1,
        .next = -1,
        .flags = {.way = DEVICE_WAY_NCCL, .parts_bytes = parts_from}};
    char said[256];
    const struct status st = device_comm_open(&b.gpu, b.c, &links, said, sizeof said);
    if (status_failed(&st)) printf("%s\n", st.text);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    return b;
}

static void stop(struct bench *b)
{
    const struct status st = device_status(b->gpu.device);
    CU_ASSERT_EQUAL(st.code, STATUS_OK);
    device_close(&b->gpu.device);
    comm_stop(&b->c);
}

static void *on_device(const struct bench *b, size_t n_bytes)
{
    void *p = NULL;
    CU_ASSERT_EQUAL_FATAL(mem_ops_alloc(&b->gpu, &p, n_bytes, 1, "a test's array").code, STATUS_OK);
    return p;
}

static struct sample make(const struct bench *b, size_t n_rows, size_t n_out, uint64_t seed)
{
    struct sample s = {.n_rows = n_rows, .n_out = n_out};
    const size_t n = n_rows * (n_out + 1);
    uint64_t own = seed + 1000 * (uint64_t)comm_rank(b->c, COMM_TP), shared = seed;
    s.sums = calloc(n, sizeof *s.sums);
    s.y = calloc(n_rows * n_out, sizeof *s.y);
    s.want_y = calloc(n_rows * n_out, sizeof *s.y);
    s.bad = calloc(n_rows, sizeof *s.bad);
    s.want_bad = calloc(n_rows, sizeof *s.bad);
    for (size_t i = 0; i < n; i++) {
        const bool is_counter = i % (n_out + 1) == n_out;
        s.sums[i] = (int64_t)util_next(&own) * (int32_t)util_next(&own);
        if (is_counter) s.sums[i] = i / (n_out + 1) % 3 == 0 ? 5000000000 : util_next(&own) % 4;
    }
    for (size_t i = 0; i < n_rows * n_out; i++) s.y[i] = s.want_y[i] = util_uniform(&shared);
    for (size_t i = 0; i < n_rows; i++) s.bad[i] = s.want_bad[i] = (int32_t)(i % 2);
    const size_t room = grid_sum_room(n_rows, n_out, b->c, COMM_TP) * sizeof *s.sums;
    s.on_device = (struct grid_sum){.kern = &b->gpu,
                                    .sums = on_device(b, room),
                                    .n_rows = n_rows,
                                    .n_out = n_out,
                                    .grid_bits = 30,
                                    .y = on_device(b, n_rows * n_out * sizeof *s.y),
                                    .bad = on_device(b, n_rows * sizeof *s.bad)};
    return s;
}

/* Queues the sample's copy to the device; a sum that starts too early does not find it there. */
static void put(const struct bench *b, const struct sample *s)
{
    const struct grid_sum *to = &s->on_device;
    mem_ops_put(&b->gpu, to->y, s->y, s->n_rows * s->n_out * sizeof *s->y);
    mem_ops_put(&b->gpu, to->bad, s->bad, s->n_rows * sizeof *s->bad);
    mem_ops_put(&b->gpu, to->sums, s->sums, s->n_rows * (s->n_out + 1) * sizeof *s->sums);
}

/* Compares the device's result with the CPU's for the same sums. */
static void check(const struct bench *b, struct sample *s, bool adds)
{
    const size_t n_y = s->n_rows * s->n_out * sizeof *s->y, n_bad = s->n_rows * sizeof *s->bad;
    mem_ops_get(&b->gpu, s->y, s->on_device.y, n_y);
    comm_sum_i64(b->c, COMM_TP, s->sums, s->n_rows * (s->n_out + 1));
    if (adds)
        op_grid(&b->cpu, &(struct grid_args){.sums = s->sums,
                                             .n_rows = s->n_rows,
                                             .n_out = s->n_out,
                                             .grid_bits = 30,
                                             .adds = true,
                                             .y = s->want_y,
                                             .bad = s->want_bad});
    if (!adds)
        op_grid(&b->cpu, &(struct grid_args){.sums = s->sums,
                                             .n_rows = s->n_rows,
                                             .n_out = s->n_out,
                                             .grid_bits = 30,
                                             .y = s->want_y,
                                             .bad = s->want_bad});
    mem_ops_get(&b->gpu, s->bad, s->on_device.bad, n_bad);
    CU_ASSERT_EQUAL(memcmp(s->y, s->want_y, n_y), 0);
    CU_ASSERT_EQUAL(memcmp(s->bad, s->want_bad, n_bad), 0);
    void *arrays[] = {&s->on_device.sums, &s->on_device.y, &s->on_device.bad};
    for (size_t i = 0; i < 3; i++) mem_ops_free(&b->gpu, arrays[i]);
    free(s->sums);
    free(s->y);
    free(s->want_y);
    free(s->bad);
    free(s->want_bad);
}

static void sums_are_the_cpus(size_t parts_from)
{
    static const size_t rows[] = {1, 1, 2, 3, 7, 33}, widths[] = {1, 5, 1, 4, 129, 256};
    struct bench b = start(parts_from);
    const struct comm *c = b.c;
    for (size_t i = 0; i < 6; i++) {
        struct sample one = make(&b, rows[i], widths[i], i), other = make(&b, 3, widths[i], i + 9);
        put(&b, &one);
        put(&b, &other);
        grid_sum_start(&one.on_device, b.c, COMM_TP, GRID_SUM_NOW);
        grid_sum_finish_add(&one.on_device, b.c, COMM_TP, GRID_SUM_NOW);
        grid_sum_to_f32(&other.on_device, b.c, COMM_TP);
        check(&b, &one, true);
        check(&b, &other, false);
        struct sample pair[N_PAIRS] = {make(&b, rows[i], widths[i], i),
                                       make(&b, rows[5 - i], widths[5 - i], i + 9)};
        uint32_t *words = on_device(&b, 8);
        for (int k = 0; k < N_PAIRS; k++) put(&b, &pair[k]);
        for (int k = 0; k < N_PAIRS; k++) grid_sum_start(&pair[k].on_device, b.c, COMM_TP, k);
        /* on the same communicator, while both may be running */
        if (i % 2 == 0) device_or_u32(&b.gpu, b.c, COMM_TP, words, 2);
        if (i % 2 != 0)
            usleep(20000); /* an operation that wrongly does not wait would change values in this
                              time */
        grid_sum_finish_add(&pair[0].on_device, b.c, COMM_TP, 0);
        grid_sum_finish_to_f32(&pair[1].on_device, b.c, COMM_TP, 1);
        check(&b, &pair[0], true);
        check(&b, &pair[1], false);
        mem_ops_free(&b.gpu, &words);
    }
    CU_ASSERT_EQUAL(comm_size(c, COMM_TP), (int)util_n_ranks());
    stop(&b);
}

static void as_parts(void)
{
    sums_are_the_cpus(1);
}

static void as_one_all_reduce(void)
{
    sums_are_the_cpus(SIZE_MAX);
}

void suite_sums(CU_pSuite suite);

void suite_sums(CU_pSuite suite)
{
    CU_add_test(suite, "as parts", as_parts);
    CU_add_test(suite, "as one all-reduce", as_one_all_reduce);
}
