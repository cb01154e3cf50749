/* Writes records, and reads them back in the order of the lines through an index on disk: memory
 * is bounded by the largest record. */
#include "serve/output/logprobs_part_private.h"

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/file/h5.h"
#include "serve/output/result_row.h"
#include "serve/request/request_choice.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { INDEX_ENTRIES = 1024, ANSWER_WORDS = 4, WORD_BYTES = 4 };

_Static_assert((int)LOGPROBS_K_MAX == (int)PLAN_TOPS_MAX, "a plan can ask for all that is saved");

static const char part_magic[8] = "SHOALP1\n";

/* The bit that is set in an index entry if its line has a row in this job. Entries of earlier runs
 * lack it until logprobs_part_check: if a line's row never reached the journal, the line may have
 * been changed so that it gives an error row, or been taken out of the input. */
static const uint64_t entry_counts = (uint64_t)1 << 63;

/* The head of a record. */
struct part_head {
    char magic[8];
    uint64_t line, digest[2];
    uint32_t k, type;             /* from the job's logprobs_shape */
    uint64_t n_answers, n_tokens; /* answers of the line; tokens of all answers together */
    uint64_t n_bytes;             /* bytes that follow the head */
    uint64_t checksum;            /* XXH3-64 of these bytes, seeded with the XXH3-64 of the
                                     head's other members */
};

struct status part_error(const char *path, const char *what, uint64_t at, int error)
{
    return status_make(STATUS_IO, "--save-logprobs, %s: %s at byte %llu failed: %s", path, what,
                       (unsigned long long)at, strerror(error));
}

struct status part_write(const char *path, int fd, const void *bytes, size_t n, uint64_t at)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = pwrite(fd, (const char *)bytes + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return part_error(path, "writing", at + done, got < 0 ? errno : ENOSPC);
        done += (size_t)got;
    }
    return status_ok();
}

struct status part_read(const char *path, int fd, void *bytes, size_t n, uint64_t at,
                        size_t *n_read)
{
    *n_read = 0;
    while (*n_read < n) {
        const ssize_t got = pread(fd, (char *)bytes + *n_read, n - *n_read, (off_t)(at + *n_read));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return part_error(path, "reading", at + *n_read, errno);
        if (got == 0) break;
        *n_read += (size_t)got;
    }
    return status_ok();
}

static uint64_t head_checksum(const struct part_head *head, const char *bytes)
{
    struct part_head h = *head;
    h.checksum = 0;
    return XXH3_64bits_withSeed(bytes, head->n_bytes, XXH3_64bits(&h, sizeof h));
}

/* ---- the index ---- */

static struct status index_create(struct logprobs_part *p)
{
    struct strbuf name;
    strbuf_init(&name);
    strbuf_printf(&name, "%s.index-XXXXXX", p->path);
    struct status st = strbuf_status(&name);
    if (!status_failed(&st)) {
        p->index = mkostemp(name.data, O_CLOEXEC);
        if (p->index < 0)
            st = status_make(STATUS_IO, "--save-logprobs, %s: cannot be made: %s", name.data,
                             strerror(errno));
        else
            unlink(name.data);
    }
    strbuf_fini(&name);
    return st;
}

/* Sets the line's entry: 1 + its record's offset, with entry_counts if the record is to be in
 * FILE.h5. */
static struct status index_set(struct logprobs_part *p, uint64_t line, uint64_t entry)
{
    if (line >= p->n_lines) p->n_lines = line + 1;
    return part_write(p->path, p->index, &entry, sizeof entry, line * sizeof entry);
}

/* Reads n entries, the first that of `line`; entries beyond the file's end are 0. */
static struct status index_get(const struct logprobs_part *p, uint64_t line, uint64_t *entries,
                               size_t n)
{
    size_t n_read;
    memset(entries, 0, n * sizeof *entries);
    return part_read(p->path, p->index, entries, n * sizeof *entries, line * sizeof *entries,
                     &n_read);
}

/* ---- reading records ---- */

/* Reads the record at byte `at` into p->bytes. *found is false if the record is torn, damaged or
 * another job's. */
