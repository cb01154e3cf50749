/* Decompresses data piece by piece, with zlib, libzstd and liblzma. Reads no files. Called by
 * byte_source.c. */
#ifndef SHOAL_SERVE_INPUT_DECODER_H
#define SHOAL_SERVE_INPUT_DECODER_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DECODER_MAGIC_MAX = 6 };

/* decoder_run reads compressed bytes at `in` and writes bytes to `out`. It advances both pointers
 * and reduces both counts. */
struct decoder_io {
    const uint8_t *in;
    size_t n_in;
    uint8_t *out;
    size_t n_out;
    bool is_last; /* no bytes follow those of `in` */
};

struct decoder;

/* Local. Makes the decoder for data that begin with these n bytes; *out is NULL if the data are not
 * compressed. n is at least DECODER_MAGIC_MAX, unless the input is shorter. Errors: STATUS_MEMORY.
 */
struct status decoder_create(const uint8_t *bytes, size_t n, struct decoder **out);
void decoder_destroy(struct decoder **d);

/* Local. Runs until `in` is used up or `out` is full. Errors: STATUS_INPUT (damaged data, xz data
 * that need more than 256 MiB or zstd data with a window over 128 MiB; the sentence names format
 * and reason), STATUS_MEMORY. */
struct status decoder_run(struct decoder *d, struct decoder_io *io);

/* Local. True when the bytes so far form whole members, frames or streams, so the input may end
 * here. */
bool decoder_is_whole(const struct decoder *d);

/* Local. Returns "gzip", "zstd" or "xz". */
const char *decoder_name(const struct decoder *d);

#endif
