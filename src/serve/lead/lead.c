/* Creates and ends the lead; writes rows to journal and output. lead_input.c reads the lines. */
#include "serve/lead/lead.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/lead/lead_private.h"
#include "serve/output/result_row.h"
#include "serve/request/beam.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { WINDOW_ROWS = 8192, WINDOW_BYTES = 256 << 20 };

struct status lead_start(struct lead *l, int32_t n_blocks, int32_t n_state_slots)
{
    const struct lead_options *o = &l->o;
    const struct scheduler_options so = {
        .rules = &l->rules,
        .n_replicas = o->n_replicas,
        .n_groups = o->n_groups,
        .n_blocks = n_blocks,
        .n_state_slots = n_state_slots,
        .flags = o->schedule,
        .draft_cost = o->draft_cost,
        .drafter = o->drafter,
        .drafter_user = o->drafter_user,
        .logits = o->mode == LEAD_SCORE ? o->logits : NULL,
        .logits_user = o->logits_user,
    };
    l->o.n_blocks = n_blocks;
    l->start_ns = clock_ns();
    progress_init(&l->progress, o->flags.quiet);
    if (o->flags.progress_bar) l->progress.is_terminal = true;
    return scheduler_create(&so, &l->stats, &l->scheduler);
}

static struct status count_row(struct lead *l, const struct request *r)
{
    struct lead_rows *rows = &l->rows;
    rows->n++;
    if (r->error_code == NULL || rows->n_errors++ >= LEAD_ERRORS_SHOWN) return status_ok();
    struct strbuf *s = &rows->shown[rows->n_errors - 1];
    strbuf_printf(s, "line %llu, custom_id ", (unsigned long long)r->line);
    strbuf_json_string(s, r->custom_id.bytes, r->custom_id.n < 80 ? r->custom_id.n : 80);
    strbuf_printf(s, ": %s: %s", r->error_code, r->error_message);
    return strbuf_status(s);
}

/* If all rows of the run are error rows, logs the first errors. */
static void say_all_failed(const struct lead *l)
{
    const struct lead_rows *rows = &l->rows;
    if (rows->n == 0 || rows->n_errors < rows->n || l->o.audit != NULL) return;
    log_line(LOG_WARN,
             "all %llu rows of this run are error rows; the first:", (unsigned long long)rows->n);
    for (size_t i = 0; i < LEAD_ERRORS_SHOWN && i < rows->n; i++)
        log_line(LOG_WARN, "  %s", rows->shown[i].data);
}

struct status lead_put_row(struct lead *l, const struct request *r)
{
    TRY(count_row(l, r));
    strbuf_clear(&l->row);
    TRY(result_row_write(r, &l->rules, l->o.model_name, &l->row));
    struct result_row row = {.text = l->row.data, .n = l->row.n, .is_error = r->error_code != NULL};
    row.sum_logprob = result_row_sum(r, &row.n_scored);
    if (l->journal != NULL) {
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
        TRY(journal_add(l->journal, &record));
    }
    if (l->o.audit != NULL) audit_compare(l->o.audit, r->line, row.text, row.n);
    return result_writer_put(l->writer, r->index, &row);
}

struct status lead_flush(struct lead *l, bool now)
{
    TRY(file_claims_check(l->o.claims));
    if (l->journal == NULL) return result_writer_flush(l->writer);
    if (!now && journal_is_dirty(l->journal) && !journal_is_due(l->journal)) return status_ok();
    struct status st = journal_commit(l->journal, l->n_read, line_reader_done(l->reader));
    if (!status_failed(&st)) st = result_writer_flush(l->writer);
    l->failed = l->failed || status_failed(&st);
    return st;
}