static struct status read_record(struct logprobs_part *p, uint64_t at, struct part_head *head,
                                 bool *found)
{
    struct stat info;
    size_t n;
    *found = false;
    TRY(part_read(p->path, p->fd, head, sizeof *head, at, &n));
    if (n < sizeof *head || memcmp(head->magic, part_magic, sizeof part_magic) != 0 ||
        head->k != p->o.shape.k || head->type != p->o.shape.type)
        return status_ok();
    if (fstat(p->fd, &info) != 0) return part_error(p->path, "reading", at, errno);
    if (head->n_bytes > (uint64_t)info.st_size - at - sizeof *head) return status_ok();
    if (head->n_bytes > p->bytes_capacity) {
        TRY(mem_grow(&p->bytes, 0, head->n_bytes, 1, "log-probabilities"));
        p->bytes_capacity = head->n_bytes;
    }
    TRY(part_read(p->path, p->fd, p->bytes, head->n_bytes, at + sizeof *head, &n));
    *found = n == head->n_bytes && head_checksum(head, p->bytes) == head->checksum;
    return status_ok();
}

/* Finds the whole records of earlier runs, and cuts off what follows them. */
static struct status scan(struct logprobs_part *p)
{
    struct part_head head;
    bool found;
    for (;;) {
        TRY(part_skip_rows(p, &p->n));
        TRY(read_record(p, p->n, &head, &found));
        if (!found) break;
        TRY(index_set(p, head.line, p->n + 1));
        p->n += sizeof head + head.n_bytes;
    }
    if (ftruncate(p->fd, (off_t)p->n) == 0) return status_ok();
    return part_error(p->path, "cutting", p->n, errno);
}

struct status logprobs_part_check(struct logprobs_part *p, uint64_t line, const uint64_t digest[2])
{
    struct part_head head = {.line = 0};
    uint64_t entry;
    size_t n;
    TRY(index_get(p, line, &entry, 1));
    entry &= ~entry_counts;
    if (entry > 0) TRY(part_read(p->path, p->fd, &head, sizeof head, entry - 1, &n));
    if (head.line == line && memcmp(head.digest, digest, sizeof head.digest) == 0)
        return index_set(p, line, entry | entry_counts);
    return status_make(STATUS_INPUT,
                       "--save-logprobs, %s: it lacks line %llu, which the journal says is done; "
                       "bring the file back, or begin anew with --restart",
                       p->path, (unsigned long long)line);
}

/* ---- open and close ---- */

static struct status path_of_part(const char *path, char **out)
{
    struct strbuf name;
    strbuf_init(&name);
    strbuf_printf(&name, "%s.part", path);
    *out = name.data;
    return strbuf_status(&name);
}

