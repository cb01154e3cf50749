/* Decides which rank computes which rows of the experts, where ranks of one host can read each
 * other's experts: ranks with more than their share leave rows to ranks with less. A pure function
 * of integers that all ranks have, so all ranks decide the same. A row's bytes do not depend on
 * which rank computes it. */
#ifndef SHOAL_MOE_BALANCE_H
#define SHOAL_MOE_BALANCE_H

#include <stddef.h>
#include <stdint.h>

/* A run of an expert's rows, which are in the order of their slots. */
struct expert_piece {
    uint32_t expert;
    uint32_t rank; /* computes these rows */
    uint32_t first, n_rows;
};

enum {
    /* reading an expert's weights costs a rank as much as computing this many rows */
    BALANCE_WEIGHT_ROWS = 16,
    BALANCE_LEAST_ROWS = 16, /* an expert is cut into pieces of at least this many rows */
};

/* Local. Balances pieces [n], sorted by expert: one for each expert that has rows, with the rank
 * that holds it. Moves whole experts from the fullest rank to the emptiest, the best fit first, and
 * cuts an expert where none fits well, as long as the two loads come closer. pieces has room for n
 * + n_ranks; load [n_ranks] is scratch. Returns the number of pieces, sorted by expert, then first
 * row. */
size_t balance_pieces(struct expert_piece *pieces, size_t n, uint32_t n_ranks, uint64_t *load);

#endif
