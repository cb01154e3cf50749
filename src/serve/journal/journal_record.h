/* The journal's records: their bytes, and a cursor over them that stops at the first one that is
 * not whole. Knows files by descriptor only. Called by journal.c, journal_index.c and
 * journal_facts.c.
 *
 *   file    magic "SHOALJ1\n", then records; the first is HEADER
 *   record  u32 type, u32 n_bytes, u64 checksum | u64 line, digest[2], values[5] | n_bytes bytes
 *
 * Little-endian. The checksum is XXH3-64 of all that follows it and of type and n_bytes, seeded
 * with the record's offset: bytes of an older record are no record at another place. */
#ifndef SHOAL_SERVE_JOURNAL_JOURNAL_RECORD_H
#define SHOAL_SERVE_JOURNAL_JOURNAL_RECORD_H

#include "base/status.h"
#include "base/strbuf.h"
#include "serve/input/line_reader.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JOURNAL_MAGIC "SHOALJ1\n"
enum { JOURNAL_MAGIC_BYTES = 8, JOURNAL_FRAME_BYTES = 80 };

enum journal_type {
    JOURNAL_HEADER = 1, /* bytes: the settings, "name=value" lines */
    JOURNAL_SESSION,    /* bytes: who began or resumed; values: unix ns, bytes of the input */
    JOURNAL_BASE,       /* a row, as JOURNAL_ROW: taken over when the journal was rewritten; these
                           stand right behind the header, by ascending line */
    JOURNAL_ROW,        /* bytes: the result line; values: id hash (2), counts, scored, sum */
    JOURNAL_PARTIAL, /* of an unfinished row, bytes: items, one for each sampled token; values: how
                        many came before (0: they take the place of what was there), dropped,
                        part (answer) of the row, bytes of an item (0: 4) */
    JOURNAL_COMMIT,  /* values: unix ns, lines read, bytes of the input read */
    JOURNAL_END,     /* the output is complete and durable; values: lines, bytes of the output */
    JOURNAL_TYPE_COUNT
};

/* XXH3-128 of a line's bytes, without its line end. */
struct line_digest {
    uint64_t low, high;
};

/* Local. A line that was too long to be read is known by its length. */
struct line_digest line_digest_of(const struct line *line);

struct journal_record {
    enum journal_type type;
    uint64_t line; /* from 1; 0 where the record is of no line */
    struct line_digest digest;
    uint64_t values[5];
    const char *bytes; /* borrowed */
    size_t n_bytes;
};

/* values[] of a row. */
struct journal_row {
    uint64_t id_low, id_high; /* hash of the custom_id */
    uint32_t n_prompt, n_generated;
    bool is_error;
    uint64_t n_scored;
    double sum_logprob;
};

/* Local. To values[] and back. */
void journal_row_pack(const struct journal_row *row, uint64_t values[5]);
struct journal_row journal_row_unpack(const uint64_t values[5]);

/* Local. Appends the record's bytes, which will stand at `offset` of the file. Errors:
 * STATUS_MEMORY; STATUS_REQUEST when it has 4 GiB or more. */
struct status journal_record_add(struct strbuf *out, const struct journal_record *r,
                                 uint64_t offset);

/* Reads records of fd's bytes [at, end). Plain memory; buf is owned. */
struct journal_cursor {
    int fd;
    const char *path; /* borrowed, for errors */
    uint64_t at, end;
    char *buf;
    size_t capacity, n;  /* bytes of buf that are valid */
    size_t read_bytes;   /* least to read at once; 0: 256 KiB */
    uint64_t buf_offset; /* of buf[0] in the file */
};

/* Local. The next record, borrowed until the next call. *found is false at the end and at the first
 * record that is not whole (then `at` stays below `end`). Errors: STATUS_IO, STATUS_MEMORY. */
struct status journal_cursor_next(struct journal_cursor *c, struct journal_record *out,
                                  bool *found);
void journal_cursor_fini(struct journal_cursor *c);

#endif
