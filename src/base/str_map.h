/* A hash map from byte strings to non-negative ints. Keys are borrowed: the caller owns their
 * bytes. Nothing is ever removed. */
#ifndef SHOAL_BASE_STR_MAP_H
#define SHOAL_BASE_STR_MAP_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct str_slot {
    const char *key; /* borrowed; NULL when empty */
    uint32_t n;
    uint32_t hash;
    int32_t value;
};

struct str_map {
    struct str_slot *slots; /* owned, [mask + 1], at most half full */
    size_t mask;
};

/* Local. Returns a hash of n bytes. Machines of one byte order get the same hash. Do not store it
 * in a file. */
uint64_t str_hash(const char *bytes, size_t n);

/* Local. Makes room for n_keys keys. Errors: STATUS_MEMORY. */
struct status str_map_init(struct str_map *m, size_t n_keys);
void str_map_fini(struct str_map *m);

/* Local. Adds a key; if it is already there, changes nothing and returns false. At most n_keys may
 * be added. */
bool str_map_add(struct str_map *m, const char *key, size_t n, int32_t value);

/* Local. Returns the key's value, or -1. An uninitialised (zeroed) map is empty. */
int32_t str_map_get(const struct str_map *m, const char *key, size_t n);

#endif
