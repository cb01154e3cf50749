/* The journal's inside, shared by journal.c (opening, commits) and journal_rewrite.c (new files).
 */
#ifndef SHOAL_SERVE_JOURNAL_JOURNAL_PRIVATE_H
#define SHOAL_SERVE_JOURNAL_JOURNAL_PRIVATE_H

#include "serve/journal/journal.h"

#include <pthread.h>

struct journal {
    pthread_mutex_t mutex; /* over what follows `index`: the watchdog's thread may commit, too */
    int fd;
    char *path;   /* as given, for sentences; owned */
    char *target; /* the file that it leads to, which a rewrite replaces; owned */
    struct journal_facts facts;  /* when it was opened */
    struct journal_index *index; /* over the bytes that were there then */
    struct strbuf gathered;      /* records that wait for their commit */
    uint64_t end, durable;       /* bytes of the file; bytes that a commit made durable */
    uint64_t last_commit_ns, commit_ns, n_commits;
    uint64_t n_read, n_read_bytes; /* when last committed */
    size_t commit_bytes;
    bool failed;
    struct failpoint *failpoint;
};

/* Local. All of `bytes` at `offset`, and fdatasync; with the journal's failpoints. */
struct status journal_write_durably(struct journal *j, int fd, const struct strbuf *bytes,
                                    uint64_t offset);

/* A new file that will take the journal's place. */
struct journal_rewrite {
    int fd;
    char *path;
    uint64_t end;
    struct strbuf rows, rest; /* rest: records that stand behind all rows */
    uint64_t n_partials;
};

/* Errors of all below: STATUS_IO names the file, STATUS_MEMORY. */

/* Local. Begins a new file beside the journal, with a header. fini is called in any case. */
struct status journal_rewrite_begin(struct journal *j, const char *settings,
                                    struct journal_rewrite *r);

/* Local. Takes over what is known of a line, unless it is an error row. */
struct status journal_rewrite_line(struct journal *j, struct journal_rewrite *r, uint64_t line,
                                   const struct journal_hit *hit);

/* Local. Makes the new file durable and renames it to the journal's path. */
struct status journal_rewrite_end(struct journal *j, struct journal_rewrite *r);
void journal_rewrite_fini(struct journal_rewrite *r);

#endif
