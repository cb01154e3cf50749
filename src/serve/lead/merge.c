/* Joins the outputs of a job array. The first pass finds each part's number in its journal; the
 * second reads all parts line by line. */
#include "serve/lead/merge.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "serve/input/byte_source.h"
#include "serve/journal/id_set.h"
#include "serve/journal/journal_index.h"
#include "serve/output/result_row.h"
#include "serve/output/row_frames.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* A part of the array, filled by the first pass. */
struct part {
    const char *path; /* path of its output; NULL: not given yet */
    char *journal;    /* path; owned */
    struct journal_facts facts;
};

struct merge {
    const struct merge_options *o;
    struct merge_result *result;
    struct part *parts; /* [n], by their number */
    uint32_t n;
    bool is_score;
    struct line_reader *input;
    FILE *out;
    struct row_frames frames; /* frames of the output */
    struct strbuf framed;     /* bytes that are written next */
    struct id_set ids;
    /* the part that is being read */
    uint32_t at; /* its number, from 1; 0: none yet */
    int journal_fd;
    struct journal_index *index;
    struct byte_source *rows;
    uint64_t n_taken;
    char *row; /* [row_capacity], owned */
    size_t row_capacity;
    struct strbuf mended;
};

static const struct part *now(const struct merge *m)
{
    return &m->parts[m->at - 1];
}

static struct status merge_open_journal(const char *path, int *fd)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd >= 0) return status_ok();
    return status_make(STATUS_INPUT,
                       "journal %s: cannot be opened: %s; merge checks each row against its part's "
                       "journal (--journal DIR names another folder)",
                       path, strerror(errno));
}

/* Refuses two parts whose settings differ in a line other than that of --input-part. */
static struct status compare_settings(const struct part *a, const struct part *b)
{
    const char *x = a->facts.settings, *y = b->facts.settings;
    const int most = 80;
    while (*x != '\0' || *y != '\0') {
        const size_t n_x = strcspn(x, "\n"), n_y = strcspn(y, "\n");
        struct input_part ignored;
        size_t at, n_bytes;
        const bool names_part = input_part_of_settings(x, &ignored, &at, &n_bytes) && at == 0;
        if (!names_part && (n_x != n_y || memcmp(x, y, n_x) != 0)) {
            return status_make(
                STATUS_INPUT,
                "%s and %s are of different jobs: the first has %.*s, the second %.*s", a->path,
                b->path, (int)n_x < most ? (int)n_x : most, x, (int)n_y < most ? (int)n_y : most,
                y);
        }
        x += n_x + (x[n_x] == '\n');
        y += n_y + (y[n_y] == '\n');
    }
    return status_ok();
}

/* Returns the path of the given part with the lowest number. At least one part must have been
 * given. */
static const char *first_path(const struct merge *m)
{
    uint32_t i = 0;
    while (m->parts[i].path == NULL) i++;
    return m->parts[i].path;
}

/* Finds the entry in m->parts of the part that a journal's settings name; refuses a part that was
 * given before. The first part given sets the number of parts. */
static struct status merge_place_of(struct merge *m, const char *path, const char *settings,
                                    struct part **out)
{
    struct input_part named;
    size_t at, n_bytes;
    if (settings == NULL) {
        return status_make(STATUS_INPUT, "%s: its journal was not written by this version of shoal",
                           path);
    }
    if (!input_part_of_settings(settings, &named, &at, &n_bytes)) {
        return status_make(
            STATUS_INPUT,
            "%s: expected the output of a job with --input-part K/N, found a whole job's", path);
    }
    if (m->parts == NULL) {
        TRY(mem_alloc(&m->parts, named.n, sizeof *m->parts, "parts"));
        m->n = named.n;
    }
    if (named.n != m->n) {
        return status_make(STATUS_INPUT,
                           "%s is part %u of %u, but %s is a part of %u: expected parts of one job "
                           "array",
                           path, named.index, named.n, first_path(m), m->n);
    }
    *out = &m->parts[named.index - 1];
    if ((*out)->path == NULL) return status_ok();
    if (strcmp((*out)->path, path) == 0) {
        return status_make(STATUS_INPUT, "%s was given twice", path);
    }
    return status_make(STATUS_INPUT, "%s and %s are both part %u of %u: expected one of them",
                       (*out)->path, path, named.index, m->n);
}

static struct status merge_add_part(struct merge *m, const char *path)
{
    struct part p = {.path = path}, *place = NULL;
    int fd = -1;
    struct status st;
    TRY_GOTO(st, journal_path_of(path, m->o->journal_folder, &p.journal), done);
    TRY_GOTO(st, merge_open_journal(p.journal, &fd), done);
    TRY_GOTO(st, journal_facts_read(fd, p.journal, &p.facts), done);
    TRY_GOTO(st, merge_place_of(m, path, p.facts.settings, &place), done);
    *place = p;
    p = (struct part){.path = NULL};
done:
    if (fd >= 0) close(fd);
    mem_free(&p.journal);
    journal_facts_fini(&p.facts);
    return st;
}