/* Refuses an output that has bytes but no journal. */
static struct status refuse_strange_output(const struct lead_options *o)
{
    struct stat info;
    if (o->flags.restart || file_exists(o->journal_path) || stat(o->output_path, &info) != 0 ||
        info.st_size == 0) {
        return status_ok();
    }
    return status_make(STATUS_USAGE,
                       "output %s: it holds %lld bytes and there is no journal %s to resume from; "
                       "name another output, or overwrite it with --restart (or --no-journal)",
                       o->output_path, (long long)info.st_size, o->journal_path);
}

static struct status resume(struct lead *l)
{
    const struct journal_facts *facts = journal_facts_of(l->journal);
    uint64_t n_bytes;
    bool was_equal;
    if (line_reader_is_repeatable(l->reader)) {
        TRY(journal_check_input(l->journal, l->o.input_path, l->o.part));
    }
    TRY(lead_take_finished_rows(l));
    TRY(result_writer_settle(l->writer, &n_bytes, &was_equal));
    l->is_complete = facts->is_complete;
    if (facts->n_rows + facts->n_partial_records == 0) return status_ok();
    log_line(LOG_INFO, "journal %s: %llu rows are done, %llu stand in the output%s",
             l->o.journal_path, (unsigned long long)facts->n_rows, (unsigned long long)l->n_read,
             was_equal ? "" : " (which was mended)");
    return status_ok();
}

static struct status lead_open_journal(struct lead *l)
{
    const struct lead_options *o = &l->o;
    const struct journal_options jo = {.path = o->journal_path,
                                       .settings = o->settings != NULL ? o->settings : "",
                                       .session = o->session,
                                       .input_bytes = line_reader_size(l->reader),
                                       .restart = o->flags.restart,
                                       .retry_errors = o->flags.retry_errors,
                                       .commit_bytes = o->commit_bytes,
                                       .failpoint = o->failpoint};
    TRY(refuse_strange_output(o));
    TRY(journal_open(&jo, &l->journal));
    TRY(result_writer_resume(o->output_path, o->window_rows, o->window_bytes, o->failpoint,
                             &l->writer));
    return resume(l);
}

static struct status open_files(struct lead *l)
{
    const struct lead_options *o = &l->o;
    TRY(line_reader_create(o->input_path, 0, &l->reader));
    TRY(line_reader_check(l->reader));
    if (o->part != NULL) {
        TRY(line_reader_set_part(l->reader, o->part));
        l->ids.n_lines = o->part->n_before; /* ids count lines of the whole input */
    }
    if (o->audit != NULL) {
        return result_writer_create("/dev/null", o->window_rows, o->window_bytes, &l->writer);
    }
    if (strcmp(o->output_path, "-") != 0 && line_reader_is_file(l->reader, o->output_path)) {
        return status_make(STATUS_USAGE, "output %s: expected another file than the input %s",
                           o->output_path, o->input_path);
    }
    if (o->journal_path != NULL) return lead_open_journal(l);
    return result_writer_create(o->output_path, o->window_rows, o->window_bytes, &l->writer);
}

struct status lead_create(const struct lead_options *options, struct lead **out)
{
    *out = NULL;
    struct lead *l = NULL;
    TRY(mem_alloc(&l, 1, sizeof *l, "lead"));
    struct status st;
    l->o = *options;
    if (l->o.window_rows == 0) l->o.window_rows = WINDOW_ROWS;
    if (l->o.window_bytes == 0) l->o.window_bytes = WINDOW_BYTES;
    l->rules = (struct request_rules){
        .defaults = options->defaults,
        .tokenizer = options->tokenizer,
        .chat = options->chat,
        .chat_missing = options->chat_missing,
        .date = options->date,
        .end_ids = options->end_ids,
        .n_end_ids = options->n_end_ids,
        .vocab_size = options->vocab_size,
        .max_model_len = options->max_model_len,
        .score = options->mode == LEAD_SCORE,
        .warnings = &l->warnings,
        .is_dry_run = options->is_dry_run,
    };
    strbuf_init(&l->row);
    if (options->journal_path != NULL) id_set_spill_beside(&l->ids, options->journal_path);
    TRY_GOTO(st, request_defaults_check(&options->defaults), fail);
    if (options->tokenizer != NULL && options->mode == LEAD_GENERATE) {
        TRY_GOTO(st, guides_create(options->tokenizer, options->vocab_size, &l->rules.guides),
                 fail);
    }
    l->window.capacity = (l->o.window_rows + 3) / 4;
    TRY_GOTO(st,
             mem_alloc(&l->window.requests, l->window.capacity, sizeof(struct request *), "window"),
             fail);
    if (l->o.flags.result_cache && options->mode == LEAD_GENERATE) {
        TRY_GOTO(st, result_cache_create(0, &l->results), fail);
    }
    if (options->n_blocks > 0) TRY_GOTO(st, lead_start(l, options->n_blocks, 0), fail);
    TRY_GOTO(st, open_files(l), fail);
    *out = l;
    return st;
fail:
    lead_destroy(&l);
    return st;
}

