/* Places arrays greedily, the largest first. */
#include "base/lifetimes.h"

#include <assert.h>
#include <stdbool.h>

static uint64_t room_of(const struct lifetime *a)
{
    const uint64_t rest = a->n_bytes % LIFETIME_ALIGN;
    return rest == 0 ? a->n_bytes : a->n_bytes + (LIFETIME_ALIGN - rest);
}

static bool live_together(const struct lifetime *a, const struct lifetime *b)
{
    return a->first <= b->last && b->first <= a->last;
}

/* Returns the lowest end of the placed arrays that overlap `a` at `offset`; without any,
 * `offset`. */
static uint64_t pushed(struct lifetime *const *placed, size_t n_placed, const struct lifetime *a,
                       uint64_t offset)
{
    uint64_t end = offset;
    for (size_t i = 0; i < n_placed; i++) {
        const struct lifetime *b = placed[i];
        if (!live_together(a, b) || b->offset >= offset + room_of(a) ||
            b->offset + room_of(b) <= offset)
            continue;
        if (end == offset || b->offset + room_of(b) < end) end = b->offset + room_of(b);
    }
    return end;
}

uint64_t lifetimes_place(struct lifetime *arrays, size_t n)
{
    struct lifetime *order[LIFETIMES_MAX];
    uint64_t total = 0, sum = 0;
    assert(n <= LIFETIMES_MAX);
    for (size_t i = 0; i < n; i++) arrays[i].offset = 0;
    for (size_t i = 0; i < n; i++) { /* sorted by size; equal sizes keep their order */
        if (arrays[i].n_bytes > UINT64_MAX / 2 ||
            __builtin_add_overflow(sum, room_of(&arrays[i]), &sum))
            return UINT64_MAX;
        size_t at = i;
        for (; at > 0 && order[at - 1]->n_bytes < arrays[i].n_bytes; at--)
            order[at] = order[at - 1];
        order[at] = &arrays[i];
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t offset = 0, next;
        while (order[i]->n_bytes > 0 && (next = pushed(order, i, order[i], offset)) != offset)
            offset = next;
        order[i]->offset = offset;
        if (order[i]->n_bytes > 0 && offset + room_of(order[i]) > total)
            total = offset + room_of(order[i]);
    }
    return total;
}
