/* The parallel reader: finds out which ranks want which blocks. A block that only one rank of the
 * host wants is read by that rank (loader_stream.c). A block that several ranks want, or a rank
 * with a serial sink, is read into shared memory by any one rank of the host (loader_rounds.c). */
#include "checkpoint/load/loader_private.h"

#include "base/clock.h"
#include "base/mem.h"

#include <limits.h>

struct slab_want slab_whole(const struct ckpt_tensor *t)
{
    struct slab_want want = {.tensor = t, .n_outer = 1, .n_rows = t->n_rows, .n_cols = t->n_cols};
    if (t->n_dims == 3) {
        want.n_outer = t->dims[0];
        want.n_rows = t->dims[1];
    }
    return want;
}

/* Returns the number of rows of one expert: `out` of a tensor [E, out, in]; for other tensors, the
 * number of all rows. */
static uint64_t loader_inner_rows(const struct ckpt_tensor *t)
{
    return t->n_dims == 3 ? t->dims[1] : t->n_rows;
}

struct status loader_agree(MPI_Comm comm, struct status mine)
{
    int rank, worst;
    MPI_Comm_rank(comm, &rank);
    const int vote = status_failed(&mine) ? rank : INT_MAX;
    MPI_Allreduce(&vote, &worst, 1, MPI_INT, MPI_MIN, comm);
    if (worst == INT_MAX) return mine;
    MPI_Bcast(&mine, (int)sizeof mine, MPI_BYTE, worst, comm);
    return mine;
}

/* ---- wants ---- */

static struct status want_check(const struct loader *l, const struct slab_want *want)
{
    const struct ckpt_tensor *t = want->tensor;
    if (t == NULL || t->index >= ckpt_stored_count(l->o->c) || t->n_blocks == 0 ||
        ckpt_tensor_at(l->o->c, t->index) != t) {
        return status_make(STATUS_BUG, "%s: a slab of a tensor that is not stored in this file",
                           ckpt_path(l->o->c));
    }
    const uint64_t n_outer = t->n_dims == 3 ? t->dims[0] : 1, n_inner = loader_inner_rows(t);
    if (want->n_outer > n_outer || want->outer0 > n_outer - want->n_outer ||
        want->n_rows > n_inner || want->row0 > n_inner - want->n_rows || want->n_cols > t->n_cols ||
        want->col0 > t->n_cols - want->n_cols) {
        return status_make(STATUS_BUG, "%s: tensor %s: a slab outside its shape",
                           ckpt_path(l->o->c), t->name);
    }
    return status_ok();
}

static bool want_is_empty(const struct slab_want *want)
{
    return want->n_outer == 0 || want->n_rows == 0 || want->n_cols == 0;
}

static void want_mark(const struct loader *l, const struct slab_want *want, unsigned char *bits)
{
    const struct ckpt_tensor *t = want->tensor;
    if (want_is_empty(want)) return;
    for (uint64_t e = want->outer0; e < want->outer0 + want->n_outer; e++) {
        const uint64_t row = e * loader_inner_rows(t) + want->row0;
        const uint64_t last = (row + want->n_rows - 1) / t->rows_per_block;
        for (uint64_t b = row / t->rows_per_block; b <= last; b++) {
            const uint64_t block = l->first_block[t->index] + b;
            bits[block / CHAR_BIT] |= (unsigned char)(1u << block % CHAR_BIT);
        }
    }
}

struct loader_place loader_next(const struct loader *l, const unsigned char *bits,
                                struct loader_place at)
{
    while (at.block < l->n_blocks && (bits[at.block / CHAR_BIT] >> at.block % CHAR_BIT & 1u) == 0)
        at.block++;
    while (at.block < l->n_blocks && at.block >= l->first_block[at.tensor + 1]) at.tensor++;
    return at;
}

/* Sorts the wants by tensor; wants of one tensor keep the caller's order. */
static struct status wants_sort(struct loader *l)
{
    const size_t n_tensors = ckpt_stored_count(l->o->c);
    TRY(mem_alloc(&l->order, l->o->n_wants, sizeof l->order[0], "the order of slabs"));
    TRY(mem_alloc(&l->first_want, n_tensors + 2, sizeof l->first_want[0], "the order of slabs"));
    /* Listing the wants moves next[i] from tensor i's first index to the first index of tensor
     * i + 1. */
    size_t *next = l->first_want + 1;
    for (size_t i = 0; i < l->o->n_wants; i++) next[l->o->wants[i].tensor->index + 1]++;
    for (size_t i = 0; i < n_tensors; i++) next[i + 1] += next[i];
    for (size_t i = 0; i < l->o->n_wants; i++) l->order[next[l->o->wants[i].tensor->index]++] = i;
    return status_ok();
}

