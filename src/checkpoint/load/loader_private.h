/* The state of the parallel reader. loader.c sorts the wants; loader_stream.c reads the blocks that
 * only one rank of the host wants, loader_rounds.c those that several ranks want, or a rank with a
 * serial sink. */
#ifndef SHOAL_CHECKPOINT_LOAD_LOADER_PRIVATE_H
#define SHOAL_CHECKPOINT_LOAD_LOADER_PRIVATE_H

#include "checkpoint/file/ckpt_reader.h"
#include "checkpoint/load/loader.h"

/* The state of one call. Blocks are numbered through all stored tensors, in the order of
 * ckpt_tensor_at. */
struct loader {
    const struct loader_job *o;
    int rank, n_ranks, n_lanes;
    bool is_direct;        /* bypasses the system's file cache, on all ranks of the host */
    uint64_t *first_block; /* owned [n_tensors + 1]: the number of each tensor's first block */
    uint64_t n_blocks;
    size_t longest_row;    /* bytes of the longest row of all stored tensors */
    unsigned char *alone;  /* owned, a bit for each block: this rank reads and takes it */
    unsigned char *shared; /* owned, a bit for each block: the ranks read it in rounds */
    size_t *order;         /* owned [n_wants]: wants sorted by tensor */
    size_t *first_want;    /* owned [n_tensors + 2]: each tensor's first index in `order`, then
                              n_wants; the last element only serves sorting */
};

/* A block and the stored tensor to which it belongs. */
struct loader_place {
    uint64_t block;
    size_t tensor;
};

/* Local. Returns the first block from `at` on whose bit is set; n_blocks when there is none. */
struct loader_place loader_next(const struct loader *l, const unsigned char *bits,
                                struct loader_place at);

/* Local. Makes a reader for one of n_threads threads. The caller destroys *out. */
struct status loader_reader(const struct loader *l, uint32_t n_threads, ckpt_series_fn *next,
                            void *ctx, struct ckpt_reader **out);

/* **Collective (comm)**. Returns, on all ranks, the status of the first rank that failed. */
struct status loader_agree(MPI_Comm comm, struct status mine);

/* Local. Gives the sink the part of rows [row, row + n_rows) of stored tensor `tensor` that the
 * wants ask for. Rows are counted in the whole tensor; `rows` is in the stored dtype, borrowed.
 * Thread-safe. Errors: the sink's. */
struct status loader_take(const struct loader *l, size_t tensor, uint64_t row, uint64_t n_rows,
                          const void *rows);

/* Local. Reads and verifies the blocks that only this rank wants and gives them to the sink. Each
 * thread of the team reads one run of blocks after another. Errors: STATUS_INPUT names the first
 * damaged block, STATUS_MEMORY, the sink's. */
struct status loader_stream(struct loader *l, struct loader_stats *stats);

/* **Collective (host)**. Reads the shared blocks and gives the wanted parts to the sinks. `mine` is
 * this rank's status so far. Errors, the same on all ranks: the error of the first rank that
 * failed, which is its `mine` or as of loader_stream. */
struct status loader_rounds(struct loader *l, struct status mine, struct loader_stats *stats);

#endif
