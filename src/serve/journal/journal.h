/* The journal beside an output file records how much of a job is done, so that the same command
 * resumes the job however it ended. It is append-only: records are gathered and made durable
 * together (group commit), and a torn tail is cut off when the file is opened again. Knows lines,
 * rows and tokens as bytes and numbers, not their meaning. Called by the lead and by batch runs.
 * File format: serve/journal/journal_format.h.
 *
 * A resumed output equals that of an uninterrupted run, for three reasons: a row depends only on
 * its line and on the settings; both are compared with those in the journal; an output file always
 * holds a prefix of the rows in order. */
#ifndef SHOAL_SERVE_JOURNAL_JOURNAL_H
#define SHOAL_SERVE_JOURNAL_JOURNAL_H

#include "base/failpoint.h"
#include "serve/journal/journal_index.h"

struct journal;

/* Everything is borrowed; the failpoint outlives the journal. */
struct journal_options {
    const char *path;
    const char *settings;        /* everything that changes a row's bytes, as "name=value\n"
                                    lines */
    const char *session;         /* describes this run, for `shoal status` */
    uint64_t input_bytes;        /* size of the input file; 0: unknown */
    bool restart;                /* begin anew and replace an existing journal */
    bool retry_errors;           /* drop the error rows, so that their lines run again */
    size_t commit_bytes;         /* a commit is due once this many bytes are gathered; 0: 1 MiB */
    struct failpoint *failpoint; /* NULL: none */
};

/* Local. Opens or makes the journal and locks it; tries to lock for half a second, and warns if the
 * file system has no locks. A new journal, or one whose error rows are removed, is written under
 * another name and then renamed to the file to which `path` leads. Errors: STATUS_USAGE (a flag has
 * changed, which the sentence names; another process has the journal; retry_errors without a
 * journal; a file that is not regular), STATUS_INPUT (another checkpoint, or another setting that
 * is no flag; not a journal of this version; damage), STATUS_IO, STATUS_MEMORY. */
struct status journal_open(const struct journal_options *options, struct journal **out);

/* Local. Unlocks and closes the journal; records not yet committed are lost. Accepts NULL. */
void journal_destroy(struct journal **j);

/* Local. Finds a line's records among those that the journal had when it was opened; see
 * journal_index_find. */
struct status journal_find(struct journal *j, uint64_t line, struct journal_hit *hit);

/* Local. Returns the facts of the journal as it was when opened; borrowed. */
const struct journal_facts *journal_facts_of(const struct journal *j);

/* Local. Checks that each input line with a record still has the same bytes. part NULL: the whole
 * input. Only for inputs that can be read twice. Errors: STATUS_INPUT (a line has changed, and the
 * sentence names the first; or lines are missing, or were added to a finished job's input),
 * STATUS_IO, STATUS_MEMORY. */
struct status journal_check_input(const struct journal *j, const struct input_files *input,
                                  const struct input_part *part);

/* Local. Makes the STATUS_INPUT for an input that has more lines than the n_lines of the finished
 * job. */
struct status journal_input_grew(const char *input_path, uint64_t n_lines);

/* Local. Makes the STATUS_INPUT for an input whose line at this place is missing or has changed. */
struct status journal_line_changed(struct line_place place);

/* Local. Adds a record, which waits in memory for the next commit. Errors: STATUS_REQUEST for a
 * record that is too long, STATUS_MEMORY. */
struct status journal_add(struct journal *j, const struct journal_record *r);

/* Local. True when records wait for a commit. */
bool journal_is_dirty(const struct journal *j);

/* Local. True when records wait and a commit is due: commit_bytes are gathered, or 200 ms have
 * passed since the last commit. The time is longer if commits are slow, so that they take at most a
 * twentieth of it. */
bool journal_is_due(const struct journal *j);

/* Local. Appends a COMMIT record, writes all gathered records and makes them durable; does nothing
 * if none wait. n_read, n_read_bytes: lines and bytes of the input taken so far. After STATUS_IO
 * the file is cut back to its durable part, and later commits do nothing: a failed fsync is not
 * tried again. Errors: STATUS_IO, STATUS_MEMORY. */
struct status journal_commit(struct journal *j, uint64_t n_read, uint64_t n_read_bytes);

/* Local, any thread. Makes the last commit; the watchdog's thread calls it just before it ends the
 * process. Later commits do nothing. Errors: STATUS_IO, STATUS_MEMORY. */
struct status journal_save(struct journal *j);

/* Local. Returns the time of a slow commit in seconds: a maximum that decays by 1/16 with each
 * faster commit. */
double journal_commit_s(const struct journal *j);

/* Local. Returns the number of commits so far. */
uint64_t journal_n_commits(const struct journal *j);

#endif
