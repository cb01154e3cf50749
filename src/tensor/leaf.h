/* Leaves: how the columns of a row-parallel weight are cut into sums of their own (numerics law,
 * "The sum over ranks"). A pure function of the tensor, so that every layout cuts alike.
 * Called by convert, which stores the answer; everything else reads the stored one. */
#ifndef SHOAL_TENSOR_LEAF_H
#define SHOAL_TENSOR_LEAF_H

#include <stdint.h>

enum {
    LEAF_ELEMS_AIM = 512, /* no leaf is longer, unless one unit is */
    LEAF_COUNT_AIM = 16,  /* as many leaves as this where the size allows, */
    LEAF_COUNT_LOW = 8,   /* or at least as many as this */
    LEAF_COUNT_MAX = 4096,
    GRID_BITS_DEFAULT = 32,
};

/* Local. Elements of one leaf for a tensor of K columns (the law's K), a multiple of `unit` (what
 * must stay together: head_dim for o_proj, 32 for a down projection). The largest multiple that is
 * at most max(unit, 512) and gives at least 16 leaves; if none does, at least 8; else one unit.
 * The last leaf is shorter when K is not a multiple. 0 when K or unit is 0 or when more than
 * LEAF_COUNT_MAX leaves would be needed. */
uint32_t leaf_choose(uint64_t n_columns, uint32_t unit);

/* Local. Leaves of a tensor: ceil(n_columns / leaf_elems); 0 when leaf_elems is 0. */
uint64_t leaf_count(uint64_t n_columns, uint32_t leaf_elems);

#endif
