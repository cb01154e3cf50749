/* Keeps the window of open rows, and writes them in order. */
#include "serve/output/result_writer.h"

#include "base/mem.h"
#include "base/strbuf.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FLUSH_BYTES = 64 << 10, COMPARE_BYTES = 16 << 10 };

/* An open row; text is set if it is done and waits for earlier ones. */
struct slot {
    char *text; /* owned */
    struct result_row row;
    size_t cost_bytes;
};

/* Rows [n_written, n_opened) are open; row i is in slots[i % n_slots]. */
struct result_writer {
    int fd;
    char *path;
    struct slot *slots;
    size_t n_slots, window_bytes, open_bytes;
    size_t n_waiting; /* slots that have a text */
    uint64_t n_opened, n_written;
    struct strbuf buffer;
    uint64_t offset; /* bytes written */
    bool holds;      /* rows wait for result_writer_flush */
    bool compares;   /* the file has more bytes after `offset`, perhaps the same ones */
    bool differed;   /* the file had other bytes than the rows */
    struct failpoint *failpoint;
    struct result_totals totals;
};

/* Locks the file until it is closed. Claims (base/file_claims.h) already refuse a file that another
 * job writes, and name that job. The lock also works where claims cannot: if the other job uses
 * another hard link, or if no lease could be made. */
