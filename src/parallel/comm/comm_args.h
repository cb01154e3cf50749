/* Arguments of the collectives that need more than one buffer, shared by comm.h, which chooses
 * between shared memory and MPI, and host_group.h, which works in the memory of one host. */
#ifndef SHOAL_PARALLEL_COMM_COMM_ARGS_H
#define SHOAL_PARALLEL_COMM_COMM_ARGS_H

#include <stddef.h>
#include <stdint.h>

/* The purposes of shared segments. A rank has one segment for each purpose and axis, which the
 * other ranks of the axis can read. Axes with the same ranks share their segments. */
enum comm_lane {
    COMM_LANE_SUMS,           /* partial sums, or outputs, of row-parallel linears */
    COMM_LANE_EXPERT_SUMS,    /* partial sums, or outputs, of the experts' linears */
    COMM_LANE_ROWS_OUT,       /* rows to the experts; in exchange_host.c the outputs of every second
                                 block */
    COMM_LANE_ROWS_BACK,      /* the experts' results for these rows, or sums of results */
    COMM_LANE_INPUTS,         /* inputs of linears whose outputs are divided between ranks */
    COMM_LANE_EXPERT_INPUTS,  /* the same for the experts' linears */
    COMM_LANE_NORMED,         /* normed rows: each rank norms a slice of them for all ranks */
    COMM_LANE_EXPERTS,        /* weights of the experts that a rank holds */
    COMM_LANE_EXPERT_OUTPUTS, /* the experts' outputs for rows of several hosts */
    COMM_LANE_MAIL,           /* messages received from other hosts (comm_mail.h) */
    COMM_LANE_ROWS_OUT_2,     /* this and the next three: for the second mail (comm_mail.h) */
    COMM_LANE_ROWS_BACK_2,
    COMM_LANE_EXPERT_OUTPUTS_2,
    COMM_LANE_MAIL_2,
    COMM_LANES
};

/* Partial sums. Each total is converted to a word that depends on this total and its number alone;
 * a word has 4 bytes, in host_sum.h also 8. */
struct comm_sum {
    int64_t *sums; /* [n], undefined afterwards */
    size_t n;
    /* convert makes words[k] from sums[k], the total of element first + k. take receives finished
     * words. Both may run on several threads at once, for any parts of [0, n), in any order. */
    void (*convert)(const void *ctx, const int64_t *sums, size_t first, size_t n, uint32_t *words);
    void (*take)(const void *ctx, const uint32_t *words, size_t first, size_t n);
    const void *ctx;
};

/* An all-to-all of rows, with a count for each pair of ranks. Counts and displacements are in rows;
 * each of these arrays is [size of the axis]. */
struct comm_exchange {
    size_t row_words; /* 4-byte words of one row */
    const void *send;
    const int *send_counts, *send_displs;
    void *recv;
    const int *recv_counts, *recv_displs;
};

#endif
