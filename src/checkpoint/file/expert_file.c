/* Writes, opens and reads packed copies of experts. */
#include "checkpoint/file/expert_file.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/strbuf.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#ifdef SHOAL_XXHASH_CHOOSES
#include <xxh_x86dispatch.h>
#endif

static const char magic[16] = "shoal experts\n";

struct header {
    char magic[16];
    uint32_t version, n_layers, n_experts, n_parts, cut, zero;
    uint64_t digest_low, digest_high, file_bytes, index_hash;
    uint64_t hash; /* hash of all fields above */
};

/* The header's sector and the index after it, as in the file. */
struct head {
    char *bytes; /* owned, mapped */
    size_t n_bytes;
    uint64_t *expert_bytes; /* [n_layers, n_parts] in `bytes` */
    uint64_t *hashes;       /* [n_layers, n_parts, n_experts] in `bytes` */
    uint64_t *offsets;      /* [n_layers, n_parts] owned */
    uint64_t file_bytes;
};

struct expert_file_writer {
    struct expert_file_shape shape; /* its expert_bytes is the head's */
    struct head head;
    char *path, *temporary; /* owned */
    int fd;
    bool is_done;
};

struct expert_file {
    struct expert_file_shape shape; /* its expert_bytes is the head's */
    struct head head;
    char *path; /* owned */
    int fd;
};

static size_t shape_index_bytes(const struct expert_file_shape *s)
{
    const size_t n_parts = (size_t)s->n_layers * s->n_parts;
    return n_parts * (1 + (size_t)s->n_experts) * sizeof(uint64_t);
}

static struct status head_init(const struct expert_file_shape *s, struct head *h)
{
    const size_t n_parts = (size_t)s->n_layers * s->n_parts, n = shape_index_bytes(s);
    h->n_bytes =
        EXPERT_FILE_ALIGN + (n + EXPERT_FILE_ALIGN - 1) / EXPERT_FILE_ALIGN * EXPERT_FILE_ALIGN;
    TRY(mem_map(&h->bytes, h->n_bytes, "index of the packed experts"));
    TRY(mem_alloc(&h->offsets, n_parts, sizeof *h->offsets, "index of the packed experts"));
    h->expert_bytes = (uint64_t *)(void *)(h->bytes + EXPERT_FILE_ALIGN);
    h->hashes = h->expert_bytes + n_parts;
    memcpy(h->expert_bytes, s->expert_bytes, n_parts * sizeof *h->expert_bytes);
    h->file_bytes = h->n_bytes;
    for (size_t i = 0; i < n_parts; i++) {
        assert(h->expert_bytes[i] % EXPERT_FILE_ALIGN == 0);
        h->offsets[i] = h->file_bytes;
        h->file_bytes += h->expert_bytes[i] * s->n_experts;
    }
    return status_ok();
}

static void head_fini(struct head *h)
{
    if (h->bytes != NULL) mem_unmap(&h->bytes, h->n_bytes);
    mem_free(&h->offsets);
}

static struct header header_of(const struct expert_file_shape *s, const struct head *h)
{
    struct header out = {.version = EXPERT_FILE_VERSION,
                         .n_layers = s->n_layers,
                         .n_experts = s->n_experts,
                         .n_parts = s->n_parts,
                         .cut = s->cut,
                         .digest_low = s->digest.low,
                         .digest_high = s->digest.high,
                         .file_bytes = h->file_bytes,
                         .index_hash = XXH3_64bits(h->expert_bytes, shape_index_bytes(s))};
    memcpy(out.magic, magic, sizeof magic);
    out.hash = XXH3_64bits(&out, offsetof(struct header, hash));
    return out;
}

/* --- writing ------------------------------------------------------------------------------ */

/* Opens and locks the temporary file. While this process waits for the lock, another one may rename
 * or remove the file; then the name is opened again. */
