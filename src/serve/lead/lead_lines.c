/* The lead's port (lead_port.h) whose requests are the lines of files: opens input, output and
 * journal, writes rows to output and journal, and closes all three. lead_input.c reads the lines,
 * lead_partial.c saves unfinished rows. */
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "serve/lead/lead_private.h"
#include "serve/output/result_row.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct status count_row(struct lead *l, const struct request *r)
{
    struct lead_rows *rows = &l->lines.rows;
    rows->n++;
    if (r->error.code == NULL || rows->n_errors++ >= LEAD_ERRORS_SHOWN) return status_ok();
    struct strbuf *s = &rows->shown[rows->n_errors - 1];
    const struct line_place place = line_reader_place(l->lines.reader, r->line);
    if (l->lines.input->n > 1) strbuf_printf(s, "%s, ", place.path);
    strbuf_printf(s, "line %llu, custom_id ", (unsigned long long)place.number);
    strbuf_json_string(s, r->custom_id.bytes, r->custom_id.n < 80 ? r->custom_id.n : 80);
    strbuf_printf(s, ": %s: %s", r->error.code, r->error.message);
    return strbuf_status(s);
}

void lead_lines_report(const struct lead *l)
{
    const struct lead_rows *rows = &l->lines.rows;
    if (rows->n == 0 || rows->n_errors < rows->n || l->o.audit != NULL) return;
    log_line(LOG_WARN,
             "all %llu rows of this run are error rows; the first:", (unsigned long long)rows->n);
    for (size_t i = 0; i < LEAD_ERRORS_SHOWN && i < rows->n; i++)
        log_line(LOG_WARN, "  %s", rows->shown[i].data);
}

/* Adds a row's record to the part of --save-logprobs, unless another job has taken the part over.
 */
static struct status put_in_part(struct lead *l, const struct request *r)
{
    TRY(file_claims_check(l->o.journal.claims));
    return logprobs_part_put(l->lines.part, r);
}

static struct status lines_put(void *user, struct lead *l, const struct request *r)
{
    (void)user;
    TRY(count_row(l, r));
    strbuf_clear(&l->row);
    TRY(result_row_write(r, &l->rules, l->o.model_name, &l->row));
    struct result_row row = {.text = l->row.data, .n = l->row.n, .is_error = r->error.code != NULL};
    row.sum_logprob = result_row_sum(r, &row.n_scored);
    if (l->lines.part != NULL && !row.is_error) TRY(put_in_part(l, r));
    if (l->lines.journal != NULL) {
        const struct id_hash id =
            r->is_named ? id_hash_of(r->custom_id.bytes, r->custom_id.n) : ID_HASH_NONE;
        const struct journal_row facts = {.id_low = id.low,
                                          .id_high = id.high,
                                          .n_prompt = (uint32_t)r->n_prompt,
                                          .n_generated = (uint32_t)result_row_n_generated(r),
                                          .is_error = row.is_error,
                                          .n_scored = row.n_scored,
                                          .sum_logprob = row.sum_logprob};
        struct journal_record record = {.type = JOURNAL_ROW,
                                        .line = r->line,
                                        .digest = {r->line_digest[0], r->line_digest[1]},
                                        .bytes = row.text,
                                        .n_bytes = row.n};
        journal_row_pack(&facts, record.values);
        TRY(journal_add(l->lines.journal, &record));
    }
    if (l->o.audit != NULL) audit_compare(l->o.audit, r->line, row.text, row.n);
    return result_writer_put(l->lines.writer, r->index, &row);
}

struct status lead_store_rows(void *user, const char *rows, size_t n_bytes, uint64_t *at)
{
    const struct lead *l = user;
    TRY(file_claims_check(l->o.journal.claims));
    return logprobs_part_put_rows(l->lines.part, rows, n_bytes, at);
}

/* Makes the rows so far durable in the journal, after their log-probabilities if these are saved.
 */
static struct status commit_rows(struct lead *l)
{
    if (l->lines.part != NULL && journal_is_dirty(l->lines.journal))
        TRY(logprobs_part_sync(l->lines.part));
    return journal_commit(l->lines.journal, l->lines.n_read, line_reader_done(l->lines.reader));
}

