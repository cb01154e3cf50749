/* Reads a JSONL input line by line in bounded memory: a file, a FIFO or stdin.
 * Knows nothing of JSON. A line over the limit is skipped and reported, not fatal. Called by the
 * lead. */
#ifndef SHOAL_SERVE_INPUT_LINE_READER_H
#define SHOAL_SERVE_INPUT_LINE_READER_H

#include "base/status.h"
#include "serve/input/input_part.h"

#include <stddef.h>
#include <stdint.h>

enum { LINE_BYTES_MAX = 16 << 20 };

struct line_reader;

enum line_kind {
    LINE_OK,
    LINE_TOO_LONG, /* text is NULL, n the line's length */
    LINE_WAIT,     /* nothing to read yet, and the caller would not block */
    LINE_END,
};

/* One line without its end ("\n" or "\r\n"); a byte order mark at the input's start is left out. */
struct line {
    enum line_kind kind;
    const char *text; /* borrowed until the next call; may hold NULs, not NUL-terminated */
    size_t n;         /* bytes */
    uint64_t number;  /* from 1 */
    uint64_t offset;  /* of its first byte in the input */
};

/* Local. Opens `path`; "-" is stdin. max_bytes: longest line, 0: LINE_BYTES_MAX.
 * Errors: STATUS_INPUT (cannot be opened, a folder), STATUS_MEMORY. */
struct status line_reader_create(const char *path, size_t max_bytes, struct line_reader **out);
void line_reader_destroy(struct line_reader **r);

/* Local. From now on only the lines of a part of the file, with the numbers that they have in the
 * whole of it. Before the first line_reader_next. Errors: STATUS_IO. */
struct status line_reader_set_part(struct line_reader *r, const struct input_part *part);

/* Local. The next line. A last line without an end counts; an empty input has no line. When nothing
 * can be read at once, LINE_WAIT; with may_block only after a fifth of a second, so that a caller
 * with nothing else to do neither spins nor sleeps through a signal. Errors: STATUS_IO,
 * STATUS_MEMORY.
 */
struct status line_reader_next(struct line_reader *r, bool may_block, struct line *out);

/* Local. Errors: STATUS_INPUT when a regular file begins as no text of JSON lines in UTF-8 does,
 * but as compressed files, UTF-16 or Parquet do: every line would be an error row. */
struct status line_reader_check(const struct line_reader *r);

/* Local. Bytes taken so far, and the input's size (0 when it is no regular file); of its part. */
uint64_t line_reader_offset(const struct line_reader *r);
uint64_t line_reader_size(const struct line_reader *r);

/* Local. True when opening the path again gives the same lines from the start: a regular file, and
 * not stdin, whose place both would share. */
bool line_reader_is_repeatable(const struct line_reader *r);

/* Local. True when `path` names the file that is being read (by device and inode). */
bool line_reader_is_file(const struct line_reader *r, const char *path);

#endif
