/* The custom_ids seen so far, as 128-bit hashes: 16 bytes a line and at most half of the table
 * free, so 20 to 64 bytes of memory for each line of the input. Called by the lead, for duplicates.
 */
#ifndef SHOAL_SERVE_ID_SET_H
#define SHOAL_SERVE_ID_SET_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* XXH3-128 of an id; {0, 0} marks a free slot. */
struct id_hash {
    uint64_t low, high;
};

/* Open addressing with linear probing; zero-initialised it is empty. */
struct id_set {
    struct id_hash *slots; /* [n_slots], a power of two; owned */
    size_t n_slots, n;
};

/* Local. Adds an id of n bytes; *fresh is false when it was there (two ids are taken for one with a
 * chance of 2^-128 a pair). Errors: STATUS_MEMORY. */
struct status id_set_add(struct id_set *s, const char *id, size_t n, bool *fresh);

/* Local. The hash of an id, and adding one by its hash. */
struct id_hash id_hash_of(const char *id, size_t n);
struct status id_set_add_hash(struct id_set *s, struct id_hash h, bool *fresh);
void id_set_fini(struct id_set *s);

#endif
