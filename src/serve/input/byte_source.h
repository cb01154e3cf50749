/* The bytes of an input: a regular file, a FIFO, stdin, or a dataset of strings (dataset_lines.h).
 * Decompresses, in bounded memory, data that begin as gzip (RFC 1952), zstd (RFC 8878) or xz (the
 * .xz file format 1.1); joins consecutive members, frames or streams. Knows no lines. Called by the
 * files of this room and by merge.c. */
#ifndef SHOAL_SERVE_INPUT_BYTE_SOURCE_H
#define SHOAL_SERVE_INPUT_BYTE_SOURCE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct byte_source;

enum source_kind {
    SOURCE_BYTES, /* n bytes were read, at least one */
    SOURCE_WAIT,  /* nothing can be read now */
    SOURCE_END,   /* all has been read */
};

struct source_read {
    enum source_kind kind;
    size_t n;
};

/* Local. Opens `path`; "-" is stdin. Reads nothing yet. Owner: the caller, byte_source_close.
 * Errors: STATUS_INPUT (cannot be opened, a folder, no such dataset of strings), STATUS_MEMORY. */
struct status byte_source_open(const char *path, struct byte_source **out);
void byte_source_close(struct byte_source **s);

/* Local. Reads up to n_most (at least 1) decompressed bytes into `to`. may_block: each read of the
 * file may wait for up to a fifth of a second. Errors: STATUS_IO, STATUS_INPUT (compressed data are
 * damaged or end too early; the sentence names the byte of the file, or the rows of a dataset; a
 * file became shorter after it was opened), STATUS_MEMORY. */
struct status byte_source_read(struct byte_source *s, bool may_block, void *to, size_t n_most,
                               struct source_read *out);

/* Local. Moves to decompressed byte `at` of a regular file from which nothing has been read yet. A
 * compressed file is read up to that byte. Errors: as byte_source_read. */
struct status byte_source_go_to(struct byte_source *s, uint64_t at);

/* Local. Sets *out to the number of decompressed bytes of a regular file; reads all of a compressed
 * file. Errors: as byte_source_open and byte_source_read. */
struct status byte_source_length(const char *path, uint64_t *out);

/* Local. Return whether the input is a regular file; its size in bytes on the disk (0: not a
 * regular file); and how many of these bytes have been read and used. For a dataset the last number
 * grows in proportion to the rows read. */
bool byte_source_is_regular(const struct byte_source *s);
uint64_t byte_source_file_size(const struct byte_source *s);
uint64_t byte_source_file_done(const struct byte_source *s);

/* Local. True when the bytes are decompressed, or made from a dataset. Valid after the first read
 * that gave bytes. */
bool byte_source_is_compressed(const struct byte_source *s);

/* Local. True when the input is the regular file `path` (by device and inode). */
bool byte_source_is_file(const struct byte_source *s, const char *path);

/* Local. Copies the first n bytes of a regular file, as they are on the disk, or all its bytes
 * if it has fewer. Returns the number of bytes copied: 0 for a dataset, a file that is not regular,
 * or one that cannot be read. */
size_t byte_source_head(const struct byte_source *s, void *to, size_t n);

#endif
