/* A sample of an output's rows, to be computed again: what a job wrote follows from checkpoint,
 * line and settings alone, so any run of any layout can prove it. Reads the output and its journal,
 * chooses rows, compares; computes nothing and writes nothing. Opened by main, asked by the lead.
 */
#ifndef SHOAL_SERVE_LEAD_AUDIT_H
#define SHOAL_SERVE_LEAD_AUDIT_H

#include "serve/input/line_reader.h"
#include "serve/journal/id_set.h"

struct audit;

/* All pointers are borrowed; the paths outlive the audit. */
struct audit_options {
    const char *input_path, *output_path;
    const char *journal_path; /* NULL, or no such file: lines and settings are taken on trust */
    const char *settings;     /* of this run, as a journal's */
    uint64_t n_lines_before;  /* of the whole input, before the output's first row */
    uint64_t n_rows;          /* to choose; fewer rows in the output: all of them */
    uint64_t seed;            /* which */
};

struct audit_result {
    uint64_t n_rows;   /* whole rows in the output */
    uint64_t n_chosen; /* of them; rows that repeat an earlier line's custom_id never are */
    uint64_t n_compared, n_different;
    bool has_journal; /* flags and lines were held against it */
};

/* Local. Reads the whole output and keeps the rows that it chooses, each with the same chance
 * (Vitter's algorithm R, by hashes of seed and row). The output may belong to a job that runs: its
 * torn last row does not count. Errors: STATUS_USAGE or STATUS_INPUT (journal_settings_check),
 * STATUS_INPUT (no output, no whole row in it), STATUS_IO, STATUS_MEMORY. */
struct status audit_create(const struct audit_options *options, struct audit **out);
void audit_destroy(struct audit **audit);

/* Local. Whether the input's next line is one whose row was chosen. Errors: STATUS_INPUT (its bytes
 * are not those that the journal recorded), STATUS_IO, STATUS_MEMORY. */
struct status audit_take_line(struct audit *a, const struct line *line, bool *is_chosen);

/* Local. The name that a chosen line without a custom_id has in its row; its number where the row
 * has no name that fits the line, so that the rows differ. Errors: STATUS_MEMORY. */
struct status audit_name_line(const struct audit *a, uint64_t line, char name[ID_NAME_MAX]);

/* Local. True when no later line is chosen. */
bool audit_has_all_lines(const struct audit *a);

/* Local. Compares a row computed again, its newline included, with the output's; the first
 * differences go to the log. The line was chosen (assert). */
void audit_compare(struct audit *a, uint64_t line, const char *text, size_t n);

/* Local. What was found by now. */
struct audit_result audit_result(const struct audit *a);

#endif
