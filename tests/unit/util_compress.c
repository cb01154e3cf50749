#include "util_compress.h"

#include <assert.h>
#include <lzma.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

enum { LEVEL = 3 };

static size_t gzip(const void *bytes, size_t n, char *to, size_t n_most)
{
    z_stream z;
    memset(&z, 0, sizeof z);
    int found = deflateInit2(&z, LEVEL, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
    assert(found == Z_OK);
    z.next_in = (Bytef *)(uintptr_t)bytes;
    z.avail_in = (uInt)n;
    z.next_out = (Bytef *)to;
    z.avail_out = (uInt)n_most;
    found = deflate(&z, Z_FINISH);
    assert(found == Z_STREAM_END);
    (void)deflateEnd(&z);
    return n_most - z.avail_out;
}

static size_t zstd(const void *bytes, size_t n, char *to, size_t n_most)
{
    ZSTD_CCtx *c = ZSTD_createCCtx();
    assert(c != NULL);
    (void)ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);
    const size_t found = ZSTD_compress2(c, to, n_most, bytes, n);
    assert(!ZSTD_isError(found));
    (void)ZSTD_freeCCtx(c);
    return found;
}

static size_t xz(const void *bytes, size_t n, char *to, size_t n_most)
{
    size_t n_out = 0;
    const lzma_ret found = lzma_easy_buffer_encode(LEVEL, LZMA_CHECK_CRC64, NULL, bytes, n,
                                                   (uint8_t *)to, &n_out, n_most);
    assert(found == LZMA_OK);
    (void)found;
    return n_out;
}

void util_compress(enum util_format format, const void *bytes, size_t n, struct strbuf *out)
{
    static size_t (*const of[UTIL_FORMAT_COUNT])(const void *, size_t, char *, size_t) = {gzip,
                                                                                          zstd, xz};
    const size_t n_most = n + n / 8 + 1024;
    char *room = malloc(n_most);
    assert(room != NULL);
    strbuf_add(out, room, of[format](bytes, n, room, n_most));
    free(room);
}
