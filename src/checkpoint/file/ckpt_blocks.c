/* Reads blocks of stored tensors through the system's file cache, and computes their checksums. */
#include "base/clock.h"
#include "checkpoint/file/ckpt_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>
#ifdef SHOAL_XXHASH_CHOOSES
#include <xxh_x86dispatch.h> /* chooses the CPU's best instructions; checksums are the same */
#endif

enum {
    READ_STEP_BYTES = 256 << 10, /* fits a core's second-level cache */
    ROWS_TOGETHER = 16,          /* rows that are packed together: a panel's outputs */
    CACHE_SAMPLES = 64,          /* bytes of the file to probe */
};

uint64_t ckpt_block_rows(const struct ckpt_tensor *t, uint64_t block)
{
    const uint64_t row0 = block * t->rows_per_block;
    const uint64_t left = t->n_rows - row0;
    return left < t->rows_per_block ? left : t->rows_per_block;
}

size_t ckpt_block_bytes(const struct ckpt_tensor *t, uint64_t block)
{
    return (size_t)(ckpt_block_rows(t, block) * t->n_cols * dtype_bytes(t->dtype));
}

struct status ckpt_read_bytes(const struct ckpt *c, const struct ckpt_tensor *t, uint64_t offset,
                              size_t n, char *out)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = pread(c->fd, out + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            return status_make(STATUS_INPUT, "%s: tensor %s: byte %llu of the file: %s", c->path,
                               t->name, (unsigned long long)(offset + done),
                               got < 0 ? strerror(errno) : "the file ends");
        }
        done += (size_t)got;
    }
    return status_ok();
}

static uint64_t block_offset(const struct ckpt_tensor *t, uint64_t block)
{
    return t->offset + block * t->rows_per_block * t->n_cols * dtype_bytes(t->dtype);
}

/* True when the system's cache holds a byte of the file; if not, the system may read it now. */
static bool byte_is_cached(int fd, uint64_t at)
{
    char byte;
    const struct iovec to = {.iov_base = &byte, .iov_len = 1};
    return preadv2(fd, &to, 1, (off_t)at, RWF_NOWAIT) == 1;
}

/* Opens a descriptor of its own without read-ahead, so that probing a byte reads one page at most.
 * The positions depend on the clock, so that pages read by an earlier call do not count. */
bool ckpt_is_cached(const struct ckpt *c)
{
    char path[64];
    uint32_t n = 0;
    uint64_t draw = clock_ns();
    snprintf(path, sizeof path, "/proc/self/fd/%d", c->fd);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    for (int i = 0; i < CACHE_SAMPLES; i++) {
        draw = draw * 6364136223846793005u + 1442695040888963407u;
        n += byte_is_cached(fd, (draw >> 20) % c->seal.file_bytes);
    }
    close(fd);
    return 2 * n > CACHE_SAMPLES;
}

/* posix_fadvise costs a tenth of the time of reading a cached file, so it is skipped when the last
 * byte is cached already; probing that byte costs next to nothing. */
void ckpt_advise_blocks(const struct ckpt *c, const struct ckpt_tensor *t, uint64_t block,
                        uint64_t n)
{
    const uint64_t begin = block_offset(t, block), last = block + n - 1;
    const uint64_t end = block_offset(t, last) + ckpt_block_bytes(t, last);
    if (byte_is_cached(c->fd, end - 1)) return;
    posix_fadvise(c->fd, (off_t)begin, (off_t)(end - begin), POSIX_FADV_WILLNEED);
}

struct status ckpt_sum_create(struct ckpt_sum *s)
{
    s->state = XXH3_createState();
    if (s->state != NULL) return status_ok();
    return status_make(STATUS_MEMORY, "a checksum's state");
}

void ckpt_sum_destroy(struct ckpt_sum *s)
{
    XXH3_freeState(s->state);
    s->state = NULL;
}

void ckpt_sum_begin(struct ckpt_sum *s, const struct ckpt *c, const struct ckpt_tensor *t,
                    uint64_t block)
{
    s->c = c;
    s->t = t;
    s->block = block;
    XXH3_128bits_reset(s->state);
}