static struct status open_temporary(struct expert_file_writer *w)
{
    struct stat mine, named;
    do {
        if (w->fd >= 0) close(w->fd);
        w->fd = open(w->temporary, O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0644);
        if (w->fd < 0 && errno == EINVAL) /* no direct writes on this file system */
            w->fd = open(w->temporary, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (w->fd < 0) {
            return status_make(STATUS_IO, "%s: %s; give another --expert-file", w->temporary,
                               strerror(errno));
        }
        (void)flock(w->fd, LOCK_EX); /* if locks do not work, two writers write the same bytes */
        if (fstat(w->fd, &mine) != 0)
            return status_make(STATUS_IO, "%s: %s", w->temporary, strerror(errno));
    } while (stat(w->temporary, &named) != 0 || named.st_ino != mine.st_ino);
    if (ftruncate(w->fd, 0) != 0 || ftruncate(w->fd, (off_t)w->head.file_bytes) != 0)
        return status_make(STATUS_IO, "%s: %s", w->temporary, strerror(errno));
    return status_ok();
}

struct status expert_file_create(const char *path, const struct expert_file_shape *shape,
                                 struct expert_file_writer **out)
{
    struct expert_file_writer *w = NULL;
    struct strbuf name;
    struct status st;
    *out = NULL;
    TRY(mem_alloc(&w, 1, sizeof *w, "packed experts"));
    w->fd = -1;
    w->shape = *shape;
    strbuf_init(&name);
    TRY_GOTO(st, file_target_regular(path, &w->path), fail);
    strbuf_printf(&name, "%s.tmp", w->path);
    w->temporary = name.data;
    TRY_GOTO(st, strbuf_status(&name), fail);
    TRY_GOTO(st, head_init(shape, &w->head), fail);
    w->shape.expert_bytes = w->head.expert_bytes;
    TRY_GOTO(st, open_temporary(w), fail);
    *out = w;
    return st;
fail:
    expert_file_writer_destroy(&w);
    return st;
}

static struct status write_expert_at(const struct expert_file_writer *w, const char *bytes,
                                     size_t n, uint64_t offset)
{
    for (size_t at = 0; at < n;) {
        const ssize_t got = pwrite(w->fd, bytes + at, n - at, (off_t)(offset + at));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            return status_make(STATUS_IO, "%s: cannot be written: %s", w->temporary,
                               got < 0 ? strerror(errno) : "no space");
        }
        at += (size_t)got;
    }
    return status_ok();
}

struct status expert_file_write(struct expert_file_writer *w, uint32_t layer, uint32_t part,
                                uint32_t expert, uint32_t n, const void *bytes)
{
    const size_t i = (size_t)layer * w->shape.n_parts + part;
    const uint64_t one = w->head.expert_bytes[i];
    assert(layer < w->shape.n_layers && part < w->shape.n_parts);
    assert(expert + n <= w->shape.n_experts && one > 0);
    for (uint32_t e = 0; e < n; e++) {
        w->head.hashes[i * w->shape.n_experts + expert + e] =
            XXH3_64bits((const char *)bytes + e * one, one);
    }
    return write_expert_at(w, bytes, n * one, w->head.offsets[i] + expert * one);
}

struct status expert_file_finish(struct expert_file_writer *w)
{
    const struct header header = header_of(&w->shape, &w->head);
    memcpy(w->head.bytes, &header, sizeof header);
    TRY(write_expert_at(w, w->head.bytes, w->head.n_bytes, 0));
    TRY(file_commit(w->temporary, w->path));
    w->is_done = true;
    return status_ok();
}

void expert_file_writer_destroy(struct expert_file_writer **w_)
{
    struct expert_file_writer *w = *w_;
    if (w == NULL) return;
    if (w->fd >= 0 && !w->is_done) unlink(w->temporary);
    if (w->fd >= 0) close(w->fd);
    head_fini(&w->head);
    mem_free(&w->temporary);
    mem_free(&w->path);
    mem_free(w_);
}

/* --- reading ------------------------------------------------------------------------------ */

/* Reads n bytes at offset, or returns an error that says why not. */
static struct status read_at(const struct expert_file *f, char *bytes, size_t n, uint64_t offset)
{
    for (size_t at = 0; at < n;) {
        const ssize_t got = pread(f->fd, bytes + at, n - at, (off_t)(offset + at));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            return status_make(STATUS_IO, "%s: reading at byte %" PRIu64 ": %s", f->path,
                               offset + at, strerror(errno));
        }
        if (got == 0) {
            return status_make(STATUS_INPUT,
                               "%s: expected %" PRIu64 " bytes, it ends at byte %" PRIu64
                               ": the packed copy was cut; delete it, and it is made again",
                               f->path, f->head.file_bytes, offset + at);
        }
        at += (size_t)got;
    }
    return status_ok();
}

static struct status damaged(const struct expert_file *f, const char *what)
{
    return status_make(STATUS_INPUT,
                       "%s: the packed copy's %s does not match its checksum; delete the file, and "
                       "it is made again",
                       f->path, what);
}

static struct status check_header(const struct expert_file *f, const struct header *h)
{
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return status_make(STATUS_INPUT,
                           "%s: expected a packed copy of experts, found another "
                           "file, which is left alone",
                           f->path);
    if (h->hash != XXH3_64bits(h, offsetof(struct header, hash))) return damaged(f, "header");
    if (h->version != EXPERT_FILE_VERSION) {
        return status_make(STATUS_INPUT,
                           "%s: packed in layout %u, this program reads %d; delete it, and it is "
                           "made again",
                           f->path, h->version, EXPERT_FILE_VERSION);
    }
    const struct expert_file_shape *s = &f->shape;
    if (h->digest_low != s->digest.low || h->digest_high != s->digest.high) {
        return status_make(STATUS_INPUT,
                           "%s: is a packed copy of another checkpoint: its digest begins with "
                           "%016" PRIx64 ", expected %016" PRIx64
                           "; delete it, or give another --expert-file",
                           f->path, h->digest_high, s->digest.high);
    }
    if (h->n_layers != s->n_layers || h->n_experts != s->n_experts || h->n_parts != s->n_parts ||
        h->cut != s->cut || h->file_bytes != f->head.file_bytes) {
        return status_make(STATUS_INPUT,
                           "%s: holds experts in %u parts each, expected %u, cut another way; "
                           "delete it, or give another --expert-file",
                           f->path, h->n_parts, s->n_parts);
    }
    return status_ok();
}

