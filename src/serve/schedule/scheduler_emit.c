/* Writes a step's entries into its plan: for each sequence that was given rows, these rows and what
 * the ranks do with them, then one entry for each of its drafts. Which sequences get rows is
 * decided before (scheduler.c, scheduler_drafts.c). */
#include "base/clock.h"
#include "base/mem.h"
#include "serve/request/request_answer.h"
#include "serve/schedule/adjusts.h"
#include "serve/schedule/scheduler_private.h"

#include <assert.h>

/* The changes to the logits of a draw; they depend on the sequence's tokens and on the drafts
 * before the draw. */
struct draw {
    const struct adjusts *adjusts;
    const uint32_t *allowed;
    size_t n_allowed_words;
};

static void plan_draw(const struct request *r, const struct draw *draw, struct plan_seq *seq)
{
    seq->want |= PLAN_SAMPLE;
    seq->top_k = r->ask->top_k;
    seq->temperature = r->ask->temperature;
    seq->top_p = r->ask->top_p;
    seq->min_p = r->ask->min_p;
    seq->penalties = r->ask->penalties;
    seq->n_adjusts = (int32_t)draw->adjusts->n;
    seq->n_allowed_words = (int32_t)draw->n_allowed_words;
    if (r->ask->n_tops < 0) return;
    seq->want |= PLAN_LOGPROB;
    seq->n_logprobs = r->ask->n_tops;
}

static struct status make_draw(struct scheduler *s, const struct request *r,
                               const struct request_ahead *ahead, const struct adjusts *adjusts,
                               struct draw *draw)
{
    *draw = (struct draw){.adjusts = adjusts};
    if (!request_is_narrowed(r)) return status_ok();
    const size_t n_words = ((size_t)s->o.rules->vocab_size + 31) / 32;
    if (s->allowed == NULL) TRY(mem_alloc(&s->allowed, n_words, sizeof *s->allowed, "scheduler"));
    TRY(request_allow(r, s->o.rules, ahead, s->allowed));
    draw->allowed = s->allowed;
    draw->n_allowed_words = n_words;
    return status_ok();
}

/* True when q's rows up to `end` give log-probabilities of prompt tokens (also when logits are
 * wanted, which come with them). */
static bool gives_scores(const struct scheduler *s, const struct sequence *q, size_t end)
{
    const struct request *r = q->r;
    if (s->o.logits != NULL) return true;
    return r->ask->n_prompt_tops >= 0 && q->n_computed + 1 < r->n_prompt &&
           end >= r->logprobs.score_from;
}

/* Asks for the sum of the rows in [n_computed, end) that belong to the text's vector and have not
 * been added yet. After a preemption, rows that were already added are computed again. */
static void plan_pool(const struct sequence *q, size_t end, struct plan_seq *seq)
{
    const struct request *r = q->r;
    const enum request_pool pool = r->ask->pool;
    const size_t first = pool == POOL_LAST ? r->n_tokens - 1 : 0;
    const size_t last = pool == POOL_CLS ? 1 : r->n_tokens;
    const size_t from = first > r->n_pooled ? first : r->n_pooled;
    const size_t to = end < last ? end : last;
    if (from >= to) return;
    assert(from >= q->n_computed); /* the prefix cache gives no row that is to be pooled */
    seq->want |= PLAN_POOL;
    seq->pool_from = (int32_t)(from - q->n_computed);
    seq->n_pool = (int32_t)(to - from);
}

/* Asks for those hidden rows of the positions [pos0, end) that are wanted and not stored yet. */
static void plan_hidden(const struct scheduler *s, const struct request *r, size_t end,
                        struct plan_seq *seq)
{
    const struct request_span rows = scheduler_hidden_rows(s, r, (size_t)seq->pos0, end);
    if (rows.begin >= rows.end) return;
    seq->want |= PLAN_HIDDEN;
    seq->hidden_from = (int32_t)(rows.begin - (size_t)seq->pos0);
    seq->n_hidden = (int32_t)(rows.end - rows.begin);
}

