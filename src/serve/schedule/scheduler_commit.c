/* Takes results: gives tokens, scores and pooled rows to their requests, logits and hidden rows to
 * the sinks, and ends finished requests. */
#include "base/clock.h"
#include "serve/request/request_embed.h"
#include "serve/schedule/scheduler_private.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

/* The first score, row of logits, likely token, pooled row and hidden row of the next sequence in a
 * result. */
struct cursor {
    const struct step_result *result;
    size_t score, logit_row, top, pool, hidden;
    uint64_t stored_at; /* where the first of the result's hidden rows is stored */
};

static void scheduler_commit_finish(struct scheduler *s, struct sequence *q)
{
    if (q->state == SEQUENCE_RUNNING) {
        scheduler_leave(s, q);
    } else {
        sequence_list_take(&s->waiting, q);
    }
    q->state = SEQUENCE_FINISHED;
    s->n_streams -= q->r->ask->streams;
    *(request_runs_last(q->r) ? &s->n_last : &s->n_others) -= 1;
    sequence_list_put(&s->finished, q, NULL);
    const size_t n_generated = q->r->n_tokens - q->r->n_prompt - q->r->n_resumed;
    if (q->r->error.code != NULL) return;
    const uint64_t now = clock_ns();
    latency_add(&s->stats->e2e, now - q->first_plan_ns);
    latency_add(&s->stats->since_arrival.e2e, now - q->r->arrived_ns);
    if (n_generated > 1) {
        latency_add(&s->stats->tpot,
                    (q->r->last_token_ns - q->r->first_token_ns) / (uint64_t)(n_generated - 1));
    }
}

/* Ends the sequences of r and of its answers in a list. A sequence in flight ends with its result,
 * because its microbatch's list of sequences in flight points to it until then. */
static struct status cancel_in(struct scheduler *s, struct sequence_list *list,
                               const struct request *r, const char *code, const char *message)
{
    for (struct sequence *q = list->head, *next; q != NULL; q = next) {
        next = q->next;
        if (q->r != r && q->r->parent != r) continue;
        TRY(request_fail(q->r, code, message));
        if (!q->in_flight) scheduler_commit_finish(s, q);
    }
    return status_ok();
}

struct status scheduler_cancel(struct scheduler *s, const struct request *r, const char *code,
                               const char *message)
{
    for (int32_t i = 0; i < s->o.n_replicas; i++)
        for (int32_t g = 0; g < s->o.n_groups; g++)
            TRY(cancel_in(s, &s->replicas[i].groups[g].running, r, code, message));
    return cancel_in(s, &s->waiting, r, code, message);
}

static void scheduler_commit_count_rows(struct scheduler *s, struct sequence *q)
{
    const size_t end = q->pos0 + (size_t)q->n_rows;
    const size_t fresh_from = q->pos0 > q->n_high ? q->pos0 : q->n_high;
    const size_t prompt_end = end < q->r->n_prompt ? end : q->r->n_prompt;
    if (prompt_end > fresh_from) s->stats->n_prompt_tokens += prompt_end - fresh_from;
    if (prompt_end > q->pos0) s->stats->n_prompt_rows += prompt_end - q->pos0;
    const size_t n_fresh = end > fresh_from ? end - fresh_from : 0;
    s->stats->n_recomputed_tokens += (uint64_t)q->n_rows - n_fresh;
    if (end > q->n_high) q->n_high = end;
}

static struct status take_token(struct scheduler *s, struct sequence *q, int32_t token)
{
    if (token < 0 || token >= s->o.rules->vocab_size) {
        return status_make(STATUS_BUG, "line %llu: sampled token %d, expected 0 to %d",
                           (unsigned long long)q->r->line, token, s->o.rules->vocab_size - 1);
    }
    TRY(request_take_token(q->r, s->o.rules, token));
    s->stats->n_generated_tokens++;
    const uint64_t now = clock_ns();
    if (q->r->first_token_ns == 0) {
        q->r->first_token_ns = now;
        latency_add(&s->stats->ttft, now - q->first_plan_ns);
        latency_add(&s->stats->since_arrival.ttft, now - q->r->arrived_ns);
    } else {
        latency_add(&s->stats->itl, now - q->r->last_token_ns);
    }
    q->r->last_token_ns = now;
    return status_ok();
}

