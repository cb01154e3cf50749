/* The cut of row-parallel weights into leaves. */
#include "tensor/leaf.h"

uint64_t leaf_count(uint64_t n_columns, uint32_t leaf_elems)
{
    if (leaf_elems == 0) return 0;
    return n_columns / leaf_elems + (n_columns % leaf_elems != 0);
}

/* The largest multiple of unit up to limit with at least n_least leaves; 0 when there is none. */
static uint32_t largest_with(uint64_t n_columns, uint32_t unit, uint32_t limit, uint64_t n_least)
{
    for (uint32_t leaf = limit - limit % unit; leaf >= unit; leaf -= unit) {
        if (leaf_count(n_columns, leaf) >= n_least) return leaf;
    }
    return 0;
}

uint32_t leaf_choose(uint64_t n_columns, uint32_t unit)
{
    if (n_columns == 0 || unit == 0) return 0;
    const uint32_t limit = unit > LEAF_ELEMS_AIM ? unit : LEAF_ELEMS_AIM;
    uint32_t leaf = largest_with(n_columns, unit, limit, LEAF_COUNT_AIM);
    if (leaf == 0) leaf = largest_with(n_columns, unit, limit, LEAF_COUNT_LOW);
    if (leaf == 0) leaf = unit;
    return leaf_count(n_columns, leaf) <= LEAF_COUNT_MAX ? leaf : 0;
}
