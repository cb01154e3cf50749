/* Ids of earlier lines on disk: sorted runs in a file without a name. Each run has a Bloom filter
 * in memory (about 1.3 bytes an id), which rules out 99 of 100 ids that the run does not have, so
 * that a look-up of a new id reads one page of one run in a hundred. Called by id_set.c.
 *
 *   file     | run 0: ids ascending      | run 1: ids ascending  | ...
 *   memory   | filter, first of each page | filter, first ...     |      a page is 256 ids */
#ifndef SHOAL_SERVE_JOURNAL_ID_SPILL_H
#define SHOAL_SERVE_JOURNAL_ID_SPILL_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* XXH3-128 of an id. No id has {0, 0}: it marks a free slot, or a line without a custom_id. */
struct id_hash {
    uint64_t low, high;
};
#define ID_HASH_NONE ((struct id_hash){0, 0})

/* One run: n ids in ascending order, beginning at byte `at` of the file. */
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

/* Local. Makes a file beside `path` and unlinks it at once. Errors: STATUS_IO, STATUS_MEMORY. */
struct status id_spill_init(struct id_spill *s, const char *path);
void id_spill_fini(struct id_spill *s);

/* Local. Sorts ids[n] in place and writes them as a run. After an error the earlier runs are intact
 * and the new one has not been added. Errors: STATUS_IO (such as a full disk), STATUS_MEMORY. */
struct status id_spill_add(struct id_spill *s, struct id_hash *ids, size_t n);

/* Local. *found: whether a run has h. Errors: STATUS_IO. */
struct status id_spill_find(const struct id_spill *s, struct id_hash h, bool *found);

#endif
