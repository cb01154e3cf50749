/* Reads a checkpoint in parallel. Every rank lists the slabs that it wants. Each block that a
 * host's ranks want is read and verified by exactly one of them, and passed on through shared
 * memory if several ranks want it, or a rank with a serial sink. Keeps no state between calls.
 * Called by job.c, quantize_job.c, weights_load.c, adapters.c and expert_pack.c. */
#ifndef SHOAL_CHECKPOINT_LOAD_LOADER_H
#define SHOAL_CHECKPOINT_LOAD_LOADER_H

#include "base/team.h"
#include "checkpoint/file/ckpt.h"
#include "checkpoint/load/loader_cache.h"

#include <mpi.h>

/* A slab of a tensor: outer range x row range x column range.
 * [out, in]: outer0 = 0, n_outer = 1, rows of out, columns of in. [E, out, in]: outer is the range
 * of experts, rows count inside an expert. A vector [n] is one row: row0 = 0, n_rows = 1. */
struct slab_want {
    const struct ckpt_tensor *tensor; /* borrowed from the job's c; a quantized tensor needs a want
                                         for each of its parts, with that part's columns */
    uint64_t outer0, n_outer;
    uint64_t row0, n_rows;
    uint64_t col0, n_cols;
};

/* Consecutive rows of one want, inside one outer index. They may span blocks. */
struct slab_piece {
    size_t want;    /* index into the wants */
    uint64_t outer; /* absolute index of the expert; 0 for 2-D and 1-D tensors */
    uint64_t row;   /* absolute index of the first row (inside the expert) */
    uint64_t n_rows;
    const void *data; /* element (row, first column of the want) in the stored dtype; borrowed until
                         the sink returns */
    size_t stride_bytes; /* from one row to the next */
};

/* Packs or copies a piece. Each element of each want comes exactly once, in any order; several
 * threads of the team call the sink at the same time unless sink_is_serial. A piece may come before
 * its checksum has been verified, so its data counts only if loader_run succeeds. If a sink fails,
 * loader_run fails on every rank of the host. */
typedef struct status slab_sink(void *ctx, const struct slab_piece *piece);

struct loader_stats {
    uint64_t n_blocks;      /* read by this rank */
    uint64_t n_bytes;       /* read by this rank */
    uint64_t n_blocks_host; /* read by all ranks of the host, each block once */
    uint64_t n_bytes_host;  /* read by all ranks of the host */
    bool is_direct;         /* reads bypassed the system's file cache, if the system can do so */
    double seconds;         /* duration of the whole call */
};

/* Local. Returns a want for a whole tensor. */
struct slab_want slab_whole(const struct ckpt_tensor *t);

enum {
    LOADER_LANES_MAX = 4,    /* most threads of a rank that read shared blocks */
    LOADER_DIRECT_READS = 8, /* reads of a rank in flight that bypass the system's file cache */
};

/* One rank's arguments; all borrowed. */
struct loader_job {
    struct ckpt *c;    /* must be the same file on all ranks; checked by digest */
    MPI_Comm host;     /* ranks that share memory (MPI_COMM_TYPE_SHARED) */
    struct team *team; /* reads, verifies and calls the sink; NULL: the calling thread alone */
    const struct slab_want *wants; /* [n_wants]; a rank may want nothing */
    size_t n_wants;
    slab_sink *sink;
    void *ctx;
    bool sink_is_serial;     /* only the calling thread calls the sink, with verified pieces */
    enum loader_cache cache; /* the host's first rank decides this and free_bytes for all ranks */
    uint64_t free_bytes;     /* free memory of the host before the weights are filled; 0: unknown */
};

/* **Collective (host)**. Every rank of the host calls it with its own job. Sets *stats on success;
 * `stats` may be NULL. Memory: with reads through the system's file cache CKPT_READ_BYTES_MAX (or
 * the longest row) for each thread; with direct reads 2 MiB (or the longest row) for each of
 * LOADER_DIRECT_READS reads, or for 2 reads of each thread if these are more. Later, for shared
 * blocks and serial sinks: twice 8 MiB (or the largest block) for each lane and, with direct reads,
 * the same reads as before, but of lanes instead of threads. A rank has as many lanes as the
 * smallest team of the host has threads, but at most LOADER_LANES_MAX. Errors, the same on all
 * ranks of the host: the status of the first rank that failed. If that rank failed on several
 * blocks that it alone wants: the first of them in the order of ckpt_tensor_at. */
struct status loader_run(const struct loader_job *job, struct loader_stats *stats);

/* **Collective (comm)**. Checks that all ranks opened the same checkpoint: compares digests.
 * Errors: STATUS_INPUT on all ranks, naming the first rank that differs. */
struct status loader_check_same(const struct ckpt *c, MPI_Comm comm);

#endif
