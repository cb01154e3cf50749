/* Reads lines: for each takes over the row of an earlier run, or makes an error row or a request.
 * An audit skips the lines that it did not choose. */
#include "serve/lead/lead_private.h"

#include <stdio.h>

/* The most that is read before a step: lines while the scheduler wants more, lines when it does
 * not, bytes of lines, and steps of compiling grammars (serve/request/guide.h; 2^22 take about 0.05
 * s) and of chat templates (text/chat/jinja.h). Reading stops after the line that exceeds a limit,
 * so a step or a signal waits for at most one large line. */
enum {
    LINES_PER_STEP = 1024,
    LINES_AHEAD = 64,
    BYTES_PER_STEP = 8 << 20,
    WORK_STEPS_PER_STEP = 1 << 22
};

static struct status lead_input_make_request(struct lead *l, const struct line *line,
                                             struct request **out)
{
    if (line->kind == LINE_TOO_LONG) {
        char message[96];
        snprintf(message, sizeof message, "the line has %zu bytes, expected at most %d", line->n,
                 LINE_BYTES_MAX);
        return request_create_failed(line->number, "line_too_long", message, out);
    }
    return request_create(&l->rules, line->number, line->text, line->n, out);
}

/* Passes a row that an earlier run finished to the writer. */
static struct status lead_input_take_row(struct lead *l, uint64_t line,
                                         const struct journal_hit *hit)
{
    const struct id_hash id = {hit->row.id_low, hit->row.id_high};
    const struct result_row row = {.text = hit->text,
                                   .n = hit->n_text,
                                   .is_error = hit->row.is_error,
                                   .n_scored = hit->row.n_scored,
                                   .sum_logprob = hit->row.sum_logprob};
    uint64_t index;
    if (l->lines.part != NULL && !hit->row.is_error) {
        const uint64_t digest[2] = {hit->digest.low, hit->digest.high};
        TRY(logprobs_part_check(l->lines.part, line, digest));
    }
    TRY(id_set_add_hash(&l->lines.ids, id));
    result_writer_open(l->lines.writer, row.n, &index);
    l->lines.n_read++;
    l->stats.n_resumed_rows++;
    (void)failpoint_pass(l->o.journal.failpoint, FAILPOINT_RESUME);
    return result_writer_put(l->lines.writer, index, &row);
}

/* Makes r an error row if an earlier line has the same custom_id; gives r a name if it has none. An
 * audit has not seen the earlier lines: it does not look for duplicates, and takes the name from
 * the output's row. */
static struct status take_id(struct lead *l, struct request *r)
{
    char name[ID_NAME_MAX];
    bool fresh = true;
    if (r->is_named) {
        if (l->o.audit != NULL) return status_ok();
        TRY(id_set_add(&l->lines.ids, r->custom_id.bytes, r->custom_id.n, &fresh));
        return fresh ? status_ok()
                     : request_fail(r, REQUEST_DUPLICATE_CODE, REQUEST_DUPLICATE_MESSAGE);
    }
    if (l->o.audit != NULL) {
        TRY(audit_name_line(l->o.audit, r->line, name));
    } else {
        TRY(id_set_add_line(&l->lines.ids, name));
    }
    return request_rename(r, name);
}

/* Opens a row for a line that has no finished row, and makes the line's request or error row. */
static struct status take_request(struct lead *l, const struct line *line,
                                  const struct line_digest *digest, const struct journal_hit *hit)
{
    struct request *r = NULL;
    TRY(lead_input_make_request(l, line, &r));
    l->lines.n_template_steps += r->n_template_steps;
    struct status st = take_id(l, r);
    if (status_failed(&st)) goto done;
    r->line_digest[0] = digest->low;
    r->line_digest[1] = digest->high;
    result_writer_open(l->lines.writer, request_cost_bytes(r, &l->rules), &r->index);
    l->lines.n_read++;
    return lead_take_new(l, r, hit);
done:
    request_destroy(&r);
    return st;
}