static size_t bits_bytes(const struct loader *l)
{
    return (size_t)(l->n_blocks / CHAR_BIT + 1);
}

/* Marks every block that this rank wants as wanted by this rank alone. find_shared then corrects
 * the blocks that other ranks want too. */
static struct status loader_prepare(struct loader *l)
{
    const size_t n_tensors = ckpt_stored_count(l->o->c);
    for (size_t i = 0; i < l->o->n_wants; i++) TRY(want_check(l, &l->o->wants[i]));
    TRY(wants_sort(l));
    TRY(mem_alloc(&l->first_block, n_tensors + 1, sizeof l->first_block[0], "blocks"));
    for (size_t i = 0; i < n_tensors; i++) {
        l->first_block[i + 1] = l->first_block[i] + ckpt_tensor_at(l->o->c, i)->n_blocks;
    }
    l->n_blocks = l->first_block[n_tensors];
    if (l->n_blocks / CHAR_BIT >= INT_MAX) {
        return status_make(STATUS_INPUT, "%s: too many blocks", ckpt_path(l->o->c));
    }
    TRY(mem_alloc(&l->alone, bits_bytes(l), 1, "blocks"));
    TRY(mem_alloc(&l->shared, bits_bytes(l), 1, "blocks"));
    for (size_t i = 0; i < l->o->n_wants; i++) want_mark(l, &l->o->wants[i], l->alone);
    return status_ok();
}

/* **Collective (host)**. Marks as shared the blocks that several ranks want, and all blocks of a
 * rank whose sink is serial. */
static void find_shared(struct loader *l)
{
    const size_t n = bits_bytes(l);
    MPI_Exscan(l->alone, l->shared, (int)n, MPI_BYTE, MPI_BOR, l->o->host);
    for (size_t i = 0; i < n; i++) {
        if (l->rank == 0) l->shared[i] = 0;
        l->shared[i] &= l->alone[i];
        if (l->o->sink_is_serial) l->shared[i] = l->alone[i];
    }
    MPI_Allreduce(MPI_IN_PLACE, l->shared, (int)n, MPI_BYTE, MPI_BOR, l->o->host);
    for (size_t i = 0; i < n; i++) l->alone[i] &= (unsigned char)~l->shared[i];
}

/* ---- through the file cache or past it ---- */

static uint64_t bytes_read_by(const struct loader *l, const unsigned char *bits)
{
    uint64_t n = 0;
    struct loader_place at = loader_next(l, bits, (struct loader_place){0});
    while (at.block < l->n_blocks) {
        const struct ckpt_tensor *t = ckpt_tensor_at(l->o->c, at.tensor);
        n += ckpt_block_bytes(t, at.block - l->first_block[at.tensor]);
        at.block++;
        at = loader_next(l, bits, at);
    }
    return n;
}

/* **Collective (host)**. Decides for the whole host whether to bypass the system's file cache. */
static void choose_cache(struct loader *l)
{
    const struct loader_job *job = l->o;
    const bool has_choice = job->cache == LOADER_CACHE_AUTO && job->free_bytes > 0;
    uint64_t n_alone = bytes_read_by(l, l->alone);
    const uint64_t n_shared = bytes_read_by(l, l->shared);
    MPI_Allreduce(MPI_IN_PLACE, &n_alone, 1, MPI_UINT64_T, MPI_SUM, job->host);
    const bool has_room = (n_alone + n_shared) <= job->free_bytes / 2;
    int is_direct = job->cache == LOADER_CACHE_OFF;
    if (l->rank == 0 && has_choice && !has_room) is_direct = !ckpt_is_cached(job->c);
    MPI_Bcast(&is_direct, 1, MPI_INT, 0, job->host);
    l->is_direct = is_direct != 0;
}

