/* Reads, in rounds, the blocks that several ranks of a host want, and all blocks that a rank with a
 * serial sink wants. In a round each lane (thread) of each rank reads a run of blocks into its slot
 * of shared memory; then all ranks agree that no read failed; then each rank takes the rows that it
 * wants from all slots. Each lane has two slots, used in turn, so the agreement of a round also
 * says that the previous round's slots are free.
 *
 *     round 0   lane reads slot 0 | agree | take from slots 0
 *     round 1                       lane reads slot 1 | agree | take from slots 1 */
#include "checkpoint/load/loader_private.h"

#include "base/mem.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

enum {
    AHEAD_ROUNDS = 4, /* the system is told to read blocks this many rounds before they are
                         needed */
    /* Bytes of a slot. Small blocks (the quantized values of an expert, its scales) share a slot,
     * because each round needs an agreement, which on busy cores waits until the system has run
     * every rank. */
    SLOT_BYTES = 8 << 20 /* at most, unless one block is longer */
};

/* The rounds of one call. */
struct rounds {
    struct loader *l;
    struct loader_place ahead; /* the first block of the next round that the system is told to
                                  read */
    size_t slot_bytes;
    MPI_Win window; /* MPI_WIN_NULL: none */
    char **slots;   /* owned [n_ranks]: every rank's slots, [2][n_lanes] */
    char *private_slots;
    struct direct_lane *lanes; /* owned [n_lanes] with direct reads; else NULL */
};

/* A block of a run, and its offset in the run's slot. */
struct run_block {
    struct loader_place at;
    size_t offset;
};

/* A lane with direct reads. Its reads for later rounds are in flight while the rank takes rows. */
struct direct_lane {
    const struct rounds *r;
    struct ckpt_reader *reader; /* owned */
    int index;                  /* the lane's index among all ranks' lanes */
    struct loader_place next;   /* the first block of the next round that the lane asks for */
    struct run_block b;         /* the next block of the run that is being asked for */
    bool in_run;
};

static struct loader_place first_place(const struct loader *l)
{
    return loader_next(l, l->shared, (struct loader_place){0});
}

static struct loader_place next_place(const struct loader *l, struct loader_place at)
{
    at.block++;
    return loader_next(l, l->shared, at);
}

static const struct ckpt_tensor *tensor_at(const struct loader *l, struct loader_place at)
{
    return ckpt_tensor_at(l->o->c, at.tensor);
}

static uint64_t loader_rounds_block_of(const struct loader *l, struct loader_place at)
{
    return at.block - l->first_block[at.tensor];
}