void lead_destroy(struct lead **lead)
{
    struct lead *l = *lead;
    if (l == NULL) return;
    scheduler_destroy(&l->scheduler);
    result_cache_destroy(&l->results);
    for (size_t i = 0; i < l->window.n; i++) request_destroy(&l->window.requests[i]);
    mem_free(&l->window.requests);
    while (l->parents.head != NULL) { /* last: the requests above borrow from them */
        struct request *p = l->parents.head;
        request_list_take(&l->parents, p);
        beam_destroy(&p->search);
        request_destroy(&p);
    }
    line_reader_destroy(&l->reader);
    result_writer_destroy(&l->writer);
    journal_destroy(&l->journal);
    id_set_fini(&l->ids);
    guides_destroy(&l->rules.guides);
    for (size_t i = 0; i < LEAD_ERRORS_SHOWN; i++) strbuf_fini(&l->rows.shown[i]);
    strbuf_fini(&l->row);
    mem_free(lead);
}

bool lead_is_complete(const struct lead *l)
{
    return l->is_complete;
}

static struct progress_view lead_view(const struct lead *l)
{
    const uint64_t size = line_reader_size(l->reader);
    struct progress_view v = {
        .n_done = result_writer_totals(l->writer).n_rows,
        .n_read = l->n_read,
        .n_waiting = result_writer_n_waiting(l->writer),
        .all_read = l->all_read,
        .read_fraction = size == 0 ? -1 : (double)line_reader_done(l->reader) / (double)size,
        .n_prompt_tokens = l->stats.n_prompt_tokens,
        .n_generated_tokens = l->stats.n_generated_tokens,
    };
    if (l->scheduler != NULL) v.load = scheduler_load(l->scheduler);
    return v;
}

static void lead_count_blocks(struct lead *l)
{
    const struct scheduler_load load = scheduler_load(l->scheduler);
    const uint64_t n_used = (uint64_t)(load.n_blocks - load.n_free_blocks);
    l->stats.n_blocks = (uint64_t)load.n_blocks;
    l->stats.sum_used_blocks += n_used;
    if (n_used > l->stats.n_peak_used_blocks) l->stats.n_peak_used_blocks = n_used;
}

struct status lead_next(struct lead *l, int32_t group, uint64_t step, struct step_plan *plan,
                        bool *done)
{
    TRY(lead_read_lines(l));
    *done = l->all_read && l->window.n == 0 && scheduler_is_idle(l->scheduler);
    if (*done) {
        step_plan_clear(plan, PLAN_STOP, step);
        return status_ok();
    }
    TRY(scheduler_plan(l->scheduler, group, step, plan));
    if (plan->n_seqs > 0) lead_count_blocks(l);
    return status_ok();
}

/* Writes the row of a request that ran, and submits the requests that waited for its result. */
static struct status lead_take_finished(struct lead *l, struct request *r)
{
    struct status st = status_ok();
    if (l->results != NULL) st = result_cache_end(l->results, r);
    if (status_failed(&st)) {
        request_destroy(&r);
        return st;
    }
    st = lead_end_request(l, r);
    while (!status_failed(&st) && l->results != NULL) {
        r = result_cache_take(l->results);
        if (r == NULL) break;
        st = lead_take_request(l, r, NULL);
    }
    return st;
}

