/* An open checkpoint: opening, accessors, verified reading of blocks. */
#include "checkpoint/file/ckpt.h"

#include "base/mem.h"
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
    ROWS_TOGETHER = 16,          /* rows that are packed together: a panel's columns */
};

static struct status ckpt_file_open(struct ckpt *c)
{
    const hid_t access = h5_access_create();
    if (access < 0) return h5_error(STATUS_INPUT, c->path, "access properties");
    c->file = H5Fopen(c->path, H5F_ACC_RDONLY, access);
    H5Pclose(access);
    if (c->file < 0) return h5_error(STATUS_INPUT, c->path, "cannot be opened");
    void *fd = NULL; /* the file descriptor that HDF5 opened, so that both read the same file */
    if (H5Fget_vfd_handle(c->file, H5P_DEFAULT, &fd) < 0 || fd == NULL) {
        return h5_error(STATUS_INPUT, c->path, "has no file descriptor");
    }
    c->fd = *(const int *)fd;
    return status_ok();
}

void ckpt_before_mpi(void)
{
    h5_quiet();
}

struct status ckpt_open(const char *path, struct ckpt **out)
{
    struct ckpt *c = NULL;
    *out = NULL;
    TRY(mem_alloc(&c, 1, sizeof *c, "a checkpoint"));
    c->file = -1;
    struct status st = mem_strndup(&c->path, path, strlen(path));
    if (!status_failed(&st)) st = seal_check(path, &c->seal);
    h5_quiet();
    if (!status_failed(&st)) st = ckpt_file_open(c);
    if (!status_failed(&st)) st = ckpt_walk(c);
    if (status_failed(&st)) ckpt_close(&c);
    *out = c;
    return st;
}

void ckpt_close(struct ckpt **c_)
{
    struct ckpt *c = *c_;
    if (c == NULL) return;
    if (c->file >= 0) H5Fclose(c->file);
    for (size_t i = 0; i < c->n_entries; i++) {
        mem_free(&c->entries[i].name);
        mem_free(&c->entries[i].method);
        mem_free(&c->entries[i].sums);
    }
    for (int i = 0; i < CKPT_TEXT_COUNT; i++) mem_free(&c->texts[i].text);
    mem_free(&c->entries);
    mem_free(&c->inv_freq);
    mem_free(&c->rope_factors);
    mem_free(&c->source);
    mem_free(&c->path);
    mem_free(c_);
}

const char *ckpt_path(const struct ckpt *c)
{
    return c->path;
}

const char *ckpt_source(const struct ckpt *c)
{
    return c->source;
}

uint64_t ckpt_file_bytes(const struct ckpt *c)
{
    return c->seal.file_bytes;
}

const char *ckpt_text(const struct ckpt *c, enum ckpt_text which, size_t *n)
{
    if (n != NULL) *n = c->texts[which].n;
    return c->texts[which].text;
}

const char *ckpt_config_json(const struct ckpt *c, size_t *n)
{
    return ckpt_text(c, CKPT_TEXT_CONFIG, n);
}

const char *ckpt_tokenizer_json(const struct ckpt *c, size_t *n)
{
    return ckpt_text(c, CKPT_TEXT_TOKENIZER, n);
}

const char *ckpt_tokenizer_config_json(const struct ckpt *c, size_t *n)
{
    return ckpt_text(c, CKPT_TEXT_TOKENIZER_CONFIG, n);
}

const char *ckpt_generation_config_json(const struct ckpt *c, size_t *n)
{
    return ckpt_text(c, CKPT_TEXT_GENERATION_CONFIG, n);
}

const char *ckpt_chat_template(const struct ckpt *c, size_t *n)
{
    return ckpt_text(c, CKPT_TEXT_CHAT_TEMPLATE, n);
}

const float *ckpt_rope_inv_freq(const struct ckpt *c, size_t *n)
{
    *n = c->n_inv_freq;
    return c->inv_freq;
}

struct ckpt_rope_factors ckpt_rope_factors(const struct ckpt *c)
{
    if (c->rope_factors == NULL) return (struct ckpt_rope_factors){1, 1};
    return (struct ckpt_rope_factors){c->rope_factors[0], c->rope_factors[1]};
}

size_t ckpt_tensor_count(const struct ckpt *c)
{
    return c->n_tensors;
}

size_t ckpt_stored_count(const struct ckpt *c)
{
    return c->n_entries;
}

const struct ckpt_tensor *ckpt_tensor_at(const struct ckpt *c, size_t i)
{
    return &c->entries[i].tensor;
}

