/* Opens, locks and rewrites a journal, checks the input, and commits records in groups.
 *
 *   journal_add ----> gathered (memory) ----> one write, one fdatasync ----> the file
 *                     journal_commit: after a COMMIT record, when due
 *
 *   a new file, or one without its error rows:  FILE.new ----> fdatasync, rename ----> FILE
 *   so FILE always has a whole header. */
#include "serve/journal/journal.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

/* COMMIT_SHARE: commits that are due by time take at most 1 / COMMIT_SHARE of the time. */
enum {
    COMMIT_BYTES = 1 << 20,
    COMMIT_MS = 200,
    COMMIT_SHARE = 20,
    WRITE_BYTES = 1 << 20,
    LOCK_TRIES = 25
};

struct journal {
    pthread_mutex_t mutex; /* protects the members after `index`, because the watchdog's thread may
                              commit too */
    int fd;
    char *path;                  /* as given, for error sentences; owned */
    char *target;                /* the file to which `path` leads; owned */
    struct journal_facts facts;  /* of the journal, as it was when it was opened */
    struct journal_index *index; /* of the records that the journal had when it was opened */
    struct strbuf gathered;      /* records waiting for their commit */
    uint64_t end, durable;       /* bytes of the file; how many of them are durable */
    uint64_t last_commit_ns, commit_ns, n_commits;
    uint64_t n_read, n_read_bytes; /* at the last commit */
    size_t commit_bytes;
    bool failed;
    struct failpoint *failpoint;
};

/* A new file that replaces the journal when it is whole. */
struct journal_rewrite {
    int fd;
    char *path;
    uint64_t end;
    struct strbuf rows, rest; /* rest: records that come after all rows */
    uint64_t n_partials;
};

static uint64_t unix_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- writing ---- */

/* Writes all n bytes to fd at `offset`. Returns 0 or the errno. */
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