/* Finds the longest row of all stored tensors, because a rank may read any shared block. */
static void find_longest_row(struct loader *l)
{
    for (size_t i = 0; i < ckpt_stored_count(l->o->c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(l->o->c, i);
        const size_t n = (size_t)t->n_cols * dtype_bytes(t->dtype);
        if (t->n_blocks > 0 && n > l->longest_row) l->longest_row = n;
    }
}

struct status loader_reader(const struct loader *l, uint32_t n_threads, ckpt_series_fn *next,
                            void *ctx, struct ckpt_reader **out)
{
    const uint32_t each = LOADER_DIRECT_READS / n_threads;
    const struct ckpt_reader_job job = {.c = l->o->c,
                                        .longest_row = l->longest_row,
                                        .n_direct = !l->is_direct ? 0
                                                    : each > 2    ? each
                                                                  : 2,
                                        .next = next,
                                        .ctx = ctx};
    return ckpt_reader_create(&job, out);
}

/* ---- giving rows to the sink ---- */

/* Gives the sink the rows that lie in the want, one piece for each outer index. */
static struct status want_take(const struct loader *l, size_t index, uint64_t row, uint64_t n_rows,
                               const char *rows)
{
    const struct slab_want *want = &l->o->wants[index];
    const struct ckpt_tensor *t = want->tensor;
    const uint64_t inner = loader_inner_rows(t), high = row + n_rows;
    const size_t elem_bytes = dtype_bytes(t->dtype), row_bytes = (size_t)t->n_cols * elem_bytes;
    if (want_is_empty(want)) return status_ok();
    uint64_t e = row / inner;
    if (e < want->outer0) e = want->outer0;
    for (; e < want->outer0 + want->n_outer && e * inner < high; e++) {
        uint64_t first = e * inner + want->row0, end = first + want->n_rows;
        if (first < row) first = row;
        if (end > high) end = high;
        if (first >= end) continue;
        const struct slab_piece piece = {
            .want = index,
            .outer = e,
            .row = first - e * inner,
            .n_rows = end - first,
            .data = rows + (first - row) * row_bytes + want->col0 * elem_bytes,
            .stride_bytes = row_bytes,
        };
        TRY(l->o->sink(l->o->ctx, &piece));
    }
    return status_ok();
}

struct status loader_take(const struct loader *l, size_t tensor, uint64_t row, uint64_t n_rows,
                          const void *rows)
{
    for (size_t i = l->first_want[tensor]; i < l->first_want[tensor + 1]; i++)
        TRY(want_take(l, l->order[i], row, n_rows, rows));
    return status_ok();
}

/* ---- the call ---- */

/* **Collective (host)**. Returns the number of lanes, the same on all ranks of the host. */
static int lanes_of(const struct loader_job *job)
{
    int n = (int)team_size(job->team);
    if (n > LOADER_LANES_MAX) n = LOADER_LANES_MAX;
    MPI_Allreduce(MPI_IN_PLACE, &n, 1, MPI_INT, MPI_MIN, job->host);
    return n;
}

struct status loader_run(const struct loader_job *job, struct loader_stats *stats)
{
    const MPI_Comm host = job->host;
    struct loader l = {.o = job, .n_lanes = lanes_of(job)};
    struct loader_stats mine = {0};
    const uint64_t start_ns = clock_ns();
    MPI_Comm_rank(host, &l.rank);
    MPI_Comm_size(host, &l.n_ranks);
    struct status st;
    TRY_GOTO(st, loader_check_same(job->c, host), out);
    TRY_GOTO(st, loader_agree(host, loader_prepare(&l)), out);
    find_shared(&l);
    choose_cache(&l);
    find_longest_row(&l);
    TRY_GOTO(st, loader_rounds(&l, loader_stream(&l, &mine), &mine), out);
    uint64_t sums[2] = {mine.n_blocks, mine.n_bytes};
    MPI_Allreduce(MPI_IN_PLACE, sums, 2, MPI_UINT64_T, MPI_SUM, host);
    mine.is_direct = l.is_direct;
    mine.n_blocks_host = sums[0];
    mine.n_bytes_host = sums[1];
    mine.seconds = (double)(clock_ns() - start_ns) * 1e-9;
    if (stats != NULL) *stats = mine;
out:
    mem_free(&l.shared);
    mem_free(&l.alone);
    mem_free(&l.first_block);
    mem_free(&l.first_want);
    mem_free(&l.order);
    return st;
}

struct status loader_check_same(const struct ckpt *c, MPI_Comm comm)
{
    struct ckpt_digest mine = ckpt_digest(c), first = mine;
    int rank;
    MPI_Comm_rank(comm, &rank);
    MPI_Bcast(&first, (int)sizeof first, MPI_BYTE, 0, comm);
    struct status st = status_ok();
    if (mine.low != first.low || mine.high != first.high) {
        st = status_make(STATUS_INPUT,
                         "%s: rank %d opened another file than rank 0: digest expected "
                         "%016llx%016llx, found %016llx%016llx",
                         ckpt_path(c), rank, (unsigned long long)first.high,
                         (unsigned long long)first.low, (unsigned long long)mine.high,
                         (unsigned long long)mine.low);
    }
    return loader_agree(comm, st);
}
