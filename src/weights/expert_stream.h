/* Experts that stay on disk, in a packed copy (checkpoint/file/expert_file.h), and pass through a
 * bounded memory: they are read when rows need them, those of later layers while earlier layers
 * compute.
 *
 *     memory   [ home: the same share of each layer's experts, those used most | ring ]
 *     ring     the experts of this layer and the next; the one needed again last goes first
 *
 * A layer's experts come up once per step, in the layers' order, so the experts used most recently
 * are needed again last: plain LRU would drop each expert just before its next use. Experts without
 * rows are not read, except ahead of their layer, when about half of the recent steps needed them.
 * A separate thread reads, several experts at a time, bypassing the system's file cache, and
 * verifies each expert's checksum. The job starts the stream, the MoE block takes experts from it;
 * one thread calls. */
#ifndef SHOAL_WEIGHTS_EXPERT_STREAM_H
#define SHOAL_WEIGHTS_EXPERT_STREAM_H

#include "base/status.h"
#include "parallel/layout/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    EXPERT_STREAM_LEAST = LAYOUT_STREAM_LEAST, /* experts that must fit in the memory */
    EXPERT_STREAM_DEPTH = 16,                  /* most reads in flight */
};

struct expert_stream;

/* One expert whose rows this rank computes. A block's needs are in the order of computation. */
struct expert_need {
    uint32_t expert; /* counted from the rank's first place */
    size_t n_rows;
};

/* Consecutive needs whose weights are in memory. */
struct expert_run {
    size_t first, n;
};

struct expert_stream_stats {
    uint64_t n_bytes, n_reads; /* from the packed copy */
    uint64_t n_needed, n_held; /* experts with rows, over all blocks; of these, in memory or being
                                  read when their block began */
    uint64_t n_rows;           /* rows of these experts */
    uint64_t n_blocks;         /* calls of begin with at least one need */
    uint64_t wait_ns;          /* the caller's wait for the disk */
    uint64_t cpu_ns;           /* the reader's CPU time, for reads and checksums */
    uint64_t held_bytes;       /* memory for experts */
};

/* Local. Takes n_bytes of memory, but at least enough for EXPERT_STREAM_LEAST experts and no more
 * than enough for all, and starts the reader, which fills the memory. Errors: STATUS_MEMORY. */
struct status expert_stream_start(struct expert_stream *s, uint64_t n_bytes);

/* Local. Bytes of the largest expert; 0: this rank has none. */
uint64_t expert_stream_one_bytes(const struct expert_stream *s);

/* Local. Begins a block: the needs [n] of the layer `in_stage` (counted from the first of the
 * stage); does nothing for n = 0. `in_order`: runs are single needs, in their order, the same on
 * all ranks that share these experts. most_rows: a run of several needs has no more rows. */
void expert_stream_begin(struct expert_stream *s, uint32_t in_stage,
                         const struct expert_need *needs, size_t n, bool in_order,
                         size_t most_rows);

/* Local. Waits for the next run whose weights are in memory; they stay until the next call. Each
 * need comes once; n = 0: all have come. Sets the data of the layer's packed weights. Errors:
 * STATUS_IO and STATUS_INPUT, when an expert cannot be read or is damaged. */
struct status expert_stream_next(struct expert_stream *s, struct expert_run *run);

/* Local. Returns the counts so far. */
struct expert_stream_stats expert_stream_stats_of(struct expert_stream *s);

/* Local. Waits for reads in flight, ends the thread and frees; accepts NULL. */
void expert_stream_destroy(struct expert_stream **s);

#endif