/* Writes `bytes` to fd at `offset` and calls fdatasync; passes the journal's failpoints. */
static struct status write_durably(struct journal *j, int fd, const struct strbuf *bytes,
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

/* ---- rewriting ---- */

static struct status journal_write_rows(struct journal *j, struct journal_rewrite *r)
{
    TRY(write_durably(j, r->fd, &r->rows, r->end));
    r->end += r->rows.n;
    strbuf_clear(&r->rows);
    return status_ok();
}

/* Begins a new file beside the journal, with a header. Call rewrite_fini in any case. */
static struct status rewrite_begin(struct journal *j, const char *settings,
                                   struct journal_rewrite *r)
{
    *r = (struct journal_rewrite){.fd = -1};
    struct strbuf path;
    strbuf_init(&path);
    strbuf_printf(&path, "%s.new", j->target);
    r->path = path.data;
    TRY(strbuf_status(&path));
    r->fd = open(r->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (r->fd < 0) {
        return status_make(STATUS_IO, "journal %s: cannot be made: %s", r->path, strerror(errno));
    }
    const struct journal_record header = {
        .type = JOURNAL_HEADER, .bytes = settings, .n_bytes = strlen(settings)};
    strbuf_add(&r->rows, JOURNAL_MAGIC, JOURNAL_MAGIC_BYTES);
    return journal_record_add(&r->rows, &header, JOURNAL_MAGIC_BYTES);
}

/* Keeps an unfinished answer for the end of the file, after all rows: the checksum needs the
 * record's offset, which is known only then. */
static struct status keep_part(struct journal_rewrite *r, uint64_t line,
                               const struct journal_hit *hit, size_t number)
{
    const struct journal_part *p = &hit->parts[number];
    const struct journal_record record = {.type = JOURNAL_PARTIAL,
                                          .line = line,
                                          .digest = hit->digest,
                                          .values = {0, p->n_dropped, number, p->item_bytes},
                                          .n_bytes = p->n_items * p->item_bytes};
    if (record.n_bytes == 0) return status_ok();
    strbuf_add(&r->rest, (const char *)&record, sizeof record);
    strbuf_add(&r->rest, p->bytes, record.n_bytes);
    r->n_partials++;
    return strbuf_status(&r->rest);
}

/* Copies a line's records to the new file: the saved tokens of an unfinished line, or its row,
 * unless that is an error row. */
static struct status rewrite_line(struct journal *j, struct journal_rewrite *r, uint64_t line,
                                  const struct journal_hit *hit)
{
    struct journal_record record = {.line = line, .digest = hit->digest};
    for (size_t i = 0; hit->kind == JOURNAL_HIT_PARTIAL && i < hit->n_parts; i++)
        TRY(keep_part(r, line, hit, i));
    if (hit->kind != JOURNAL_HIT_ROW || hit->row.is_error) return status_ok();
    record.type = JOURNAL_BASE;
    record.bytes = hit->text;
    record.n_bytes = hit->n_text;
    journal_row_pack(&hit->row, record.values);
    TRY(journal_record_add(&r->rows, &record, r->end + r->rows.n));
    return r->rows.n >= WRITE_BYTES ? journal_write_rows(j, r) : status_ok();
}

static struct status add_partials(struct journal_rewrite *r)
{
    size_t at = 0;
    for (uint64_t i = 0; i < r->n_partials; i++) {
        struct journal_record record;
        memcpy(&record, r->rest.data + at, sizeof record);
        record.bytes = r->rest.data + at + sizeof record;
        at += sizeof record + record.n_bytes;
        TRY(journal_record_add(&r->rows, &record, r->end + r->rows.n));
    }
    return status_ok();
}

/* Makes the new file durable and renames it to the journal. */
static struct status rewrite_end(struct journal *j, struct journal_rewrite *r)
{
    TRY(add_partials(r));
    TRY(journal_write_rows(j, r));
    const int error = failpoint_pass(j->failpoint, FAILPOINT_JOURNAL_RENAME);
    if (error != 0) {
        return status_make(STATUS_IO, "journal %s: rename failed: %s", j->path, strerror(error));
    }
    TRY(file_commit(r->path, j->target));
    mem_free(&r->path);
    return status_ok();
}

static void rewrite_fini(struct journal_rewrite *r)
{
    if (r->fd >= 0) close(r->fd);
    if (r->path != NULL) unlink(r->path); /* the new file has not been renamed */
    mem_free(&r->path);
    strbuf_fini(&r->rows);
    strbuf_fini(&r->rest);
}

/* ---- opening ---- */

/* Locks the journal. Tries for a moment, because `shoal status` also locks a journal for a short
 * time, to see whether its job runs. */
static struct status journal_lock(const struct journal *j)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    int failed = -1;
    for (int i = 0; failed && i < LOCK_TRIES; i++) {
        if (i > 0) nanosleep(&pause, NULL);
        failed = flock(j->fd, LOCK_EX | LOCK_NB);
        if (failed && errno != EINTR && errno != EWOULDBLOCK) break;
    }
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

static struct status journal_open_file(struct journal *j, const char *path, int flags)
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
    struct status st = rewrite_begin(j, o->settings, &r);
    if (!status_failed(&st)) st = rewrite_end(j, &r);
    rewrite_fini(&r);
    return st;
}

/* Reads an existing journal and cuts off the bytes after its last whole record. */
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
        log_line(
            LOG_WARN,
            "journal %s: the last %llu bytes, from byte %llu on, are a torn record and are dropped",
            j->path, (unsigned long long)n_cut, (unsigned long long)j->facts.good_bytes);
        if (ftruncate(j->fd, (off_t)j->facts.good_bytes) != 0) {
            return status_make(STATUS_IO, "journal %s: cannot be cut to %llu bytes: %s", j->path,
                               (unsigned long long)j->facts.good_bytes, strerror(errno));
        }
    }
    return status_ok();
}