/* Compares the block's checksum with the stored one, then begins the next block's. */
static struct status sum_check(struct ckpt_sum *s)
{
    const XXH128_hash_t hash = XXH3_128bits_digest(s->state);
    const uint64_t block = s->block++, *want = s->c->entries[s->t->index].sums + 2 * block;
    XXH3_128bits_reset(s->state);
    if (hash.low64 == want[0] && hash.high64 == want[1]) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: tensor %s: block %llu of %llu is damaged: expected checksum "
                       "%016llx%016llx, found %016llx%016llx",
                       s->c->path, s->t->name, (unsigned long long)block,
                       (unsigned long long)s->t->n_blocks, (unsigned long long)want[1],
                       (unsigned long long)want[0], (unsigned long long)hash.high64,
                       (unsigned long long)hash.low64);
}

struct status ckpt_sum_rows(struct ckpt_sum *s, uint64_t row, uint64_t n_rows, const char *rows)
{
    const size_t row_bytes = (size_t)(s->t->n_cols * dtype_bytes(s->t->dtype));
    for (uint64_t i = 0, n; i < n_rows; i += n) {
        const uint64_t end = s->block * s->t->rows_per_block + ckpt_block_rows(s->t, s->block);
        n = end - (row + i) < n_rows - i ? end - (row + i) : n_rows - i;
        XXH3_128bits_update(s->state, rows + i * row_bytes, (size_t)n * row_bytes);
        if (row + i + n == end) TRY(sum_check(s));
    }
    return status_ok();
}

struct status ckpt_read_block(const struct ckpt *c, const struct ckpt_tensor *t, uint64_t block,
                              void *buf)
{
    const size_t n_bytes = ckpt_block_bytes(t, block);
    const uint64_t offset = block_offset(t, block);
    struct ckpt_sum sum;
    struct status st = status_ok();
    TRY(ckpt_sum_create(&sum));
    ckpt_sum_begin(&sum, c, t, block);
    for (size_t done = 0; done < n_bytes && !status_failed(&st); done += READ_STEP_BYTES) {
        const size_t n = n_bytes - done < READ_STEP_BYTES ? n_bytes - done : READ_STEP_BYTES;
        st = ckpt_read_bytes(c, t, offset + done, n, (char *)buf + done);
        if (!status_failed(&st)) XXH3_128bits_update(sum.state, (char *)buf + done, n);
    }
    if (!status_failed(&st)) st = sum_check(&sum);
    ckpt_sum_destroy(&sum);
    return st;
}

uint64_t ckpt_rows_within(const struct ckpt_tensor *t, uint64_t row, uint64_t n_rows,
                          size_t n_bytes)
{
    const uint64_t row_bytes = t->n_cols * dtype_bytes(t->dtype);
    uint64_t n = row_bytes > 0 ? n_bytes / row_bytes : n_rows;
    if (n >= ROWS_TOGETHER) n -= (row + n) % ROWS_TOGETHER;
    if (n == 0) n = 1;
    return n < n_rows ? n : n_rows;
}

uint64_t ckpt_rows_at_once(const struct ckpt_tensor *t, uint64_t row, uint64_t end)
{
    const uint64_t row_bytes = t->n_cols * dtype_bytes(t->dtype);
    uint64_t n = row_bytes > 0 ? READ_STEP_BYTES / row_bytes : end - row;
    if (n < ROWS_TOGETHER && row_bytes * ROWS_TOGETHER <= CKPT_READ_BYTES_MAX) n = ROWS_TOGETHER;
    if (n >= ROWS_TOGETHER) n -= (row + n) % ROWS_TOGETHER;
    if (n == 0) n = 1;
    return n < end - row ? n : end - row;
}

struct status ckpt_read_tensor(struct ckpt *c, const struct ckpt_tensor *t, void *dst)
{
    if (t->quant.kind != QUANT_NONE) {
        return status_make(STATUS_BUG, "%s: tensor %s: a quantized tensor is read by its parts",
                           c->path, t->name);
    }
    const size_t row_bytes = (size_t)(t->n_cols * dtype_bytes(t->dtype));
    for (uint64_t b = 0; b < t->n_blocks; b++) {
        TRY(ckpt_read_block(c, t, b, (char *)dst + b * t->rows_per_block * row_bytes));
    }
    return status_ok();
}