struct status lead_flush(struct lead *l, bool now)
{
    TRY(file_claims_check(l->o.journal.claims));
    if (l->lines.journal == NULL) return result_writer_flush(l->lines.writer);
    if (!now && journal_is_dirty(l->lines.journal) && !journal_is_due(l->lines.journal))
        return status_ok();
    struct status st = commit_rows(l);
    if (!status_failed(&st)) st = result_writer_flush(l->lines.writer);
    l->lines.failed = l->lines.failed || status_failed(&st);
    return st;
}

/* Refuses an output that has bytes but no journal, unless --restart is given. */
static struct status refuse_strange_output(const struct lead_options *o)
{
    struct stat info;
    if (o->flags.restart || file_exists(o->journal.path) || stat(o->output_path, &info) != 0 ||
        info.st_size == 0) {
        return status_ok();
    }
    return status_make(STATUS_USAGE,
                       "output %s: it holds %lld bytes and there is no journal %s to resume from; "
                       "name another output, or overwrite it with --restart (or --no-journal)",
                       o->output_path, (long long)info.st_size, o->journal.path);
}

static struct status resume(struct lead *l)
{
    const struct journal_facts *facts = journal_facts_of(l->lines.journal);
    uint64_t n_bytes;
    bool was_equal;
    if (line_reader_is_repeatable(l->lines.reader)) {
        TRY(journal_check_input(l->lines.journal, l->lines.input, l->o.part));
    }
    TRY(lead_take_finished_rows(l));
    TRY(result_writer_settle(l->lines.writer, &n_bytes, &was_equal));
    l->lines.is_complete = facts->is_complete;
    if (facts->n_rows + facts->n_partial_records == 0) return status_ok();
    log_line(LOG_INFO, "journal %s: %llu rows are done, %llu are in the output%s",
             l->o.journal.path, (unsigned long long)facts->n_rows,
             (unsigned long long)l->lines.n_read, was_equal ? "" : " (which was repaired)");
    return status_ok();
}

static struct result_writer_options writer_options(const struct lead_options *o)
{
    return (struct result_writer_options){.path = o->audit != NULL ? "/dev/null" : o->output_path,
                                          .window_rows = o->window_rows,
                                          .window_bytes = o->window_bytes,
                                          .frame_bytes = o->flags.frame_bytes,
                                          .failpoint = o->journal.failpoint};
}

/* Opens or makes the part of --save-logprobs. A complete job needs no part, only the finished
 * file. */
static struct status open_part(struct lead *l)
{
    const struct logprobs_options *save = l->o.save;
    if (save == NULL) return status_ok();
    const struct journal_facts *facts =
        l->lines.journal != NULL ? journal_facts_of(l->lines.journal) : NULL;
    if (facts == NULL || !facts->is_complete)
        return logprobs_part_open(save, facts != NULL && facts->n_rows > 0, &l->lines.part);
    if (file_exists(save->path)) return status_ok();
    return status_make(STATUS_USAGE,
                       "--save-logprobs %s: the file is gone, but the job is complete; --restart "
                       "makes the file and all rows again",
                       save->path);
}

/* Refuses --retry-errors if the saved records of the good rows are gone: before the journal is
 * rewritten, so that a complete job stays complete. */
static struct status refuse_lost_part(const struct lead_options *o)
{
    struct journal_facts facts;
    if (!o->flags.retry_errors || o->save == NULL || logprobs_part_exists(o->save->path))
        return status_ok();
    const int fd = file_open_regular(o->journal.path, O_RDONLY);
    if (fd < 0) return status_ok(); /* journal_open says why */
    const struct status st = journal_facts_read(fd, o->journal.path, &facts);
    close(fd);
    const bool is_needed =
        !status_failed(&st) && facts.n_error_rows > 0 && facts.n_rows > facts.n_error_rows;
    journal_facts_fini(&facts);
    if (!is_needed) return st;
    return status_make(STATUS_USAGE,
                       "--retry-errors: %s.part is gone, which has what --save-logprobs saved of "
                       "the other rows; --restart makes all rows again",
                       o->save->path);
}