static struct status take_scores(struct scheduler *s, struct sequence *q,
                                 const struct result_seq *seq, const struct cursor *c)
{
    const size_t end = q->pos0 + (size_t)q->n_rows;
    const int32_t n_expected = q->n_rows - (end == q->r->n_tokens);
    const int32_t n_logits = s->o.logits != NULL ? q->n_rows : 0;
    if (seq->n_scores != n_expected || seq->n_logits != n_logits ||
        c->score + (size_t)n_expected > c->result->n_scores ||
        c->logit_row + (size_t)n_logits > c->result->n_logit_rows) {
        return status_make(
            STATUS_BUG, "line %llu: expected %d scores and %d rows of logits, found %d and %d",
            (unsigned long long)q->r->line, n_expected, n_logits, seq->n_scores, seq->n_logits);
    }
    for (size_t i = 0; i < (size_t)n_expected && q->pos0 + 1 + i < q->r->n_prompt; i++) {
        q->r->logprobs.scores[q->pos0 + 1 + i] = c->result->scores[c->score + i];
    }
    if (n_logits > 0) {
        const float *rows = c->result->logits + c->logit_row * (size_t)c->result->vocab;
        TRY(s->o.logits(s->o.logits_user, q->r->line, (int32_t)q->pos0, rows, n_logits,
                        c->result->vocab));
    }
    return status_ok();
}

/* Takes the most likely tokens: n_prompt_tops for each scored prompt token, then n_tops for the
 * sampled token. */
static struct status take_tops(const struct scheduler *s, struct sequence *q,
                               const struct result_seq *seq, const struct cursor *c)
{
    const bool samples =
        scheduler_samples(s, q->r) && q->pos0 + (size_t)q->n_rows == q->r->n_tokens;
    const size_t n_each =
        q->is_scored && q->r->ask->n_prompt_tops > 0 ? (size_t)q->r->ask->n_prompt_tops : 0;
    const size_t n_scored = (size_t)seq->n_scores * n_each;
    const size_t n_sampled = samples && q->r->ask->n_tops > 0 ? (size_t)q->r->ask->n_tops : 0;
    if ((size_t)seq->n_tops != n_scored + n_sampled ||
        c->top + n_scored + n_sampled > c->result->n_tops) {
        return status_make(STATUS_BUG, "line %llu: expected %zu likely tokens, found %d",
                           (unsigned long long)q->r->line, n_scored + n_sampled, seq->n_tops);
    }
    const struct plan_top *tops = c->result->tops + c->top;
    for (size_t i = 0; i < (size_t)seq->n_scores && q->pos0 + 1 + i < q->r->n_prompt; i++) {
        if (n_each == 0) break;
        memcpy(q->r->logprobs.prompt_tops + (q->pos0 + 1 + i) * n_each, tops + i * n_each,
               n_each * sizeof *tops);
    }
    if (!samples || q->r->ask->n_tops < 0) return status_ok();
    return request_take_logprob(q->r, seq->logprob, n_sampled > 0 ? tops + n_scored : NULL);
}

/* Takes the sum of a text's pooled rows. The text is finished when its last row is computed. */
static struct status take_pool(struct sequence *q, const struct result_seq *seq,
                               const struct cursor *c)
{
    const size_t end = q->pos0 + (size_t)q->n_rows, width = (size_t)c->result->width;
    if (c->pool + (size_t)seq->n_pools > c->result->n_pools) {
        return status_make(STATUS_BUG, "line %llu: expected a pooled row",
                           (unsigned long long)q->r->line);
    }
    if (seq->n_pools > 0) TRY(request_take_pool(q->r, c->result->pools + c->pool * width, width));
    if (end > q->r->n_pooled) q->r->n_pooled = end;
    if (end < q->r->n_tokens) return status_ok();
    q->r->finish = REQUEST_POOLED;
    if (q->r->pooled != NULL) return status_ok();
    return status_make(STATUS_BUG, "line %llu: no row was pooled", (unsigned long long)q->r->line);
}