static struct status check_parts(struct merge *m)
{
    for (uint32_t i = 0; i < m->n; i++) {
        const struct part *p = &m->parts[i];
        if (p->path == NULL) {
            return status_make(STATUS_INPUT,
                               "part %u of %u was not given: expected the outputs of all %u parts",
                               i + 1, m->n, m->n);
        }
        if (!p->facts.is_complete) {
            return status_make(
                STATUS_INPUT,
                "part %u of %u, %s: it is not complete, %llu of its rows are done; run "
                "its command again first",
                i + 1, m->n, p->path, (unsigned long long)p->facts.n_rows);
        }
        TRY(compare_settings(&m->parts[0], p));
    }
    m->is_score = strncmp(m->parts[0].facts.settings, "command=score\n", 14) == 0;
    return status_ok();
}

static void close_part(struct merge *m)
{
    journal_index_destroy(&m->index);
    if (m->journal_fd >= 0) close(m->journal_fd);
    byte_source_close(&m->rows);
    m->journal_fd = -1;
}

/* Reads up to n bytes of the part's rows, decompressed; fewer only at its end. Errors:
 * STATUS_INPUT, STATUS_IO, STATUS_MEMORY. */
static struct status read_merged_rows(struct merge *m, char *to, size_t n, size_t *n_read)
{
    struct source_read got = {SOURCE_BYTES, 0};
    *n_read = 0;
    while (*n_read < n && got.kind != SOURCE_END) {
        TRY(byte_source_read(m->rows, true, to + *n_read, n - *n_read, &got));
        *n_read += got.n;
    }
    return status_ok();
}

/* Closes a part. Refuses a part whose output has more rows than lines, or bytes after its rows. */
static struct status end_part(struct merge *m)
{
    if (m->at == 0) return status_ok();
    const struct part *p = now(m);
    if (m->n_taken != p->facts.n_rows || m->n_taken != p->facts.end_lines) {
        return status_make(
            STATUS_INPUT,
            "part %u of %u, %s: it has %llu rows, but the input has %llu lines for it", m->at, m->n,
            p->path, (unsigned long long)p->facts.n_rows, (unsigned long long)m->n_taken);
    }
    char more;
    size_t n_more;
    TRY(read_merged_rows(m, &more, 1, &n_more));
    if (n_more > 0) {
        return status_make(STATUS_INPUT, "%s: it has more bytes than the %llu that its job wrote",
                           p->path, (unsigned long long)p->facts.end_bytes);
    }
    close_part(m);
    return status_ok();
}

static struct status next_part(struct merge *m)
{
    TRY(end_part(m));
    m->at++;
    m->n_taken = 0;
    const struct part *p = now(m);
    TRY(merge_open_journal(p->journal, &m->journal_fd));
    TRY(journal_index_create(m->journal_fd, p->journal, &p->facts, &m->index));
    return byte_source_open(p->path, &m->rows);
}

/* Refuses a part's output whose next bytes are not the journal's row. */
static struct status compare_row(struct merge *m, const struct line *line,
                                 const struct journal_hit *hit)
{
    if (hit->n_text > m->row_capacity) {
        TRY(mem_grow(&m->row, m->row_capacity, 2 * hit->n_text, 1, "row"));
        m->row_capacity = 2 * hit->n_text;
    }
    size_t got;
    TRY(read_merged_rows(m, m->row, hit->n_text, &got));
    if (got == hit->n_text && memcmp(m->row, hit->text, got) == 0) return status_ok();
    return status_make(
        STATUS_INPUT,
        "%s: the row of line %llu is not the one that its job wrote; run its command "
        "again, which restores it",
        now(m)->path, (unsigned long long)line->number);
}

/* True when the row's line ran: the row is not an error row, or its error arose during the run.
 * Searching the text is safe, because quotes inside a row's strings are escaped. */
static bool has_run(const struct journal_hit *hit)
{
    static const char *const late[] = {"\"error\":{\"code\":\"" REQUEST_NUMERIC_CODE "\"",
                                       "\"error\":{\"code\":\"" REQUEST_GUIDE_CODE "\"",
                                       "\"error\":{\"code\":\"" REQUEST_NO_TOKEN_CODE "\""};
    bool is_late = !hit->row.is_error;
    for (size_t i = 0; i < sizeof late / sizeof *late && !is_late; i++)
        is_late = memmem(hit->text, hit->n_text, late[i], strlen(late[i])) != NULL;
    return is_late;
}

