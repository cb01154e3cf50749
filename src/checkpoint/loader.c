/* The parallel reader. One round: each lane (a thread) of each rank of the host reads one block
 * into its slot of shared memory, all agree that it went well, everyone takes what it wants from
 * all slots. Each lane has two slots, so the agreement of a round also says that the slots of the
 * round before are free. */
#include "checkpoint/loader.h"

#include "base/clock.h"
#include "base/mem.h"

#include <limits.h>
#include <string.h>

enum { AHEAD_ROUNDS = 4 }; /* whose blocks the system is reading while this rank packs */

struct slab_want slab_whole(const struct ckpt_tensor *t)
{
    struct slab_want want = {.tensor = t, .n_outer = 1, .n_rows = t->n_rows, .n_cols = t->n_cols};
    if (t->n_dims == 3) {
        want.n_outer = t->dims[0];
        want.n_rows = t->dims[1];
    }
    return want;
}

/* Rows of one outer index: `out` of [E, out, in], else all rows. */
static uint64_t inner_rows(const struct ckpt_tensor *t)
{
    return t->n_dims == 3 ? t->dims[1] : t->n_rows;
}

/* Where a round starts: it deals this needed block and the following ones, one to each lane of the
 * first rank, then of the next. */
struct deal {
    uint64_t block;
    size_t tensor;
};

/* The loader during one call. */
struct loader {
    const struct loader_job *o;
    int rank, n_ranks, n_lanes;
    uint64_t *first_block; /* owned [n_tensors + 1]: a tensor's first place among all blocks */
    unsigned char *needed; /* owned [n_blocks / 8 + 1]: a bit per block, all ranks' wants */
    size_t *order;         /* owned [n_wants]: wants sorted by tensor */
    size_t next_want;      /* into order: wants before it lie in tensors that are done */
    uint64_t n_blocks;
    struct deal ahead; /* the round whose blocks the system is told of next */
    size_t slot_bytes;
    MPI_Win window; /* MPI_WIN_NULL: not made */
    char **slots;   /* owned [n_ranks]: every rank's slots, [2][n_lanes] */
    char *private_slots;
};

/* ---- agreement ---- */

/* All ranks give their status and get that of the first rank that failed. */
static struct status agree(MPI_Comm comm, struct status mine)
{
    int rank, worst;
    MPI_Comm_rank(comm, &rank);
    const int vote = status_failed(&mine) ? rank : INT_MAX;
    MPI_Allreduce(&vote, &worst, 1, MPI_INT, MPI_MIN, comm);
    if (worst == INT_MAX) return mine;
    MPI_Bcast(&mine, (int)sizeof mine, MPI_BYTE, worst, comm);
    return mine;
}

/* ---- what is needed ---- */

