/* Finds the largest logits of a row by insertion, because few are wanted. */
#include "sample/top.h"

#include "kernels/kern.h"

#include <string.h>

static void insert(uint64_t *keys, size_t n_top, uint64_t key)
{
    size_t i = n_top - 1;
    for (; i > 0 && keys[i - 1] < key; i--) keys[i] = keys[i - 1];
    keys[i] = key;
}

void top_of_shard(const float *logits, size_t width, uint32_t id0, size_t n_top, uint64_t *keys)
{
    memset(keys, 0, n_top * sizeof *keys);
    if (n_top == 0) return;
    for (size_t i = 0; i < width; i++) {
        const uint64_t bits = kern_ordered_bits(logits[i] + 0.0f);
        const uint64_t key = bits << 32 | (uint32_t) ~(id0 + (uint32_t)i);
        if (key > keys[n_top - 1]) insert(keys, n_top, key);
    }
}

void top_merge(const uint64_t *all, size_t n_lists, size_t stride, size_t n_top, uint64_t *keys)
{
    memset(keys, 0, n_top * sizeof *keys);
    for (size_t l = 0; l < n_lists; l++) {
        const uint64_t *list = all + l * stride;
        for (size_t i = 0; i < n_top && list[i] > keys[n_top - 1]; i++)
            insert(keys, n_top, list[i]);
    }
}

int32_t top_id(uint64_t key)
{
    return (int32_t) ~(uint32_t)key;
}

float top_logit(uint64_t key)
{
    return kern_from_ordered_bits((uint32_t)(key >> 32));
}
