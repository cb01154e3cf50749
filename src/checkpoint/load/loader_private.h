/* The inside of the parallel reader: what loader.c found out about the wants, for the two ways to
 * read a block. loader_stream.c reads those that one rank of the host wants, loader_rounds.c those
 * that several share. Not for other rooms. */
#ifndef SHOAL_CHECKPOINT_LOAD_LOADER_PRIVATE_H
#define SHOAL_CHECKPOINT_LOAD_LOADER_PRIVATE_H

#include "checkpoint/load/loader.h"

/* The loader during one call. Blocks are numbered through all stored tensors. */
struct loader {
    const struct loader_job *o;
    int rank, n_ranks, n_lanes;
    uint64_t *first_block; /* owned [n_tensors + 1]: a tensor's first place among all blocks */
    uint64_t n_blocks;
    unsigned char *alone;  /* owned, a bit for each block: this rank reads and takes it */
    unsigned char *shared; /* owned, a bit for each block: the ranks read it in rounds */
    size_t *order;         /* owned [n_wants]: wants sorted by tensor */
    size_t *first_want;    /* owned [n_tensors + 1]: a tensor's first place in order */
};

/* A block and the stored tensor that it belongs to. */
struct loader_place {
    uint64_t block;
    size_t tensor;
};

/* Local. The first place from `at` on whose bit is set, or block n_blocks. */
struct loader_place loader_next(const struct loader *l, const unsigned char *bits,
                                struct loader_place at);

/* **Collective (host)**. All ranks give their status and get that of the first rank that failed. */
struct status loader_agree(MPI_Comm comm, struct status mine);

/* Local. Gives the sink what lies in the wants of rows [row, row + n_rows) of stored tensor
 * `tensor`, counted in the whole tensor; rows: in the stored dtype, borrowed. Threads may do it at
 * once. Errors: the sink's. */
struct status loader_take(const struct loader *l, size_t tensor, uint64_t row, uint64_t n_rows,
                          const void *rows);

/* Local. Reads, verifies and takes the blocks that only this rank wants: each thread of the team a
 * run of them, piece by piece. Errors: STATUS_INPUT names the first damaged block, STATUS_MEMORY,
 * the sink's. */
struct status loader_stream(struct loader *l, struct loader_stats *stats);

/* **Collective (host)**. Reads the shared blocks and takes what is wanted of them; `mine` is how
 * this rank got on until now. Errors, agreed on: `mine` of some rank, or as loader_stream. */
struct status loader_rounds(struct loader *l, struct status mine, struct loader_stats *stats);

#endif
