/* Finds a journal's records of each line. Lines are requested in ascending order, and rows finish
 * nearly in that order, so one pass over the file and the memory of about one window suffice. An
 * index sees the bytes that its facts cover, not those appended later. Called by journal.c, when a
 * job resumes and when a journal is rewritten, and by audit.c and merge.c. */
#ifndef SHOAL_SERVE_JOURNAL_JOURNAL_INDEX_H
#define SHOAL_SERVE_JOURNAL_JOURNAL_INDEX_H

#include "serve/journal/journal_format.h"

struct journal_index;

enum journal_hit_kind { JOURNAL_HIT_NONE, JOURNAL_HIT_ROW, JOURNAL_HIT_PARTIAL };

/* The saved tokens of an unfinished answer. */
struct journal_part {
    char *bytes; /* [n_items, item_bytes] */
    size_t n_items, item_bytes, capacity;
    uint64_t n_dropped;
};

/* The most answers of a line: 4096 prompts with 128 each. Records of answers with higher numbers
 * are ignored. */
enum { JOURNAL_PARTS_MAX = 4096 * 128 };

struct journal_hit {
    enum journal_hit_kind kind;
    struct line_digest digest;
    struct journal_row row; /* JOURNAL_HIT_ROW */
    const char *text; /* JOURNAL_HIT_ROW: the result line, [n_text]; borrowed until the next call */
    size_t n_text;
    const struct journal_part *parts; /* JOURNAL_HIT_PARTIAL: [n_parts] by answer, some empty;
                                         borrowed */
    size_t n_parts;
};

/* Local. Makes an index. fd and path are borrowed until journal_index_destroy; fd stays open until
 * then. facts: those of the same file; not kept. Errors: STATUS_IO, STATUS_MEMORY. */
struct status journal_index_create(int fd, const char *path, const struct journal_facts *facts,
                                   struct journal_index **out);
void journal_index_destroy(struct journal_index **x);

/* Local. Sets *hit to the journal's records of line `line`: its row, the saved tokens of its
 * answers, or nothing. If a line has several rows, the first counts. `line` is from 1 and must not
 * be below the line of the last call (assert); the same line may be requested again. Errors:
 * STATUS_IO, STATUS_MEMORY, STATUS_INPUT when a record is 4,194,304 lines or more ahead of `line`
 * (damage). */
struct status journal_index_find(struct journal_index *x, uint64_t line, struct journal_hit *hit);

/* Local. After journal_index_find has found nothing, returns the next line that may have a record;
 * UINT64_MAX: none. */
uint64_t journal_index_next(const struct journal_index *x);

#endif
