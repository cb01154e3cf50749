/* Keeps the window of open rows, and writes them in order.
 *
 *   a compressed file   [frame][frame][frame][short frame]
 *                                            ^ offset     ^ end */
#include "serve/output/result_writer.h"

#include "base/clock.h"
#include "base/mem.h"
#include "serve/output/row_frames.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FLUSH_BYTES = 64 << 10, COMPARE_BYTES = 16 << 10 };
static const uint64_t show_ns = 10000000000u;

/* The rows after the last whole frame, as a short frame that begins at `offset`. The next frame
 * overwrites it. */
struct short_frame {
    bool is_written;
    size_t n_rows_bytes; /* bytes of its rows */
    uint64_t end;        /* where the short frame ends in the file; at most `offset`: the file
                            has none */
    uint64_t written_ns;
    struct strbuf bytes; /* scratch */
};

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
    struct row_frames frames;
    struct short_frame last;
    struct strbuf buffer; /* bytes to be written: rows, or whole frames */
    uint64_t offset;      /* bytes written */
    bool is_regular;
    bool holds;    /* rows wait for result_writer_flush */
    bool compares; /* the file may have bytes after `offset`, perhaps those of the rows */
    bool differed; /* the file had other bytes than the rows */
    struct failpoint *failpoint;
    struct result_totals totals;
};

/* Locks the file until it is closed. Claims (base/file_claims.h) already refuse a file that another
 * job writes, and name that job. The lock also helps where claims cannot: when the other job uses
 * another hard link, or when no lease could be made. */