static struct status want_check(const struct loader *l, const struct slab_want *want)
{
    const struct ckpt_tensor *t = want->tensor;
    if (t == NULL || t->index >= ckpt_stored_count(l->o->c) || t->n_blocks == 0 ||
        ckpt_tensor_at(l->o->c, t->index) != t) {
        return status_make(STATUS_BUG, "%s: a slab of a tensor that is not stored in this file",
                           ckpt_path(l->o->c));
    }
    const uint64_t n_outer = t->n_dims == 3 ? t->dims[0] : 1, n_inner = inner_rows(t);
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

static void want_mark(struct loader *l, const struct slab_want *want)
{
    const struct ckpt_tensor *t = want->tensor;
    if (want_is_empty(want)) return;
    for (uint64_t e = want->outer0; e < want->outer0 + want->n_outer; e++) {
        const uint64_t row = e * inner_rows(t) + want->row0;
        const uint64_t last = (row + want->n_rows - 1) / t->rows_per_block;
        for (uint64_t b = row / t->rows_per_block; b <= last; b++) {
            const uint64_t block = l->first_block[t->index] + b;
            l->needed[block / CHAR_BIT] |= (unsigned char)(1u << block % CHAR_BIT);
        }
    }
}

static bool is_needed(const struct loader *l, uint64_t block)
{
    return (l->needed[block / CHAR_BIT] >> block % CHAR_BIT & 1u) != 0;
}

/* Counts wants per tensor and lays them out by tensor, keeping the caller's order inside one. */
static struct status wants_sort(struct loader *l)
{
    const size_t n_tensors = ckpt_stored_count(l->o->c);
    size_t *at = NULL;
    TRY(mem_alloc(&l->order, l->o->n_wants, sizeof l->order[0], "the order of slabs"));
    TRY(mem_alloc(&at, n_tensors + 1, sizeof at[0], "the order of slabs"));
    for (size_t i = 0; i < l->o->n_wants; i++) at[l->o->wants[i].tensor->index + 1]++;
    for (size_t i = 0; i < n_tensors; i++) at[i + 1] += at[i];
    for (size_t i = 0; i < l->o->n_wants; i++) l->order[at[l->o->wants[i].tensor->index]++] = i;
    mem_free(&at);
    return status_ok();
}

/* The part that needs no other rank. */
static struct status prepare(struct loader *l)
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
    TRY(mem_alloc(&l->needed, l->n_blocks / CHAR_BIT + 1, 1, "blocks"));
    TRY(mem_alloc(&l->slots, (size_t)l->n_ranks, sizeof l->slots[0], "the slots' addresses"));
    for (size_t i = 0; i < l->o->n_wants; i++) want_mark(l, &l->o->wants[i]);
    return status_ok();
}

/* The place after `block` that is needed by any rank, or n_blocks; *tensor moves with it. */
static uint64_t next_needed(const struct loader *l, uint64_t block, size_t *tensor)
{
    while (block < l->n_blocks && !is_needed(l, block)) block++;
    while (block < l->n_blocks && block >= l->first_block[*tensor + 1]) (*tensor)++;
    return block;
}

/* ---- shared slots ---- */