/* Adds the plan's entry for q's next n_rows rows. */
static struct status emit_rows(struct scheduler *s, struct step_plan *plan, struct sequence *q)
{
    const struct request *r = q->r;
    const size_t end = q->n_computed + (size_t)q->n_rows;
    const bool is_last = end == r->n_tokens;
    struct draw draw = {.adjusts = &q->adjusts};
    struct plan_seq seq = {
        .id = q->id,
        .n_rows = q->n_rows,
        .pos0 = (int32_t)q->n_computed,
        .slot = q->slot < 0 ? 0 : q->slot,
        .adapter = r->ask->adapter,
        .second_from = (int32_t)r->second_from,
        .next_token = is_last ? -1 : r->tokens[end],
        .key = {r->ask->key[0], r->ask->key[1]},
        .choice = r->choice,
    };
    q->is_scored = gives_scores(s, q, end);
    if (q->is_scored) seq.want = PLAN_SCORE;
    if (s->o.logits != NULL) seq.want |= PLAN_LOGITS;
    if (r->ask->pool != POOL_NONE) plan_pool(q, end, &seq);
    plan_hidden(s, r, end, &seq);
    if (r->ask->n_prompt_tops > 0) seq.n_prompt_logprobs = r->ask->n_prompt_tops;
    if (is_last && scheduler_samples(s, r)) {
        TRY(adjusts_update(&q->adjusts, r, s->o.rules));
        TRY(make_draw(s, r, NULL, &q->adjusts, &draw));
        plan_draw(r, &draw, &seq);
    }
    const int32_t *blocks;
    TRY(scheduler_list_blocks(s, q, end, &seq, &blocks));
    const struct plan_lists lists = {r->tokens + q->n_computed, blocks, draw.adjusts->entries,
                                     draw.allowed};
    return step_plan_add(plan, q->replica, &seq, &lists);
}

/* Adds the plan's entry for the next draft: one row, as if q had drawn the drafts before it. Adds
 * this draft to `ahead`, which has the earlier ones. */
static struct status emit_draft(struct scheduler *s, struct step_plan *plan,
                                const struct sequence *q, struct request_ahead *ahead)
{
    const struct request *r = q->r;
    const size_t i = ahead->n++, pos = r->n_tokens + i;
    struct draw draw;
    struct plan_seq seq = {
        .id = q->id,
        .n_rows = 1,
        .pos0 = (int32_t)pos,
        .adapter = r->ask->adapter,
        .next_token = -1,
        .key = {r->ask->key[0], r->ask->key[1]},
        .choice = r->choice,
    };
    if (r->ask->guide != NULL)
        ahead->guide_state =
            guide_next(r->ask->guide, ahead->guide_state, q->drafts[i], pos == r->n_prompt);
    plan_hidden(s, r, pos + 1, &seq);
    if (r->ask->n_prompt_tops > 0) seq.n_prompt_logprobs = r->ask->n_prompt_tops;
    TRY(adjusts_add(&s->draft_adjusts, r, q->drafts[i]));
    TRY(make_draw(s, r, ahead, &s->draft_adjusts, &draw));
    plan_draw(r, &draw, &seq);
    const int32_t *blocks;
    TRY(scheduler_list_blocks(s, q, pos + 1, &seq, &blocks));
    const struct plan_lists lists = {&q->drafts[i], blocks, draw.adjusts->entries, draw.allowed};
    return step_plan_add(plan, q->replica, &seq, &lists);
}

static struct status emit_drafts(struct scheduler *s, struct step_plan *plan,
                                 const struct sequence *q)
{
    struct request_ahead ahead = {.tokens = q->drafts, .guide_state = q->r->guide_state};
    TRY(adjusts_copy(&q->adjusts, &s->draft_adjusts));
    for (int32_t i = 0; i < q->n_drafts; i++) TRY(emit_draft(s, plan, q, &ahead));
    return status_ok();
}

static struct status emit_sequence(struct scheduler *s, struct step_plan *plan, struct sequence *q)
{
    TRY(emit_rows(s, plan, q));
    if (q->n_drafts > 0) TRY(emit_drafts(s, plan, q));
    q->pos0 = q->n_computed;
    q->in_flight = true;
    if (q->first_plan_ns == 0) {
        q->first_plan_ns = clock_ns();
        latency_add(&s->stats->since_arrival.queue, q->first_plan_ns - q->r->arrived_ns);
    }
    return status_ok();
}

struct status scheduler_emit(struct scheduler *s, int32_t i, int32_t group, uint64_t step,
                             struct step_plan *plan)
{
    struct microbatch *m = &s->replicas[i].groups[group];
    if (m->running.n > m->flight_capacity) {
        const size_t grown = m->running.n + m->running.n / 2;
        TRY(mem_grow(&m->flight, 0, grown, sizeof(struct sequence *), "scheduler"));
        m->flight_capacity = grown;
    }
    m->step = step;
    m->n_entries = 0;
    const bool is_bound = s->bound.most_ns > 0 || s->eased.most_ns > 0;
    const bool is_timed = is_bound || s->o.n_tier_slots > 0 || s->o.draft_model.propose != NULL;
    m->plan_ns = is_timed ? clock_ns() : 0;
    m->drafting_ns = s->stats->model_drafts.ns;
    for (struct sequence *q = m->running.head; q != NULL; q = q->next) {
        if (q->n_rows == 0) continue;
        TRY(emit_sequence(s, plan, q));
        m->flight[m->n_flight++] = q;
        m->n_entries += 1 + (size_t)q->n_drafts;
    }
    step_plan_end_replica(plan, i);
    return status_ok();
}
