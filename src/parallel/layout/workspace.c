/* Places the workspace's arrays by their lifetimes. */
#include "parallel/layout/workspace.h"

#include "base/lifetimes.h"

static const struct lifetime lives[WORKSPACE_COUNT] = {
#define X(name, begin, end) {.first = WORKSPACE_STEP_##begin, .last = WORKSPACE_STEP_##end},
    WORKSPACE_ARRAYS(X)
#undef X
};

bool workspace_keeps_shared(const struct layout *l)
{
    return l->halves_from > 0;
}

struct workspace_place workspace_place(const struct workspace_shape *shape)
{
    struct lifetime arrays[WORKSPACE_COUNT];
    struct workspace_place place;
    for (int i = 0; i < WORKSPACE_COUNT; i++) {
        uint64_t n;
        arrays[i] = lives[i];
        if (__builtin_mul_overflow(shape->per_row[i], shape->n_rows, &n) ||
            __builtin_mul_overflow(n, 4, &n) || __builtin_add_overflow(n, shape->bytes[i], &n))
            n = UINT64_MAX;
        arrays[i].n_bytes = n;
    }
    if (shape->keeps_shared) {
        arrays[WORKSPACE_SHARED].first = WORKSPACE_STEP_NORM;
        arrays[WORKSPACE_SHARED].last = WORKSPACE_STEP_EXPERTS;
    }
    place.n_bytes = lifetimes_place(arrays, WORKSPACE_COUNT);
    for (int i = 0; i < WORKSPACE_COUNT; i++) place.offset[i] = arrays[i].offset;
    return place;
}