static struct status result_writer_lock(const struct result_writer *w)
{
    if (!w->is_regular) return status_ok();
    if (flock(w->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return status_ok();
    return status_make(STATUS_USAGE,
                       "output %s: another process has it locked: is another job writing it?",
                       w->path);
}

static struct status open_file(struct result_writer *w, int flags)
{
    struct stat info;
    const bool is_stdout = strcmp(w->path, "-") == 0;
    w->fd = is_stdout ? dup(STDOUT_FILENO) : open(w->path, flags | O_CREAT | O_CLOEXEC, 0666);
    if (w->fd < 0) {
        return status_make(STATUS_IO, "output %s: cannot be opened: %s", w->path, strerror(errno));
    }
    w->is_regular = !is_stdout && fstat(w->fd, &info) == 0 && S_ISREG(info.st_mode);
    return result_writer_lock(w);
}

static struct status create(const struct result_writer_options *o, int flags,
                            struct result_writer **out)
{
    *out = NULL;
    struct result_writer *w = NULL;
    TRY(mem_alloc(&w, 1, sizeof *w, "result writer"));
    struct status st;
    w->fd = -1;
    w->n_slots = o->window_rows;
    w->window_bytes = o->window_bytes;
    w->failpoint = o->failpoint;
    strbuf_init(&w->buffer);
    strbuf_init(&w->last.bytes);
    row_frames_init(&w->frames, encoder_format_of(o->path), o->frame_bytes);
    TRY_GOTO(st, mem_alloc(&w->slots, w->n_slots, sizeof *w->slots, "result window"), fail);
    TRY_GOTO(st, mem_strndup(&w->path, o->path, strlen(o->path)), fail);
    TRY_GOTO(st, open_file(w, flags), fail);
    *out = w;
    return st;
fail:
    result_writer_destroy(&w);
    return st;
}

struct status result_writer_create(const struct result_writer_options *options,
                                   struct result_writer **out)
{
    const char *path = options->path;
    TRY(create(options, O_WRONLY, out));
    if (strcmp(path, "-") == 0 || ftruncate((*out)->fd, 0) == 0 || errno == EINVAL) {
        return status_ok(); /* EINVAL: a pipe or a device, which cannot be emptied */
    }
    const struct status st =
        status_make(STATUS_IO, "output %s: cannot be emptied: %s", path, strerror(errno));
    result_writer_destroy(out);
    return st;
}

struct status result_writer_resume(const struct result_writer_options *options,
                                   struct result_writer **out)
{
    TRY(create(options, O_RDWR, out));
    (*out)->compares = true;
    return status_ok();
}

void result_writer_destroy(struct result_writer **writer)
{
    struct result_writer *w = *writer;
    if (w == NULL) return;
    for (size_t i = 0; w->slots != NULL && i < w->n_slots; i++) mem_free(&w->slots[i].text);
    mem_free(&w->slots);
    mem_free(&w->path);
    row_frames_fini(&w->frames);
    strbuf_fini(&w->last.bytes);
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

/* Skips the bytes that the file already has at `offset`; *n_same is their number. Of compressed
 * bytes, which must be one frame, skips all or none. Ends the comparison at the first difference.
 */
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
        if (k == most) continue;
        w->differed = true;
        if (w->frames.format != ENCODER_PLAIN) {
            w->offset -= *n_same;
            *n_same = 0;
        }
        TRY(result_writer_cut(w));
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

/* Waits until the output takes bytes. stdout may be non-blocking: that flag belongs to the open
 * pipe, which other processes share. */
static void await_reader(const struct result_writer *w)
{
    struct pollfd p = {.fd = w->fd, .events = POLLOUT};
    (void)poll(&p, 1, -1);
}

/* Writes n bytes at `offset`. */
static struct status write_bytes(struct result_writer *w, const char *bytes, size_t n)
{
    if (n > 0) TRY(strike(w, bytes, n));
    for (size_t done = 0; done < n;) {
        const ssize_t wrote = write(w->fd, bytes + done, n - done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0 && errno == EAGAIN) {
            await_reader(w);
            continue;
        }
        if (wrote < 0 && errno == EPIPE) {
            return status_make(STATUS_DRAINED,
                               "output %s: its reader has gone after byte %llu, so the job ended",
                               w->path, (unsigned long long)w->offset);
        }
        if (wrote <= 0) {
            return status_make(STATUS_IO, "output %s: writing %zu bytes at byte %llu failed: %s",
                               w->path, n - done, (unsigned long long)w->offset,
                               wrote < 0 ? strerror(errno) : "nothing was taken");
        }
        done += (size_t)wrote;
        w->offset += (uint64_t)wrote;
    }
    return status_ok();
}

/* Cuts off the bytes of an earlier short frame from byte `end` on. */
static struct status cut_short_frame(struct result_writer *w, uint64_t end)
{
    const bool is_longer = w->last.end > end;
    w->last.end = end;
    if (is_longer && ftruncate(w->fd, (off_t)end) != 0) return io_error(w, "cutting", errno);
    return status_ok();
}

static struct status write_buffer(struct result_writer *w)
{
    size_t done = 0;
    if (w->buffer.n == 0) return status_ok();
    TRY(result_writer_compare(w, w->buffer.data, w->buffer.n, &done));
    TRY(write_bytes(w, w->buffer.data + done, w->buffer.n - done));
    strbuf_clear(&w->buffer);
    w->last.is_written = false;
    return cut_short_frame(w, w->offset);
}

/* Records the short frame from `begin` to `offset`, which was just written or compared, and goes
 * back to its first byte. */
static struct status end_short_frame(struct result_writer *w, uint64_t begin)
{
    w->last.is_written = true;
    w->last.n_rows_bytes = w->frames.rows.n;
    w->last.written_ns = clock_ns();
    TRY(cut_short_frame(w, w->offset));
    w->offset = begin;
    if (!w->is_regular || lseek(w->fd, (off_t)begin, SEEK_SET) >= 0) return status_ok();
    return io_error(w, "seeking", errno);
}

static struct status write_short_frame(struct result_writer *w)
{
    const uint64_t begin = w->offset;
    if (w->last.is_written && w->last.n_rows_bytes == w->frames.rows.n) return status_ok();
    strbuf_clear(&w->last.bytes);
    TRY(row_frames_last(&w->frames, &w->last.bytes));
    TRY(write_bytes(w, w->last.bytes.data, w->last.bytes.n));
    return end_short_frame(w, begin);
}

struct status result_writer_flush(struct result_writer *w)
{
    TRY(write_buffer(w));
    if (w->frames.rows.n == 0 || !w->is_regular || w->compares) return status_ok();
    if (clock_ns() - w->last.written_ns < show_ns) return status_ok();
    return write_short_frame(w);
}

struct status result_writer_show(struct result_writer *w)
{
    TRY(write_buffer(w));
    return w->is_regular && w->frames.format != ENCODER_PLAIN ? write_short_frame(w) : status_ok();
}

/* Compares the short frame with the end of the file; leaves an equal one there, otherwise writes
 * it. */
static struct status settle_short_frame(struct result_writer *w)
{
    const uint64_t begin = w->offset;
    size_t n_same = 0;
    TRY(row_frames_last(&w->frames, &w->last.bytes));
    TRY(result_writer_compare(w, w->last.bytes.data, w->last.bytes.n, &n_same));
    if (w->compares) TRY(result_writer_cut(w));
    return n_same > 0 ? end_short_frame(w, begin) : write_short_frame(w);
}

struct status result_writer_settle(struct result_writer *w, uint64_t *n_bytes, bool *was_equal)
{
    TRY(write_buffer(w));
    const bool has_frames = w->frames.format != ENCODER_PLAIN;
    if (has_frames) TRY(settle_short_frame(w));
    if (w->compares) TRY(result_writer_cut(w));
    w->holds = true;
    *n_bytes = has_frames ? w->last.end : w->offset;
    *was_equal = !w->differed;
    return status_ok();
}

/* Appends the next row in order to the buffer. */
static struct status write_row(struct result_writer *w, const struct result_row *row)
{
    TRY(row_frames_add(&w->frames, row->text, row->n, &w->buffer));
    w->n_written++;
    w->totals.n_rows++;
    w->totals.n_error_rows += row->is_error;
    w->totals.sum_logprob += row->sum_logprob;
    w->totals.n_scored += row->n_scored;
    const bool is_frame = w->buffer.n > 0 && w->frames.format != ENCODER_PLAIN;
    const bool is_enough = is_frame || w->buffer.n >= FLUSH_BYTES;
    return is_enough && !w->holds ? write_buffer(w) : status_ok();
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

/* Writes the remaining rows; `offset` is then the end of the file. */
static struct status end_file(struct result_writer *w)
{
    TRY(write_buffer(w));
    if (w->frames.format == ENCODER_PLAIN) return status_ok();
    TRY(write_short_frame(w));
    w->offset = w->last.end;
    return status_ok();
}

struct status result_writer_close(struct result_writer *w)
{
    if (w->fd < 0) return status_ok();
    TRY(end_file(w));
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
