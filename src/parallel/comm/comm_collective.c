/* Collectives over an axis: in shared memory if all its ranks are on one host, else by MPI. Sums
 * over several hosts use both (host_sum.h). */
#define COMM_INSIDE /* comm.h then defines no macros that record call sites (debug builds) */
#include "parallel/comm/comm_private.h"

#include "base/clock.h"
#include "parallel/comm/host_group.h"
#include "parallel/comm/host_sum.h"

#include <string.h>

/* One all-reduce operation, as MPI and a host group name it. */
struct reduction {
    size_t elem_bytes;
    MPI_Datatype type;
    MPI_Op op;
    enum host_reduction on_host;
};

static void reduce_by_mpi(struct comm *c, enum comm_axis axis, void *buf, size_t n,
                          const struct reduction *r)
{
    char *at = buf;
    for (size_t left = n; left > 0;) {
        const size_t now = left < ELEMS_AT_ONCE ? left : ELEMS_AT_ONCE;
        comm_check(c, MPI_Allreduce(MPI_IN_PLACE, at, (int)now, r->type, r->op, c->axes[axis]),
                   "all-reduce", axis);
        at += now * r->elem_bytes;
        left -= now;
    }
}

static void reduce(struct comm *c, enum comm_axis axis, void *buf, size_t n,
                   const struct reduction *r)
{
    if (c->sizes[axis] == 1) return;
    comm_agree_on_call(c, "all-reduce", axis, n, r->elem_bytes, -1);
    const uint64_t since = comm_begin(c, FLIGHT_ALL_REDUCE, axis, n);
    struct host_group *g = comm_group_of(c, axis);
    if (g != NULL) {
        comm_check_memory(c, host_group_reduce(g, r->on_host, buf, n), "all-reduce", axis);
    } else {
        reduce_by_mpi(c, axis, buf, n, r);
    }
    comm_account(c, axis, since, n * r->elem_bytes);
}

static const struct reduction sum_i64 = {sizeof(int64_t), MPI_INT64_T, MPI_SUM, HOST_SUM_I64};
static const struct reduction or_u32 = {sizeof(uint32_t), MPI_UINT32_T, MPI_BOR, HOST_OR_U32};
static const struct reduction max_u64 = {sizeof(uint64_t), MPI_UINT64_T, MPI_MAX, HOST_MAX_U64};
static const struct reduction min_u64 = {sizeof(uint64_t), MPI_UINT64_T, MPI_MIN, HOST_MIN_U64};

/* Adds s->sums over the hosts of an axis, with words of word_bytes. False, and nothing done, when
 * this sum goes over MPI alone. */
static bool sum_over_hosts(struct comm *c, enum comm_axis axis, const struct comm_sum *s,
                           size_t word_bytes)
{
    const enum host_sum_way way = host_sum_way_of(c, axis, s->n);
    if (way == HOST_SUM_FLAT) return false;
    c->stats[axis].wire_bytes += host_sum(c, axis, s, way, word_bytes);
    return true;
}

/* Copies the totals as they are, for sums that stay integers. */
static void copy_totals(const void *ctx, const int64_t *sums, size_t first, size_t n,
                        uint32_t *words)
{
    (void)ctx, (void)first;
    memcpy(words, sums, n * sizeof *sums);
}

static void store_totals(const void *ctx, const uint32_t *words, size_t first, size_t n)
{
    int64_t *const *to = ctx;
    memcpy(*to + first, words, n * sizeof **to);
}

void comm_sum_i64(struct comm *c, enum comm_axis axis, int64_t *buf, size_t n)
{
    if (host_sum_way_of(c, axis, n) == HOST_SUM_FLAT) {
        reduce(c, axis, buf, n, &sum_i64);
        return;
    }
    const struct comm_sum s = {
        .sums = buf, .n = n, .convert = copy_totals, .take = store_totals, .ctx = &buf};
    comm_agree_on_call(c, "all-reduce", axis, n, sizeof *buf, -1);
    const uint64_t since = comm_begin(c, FLIGHT_ALL_REDUCE, axis, n);
    (void)sum_over_hosts(c, axis, &s, sizeof *buf);
    comm_account(c, axis, since, n * sizeof *buf);
}

void comm_or_u32(struct comm *c, enum comm_axis axis, uint32_t *buf, size_t n)
{
    reduce(c, axis, buf, n, &or_u32);
}

void comm_max_u64(struct comm *c, enum comm_axis axis, uint64_t *buf, size_t n)
{
    reduce(c, axis, buf, n, &max_u64);
}

void comm_min_u64(struct comm *c, enum comm_axis axis, uint64_t *buf, size_t n)
{
    reduce(c, axis, buf, n, &min_u64);
}

static void gather_by_mpi(struct comm *c, enum comm_axis axis, void *all, const int *counts,
                          const int *displs)
{
    comm_check(c,
               MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, counts, displs, MPI_UINT32_T,
                              c->axes[axis]),
               "all-gather", axis);
}

