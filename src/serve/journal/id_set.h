/* The custom_ids of the lines so far: finds duplicates, and gives each line without an id a name
 * that no earlier line has. An id that is its line's own number costs one or two bits. Of the other
 * ids, up to 786,432 are kept in memory as 128-bit hashes, which take 21 to 43 bytes each; when
 * there are more, they move to a file (id_spill.h) and cost 1.3 bytes of memory each. Without
 * id_set_spill_beside all stay in memory. Called by the lead, audit, merge and batch
 * runs. */
#ifndef SHOAL_SERVE_JOURNAL_ID_SET_H
#define SHOAL_SERVE_JOURNAL_ID_SET_H

#include "serve/journal/id_spill.h"

/* A hash table with open addressing and linear probing. All zeros: an empty set. */
struct id_set {
    struct id_hash *slots; /* [n_slots], a power of two; owned */
    size_t n_slots, n;
    uint64_t *own_number; /* bit l: line l's id is its number; [n_words], owned */
    size_t n_words;
    uint64_t n_lines;       /* ids added so far: one for each line, in order */
    const char *spill_path; /* borrowed; NULL: all stay in memory */
    struct id_spill *spill; /* owned; NULL: nothing has been spilled yet */
};

/* Local. Allows the set to spill: once there are many ids, it makes a file without a name beside
 * `path`, which is borrowed. Call this before adding the first id. If the file cannot be written,
 * ids stay in memory and a warning says so. */
void id_set_spill_beside(struct id_set *s, const char *path);

/* Local. Adds the next line's id, of n bytes. *fresh is false when an earlier line has it. Two
 * different ids have equal hashes with a probability of 2^-128. Errors: STATUS_MEMORY,
 * STATUS_IO. */
struct status id_set_add(struct id_set *s, const char *id, size_t n, bool *fresh);

enum { ID_NAME_MAX = 48 };

/* Local. Adds the next line, which has no custom_id, and writes its name and a NUL: its number,
 * such as "12", or, if an earlier line has that as its id, the first free one of "line 12", "line
 * 12 (2)", "line 12 (3)". A later line with this name as its id is a duplicate. Errors: as
 * id_set_add. */
struct status id_set_add_line(struct id_set *s, char name[ID_NAME_MAX]);

/* Local. Whether id_set_add_line might give line `line` this name. */
bool id_set_may_name(uint64_t line, const char *id, size_t n);

/* Local. Returns the hash of an id; never ID_HASH_NONE. */
struct id_hash id_hash_of(const char *id, size_t n);

/* Local. Adds the next line by the hash of its id, which may repeat an earlier one; ID_HASH_NONE is
 * a line without a custom_id. Errors: as id_set_add. */
struct status id_set_add_hash(struct id_set *s, struct id_hash h);
void id_set_fini(struct id_set *s);

#endif
