/* Chooses a random sample of an output's rows and compares them with rows that are computed again.
 * A row depends only on checkpoint, line and settings, so a run in any layout can check it. Reads
 * the output and its journal; computes no rows and writes no files. Opened by job_open.c, called by
 * the lead. */
#ifndef SHOAL_SERVE_LEAD_AUDIT_H
#define SHOAL_SERVE_LEAD_AUDIT_H

#include "serve/input/line_reader.h"
#include "serve/journal/id_set.h"

struct audit;

/* All pointers are borrowed; the paths outlive the audit. */
struct audit_options {
    const char *input_path, *output_path;
    const char *journal_path; /* NULL, or a file that cannot be opened: lines and settings are not
                                 checked */
    const char *settings;     /* settings of this run, in a journal's form */
    uint64_t n_lines_before;  /* lines of the whole input before the output's first row */
    uint64_t n_rows;          /* rows to choose; all rows when the output has fewer */
    uint64_t seed;            /* decides which rows are chosen */
};

struct audit_result {
    uint64_t n_rows;   /* whole rows in the output */
    uint64_t n_chosen; /* chosen rows; none is an error row for a repeated custom_id */
    uint64_t n_compared, n_different;
    bool has_journal; /* settings and chosen lines are compared with the journal's */
};

/* Local. Reads the whole output and keeps a sample in which each row is equally likely, except rows
 * of more than 1 GiB and error rows for a repeated custom_id, which are never chosen (Vitter's
 * algorithm R, with hashes of seed and row). The job may still be running: a torn last row is
 * ignored. Errors: STATUS_USAGE or STATUS_INPUT (see journal_settings_check), STATUS_INPUT (no
 * output, no row that may be chosen, no journal of this version), STATUS_IO, STATUS_MEMORY. */
struct status audit_create(const struct audit_options *options, struct audit **out);
void audit_destroy(struct audit **audit);

/* Local. Takes `line`, the input's next line. *is_chosen: whether its row was chosen. Errors:
 * STATUS_INPUT (a chosen line is not the one that the journal recorded), STATUS_IO, STATUS_MEMORY.
 */
struct status audit_take_line(struct audit *a, const struct line *line, bool *is_chosen);

/* Local. For a chosen line without a custom_id, writes the name that its row has in the output. If
 * the line cannot have that name, writes the line's number, so that the rows differ. Errors:
 * STATUS_MEMORY. */
struct status audit_name_line(const struct audit *a, uint64_t line, char name[ID_NAME_MAX]);

/* Local. True when every chosen line has been read. */
bool audit_has_all_lines(const struct audit *a);

/* Local. Compares a row that was computed again, including its newline, with the output's row. Logs
 * the first ten differences. The line must be a chosen one (assert). */
void audit_compare(struct audit *a, uint64_t line, const char *text, size_t n);

/* Local. Returns the counts so far. */
struct audit_result audit_result(const struct audit *a);

#endif