/* Compares the header and the index with the expected shape. */
static struct status check_head(struct expert_file *f)
{
    struct header h;
    struct stat info;
    const size_t n_lengths = (size_t)f->shape.n_layers * f->shape.n_parts * sizeof(uint64_t);
    TRY(read_at(f, (char *)&h, sizeof h, 0));
    TRY(check_header(f, &h));
    if (fstat(f->fd, &info) != 0) return status_make(STATUS_IO, "%s: %s", f->path, strerror(errno));
    if ((uint64_t)info.st_size != h.file_bytes) {
        return status_make(STATUS_INPUT,
                           "%s: expected %" PRIu64 " bytes, found %" PRIu64
                           ": the packed copy was cut; delete it, and it is made again",
                           f->path, h.file_bytes, (uint64_t)info.st_size);
    }
    char *lengths = NULL;
    TRY(mem_alloc(&lengths, n_lengths, 1, "index of the packed experts"));
    memcpy(lengths, f->head.expert_bytes, n_lengths);
    struct status st = read_at(f, f->head.bytes + EXPERT_FILE_ALIGN, shape_index_bytes(&f->shape),
                               EXPERT_FILE_ALIGN);
    const bool same = memcmp(lengths, f->head.expert_bytes, n_lengths) == 0;
    mem_free(&lengths);
    if (!status_failed(&st) &&
        (!same || h.index_hash != XXH3_64bits(f->head.expert_bytes, shape_index_bytes(&f->shape))))
        st = damaged(f, "index");
    return st;
}

struct status expert_file_open(const char *path, const struct expert_file_shape *shape,
                               struct expert_file **out)
{
    struct expert_file *f = NULL;
    struct status st;
    *out = NULL;
    /* O_NONBLOCK: opening a FIFO must not hang; reading it then fails */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) return status_ok();
    if (fd < 0) return status_make(STATUS_IO, "%s: %s", path, strerror(errno));
    st = mem_alloc(&f, 1, sizeof *f, "packed experts");
    if (status_failed(&st)) {
        close(fd);
        return st;
    }
    f->fd = fd;
    f->shape = *shape;
    TRY_GOTO(st, mem_strndup(&f->path, path, strlen(path)), fail);
    TRY_GOTO(st, head_init(shape, &f->head), fail);
    f->shape.expert_bytes = f->head.expert_bytes;
    TRY_GOTO(st, check_head(f), fail);
    *out = f;
    return st;
fail:
    expert_file_close(&f);
    return st;
}

void expert_file_close(struct expert_file **f_)
{
    struct expert_file *f = *f_;
    if (f == NULL) return;
    close(f->fd);
    head_fini(&f->head);
    mem_free(&f->path);
    mem_free(f_);
}

int expert_file_descriptor(const struct expert_file *f)
{
    return f->fd;
}

const char *expert_file_path(const struct expert_file *f)
{
    return f->path;
}

struct expert_file_place expert_file_find(const struct expert_file *f, uint32_t layer,
                                          uint32_t part, uint32_t expert)
{
    const size_t i = (size_t)layer * f->shape.n_parts + part;
    const uint64_t one = f->head.expert_bytes[i];
    assert(layer < f->shape.n_layers && part < f->shape.n_parts && expert < f->shape.n_experts);
    return (struct expert_file_place){.offset = f->head.offsets[i] + expert * one,
                                      .n_bytes = one,
                                      .hash = f->head.hashes[i * f->shape.n_experts + expert]};
}

bool expert_file_matches(const struct expert_file_place *place, const void *bytes)
{
    return XXH3_64bits(bytes, place->n_bytes) == place->hash;
}

struct status expert_file_read(const struct expert_file *f, const struct expert_file_place *place,
                               void *bytes)
{
    TRY(read_at(f, bytes, place->n_bytes, place->offset));
    (void)posix_fadvise(f->fd, (off_t)place->offset, (off_t)place->n_bytes, POSIX_FADV_DONTNEED);
    if (expert_file_matches(place, bytes)) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: the expert at byte %" PRIu64 " does not match its checksum; delete the "
                       "file, and it is made again",
                       f->path, place->offset);
}
