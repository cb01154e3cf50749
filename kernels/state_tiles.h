/* Runs the states of recurrent layers over the rows of a step: cuts each value head into tiles of
 * columns, and divides the tiles among threads. Does not compute q, k, v or gates. Used by
 * ops_delta.c and ops_mamba.c. */
#ifndef SHOAL_KERNELS_STATE_TILES_H
#define SHOAL_KERNELS_STATE_TILES_H

#include "kernels/ops.h"

/* C and "value heads" are delta_channels and delta_value_heads of the shape. */
struct state_tiles {
    void (*run)(const struct state_run *r); /* delta_rule or scan of the table */
    uint32_t element_cost; /* of one row and element of a state, in multiply-adds */
    const struct delta_shape *shape;
    const struct seq_rows *seqs; /* [n_seqs], covering all T rows */
    size_t n_seqs, n_rows;       /* n_rows: T */
    const float *mixed;          /* [T, C]: q of the key heads, their k, v of the value heads */
    const float *gates;          /* [T, delta_gates]: decays and betas */
    const float *skip;           /* [value heads]; NULL: 0 */
    float *states;               /* [slots, value heads, tiles], as in struct delta_states */
    float *out;                  /* [T, value heads, value_dim] */
};

/* Local. Computes `out` and the states after the step, on the team's threads (NULL: on the calling
 * thread). A sequence whose first row is at position 0 starts from zeros. */
void state_tiles_run(struct team *team, const struct state_tiles *t);

#endif
