/* Measures the latencies of the collectives of one step, alternately through a host's shared memory
 * and through MPI. usage: mpirun -n RANKS bench_comm [BYTES...]. Prints the least and the median
 * time of the slowest rank, in microseconds.
 *
 * With BYTES (hosts need equal numbers of ranks): each host sends so many bytes to each other host,
 * in turns by mail (comm_mail.h) and by one MPI_Alltoallv. Prints, for each BYTES, both medians of
 * the times and the mail's rate divided by that of MPI_Alltoallv: the median over the turns, with
 * the first and the third quartile. */
#include "base/clock.h"
#include "parallel/comm/comm_mail.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_MAX = 1 << 20, REPEATS = 400, RANKS_MAX = 256 };
enum { MAIL_REPEATS = 60, MAIL_SECONDS = 5 }; /* at most, for each number of bytes */

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
    int counts[RANKS_MAX], displs[RANKS_MAX];
    const int each = (int)(n_bytes / 4) / b->n_ranks;
    for (int r = 0; r < b->n_ranks; r++) {
        counts[r] = each;
        displs[r] = r * each;
    }
    comm_gather_words(b->c, COMM_STAGE, b->out, counts, displs);
}

static void run_exchange(struct bench *b, size_t n_bytes)
{
    int counts[RANKS_MAX], displs[RANKS_MAX];
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

/* --- a mail beside MPI_Alltoallv ----------------------------------------------------------------
 */

/* Messages between hosts: each rank sends n_bytes to each rank of every other host. */
struct parts {
    struct comm_mail *mail;
    struct comm_mail_places at;
    size_t n_bytes; /* from a rank to a rank */
    char *out, *in; /* [ranks, n_bytes] */
};

static void run_mail(struct bench *b, const struct parts *p)
{
    struct comm_mail_piece pieces[RANKS_MAX];
    size_t at = comm_mail_head_bytes(p->mail, 1), sent;
    for (int h = 0; h < p->at.n_hosts; h++) {
        const size_t n = h == p->at.host ? 0 : p->n_bytes * (size_t)p->at.n_on[h];
        pieces[h] = (struct comm_mail_piece){at, n};
        at += n;
    }
    comm_mail_memory(p->mail, COMM_LANE_ROWS_OUT, at);
    comm_mail_start(b->c, p->mail, COMM_LANE_ROWS_OUT, pieces, 1);
    comm_mail_finish(b->c, p->mail, &sent);
}

static void run_alltoallv(struct bench *b, const struct parts *p)
{
    int counts[RANKS_MAX], displs[RANKS_MAX];
    for (int r = 0; r < b->n_ranks; r++) {
        counts[r] = p->at.host_of[r] == p->at.host ? 0 : (int)p->n_bytes;
        displs[r] = r * (int)p->n_bytes;
    }
    MPI_Alltoallv(p->out, counts, displs, MPI_BYTE, p->in, counts, displs, MPI_BYTE,
                  comm_handle(b->c, COMM_STAGE));
}

/* Returns the nanoseconds that the slowest rank took for one exchange. */
static uint64_t time_of(struct bench *b, const struct parts *p, bool by_mail)
{
    run_barrier(b, 0);
    const uint64_t since = clock_ns();
    if (by_mail) run_mail(b, p);
    if (!by_mail) run_alltoallv(b, p);
    uint64_t ns = clock_ns() - since;
    comm_max_u64(b->c, COMM_STAGE, &ns, 1);
    return ns;
}

static void print_mail(struct bench *b, struct parts *p, size_t n_bytes)
{
    uint64_t mail[MAIL_REPEATS], all[MAIL_REPEATS], ratio[MAIL_REPEATS]; /* millionths */
    const uint64_t warm = time_of(b, p, true) + time_of(b, p, false);
    const uint64_t fit = MAIL_SECONDS * 1000000000ull / (warm + 1);
    const size_t n = fit < 4 ? 4 : fit > MAIL_REPEATS ? MAIL_REPEATS : (size_t)fit;
    for (size_t i = 0; i < n; i++) {
        if (i % 2 == 0) mail[i] = time_of(b, p, true);
        all[i] = time_of(b, p, false);
        if (i % 2 == 1) mail[i] = time_of(b, p, true);
        ratio[i] = all[i] * 1000000 / mail[i];
    }
    qsort(mail, n, sizeof *mail, by_value);
    qsort(all, n, sizeof *all, by_value);
    qsort(ratio, n, sizeof *ratio, by_value);
    if (b->rank != 0) return;
    printf("%10zu   %10.1f   %10.1f   %.3f (%.3f .. %.3f) of %zu\n", n_bytes,
           (double)mail[n / 2] * 1e-3, (double)all[n / 2] * 1e-3, (double)ratio[n / 2] * 1e-6,
           (double)ratio[n / 4] * 1e-6, (double)ratio[n - 1 - n / 4] * 1e-6, n);
    fflush(stdout);
}

/* Refuses hosts with unequal numbers of ranks, whose Alltoallv would have unequal counts, and
 * numbers of bytes below one for each pair of ranks or beyond an int. */
static struct status check_sizes(const struct bench *b, const struct parts *p, int n, char **sizes)
{
    const size_t pairs = (size_t)(p->at.n_local * p->at.n_local);
    for (int h = 0; h < p->at.n_hosts; h++) {
        if (p->at.n_on[h] != p->at.n_local)
            return status_make(STATUS_USAGE, "bench_comm: expected as many ranks on each host");
    }
    for (int i = 0; i < n; i++) {
        const size_t n_bytes = strtoul(sizes[i], NULL, 10);
        if (n_bytes < pairs || n_bytes / pairs > INT_MAX / (size_t)b->n_ranks)
            return status_make(STATUS_USAGE, "bench_comm: %s: expected %zu to %zu bytes", sizes[i],
                               pairs, INT_MAX / (size_t)b->n_ranks * pairs);
    }
    return status_ok();
}

static struct status print_mails(struct bench *b, int n_sizes, char **sizes)
{
    struct parts p = {0};
    TRY(comm_mail_open(b->c, COMM_STAGE, 0, &p.mail));
    if (p.mail != NULL) p.at = comm_mail_places_of(p.mail);
    if (p.at.n_hosts < 2) return status_make(STATUS_USAGE, "bench_comm: BYTES need several hosts");
    TRY(check_sizes(b, &p, n_sizes, sizes));
    if (b->rank == 0)
        printf("%d hosts of %d ranks\n%10s   %10s   %10s   rate of the mail by the other's\n",
               p.at.n_hosts, p.at.n_local, "bytes", "mail us", "Alltoallv");
    for (int i = 0; i < n_sizes; i++) {
        const size_t n_bytes = strtoul(sizes[i], NULL, 10),
                     pairs = (size_t)(p.at.n_local * p.at.n_local);
        p.n_bytes = n_bytes / pairs;
        p.out = calloc((size_t)b->n_ranks, p.n_bytes + 1);
        p.in = calloc((size_t)b->n_ranks, p.n_bytes + 1);
        if (p.out == NULL || p.in == NULL)
            return status_make(STATUS_MEMORY, "bench_comm: no memory");
        print_mail(b, &p, n_bytes);
        free(p.out);
        free(p.in);
    }
    comm_mail_close(&p.mail);
    return status_ok();
}

/* --- start --------------------------------------------------------------------------------------
 */

/* Starts MPI and makes all ranks one stage. */
static struct status start(struct bench *b, int *argc, char ***argv)
{
    TRY(comm_start(argc, argv, &b->c));
    const uint32_t n = (uint32_t)comm_size(b->c, COMM_WORLD);
    if (n > RANKS_MAX) return status_make(STATUS_USAGE, "bench_comm: at most 256 ranks");
    static struct arch arch = {.n_layers = 1,
                               .width = 64,
                               .attn.n_heads = 1,
                               .attn.n_kv_heads = 1,
                               .attn.head_dim = 64,
                               .attn.query_dim = 64,
                               .attn.value_dim = 64,
                               .ffn = 64,
                               .vocab = 64,
                               .context = 64};
    static const struct layout_model model = {
        .name = "bench", .arch = &arch, .o_leaf = 64, .ffn_leaf = 64, .weight_bytes = 4};
    const struct layout_flags flags = {.tp = 1, .pp = 1, .dp = n, .ep = 1};
    static struct layout l;
    static uint32_t order[RANKS_MAX];
    arch.family = arch_family_at(0);
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

static void print_collectives(struct bench *b)
{
    if (b->rank == 0) {
        printf("%d ranks, shared memory: %s\n", b->n_ranks,
               comm_shares_memory(b->c, COMM_STAGE) ? "yes" : "no");
        printf("%-10s %8s   %19s   %19s\n", "", "bytes", "memory: least median",
               "MPI: least median");
    }
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) print_op(b, i);
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    struct status st = start(&b, &argc, &argv);
    if (!status_failed(&st) && argc > 1) st = print_mails(&b, argc - 1, argv + 1);
    if (status_failed(&st)) {
        fprintf(stderr, "%s\n", st.text);
        return 1;
    }
    if (argc == 1) print_collectives(&b);
    comm_stop(&b.c);
    return 0;
}
