/* Reads a batch's lines, writes their rows, and takes over rows of an earlier server. */
#include "serve/http/batch_run.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/http/batch_adapters.h"
#include "serve/input/input_files.h"
#include "serve/input/line_reader.h"
#include "serve/journal/id_set.h"
#include "serve/journal/journal.h"
#include "serve/lead/lead.h"
#include "serve/output/result_row.h"
#include "serve/output/result_writer.h"
#include "serve/request/request.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Limits on the work before one step, because calls wait meanwhile: lines, rows of an earlier
 * server, bytes of lines, and steps of compiling grammars (serve/request/guide.h; 2^20 take about
 * 0.01 s) and of chat templates (text/chat/jinja.h). Reading stops after the line that exceeds a
 * limit. WINDOW_ROWS and WINDOW_BYTES bound the rows that are not yet written. */
enum {
    LINES_PER_STEP = 64,
    ROWS_PER_STEP = 1024,
    BYTES_PER_STEP = 1 << 20,
    WORK_STEPS_PER_STEP = 1 << 20,
    WINDOW_ROWS = 4096,
    WINDOW_BYTES = 128 << 20
};

struct batch_run {
    struct batch *batch;
    struct line_reader *reader;
    struct result_writer *writer;
    struct journal *journal;
    struct id_set ids;
    char *input_path, *output_path, *journal_path; /* owned */
    char *settings;                   /* owned: the settings with which the batch began */
    struct request_adapter *adapters; /* owned: from batch_adapters_hide; NULL: no line has been
                                         read */
    struct file_claims *claims;       /* borrowed */
    uint64_t n_read;
    uint64_t n_template_steps; /* template steps of all lines read */
    bool resumes, all_read, is_cancelled;
    const struct request **open; /* [n_open] requests that the lead has; the array is owned */
    size_t n_open, open_capacity;
};

/* Sets r->settings: to those of the batch's journal if the server's differ only by more adapters;
 * otherwise to the server's, which journal_open then compares with the journal's. */
static struct status settle_settings(struct batch_run *r, const char *settings)
{
    char *was = NULL;
    const int fd = file_open_regular(r->journal_path, O_RDONLY);
    if (fd < 0) return mem_strndup(&r->settings, settings, strlen(settings));
    struct status st = journal_settings_read(fd, r->journal_path, &was);
    close(fd);
    const char *chosen = was != NULL && batch_adapters_agree(was, settings) ? was : settings;
    if (!status_failed(&st)) st = mem_strndup(&r->settings, chosen, strlen(chosen));
    mem_free(&was);
    return st;
}

static struct status open_batch_files(struct batch_run *r, const char *settings)
{
    struct stat info; /* the server must not wait for the writer of a FIFO */
    if (stat(r->input_path, &info) == 0 && !S_ISREG(info.st_mode))
        return status_make(STATUS_INPUT, "%s: expected a regular file", r->input_path);
    TRY(line_reader_create(r->input_path, 0, &r->reader));
    TRY(line_reader_check(r->reader));
    TRY(settle_settings(r, settings));
    const struct journal_options jo = {.path = r->journal_path,
                                       .settings = r->settings,
                                       .session = "serve",
                                       .input_bytes = line_reader_size(r->reader)};
    TRY(journal_open(&jo, &r->journal));
    const struct result_writer_options wo = {
        .path = r->output_path, .window_rows = WINDOW_ROWS, .window_bytes = WINDOW_BYTES};
    return result_writer_resume(&wo, &r->writer);
}

/* Writes the row that the journal has for a line. */
static struct status take_journal_row(struct batch_run *r, const struct journal_hit *hit)
{
    const struct id_hash id = {hit->row.id_low, hit->row.id_high};
    const struct result_row row = {
        .text = hit->text, .n = hit->n_text, .is_error = hit->row.is_error};
    uint64_t index;
    TRY(id_set_add_hash(&r->ids, id));
    result_writer_open(r->writer, row.n, &index);
    r->n_read++;
    return result_writer_put(r->writer, index, &row);
}

struct status batch_run_create(const struct batch_store *store, struct batch *b,
                               const char *settings, struct batch_run **out)
{
    struct batch_run *r = NULL;
    struct status st;
    *out = NULL;
    TRY(mem_alloc(&r, 1, sizeof *r, "batch"));
    r->batch = b;
    r->claims = store->claims;
    r->resumes = true;
    TRY_GOTO(st, batch_store_path(store, b->input, ".jsonl", &r->input_path), fail);
    TRY_GOTO(st, batch_store_path(store, b->output, ".jsonl", &r->output_path), fail);
    TRY_GOTO(st, batch_store_path(store, b->id, ".journal", &r->journal_path), fail);
    id_set_spill_beside(&r->ids, r->journal_path);
    TRY_GOTO(st, open_batch_files(r, settings), fail);
    *out = r;
    return st;
fail:
    batch_run_destroy(&r);
    return st;
}