static struct status result_writer_lock(const struct result_writer *w)
{
    struct stat info;
    if (fstat(w->fd, &info) != 0 || !S_ISREG(info.st_mode)) return status_ok();
    if (flock(w->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return status_ok();
    return status_make(STATUS_USAGE,
                       "output %s: another process has it locked: is another job writing it?",
                       w->path);
}

static struct status create(const char *path, int flags, size_t window_rows, size_t window_bytes,
                            struct result_writer **out)
{
    *out = NULL;
    struct result_writer *w = NULL;
    TRY(mem_alloc(&w, 1, sizeof *w, "result writer"));
    struct status st;
    w->fd = -1;
    w->n_slots = window_rows;
    w->window_bytes = window_bytes;
    strbuf_init(&w->buffer);
    TRY_GOTO(st, mem_alloc(&w->slots, window_rows, sizeof *w->slots, "result window"), fail);
    TRY_GOTO(st, mem_strndup(&w->path, path, strlen(path)), fail);
    if (strcmp(path, "-") == 0) {
        w->fd = dup(STDOUT_FILENO);
    } else {
        w->fd = open(path, flags | O_CREAT | O_CLOEXEC, 0666);
    }
    if (w->fd < 0) {
        st = status_make(STATUS_IO, "output %s: cannot be opened: %s", path, strerror(errno));
        goto fail;
    }
    if (strcmp(path, "-") != 0) TRY_GOTO(st, result_writer_lock(w), fail);
    *out = w;
    return st;
fail:
    result_writer_destroy(&w);
    return st;
}

struct status result_writer_create(const char *path, size_t window_rows, size_t window_bytes,
                                   struct result_writer **out)
{
    TRY(create(path, O_WRONLY, window_rows, window_bytes, out));
    if (strcmp(path, "-") == 0 || ftruncate((*out)->fd, 0) == 0 || errno == EINVAL) {
        return status_ok(); /* EINVAL: a pipe or a device, which cannot be emptied */
    }
    const struct status st =
        status_make(STATUS_IO, "output %s: cannot be emptied: %s", path, strerror(errno));
    result_writer_destroy(out);
    return st;
}

struct status result_writer_resume(const char *path, size_t window_rows, size_t window_bytes,
                                   struct failpoint *failpoint, struct result_writer **out)
{
    TRY(create(path, O_RDWR, window_rows, window_bytes, out));
    (*out)->compares = true;
    (*out)->failpoint = failpoint;
    return status_ok();
}

void result_writer_destroy(struct result_writer **writer)
{
    struct result_writer *w = *writer;
    if (w == NULL) return;
    for (size_t i = 0; w->slots != NULL && i < w->n_slots; i++) mem_free(&w->slots[i].text);
    mem_free(&w->slots);
    mem_free(&w->path);
    strbuf_fini(&w->buffer);
    if (w->fd >= 0) close(w->fd);
    mem_free(writer);
}

bool result_writer_has_room(const struct result_writer *w)
{
    const uint64_t n_open = w->n_opened - w->n_written;
    return n_open == 0 || (n_open < w->n_slots && w->open_bytes < w->window_bytes);
}

void result_writer_open(struct result_writer *w, size_t cost_bytes, uint64_t *index)
{
    assert(w->n_opened - w->n_written < w->n_slots);
    *index = w->n_opened++;
    w->slots[*index % w->n_slots] = (struct slot){.cost_bytes = cost_bytes};
    w->open_bytes += cost_bytes;
}

static struct status io_error(const struct result_writer *w, const char *what, int error)
{
    return status_make(STATUS_IO, "output %s: %s at byte %llu failed: %s", w->path, what,
                       (unsigned long long)w->offset, strerror(error));
}

/* Ends the comparison and truncates the file at `offset`. */
static struct status result_writer_cut(struct result_writer *w)
{
    const off_t end = lseek(w->fd, 0, SEEK_END);
    if (end < 0) return io_error(w, "seeking", errno);
    w->compares = false;
    if ((uint64_t)end > w->offset) {
        w->differed = true;
        if (ftruncate(w->fd, (off_t)w->offset) != 0) return io_error(w, "cutting", errno);
    }
    if (lseek(w->fd, (off_t)w->offset, SEEK_SET) < 0) return io_error(w, "seeking", errno);
    return status_ok();
}

/* Skips those of the bytes that the file already has at `offset`; *n_same is their number. */
static struct status result_writer_compare(struct result_writer *w, const char *bytes, size_t n,
                                           size_t *n_same)
{
    char found[COMPARE_BYTES];
    *n_same = 0;
    while (w->compares && *n_same < n) {
        const size_t most = n - *n_same < sizeof found ? n - *n_same : sizeof found;
        const ssize_t got = pread(w->fd, found, most, (off_t)w->offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return io_error(w, "reading", errno);
        size_t k = 0;
        while (k < (size_t)got && found[k] == bytes[*n_same + k]) k++;
        *n_same += k;
        w->offset += k;
        if (k < most) {
            w->differed = true;
            TRY(result_writer_cut(w));
        }
    }
    return status_ok();
}

/* If the failpoint is due, writes half of the bytes and then fails or kills the process. */
static struct status strike(struct result_writer *w, const char *bytes, size_t n)
{
    if (!failpoint_due(w->failpoint, FAILPOINT_OUTPUT_WRITE)) return status_ok();
    const ssize_t wrote = write(w->fd, bytes, n / 2);
    if (wrote > 0) w->offset += (uint64_t)wrote;
    return io_error(w, "writing", failpoint_strike(w->failpoint));
}

struct status result_writer_flush(struct result_writer *w)
{
    size_t done = 0;
    TRY(result_writer_compare(w, w->buffer.data, w->buffer.n, &done));
    if (done < w->buffer.n) TRY(strike(w, w->buffer.data + done, w->buffer.n - done));
    while (done < w->buffer.n) {
        const ssize_t n = write(w->fd, w->buffer.data + done, w->buffer.n - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EPIPE) {
            return status_make(STATUS_DRAINED,
                               "output %s: its reader has gone, behind byte %llu; ended there",
                               w->path, (unsigned long long)w->offset);
        }
        if (n <= 0) {
            return status_make(STATUS_IO, "output %s: writing %zu bytes at byte %llu failed: %s",
                               w->path, w->buffer.n - done, (unsigned long long)w->offset,
                               n < 0 ? strerror(errno) : "nothing was taken");
        }
        done += (size_t)n;
        w->offset += (uint64_t)n;
    }
    strbuf_clear(&w->buffer);
    return status_ok();
}

struct status result_writer_settle(struct result_writer *w, uint64_t *n_bytes, bool *was_equal)
{
    TRY(result_writer_flush(w));
    if (w->compares) TRY(result_writer_cut(w));
    w->holds = true;
    *n_bytes = w->offset;
    *was_equal = !w->differed;
    return status_ok();
}

/* Appends the next row in order to the buffer. */
static struct status write_row(struct result_writer *w, const struct result_row *row)
{
    strbuf_add(&w->buffer, row->text, row->n);
    TRY(strbuf_status(&w->buffer));
    w->n_written++;
    w->totals.n_rows++;
    w->totals.n_error_rows += row->is_error;
    w->totals.sum_logprob += row->sum_logprob;
    w->totals.n_scored += row->n_scored;
    return w->buffer.n >= FLUSH_BYTES && !w->holds ? result_writer_flush(w) : status_ok();
}

struct status result_writer_put(struct result_writer *w, uint64_t index,
                                const struct result_row *row)
{
    assert(index >= w->n_written && index < w->n_opened);
    struct slot *slot = &w->slots[index % w->n_slots];
    assert(slot->text == NULL);
    w->open_bytes -= slot->cost_bytes;
    if (index > w->n_written) {
        slot->row = *row;
        slot->cost_bytes = row->n;
        w->open_bytes += row->n;
        TRY(mem_strndup(&slot->text, row->text, row->n));
        slot->row.text = slot->text;
        w->n_waiting++;
        return status_ok();
    }
    TRY(write_row(w, row));
    while (w->n_written < w->n_opened) {
        slot = &w->slots[w->n_written % w->n_slots];
        if (slot->text == NULL) break;
        w->open_bytes -= slot->cost_bytes;
        TRY(write_row(w, &slot->row));
        mem_free(&slot->text);
        w->n_waiting--;
    }
    return status_ok();
}

struct status result_writer_close(struct result_writer *w)
{
    TRY(result_writer_flush(w));
    if (w->fd < 0) return status_ok();
    /* Pipes and terminals cannot be synced, and need not be. */
    int sync_error = failpoint_pass(w->failpoint, FAILPOINT_OUTPUT_FSYNC);
    if (sync_error == 0 && fsync(w->fd) != 0) sync_error = errno;
    const bool synced =
        sync_error == 0 || sync_error == EINVAL || sync_error == EROFS || sync_error == ENOTSUP;
    const bool closed = close(w->fd) == 0;
    const int close_error = errno;
    w->fd = -1;
    if (synced && closed) return status_ok();
    return status_make(STATUS_IO, "output %s: %s failed: %s", w->path, synced ? "close" : "fsync",
                       strerror(synced ? close_error : sync_error));
}

uint64_t result_writer_offset(const struct result_writer *w)
{
    return w->offset;
}

size_t result_writer_n_open(const struct result_writer *w)
{
    return (size_t)(w->n_opened - w->n_written);
}

size_t result_writer_n_waiting(const struct result_writer *w)
{
    return w->n_waiting;
}

struct result_totals result_writer_totals(const struct result_writer *w)
{
    return w->totals;
}
