/* Which rank computes which rows of the experts, where ranks of one host can read each other's
 * experts: those with more than their share leave rows to those with less. Pure, in integers, and
 * of what all ranks know, so that all come to the same; a row's bytes do not depend on it. */
#ifndef SHOAL_MOE_BALANCE_H
#define SHOAL_MOE_BALANCE_H

#include <stddef.h>
#include <stdint.h>

/* Some of the rows that chose an expert, in the order of their slots. */
struct expert_piece {
    uint32_t expert;
    uint32_t rank; /* who computes these rows */
    uint32_t first, n_rows;
};

enum {
    /* what an expert's weights cost a rank that has any of its rows, in rows: reading them */
    BALANCE_WEIGHT_ROWS = 16,
    BALANCE_LEAST_ROWS = 16, /* of a piece of an expert that is cut */
};

/* Local. pieces [n], by expert, one of each that has rows, with the rank that holds it: moves whole
 * experts from the fullest rank to the emptiest, the one that fits best, and cuts one where none
 * fits well, while that makes the two more alike. Room for n + n_ranks; load [n_ranks] is scratch.
 * Returns the number of pieces, by expert, then first row. */
size_t balance_pieces(struct expert_piece *pieces, size_t n, uint32_t n_ranks, uint64_t *load);

#endif