void batch_run_destroy(struct batch_run **run)
{
    struct batch_run *r = *run;
    if (r == NULL) return;
    line_reader_destroy(&r->reader);
    result_writer_destroy(&r->writer);
    journal_destroy(&r->journal);
    id_set_fini(&r->ids);
    mem_free(&r->open);
    mem_free(&r->settings);
    mem_free(&r->adapters);
    mem_free(&r->input_path);
    mem_free(&r->output_path);
    mem_free(&r->journal_path);
    mem_free(run);
}

/* ---- lines ---- */

static struct status make_request(struct batch_run *r, const struct lead *l,
                                  const struct line *line, struct request **out)
{
    if (line->kind == LINE_TOO_LONG) {
        char message[96];
        snprintf(message, sizeof message, "the line has %zu bytes, expected at most %d", line->n,
                 LINE_BYTES_MAX);
        return request_create_failed(line->number, "line_too_long", message, out);
    }
    struct request_rules rules = *lead_rules(l);
    if (r->adapters == NULL) TRY(batch_adapters_hide(&rules, r->settings, &r->adapters));
    rules.adapters = r->adapters;
    return request_create(&rules, line->number, line->text, line->n, out);
}

/* Makes the request an error row if an earlier line has its custom_id; names it if it has none. */
static struct status take_custom_id(struct batch_run *r, struct request *request)
{
    char name[ID_NAME_MAX];
    bool fresh = true;
    if (!request->is_named) {
        TRY(id_set_add_line(&r->ids, name));
        return request_rename(request, name);
    }
    TRY(id_set_add(&r->ids, request->custom_id.bytes, request->custom_id.n, &fresh));
    return fresh ? status_ok()
                 : request_fail(request, REQUEST_DUPLICATE_CODE, REQUEST_DUPLICATE_MESSAGE);
}

static struct status remember_request(struct batch_run *r, const struct request *request)
{
    if (r->n_open == r->open_capacity) {
        const size_t grown = r->n_open + r->n_open / 2 + 64;
        TRY(mem_grow(&r->open, r->n_open, grown, sizeof(const struct request *), "batch"));
        r->open_capacity = grown;
    }
    r->open[r->n_open++] = request;
    return status_ok();
}

/* Makes a line's request and opens its row. */
static struct status open_line(struct batch_run *r, const struct lead *l, const struct line *line,
                               struct request **out)
{
    const struct line_digest digest = line_digest_of(line);
    TRY(make_request(r, l, line, out));
    struct request *request = *out;
    r->n_template_steps += request->n_template_steps;
    request->line_digest[0] = digest.low;
    request->line_digest[1] = digest.high;
    request_run_last(request);
    struct status st = take_custom_id(r, request);
    if (!status_failed(&st)) st = remember_request(r, request);
    if (status_failed(&st)) {
        request_destroy(out);
        return st;
    }
    result_writer_open(r->writer, request_cost_bytes(request, lead_rules(l)), &request->index);
    r->n_read++;
    return status_ok();
}

/* Finds the row that the journal has for a line. Errors: STATUS_INPUT if the line no longer has the
 * bytes that the journal recorded. */
static struct status find_row(struct batch_run *r, const struct line *line, struct journal_hit *hit)
{
    const struct line_digest digest = line_digest_of(line);
    TRY(journal_find(r->journal, line->number, hit));
    if (hit->kind == JOURNAL_HIT_NONE ||
        (hit->digest.low == digest.low && hit->digest.high == digest.high))
        return status_ok();
    return journal_line_changed(line_reader_place(r->reader, line->number));
}

static struct status end_of_batch(struct batch_run *r)
{
    r->all_read = true;
    if (journal_facts_of(r->journal)->last_line <= r->n_read) return status_ok();
    return journal_line_changed(line_reader_place(r->reader, r->n_read + 1));
}

/* Reads the next line. Takes its row from the journal, or makes its request (*out, else NULL).
 * *n_bytes grows by the line's length. *waits: the whole line cannot be read yet. */
static struct status next_batch_line(struct batch_run *r, const struct lead *l, size_t *n_bytes,
                                     bool *waits, struct request **out)
{
    struct line line;
    struct journal_hit hit;
    *out = NULL;
    TRY(line_reader_next(r->reader, false, &line));
    *waits = line.kind == LINE_WAIT;
    if (*waits) return status_ok();
    if (line.kind == LINE_END) return end_of_batch(r);
    *n_bytes += line.n;
    TRY(find_row(r, &line, &hit));
    return hit.kind == JOURNAL_HIT_ROW ? take_journal_row(r, &hit) : open_line(r, l, &line, out);
}

/* Hands to the writer some rows that an earlier server finished, up to the first missing one. The
 * writer compares them with the bytes of the output. */
static struct status resume_batch(struct batch_run *r, const struct lead *l)
{
    struct journal_hit hit;
    struct request *none;
    size_t n_bytes = 0;
    bool waits = false, was_equal;
    for (int i = 0; i < ROWS_PER_STEP && n_bytes < BYTES_PER_STEP && !waits; i++) {
        TRY(journal_find(r->journal, r->n_read + 1, &hit));
        r->resumes = hit.kind == JOURNAL_HIT_ROW;
        if (r->resumes) TRY(next_batch_line(r, l, &n_bytes, &waits, &none));
        if (!r->resumes || r->all_read) {
            uint64_t n_written;
            r->resumes = false;
            return result_writer_settle(r->writer, &n_written, &was_equal);
        }
    }
    return status_ok();
}

