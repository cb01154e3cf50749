/* A hash set of custom_ids. */
#include "serve/id_set.h"

#include "base/mem.h"

#include <xxhash.h>

static bool is_free(struct id_hash h)
{
    return h.low == 0 && h.high == 0;
}

/* Where h stands, or the free slot where it would. */
static size_t find(const struct id_set *s, struct id_hash h)
{
    size_t i = (size_t)h.low & (s->n_slots - 1);
    while (!is_free(s->slots[i]) && (s->slots[i].low != h.low || s->slots[i].high != h.high)) {
        i = (i + 1) & (s->n_slots - 1);
    }
    return i;
}

static struct status grow(struct id_set *s)
{
    struct id_set larger = {.n_slots = s->n_slots == 0 ? 256 : 2 * s->n_slots, .n = s->n};
    TRY(mem_alloc(&larger.slots, larger.n_slots, sizeof *larger.slots, "set of custom_ids"));
    for (size_t i = 0; i < s->n_slots; i++) {
        if (!is_free(s->slots[i])) larger.slots[find(&larger, s->slots[i])] = s->slots[i];
    }
    mem_free(&s->slots);
    *s = larger;
    return status_ok();
}

struct id_hash id_hash_of(const char *id, size_t n)
{
    const XXH128_hash_t hash = XXH3_128bits(id, n);
    struct id_hash h = {hash.low64, hash.high64};
    if (is_free(h)) h.low = 1;
    return h;
}

struct status id_set_add_hash(struct id_set *s, struct id_hash h, bool *fresh)
{
    if (4 * (s->n + 1) > 3 * s->n_slots) TRY(grow(s));
    const size_t i = find(s, h);
    *fresh = is_free(s->slots[i]);
    if (*fresh) {
        s->slots[i] = h;
        s->n++;
    }
    return status_ok();
}

struct status id_set_add(struct id_set *s, const char *id, size_t n, bool *fresh)
{
    return id_set_add_hash(s, id_hash_of(id, n), fresh);
}

void id_set_fini(struct id_set *s)
{
    mem_free(&s->slots);
    *s = (struct id_set){0};
}
