/* The parallel reader: every rank says which slabs it wants, each block that a host needs is read
 * and verified by exactly one of its ranks, and passed on through shared memory if several want it.
 * Does not pack and does not keep anything. Called by the model room at load. */
#ifndef SHOAL_CHECKPOINT_LOAD_LOADER_H
#define SHOAL_CHECKPOINT_LOAD_LOADER_H

#include "base/team.h"
#include "checkpoint/file/ckpt.h"

#include <mpi.h>

/* A slab: outer range x row range x column range of a tensor.
 * [out, in]: outer0 = 0, n_outer = 1, rows of out, columns of in. [E, out, in]: outer is the range
 * of experts, rows count inside an expert. A vector [n] is one row: row0 = 0, n_rows = 1. */
struct slab_want {
    const struct ckpt_tensor *tensor; /* borrowed, of the ckpt given to loader_run; of a quantized
                                         tensor its parts, each with its own columns */
    uint64_t outer0, n_outer;
    uint64_t row0, n_rows;
    uint64_t col0, n_cols;
};

/* Consecutive rows of one want, from one block, inside one outer index. */
struct slab_piece {
    size_t want;    /* index into the wants */
    uint64_t outer; /* absolute index of the expert; 0 for 2-D and 1-D tensors */
    uint64_t row;   /* absolute index of the first row (inside the expert) */
    uint64_t n_rows;
    const void *data;    /* borrowed during the call: element (row, col0) in the stored dtype */
    size_t stride_bytes; /* from one row to the next */
};

/* Takes a piece: packs or copies it. Each element of each want comes exactly once, in any order,
 * and threads of the team bring pieces side by side, unless the sink is serial. A piece may come
 * before its checksum was looked at: what was taken counts only when loader_run succeeds. May fail:
 * then every rank's loader_run fails. */
typedef struct status slab_sink(void *ctx, const struct slab_piece *piece);

struct loader_stats {
    uint64_t n_blocks;      /* read by this rank */
    uint64_t n_bytes;       /* read by this rank */
    uint64_t n_blocks_host; /* read by all ranks of the host, each block once */
    uint64_t n_bytes_host;  /* read by all ranks of the host */
    double seconds;         /* of the whole call */
};

/* Local. The want that gives all of a tensor. */
struct slab_want slab_whole(const struct ckpt_tensor *t);

enum { LOADER_LANES_MAX = 4 }; /* threads of a rank that read what several ranks want */

/* What one rank brings to a load; all borrowed. */
struct loader_job {
    struct ckpt *c;                /* the same file on all ranks, which is checked */
    MPI_Comm host;                 /* ranks that share memory (MPI_COMM_TYPE_SHARED) */
    struct team *team;             /* reads, verifies, takes; NULL: the caller alone does */
    const struct slab_want *wants; /* [n_wants]; a rank may want nothing */
    size_t n_wants;
    slab_sink *sink;
    void *ctx;
    bool sink_is_serial; /* only the caller's thread calls it, with verified pieces */
};

/* **Collective (host)**: every rank of the host calls it with its own job; `stats` may be NULL.
 * Memory: CKPT_READ_BYTES_MAX (or the longest row) for each thread; then, while blocks are read
 * that several ranks want, or whose sink is serial, twice 8 MiB (or the largest block) for each
 * lane of a rank, which has as many lanes as the smallest team of the host has threads, at most
 * LOADER_LANES_MAX. Errors: the status of the first rank that failed, of its blocks that only it
 * wants the first in the file, the same on all ranks of the host, all return together. */
struct status loader_run(const struct loader_job *job, struct loader_stats *stats);

/* **Collective (comm)**. Checks that all ranks opened the same checkpoint: compares digests.
 * Errors: STATUS_INPUT on all ranks, naming the first rank that differs. */
struct status loader_check_same(const struct ckpt *c, MPI_Comm comm);

#endif