const struct ckpt_tensor *ckpt_find(const struct ckpt *c, const char *name)
{
    size_t low = 0, high = c->n_tensors;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(name, c->entries[middle].name);
        if (order == 0) return &c->entries[middle].tensor;
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

struct ckpt_digest ckpt_digest(const struct ckpt *c)
{
    return (struct ckpt_digest){c->seal.hash_low, c->seal.hash_high};
}

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

void ckpt_tensor_path(const char *root, const char *name, char *out)
{
    const int n = snprintf(out, CKPT_PATH_MAX, "%s/%s", root, name);
    for (int i = (int)strlen(root); i < n && i < CKPT_PATH_MAX; i++) {
        if (out[i] == '.') out[i] = '/';
    }
}

uint64_t ckpt_slab_of_rows(const struct ckpt_tensor *t, uint64_t row, uint64_t n_rows,
                           hsize_t *start, hsize_t *count)
{
    for (uint32_t d = 0; d < t->n_dims; d++) {
        start[d] = 0;
        count[d] = t->dims[d];
    }
    if (t->n_dims == 1) return 1;
    if (t->n_dims == 2) {
        start[0] = row;
        count[0] = n_rows;
        return n_rows;
    }
    const uint64_t out = t->dims[1];
    start[0] = row / out;
    if (row % out == 0 && n_rows >= out) {
        count[0] = n_rows / out;
        return count[0] * out;
    }
    const uint64_t left = out - row % out;
    start[1] = row % out;
    count[0] = 1;
    count[1] = n_rows < left ? n_rows : left;
    return count[1];
}

static struct status bytes_read(const struct ckpt *c, const struct ckpt_tensor *t, uint64_t offset,
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

/* posix_fadvise costs a tenth of the time of reading a cached file, so it is skipped when the last
 * byte is cached already; probing that byte costs next to nothing. */
void ckpt_advise_blocks(const struct ckpt *c, const struct ckpt_tensor *t, uint64_t block,
                        uint64_t n)
{
    char byte;
    const struct iovec to = {.iov_base = &byte, .iov_len = 1};
    const uint64_t begin = block_offset(t, block), last = block + n - 1;
    const uint64_t end = block_offset(t, last) + ckpt_block_bytes(t, last);
    if (preadv2(c->fd, &to, 1, (off_t)(end - 1), RWF_NOWAIT) == 1) return;
    posix_fadvise(c->fd, (off_t)begin, (off_t)(end - begin), POSIX_FADV_WILLNEED);
}

/* A block that is read in pieces, with the checksum so far. */
struct block_sum {
    const struct ckpt *c;
    const struct ckpt_tensor *t;
    uint64_t block;
    XXH3_state_t *state; /* owned: the checksum of the block so far */
};

static struct status sum_begin(struct block_sum *s)
{
    s->state = XXH3_createState();
    if (s->state == NULL) {
        return status_make(STATUS_MEMORY, "tensor %s: a checksum's state", s->t->name);
    }
    XXH3_128bits_reset(s->state);
    return status_ok();
}

/* Compares the block's checksum with the stored one, then starts the next block's. */
static struct status sum_check(struct block_sum *s)
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

/* Adds rows to the checksum. They begin in the current block and may end in a later one. */
static struct status sum_rows(struct block_sum *s, uint64_t row, uint64_t n_rows, const char *rows)
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
    struct block_sum sum = {.c = c, .t = t, .block = block};
    struct status st = status_ok();
    TRY(sum_begin(&sum));
    for (size_t done = 0; done < n_bytes && !status_failed(&st); done += READ_STEP_BYTES) {
        const size_t n = n_bytes - done < READ_STEP_BYTES ? n_bytes - done : READ_STEP_BYTES;
        st = bytes_read(c, t, offset + done, n, (char *)buf + done);
        if (!status_failed(&st)) XXH3_128bits_update(sum.state, (char *)buf + done, n);
    }
    if (!status_failed(&st)) st = sum_check(&sum);
    XXH3_freeState(sum.state);
    return st;
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

struct status ckpt_stream_blocks(const struct ckpt *c, const struct ckpt_tensor *t, uint64_t block,
                                 uint64_t n, void *buf, ckpt_rows_fn *fn, void *ctx)
{
    const size_t row_bytes = (size_t)(t->n_cols * dtype_bytes(t->dtype));
    const uint64_t row0 = block * t->rows_per_block, last = block + n - 1;
    const uint64_t end = last * t->rows_per_block + ckpt_block_rows(t, last);
    struct block_sum sum = {.c = c, .t = t, .block = block};
    struct status st = status_ok();
    TRY(sum_begin(&sum));
    for (uint64_t row = row0, some; row < end && !status_failed(&st); row += some) {
        some = ckpt_rows_at_once(t, row, end);
        st = bytes_read(c, t, t->offset + row * row_bytes, (size_t)some * row_bytes, buf);
        if (!status_failed(&st)) st = sum_rows(&sum, row, some, buf);
        if (!status_failed(&st)) st = fn(ctx, row, some, buf);
    }
    XXH3_freeState(sum.state);
    return st;
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
