/* Compresses bytes to whole gzip members (RFC 1952), zstd frames (RFC 8878) or xz streams (the .xz
 * file format 1.1), each with a checksum. decoder.h reads them all. Writes no files. Called by
 * serve/output and merge, and by the job to check an output's name. */
#ifndef SHOAL_SERVE_INPUT_ENCODER_H
#define SHOAL_SERVE_INPUT_ENCODER_H

#include "base/strbuf.h"

enum encoder_format {
    ENCODER_PLAIN, /* no compression */
    ENCODER_GZIP,
    ENCODER_ZSTD,
    ENCODER_XZ,
    ENCODER_FORMAT_COUNT
};

/* Local. Returns the format that the ending of `path` names: .gz, .zst, .xz; ENCODER_PLAIN for any
 * other ending. */
enum encoder_format encoder_format_of(const char *path);

/* Local. Refuses a path whose ending names a format that shoal does not write, such as .bz2 or
 * .parquet. flag: the flag that names the path. Errors: STATUS_USAGE. */
struct status encoder_check_name(const char *flag, const char *path);

/* Local. Appends n bytes (0 or more) to `out` as one member, frame or stream; ENCODER_PLAIN appends
 * them unchanged. The same bytes always give the same result with one version of the library.
 * Errors: STATUS_MEMORY. */
struct status encoder_run(enum encoder_format format, const char *bytes, size_t n,
                          struct strbuf *out);

#endif