/* Returns the bytes that a block takes in a slot. */
static size_t padded_bytes(const struct loader *l, struct loader_place at)
{
    const size_t n = ckpt_block_bytes(tensor_at(l, at), loader_rounds_block_of(l, at));
    return (n + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
}

/* ---- runs: as many shared blocks, in the order of their numbers, as fit a slot ---- */

static bool run_holds(const struct rounds *r, const struct run_block *b)
{
    return b->at.block < r->l->n_blocks && b->offset + padded_bytes(r->l, b->at) <= r->slot_bytes;
}

static void loader_rounds_run_step(const struct rounds *r, struct run_block *b)
{
    b->offset += padded_bytes(r->l, b->at);
    b->at = next_place(r->l, b->at);
}

/* Moves *at to the first block after the next n runs. */
static void skip_runs(const struct rounds *r, struct loader_place *at, int n)
{
    for (int i = 0; i < n; i++) {
        struct run_block b = {.at = *at};
        while (run_holds(r, &b)) loader_rounds_run_step(r, &b);
        *at = b.at;
    }
}

/* ---- shared slots ---- */

/* Returns the size of a slot; 0 when no block is shared. If few bytes are shared, slots are smaller
 * than SLOT_BYTES, so that the blocks are spread over all lanes and about two rounds. */
static size_t choose_slot_bytes(const struct loader *l)
{
    size_t largest = 0, all = 0;
    for (struct loader_place at = first_place(l); at.block < l->n_blocks; at = next_place(l, at)) {
        const size_t n = padded_bytes(l, at);
        if (n > largest) largest = n;
        all += n;
    }
    size_t n = all / (2 * (size_t)l->n_ranks * (size_t)l->n_lanes) / MEM_ALIGN * MEM_ALIGN;
    if (n > SLOT_BYTES) n = SLOT_BYTES;
    return n > largest ? n : largest;
}

/* Returns the bytes of one rank's slots. */
static size_t slots_bytes(const struct rounds *r)
{
    return 2 * (size_t)r->l->n_lanes * r->slot_bytes;
}

static struct status mpi_error(const struct rounds *r, int error, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    MPI_Error_string(error, text, &n);
    return status_make(STATUS_MEMORY, "%s: %s of %zu bytes for each of %d ranks: %.*s",
                       ckpt_path(r->l->o->c), what, slots_bytes(r), r->l->n_ranks, n, text);
}

/* Allocates shared memory for all ranks' slots; a host of one rank uses private memory. */
static struct status slots_create(struct rounds *r)
{
    if (r->l->n_ranks == 1) {
        TRY(mem_alloc(&r->private_slots, slots_bytes(r), 1, "the loader's blocks"));
        r->slots[0] = r->private_slots;
        return status_ok();
    }
    void *mine = NULL;
    MPI_Errhandler before;
    MPI_Comm_get_errhandler(r->l->o->host, &before);
    MPI_Comm_set_errhandler(r->l->o->host, MPI_ERRORS_RETURN);
    const int error = MPI_Win_allocate_shared((MPI_Aint)slots_bytes(r), 1, MPI_INFO_NULL,
                                              r->l->o->host, &mine, &r->window);
    MPI_Comm_set_errhandler(r->l->o->host, before);
    MPI_Errhandler_free(&before);
    if (error != MPI_SUCCESS) {
        r->window = MPI_WIN_NULL;
        return mpi_error(r, error, "shared memory");
    }
    MPI_Win_lock_all(MPI_MODE_NOCHECK, r->window);
    MPI_Aint n_bytes;
    int unit;
    MPI_Win_shared_query(r->window, 0, &n_bytes, &unit, &r->slots[0]);
    /* the ranks' parts follow each other (MPI 3.1, 11.2.3) */
    for (int i = 1; i < r->l->n_ranks; i++) r->slots[i] = r->slots[i - 1] + slots_bytes(r);
    return status_ok();
}

static void slots_destroy(struct rounds *r)
{
    if (r->window != MPI_WIN_NULL) {
        MPI_Win_unlock_all(r->window);
        MPI_Win_free(&r->window);
    }
    mem_free(&r->private_slots);
}

/* ---- a round's slots and read-ahead ---- */

static void window_sync(const struct rounds *r)
{
    if (r->window != MPI_WIN_NULL) MPI_Win_sync(r->window);
}

/* Returns the slot of the round's i-th run. */
static char *loader_rounds_slot_of(const struct rounds *r, unsigned round, int i)
{
    const int n_lanes = r->l->n_lanes;
    const size_t lane = (size_t)(i % n_lanes) + round % 2 * (size_t)n_lanes;
    return r->slots[i / n_lanes] + lane * r->slot_bytes;
}

/* Tells the system to read this rank's blocks of the round that begins at r->ahead, and moves
 * r->ahead to the round after it. Does nothing with direct reads. */
static void advise_round(struct rounds *r)
{
    const struct loader *l = r->l;
    if (r->lanes != NULL && ckpt_reader_is_direct(r->lanes[0].reader)) return;
    struct loader_place at = r->ahead;
    skip_runs(r, &at, l->rank * l->n_lanes);
    for (int i = 0; i < l->n_lanes; i++) {
        struct run_block b = {.at = at};
        for (; run_holds(r, &b); loader_rounds_run_step(r, &b))
            ckpt_advise_blocks(l->o->c, tensor_at(l, b.at), loader_rounds_block_of(l, b.at), 1);
        at = b.at;
    }
    skip_runs(r, &r->ahead, l->n_ranks * l->n_lanes);
}

/* ---- reads in flight during the rounds ---- */

/* Moves the lane to its run of the next round; false: there is none. */
static bool direct_next_run(struct direct_lane *lane)
{
    const struct loader *l = lane->r->l;
    if (lane->next.block >= l->n_blocks) return false;
    struct loader_place at = lane->next;
    skip_runs(lane->r, &at, lane->index);
    lane->b = (struct run_block){.at = at};
    skip_runs(lane->r, &lane->next, l->n_ranks * l->n_lanes);
    lane->in_run = run_holds(lane->r, &lane->b);
    return lane->in_run;
}

/* Sets *out to the next consecutive blocks of a tensor, run after run. The tag is the offset of the
 * first block in the run's slot. */
static bool direct_next_series(void *ctx, struct ckpt_series *out)
{
    struct direct_lane *lane = ctx;
    const struct loader *l = lane->r->l;
    struct run_block *b = &lane->b;
    if (!lane->in_run && !direct_next_run(lane)) return false;
    const struct loader_place first = b->at;
    *out = (struct ckpt_series){
        .tensor = tensor_at(l, first), .block = loader_rounds_block_of(l, first), .tag = b->offset};
    while (run_holds(lane->r, b) && b->at.tensor == first.tensor &&
           b->at.block == first.block + out->n_blocks) {
        out->n_blocks++;
        loader_rounds_run_step(lane->r, b);
    }
    lane->in_run = run_holds(lane->r, b);
    return true;
}

static void direct_destroy(struct rounds *r)
{
    for (int i = 0; r->lanes != NULL && i < r->l->n_lanes; i++)
        ckpt_reader_destroy(&r->lanes[i].reader);
    mem_free(&r->lanes);
}

/* Creates the lanes' readers, if this host bypasses the file cache. */
static struct status direct_create(struct rounds *r)
{
    const struct loader *l = r->l;
    if (!l->is_direct) return status_ok();
    TRY(mem_alloc(&r->lanes, (size_t)l->n_lanes, sizeof r->lanes[0], "the loader's lanes"));
    for (int i = 0; i < l->n_lanes; i++) {
        struct direct_lane *lane = &r->lanes[i];
        *lane =
            (struct direct_lane){.r = r, .index = l->rank * l->n_lanes + i, .next = first_place(l)};
        TRY(loader_reader(l, (uint32_t)l->n_lanes, direct_next_series, lane, &lane->reader));
    }
    return status_ok();
}

/* The part of a slot that one series fills, block after block, each padded. */
struct series_slot {
    const struct ckpt_series *series;
    size_t block_bytes; /* padded */
    char *to;
};

static struct status rows_to_slot(void *ctx, uint64_t row, uint64_t n_rows, const void *rows)
{
    const struct series_slot *s = ctx;
    const struct ckpt_tensor *t = s->series->tensor;
    const size_t row_bytes = (size_t)t->n_cols * dtype_bytes(t->dtype);
    for (uint64_t i = 0, n; i < n_rows; i += n) {
        const uint64_t block = (row + i) / t->rows_per_block,
                       in_block = (row + i) % t->rows_per_block;
        const uint64_t left = t->rows_per_block - in_block;
        n = left < n_rows - i ? left : n_rows - i;
        memcpy(s->to + (block - s->series->block) * s->block_bytes + in_block * row_bytes,
               (const char *)rows + i * row_bytes, (size_t)n * row_bytes);
    }
    return status_ok();
}

/* ---- reading and taking ---- */

/* A run that a lane reads into its slot. */
struct run_read {
    struct loader_place first;
    char *slot;
    struct direct_lane *lane; /* with direct reads; else NULL */
    struct loader_stats stats;
    struct status status;
};

struct read_job {
    const struct rounds *r;
    struct run_read reads[LOADER_LANES_MAX];
};

static uint64_t run_count(const struct rounds *r, struct run_read *read)
{
    uint64_t n = 0;
    for (struct run_block b = {.at = read->first}; run_holds(r, &b); n++) {
        read->stats.n_blocks++;
        read->stats.n_bytes +=
            ckpt_block_bytes(tensor_at(r->l, b.at), loader_rounds_block_of(r->l, b.at));
        loader_rounds_run_step(r, &b);
    }
    return n;
}

static struct status run_read_direct(const struct rounds *r, struct run_read *read, uint64_t n)
{
    struct ckpt_series series;
    for (uint64_t done = 0; done < n; done += series.n_blocks) {
        const bool is_there = ckpt_reader_next(read->lane->reader, &series);
        assert(is_there);
        (void)is_there;
        const struct loader_place first = {.block = r->l->first_block[series.tensor->index] +
                                                    series.block,
                                           .tensor = series.tensor->index};
        struct series_slot to = {.series = &series,
                                 .block_bytes = padded_bytes(r->l, first),
                                 .to = read->slot + series.tag};
        TRY(ckpt_reader_rows(read->lane->reader, rows_to_slot, &to));
    }
    return status_ok();
}

static struct status run_read_cached(const struct rounds *r, const struct run_read *read)
{
    for (struct run_block b = {.at = read->first}; run_holds(r, &b);) {
        TRY(ckpt_read_block(r->l->o->c, tensor_at(r->l, b.at), loader_rounds_block_of(r->l, b.at),
                            read->slot + b.offset));
        loader_rounds_run_step(r, &b);
    }
    return status_ok();
}

static void read_run(void *ctx, uint32_t i)
{
    struct read_job *job = ctx;
    if (i >= (uint32_t)job->r->l->n_lanes) return;
    struct run_read *read = &job->reads[i];
    const uint64_t n = run_count(job->r, read);
    read->status =
        read->lane != NULL ? run_read_direct(job->r, read, n) : run_read_cached(job->r, read);
}

/* Reads this rank's runs of the round into their slots, unless `mine` already failed. */
static struct status round_read(const struct rounds *r, struct loader_place at, unsigned round,
                                struct status mine, struct loader_stats *stats)
{
    const struct loader *l = r->l;
    struct read_job job = {.r = r};
    if (status_failed(&mine)) return mine;
    skip_runs(r, &at, l->rank * l->n_lanes);
    for (int i = 0; i < l->n_lanes; i++) {
        job.reads[i].first = at;
        job.reads[i].slot = loader_rounds_slot_of(r, round, l->rank * l->n_lanes + i);
        job.reads[i].lane = r->lanes != NULL ? &r->lanes[i] : NULL;
        skip_runs(r, &at, 1);
    }
    team_run(l->o->team, 1, read_run, &job);
    for (int i = 0; i < l->n_lanes; i++) {
        stats->n_blocks += job.reads[i].stats.n_blocks;
        stats->n_bytes += job.reads[i].stats.n_bytes;
        TRY(job.reads[i].status);
    }
    return mine;
}

/* A verified block, whose rows the team's threads give to the sink in pieces. */
struct take_job {
    const struct loader *l;
    const struct ckpt_tensor *tensor;
    uint64_t row0, n_rows, rows_each;
    const char *bytes;
    _Atomic uint64_t next;
    _Atomic bool failed;
    struct status
        status; /* of the thread that failed first; only the thread that set `failed` writes it */
};

static void take_pieces(void *ctx, uint32_t part)
{
    struct take_job *j = ctx;
    const size_t row_bytes = (size_t)j->tensor->n_cols * dtype_bytes(j->tensor->dtype);
    (void)part;
    for (;;) {
        const uint64_t at = atomic_fetch_add(&j->next, j->rows_each);
        if (at >= j->n_rows || atomic_load(&j->failed)) return;
        const uint64_t left = j->n_rows - at;
        const struct status st =
            loader_take(j->l, j->tensor->index, j->row0 + at,
                        left < j->rows_each ? left : j->rows_each, j->bytes + at * row_bytes);
        if (status_failed(&st) && !atomic_exchange(&j->failed, true)) j->status = st;
    }
}

static struct status block_take(const struct loader *l, struct loader_place at, const char *bytes)
{
    const struct ckpt_tensor *t = tensor_at(l, at);
    const uint64_t block = loader_rounds_block_of(l, at), row0 = block * t->rows_per_block;
    const uint64_t n_rows = ckpt_block_rows(t, block);
    if (l->first_want[at.tensor] == l->first_want[at.tensor + 1]) return status_ok();
    if (l->o->sink_is_serial || team_size(l->o->team) == 1)
        return loader_take(l, at.tensor, row0, n_rows, bytes);
    struct take_job job = {.l = l,
                           .tensor = t,
                           .row0 = row0,
                           .n_rows = n_rows,
                           .rows_each = ckpt_rows_at_once(t, 0, n_rows),
                           .bytes = bytes,
                           .status = status_ok()};
    team_run(l->o->team, 1, take_pieces, &job);
    return job.status;
}

/* Gives the sink the rows that this rank wants, from the slots of all ranks. *at moves to the next
 * round even after an error, so that all ranks count rounds alike. */
static struct status round_take(const struct rounds *r, struct loader_place *at, unsigned round)
{
    const struct loader *l = r->l;
    struct status st = status_ok();
    for (int i = 0; i < l->n_ranks * l->n_lanes; i++) {
        struct run_block b = {.at = *at};
        for (; run_holds(r, &b); loader_rounds_run_step(r, &b)) {
            if (!status_failed(&st))
                st = block_take(l, b.at, loader_rounds_slot_of(r, round, i) + b.offset);
        }
        *at = b.at;
    }
    return st;
}

/* Runs all rounds. A rank whose sink fails reports the error at the next round's agreement, or at
 * the end. */
static struct status loader_rounds_run(struct rounds *r, struct status mine,
                                       struct loader_stats *stats)
{
    const struct loader *l = r->l;
    struct loader_place at = first_place(l);
    r->ahead = at;
    for (int i = 0; i < AHEAD_ROUNDS; i++) advise_round(r);
    for (unsigned round = 0; at.block < l->n_blocks; round++) {
        advise_round(r);
        mine = round_read(r, at, round, mine, stats);
        window_sync(r);
        TRY(loader_agree(l->o->host, mine));
        window_sync(r);
        mine = round_take(r, &at, round);
    }
    return loader_agree(l->o->host, mine);
}

struct status loader_rounds(struct loader *l, struct status mine, struct loader_stats *stats)
{
    struct rounds r = {.l = l, .slot_bytes = choose_slot_bytes(l), .window = MPI_WIN_NULL};
    if (r.slot_bytes == 0) return loader_agree(l->o->host, mine);
    struct status st =
        mem_alloc(&r.slots, (size_t)l->n_ranks, sizeof r.slots[0], "the slots' addresses");
    TRY_GOTO(st, loader_agree(l->o->host, st), out);
    TRY_GOTO(st, loader_agree(l->o->host, slots_create(&r)), out);
    TRY_GOTO(st, loader_agree(l->o->host, direct_create(&r)), out);
    st = loader_rounds_run(&r, mine, stats);
out:
    direct_destroy(&r);
    slots_destroy(&r);
    mem_free(&r.slots);
    return st;
}
