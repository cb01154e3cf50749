/* Measures the latencies of the collectives of one step, alternately through a host's shared memory
 * and through MPI. usage: mpirun -n RANKS bench_comm. Prints the least and the median time of the
 * slowest rank, in microseconds. */
#include "base/clock.h"
#include "parallel/comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_MAX = 1 << 20, REPEATS = 400 };

struct bench {
    struct comm *c;
    int64_t *sums;  /* [N_MAX], in a shared segment if there is one */
    float *out;     /* [N_MAX] */
    uint32_t *rows; /* [N_MAX], in a shared segment if there is one */
    int n_ranks, rank;
};

static void convert(const void *ctx, const int64_t *sums, size_t first, size_t n, uint32_t *words)
{
    (void)ctx, (void)first;
    for (size_t i = 0; i < n; i++) {
        const float y = (float)((double)sums[i] * 0x1p-32);
        memcpy(words + i, &y, sizeof y);
    }
}

static void take(const void *ctx, const uint32_t *words, size_t first, size_t n)
{
    float *out = ((const struct bench *)ctx)->out + first;
    for (size_t i = 0; i < n; i++) {
        float y;
        memcpy(&y, words + i, sizeof y);
        out[i] += y;
    }
}

static void run_barrier(struct bench *b, size_t n_bytes)
{
    (void)n_bytes;
    comm_barrier(b->c, COMM_STAGE);
}

static void run_sum(struct bench *b, size_t n_bytes)
{
    comm_sum_i64(b->c, COMM_STAGE, b->sums, n_bytes / 8);
}

static void run_sum_words(struct bench *b, size_t n_bytes)
{
    const struct comm_sum s = {
        .sums = b->sums, .n = n_bytes / 8, .convert = convert, .take = take, .ctx = b};
    comm_sum_words(b->c, COMM_STAGE, &s);
}

static void run_broadcast(struct bench *b, size_t n_bytes)
{
    comm_broadcast(b->c, COMM_STAGE, 0, b->out, n_bytes);
}

static void run_gather(struct bench *b, size_t n_bytes)
{
    int counts[256], displs[256];
    const int each = (int)(n_bytes / 4) / b->n_ranks;
    for (int r = 0; r < b->n_ranks; r++) {
        counts[r] = each;
        displs[r] = r * each;
    }
    comm_gather_words(b->c, COMM_STAGE, b->out, counts, displs);
}

static void run_exchange(struct bench *b, size_t n_bytes)
{
    int counts[256], displs[256];
    const int each = (int)(n_bytes / 4) / b->n_ranks;
    for (int r = 0; r < b->n_ranks; r++) {
        counts[r] = each;
        displs[r] = r * each;
    }
    const struct comm_exchange x = {.row_words = 1,
                                    .send = b->rows,
                                    .send_counts = counts,
                                    .send_displs = displs,
                                    .recv = b->out,
                                    .recv_counts = counts,
                                    .recv_displs = displs};
    comm_exchange_rows(b->c, COMM_STAGE, &x);
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Times repetitions of `run`; the time of each is that of its slowest rank. */
static void measure(struct bench *b, void (*run)(struct bench *b, size_t n_bytes), size_t n_bytes,
                    double *least_us, double *median_us)
{
    static uint64_t ns[REPEATS];
    const int n = n_bytes > 1 << 18 ? REPEATS / 8 : REPEATS;
    for (int i = 0; i < n; i++) {
        run_barrier(b, 0);
        const uint64_t since = clock_ns();
        run(b, n_bytes);
        ns[i] = clock_ns() - since;
    }
    comm_max_u64(b->c, COMM_STAGE, ns, (size_t)n);
    qsort(ns, (size_t)n, sizeof *ns, by_value);
    *least_us = (double)ns[0] * 1e-3;
    *median_us = (double)ns[n / 2] * 1e-3;
}

static const struct {
    const char *name;
    void (*run)(struct bench *b, size_t n_bytes);
} ops[] = {{"barrier", run_barrier},     {"sum i64", run_sum},   {"sum to f32", run_sum_words},
           {"broadcast", run_broadcast}, {"gather", run_gather}, {"exchange", run_exchange}};

static void print_op(struct bench *b, size_t op)
{
    const size_t sizes[] = {64, 1024, 4096, 8192, 16384, 65536, 262144, 1 << 20, 4 << 20};
    const size_t n_sizes = ops[op].run == run_barrier ? 1 : sizeof sizes / sizeof *sizes;
    for (size_t i = 0; i < n_sizes; i++) {
        double us[2][2];
        for (int by_mpi = 0; by_mpi < 2; by_mpi++) {
            comm_use_memory(b->c, COMM_STAGE, by_mpi == 0);
            measure(b, ops[op].run, sizes[i], &us[by_mpi][0], &us[by_mpi][1]);
        }
        comm_use_memory(b->c, COMM_STAGE, true);
        if (b->rank != 0) continue;
        printf("%-10s %8zu   %9.2f %9.2f   %9.2f %9.2f\n", ops[op].name, sizes[i], us[0][0],
               us[0][1], us[1][0], us[1][1]);
    }
}

/* Starts MPI and makes all ranks one stage. */
static struct status start(struct bench *b, int *argc, char ***argv)
{
    TRY(comm_start(argc, argv, &b->c));
    const uint32_t n = (uint32_t)comm_size(b->c, COMM_WORLD);
    if (n > 256) return status_make(STATUS_USAGE, "bench_comm: at most 256 ranks");
    static const struct arch arch = {.n_layers = 1,
                                     .width = 64,
                                     .n_heads = 1,
                                     .n_kv_heads = 1,
                                     .head_dim = 64,
                                     .query_dim = 64,
                                     .value_dim = 64,
                                     .ffn = 64,
                                     .vocab = 64,
                                     .context = 64};
    static const struct layout_model model = {
        .name = "bench", .arch = &arch, .o_leaf = 64, .ffn_leaf = 64, .weight_bytes = 4};
    const struct layout_flags flags = {.tp = 1, .pp = 1, .dp = n, .ep = 1};
    static struct layout l;
    static uint32_t order[256];
    TRY(layout_build(&model, n, &flags, &l));
    for (uint32_t r = 0; r < n; r++) order[r] = r;
    TRY(comm_split(b->c, &l, order));
    b->n_ranks = (int)n;
    b->rank = comm_rank(b->c, COMM_STAGE);
    b->sums = comm_lane(b->c, COMM_STAGE, COMM_LANE_SUMS, N_MAX * sizeof *b->sums);
    b->rows = comm_lane(b->c, COMM_STAGE, COMM_LANE_ROWS_OUT, N_MAX * sizeof *b->rows);
    if (b->sums == NULL) b->sums = calloc(N_MAX, sizeof *b->sums);
    if (b->rows == NULL) b->rows = calloc(N_MAX, sizeof *b->rows);
    b->out = calloc(N_MAX, sizeof *b->out);
    return status_ok();
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    const struct status st = start(&b, &argc, &argv);
    if (status_failed(&st)) {
        fprintf(stderr, "%s\n", st.text);
        return 1;
    }
    if (b.rank == 0) {
        printf("%d ranks, shared memory: %s\n", b.n_ranks,
               comm_shares_memory(b.c, COMM_STAGE) ? "yes" : "no");
        printf("%-10s %8s   %19s   %19s\n", "", "bytes", "memory: least median",
               "MPI: least median");
    }
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) print_op(&b, i);
    comm_stop(&b.c);
    return 0;
}
