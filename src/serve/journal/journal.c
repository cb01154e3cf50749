/* Opening, group commit. */
#include "serve/journal/journal.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/journal/journal_private.h"
#include "serve/journal/journal_settings.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { COMMIT_BYTES = 1 << 20, COMMIT_MS = 200, COMMIT_SHARE = 20 };

static uint64_t unix_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct status lock(const struct journal *j)
{
    int failed;
    do {
        failed = flock(j->fd, LOCK_EX | LOCK_NB);
    } while (failed && errno == EINTR);
    if (!failed) return status_ok();
    if (errno == EWOULDBLOCK) {
        return status_make(
            STATUS_USAGE, "journal %s: another process has it: is the job still running?", j->path);
    }
    log_line(
        LOG_WARN,
        "journal %s: cannot be locked (%s): see to it that no other job writes the same output",
        j->path, strerror(errno));
    return status_ok();
}

static struct status open_file(struct journal *j, const char *path, int flags)
{
    j->fd = open(path, flags | O_RDWR | O_CLOEXEC, 0666);
    if (j->fd >= 0) return status_ok();
    return status_make(STATUS_IO, "journal %s: cannot be opened: %s", path, strerror(errno));
}

static void close_file(struct journal *j)
{
    if (j->fd >= 0) close(j->fd);
    j->fd = -1;
    journal_index_destroy(&j->index);
    journal_facts_fini(&j->facts);
}

static struct status begin_new(struct journal *j, const struct journal_options *o)
{
    struct journal_rewrite r;
    struct status st = journal_rewrite_begin(j, o->settings, &r);
    if (!status_failed(&st)) st = journal_rewrite_end(j, &r);
    journal_rewrite_fini(&r);
    return st;
}

/* Reads an existing journal; what is behind its last whole record is cut off. */
static struct status read_existing(struct journal *j)
{
    TRY(journal_facts_read(j->fd, j->path, &j->facts));
    if (j->facts.settings == NULL) {
        return status_make(STATUS_INPUT,
                           "journal %s: no journal of this version of shoal; remove it, or name "
                           "another place with --journal",
                           j->path);
    }
    const uint64_t n_cut = j->facts.file_bytes - j->facts.good_bytes;
    if (n_cut > 0) {
        log_line(LOG_WARN,
                 "journal %s: %llu bytes behind byte %llu are no whole record and are "
                 "dropped",
                 j->path, (unsigned long long)n_cut, (unsigned long long)j->facts.good_bytes);
        if (ftruncate(j->fd, (off_t)j->facts.good_bytes) != 0) {
            return status_make(STATUS_IO, "journal %s: cannot be cut to %llu bytes: %s", j->path,
                               (unsigned long long)j->facts.good_bytes, strerror(errno));
        }
    }
    return status_ok();
}

/* Opens the file that stands at the journal's place now, locked and read. */
static struct status open_existing(struct journal *j)
{
    close_file(j);
    TRY(open_file(j, j->path, 0));
    TRY(lock(j));
    TRY(read_existing(j));
    j->end = j->durable = j->facts.good_bytes;
    return journal_index_create(j->fd, j->path, &j->facts, &j->index);
}

static struct status forget_errors(struct journal *j, const struct journal_options *o)
{
    if (j->facts.n_error_rows == 0) {
        log_line(LOG_INFO, "journal %s: there are no error rows to retry", j->path);
        return status_ok();
    }
    log_line(LOG_INFO, "journal %s: %llu error rows are run again", j->path,
             (unsigned long long)j->facts.n_error_rows);
    struct journal_rewrite r;
    struct status st = journal_rewrite_begin(j, o->settings, &r);
    uint64_t line = j->facts.first_line;
    while (!status_failed(&st) && line <= j->facts.last_line && line < UINT64_MAX) {
        struct journal_hit hit;
        st = journal_index_find(j->index, line, &hit);
        if (status_failed(&st)) break;
        st = journal_rewrite_line(j, &r, line, &hit);
        line = hit.kind == JOURNAL_HIT_NONE ? journal_index_next(j->index) : line + 1;
    }
    if (!status_failed(&st)) st = journal_rewrite_end(j, &r);
    journal_rewrite_fini(&r);
    return status_failed(&st) ? st : open_existing(j);
}

static struct status open_any(struct journal *j, const struct journal_options *o)
{
    if (!file_exists(j->path)) {
        if (o->retry_errors) {
            return status_make(STATUS_USAGE,
                               "--retry-errors: there is no journal %s of an earlier run", j->path);
        }
        TRY(begin_new(j, o));
        return open_existing(j);
    }
    TRY(open_existing(j));
    if (o->restart) {
        TRY(begin_new(j, o));
        return open_existing(j);
    }
    TRY(journal_settings_check(j->path, j->facts.settings, o->settings,
                               "resume with the same, or begin anew with --restart"));
    return o->retry_errors ? forget_errors(j, o) : status_ok();
}

struct status journal_open(const struct journal_options *options, struct journal **out)
{
    *out = NULL;
    struct journal *j = NULL;
    TRY(mem_alloc(&j, 1, sizeof *j, "journal"));
    pthread_mutex_init(&j->mutex, NULL);
    j->fd = -1;
    j->failpoint = options->failpoint;
    j->commit_bytes = options->commit_bytes > 0 ? options->commit_bytes : COMMIT_BYTES;
    strbuf_init(&j->gathered);
    struct status st = mem_strndup(&j->path, options->path, strlen(options->path));
    if (!status_failed(&st)) st = file_target_regular(j->path, &j->target);
    if (!status_failed(&st)) st = open_any(j, options);
    const struct journal_record session = {
        .type = JOURNAL_SESSION,
        .values = {unix_ns(), options->input_bytes},
        .bytes = options->session != NULL ? options->session : "",
        .n_bytes = options->session != NULL ? strlen(options->session) : 0};
    if (!status_failed(&st) && !j->facts.is_complete) st = journal_add(j, &session);
    j->last_commit_ns = clock_ns();
    *out = j;
    if (status_failed(&st)) journal_destroy(out);
    return st;
}

