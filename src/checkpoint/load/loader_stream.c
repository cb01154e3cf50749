/* Reads the blocks that only one rank wants. Each thread of the team takes one run of blocks after
 * another. A thread reads pieces of rows that fit the core's cache. It adds each piece to the
 * block's checksum and gives it to the sink at once, so every byte is read from memory once and
 * written once. A wrong checksum at a block's end ends the load. While a thread works on one piece,
 * the disk reads the next ones: by the system's read-ahead or, if its cache is bypassed, by the
 * reader's own (ckpt_reader.h). */
#include "checkpoint/load/loader_private.h"

#include "base/mem.h"

#include <stdatomic.h>

enum {
    AHEAD_RUNS = 4, /* how many runs of each lane the system is told to read ahead */
    /* Bytes of a run. Small blocks (an expert each) share a run. Otherwise several threads would
     * fill the same huge page of the weights at once, and the first access to a page clears it. */
    RUN_BYTES = 8 << 20 /* at most, unless one block is longer */
};

struct stream;

/* The state of one thread. */
struct lane {
    struct stream *s;
    struct ckpt_reader *reader; /* owned */
    uint64_t at, end; /* indices into the list: the blocks of the run that the reader has not yet
                         asked for */
    struct loader_stats stats;
    struct status status;
    uint64_t failed; /* the index of the first block of the series that failed */
};

struct stream {
    const struct loader *l;
    struct loader_place *list; /* owned [n] */
    uint64_t n;
    uint64_t *runs; /* owned [n_runs + 1]: each run's first index in the list */
    uint64_t n_runs;
    struct lane *lanes; /* owned [n_lanes] */
    uint32_t n_lanes;
    _Atomic uint64_t next;
    _Atomic bool stops; /* set on failure; runs that have begun are still finished */
};

static const struct ckpt_tensor *tensor_of(const struct stream *s, uint64_t i)
{
    return ckpt_tensor_at(s->l->o->c, s->list[i].tensor);
}

/* Returns the block's number within its tensor. */
static uint64_t loader_stream_block_of(const struct stream *s, uint64_t i)
{
    return s->list[i].block - s->l->first_block[s->list[i].tensor];
}

/* Returns how many blocks from index i on, before `end`, are consecutive in one tensor. */
static uint64_t neighbours(const struct stream *s, uint64_t i, uint64_t end)
{
    uint64_t n = 1;
    while (i + n < end && s->list[i + n].tensor == s->list[i].tensor &&
           s->list[i + n].block == s->list[i].block + n)
        n++;
    return n;
}

/* Tells the system to read run number `run`, by one call for each series of consecutive blocks. */
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

/* Moves the lane to its next run; false: there is none. */
static bool lane_next_run(struct lane *lane)
{
    struct stream *s = lane->s;
    if (atomic_load(&s->stops)) return false;
    const uint64_t run = atomic_fetch_add(&s->next, 1);
    if (run >= s->n_runs) return false;
    if (!ckpt_reader_is_direct(lane->reader)) advise(s, run + (uint64_t)AHEAD_RUNS * s->n_lanes);
    lane->at = s->runs[run];
    lane->end = s->runs[run + 1];
    return true;
}

/* Sets *out to the next series of consecutive blocks of the lane's runs. Small blocks of one tensor
 * (such as the scales of several experts) share a read. */
static bool lane_next_series(void *ctx, struct ckpt_series *out)
{
    struct lane *lane = ctx;
    const struct stream *s = lane->s;
    if (lane->at == lane->end && !lane_next_run(lane)) return false;
    *out = (struct ckpt_series){.tensor = tensor_of(s, lane->at),
                                .block = loader_stream_block_of(s, lane->at),
                                .n_blocks = neighbours(s, lane->at, lane->end),
                                .tag = lane->at};
    lane->at += out->n_blocks;
    return true;
}

static void series_count(const struct ckpt_series *series, struct loader_stats *stats)
{
    stats->n_blocks += series->n_blocks;
    for (uint64_t k = 0; k < series->n_blocks; k++)
        stats->n_bytes += ckpt_block_bytes(series->tensor, series->block + k);
}

static void lane_run(void *ctx, uint32_t part)
{
    struct stream *s = ctx;
    struct lane *lane = &s->lanes[part];
    struct ckpt_series series;
    while (ckpt_reader_next(lane->reader, &series)) {
        struct rows_ctx r = {.l = s->l, .tensor = series.tensor->index};
        series_count(&series, &lane->stats);
        lane->status = ckpt_reader_rows(lane->reader, take_rows, &r);
        if (!status_failed(&lane->status)) continue;
        lane->failed = series.tag;
        atomic_store(&s->stops, true);
        return;
    }
}

static struct loader_place next_alone(const struct loader *l, struct loader_place at)
{
    at.block++;
    return loader_next(l, l->alone, at);
}

/* Divides the list into runs. A run ends before the block that would make it too long, and runs get
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

/* Lists the blocks that only this rank wants, in the order of their numbers. */
static struct status list_make(struct stream *s)
{
    const struct loader *l = s->l;
    uint64_t n_bytes = 0;
    const struct loader_place first = loader_next(l, l->alone, (struct loader_place){0});
    for (struct loader_place at = first; at.block < l->n_blocks; at = next_alone(l, at)) s->n++;
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
        struct lane *lane = &s->lanes[i];
        *lane = (struct lane){.s = s, .failed = s->n, .status = status_ok()};
        TRY(loader_reader(s->l, s->n_lanes, lane_next_series, lane, &lane->reader));
    }
    return status_ok();
}

/* Destroys one reader. Called on each thread, because ending direct reads takes the system about 30
 * ms, most of it waiting. */
static void lane_end(void *ctx, uint32_t part)
{
    struct stream *s = ctx;
    ckpt_reader_destroy(&s->lanes[part].reader);
}

/* Adds up the threads' counts; returns the failure that comes first in the list. */
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
    if (!ckpt_reader_is_direct(s.lanes[0].reader)) {
        for (uint64_t i = 0; i < (uint64_t)AHEAD_RUNS * s.n_lanes; i++) advise(&s, i);
    }
    team_run(l->o->team, 1, lane_run, &s);
    st = lanes_sum(&s, stats);
out:
    if (s.lanes != NULL) team_run(l->o->team, 1, lane_end, &s);
    mem_free(&s.lanes);
    mem_free(&s.runs);
    mem_free(&s.list);
    return st;
}
