/* Reads with read(2). Decompresses if the first bytes are those of a compressed format. */
#include "serve/input/byte_source.h"

#include "base/mem.h"
#include "serve/input/dataset_lines.h"
#include "serve/input/decoder.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RAW_BYTES = 64 << 10, SKIP_BYTES = 256 << 10, WAIT_MS = 200 };

/* Bytes [begin, end) of `raw` have been read from the file and not yet used. */
struct byte_source {
    int fd;
    bool owns_fd, is_regular, at_end, is_known; /* is_known: the format has been found */
    char *path;
    uint8_t *raw;
    size_t begin, end;
    uint64_t n_read, size; /* bytes of the file: read so far; in all */
    dev_t device;
    ino_t inode;
    struct decoder *decoder;
    struct dataset_lines *dataset; /* NULL: the bytes are those of the file */
};

/* Opens a file without waiting for the writer of a named pipe: until a writer comes, the job must
 * heed signals. Reads then wait as usual (read_file polls first). Other files are opened as usual,
 * because file servers may let an open wait. */
static int open_at_once(const char *path)
{
    struct stat info;
    const bool is_pipe = stat(path, &info) == 0 && S_ISFIFO(info.st_mode);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | (is_pipe ? O_NONBLOCK : 0));
    if (fd >= 0) (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    return fd;
}

/* Opens the file that `path` names, or the file of the dataset that it names. */
static int open_path(const char *path, bool *is_dataset)
{
    size_t n_file;
    char *file = NULL;
    *is_dataset = dataset_lines_split(path, &n_file);
    if (!*is_dataset) return open_at_once(path);
    const struct status st = mem_strndup(&file, path, n_file);
    const int fd = status_failed(&st) ? -1 : open_at_once(file);
    mem_free(&file);
    return fd;
}

struct status byte_source_open(const char *path, struct byte_source **out)
{
    *out = NULL;
    struct byte_source *s = NULL;
    struct stat info;
    bool is_dataset = false;
    TRY(mem_alloc(&s, 1, sizeof *s, "input"));
    struct status st = status_ok();
    s->owns_fd = strcmp(path, "-") != 0;
    s->fd = s->owns_fd ? open_path(path, &is_dataset) : STDIN_FILENO;
    if (s->fd < 0 || fstat(s->fd, &info) != 0) {
        st = status_make(STATUS_INPUT, "input %s: cannot be opened: %s", path, strerror(errno));
        goto fail;
    }
    if (S_ISDIR(info.st_mode)) {
        st = status_make(STATUS_INPUT, "input %s: expected a file of JSON lines, found a folder",
                         path);
        goto fail;
    }
    s->is_regular = S_ISREG(info.st_mode);
    s->size = s->is_regular ? (uint64_t)info.st_size : 0;
    s->device = info.st_dev;
    s->inode = info.st_ino;
    TRY_GOTO(st, mem_strndup(&s->path, path, strlen(path)), fail);
    TRY_GOTO(st, mem_alloc(&s->raw, RAW_BYTES, 1, "input"), fail);
    if (is_dataset) TRY_GOTO(st, dataset_lines_open(path, &s->dataset), fail);
    s->is_known = is_dataset;
    *out = s;
    return st;
fail:
    byte_source_close(&s);
    return st;
}

void byte_source_close(struct byte_source **source)
{
    struct byte_source *s = *source;
    if (s == NULL) return;
    if (s->owns_fd && s->fd >= 0) close(s->fd);
    decoder_destroy(&s->decoder);
    dataset_lines_close(&s->dataset);
    mem_free(&s->raw);
    mem_free(&s->path);
    mem_free(source);
}

/* True when a regular file ends before the size that it had when it was opened. Never true for
 * stdin, whose offset is not known. */
static bool has_shrunk(const struct byte_source *s)
{
    return s->is_regular && s->owns_fd && s->n_read < s->size;
}

/* Reads some bytes of the file as they are. */
static struct status read_file(struct byte_source *s, bool may_block, void *to, size_t n_most,
                               struct source_read *out)
{
    struct pollfd p = {.fd = s->fd, .events = POLLIN};
    *out = (struct source_read){SOURCE_WAIT, 0};
    if (poll(&p, 1, may_block ? WAIT_MS : 0) == 0) return status_ok();
    ssize_t n;
    do {
        n = read(s->fd, to, n_most);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        return status_make(STATUS_IO, "input %s: reading at byte %llu failed: %s", s->path,
                           (unsigned long long)s->n_read, strerror(errno));
    }
    s->n_read += (uint64_t)n;
    s->at_end = n == 0;
    if (n == 0 && has_shrunk(s)) {
        return status_make(STATUS_INPUT,
                           "input %s: it was cut to %llu of its %llu bytes while it was read",
                           s->path, (unsigned long long)s->n_read, (unsigned long long)s->size);
    }
    *out = (struct source_read){n == 0 ? SOURCE_END : SOURCE_BYTES, (size_t)n};
    return status_ok();
}

/* Moves the unused bytes to the start of `raw`, and reads more after them. */
static struct status fill_raw(struct byte_source *s, bool may_block, struct source_read *out)
{
    memmove(s->raw, s->raw + s->begin, s->end - s->begin);
    s->end -= s->begin;
    s->begin = 0;
    TRY(read_file(s, may_block, s->raw + s->end, RAW_BYTES - s->end, out));
    s->end += out->n;
    return status_ok();
}

/* Reads until the first bytes show whether a decoder is needed. out->kind is SOURCE_WAIT if these
 * bytes cannot be read yet. */
