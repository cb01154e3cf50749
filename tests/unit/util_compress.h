/* Compressed data for tests, by the libraries' own compressors. */
#ifndef SHOAL_TESTS_UTIL_COMPRESS_H
#define SHOAL_TESTS_UTIL_COMPRESS_H

#include "base/strbuf.h"

enum util_format { UTIL_GZIP, UTIL_ZSTD, UTIL_XZ, UTIL_FORMAT_COUNT };

/* Appends the n bytes as one gzip member, zstd frame or xz stream, with checksum, to `out`. */
void util_compress(enum util_format format, const void *bytes, size_t n, struct strbuf *out);

#endif
