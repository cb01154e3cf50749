/* Leaves: the K-blocks of a row-parallel weight. Each leaf is a run of columns (inputs) whose
 * products are summed in f32 and then rounded to an integer (docs/numerics.md, "The sum over
 * ranks"). The length of leaves is a pure function of the tensor's shape, format and role, so that
 * every layout has the same leaves. It is chosen when a file is written and stored in the
 * checkpoint; everything else reads the stored length. */
#ifndef SHOAL_TENSOR_LEAF_H
#define SHOAL_TENSOR_LEAF_H

#include <stdint.h>

enum {
    LEAF_ELEMS_AIM = 512, /* longest leaf, unless one unit is longer */
    LEAF_ELEMS_LOW = 256, /* if LEAF_COUNT_AIM leaves would be shorter than this, fewer are made:
                             short leaves round too often */
    LEAF_COUNT_AIM = 16,  /* leaves that a tensor should have, so that tp can divide it */
    LEAF_COUNT_LOW = 8, /* fewest leaves of a tensor that is too short for LEAF_COUNT_AIM of them */
    LEAF_COUNT_MAX = 4096,
    GRID_BITS_DEFAULT = 32,
    LEAF_QUANTIZED_LOW =
        256, /* shortest leaf of a quantized tensor, if the tensor is long enough */
    LEAF_QUANTIZED_COUNT =
        8,                /* most leaves of a quantized tensor, if none is then longer than 512 */
    LEAF_DENSE_LEAST = 4, /* fewest in a quantized dense tensor, so that tp can divide it */
    LEAF_EXPERT_LEAST =
        2, /* fewest in experts: whole experts are spread over ranks before any is divided */
    LEAF_GROUP_LEAST = 32, /* the smallest group that shares a scale */
};

/* Local. Returns the length of a leaf, in columns, for a tensor of n_columns columns. It is a
 * multiple of `unit`, the columns that must stay together (value_dim for o_proj, 32 for a down
 * projection): the largest multiple that is at most max(unit, 512) and gives at least 16 leaves. If
 * there is none, or it is shorter than 256, so that rounding at the end of each leaf would cost too
 * much, leaves are about 256 columns long, as equal as multiples of the unit allow. They are
 * shorter, down to one unit, if the tensor would otherwise have fewer than n_least leaves
 * (LEAF_COUNT_LOW; LEAF_EXPERT_LEAST in experts). The last leaf is shorter when n_columns is no
 * multiple. Returns 0 when an argument is 0, or when more than LEAF_COUNT_MAX leaves would be
 * needed. */
uint32_t leaf_choose(uint64_t n_columns, uint32_t unit, uint64_t n_least);

/* Local. Returns the length of a leaf for a quantized tensor, where short leaves cost more: 8
 * leaves, fewer if these would be shorter than 256 columns and more if longer than 512, but at
 * least n_least so that ranks can divide them. Lengths are as equal as multiples of `unit` (whole
 * groups, whole heads) allow, and one unit when the unit is longer. Returns 0 as leaf_choose does.
 */
uint32_t leaf_choose_quantized(uint64_t n_columns, uint32_t unit, uint64_t n_least);

/* Local. Returns the largest quantization group, out of `group`, 64 and 32, for which a
 * row-parallel tensor has at least n_least leaves of at most 512 columns that are multiples of the
 * group and of `whole` (value_dim; 1: heads do not matter); 32 if no group does. */
uint32_t leaf_fit_group(uint64_t n_columns, uint32_t whole, uint32_t group, uint64_t n_least);

/* Local. Returns the least common multiple of a and b, both above 0; 0 if it needs more than 32
 * bits. */
uint32_t leaf_common_unit(uint32_t a, uint32_t b);

/* Local. Returns the number of leaves of a tensor: ceil(n_columns / leaf_elems); 0 when leaf_elems
 * is 0. */
uint64_t leaf_count(uint64_t n_columns, uint32_t leaf_elems);

#endif