static struct status find_format(struct byte_source *s, bool may_block, struct source_read *out)
{
    *out = (struct source_read){SOURCE_BYTES, 0};
    if (s->is_known) return status_ok();
    while (s->end - s->begin < DECODER_MAGIC_MAX && !s->at_end) {
        TRY(fill_raw(s, may_block, out));
        if (out->kind == SOURCE_WAIT) return status_ok();
    }
    TRY(decoder_create(s->raw + s->begin, s->end - s->begin, &s->decoder));
    s->is_known = true;
    return status_ok();
}

static struct status read_plain(struct byte_source *s, bool may_block, void *to, size_t n_most,
                                struct source_read *out)
{
    const size_t has = s->end - s->begin, n = has < n_most ? has : n_most;
    if (n == 0) return read_file(s, may_block, to, n_most, out);
    memcpy(to, s->raw + s->begin, n);
    s->begin += n;
    *out = (struct source_read){SOURCE_BYTES, n};
    return status_ok();
}

static struct status end_decoded(const struct byte_source *s, struct source_read *out)
{
    *out = (struct source_read){SOURCE_END, 0};
    if (decoder_is_whole(s->decoder)) return status_ok();
    return status_make(STATUS_INPUT,
                       "input %s: ends at byte %llu inside its %s data; the file is not whole",
                       s->path, (unsigned long long)s->n_read, decoder_name(s->decoder));
}

static struct status read_decoded(struct byte_source *s, bool may_block, void *to, size_t n_most,
                                  struct source_read *out)
{
    for (;;) {
        struct decoder_io io = {s->raw + s->begin, s->end - s->begin, to, n_most, s->at_end};
        const struct status st = decoder_run(s->decoder, &io);
        s->begin = s->end - io.n_in;
        if (status_failed(&st)) {
            return status_wrap(st, "input %s: at byte %llu", s->path,
                               (unsigned long long)byte_source_file_done(s));
        }
        *out = (struct source_read){SOURCE_BYTES, n_most - io.n_out};
        if (out->n > 0) return status_ok();
        if (s->at_end) return end_decoded(s, out);
        TRY(fill_raw(s, may_block, out));
        if (out->kind == SOURCE_WAIT) return status_ok();
    }
}

struct status byte_source_read(struct byte_source *s, bool may_block, void *to, size_t n_most,
                               struct source_read *out)
{
    if (!s->is_known) {
        TRY(find_format(s, may_block, out));
        if (out->kind == SOURCE_WAIT) return status_ok();
    }
    if (s->dataset != NULL) {
        TRY(dataset_lines_read(s->dataset, to, n_most, &out->n));
        out->kind = out->n > 0 ? SOURCE_BYTES : SOURCE_END;
        return status_ok();
    }
    return s->decoder != NULL ? read_decoded(s, may_block, to, n_most, out)
                              : read_plain(s, may_block, to, n_most, out);
}

/* Reads and drops n decompressed bytes, or all until the end; adds their number to *n_done. */
static struct status skip_bytes(struct byte_source *s, uint64_t n, uint64_t *n_done)
{
    char *scratch = NULL;
    TRY(mem_alloc(&scratch, SKIP_BYTES, 1, "input"));
    struct status st = status_ok();
    struct source_read got = {SOURCE_BYTES, 0};
    for (uint64_t left = n; left > 0 && got.kind != SOURCE_END; left -= got.n) {
        const size_t most = left < SKIP_BYTES ? (size_t)left : SKIP_BYTES;
        TRY_GOTO(st, byte_source_read(s, true, scratch, most, &got), done);
        *n_done += got.n;
    }
done:
    mem_free(&scratch);
    return st;
}

struct status byte_source_go_to(struct byte_source *s, uint64_t at)
{
    struct source_read found;
    uint64_t n_done = 0;
    TRY(find_format(s, true, &found));
    if (byte_source_is_compressed(s)) return skip_bytes(s, at, &n_done);
    s->begin = s->end = 0;
    s->at_end = false;
    s->n_read = at;
    if (lseek(s->fd, (off_t)at, SEEK_SET) >= 0) return status_ok();
    return status_make(STATUS_IO, "input %s: going to byte %llu failed: %s", s->path,
                       (unsigned long long)at, strerror(errno));
}

struct status byte_source_length(const char *path, uint64_t *out)
{
    struct byte_source *s = NULL;
    struct source_read found;
    TRY(byte_source_open(path, &s));
    struct status st = status_ok();
    *out = s->size;
    if (s->is_regular) TRY_GOTO(st, find_format(s, true, &found), done);
    if (!byte_source_is_compressed(s)) goto done;
    *out = 0;
    st = skip_bytes(s, UINT64_MAX, out);
done:
    byte_source_close(&s);
    return st;
}

bool byte_source_is_regular(const struct byte_source *s)
{
    return s->is_regular;
}

uint64_t byte_source_file_size(const struct byte_source *s)
{
    return s->size;
}

uint64_t byte_source_file_done(const struct byte_source *s)
{
    if (s->dataset != NULL) return (uint64_t)(dataset_lines_done(s->dataset) * (double)s->size);
    return s->n_read - (s->end - s->begin);
}

bool byte_source_is_compressed(const struct byte_source *s)
{
    return s->decoder != NULL || s->dataset != NULL;
}

bool byte_source_is_file(const struct byte_source *s, const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_dev == s->device &&
           info.st_ino == s->inode;
}

size_t byte_source_head(const struct byte_source *s, void *to, size_t n)
{
    const ssize_t got = s->is_regular && s->dataset == NULL ? pread(s->fd, to, n, 0) : 0;
    return got > 0 ? (size_t)got : 0;
}