/* Replaces a row with the error row that a single job would have written for a repeated
 * custom_id. */
static struct status mend_row(struct merge *m, char *id, size_t n_id, struct journal_hit *hit)
{
    char code[] = REQUEST_DUPLICATE_CODE, message[] = REQUEST_DUPLICATE_MESSAGE;
    const bool is_batch = result_row_is_batch(hit->text, hit->n_text);
    const struct request_ask ask = {.format = is_batch ? REQUEST_OPENAI : REQUEST_PLAIN};
    const struct request r = {
        .ask = &ask, .custom_id = {id, n_id}, .error.code = code, .error.message = message};
    const struct request_rules rules = {.score = m->is_score};
    strbuf_clear(&m->mended);
    TRY(result_row_write(&r, &rules, NULL, &m->mended));
    hit->text = m->mended.data;
    hit->n_text = m->mended.n;
    hit->row = (struct journal_row){.is_error = true};
    m->result->n_duplicates++;
    return status_ok();
}

/* Gives the row of a line without a custom_id the name that a single job would have given the line.
 */
static struct status name_row(struct merge *m, const struct line *line, const char *id, size_t n_id,
                              struct journal_hit *hit)
{
    char name[ID_NAME_MAX];
    if (!id_set_may_name(line->number, id, n_id))
        return status_make(STATUS_INPUT, "its custom_id is not the one in the journal");
    TRY(id_set_add_line(&m->ids, name));
    if (strlen(name) == n_id && memcmp(name, id, n_id) == 0) return status_ok();
    strbuf_clear(&m->mended);
    TRY(result_row_rename(hit->text, hit->n_text, name, &m->mended));
    hit->text = m->mended.data;
    hit->n_text = m->mended.n;
    return status_ok();
}

/* Replaces the row of a line that ran by an error row if an earlier line has its custom_id. */
static struct status check_given_id(struct merge *m, char *id, size_t n_id, struct journal_hit *hit)
{
    bool fresh;
    const struct id_hash h = id_hash_of(id, n_id);
    if (h.low != hit->row.id_low || h.high != hit->row.id_high)
        return status_make(STATUS_INPUT, "its custom_id is not the one in the journal");
    TRY(id_set_add(&m->ids, id, n_id, &fresh));
    return !fresh && has_run(hit) ? mend_row(m, id, n_id, hit) : status_ok();
}

static struct status merge_check_id(struct merge *m, const struct line *line,
                                    struct journal_hit *hit)
{
    char *id = NULL;
    size_t n_id = 0;
    struct status st = result_row_id(hit->text, hit->n_text, &id, &n_id);
    if (!status_failed(&st)) {
        const bool has_none =
            hit->row.id_low == ID_HASH_NONE.low && hit->row.id_high == ID_HASH_NONE.high;
        st = has_none ? name_row(m, line, id, n_id, hit) : check_given_id(m, id, n_id, hit);
    }
    mem_free(&id);
    if (st.code != STATUS_INPUT) return st;
    return status_wrap(st, "%s, row of line %llu", now(m)->path, (unsigned long long)line->number);
}

/* Writes the rows, or frames of them, that are ready. */
static struct status write_framed(struct merge *m)
{
    const size_t n = m->framed.n;
    const bool done = n == 0 || fwrite(m->framed.data, 1, n, m->out) == n;
    strbuf_clear(&m->framed);
    if (done) return status_ok();
    return status_make(STATUS_IO, "output %s: writing failed: %s", m->o->output_path,
                       strerror(errno));
}

static struct status merge_take_line(struct merge *m, const struct line *line)
{
    struct journal_hit hit;
    TRY(journal_index_find(m->index, line->number, &hit));
    const struct line_digest digest = line_digest_of(line);
    const struct line_place place = line_reader_place(m->input, line->number);
    if (hit.kind != JOURNAL_HIT_ROW) {
        return status_make(STATUS_INPUT, "part %u of %u, %s: it has no row for line %llu of %s",
                           m->at, m->n, now(m)->path, (unsigned long long)line->number,
                           m->o->input->name);
    }
    if (hit.digest.low != digest.low || hit.digest.high != digest.high) {
        return status_make(STATUS_INPUT,
                           "input %s, line %llu: it has changed since part %u of %u, %s, was run",
                           place.path, (unsigned long long)place.number, m->at, m->n, now(m)->path);
    }
    TRY(compare_row(m, line, &hit));
    TRY(merge_check_id(m, line, &hit));
    m->n_taken++;
    m->result->n_rows++;
    m->result->n_error_rows += hit.row.is_error;
    m->result->sum_logprob += hit.row.sum_logprob;
    m->result->n_scored += hit.row.n_scored;
    TRY(row_frames_add(&m->frames, hit.text, hit.n_text, &m->framed));
    return write_framed(m);
}

