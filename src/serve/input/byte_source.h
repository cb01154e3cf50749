/* The bytes of an input: a regular file, a FIFO, stdin, or a dataset of strings (dataset_lines.h).
 * Data that begin as gzip (RFC 1952), zstd (RFC 8878) or xz (the .xz file format 1.1) are
 * decompressed, in bounded memory; consecutive members, frames or streams are one input. Knows no
 * lines. Called by the files of this room and by merge.c. */
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
 * Errors: STATUS_INPUT (cannot be opened, a folder, no such dataset), STATUS_MEMORY. */
struct status byte_source_open(const char *path, struct byte_source **out);
void byte_source_close(struct byte_source **s);

/* Local. Reads up to n_most (at least 1) decompressed bytes to `to`. may_block: each read of
 * the file waits for up to a fifth of a second. Errors: STATUS_IO; STATUS_INPUT when compressed
 * data are damaged or end too early (both name the byte of the file, or a dataset's rows),
 * STATUS_MEMORY. */
struct status byte_source_read(struct byte_source *s, bool may_block, void *to, size_t n_most,
                               struct source_read *out);

/* Local. Moves to byte `at` of the decompressed bytes of a regular file from which nothing has been
 * read yet; reads a compressed file up to there. Errors: as byte_source_read. */
struct status byte_source_go_to(struct byte_source *s, uint64_t at);

/* Local. *out = the number of decompressed bytes of a regular file; reads all of a compressed one.
 * Errors: as byte_source_open and byte_source_read. */
struct status byte_source_length(const char *path, uint64_t *out);

/* Local. Whether the input is a regular file; its size in bytes on the disk (0: not a regular
 * file); and how many of those bytes have been read and used (of a dataset, in
 * proportion to its rows). */
bool byte_source_is_regular(const struct byte_source *s);
uint64_t byte_source_file_size(const struct byte_source *s);
uint64_t byte_source_file_done(const struct byte_source *s);

/* Local. Whether the bytes are decompressed, or made from a dataset. Known after the first read
 * that gave bytes. */
bool byte_source_is_compressed(const struct byte_source *s);

/* Local. True when `path` names the regular file that is being read (by device and inode). */
bool byte_source_is_file(const struct byte_source *s, const char *path);

/* Local. Copies the first n bytes of a regular file as they are on the disk; returns how many of
 * them exist (0 if it is a dataset, not a regular file, or cannot be read). */
size_t byte_source_head(const struct byte_source *s, void *to, size_t n);

#endif