/* Converts s->sums, which are totals already, and hands the words to s->take. */
static void take_sum_words(const struct comm_sum *s)
{
    uint32_t words[1024];
    const size_t at_once = sizeof words / sizeof *words;
    for (size_t i = 0; i < s->n; i += at_once) {
        const size_t n = s->n - i < at_once ? s->n - i : at_once;
        s->convert(s->ctx, s->sums + i, i, n, words);
        s->take(s->ctx, words, i, n);
    }
}

/* Sums elements [first, first + n): a reduce-scatter of 8-byte sums, then each rank converts its
 * part, then an all-gather of 4-byte words. That moves three quarters of the bytes of an
 * all-reduce. */
static void sum_parts_by_mpi(struct comm *c, enum comm_axis axis, const struct comm_sum *s,
                             size_t first, size_t n)
{
    const size_t size = (size_t)c->sizes[axis], me = (size_t)c->ranks[axis];
    int *counts = c->parts, *displs = c->parts + size;
    for (size_t r = 0; r < size; r++) {
        displs[r] = (int)(n * r / size);
        counts[r] = (int)(n * (r + 1) / size) - displs[r];
    }
    int64_t *sums = s->sums + first;
    comm_check(c,
               MPI_Reduce_scatter(MPI_IN_PLACE, sums, counts, MPI_INT64_T, MPI_SUM, c->axes[axis]),
               "reduce-scatter", axis);
    /* the first half of `sums` holds this rank's totals, the second half the words */
    uint32_t *words = (uint32_t *)(void *)sums + n, *mine = words + displs[me];
    s->convert(s->ctx, sums, first + (size_t)displs[me], (size_t)counts[me], mine);
    gather_by_mpi(c, axis, words, counts, displs);
    s->take(s->ctx, words, first, n);
}

static void sum_words_by_mpi(struct comm *c, enum comm_axis axis, const struct comm_sum *s)
{
    if (s->n < PARTS_FROM) {
        reduce_by_mpi(c, axis, s->sums, s->n, &sum_i64);
        take_sum_words(s);
        return;
    }
    for (size_t first = 0; first < s->n;) {
        const size_t left = s->n - first;
        /* the last part may be up to twice as long, so that it is never small */
        const size_t now = left < 2 * ELEMS_AT_ONCE ? left : ELEMS_AT_ONCE;
        sum_parts_by_mpi(c, axis, s, first, now);
        first += now;
    }
}

void comm_sum_words(struct comm *c, enum comm_axis axis, const struct comm_sum *s)
{
    if (c->sizes[axis] == 1) {
        take_sum_words(s);
        return;
    }
    comm_agree_on_call(c, "all-reduce to words", axis, s->n, sizeof *s->sums, -1);
    const uint64_t since = comm_begin(c, FLIGHT_ALL_REDUCE, axis, s->n);
    struct host_group *g = comm_group_of(c, axis);
    if (g != NULL) {
        comm_check_memory(c, host_group_sum_words(g, s), "all-reduce", axis);
    } else if (!sum_over_hosts(c, axis, s, sizeof(uint32_t))) {
        sum_words_by_mpi(c, axis, s);
    }
    comm_account(c, axis, since, s->n * sizeof *s->sums);
}

void comm_gather_words(struct comm *c, enum comm_axis axis, void *all, const int *counts,
                       const int *displs)
{
    if (c->sizes[axis] == 1) return;
    comm_agree_on_call(c, "all-gather", axis, 0, 4, -1);
    const uint64_t since = comm_begin(c, FLIGHT_ALL_GATHER, axis, (uint64_t)counts[c->ranks[axis]]);
    struct host_group *g = comm_group_of(c, axis);
    if (g != NULL) {
        comm_check_memory(c, host_group_gather_words(g, all, counts, displs), "all-gather", axis);
    } else {
        gather_by_mpi(c, axis, all, counts, displs);
    }
    comm_account(c, axis, since, (size_t)counts[c->ranks[axis]] * 4);
}

void comm_gather_bytes(struct comm *c, enum comm_axis axis, const void *mine, size_t n_bytes,
                       void *all)
{
    comm_agree_on_call(c, "all-gather", axis, n_bytes, 1, -1);
    const uint64_t since = comm_begin(c, FLIGHT_ALL_GATHER, axis, n_bytes);
    const int n = (int)n_bytes;
    struct host_group *g = comm_group_of(c, axis);
    if (g != NULL) {
        comm_check_memory(c, host_group_gather_bytes(g, mine, n_bytes, all), "all-gather", axis);
    } else {
        comm_check(c, MPI_Allgather(mine, n, MPI_BYTE, all, n, MPI_BYTE, c->axes[axis]),
                   "all-gather", axis);
    }
    comm_account(c, axis, since, n_bytes);
}