static struct status lead_input_take_line(struct lead *l, const struct line *line)
{
    struct journal_hit hit = {.kind = JOURNAL_HIT_NONE};
    struct line_digest digest = {0, 0};
    if (l->o.audit != NULL) {
        bool is_chosen;
        TRY(audit_take_line(l->o.audit, line, &is_chosen));
        if (is_chosen) TRY(take_request(l, line, &digest, &hit));
        l->lines.all_read = audit_has_all_lines(l->o.audit);
        return status_ok();
    }
    if (l->lines.journal != NULL) {
        digest = line_digest_of(line);
        TRY(journal_find(l->lines.journal, line->number, &hit));
        if (hit.kind != JOURNAL_HIT_NONE &&
            (hit.digest.low != digest.low || hit.digest.high != digest.high)) {
            return journal_line_changed(line_reader_place(l->lines.reader, line->number));
        }
    }
    return hit.kind == JOURNAL_HIT_ROW ? lead_input_take_row(l, line->number, &hit)
                                       : take_request(l, line, &digest, &hit);
}

/* Returns the number, in the whole input, of the last line that was taken. */
static uint64_t lines_taken(const struct lead *l)
{
    return (l->o.part != NULL ? l->o.part->n_before : 0) + l->lines.n_read;
}

/* Ends the reading. Refuses an input that ends before the last line that the journal or an audit
 * knows, because the job must then not count as complete. */
static struct status end_of_input(struct lead *l)
{
    if (l->o.audit != NULL) {
        return status_make(STATUS_INPUT,
                           "input %s: it ends before the line of the output's last row",
                           l->o.input_path);
    }
    l->lines.all_read =
        l->lines.journal == NULL || journal_facts_of(l->lines.journal)->last_line <= lines_taken(l);
    if (l->lines.all_read) return status_ok();
    return journal_line_changed(line_reader_place(l->lines.reader, lines_taken(l) + 1));
}

static uint64_t work_steps(const struct lead *l)
{
    return l->lines.n_template_steps +
           (l->rules.guides != NULL ? guides_steps(l->rules.guides) : 0);
}

struct status lead_read_lines(struct lead *l)
{
    const int n_most = scheduler_wants_more(l->scheduler) ? LINES_PER_STEP : LINES_AHEAD;
    const uint64_t n_steps_before = work_steps(l);
    size_t n_bytes = 0;
    bool waits = false, is_enough = false;
    for (int i = 0; i < n_most && !waits && !l->lines.all_read && !is_enough; i++) {
        if (!result_writer_has_room(l->lines.writer)) break;
        const bool may_wait = l->window.n == 0 && scheduler_is_idle(l->scheduler);
        struct line line;
        TRY(line_reader_next(l->lines.reader, false, &line));
        if (line.kind == LINE_WAIT && may_wait) {
            TRY(lead_flush(l, true));
            TRY(line_reader_next(l->lines.reader, true, &line));
        }
        waits = line.kind == LINE_WAIT;
        if (line.kind == LINE_OK || line.kind == LINE_TOO_LONG) n_bytes += line.n;
        if (!waits) TRY(line.kind == LINE_END ? end_of_input(l) : lead_input_take_line(l, &line));
        is_enough =
            n_bytes >= BYTES_PER_STEP || work_steps(l) - n_steps_before >= WORK_STEPS_PER_STEP;
    }
    /* orders a window that is not full if no more lines can be read now, or if nothing would run
     * meanwhile */
    if (waits || l->lines.all_read || !result_writer_has_room(l->lines.writer) ||
        (is_enough && scheduler_is_idle(l->scheduler)))
        TRY(lead_order(l));
    return lead_flush(l, false);
}

struct status lead_take_finished_rows(struct lead *l)
{
    const struct journal_facts *facts = journal_facts_of(l->lines.journal);
    struct journal_hit hit;
    struct line line = {.kind = LINE_WAIT};
    for (;;) {
        TRY(journal_find(l->lines.journal, lines_taken(l) + 1, &hit));
        if (hit.kind != JOURNAL_HIT_ROW) break;
        TRY(line_reader_next(l->lines.reader, true, &line));
        if (line.kind == LINE_WAIT) continue;
        TRY(line.kind == LINE_END ? end_of_input(l) : lead_input_take_line(l, &line));
        if (l->lines.all_read) return status_ok();
    }
    if (!facts->is_complete) return status_ok();
    do {
        TRY(line_reader_next(l->lines.reader, true, &line));
    } while (line.kind == LINE_WAIT);
    return line.kind == LINE_END ? status_ok()
                                 : journal_input_grew(l->o.input_path, facts->end_lines);
}
