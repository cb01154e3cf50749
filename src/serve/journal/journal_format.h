/* The journal's file format: its records, one pass over a whole file (facts), and its settings.
 * Knows lines, rows and tokens as bytes and numbers, not what they mean. Called by the other files
 * of this room, the job, the lead, batch runs, audit, and the commands merge, receipt and status.
 *
 *   file    magic "SHOALJ1\n", then records:
 *
 *   HEADER   | BASE .. PARTIAL .. | SESSION | ROW PARTIAL .. COMMIT | .. | SESSION | .. END COMMIT
 *   settings   rows and parts       a run     one group, made              the next  END: the job
 *              of the journal       begins    durable by one fsync         run       is done
 *              that this replaced
 *
 *   record  u32 type, u32 n_bytes, u64 checksum | u64 line, digest[2], values[5] | n_bytes bytes
 *
 * Little-endian. The checksum is XXH3-64 over the n_bytes bytes. Its seed is the XXH3-64 of the 80
 * bytes before them (with checksum 0), whose seed is the record's offset in the file, so a record's
 * bytes are valid only at their own offset. */
#ifndef SHOAL_SERVE_JOURNAL_JOURNAL_FORMAT_H
#define SHOAL_SERVE_JOURNAL_JOURNAL_FORMAT_H

#include "base/status.h"
#include "base/strbuf.h"
#include "serve/input/line_reader.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- records ---- */

#define JOURNAL_MAGIC "SHOALJ1\n"
enum { JOURNAL_MAGIC_BYTES = 8, JOURNAL_FRAME_BYTES = 80 };

enum journal_type {
    JOURNAL_HEADER = 1, /* bytes: the settings, "name=value" lines */
    JOURNAL_SESSION, /* a run began. bytes: its description; values: unix ns, bytes of the input */
    JOURNAL_BASE,    /* a row, as JOURNAL_ROW, copied when the journal was rewritten; right after
                        the header, by ascending line */
    JOURNAL_ROW,     /* bytes: the result line; values: struct journal_row */
    JOURNAL_PARTIAL, /* tokens of an unfinished row. bytes: items (lead_partial.c); values:
                        items before these (0: these replace all earlier ones), expert choices
                        dropped by a capacity factor, number of the answer, bytes of an item (0: 4)
                      */
    JOURNAL_COMMIT,  /* ends a group. values: unix ns, lines read, bytes of the input read */
    JOURNAL_END,     /* the output is complete and durable. values: lines, bytes of the output */
    JOURNAL_TYPE_COUNT
};

/* XXH3-128 of a line's bytes without its line end. */
struct line_digest {
    uint64_t low, high;
};

/* Local. Returns a line's digest. For a line that is too long to be read (LINE_TOO_LONG), the
 * digest holds the line's length instead. */
struct line_digest line_digest_of(const struct line *line);

struct journal_record {
    enum journal_type type;
    uint64_t line; /* from 1; 0: the record belongs to no line */
    struct line_digest digest;
    uint64_t values[5];
    const char *bytes; /* borrowed */
    size_t n_bytes;
};

/* The values[] of a row. */
struct journal_row {
    uint64_t id_low, id_high; /* hash of the custom_id; both 0: the line has none */
    uint32_t n_prompt, n_generated;
    bool is_error;
    uint64_t n_scored;
    double sum_logprob;
};

/* Local. Convert a row to values[] and back. */
void journal_row_pack(const struct journal_row *row, uint64_t values[5]);
struct journal_row journal_row_unpack(const uint64_t values[5]);

/* Local. Appends the record's bytes to out. offset: where they will stand in the file. Errors:
 * STATUS_MEMORY; STATUS_REQUEST when n_bytes is 4 GiB or more. */
struct status journal_record_add(struct strbuf *out, const struct journal_record *r,
                                 uint64_t offset);

/* Reads records from the bytes [at, end) of fd. The caller sets fd, path, at and end, and zeroes
 * the rest. buf is owned. */
struct journal_cursor {
    int fd;
    const char *path; /* borrowed, for errors */
    uint64_t at, end;
    char *buf;
    size_t capacity, n;  /* bytes of buf: allocated, and valid */
    size_t read_bytes;   /* reads at least this many at once; 0: 256 KiB */
    uint64_t buf_offset; /* offset of buf[0] in the file */
};

/* Local. Reads the next record, which is borrowed until the next call. *found is false at the end,
 * and at the first torn or damaged record; in that case `at` stays below `end`. Errors: STATUS_IO,
 * STATUS_MEMORY. */
struct status journal_cursor_next(struct journal_cursor *c, struct journal_record *out,
                                  bool *found);
void journal_cursor_fini(struct journal_cursor *c);

/* ---- facts ---- */

/* Facts about a whole journal. */
struct journal_facts {
    uint64_t file_bytes;           /* size of the file */
    uint64_t good_bytes;           /* bytes from the start to the end of the last whole record */
    uint64_t rows_begin, base_end; /* [rows_begin, base_end): the BASE records */
    char *settings;                /* owned, NUL-terminated; NULL: no header was found */
    uint64_t n_rows, n_error_rows; /* finished rows; how many of them are error rows */
    uint64_t n_partial_records;
    uint64_t n_prompt_tokens, n_generated_tokens; /* tokens of finished rows */
    uint64_t first_line, last_line; /* the lowest and the highest line with a record; 0: none */
    bool is_complete;               /* END is the last record, or only COMMIT follows it */
    uint64_t end_lines, end_bytes;  /* END's values */
    /* sessions; times are in nanoseconds since 1970 */
    uint64_t n_sessions;
    uint64_t session_ns, input_bytes;         /* start of the last session; bytes of its input */
    uint64_t session_rows, session_generated; /* finished in the last session */
    uint64_t last_ns;                         /* time of the last commit or session start */
    uint64_t n_read, n_read_bytes; /* lines and bytes of the input read in the last session */
};

/* Local. Reads fd from its start; another process may append meanwhile. settings stays NULL when
 * the file does not begin with the magic and a whole header. Errors: STATUS_IO, STATUS_MEMORY. */
struct status journal_facts_read(int fd, const char *path, struct journal_facts *out);
void journal_facts_fini(struct journal_facts *f);

/* Local. Sets *out to the path of an output's journal, in new memory (mem_free). The journal is
 * beside the output (folder NULL), or in `folder` under the output's name. Errors: STATUS_MEMORY.
 */
struct status journal_path_of(const char *output, const char *folder, char **out);

/* ---- settings: "name=value" lines, one for each setting that changes a row's bytes ---- */

/* Local. Sets *out to the settings in the header of a journal, in new memory (mem_free), without
 * reading what follows; NULL if the file does not begin with the magic and a whole header. Errors:
 * STATUS_IO, STATUS_MEMORY. */
struct status journal_settings_read(int fd, const char *path, char **out);

/* Local. Compares `was`, the settings in the journal `path`, with `is`, this run's. `remedy` ends
 * the error's sentence ("resume with the same"). Errors name the first setting that differs:
 * STATUS_USAGE for a flag; STATUS_INPUT for anything else (the checkpoint), and for a setting that
 * only `was` has. */
struct status journal_settings_check(const char *path, const char *was, const char *is,
                                     const char *remedy);

#endif