void comm_exchange_i32(struct comm *c, enum comm_axis axis, const int32_t *send, int32_t *recv,
                       size_t n)
{
    if (c->sizes[axis] == 1) {
        memcpy(recv, send, n * sizeof *send);
        return;
    }
    comm_agree_on_call(c, "all-to-all of counts", axis, n, 4, -1);
    const uint64_t since = comm_begin(c, FLIGHT_ALL_TO_ALL, axis, n);
    struct host_group *g = comm_group_of(c, axis);
    if (g != NULL) {
        comm_check_memory(c, host_group_exchange_i32(g, send, recv, n), "all-to-all of counts",
                          axis);
    } else {
        comm_check(
            c, MPI_Alltoall(send, (int)n, MPI_INT32_T, recv, (int)n, MPI_INT32_T, c->axes[axis]),
            "all-to-all of counts", axis);
    }
    comm_account(c, axis, since, n * sizeof *send * (size_t)c->sizes[axis]);
}

static void exchange_by_mpi(struct comm *c, enum comm_axis axis, const struct comm_exchange *x)
{
    MPI_Datatype row; /* a type of one row, so that displacements fit an int even beyond 2^31
                         words */
    comm_check(c, MPI_Type_contiguous((int)x->row_words, MPI_UINT32_T, &row), "row type", axis);
    comm_check(c, MPI_Type_commit(&row), "row type", axis);
    comm_check(c,
               MPI_Alltoallv(x->send, x->send_counts, x->send_displs, row, x->recv, x->recv_counts,
                             x->recv_displs, row, c->axes[axis]),
               "all-to-all", axis);
    comm_check(c, MPI_Type_free(&row), "row type", axis);
}

void comm_exchange_rows(struct comm *c, enum comm_axis axis, const struct comm_exchange *x)
{
    const size_t row_bytes = x->row_words * 4;
    if (c->sizes[axis] == 1) {
        const char *from = (const char *)x->send + (size_t)x->send_displs[0] * row_bytes;
        char *to = (char *)x->recv + (size_t)x->recv_displs[0] * row_bytes;
        memcpy(to, from, (size_t)x->send_counts[0] * row_bytes);
        return;
    }
    size_t n_rows = 0;
    for (int i = 0; i < c->sizes[axis]; i++) n_rows += (size_t)x->send_counts[i];
    comm_agree_on_call(c, "all-to-all", axis, 0, x->row_words * 4, -1);
    const uint64_t since = comm_begin(c, FLIGHT_ALL_TO_ALL, axis, n_rows * x->row_words);
    struct host_group *g = comm_group_of(c, axis);
    if (g != NULL) {
        comm_check_memory(c, host_group_exchange_rows(g, x), "all-to-all", axis);
    } else {
        exchange_by_mpi(c, axis, x);
    }
    comm_account(c, axis, since, n_rows * row_bytes);
}

static void broadcast_part(struct comm *c, enum comm_axis axis, int root, void *buf, int n_bytes)
{
    const uint64_t since = clock_ns();
    MPI_Request request;
    int done = 0;
    if (!c->waits_asleep) {
        comm_check(c, MPI_Bcast(buf, n_bytes, MPI_BYTE, root, c->axes[axis]), "broadcast", axis);
        return;
    }
    comm_check(c, MPI_Ibcast(buf, n_bytes, MPI_BYTE, root, c->axes[axis], &request), "broadcast",
               axis);
    while (!done) {
        comm_check(c, MPI_Test(&request, &done, MPI_STATUS_IGNORE), "broadcast", axis);
        if (!done) comm_rest(since);
    }
}

static void broadcast_by_mpi(struct comm *c, enum comm_axis axis, int root, void *buf,
                             size_t n_bytes)
{
    char *at = buf;
    for (size_t left = n_bytes; left > 0;) {
        const size_t now = left < ELEMS_AT_ONCE ? left : ELEMS_AT_ONCE;
        broadcast_part(c, axis, root, at, (int)now);
        at += now;
        left -= now;
    }
}

void comm_broadcast(struct comm *c, enum comm_axis axis, int root, void *buf, size_t n_bytes)
{
    if (c->sizes[axis] == 1) return;
    comm_agree_on_call(c, "broadcast", axis, n_bytes, 1, root);
    const uint64_t since = comm_begin(c, FLIGHT_BROADCAST, axis, n_bytes);
    struct host_group *g = comm_group_of(c, axis);
    if (g != NULL) {
        comm_check_memory(c, host_group_broadcast(g, root, buf, n_bytes), "broadcast", axis);
    } else {
        broadcast_by_mpi(c, axis, root, buf, n_bytes);
    }
    comm_account(c, axis, since, n_bytes);
}

void comm_barrier(struct comm *c, enum comm_axis axis)
{
    comm_agree_on_call(c, "barrier", axis, 0, 0, -1);
    const uint64_t since = comm_begin(c, FLIGHT_BARRIER, axis, 0);
    struct host_group *g = comm_group_of(c, axis);
    if (g != NULL) {
        host_group_barrier(g);
    } else {
        comm_check(c, MPI_Barrier(c->axes[axis]), "barrier", axis);
    }
    comm_account(c, axis, since, 0);
}