/* Opens, locks and reads the file that is at the journal's path now. */
static struct status open_existing(struct journal *j)
{
    close_file(j);
    TRY(journal_open_file(j, j->path, 0));
    TRY(journal_lock(j));
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
    struct status st = rewrite_begin(j, o->settings, &r);
    uint64_t line = j->facts.first_line;
    while (!status_failed(&st) && line <= j->facts.last_line && line < UINT64_MAX) {
        struct journal_hit hit;
        st = journal_index_find(j->index, line, &hit);
        if (status_failed(&st)) break;
        st = rewrite_line(j, &r, line, &hit);
        line = hit.kind == JOURNAL_HIT_NONE ? journal_index_next(j->index) : line + 1;
    }
    if (!status_failed(&st)) st = rewrite_end(j, &r);
    rewrite_fini(&r);
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

/* ---- gathering and committing ---- */

static struct status journal_gather(struct journal *j, const struct journal_record *r)
{
    return journal_record_add(&j->gathered, r, j->end + j->gathered.n);
}

struct status journal_add(struct journal *j, const struct journal_record *r)
{
    pthread_mutex_lock(&j->mutex);
    const struct status st = journal_gather(j, r);
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

static struct status commit(struct journal *j, uint64_t n_read, uint64_t n_read_bytes)
{
    if (j->gathered.n == 0 || j->failed) return status_ok();
    const struct journal_record record = {.type = JOURNAL_COMMIT,
                                          .values = {unix_ns(), n_read, n_read_bytes}};
    TRY(journal_gather(j, &record));
    const uint64_t since = clock_ns();
    const struct status st = write_durably(j, j->fd, &j->gathered, j->end);
    j->last_commit_ns = clock_ns();
    const uint64_t took_ns = j->last_commit_ns - since;
    j->commit_ns = took_ns > j->commit_ns ? took_ns : j->commit_ns - j->commit_ns / 16;
    j->n_commits++;
    if (status_failed(&st)) {
        /* a later run must not regard these bytes as durable */
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
    j->failed = true; /* the process ends now; no commit may follow */
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

/* ---- the input ---- */

struct status journal_line_changed(struct line_place place)
{
    return status_make(STATUS_INPUT,
                       "input %s, line %llu: it changed since the job began; put it back, or begin "
                       "anew with --restart",
                       place.path, (unsigned long long)place.number);
}

struct status journal_input_grew(const char *input_path, uint64_t n_lines)
{
    return status_make(STATUS_INPUT,
                       "input %s: the finished job had %llu lines, found more; take them out, or "
                       "begin anew with --restart",
                       input_path, (unsigned long long)n_lines);
}

static struct status check_lines(const struct journal *j, struct journal_index *x,
                                 struct line_reader *reader, const char *input_path)
{
    struct line line = {.kind = LINE_OK};
    struct journal_hit hit;
    while (line.number < j->facts.last_line) {
        TRY(line_reader_next(reader, true, &line));
        if (line.kind == LINE_END) {
            return status_make(STATUS_INPUT,
                               "input %s: the job began with at least %llu lines, found fewer; put "
                               "them back, or begin anew with --restart",
                               input_path, (unsigned long long)j->facts.last_line);
        }
        if (line.kind == LINE_WAIT) continue;
        TRY(journal_index_find(x, line.number, &hit));
        const struct line_digest d = line_digest_of(&line);
        if (hit.kind != JOURNAL_HIT_NONE &&
            (d.low != hit.digest.low || d.high != hit.digest.high)) {
            return journal_line_changed(line_reader_place(reader, line.number));
        }
    }
    if (!j->facts.is_complete) return status_ok();
    TRY(line_reader_next(reader, true, &line));
    if (line.kind == LINE_END) return status_ok();
    return journal_input_grew(input_path, j->facts.end_lines);
}

struct status journal_check_input(const struct journal *j, const struct input_files *input,
                                  const struct input_part *part)
{
    struct journal_index *x = NULL;
    struct line_reader *reader = NULL;
    struct status st = journal_index_create(j->fd, j->path, &j->facts, &x);
    if (!status_failed(&st)) st = line_reader_create_all(input, 0, &reader);
    if (!status_failed(&st) && part != NULL) st = line_reader_set_part(reader, part);
    if (!status_failed(&st)) st = check_lines(j, x, reader, input->name);
    line_reader_destroy(&reader);
    journal_index_destroy(&x);
    return st;
}