/* Records in the request where the sequence's hidden rows are; they have been stored already. */
static struct status take_hidden(const struct scheduler *s, struct sequence *q,
                                 const struct result_seq *seq, const struct cursor *c)
{
    const size_t end = q->pos0 + (size_t)q->n_rows, row_bytes = c->result->hidden_row_bytes;
    const struct request_span rows = scheduler_hidden_rows(s, q->r, q->pos0, end);
    const size_t n = rows.begin < rows.end ? rows.end - rows.begin : 0;
    if ((size_t)seq->n_hidden != n || c->hidden + n > c->result->n_hidden_rows) {
        return status_make(STATUS_BUG, "line %llu: expected %zu hidden rows, found %d",
                           (unsigned long long)q->r->line, n, seq->n_hidden);
    }
    if (n == 0) return status_ok();
    q->r->hidden.n_tokens = rows.end;
    const char *bytes = c->result->hidden + c->hidden * row_bytes;
    return request_take_hidden(q->r,
                               &(struct request_rows){.at = c->stored_at + c->hidden * row_bytes,
                                                      .checksum = XXH3_64bits(bytes, n * row_bytes),
                                                      .from = rows.begin,
                                                      .n = n});
}

static struct status take_result(struct scheduler *s, struct sequence *q,
                                 const struct result_seq *seq, const struct cursor *c)
{
    const size_t end = q->pos0 + (size_t)q->n_rows;
    q->in_flight = false;
    if (q->state == SEQUENCE_RUNNING) q->n_computed = end;
    q->r->n_dropped += (uint64_t)seq->n_dropped;
    s->stats->n_dropped += (uint64_t)seq->n_dropped;
    scheduler_commit_count_rows(s, q);
    if (seq->n_bad > 0) {
        TRY(request_fail(q->r, REQUEST_NUMERIC_CODE,
                         "the model's arithmetic gave a value that is not finite or too large"));
        scheduler_commit_finish(s, q);
        return status_ok();
    }
    if (q->state == SEQUENCE_RUNNING) TRY(scheduler_prefix_publish(s, q));
    if (q->state == SEQUENCE_RUNNING) scheduler_release_window(s, q);
    if (q->is_scored) TRY(take_scores(s, q, seq, c));
    TRY(take_tops(s, q, seq, c));
    TRY(take_hidden(s, q, seq, c));
    if (q->r->ask->pool != POOL_NONE) {
        TRY(take_pool(q, seq, c));
    } else if (!scheduler_samples(s, q->r)) {
        const enum request_finish how = s->o.rules->score ? REQUEST_SCORED : REQUEST_LENGTH;
        if (end == q->r->n_tokens) q->r->finish = how;
    } else if (end == q->r->n_tokens) {
        TRY(take_token(s, q, seq->token));
    } else if (seq->token != -1) {
        return status_make(STATUS_BUG, "line %llu: a token was sampled that was not asked for",
                           (unsigned long long)q->r->line);
    }
    if (q->r->error.code != NULL || q->r->finish != REQUEST_UNFINISHED)
        scheduler_commit_finish(s, q);
    return status_ok();
}

static void scheduler_commit_advance(struct cursor *c, const struct result_seq *seq)
{
    c->score += (size_t)seq->n_scores;
    c->logit_row += (size_t)seq->n_logits;
    c->top += (size_t)seq->n_tops;
    c->pool += (size_t)seq->n_pools;
    c->hidden += (size_t)seq->n_hidden;
}

static struct status scheduler_commit_check_id(const struct microbatch *m, const struct sequence *q,
                                               const struct result_seq *seq)
{
    if (seq->id == q->id) return status_ok();
    return status_make(STATUS_BUG, "step %llu: expected id %d, found %d",
                       (unsigned long long)m->step, q->id, seq->id);
}

/* Returns how many drafts of q, up to the first wrong one, equal the tokens sampled in their
 * places. */
static int32_t count_right(const struct sequence *q, const struct result_seq *seqs)
{
    int32_t n = 0;
    while (n < q->n_drafts && seqs[n].token == q->drafts[n]) n++;
    return n;
}

/* Takes the results of q's entry and of its drafts, seqs [1 + n_drafts]. The result after a draft
 * counts only if all drafts so far equal the sampled tokens. */