static struct status take_lines(struct merge *m)
{
    uint64_t size;
    TRY(input_part_size(m->o->input, &size));
    TRY(line_reader_create_all(m->o->input, 0, &m->input));
    for (;;) {
        const uint64_t begins = line_reader_offset(m->input);
        struct line line;
        TRY(line_reader_next(m->input, true, &line));
        if (line.kind == LINE_WAIT) continue;
        if (line.kind == LINE_END) break;
        if (m->at == 0) TRY(next_part(m));
        while (m->at < m->n && begins >= input_part_cut(size, m->at + 1, m->n)) TRY(next_part(m));
        TRY(merge_take_line(m, &line));
    }
    while (m->at < m->n) TRY(next_part(m)); /* the remaining parts have no lines */
    TRY(end_part(m));
    TRY(row_frames_last(&m->frames, &m->framed));
    return write_framed(m);
}

/* Refuses to write a file that is not regular or that merge reads: the input, a part's output or
 * its journal. All parts must have been given. */
static struct status check_target(const struct merge *m, const char *path)
{
    struct stat out, other;
    if (stat(path, &out) != 0) return status_ok();
    if (!S_ISREG(out.st_mode)) {
        return status_make(STATUS_USAGE,
                           "output %s: expected a regular file, or none, found something else, "
                           "which is left alone",
                           path);
    }
    const char *input = input_files_find(m->o->input, path);
    for (uint32_t i = 0; i <= 2 * m->n; i++) {
        const struct part *p = &m->parts[i / 2];
        const char *taken = i == 2 * m->n ? input : i % 2 == 0 ? p->path : p->journal;
        if (taken == NULL) continue;
        if (stat(taken, &other) != 0) continue;
        if (out.st_dev != other.st_dev || out.st_ino != other.st_ino) continue;
        return status_make(STATUS_USAGE, "output %s: expected another file than %s, which is read",
                           path, taken);
    }
    return status_ok();
}

/* Opens the new file, which replaces the output once all checks have passed. */
static struct status open_output(struct merge *m, const char *temporary)
{
    TRY(check_target(m, temporary));
    const int fd = open(temporary, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) {
        return status_make(STATUS_IO, "output %s: cannot be written: %s", temporary,
                           strerror(errno));
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(fd);
        return status_make(STATUS_USAGE, "output %s: another merge is writing it", temporary);
    }
    if (ftruncate(fd, 0) == 0) m->out = fdopen(fd, "w");
    if (m->out != NULL) return status_ok();
    const int error = errno;
    close(fd);
    return status_make(STATUS_IO, "output %s: %s", temporary, strerror(error));
}

static struct status write_output(struct merge *m)
{
    struct strbuf temporary;
    char *target = NULL;
    TRY(file_target_regular(m->o->output_path, &target));
    strbuf_init(&temporary);
    strbuf_printf(&temporary, "%s.merging", target);
    struct status st = strbuf_status(&temporary);
    if (!status_failed(&st)) st = open_output(m, temporary.data);
    if (m->out != NULL) {
        st = take_lines(m);
        if (!status_failed(&st) && fflush(m->out) != 0) {
            st = status_make(STATUS_IO, "output %s: writing failed: %s", temporary.data,
                             strerror(errno));
        }
        if (!status_failed(&st)) st = file_commit(temporary.data, target);
        if (status_failed(&st)) unlink(temporary.data);
        fclose(m->out);
    }
    strbuf_fini(&temporary);
    mem_free(&target);
    return st;
}

static struct status run_merge(struct merge *m)
{
    TRY(encoder_check_name("output", m->o->output_path));
    for (size_t i = 0; i < m->o->n_parts; i++) TRY(merge_add_part(m, m->o->parts[i]));
    TRY(check_parts(m));
    TRY(check_target(m, m->o->output_path));
    return write_output(m);
}

struct status merge_run(const struct merge_options *options, struct merge_result *out)
{
    *out = (struct merge_result){.n_rows = 0};
    struct merge m = {.o = options, .result = out, .journal_fd = -1};
    strbuf_init(&m.mended);
    strbuf_init(&m.framed);
    row_frames_init(&m.frames, encoder_format_of(options->output_path), options->frame_bytes);
    const struct status st = run_merge(&m);
    close_part(&m);
    for (uint32_t i = 0; i < m.n; i++) {
        mem_free(&m.parts[i].journal);
        journal_facts_fini(&m.parts[i].facts);
    }
    mem_free(&m.parts);
    line_reader_destroy(&m.input);
    id_set_fini(&m.ids);
    mem_free(&m.row);
    strbuf_fini(&m.mended);
    strbuf_fini(&m.framed);
    row_frames_fini(&m.frames);
    return st;
}