struct status logprobs_part_open(const struct logprobs_options *options, bool resumes,
                                 struct logprobs_part **out)
{
    struct logprobs_part *p = NULL;
    struct status st;
    char *target = NULL;
    *out = NULL;
    TRY(mem_alloc(&p, 1, sizeof *p, "log-probabilities"));
    p->o = *options;
    p->fd = p->index = -1;
    strbuf_init(&p->record);
    TRY_GOTO(st, path_of_part(options->path, &p->path), fail);
    TRY_GOTO(st, mem_alloc(&p->numbers, options->shape.k, sizeof *p->numbers, "log-probabilities"),
             fail);
    TRY_GOTO(st, file_target_regular(options->path, &target), fail); /* refuses a bad path now,
                                                                        not when the job ends */
    mem_free(&target);
    p->fd = open(p->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (p->fd < 0 || (!resumes && ftruncate(p->fd, 0) != 0)) {
        st = status_make(STATUS_IO, "--save-logprobs, %s: cannot be opened: %s", p->path,
                         strerror(errno));
        goto fail;
    }
    TRY_GOTO(st, index_create(p), fail);
    TRY_GOTO(st, scan(p), fail);
    *out = p;
    return st;
fail:
    logprobs_part_destroy(&p);
    return st;
}

void logprobs_part_destroy(struct logprobs_part **part)
{
    struct logprobs_part *p = *part;
    if (p == NULL) return;
    if (p->fd >= 0) close(p->fd);
    if (p->index >= 0) close(p->index);
    strbuf_fini(&p->record);
    mem_free(&p->numbers);
    mem_free(&p->bytes);
    mem_free(&p->rows);
    mem_free(&p->path);
    mem_free(part);
}

bool logprobs_part_exists(const char *path)
{
    char *name = NULL;
    const struct status st = path_of_part(path, &name);
    const bool exists = !status_failed(&st) && file_exists(name);
    mem_free(&name);
    return exists;
}

void logprobs_part_remove(const char *path)
{
    char *name = NULL;
    const struct status st = path_of_part(path, &name);
    if (!status_failed(&st)) unlink(name);
    mem_free(&name);
}

/* ---- writing records ---- */

static void add_padding(struct strbuf *s)
{
    static const char zeros[WORD_BYTES];
    strbuf_add(s, zeros, (WORD_BYTES - s->n % WORD_BYTES) % WORD_BYTES);
}

/* Appends the k likely tokens of one position: with_codes their log-probabilities, otherwise their
 * ids. tops NULL: there are none, so all ids are -1. */
static void add_tops(struct logprobs_part *p, const struct plan_top *tops, size_t n_tops,
                     bool with_codes)
{
    uint16_t codes[LOGPROBS_K_MAX];
    const size_t k = p->o.shape.k;
    for (size_t i = 0; i < k; i++) {
        const int32_t id = tops != NULL && i < n_tops ? tops[i].id : -1;
        p->numbers[i] = id >= 0 ? tops[i].logprob : -INFINITY;
        if (!with_codes) strbuf_add(&p->record, (const char *)&id, sizeof id);
    }
    if (!with_codes) return;
    logprobs_encode(p->o.shape.type, p->numbers, k, codes);
    strbuf_add(&p->record, (const char *)codes, k * logprobs_bytes(p->o.shape.type));
}

/* Returns the likely tokens at token i of c. Those at prompt tokens are kept in `first`, the first
 * answer to the prompt. */
static const struct plan_top *tops_of(const struct request *c, const struct request *first,
                                      size_t i, size_t *n)
{
    *n = (size_t)(i < c->n_prompt ? first->ask->n_prompt_tops : c->ask->n_tops);
    if (i >= c->n_prompt) return c->logprobs.tops + (i - c->n_prompt) * *n;
    return i >= first->logprobs.score_from ? first->logprobs.prompt_tops + i * *n : NULL;
}

static float record_logprob(const struct request *c, const struct request *first, size_t i)
{
    if (i >= c->n_prompt) return c->logprobs.sampled[i - c->n_prompt];
    return i >= first->logprobs.score_from ? first->logprobs.scores[i] : NAN;
}

/* Appends answer c to p->record, and adds the number of its hidden rows to *n_hidden. `first`: the
 * first answer to the same prompt, which has the prompt's values. */
static void add_answer(struct logprobs_part *p, const struct request_bytes *id,
                       const struct request *c, const struct request *first, uint64_t *n_hidden)
{
    struct strbuf *s = &p->record;
    const size_t at = s->n, n = c->n_tokens;
    uint32_t words[ANSWER_WORDS] = {0, (uint32_t)n, (uint32_t)c->n_prompt, c->choice};
    size_t n_tops;
    strbuf_add(s, (const char *)words, sizeof words);
    h5_add_string(s, id->bytes, id->n);
    words[0] = (uint32_t)(s->n - at - sizeof words);
    if (!s->failed) memcpy(s->data + at, words, sizeof words);
    add_padding(s);
    strbuf_add(s, (const char *)c->tokens, n * sizeof *c->tokens);
    for (size_t i = 0; i < n; i++) {
        const float logprob = record_logprob(c, first, i);
        strbuf_add(s, (const char *)&logprob, sizeof logprob);
    }
    for (int with_codes = 0; with_codes < 2; with_codes++) {
        for (size_t i = 0; i < n; i++) {
            const struct plan_top *tops = tops_of(c, first, i, &n_tops);
            add_tops(p, tops, n_tops, with_codes == 1);
        }
    }
    add_padding(s);
    if (p->o.shape.hidden.layers.n > 0) *n_hidden += part_add_places(p, c, first);
}

/* Writes the record after the others. If the failpoint is due, writes half of it and then fails or
 * kills the process. */
static struct status write_record(struct logprobs_part *p)
{
    const struct strbuf *s = &p->record;
    if (failpoint_due(p->o.failpoint, FAILPOINT_LOGPROBS_WRITE)) {
        TRY(part_write(p->path, p->fd, s->data, s->n / 2, p->n));
        return part_error(p->path, "writing", p->n + s->n / 2, failpoint_strike(p->o.failpoint));
    }
    return part_write(p->path, p->fd, s->data, s->n, p->n);
}

struct status logprobs_part_put(struct logprobs_part *p, const struct request *r)
{
    struct part_head head = {.line = r->line,
                             .digest = {r->line_digest[0], r->line_digest[1]},
                             .k = p->o.shape.k,
                             .type = p->o.shape.type};
    const int32_t n_each = request_n_each(r);
    const bool has_hidden = p->o.shape.hidden.layers.n > 0;
    uint64_t n_hidden = 0;
    memcpy(head.magic, part_magic, sizeof part_magic);
    strbuf_clear(&p->record);
    strbuf_add(&p->record, (const char *)&head, sizeof head);
    if (has_hidden) strbuf_add(&p->record, (const char *)&n_hidden, sizeof n_hidden);
    for (int32_t i = 0; i < r->ask->n_choices; i++) {
        const struct request *c = result_row_choice(r, i);
        add_answer(p, &r->custom_id, c, result_row_choice(r, i - i % n_each), &n_hidden);
        head.n_tokens += c->n_tokens;
        head.n_answers++;
    }
    TRY(strbuf_status(&p->record));
    if (has_hidden) memcpy(p->record.data + sizeof head, &n_hidden, sizeof n_hidden);
    head.n_bytes = p->record.n - sizeof head;
    head.checksum = head_checksum(&head, p->record.data + sizeof head);
    memcpy(p->record.data, &head, sizeof head);
    TRY(write_record(p));
    TRY(index_set(p, r->line, (p->n + 1) | entry_counts));
    p->n += p->record.n;
    return status_ok();
}

struct status logprobs_part_sync(struct logprobs_part *p)
{
    const int error = failpoint_pass(p->o.failpoint, FAILPOINT_LOGPROBS_FSYNC);
    if (error == 0 && !p->is_lost && fdatasync(p->fd) == 0) return status_ok();
    const int reason = error != 0 ? error : p->is_lost ? EIO : errno;
    p->is_lost = true;
    return part_error(p->path, "fsync", 0, reason);
}

/* ---- the HDF5 file ---- */

/* Calls visit for the record of each line that has a row, in the order of the lines. */
static struct status each_line(struct logprobs_part *p, void *user,
                               struct status (*visit)(struct logprobs_part *p, uint64_t at,
                                                      void *user))
{
    uint64_t entries[INDEX_ENTRIES];
    for (uint64_t line = 0; line < p->n_lines; line += INDEX_ENTRIES) {
        TRY(index_get(p, line, entries, INDEX_ENTRIES));
        for (size_t i = 0; i < INDEX_ENTRIES; i++)
            if ((entries[i] & entry_counts) != 0)
                TRY(visit(p, (entries[i] & ~entry_counts) - 1, user));
    }
    return status_ok();
}

static struct status count_record(struct logprobs_part *p, uint64_t at, void *user)
{
    struct logprobs_shape *shape = user;
    struct part_head head;
    uint64_t n_hidden = 0;
    size_t n;
    TRY(part_read(p->path, p->fd, &head, sizeof head, at, &n));
    if (shape->hidden.layers.n > 0)
        TRY(part_read(p->path, p->fd, &n_hidden, sizeof n_hidden, at + sizeof head, &n));
    shape->n_rows += head.n_answers;
    shape->n_tokens += head.n_tokens;
    shape->hidden.n_rows += n_hidden;
    return status_ok();
}

static size_t padded(size_t n)
{
    return (n + WORD_BYTES - 1) / WORD_BYTES * WORD_BYTES;
}

/* Returns the bytes of an answer's arrays for n tokens. */
static size_t arrays_bytes(const struct logprobs_shape *shape, size_t n)
{
    return n * (2 + shape->k) * WORD_BYTES + padded(n * shape->k * logprobs_bytes(shape->type));
}

/* Adds to the HDF5 file the answer that begins at *at of the n_bytes in p->bytes, and moves *at
 * past it. *fits is false if the answer does not end within these bytes. */
static struct status copy_answer(struct logprobs_part *p, struct logprobs_file *f, size_t n_bytes,
                                 size_t *at, bool *fits)
{
    const struct logprobs_shape *shape = &p->o.shape;
    uint32_t words[ANSWER_WORDS] = {0};
    char *id = NULL;
    *fits = n_bytes - *at >= sizeof words;
    if (*fits) memcpy(words, p->bytes + *at, sizeof words);
    const size_t n = words[1], begin = *at + sizeof words, arrays = begin + padded(words[0]);
    *fits = *fits && words[2] <= n && arrays + arrays_bytes(shape, n) <= n_bytes;
    if (!*fits) return status_ok();
    size_t end = arrays + arrays_bytes(shape, n);
    if (shape->hidden.layers.n > 0) TRY(part_copy_rows(p, f, n_bytes, &end, fits));
    if (!*fits) return status_ok();
    TRY(mem_strndup(&id, p->bytes + begin, words[0]));
    const int32_t *tokens = (const int32_t *)(p->bytes + arrays);
    const float *logprobs = (const float *)(tokens + n);
    const int32_t *ids = (const int32_t *)(logprobs + n);
    const struct logprobs_row row = {.custom_id = id,
                                     .choice = (int32_t)words[3],
                                     .n = n,
                                     .n_prompt = words[2],
                                     .tokens = tokens,
                                     .token_logprobs = logprobs,
                                     .top_ids = ids,
                                     .top_logprobs = ids + n * shape->k,
                                     .hidden_first =
                                         p->o.span == HIDDEN_ANSWERS ? (int32_t)words[2] - 1 : 0};
    const struct status st = logprobs_file_add(f, &row);
    mem_free(&id);
    *at = end;
    return st;
}

static struct status copy_record(struct logprobs_part *p, uint64_t at, void *user)
{
    struct part_head head;
    bool good;
    size_t n =
        p->o.shape.hidden.layers.n > 0 ? sizeof(uint64_t) : 0; /* the number of hidden rows */
    TRY(read_record(p, at, &head, &good));
    good = good && head.n_bytes >= n;
    for (uint64_t i = 0; good && i < head.n_answers; i++)
        TRY(copy_answer(p, user, head.n_bytes, &n, &good));
    if (good) return status_ok();
    return status_make(STATUS_INPUT, "--save-logprobs, %s: the record at byte %llu is damaged",
                       p->path, (unsigned long long)at);
}

static struct status write_file(struct logprobs_part *p, const char *path)
{
    struct logprobs_shape shape = p->o.shape;
    struct logprobs_file *f = NULL;
    shape.n_rows = shape.n_tokens = shape.hidden.n_rows = 0;
    TRY(each_line(p, &shape, count_record));
    TRY(logprobs_file_create(path, &shape, &f));
    struct status st = each_line(p, f, copy_record);
    if (status_failed(&st)) {
        const struct status ignored = logprobs_file_close(&f);
        (void)ignored;
        return st;
    }
    return logprobs_file_close(&f);
}

struct status logprobs_part_finish(struct logprobs_part *p)
{
    char *target = NULL;
    struct strbuf temporary;
    TRY(file_target_regular(p->o.path, &target));
    strbuf_init(&temporary);
    strbuf_printf(&temporary, "%s.tmp", target);
    struct status st = strbuf_status(&temporary);
    if (!status_failed(&st)) st = write_file(p, temporary.data);
    const int error =
        status_failed(&st) ? 0 : failpoint_pass(p->o.failpoint, FAILPOINT_LOGPROBS_FILE);
    if (error != 0) st = part_error(temporary.data, "renaming", 0, error);
    if (!status_failed(&st)) st = file_commit(temporary.data, target);
    if (status_failed(&st) && temporary.data != NULL) unlink(temporary.data);
    strbuf_fini(&temporary);
    mem_free(&target);
    return st;
}
