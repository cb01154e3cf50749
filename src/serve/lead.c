/* Reader -> request -> scheduler -> writer. */
#include "serve/lead.h"

#include "base/clock.h"
#include "base/mem.h"
#include "serve/id_set.h"
#include "serve/line_reader.h"
#include "serve/progress.h"
#include "serve/result_row.h"
#include "serve/result_writer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WINDOW_ROWS = 4096, WINDOW_BYTES = 256 << 20, LINES_PER_STEP = 1024 };

struct lead {
    struct lead_options o;
    struct request_rules rules;
    struct line_reader *reader;
    struct result_writer *writer;
    struct scheduler *scheduler;
    struct id_set ids;
    struct strbuf row; /* scratch */
    struct progress progress;
    struct serve_summary stats;
    uint64_t n_read, start_ns;
    bool all_read;
};

static struct status create_scheduler(struct lead *l)
{
    const struct lead_options *o = &l->o;
    const struct scheduler_options so = {
        .rules = &l->rules,
        .n_replicas = o->n_replicas,
        .n_groups = o->n_groups,
        .n_blocks = o->n_blocks,
        .max_batch = o->max_batch,
        .step_tokens = o->step_tokens,
        .chunk_tokens = o->chunk_tokens,
        .logits = o->mode == LEAD_SCORE ? o->logits : NULL,
        .logits_user = o->logits_user,
    };
    return scheduler_create(&so, &l->stats, &l->scheduler);
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
        .end_ids = options->end_ids,
        .n_end_ids = options->n_end_ids,
        .vocab_size = options->vocab_size,
        .max_model_len = options->max_model_len,
        .score = options->mode == LEAD_SCORE,
    };
    l->start_ns = clock_ns();
    strbuf_init(&l->row);
    TRY_GOTO(st, request_defaults_check(&options->defaults), fail);
    TRY_GOTO(st, create_scheduler(l), fail);
    TRY_GOTO(st, line_reader_create(options->input_path, 0, &l->reader), fail);
    if (strcmp(options->output_path, "-") != 0 &&
        line_reader_is_file(l->reader, options->output_path)) {
        st = status_make(STATUS_USAGE, "output %s: expected another file than the input %s",
                         options->output_path, options->input_path);
        goto fail;
    }
    TRY_GOTO(
        st,
        result_writer_create(options->output_path, l->o.window_rows, l->o.window_bytes, &l->writer),
        fail);
    progress_init(&l->progress, options->quiet);
    if (options->bar) l->progress.is_terminal = true;
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
    line_reader_destroy(&l->reader);
    result_writer_destroy(&l->writer);
    id_set_fini(&l->ids);
    strbuf_fini(&l->row);
    mem_free(lead);
}

/* Hands a finished request's line to the writer. */
static struct status put_row(struct lead *l, const struct request *r)
{
    strbuf_clear(&l->row);
    TRY(result_row_write(r, &l->rules, l->o.model_name, &l->row));
    struct result_row row = {.text = l->row.data, .n = l->row.n, .is_error = r->error_code != NULL};
    row.sum_logprob = result_row_sum(r, &row.n_scored);
    return result_writer_put(l->writer, r->index, &row);
}

static struct status make_request(struct lead *l, const struct line *line, struct request **out)
{
    if (line->kind == LINE_TOO_LONG) {
        char message[96];
        snprintf(message, sizeof message, "the line has %zu bytes, expected at most %d", line->n,
                 LINE_BYTES_MAX);
        return request_create_failed(line->number, "line_too_long", message, out);
    }
    return request_create(&l->rules, line->number, line->text, line->n, out);
}

/* One line becomes an open row, and either a waiting request or an error row. */
static struct status take_line(struct lead *l, const struct line *line)
{
    struct request *r = NULL;
    TRY(make_request(l, line, &r));
    bool fresh;
    struct status st = id_set_add(&l->ids, r->custom_id.bytes, r->custom_id.n, &fresh);
    if (!status_failed(&st) && !fresh) {
        st = request_fail(r, "duplicate_id", "custom_id: an earlier line has the same");
    }
    if (status_failed(&st)) goto done;
    result_writer_open(l->writer, request_cost_bytes(r, &l->rules), &r->index);
    l->n_read++;
    if (r->error_code == NULL) {
        scheduler_submit(l->scheduler, r);
        return st;
    }
    st = put_row(l, r);
done:
    request_destroy(&r);
    return st;
}

/* A step is not held up by reading for long: what does not fit waits for the next one. */
static struct status read_lines(struct lead *l)
{
    for (int i = 0; i < LINES_PER_STEP && !l->all_read; i++) {
        if (!result_writer_has_room(l->writer) || !scheduler_wants_more(l->scheduler)) break;
        const bool may_block = scheduler_is_idle(l->scheduler);
        if (may_block) TRY(result_writer_flush(l->writer));
        struct line line;
        TRY(line_reader_next(l->reader, may_block, &line));
        if (line.kind == LINE_WAIT) break;
        if (line.kind == LINE_END) {
            l->all_read = true;
        } else {
            TRY(take_line(l, &line));
        }
    }
    return result_writer_flush(l->writer);
}

static struct progress_view view(const struct lead *l)
{
    const uint64_t size = line_reader_size(l->reader);
    struct progress_view v = {
        .n_done = result_writer_totals(l->writer).n_rows,
        .n_read = l->n_read,
        .all_read = l->all_read,
        .read_fraction = size == 0 ? -1 : (double)line_reader_offset(l->reader) / (double)size,
        .n_prompt_tokens = l->stats.n_prompt_tokens,
        .n_generated_tokens = l->stats.n_generated_tokens,
        .load = scheduler_load(l->scheduler),
    };
    return v;
}

struct status lead_next(struct lead *l, int32_t group, uint64_t step, struct step_plan *plan,
                        bool *done)
{
    TRY(read_lines(l));
    *done = l->all_read && scheduler_is_idle(l->scheduler);
    if (*done) {
        step_plan_clear(plan, PLAN_STOP, step);
        return status_ok();
    }
    return scheduler_plan(l->scheduler, group, step, plan);
}

struct status lead_commit(struct lead *l, int32_t group, const struct step_result *result)
{
    TRY(scheduler_commit(l->scheduler, group, result));
    struct request *r;
    while ((r = scheduler_take_finished(l->scheduler)) != NULL) {
        const struct status st = put_row(l, r);
        request_destroy(&r);
        if (status_failed(&st)) return st;
    }
    const struct progress_view v = view(l);
    progress_update(&l->progress, &v);
    return result_writer_flush(l->writer);
}

struct status lead_finish(struct lead *l, struct serve_summary *summary)
{
    const struct status st = result_writer_close(l->writer);
    const struct progress_view v = view(l);
    progress_end(&l->progress, &v);
    const struct result_totals t = result_writer_totals(l->writer);
    *summary = l->stats;
    summary->n_rows = t.n_rows;
    summary->n_error_rows = t.n_error_rows;
    summary->sum_logprob = t.sum_logprob;
    summary->n_scored = t.n_scored;
    if (t.n_scored > 0) summary->perplexity = exp(-t.sum_logprob / (double)t.n_scored);
    summary->wall_s = (double)(clock_ns() - l->start_ns) * 1e-9;
    return st;
}
