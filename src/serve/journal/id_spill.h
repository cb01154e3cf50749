/* Ids of earlier lines that memory is too dear for: sorted runs in a file without a name, with a
 * filter in memory that keeps nearly all questions from the disk (about 1.3 bytes an id). Called by
 * id_set.c. */
#ifndef SHOAL_SERVE_JOURNAL_ID_SPILL_H
#define SHOAL_SERVE_JOURNAL_ID_SPILL_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* XXH3-128 of an id. {0, 0} is no id's: it marks a free slot, and a line without a custom_id. */
struct id_hash {
    uint64_t low, high;
};
#define ID_HASH_NONE ((struct id_hash){0, 0})

/* One run: n ids in ascending order from byte `at` of the file on. */
struct id_run {
    uint64_t at;
    size_t n;
    uint64_t *filter; /* [n_filter, 8]: a Bloom filter of cache lines (Putze et al. 2007); owned */
    size_t n_filter;
    struct id_hash *first; /* [ceil(n / 256)]: the first id of each page; owned */
};

struct id_spill {
    int fd; /* -1: there is no file */
    uint64_t end;
    struct id_run *runs; /* [n_runs], owned */
    size_t n_runs;
};

/* Local. Makes a file beside `path` and takes its name away at once. Errors: STATUS_IO. */
struct status id_spill_init(struct id_spill *s, const char *path);
void id_spill_fini(struct id_spill *s);

/* Local. Sorts ids[n] and writes them as a run. Errors: STATUS_IO (the disk is full: the run is not
 * there, the others are), STATUS_MEMORY. */
struct status id_spill_add(struct id_spill *s, struct id_hash *ids, size_t n);

/* Local. Whether a run has h. Errors: STATUS_IO. */
struct status id_spill_find(const struct id_spill *s, struct id_hash h, bool *found);

#endif