void journal_destroy(struct journal **journal)
{
    struct journal *j = *journal;
    if (j == NULL) return;
    close_file(j);
    strbuf_fini(&j->gathered);
    mem_free(&j->path);
    mem_free(&j->target);
    pthread_mutex_destroy(&j->mutex);
    mem_free(journal);
}

struct status journal_find(struct journal *j, uint64_t line, struct journal_hit *hit)
{
    return journal_index_find(j->index, line, hit);
}

const struct journal_facts *journal_facts_of(const struct journal *j)
{
    return &j->facts;
}

static struct status gather(struct journal *j, const struct journal_record *r)
{
    return journal_record_add(&j->gathered, r, j->end + j->gathered.n);
}

struct status journal_add(struct journal *j, const struct journal_record *r)
{
    pthread_mutex_lock(&j->mutex);
    const struct status st = gather(j, r);
    pthread_mutex_unlock(&j->mutex);
    return st;
}

bool journal_is_dirty(const struct journal *j)
{
    return j->gathered.n > 0;
}

bool journal_is_due(const struct journal *j)
{
    if (j->gathered.n == 0) return false;
    if (j->gathered.n >= j->commit_bytes) return true;
    uint64_t wait_ns = (uint64_t)COMMIT_MS * 1000000u;
    if (COMMIT_SHARE * j->commit_ns > wait_ns) wait_ns = COMMIT_SHARE * j->commit_ns;
    return clock_ns() - j->last_commit_ns >= wait_ns;
}

/* All n bytes to fd at `offset`. Returns 0 or the errno. */
static int write_at(int fd, const char *bytes, size_t n, uint64_t offset)
{
    while (n > 0) {
        const ssize_t wrote = pwrite(fd, bytes, n, (off_t)offset);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return wrote < 0 ? errno : ENOSPC;
        bytes += wrote;
        n -= (size_t)wrote;
        offset += (uint64_t)wrote;
    }
    return 0;
}

struct status journal_write_durably(struct journal *j, int fd, const struct strbuf *bytes,
                                    uint64_t offset)
{
    const char *what = "writing";
    int error = 0;
    if (failpoint_due(j->failpoint, FAILPOINT_JOURNAL_WRITE)) {
        error = write_at(fd, bytes->data, bytes->n / 2, offset);
        if (error == 0) error = failpoint_strike(j->failpoint);
    }
    if (error == 0) error = write_at(fd, bytes->data, bytes->n, offset);
    if (error == 0) {
        what = "fsync";
        error = failpoint_pass(j->failpoint, FAILPOINT_JOURNAL_FSYNC);
        if (error == 0 && fdatasync(fd) != 0) error = errno;
    }
    if (error == 0) return status_ok();
    return status_make(STATUS_IO, "journal %s: %s of %zu bytes at byte %llu failed: %s", j->path,
                       what, bytes->n, (unsigned long long)offset, strerror(error));
}

static struct status commit(struct journal *j, uint64_t n_read, uint64_t n_read_bytes)
{
    if (j->gathered.n == 0 || j->failed) return status_ok();
    const struct journal_record record = {.type = JOURNAL_COMMIT,
                                          .values = {unix_ns(), n_read, n_read_bytes}};
    TRY(gather(j, &record));
    const uint64_t since = clock_ns();
    const struct status st = journal_write_durably(j, j->fd, &j->gathered, j->end);
    j->last_commit_ns = clock_ns();
    const uint64_t took_ns = j->last_commit_ns - since;
    j->commit_ns = took_ns > j->commit_ns ? took_ns : j->commit_ns - j->commit_ns / 16;
    j->n_commits++;
    if (status_failed(&st)) {
        /* What was not made durable must not be taken for it by a later run. */
        j->failed = true;
        if (ftruncate(j->fd, (off_t)j->durable) != 0) {
            log_line(LOG_WARN, "journal %s: cannot be cut back to %llu bytes: %s", j->path,
                     (unsigned long long)j->durable, strerror(errno));
        }
        return st;
    }
    j->end += j->gathered.n;
    j->durable = j->end;
    strbuf_clear(&j->gathered);
    return st;
}

struct status journal_commit(struct journal *j, uint64_t n_read, uint64_t n_read_bytes)
{
    pthread_mutex_lock(&j->mutex);
    j->n_read = n_read;
    j->n_read_bytes = n_read_bytes;
    const struct status st = commit(j, n_read, n_read_bytes);
    pthread_mutex_unlock(&j->mutex);
    return st;
}

struct status journal_save(struct journal *j)
{
    pthread_mutex_lock(&j->mutex);
    const struct status st = commit(j, j->n_read, j->n_read_bytes);
    j->failed = true; /* whoever calls this ends the process: nothing may be torn behind it */
    pthread_mutex_unlock(&j->mutex);
    return st;
}

double journal_commit_s(const struct journal *j)
{
    return (double)j->commit_ns * 1e-9;
}

uint64_t journal_n_commits(const struct journal *j)
{
    return j->n_commits;
}
