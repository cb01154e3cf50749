/* Each call of encoder_run compresses all of its bytes. A table has, for each format, the ending of
 * its files and the function that calls its library. */
#include "serve/input/encoder.h"

#include "base/mem.h"

#include <limits.h>
#include <lzma.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>
#include <zlib.h>
#include <zstd.h>

/* Compression levels. gzip and zstd have their usual levels, which take 0.06 and 0.02 s for a frame
 * of 1 MiB of rows. xz's usual level takes 0.9 s of the lead's time; level 1 takes 0.2 s and makes
 * frames 10 % larger. */
enum { GZIP_LEVEL = 6, ZSTD_LEVEL = 3, XZ_LEVEL = 1, PIECE_BYTES = 64 << 10 };

struct encoder_row {
    const char *ending;
    struct status (*run)(const char *bytes, size_t n, struct strbuf *out);
};

static struct status encoder_no_memory(const char *name)
{
    return status_make(STATUS_MEMORY, "no memory for compressing to %s", name);
}

static struct status run_plain(const char *bytes, size_t n, struct strbuf *out)
{
    if (n > 0) strbuf_add(out, bytes, n);
    return strbuf_status(out);
}

/* Compresses all bytes through the buffer `piece` [PIECE_BYTES]. Passes at most INT_MAX bytes at
 * once, because zlib counts in 32 bits. */
static void deflate_all(z_stream *z, const char *bytes, size_t n, Bytef *piece, struct strbuf *out)
{
    int found = Z_OK;
    for (size_t at = 0; found != Z_STREAM_END;) {
        const size_t left = n - at;
        const uInt take = left < INT_MAX ? (uInt)left : INT_MAX;
        z->next_in = (Bytef *)(uintptr_t)(n > 0 ? bytes + at : "");
        z->avail_in = take;
        z->next_out = piece;
        z->avail_out = PIECE_BYTES;
        found = deflate(z, take == left ? Z_FINISH : Z_NO_FLUSH);
        at += take - z->avail_in;
        strbuf_add(out, (const char *)piece, PIECE_BYTES - z->avail_out);
    }
}

static struct status run_gzip(const char *bytes, size_t n, struct strbuf *out)
{
    enum { WINDOW_BITS = 15, GZIP_HEADER = 16, MEMORY_LEVEL = 8 };
    z_stream z = {.next_in = NULL};
    Bytef *piece = NULL;
    TRY(mem_alloc(&piece, PIECE_BYTES, 1, "compression"));
    const bool begun = deflateInit2(&z, GZIP_LEVEL, Z_DEFLATED, WINDOW_BITS + GZIP_HEADER,
                                    MEMORY_LEVEL, Z_DEFAULT_STRATEGY) == Z_OK;
    if (begun) deflate_all(&z, bytes, n, piece, out);
    if (begun) (void)deflateEnd(&z);
    mem_free(&piece);
    return begun ? strbuf_status(out) : encoder_no_memory("gzip");
}

static struct status run_zstd(const char *bytes, size_t n, struct strbuf *out)
{
    char *packed = NULL;
    const size_t most = ZSTD_compressBound(n);
    TRY(mem_alloc(&packed, most, 1, "compression"));
    ZSTD_CCtx *c = ZSTD_createCCtx();
    size_t n_packed = 0;
    if (c != NULL) {
        (void)ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, ZSTD_LEVEL);
        (void)ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);
        n_packed = ZSTD_compress2(c, packed, most, bytes, n);
    }
    const bool done = c != NULL && !ZSTD_isError(n_packed);
    if (done) strbuf_add(out, packed, n_packed);
    (void)ZSTD_freeCCtx(c);
    mem_free(&packed);
    return done ? strbuf_status(out) : encoder_no_memory("zstd");
}

static struct status run_xz(const char *bytes, size_t n, struct strbuf *out)
{
    uint8_t *packed = NULL;
    const size_t most = lzma_stream_buffer_bound(n);
    size_t n_packed = 0;
    TRY(mem_alloc(&packed, most, 1, "compression"));
    const bool done =
        lzma_easy_buffer_encode(XZ_LEVEL, LZMA_CHECK_CRC64, NULL, (const uint8_t *)bytes, n, packed,
                                &n_packed, most) == LZMA_OK;
    if (done) strbuf_add(out, (const char *)packed, n_packed);
    mem_free(&packed);
    return done ? strbuf_status(out) : encoder_no_memory("xz");
}

static const struct encoder_row rows[ENCODER_FORMAT_COUNT] = {
    [ENCODER_PLAIN] = {"", run_plain},
    [ENCODER_GZIP] = {".gz", run_gzip},
    [ENCODER_ZSTD] = {".zst", run_zstd},
    [ENCODER_XZ] = {".xz", run_xz},
};

static bool has_ending(const char *path, const char *ending)
{
    const size_t n = strlen(path), n_ending = strlen(ending);
    return n > n_ending && strcasecmp(path + n - n_ending, ending) == 0;
}

enum encoder_format encoder_format_of(const char *path)
{
    enum encoder_format f = ENCODER_GZIP;
    while (f < ENCODER_FORMAT_COUNT && !has_ending(path, rows[f].ending)) f++;
    return f < ENCODER_FORMAT_COUNT ? f : ENCODER_PLAIN;
}

struct status encoder_check_name(const char *flag, const char *path)
{
    static const char *const unknown[] = {".bz2", ".lz4", ".lzma", ".br",      ".zip",
                                          ".7z",  ".Z",   ".zstd", ".parquet", ".arrow"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        if (!has_ending(path, unknown[i])) continue;
        return status_make(STATUS_USAGE,
                           "--%s %s: expected JSON lines, plain or compressed (.gz, .zst, .xz), "
                           "found the ending %s",
                           flag, path, unknown[i]);
    }
    return status_ok();
}

struct status encoder_run(enum encoder_format format, const char *bytes, size_t n,
                          struct strbuf *out)
{
    return rows[format].run(bytes, n, out);
}
