/* Chooses the length of the K-blocks (leaves) of row-parallel weights. */
#include "tensor/leaf.h"

#include <stdbool.h>

uint64_t leaf_count(uint64_t n_columns, uint32_t leaf_elems)
{
    if (leaf_elems == 0) return 0;
    return n_columns / leaf_elems + (n_columns % leaf_elems != 0);
}

/* Returns the largest multiple of unit up to limit that gives at least n_least leaves; 0 if there
 * is none. */
static uint32_t largest_with(uint64_t n_columns, uint32_t unit, uint32_t limit, uint64_t n_least)
{
    for (uint32_t leaf = limit - limit % unit; leaf >= unit; leaf -= unit) {
        if (leaf_count(n_columns, leaf) >= n_least) return leaf;
    }
    return 0;
}

/* Returns the length that gives n leaves or a few more, as equal as multiples of the unit allow.
 * Gives at least n_least leaves if there are that many units. */
static uint64_t even_leaf(uint64_t n_columns, uint32_t unit, uint64_t n, uint64_t n_least)
{
    const uint64_t even = n_columns / n + (n_columns % n != 0);
    const uint64_t up = (even + unit - 1) / unit * unit;
    const bool fits = up <= LEAF_ELEMS_AIM && leaf_count(n_columns, (uint32_t)up) >= n_least;
    const uint64_t leaf = fits ? up : even / unit * unit;
    return leaf == 0 ? unit : leaf;
}

uint32_t leaf_choose(uint64_t n_columns, uint32_t unit, uint64_t n_least)
{
    if (n_columns == 0 || unit == 0 || n_least == 0) return 0;
    const uint32_t limit = unit > LEAF_ELEMS_AIM ? unit : LEAF_ELEMS_AIM;
    uint32_t leaf = largest_with(n_columns, unit, limit, LEAF_COUNT_AIM);
    if (leaf < LEAF_ELEMS_LOW) {
        const uint64_t n = leaf_count(n_columns, LEAF_ELEMS_LOW);
        leaf = (uint32_t)even_leaf(n_columns, unit, n > n_least ? n : n_least, n_least);
    }
    return leaf_count(n_columns, leaf) <= LEAF_COUNT_MAX ? leaf : 0;
}

uint32_t leaf_choose_quantized(uint64_t n_columns, uint32_t unit, uint64_t n_least)
{
    if (n_columns == 0 || unit == 0 || n_least == 0) return 0;
    uint64_t n = n_columns / LEAF_QUANTIZED_LOW;
    if (n > LEAF_QUANTIZED_COUNT) n = LEAF_QUANTIZED_COUNT;
    if (n < n_least) n = n_least;
    if (n < leaf_count(n_columns, LEAF_ELEMS_AIM)) n = leaf_count(n_columns, LEAF_ELEMS_AIM);
    const uint64_t leaf = even_leaf(n_columns, unit, n, n_least);
    if (leaf > UINT32_MAX || leaf_count(n_columns, (uint32_t)leaf) > LEAF_COUNT_MAX) return 0;
    return (uint32_t)leaf;
}

uint32_t leaf_common_unit(uint32_t a, uint32_t b)
{
    uint32_t x = a, y = b;
    while (y != 0) {
        const uint32_t rest = x % y;
        x = y;
        y = rest;
    }
    const uint64_t unit = (uint64_t)a / x * b;
    return unit > UINT32_MAX ? 0 : (uint32_t)unit;
}

uint32_t leaf_fit_group(uint64_t n_columns, uint32_t whole, uint32_t group, uint64_t n_least)
{
    for (; group > LEAF_GROUP_LEAST; group /= 2) {
        const uint32_t unit = leaf_common_unit(whole, group);
        if (unit > 0 && unit <= LEAF_ELEMS_AIM && leaf_count(n_columns, unit) >= n_least) break;
    }
    return group;
}