static struct status lead_open_journal(struct lead *l)
{
    const struct lead_options *o = &l->o;
    const struct journal_options jo = {.path = o->journal.path,
                                       .settings =
                                           o->journal.settings != NULL ? o->journal.settings : "",
                                       .session = o->journal.session,
                                       .input_bytes = line_reader_size(l->lines.reader),
                                       .restart = o->flags.restart,
                                       .retry_errors = o->flags.retry_errors,
                                       .commit_bytes = o->journal.commit_bytes,
                                       .failpoint = o->journal.failpoint};
    TRY(refuse_strange_output(o));
    TRY(refuse_lost_part(o));
    TRY(journal_open(&jo, &l->lines.journal));
    TRY(open_part(l));
    const struct result_writer_options wo = writer_options(o);
    TRY(result_writer_resume(&wo, &l->lines.writer));
    return resume(l);
}

static struct status open_files(struct lead *l)
{
    const struct lead_options *o = &l->o;
    const struct result_writer_options wo = writer_options(o);
    l->lines.one_input = input_files_one(&l->o.input_path);
    l->lines.input = o->inputs != NULL ? o->inputs : &l->lines.one_input;
    TRY(line_reader_create_all(l->lines.input, 0, &l->lines.reader));
    TRY(line_reader_check(l->lines.reader));
    if (o->part != NULL) {
        TRY(line_reader_set_part(l->lines.reader, o->part));
        l->lines.ids.n_lines = o->part->n_before; /* the set of ids counts lines of the whole
                                                     input */
    }
    if (o->audit != NULL) return result_writer_create(&wo, &l->lines.writer);
    if (strcmp(o->output_path, "-") != 0 && line_reader_is_file(l->lines.reader, o->output_path)) {
        return status_make(STATUS_USAGE, "output %s: expected another file than the input %s",
                           o->output_path, o->input_path);
    }
    if (o->journal.path != NULL) return lead_open_journal(l);
    TRY(open_part(l));
    return result_writer_create(&wo, &l->lines.writer);
}

static struct status lines_read(void *user, struct lead *l)
{
    (void)user;
    return lead_read_lines(l);
}

static bool lines_are_read(const void *user)
{
    const struct lead *l = user;
    return l->lines.all_read;
}

static struct status save_running(void *user, struct request *r)
{
    struct lead *l = user;
    return lead_save_tokens(l, r, (size_t)l->o.flags.checkpoint_tokens);
}

static struct status lines_commit(void *user, struct lead *l, int32_t group)
{
    (void)user;
    if (l->lines.journal != NULL && l->o.flags.checkpoint_tokens > 0) {
        TRY(scheduler_visit(l->scheduler, group, save_running, l));
    }
    return lead_flush(l, false);
}

/* Always true: a drain does not wait for answers; the journal keeps the unfinished ones. */
static bool lines_may_stop(void *user, struct lead *l)
{
    (void)user;
    (void)l;
    return true;
}

static struct status lines_drain(void *user, struct lead *l)
{
    (void)user;
    if (l->lines.journal == NULL) return status_ok();
    TRY(lead_save_all(l));
    (void)failpoint_pass(l->o.journal.failpoint, FAILPOINT_DRAIN);
    return status_ok();
}

static void lines_save(void *user)
{
    struct lead *l = user;
    if (l->lines.journal == NULL) return;
    struct status st = file_claims_check(l->o.journal.claims);
    if (!status_failed(&st) && l->lines.part != NULL) st = logprobs_part_sync(l->lines.part);
    if (!status_failed(&st)) st = journal_save(l->lines.journal);
    if (status_failed(&st)) log_line(LOG_ERROR, "%s", st.text);
}

/* Allows for four commits, each as slow as journal_commit_s. */
static double lines_end_s(const void *user)
{
    const struct lead *l = user;
    return l->lines.journal != NULL ? 4 * journal_commit_s(l->lines.journal) : 0;
}

/* Marks the journal complete, once the output is durable. */
static struct status end_journal(struct lead *l)
{
    (void)failpoint_pass(l->o.journal.failpoint, FAILPOINT_FINISH);
    const struct journal_record end = {
        .type = JOURNAL_END, .values = {l->lines.n_read, result_writer_offset(l->lines.writer)}};
    TRY(journal_add(l->lines.journal, &end));
    return journal_commit(l->lines.journal, l->lines.n_read, line_reader_done(l->lines.reader));
}