static uint64_t batch_work_steps(const struct batch_run *r, const struct lead *l)
{
    const struct guides *guides = lead_rules(l)->guides;
    return r->n_template_steps + (guides != NULL ? guides_steps(guides) : 0);
}

struct status batch_run_read(struct batch_run *r, struct lead *l, struct status *failure)
{
    const uint64_t n_steps_before = batch_work_steps(r, l);
    size_t n_bytes = 0;
    bool waits = false;
    *failure = r->resumes ? resume_batch(r, l) : status_ok();
    for (int i = 0; i < LINES_PER_STEP && n_bytes < BYTES_PER_STEP && !waits; i++) {
        struct request *request;
        const bool ends = r->is_cancelled || r->batch->status == BATCH_CANCELLING;
        if (r->resumes || r->all_read || ends || status_failed(failure) || !lead_wants_more(l) ||
            !result_writer_has_room(r->writer) ||
            batch_work_steps(r, l) - n_steps_before >= WORK_STEPS_PER_STEP)
            return status_ok();
        *failure = next_batch_line(r, l, &n_bytes, &waits, &request);
        if (!status_failed(failure) && request != NULL) TRY(lead_take(l, request));
    }
    return status_ok();
}

bool batch_run_resumes(const struct batch_run *r)
{
    return r->resumes;
}

/* ---- rows ---- */

static void forget_request(struct batch_run *r, const struct request *request)
{
    size_t i = 0;
    while (i < r->n_open && r->open[i] != request) i++;
    if (i < r->n_open) r->open[i] = r->open[--r->n_open];
}

static struct status add_to_journal(struct batch_run *r, const struct request *request,
                                    const struct result_row *row)
{
    const struct id_hash id = request->is_named
                                  ? id_hash_of(request->custom_id.bytes, request->custom_id.n)
                                  : ID_HASH_NONE;
    const struct journal_row facts = {.id_low = id.low,
                                      .id_high = id.high,
                                      .n_prompt = (uint32_t)request->n_prompt,
                                      .n_generated = (uint32_t)result_row_n_generated(request),
                                      .is_error = row->is_error};
    struct journal_record record = {.type = JOURNAL_ROW,
                                    .line = request->line,
                                    .digest = {request->line_digest[0], request->line_digest[1]},
                                    .bytes = row->text,
                                    .n_bytes = row->n};
    journal_row_pack(&facts, record.values);
    return journal_add(r->journal, &record);
}

struct status batch_run_put(struct batch_run *r, struct lead *l, const struct request *request)
{
    struct strbuf text;
    forget_request(r, request);
    if (r->is_cancelled) return status_ok();
    strbuf_init(&text);
    struct status st = result_row_write(request, lead_rules(l), NULL, &text);
    const struct result_row row = {
        .text = text.data, .n = text.n, .is_error = request->error.code != NULL};
    if (!status_failed(&st)) st = add_to_journal(r, request, &row);
    if (!status_failed(&st)) st = result_writer_put(r->writer, request->index, &row);
    strbuf_fini(&text);
    return st;
}

/* Copies the writer's counts to the batch. Raises n_lines when more lines were read, because a long
 * file's lines were only counted up to a limit. */
static void count_batch_rows(struct batch_run *r)
{
    const struct result_totals t = result_writer_totals(r->writer);
    if (r->batch->n_lines < r->n_read) r->batch->n_lines = r->n_read;
    r->batch->n_completed = t.n_rows - t.n_error_rows;
    r->batch->n_failed = t.n_error_rows;
}

struct status batch_run_commit(struct batch_run *r, bool now)
{
    TRY(file_claims_check(r->claims));
    if (!now && journal_is_dirty(r->journal) && !journal_is_due(r->journal)) return status_ok();
    TRY(journal_commit(r->journal, r->n_read, line_reader_done(r->reader)));
    TRY(result_writer_flush(r->writer));
    count_batch_rows(r);
    return status_ok();
}

struct status batch_run_cancel(struct batch_run *r, struct lead *l)
{
    r->is_cancelled = true;
    for (size_t i = r->n_open; i > 0; i--) {
        if (i > r->n_open) continue; /* a cancellation may end several requests */
        TRY(lead_cancel(l, r->open[i - 1], REQUEST_CANCELLED_CODE, "the batch was cancelled"));
    }
    return status_ok();
}

bool batch_run_is_done(const struct batch_run *r)
{
    return r->all_read && r->n_open == 0;
}

size_t batch_run_n_open(const struct batch_run *r)
{
    return r->n_open;
}

struct status batch_run_close(struct batch_run *r)
{
    TRY(batch_run_commit(r, true));
    return result_writer_close(r->writer);
}

void batch_run_save(struct batch_run *r)
{
    struct status st = file_claims_check(r->claims);
    if (!status_failed(&st)) st = journal_save(r->journal);
    if (status_failed(&st)) log_line(LOG_ERROR, "batch %s: %s", r->batch->id, st.text);
}
