/* A table with a row for each format; a row's functions call the streaming decoder of its library.
 */
#include "serve/input/decoder.h"

#include "base/mem.h"

#include <limits.h>
#include <lzma.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

enum { MEMORY_MAX = 256 << 20, ZSTD_WINDOW_LOG_MAX = 27 };

struct decoder_format {
    const char *name, *magic;
    size_t n_magic;
    struct status (*start)(struct decoder *d);
    struct status (*run)(struct decoder *d, struct decoder_io *io);
    void (*stop)(struct decoder *d);
};

struct decoder {
    const struct decoder_format *format;
    bool is_whole;
    z_stream gzip;
    ZSTD_DStream *zstd;
    lzma_stream xz;
};

static struct status decoder_damaged(const char *name, const char *why)
{
    return status_make(STATUS_INPUT, "damaged %s data (%s)", name, why);
}

static struct status no_memory(const char *name)
{
    return status_make(STATUS_MEMORY, "no memory for decompressing %s data", name);
}

static struct status gzip_start(struct decoder *d)
{
    enum { WINDOW_BITS = 15, GZIP_HEADER = 16 };
    return inflateInit2(&d->gzip, WINDOW_BITS + GZIP_HEADER) == Z_OK ? status_ok()
                                                                     : no_memory("gzip");
}

/* Decompresses gzip. A member ends with its checksum. Zeros after it are ignored, as gzip does;
 * another byte begins the next member. */
static struct status gzip_run(struct decoder *d, struct decoder_io *io)
{
    z_stream *z = &d->gzip;
    for (; d->is_whole && io->n_in > 0 && *io->in == 0; io->in++) io->n_in--;
    if (io->n_in == 0) return status_ok();
    if (d->is_whole) (void)inflateReset(z);
    z->next_in = (Bytef *)(uintptr_t)io->in;
    z->avail_in = io->n_in < UINT_MAX ? (uInt)io->n_in : UINT_MAX;
    z->next_out = io->out;
    z->avail_out = io->n_out < UINT_MAX ? (uInt)io->n_out : UINT_MAX;
    const int found = inflate(z, Z_NO_FLUSH);
    io->n_in -= (size_t)(z->next_in - io->in);
    io->in = z->next_in;
    io->n_out -= (size_t)(z->next_out - io->out);
    io->out = z->next_out;
    d->is_whole = found == Z_STREAM_END;
    if (found == Z_OK || found == Z_STREAM_END || found == Z_BUF_ERROR) return status_ok();
    if (found == Z_MEM_ERROR) return no_memory("gzip");
    return decoder_damaged("gzip", z->msg != NULL ? z->msg : "invalid");
}

static void gzip_stop(struct decoder *d)
{
    (void)inflateEnd(&d->gzip);
}

static struct status zstd_start(struct decoder *d)
{
    d->zstd = ZSTD_createDStream();
    if (d->zstd == NULL) return no_memory("zstd");
    (void)ZSTD_DCtx_setParameter(d->zstd, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG_MAX);
    return status_ok();
}

static struct status zstd_run(struct decoder *d, struct decoder_io *io)
{
    ZSTD_inBuffer in = {.src = io->in, .size = io->n_in};
    ZSTD_outBuffer out = {.dst = io->out, .size = io->n_out};
    if (d->is_whole && io->n_in == 0) return status_ok();
    const size_t left = ZSTD_decompressStream(d->zstd, &out, &in);
    io->in += in.pos;
    io->n_in -= in.pos;
    io->out += out.pos;
    io->n_out -= out.pos;
    if (ZSTD_isError(left)) return decoder_damaged("zstd", ZSTD_getErrorName(left));
    d->is_whole = left == 0;
    return status_ok();
}

static void zstd_stop(struct decoder *d)
{
    (void)ZSTD_freeDStream(d->zstd);
}

static struct status xz_start(struct decoder *d)
{
    d->xz = (lzma_stream)LZMA_STREAM_INIT;
    return lzma_stream_decoder(&d->xz, MEMORY_MAX, LZMA_CONCATENATED) == LZMA_OK ? status_ok()
                                                                                 : no_memory("xz");
}

static struct status xz_run(struct decoder *d, struct decoder_io *io)
{
    lzma_stream *x = &d->xz;
    if (d->is_whole) return status_ok();
    x->next_in = io->in;
    x->avail_in = io->n_in;
    x->next_out = io->out;
    x->avail_out = io->n_out;
    const lzma_ret found = lzma_code(x, io->is_last ? LZMA_FINISH : LZMA_RUN);
    io->in = x->next_in;
    io->n_in = x->avail_in;
    io->out = x->next_out;
    io->n_out = x->avail_out;
    d->is_whole = found == LZMA_STREAM_END;
    if (found == LZMA_OK || found == LZMA_STREAM_END || found == LZMA_BUF_ERROR) return status_ok();
    if (found == LZMA_MEM_ERROR) return no_memory("xz");
    return decoder_damaged("xz", found == LZMA_MEMLIMIT_ERROR ? "it needs more than 256 MiB"
                                 : found == LZMA_FORMAT_ERROR ? "no xz header"
                                                              : "a wrong checksum or header");
}

static void xz_stop(struct decoder *d)
{
    lzma_end(&d->xz);
}

static const struct decoder_format formats[] = {
    {"gzip", "\x1F\x8B", 2, gzip_start, gzip_run, gzip_stop},
    {"zstd", "\x28\xB5\x2F\xFD", 4, zstd_start, zstd_run, zstd_stop},
    {"zstd", "\x50\x2A\x4D\x18", 4, zstd_start, zstd_run, zstd_stop}, /* pzstd's skippable frame */
    {"xz", "\xFD\x37zXZ", 6, xz_start, xz_run, xz_stop}, /* the sixth byte is the string's NUL */
};

struct status decoder_create(const uint8_t *bytes, size_t n, struct decoder **out)
{
    *out = NULL;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (n < formats[i].n_magic || memcmp(bytes, formats[i].magic, formats[i].n_magic) != 0)
            continue;
        struct decoder *d = NULL;
        TRY(mem_alloc(&d, 1, sizeof *d, "decompression"));
        d->format = &formats[i];
        const struct status st = d->format->start(d);
        if (!status_failed(&st)) *out = d;
        if (status_failed(&st)) mem_free(&d);
        return st;
    }
    return status_ok();
}

void decoder_destroy(struct decoder **decoder)
{
    struct decoder *d = *decoder;
    if (d == NULL) return;
    d->format->stop(d);
    mem_free(decoder);
}

struct status decoder_run(struct decoder *d, struct decoder_io *io)
{
    for (;;) {
        const size_t n_in = io->n_in, n_out = io->n_out;
        TRY(d->format->run(d, io));
        if (io->n_out == 0) return status_ok();
        if (io->n_in == n_in && io->n_out == n_out) return status_ok(); /* nothing moved */
    }
}

bool decoder_is_whole(const struct decoder *d)
{
    return d->is_whole;
}

const char *decoder_name(const struct decoder *d)
{
    return d->format->name;
}
