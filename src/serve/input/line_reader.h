/* Reads a file, a FIFO or stdin, or several files one after the other, compressed or not
 * (byte_source.h), line by line in bounded memory. The end of a file ends its last line. Skips and
 * reports a line over the limit, which is not an error. Does not parse JSON. Called by the journal,
 * the lead, the server's batches, the job and the commands. */
#ifndef SHOAL_SERVE_INPUT_LINE_READER_H
#define SHOAL_SERVE_INPUT_LINE_READER_H

#include "base/status.h"
#include "serve/input/input_files.h"
#include "serve/input/input_part.h"

#include <stddef.h>
#include <stdint.h>

enum { LINE_BYTES_MAX = 16 << 20 };

struct line_reader;

enum line_kind {
    LINE_OK,
    LINE_TOO_LONG, /* text is NULL, n is the line's length */
    LINE_WAIT,     /* nothing can be read now */
    LINE_END,
};

/* One line without its line end ("\n" or "\r\n"), and without a byte order mark at the start of a
 * file. */
struct line {
    enum line_kind kind;
    const char *text; /* borrowed until the next call; may hold NULs, not NUL-terminated */
    size_t n;         /* bytes */
    uint64_t number;  /* from 1 */
    uint64_t offset;  /* offset of the line's first byte in the decompressed input */
};

/* Local. Opens `path`; "-" is stdin. max_bytes: length of the longest line; 0: LINE_BYTES_MAX.
 * Errors: STATUS_INPUT (cannot be opened, a folder), STATUS_MEMORY. */
struct status line_reader_create(const char *path, size_t max_bytes, struct line_reader **out);
void line_reader_destroy(struct line_reader **r);

/* Local. As line_reader_create, for all of `files`, which are borrowed. Lines are numbered over all
 * files. Errors: as line_reader_create. */
struct status line_reader_create_all(const struct input_files *files, size_t max_bytes,
                                     struct line_reader **out);

/* Local. Restricts the reader to a part of the input; lines keep the numbers that they have in the
 * whole input. Call it before the first line_reader_next. Errors: as line_reader_next. */
struct status line_reader_set_part(struct line_reader *r, const struct input_part *part);

/* Local. Reads the next line. A last line without a line end counts; an empty input has no line.
 * Gives LINE_WAIT when nothing can be read now, and after every 64 MiB of a line over the limit in
 * a pipe or in compressed data. may_block: first waits for up to a fifth of a second, so that an
 * idle caller neither spins nor misses a signal. Errors: STATUS_IO, STATUS_MEMORY, STATUS_INPUT
 * (damaged or truncated compressed data, a file that became shorter, or a next file that cannot be
 * opened). */
struct status line_reader_next(struct line_reader *r, bool may_block, struct line *out);

/* A line's place in its own file. */
struct line_place {
    const char *path; /* borrowed */
    uint64_t number;  /* from 1 */
};

/* Local. Returns the place of a line that has been read, by its number in the whole input. For a
 * line not yet read, returns the place that it would have in the file opened last. */
struct line_place line_reader_place(const struct line_reader *r, uint64_t number);

/* Local. Checks the first bytes of each regular file. Errors: STATUS_INPUT if they are those of
 * bzip2, UTF-16, UTF-32, Parquet or HDF5, where every line would become an error row, or if a file
 * cannot be opened. */
struct status line_reader_check(const struct line_reader *r);

/* Local. Returns the number of decompressed bytes of the lines read so far, counted from the start
 * of the part. */
uint64_t line_reader_offset(const struct line_reader *r);

/* Local. Return how far the reader is: done of size bytes. They are bytes as stored on the disk;
 * with line_reader_set_part, decompressed bytes. size is 0 if the input is not a regular file. */
uint64_t line_reader_size(const struct line_reader *r);
uint64_t line_reader_done(const struct line_reader *r);

/* Local. True when opening the path again reads the same lines from the start: a regular file, but
 * not stdin, whose file position would be shared. */
bool line_reader_is_repeatable(const struct line_reader *r);

/* Local. True when `path` names one of the input's regular files (by device and inode). */
bool line_reader_is_file(const struct line_reader *r, const char *path);

#endif
