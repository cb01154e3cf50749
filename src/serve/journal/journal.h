/* The journal beside an output file: what of a job is done, so that the same command goes on where
 * a run was ended, however it ended. Append-only; records are gathered and made durable together
 * (group commit); a torn tail is cut off when the file is opened again. Knows lines, rows and
 * tokens as bytes and numbers, not what they mean. Called by the lead.
 *
 * What makes a resumed output equal to that of an uninterrupted run: a row depends on its line and
 * on the settings alone, both are checked here, and an output file is always a prefix of the rows
 * in order. Formats: serve/journal/journal_record.h. */
#ifndef SHOAL_SERVE_JOURNAL_JOURNAL_H
#define SHOAL_SERVE_JOURNAL_JOURNAL_H

#include "base/failpoint.h"
#include "serve/journal/journal_index.h"

struct journal;

/* Everything is borrowed; settings, failpoint and path outlive the journal. */
struct journal_options {
    const char *path;
    const char *settings;        /* all that changes a row's bytes, as "name=value\n" lines */
    const char *session;         /* who runs now, for `shoal status` */
    uint64_t input_bytes;        /* of the input file; 0: not known */
    bool restart;                /* begin anew, whatever the journal says */
    bool retry_errors;           /* forget the error rows */
    size_t commit_bytes;         /* gathered before a commit is due at once; 0: 1 MiB */
    struct failpoint *failpoint; /* NULL: none */
};

/* Local. Opens or makes the journal and locks it. A new journal, and one whose error rows are
 * forgotten, is written beside its place and renamed. Errors: STATUS_USAGE (a setting has changed:
 * the sentence names it; another process has the journal; there are no errors to retry because
 * there is no journal), STATUS_INPUT (another checkpoint; no journal of this version), STATUS_IO,
 * STATUS_MEMORY. */
struct status journal_open(const struct journal_options *options, struct journal **out);

/* Local. Unlocks; does not write what is gathered. */
void journal_destroy(struct journal **j);

/* Local. What was in the journal when it was opened, as journal_index_find. */
struct status journal_find(struct journal *j, uint64_t line, struct journal_hit *hit);

/* Local. What the journal held when it was opened; borrowed. */
const struct journal_facts *journal_facts_of(const struct journal *j);

/* Local. Compares every line of the input file (or of its part; NULL: all of it) that has records
 * with what it was then; for inputs that can be read twice. Errors: STATUS_INPUT names the first
 * line that changed or is missing, STATUS_IO, STATUS_MEMORY. */
struct status journal_check_input(const struct journal *j, const char *input_path,
                                  const struct input_part *part);

/* Local. The STATUS_INPUT of an input that has more lines than the n_lines of a complete job, and
 * of one whose line `line` is missing or not what it was. */
struct status journal_input_grew(const char *input_path, uint64_t n_lines);
struct status journal_line_changed(const char *input_path, uint64_t line);

/* Local. Gathers a record. Errors: STATUS_MEMORY. */
struct status journal_add(struct journal *j, const struct journal_record *r);

/* Local. True when something is gathered; and when it is time to commit it: 200 ms since the last
 * commit (more where commits are slow: at most a twentieth of the time goes to them), or
 * commit_bytes. */
bool journal_is_dirty(const struct journal *j);
bool journal_is_due(const struct journal *j);

/* Local. Writes what is gathered behind a COMMIT record and makes it durable; nothing gathered:
 * does nothing. After an error the file is cut back to what was durable (fsync is not tried again),
 * and no later commit writes. Errors: STATUS_IO, STATUS_MEMORY. */
struct status journal_commit(struct journal *j, uint64_t n_read, uint64_t n_read_bytes);

/* Local. The last commit, from another thread than the one that adds (its records are whole at any
 * moment): for the watchdog, just before it ends the process. Later commits do nothing. Errors:
 * STATUS_IO, STATUS_MEMORY. */
struct status journal_save(struct journal *j);

/* Local. The longest commit of late, in seconds, and how many there were. */
double journal_commit_s(const struct journal *j);
uint64_t journal_n_commits(const struct journal *j);

#endif