static struct status take_entries(struct scheduler *s, struct microbatch *m, struct sequence *q,
                                  const struct result_seq *seqs, struct cursor *c)
{
    const int32_t n_drafts = q->n_drafts;
    int32_t n_right = 0;
    bool is_right = true;
    scheduler_learn(s, q, &seqs[0], count_right(q, seqs));
    for (int32_t i = 0; i <= n_drafts; i++) {
        TRY(scheduler_commit_check_id(m, q, &seqs[i]));
        if (is_right) {
            is_right = i < n_drafts && seqs[i].token == q->drafts[i];
            if (i > 0) q->pos0++;
            scheduler_learn_guess(s, q, seqs[i].token);
            TRY(take_result(s, q, &seqs[i], c));
            q->predicted = seqs[i].draft;
            q->n_before = seqs[i].draft < 0 ? 0 : q->r->n_tokens;
            n_right += is_right;
            is_right = is_right && q->state != SEQUENCE_FINISHED;
        }
        scheduler_commit_advance(c, &seqs[i]);
    }
    s->stats->n_drafts += (uint64_t)n_drafts;
    if (n_drafts > 0) s->stats->n_right_drafts += (uint64_t)n_right;
    if (q->n_proposed > 0) s->stats->model_drafts.n += (uint64_t)n_drafts;
    if (q->n_proposed > 0) s->stats->model_drafts.n_right += (uint64_t)n_right;
    q->n_drafts = q->n_proposed = 0;
    return status_ok();
}

/* Adapts the rows that b allows to the time that the step took, from its plan to its result. The
 * step may have had more rows than b allows, because another bound held for it. */
static void adapt_bound(const struct scheduler *s, struct step_bound *b, const struct microbatch *m)
{
    if (b->most_ns == 0) return;
    const int32_t most = s->o.flags.step_tokens;
    const int32_t least = most < SCHEDULER_STEP_LEAST ? most : SCHEDULER_STEP_LEAST;
    const uint64_t took = clock_ns() - m->plan_ns;
    if (took > b->most_ns && m->n_rows > least) {
        /* at most halves them, because one slow step proves little */
        const int32_t half = (m->n_rows < b->rows ? m->n_rows : b->rows) / 2;
        const int32_t fit = (int32_t)((double)b->most_ns / (double)took * m->n_rows);
        const int32_t rows = fit > half ? fit : half;
        if (b->rows > rows) b->rows = rows;
    } else if (took < b->most_ns / 2 && m->n_rows >= b->rows) {
        b->rows += b->rows / 4 + 1;
    }
    b->rows = b->rows < least ? least : b->rows > most ? most : b->rows;
}

/* Measures how long a row takes in a step of many rows, as when tokens are recomputed. */
static void measure_step_rows(struct scheduler *s, const struct microbatch *m)
{
    enum { ROWS_LEAST = 64 };
    if (s->o.n_tier_slots == 0 || m->n_rows < ROWS_LEAST) return;
    /* groups in flight share the time */
    const double one =
        (double)(clock_ns() - m->plan_ns) * 1e-9 / ((double)m->n_rows * s->o.n_groups);
    s->row_s = s->row_s == 0 ? one : 0.75 * s->row_s + 0.25 * one;
}

struct status scheduler_commit(struct scheduler *s, int32_t group, const struct step_result *result)
{
    if (result->replica < 0 || result->replica >= s->o.n_replicas || group < 0 ||
        group >= s->o.n_groups) {
        return status_make(STATUS_BUG, "a result names replica %d and group %d of %d and %d",
                           result->replica, group, s->o.n_replicas, s->o.n_groups);
    }
    struct microbatch *m = &s->replicas[result->replica].groups[group];
    TRY(scheduler_tier_take(s, result));
    if (m->n_flight == 0 && result->n_seqs == 0) return status_ok();
    if (result->step != m->step || result->n_seqs != m->n_entries) {
        return status_make(STATUS_BUG,
                           "replica %d: expected the %zu sequences of step %llu, found %zu of step "
                           "%llu",
                           result->replica, m->n_entries, (unsigned long long)m->step,
                           result->n_seqs, (unsigned long long)result->step);
    }
    adapt_bound(s, &s->bound, m);
    adapt_bound(s, &s->eased, m);
    measure_step_rows(s, m);
    scheduler_time_step(s, &s->replicas[result->replica], m);
    struct cursor c = {.result = result};
    if (result->n_hidden_rows > 0)
        TRY(s->o.store_rows(s->o.store_rows_user, result->hidden,
                            result->n_hidden_rows * result->hidden_row_bytes, &c.stored_at));
    const struct result_seq *seqs = result->seqs;
    for (size_t i = 0; i < m->n_flight; i++) {
        const int32_t n = 1 + m->flight[i]->n_drafts;
        TRY(take_entries(s, m, m->flight[i], seqs, &c));
        seqs += n;
    }
    m->n_flight = 0;
    return status_ok();
}