static size_t largest_block(const struct loader *l)
{
    size_t largest = 0, tensor = 0;
    for (uint64_t b = next_needed(l, 0, &tensor); b < l->n_blocks;
         b = next_needed(l, b + 1, &tensor)) {
        const size_t n =
            ckpt_block_bytes(ckpt_tensor_at(l->o->c, tensor), b - l->first_block[tensor]);
        if (n > largest) largest = n;
    }
    return (largest + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
}

/* Of one rank. */
static size_t slots_bytes(const struct loader *l)
{
    return 2 * (size_t)l->n_lanes * l->slot_bytes;
}

static struct status mpi_error(const struct loader *l, int error, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    MPI_Error_string(error, text, &n);
    return status_make(STATUS_MEMORY, "%s: %s of %zu bytes for each of %d ranks: %.*s",
                       ckpt_path(l->o->c), what, slots_bytes(l), l->n_ranks, n, text);
}

/* Shared memory for all ranks' slots; a host of one rank needs none. */
static struct status slots_create(struct loader *l)
{
    if (l->n_ranks == 1) {
        TRY(mem_alloc(&l->private_slots, slots_bytes(l), 1, "the loader's blocks"));
        l->slots[0] = l->private_slots;
        return status_ok();
    }
    void *mine = NULL;
    MPI_Errhandler before;
    MPI_Comm_get_errhandler(l->o->host, &before);
    MPI_Comm_set_errhandler(l->o->host, MPI_ERRORS_RETURN);
    const int error = MPI_Win_allocate_shared((MPI_Aint)slots_bytes(l), 1, MPI_INFO_NULL,
                                              l->o->host, &mine, &l->window);
    MPI_Comm_set_errhandler(l->o->host, before);
    MPI_Errhandler_free(&before);
    if (error != MPI_SUCCESS) {
        l->window = MPI_WIN_NULL;
        return mpi_error(l, error, "shared memory");
    }
    MPI_Win_lock_all(MPI_MODE_NOCHECK, l->window);
    for (int r = 0; r < l->n_ranks; r++) {
        MPI_Aint n_bytes;
        int unit;
        MPI_Win_shared_query(l->window, r, &n_bytes, &unit, &l->slots[r]);
    }
    return status_ok();
}

static void slots_destroy(struct loader *l)
{
    if (l->window != MPI_WIN_NULL) {
        MPI_Win_unlock_all(l->window);
        MPI_Win_free(&l->window);
    }
    mem_free(&l->private_slots);
}

/* ---- taking ---- */

/* Hands the part of a block that lies in the want to the sink, outer index by outer index. */
static struct status want_take(struct loader *l, size_t index, uint64_t block, const char *bytes)
{
    const struct slab_want *want = &l->o->wants[index];
    const struct ckpt_tensor *t = want->tensor;
    const uint64_t inner = inner_rows(t);
    const size_t elem_bytes = dtype_bytes(t->dtype), row_bytes = (size_t)t->n_cols * elem_bytes;
    const uint64_t low = block * t->rows_per_block, high = low + ckpt_block_rows(t, block);
    if (want_is_empty(want)) return status_ok();
    uint64_t e = low / inner;
    if (e < want->outer0) e = want->outer0;
    for (; e < want->outer0 + want->n_outer && e * inner < high; e++) {
        uint64_t first = e * inner + want->row0, end = first + want->n_rows;
        if (first < low) first = low;
        if (end > high) end = high;
        if (first >= end) continue;
        const struct slab_piece piece = {
            .want = index,
            .outer = e,
            .row = first - e * inner,
            .n_rows = end - first,
            .data = bytes + (first - low) * row_bytes + want->col0 * elem_bytes,
            .stride_bytes = row_bytes,
        };
        TRY(l->o->sink(l->o->ctx, &piece));
    }
    return status_ok();
}

static struct status block_take(struct loader *l, size_t tensor, uint64_t block, const char *bytes)
{
    while (l->next_want < l->o->n_wants &&
           l->o->wants[l->order[l->next_want]].tensor->index < tensor) {
        l->next_want++;
    }
    for (size_t i = l->next_want; i < l->o->n_wants; i++) {
        if (l->o->wants[l->order[i]].tensor->index != tensor) break;
        TRY(want_take(l, l->order[i], block - l->first_block[tensor], bytes));
    }
    return status_ok();
}

/* ---- rounds ---- */

static void window_sync(const struct loader *l)
{
    if (l->window != MPI_WIN_NULL) MPI_Win_sync(l->window);
}

/* Moves n needed blocks on. */
static void deal_skip(const struct loader *l, struct deal *at, int n)
{
    for (int i = 0; i < n && at->block < l->n_blocks; i++) {
        at->block = next_needed(l, at->block + 1, &at->tensor);
    }
}

/* The slot of the round's i-th block. */
static char *slot_of(const struct loader *l, unsigned round, int i)
{
    const size_t lane = (size_t)(i % l->n_lanes) + round % 2 * (size_t)l->n_lanes;
    return l->slots[i / l->n_lanes] + lane * l->slot_bytes;
}

/* Has the system begin to read this rank's blocks of a round that comes AHEAD_ROUNDS later. */
static void advise_round(struct loader *l)
{
    struct deal at = l->ahead;
    deal_skip(l, &at, l->rank * l->n_lanes);
    for (int i = 0; i < l->n_lanes && at.block < l->n_blocks; i++) {
        ckpt_advise_block(l->o->c, ckpt_tensor_at(l->o->c, at.tensor),
                          at.block - l->first_block[at.tensor]);
        deal_skip(l, &at, 1);
    }
    deal_skip(l, &l->ahead, l->n_ranks * l->n_lanes);
}

/* A block on its way into its slot. */
struct block_read {
    const struct ckpt_tensor *tensor;
    uint64_t block; /* of the tensor */
    char *slot;
    struct status status;
};

struct read_job {
    const struct ckpt *c;
    struct block_read reads[LOADER_LANES_MAX];
    uint32_t n_reads;
};

static void read_one(void *ctx, uint32_t i)
{
    struct read_job *job = ctx;
    if (i >= job->n_reads) return;
    struct block_read *r = &job->reads[i];
    r->status = ckpt_read_block(job->c, r->tensor, r->block, r->slot);
}

/* This rank reads its blocks of the round into their slots, unless `mine` already failed. */
static struct status round_read(struct loader *l, struct deal at, unsigned round,
                                struct status mine, struct loader_stats *stats)
{
    struct read_job job = {.c = l->o->c};
    if (status_failed(&mine)) return mine;
    deal_skip(l, &at, l->rank * l->n_lanes);
    for (int i = 0; i < l->n_lanes && at.block < l->n_blocks; i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(l->o->c, at.tensor);
        const uint64_t block = at.block - l->first_block[at.tensor];
        job.reads[job.n_reads++] = (struct block_read){
            .tensor = t, .block = block, .slot = slot_of(l, round, l->rank * l->n_lanes + i)};
        stats->n_blocks++;
        stats->n_bytes += ckpt_block_bytes(t, block);
        deal_skip(l, &at, 1);
    }
    team_run(l->o->team, 1, read_one, &job);
    for (uint32_t i = 0; i < job.n_reads; i++) TRY(job.reads[i].status);
    return mine;
}

/* This rank takes what it wants from all slots; *at moves to the next round whatever happens, so
 * that all ranks count rounds alike. */
static struct status round_take(struct loader *l, struct deal *at, unsigned round)
{
    struct status st = status_ok();
    for (int i = 0; i < l->n_ranks * l->n_lanes && at->block < l->n_blocks; i++) {
        if (!status_failed(&st)) st = block_take(l, at->tensor, at->block, slot_of(l, round, i));
        at->block = next_needed(l, at->block + 1, &at->tensor);
    }
    return st;
}

/* All rounds. A rank whose sink fails says so at the agreement of the next round, or at the end. */
static struct status rounds_run(struct loader *l, struct loader_stats *stats)
{
    struct deal at = {0};
    struct status mine = status_ok();
    at.block = next_needed(l, 0, &at.tensor);
    l->ahead = at;
    for (int i = 0; i < AHEAD_ROUNDS; i++) advise_round(l);
    for (unsigned round = 0; at.block < l->n_blocks; round++) {
        advise_round(l);
        mine = round_read(l, at, round, mine, stats);
        window_sync(l);
        TRY(agree(l->o->host, mine));
        window_sync(l);
        mine = round_take(l, &at, round);
    }
    return agree(l->o->host, mine);
}

/* The same on all ranks of the host. */
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
    struct loader l = {.o = job, .n_lanes = lanes_of(job), .window = MPI_WIN_NULL};
    struct loader_stats mine = {0};
    const uint64_t start_ns = clock_ns();
    MPI_Comm_rank(host, &l.rank);
    MPI_Comm_size(host, &l.n_ranks);
    struct status st;
    TRY_GOTO(st, loader_check_same(job->c, host), out);
    TRY_GOTO(st, agree(host, prepare(&l)), out);
    MPI_Allreduce(MPI_IN_PLACE, l.needed, (int)(l.n_blocks / CHAR_BIT + 1), MPI_BYTE, MPI_BOR,
                  host);
    l.slot_bytes = largest_block(&l);
    if (l.slot_bytes > 0) {
        TRY_GOTO(st, agree(host, slots_create(&l)), out);
        TRY_GOTO(st, rounds_run(&l, &mine), out);
    }
    uint64_t sums[2] = {mine.n_blocks, mine.n_bytes};
    MPI_Allreduce(MPI_IN_PLACE, sums, 2, MPI_UINT64_T, MPI_SUM, host);
    mine.n_blocks_host = sums[0];
    mine.n_bytes_host = sums[1];
    mine.seconds = (double)(clock_ns() - start_ns) * 1e-9;
    if (stats != NULL) *stats = mine;
out:
    slots_destroy(&l);
    mem_free(&l.slots);
    mem_free(&l.needed);
    mem_free(&l.first_block);
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
    return agree(comm, st);
}
