/* Finds what a journal holds of each line, asked in ascending order, in one pass and in memory of
 * about one window: rows finish nearly in the order of their lines. Reads the bytes that were there
 * when it was made; never what is appended later. Called by the lead when a job resumes, and by
 * journal.c to rewrite a journal. */
#ifndef SHOAL_SERVE_JOURNAL_JOURNAL_INDEX_H
#define SHOAL_SERVE_JOURNAL_JOURNAL_INDEX_H

#include "serve/journal/journal_facts.h"

struct journal_index;

enum journal_hit_kind { JOURNAL_HIT_NONE, JOURNAL_HIT_ROW, JOURNAL_HIT_PARTIAL };

/* What was saved of an answer that was not finished. */
struct journal_part {
    char *bytes; /* [n_items, item_bytes] */
    size_t n_items, item_bytes, capacity;
    uint64_t n_dropped;
};

enum { JOURNAL_PARTS_MAX = 256 }; /* of a row */

struct journal_hit {
    enum journal_hit_kind kind;
    struct line_digest digest;
    struct journal_row row; /* HIT_ROW */
    const char *text;       /* HIT_ROW: the result line, [n_text]; borrowed until the next call */
    size_t n_text;
    const struct journal_part *parts; /* HIT_PARTIAL: [n_parts], some empty; borrowed */
    size_t n_parts;
};

/* Local. fd stays open as long as the index. Errors: STATUS_MEMORY. */
struct status journal_index_create(int fd, const char *path, const struct journal_facts *facts,
                                   struct journal_index **out);
void journal_index_destroy(struct journal_index **x);

/* Local. What the journal has of line `line`, which must not be below the line asked for before
 * (assert); the same line may be asked for again. The first row of a line counts. Errors:
 * STATUS_IO, STATUS_MEMORY, STATUS_INPUT when records are further out of order than any window. */
struct status journal_index_find(struct journal_index *x, uint64_t line, struct journal_hit *hit);

/* Local. After a find that hit nothing: the next line of which there may be something; UINT64_MAX
 * when there is nothing more. */
uint64_t journal_index_next(const struct journal_index *x);

#endif