static struct status save_running(void *user, struct request *r)
{
    struct lead *l = user;
    return lead_save_tokens(l, r, (size_t)l->o.flags.checkpoint_tokens);
}

struct status lead_commit(struct lead *l, int32_t group, const struct step_result *result)
{
    TRY(scheduler_commit(l->scheduler, group, result));
    struct request *r;
    while ((r = scheduler_take_finished(l->scheduler)) != NULL) TRY(lead_take_finished(l, r));
    if (l->journal != NULL && l->o.flags.checkpoint_tokens > 0) {
        TRY(scheduler_visit(l->scheduler, group, save_running, l));
    }
    const struct progress_view v = lead_view(l);
    progress_update(&l->progress, &v);
    return lead_flush(l, false);
}

struct status lead_drain(struct lead *l)
{
    if (l->journal == NULL) return status_ok();
    TRY(lead_save_all(l));
    (void)failpoint_pass(l->o.failpoint, FAILPOINT_DRAIN);
    return status_ok();
}

void lead_save(struct lead *l)
{
    if (l->journal == NULL) return;
    struct status st = file_claims_check(l->o.claims);
    if (!status_failed(&st)) st = journal_save(l->journal);
    if (status_failed(&st)) log_line(LOG_ERROR, "%s", st.text);
}

double lead_commit_s(const struct lead *l)
{
    return l->journal != NULL ? journal_commit_s(l->journal) : 0;
}

/* Marks the journal complete, once the output is durable. */
static struct status end_journal(struct lead *l)
{
    (void)failpoint_pass(l->o.failpoint, FAILPOINT_FINISH);
    const struct journal_record end = {.type = JOURNAL_END,
                                       .values = {l->n_read, result_writer_offset(l->writer)}};
    TRY(journal_add(l->journal, &end));
    return journal_commit(l->journal, l->n_read, line_reader_done(l->reader));
}

static struct status close_files(struct lead *l)
{
    TRY(file_claims_check(l->o.claims));
    if (l->journal == NULL) return result_writer_close(l->writer);
    if (l->failed) { /* if the output failed, finished rows can still go to the journal */
        return journal_commit(l->journal, l->n_read, line_reader_done(l->reader));
    }
    TRY(lead_flush(l, true));
    const bool all_written = l->all_read && result_writer_n_open(l->writer) == 0;
    if (!all_written && !l->is_complete) return status_ok();
    TRY(result_writer_close(l->writer));
    return l->is_complete ? status_ok() : end_journal(l);
}

void lead_summary(const struct lead *l, struct serve_summary *summary)
{
    const struct result_totals t = result_writer_totals(l->writer);
    *summary = l->stats;
    summary->n_rows = t.n_rows;
    summary->n_error_rows = t.n_error_rows;
    summary->sum_logprob = t.sum_logprob;
    summary->n_scored = t.n_scored;
    if (t.n_scored > 0) summary->perplexity = exp(-t.sum_logprob / (double)t.n_scored);
    if (l->start_ns > 0) summary->wall_s = (double)(clock_ns() - l->start_ns) * 1e-9;
    if (l->journal != NULL) {
        summary->n_commits = journal_n_commits(l->journal);
        summary->commit_s = journal_commit_s(l->journal);
    }
}

const struct serve_summary *lead_stats(const struct lead *l)
{
    return &l->stats;
}

struct scheduler_load lead_load(const struct lead *l)
{
    return scheduler_load(l->scheduler);
}

struct status lead_finish(struct lead *l, struct serve_summary *summary)
{
    const struct status st = close_files(l);
    const struct progress_view v = lead_view(l);
    if (!l->is_complete) progress_end(&l->progress, &v);
    say_all_failed(l);
    lead_summary(l, summary);
    return st;
}
