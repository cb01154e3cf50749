/* Leaves: how the columns of a row-parallel weight are cut into sums of their own
 * (docs/numerics.md, "The sum over ranks"). A pure function of the tensor, so that every layout
 * cuts alike. Called by convert, which stores the answer; everything else reads the stored one. */
#ifndef SHOAL_TENSOR_LEAF_H
#define SHOAL_TENSOR_LEAF_H

#include <stdint.h>

enum {
    LEAF_ELEMS_AIM = 512, /* no leaf is longer, unless one unit is */
    LEAF_ELEMS_LOW = 256, /* nor shorter, where enough leaves are left: */
    LEAF_COUNT_AIM = 16,  /* as many as this where that allows, */
    LEAF_COUNT_LOW = 8,   /* or at least as many as this, for tp to cut */
    LEAF_COUNT_MAX = 4096,
    GRID_BITS_DEFAULT = 32,
    LEAF_QUANTIZED_LOW =
        256, /* quantized leaves are not shorter where the tensor is long enough, */
    LEAF_QUANTIZED_COUNT = 8, /* nor more than these where 512 allows; */
    LEAF_DENSE_LEAST = 4,     /* but at least so many, for tp to cut, */
    LEAF_EXPERT_LEAST = 2,    /* and in experts, which spread over ranks first */
    LEAF_GROUP_LEAST = 32,    /* the smallest group that a scale serves */
};

/* Local. Elements of one leaf for a tensor of K columns (the law's K), a multiple of `unit` (what
 * must stay together: head_dim for o_proj, 32 for a down projection). The largest multiple that is
 * at most max(unit, 512) and gives at least 16 leaves. Where that is shorter than 256, ends of
 * leaves would cost more than they are worth: leaves of at most 256, of equal lengths as far as
 * units go, at least n_least of them (LEAF_COUNT_LOW; LEAF_EXPERT_LEAST in experts); else one unit.
 * The last leaf is shorter when K is not a multiple. 0 when K or unit is 0 or when more than
 * LEAF_COUNT_MAX leaves would be needed. */
uint32_t leaf_choose(uint64_t n_columns, uint32_t unit, uint64_t n_least);

/* Local. The same for a quantized tensor, whose short leaves cost more: as many leaves as lengths
 * of 256 to 512 allow, up to 8, but at least n_least so that ranks can divide them; of equal
 * lengths as far as multiples of `unit` (whole groups, whole heads) go; one unit when that is
 * longer. */
uint32_t leaf_choose_quantized(uint64_t n_columns, uint32_t unit, uint64_t n_least);

/* Local. The largest group, `group` itself or 64 or 32 below it, with which a row-parallel tensor
 * has leaves of at most 512 that are whole groups and multiples of `whole` (head_dim; 1: none), and
 * at least n_least of them; 32 when none does. */
uint32_t leaf_fit_group(uint64_t n_columns, uint32_t whole, uint32_t group, uint64_t n_least);

/* Local. The least number that two lengths divide, both above 0; 0 when it has more than 32 bits.
 */
uint32_t leaf_common_unit(uint32_t a, uint32_t b);

/* Local. Leaves of a tensor: ceil(n_columns / leaf_elems); 0 when leaf_elems is 0. */
uint64_t leaf_count(uint64_t n_columns, uint32_t leaf_elems);

#endif
