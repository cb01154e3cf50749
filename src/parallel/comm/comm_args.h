/* Arguments of collectives that are more than a buffer: shared by comm.h, which chooses the way,
 * and host_group.h, which goes through the memory of one host. */
#ifndef SHOAL_PARALLEL_COMM_COMM_ARGS_H
#define SHOAL_PARALLEL_COMM_COMM_ARGS_H

#include <stddef.h>
#include <stdint.h>

/* Memory of this rank that the others of an axis can read, one piece for each purpose. */
enum comm_lane {
    COMM_LANE_SUMS,          /* partial sums of linears, or their outputs */
    COMM_LANE_EXPERT_SUMS,   /* of the experts' linears */
    COMM_LANE_ROWS_OUT,      /* rows to the experts */
    COMM_LANE_ROWS_BACK,     /* their results */
    COMM_LANE_INPUTS,        /* of linears that are cut by outputs */
    COMM_LANE_EXPERT_INPUTS, /* likewise, of the experts */
    COMM_LANE_NORMED,        /* rows that ranks norm in slices */
    COMM_LANE_EXPERTS,       /* weights of the experts that a rank holds */
    COMM_LANES
};

/* Partial sums whose total is wanted as words of 4 bytes, each computed from its total alone. */
struct comm_sum {
    int64_t *sums; /* [n], undefined afterwards */
    size_t n;
    /* words[k] from the total sums[k], which is element first + k. Both may be called on several
     * threads at once, for any pieces of [0, n), in any order; only what is taken counts. */
    void (*convert)(const void *ctx, const int64_t *sums, size_t first, size_t n, uint32_t *words);
    void (*take)(const void *ctx, const uint32_t *words, size_t first, size_t n);
    const void *ctx;
};

/* All-to-all of rows, a number of its own to and from each rank; counts and displacements [size]
 * are in rows. */
struct comm_exchange {
    size_t row_words; /* 4-byte words of one row */
    const void *send;
    const int *send_counts, *send_displs;
    void *recv;
    const int *recv_counts, *recv_displs;
};

#endif
