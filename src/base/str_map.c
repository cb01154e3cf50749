/* A hash table with open addressing and linear probing. */
#include "base/str_map.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

static uint64_t str_map_mix(uint64_t h)
{
    h *= 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

uint64_t str_hash(const char *bytes, size_t n)
{
    uint64_t h = n;
    while (n >= 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        h = str_map_mix(h ^ word);
        bytes += 8;
        n -= 8;
    }
    uint64_t tail = 0;
    memcpy(&tail, bytes, n);
    h = str_map_mix(h ^ tail);
    return h ^ h >> 32;
}

struct status str_map_init(struct str_map *m, size_t n_keys)
{
    size_t n_slots = 16;
    while (n_slots / 2 < n_keys && n_slots <= SIZE_MAX / 4) n_slots *= 2;
    TRY(mem_alloc(&m->slots, n_slots, sizeof m->slots[0], "token map"));
    m->mask = n_slots - 1;
    return status_ok();
}

void str_map_fini(struct str_map *m)
{
    mem_free(&m->slots);
}

/* Returns the slot of a key, or the empty slot where it belongs. */
static struct str_slot *str_map_find(const struct str_map *m, const char *key, size_t n,
                                     uint32_t hash)
{
    for (size_t i = hash & m->mask;; i = (i + 1) & m->mask) {
        struct str_slot *s = &m->slots[i];
        if (s->key == NULL) return s;
        if (s->hash == hash && s->n == n && memcmp(s->key, key, n) == 0) return s;
    }
}

bool str_map_add(struct str_map *m, const char *key, size_t n, int32_t value)
{
    assert(key != NULL && value >= 0 && n <= UINT32_MAX);
    const uint32_t hash = (uint32_t)str_hash(key, n);
    struct str_slot *s = str_map_find(m, key, n, hash);
    if (s->key != NULL) return false;
    *s = (struct str_slot){.key = key, .n = (uint32_t)n, .hash = hash, .value = value};
    return true;
}

int32_t str_map_get(const struct str_map *m, const char *key, size_t n)
{
    if (m->slots == NULL) return -1;
    const struct str_slot *s = str_map_find(m, key, n, (uint32_t)str_hash(key, n));
    return s->key != NULL ? s->value : -1;
}
