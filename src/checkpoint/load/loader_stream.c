/* Reads the blocks that one rank wants. Each thread of the team takes the next run of blocks and
 * reads it in pieces that fit its cache; it adds each piece to the checksum and gives it to the
 * sink at once, so every byte is read from memory once and written once. A wrong checksum at a
 * block's end ends the load. */
#include "checkpoint/load/loader_private.h"

#include "base/mem.h"

#include <stdatomic.h>

enum {
    AHEAD_RUNS = 4, /* runs of each lane that the system is told to read ahead */
    /* Bytes of a run. Small blocks (an expert each) share a run. Otherwise several threads would
     * fill the same huge page of the weights at once, and the first access to a page clears it. */
    RUN_BYTES = 8 << 20 /* at most, unless one block is longer */
};

/* The state of one thread. */
struct lane {
    char *buf; /* owned, mapped */
    struct loader_stats stats;
    struct status status;
    uint64_t failed; /* the index in the list of the block that failed */
};

struct stream {
    const struct loader *l;
    struct loader_place *list; /* owned [n] */
    uint64_t n;
    uint64_t *runs; /* owned [n_runs + 1]: each run's first index in the list */
    uint64_t n_runs;
    size_t buf_bytes;
    struct lane *lanes; /* owned [n_lanes] */
    uint32_t n_lanes;
    _Atomic uint64_t next;
    _Atomic bool stops; /* set on failure; blocks that were begun before are still finished */
};

static const struct ckpt_tensor *tensor_of(const struct stream *s, uint64_t i)
{
    return ckpt_tensor_at(s->l->o->c, s->list[i].tensor);
}

/* The block's number within its tensor. */
static uint64_t loader_stream_block_of(const struct stream *s, uint64_t i)
{
    return s->list[i].block - s->l->first_block[s->list[i].tensor];
}

/* The number of blocks from index i on, before `end`, that are consecutive in one tensor. */
static uint64_t neighbours(const struct stream *s, uint64_t i, uint64_t end)
{
    uint64_t n = 1;
    while (i + n < end && s->list[i + n].tensor == s->list[i].tensor &&
           s->list[i + n].block == s->list[i].block + n)
        n++;
    return n;
}

/* Tells the system to read a run; one call for each series of consecutive blocks. */
static void advise(const struct stream *s, uint64_t run)
{
    if (run >= s->n_runs) return;
    const uint64_t end = s->runs[run + 1];
    for (uint64_t i = s->runs[run], n; i < end; i += n) {
        n = neighbours(s, i, end);
        ckpt_advise_blocks(s->l->o->c, tensor_of(s, i), loader_stream_block_of(s, i), n);
    }
}

struct rows_ctx {
    const struct loader *l;
    size_t tensor;
};

static struct status take_rows(void *ctx, uint64_t row, uint64_t n_rows, const void *rows)
{
    const struct rows_ctx *r = ctx;
    return loader_take(r->l, r->tensor, row, n_rows, rows);
}

/* Reads n consecutive blocks. Small blocks (an expert's codes, its scales) share a read. */
static struct status lane_blocks(const struct stream *s, struct lane *lane, uint64_t i, uint64_t n)
{
    const struct ckpt_tensor *t = tensor_of(s, i);
    struct rows_ctx r = {.l = s->l, .tensor = s->list[i].tensor};
    lane->stats.n_blocks += n;
    for (uint64_t k = 0; k < n; k++)
        lane->stats.n_bytes += ckpt_block_bytes(t, loader_stream_block_of(s, i + k));
    return ckpt_stream_blocks(s->l->o->c, t, loader_stream_block_of(s, i), n, lane->buf, take_rows,
                              &r);
}

static void lane_run(void *ctx, uint32_t part)
{
    struct stream *s = ctx;
    struct lane *lane = &s->lanes[part];
    uint64_t run;
    while (!atomic_load(&s->stops) && (run = atomic_fetch_add(&s->next, 1)) < s->n_runs) {
        const uint64_t end = s->runs[run + 1];
        advise(s, run + (uint64_t)AHEAD_RUNS * s->n_lanes);
        for (uint64_t i = s->runs[run], n; i < end; i += n) {
            n = neighbours(s, i, end);
            lane->status = lane_blocks(s, lane, i, n);
            if (!status_failed(&lane->status)) continue;
            lane->failed = i;
            atomic_store(&s->stops, true);
            return;
        }
    }
}