static bool all_rows_are_written(const struct lead *l)
{
    return l->lines.all_read && result_writer_n_open(l->lines.writer) == 0;
}

/* Makes the file of log-probabilities, if they are saved. Must come before end_journal, which marks
 * the job complete.
 */
static struct status end_saved(struct lead *l)
{
    return l->lines.part != NULL ? logprobs_part_finish(l->lines.part) : status_ok();
}

static struct status close_without_journal(struct lead *l)
{
    const bool all_written = all_rows_are_written(l);
    TRY(result_writer_close(l->lines.writer));
    return all_written ? end_saved(l) : status_ok();
}

/* Removes the part with the log-probabilities of a complete job. Keeps it while the job has error
 * rows, because --retry-errors makes the file again from it. */
static void drop_part(const struct lead *l)
{
    if (l->o.save == NULL || l->o.audit != NULL) return;
    if (result_writer_totals(l->lines.writer).n_error_rows == 0)
        logprobs_part_remove(l->o.save->path);
}

static struct status close_files(struct lead *l)
{
    TRY(file_claims_check(l->o.journal.claims));
    if (l->lines.journal == NULL) return close_without_journal(l);
    if (l->lines.failed) { /* finished rows can still go to the journal when the output failed */
        return commit_rows(l);
    }
    TRY(lead_flush(l, true));
    if (!all_rows_are_written(l) && !l->lines.is_complete)
        return result_writer_show(l->lines.writer);
    TRY(result_writer_close(l->lines.writer));
    if (!l->lines.is_complete) {
        TRY(end_saved(l));
        TRY(end_journal(l));
    }
    drop_part(l);
    return status_ok();
}

static struct status lines_close(void *user)
{
    return close_files(user);
}

static void lines_view(const void *user, struct progress_view *v)
{
    const struct lead *l = user;
    const uint64_t size = line_reader_size(l->lines.reader);
    v->n_done = result_writer_totals(l->lines.writer).n_rows;
    v->n_read = l->lines.n_read;
    v->n_waiting = result_writer_n_waiting(l->lines.writer);
    v->all_read = l->lines.all_read;
    v->read_fraction = size == 0 ? -1 : (double)line_reader_done(l->lines.reader) / (double)size;
}

static void lines_sum(const void *user, struct serve_summary *s)
{
    const struct lead *l = user;
    const struct result_totals t = result_writer_totals(l->lines.writer);
    s->n_rows = t.n_rows;
    s->n_error_rows = t.n_error_rows;
    s->sum_logprob = t.sum_logprob;
    s->n_scored = t.n_scored;
    if (t.n_scored > 0) s->perplexity = exp(-t.sum_logprob / (double)t.n_scored);
    if (l->lines.journal == NULL) return;
    s->n_commits = journal_n_commits(l->lines.journal);
    s->commit_s = journal_commit_s(l->lines.journal);
}

struct status lead_lines_open(struct lead *l)
{
    l->port = (struct lead_port){.user = l,
                                 .read = lines_read,
                                 .is_at_end = lines_are_read,
                                 .put = lines_put,
                                 .commit = lines_commit,
                                 .may_stop = lines_may_stop,
                                 .drain = lines_drain,
                                 .save = lines_save,
                                 .end_s = lines_end_s,
                                 .close = lines_close,
                                 .view = lines_view,
                                 .sum = lines_sum};
    if (l->o.journal.path != NULL) id_set_spill_beside(&l->lines.ids, l->o.journal.path);
    return open_files(l);
}

void lead_lines_close(struct lead *l)
{
    struct lead_lines *s = &l->lines;
    line_reader_destroy(&s->reader);
    result_writer_destroy(&s->writer);
    if (s->part != NULL && s->journal == NULL) logprobs_part_remove(l->o.save->path);
    logprobs_part_destroy(&s->part);
    journal_destroy(&s->journal);
    id_set_fini(&s->ids);
    for (size_t i = 0; i < LEAD_ERRORS_SHOWN; i++) strbuf_fini(&s->rows.shown[i]);
}
