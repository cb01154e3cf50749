/* The custom_ids of the lines so far. Finds duplicates, and gives each line without an id a name
 * that no earlier line has. An id that is the number of its own line costs one or two bits. Of the
 * other ids, up to 196,608 stay in memory as 128-bit hashes, which cost 21 to 43 bytes each with
 * the table's free slots; beyond that they move to a file (id_spill.h) and cost 1.3 bytes of memory
 * each. Without id_set_spill_beside all stay in memory. Called by the lead, audit, merge and batch
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
    uint64_t n_lines;       /* lines added so far; each line has one id */
    const char *spill_path; /* borrowed; NULL: all ids stay in memory */
    struct id_spill *spill; /* owned; NULL: nothing has been spilled yet */
};

/* Local. Allows the set to move ids to a file, which it makes beside `path` (borrowed) once it has
 * many ids; the file has no name. Call this before adding the first id. If the file cannot be
 * written, a warning says so and ids stay in memory. */
void id_set_spill_beside(struct id_set *s, const char *path);

/* Local. Adds the next line's id, of n bytes. *fresh is false when an earlier line has it. Two
 * different ids have equal hashes with a probability of 2^-128. Errors: STATUS_MEMORY,
 * STATUS_IO. */
struct status id_set_add(struct id_set *s, const char *id, size_t n, bool *fresh);

enum { ID_NAME_MAX = 48 };

/* Local. Adds the next line, which has no custom_id, and writes its name, NUL-terminated. The name
 * is the line's number, such as "12". If an earlier line has that id, the name is the first free
 * one of "line 12", "line 12 (2)", "line 12 (3)". A later line with this name as its id is a
 * duplicate. Errors: as id_set_add. */
struct status id_set_add_line(struct id_set *s, char name[ID_NAME_MAX]);

/* Local. True when id_set_add_line might give line `line` the name `id`. */
bool id_set_may_name(uint64_t line, const char *id, size_t n);

/* Local. Returns the hash of an id; never ID_HASH_NONE. */
struct id_hash id_hash_of(const char *id, size_t n);

/* Local. Adds the next line by the hash of its id, which an earlier line may have too.
 * ID_HASH_NONE: the line has no custom_id. Errors: as id_set_add. */
struct status id_set_add_hash(struct id_set *s, struct id_hash h);
void id_set_fini(struct id_set *s);

#endif