static struct loader_place next_alone(const struct loader *l, struct loader_place at)
{
    at.block++;
    return loader_next(l, l->alone, at);
}

/* Cuts the list into runs. A run ends before the block that would make it too long, and runs get
 * shorter towards the end, so that all lanes finish at about the same time. */
static struct status runs_make(struct stream *s, uint64_t n_bytes)
{
    uint64_t n_most = 0, n_run = 0;
    TRY(mem_alloc(&s->runs, s->n + 1, sizeof s->runs[0], "the list of blocks"));
    for (uint64_t i = 0; i < s->n; i++) {
        const size_t n = ckpt_block_bytes(tensor_of(s, i), loader_stream_block_of(s, i));
        if (i == 0 || n_run + n > n_most) {
            s->runs[s->n_runs++] = i;
            n_run = 0;
            n_most = n_bytes / (2 * (uint64_t)s->n_lanes);
            if (n_most > RUN_BYTES) n_most = RUN_BYTES;
        }
        n_run += n;
        n_bytes -= n;
    }
    s->runs[s->n_runs] = s->n;
    return status_ok();
}

/* Lists the blocks in the file's order and computes the size of a lane's buffer. */
static struct status list_make(struct stream *s)
{
    const struct loader *l = s->l;
    uint64_t n_bytes = 0;
    const struct loader_place first = loader_next(l, l->alone, (struct loader_place){0});
    s->buf_bytes = CKPT_READ_BYTES_MAX;
    for (struct loader_place at = first; at.block < l->n_blocks; at = next_alone(l, at)) {
        const struct ckpt_tensor *t = ckpt_tensor_at(l->o->c, at.tensor);
        const size_t row_bytes = (size_t)t->n_cols * dtype_bytes(t->dtype);
        if (row_bytes > s->buf_bytes) s->buf_bytes = row_bytes;
        s->n++;
    }
    TRY(mem_alloc(&s->list, s->n, sizeof s->list[0], "the list of blocks"));
    struct loader_place at = first;
    for (uint64_t i = 0; i < s->n; i++, at = next_alone(l, at)) {
        s->list[i] = at;
        n_bytes += ckpt_block_bytes(tensor_of(s, i), loader_stream_block_of(s, i));
    }
    return runs_make(s, n_bytes);
}

static struct status lanes_make(struct stream *s)
{
    TRY(mem_alloc(&s->lanes, s->n_lanes, sizeof s->lanes[0], "the loader's lanes"));
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        s->lanes[i].failed = s->n;
        TRY(mem_map(&s->lanes[i].buf, s->buf_bytes, "rows on their way into the weights"));
    }
    return status_ok();
}

/* Adds up the lanes' counts; returns the failure that comes first in the file. */
static struct status lanes_sum(const struct stream *s, struct loader_stats *stats)
{
    struct status st = status_ok();
    uint64_t failed = s->n;
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        const struct lane *lane = &s->lanes[i];
        stats->n_blocks += lane->stats.n_blocks;
        stats->n_bytes += lane->stats.n_bytes;
        if (lane->failed >= failed) continue;
        failed = lane->failed;
        st = lane->status;
    }
    return st;
}

struct status loader_stream(struct loader *l, struct loader_stats *stats)
{
    struct stream s = {.l = l, .n_lanes = team_size(l->o->team)};
    struct status st;
    TRY_GOTO(st, list_make(&s), out);
    if (s.n == 0) goto out;
    TRY_GOTO(st, lanes_make(&s), out);
    for (uint64_t i = 0; i < (uint64_t)AHEAD_RUNS * s.n_lanes; i++) advise(&s, i);
    team_run(l->o->team, 1, lane_run, &s);
    st = lanes_sum(&s, stats);
out:
    if (s.lanes != NULL) {
        for (uint32_t i = 0; i < s.n_lanes; i++) mem_unmap(&s.lanes[i].buf, s.buf_bytes);
    }
    mem_free(&s.lanes);
    mem_free(&s.runs);
    mem_free(&s.list);
    return st;
}
