/* Draft tokens: tokens that a decoding sequence may draw next, computed in the same step as its
 * last token. A draft token is a row like any other, at its own position.
 *
 *   tokens          .. t     drafts  d0 d1 d2
 *   rows of a step     t             d0 d1 d2
 *   sampled            d0            d1 x  -     d0 and d1 are right, x is kept, the rest dropped
 *
 * A row's bytes do not depend on the other rows of its step, so the tokens sampled after right
 * drafts are those that later steps would have sampled. The KV rows of wrong drafts are written
 * again by later steps. */
#include "base/mem.h"
#include "serve/schedule/scheduler_private.h"

/* Keeps room for one more token, which is drawn after the last draft. */
int32_t scheduler_drafts_usable(const struct scheduler *s, const struct sequence *q)
{
    const int64_t n_drawn = (int64_t)(q->r->n_tokens - q->r->n_prompt);
    int64_t n = s->o.flags.n_drafts, left = q->r->ask->max_tokens - n_drawn - 1;
    const int64_t context = s->o.rules->max_model_len - (int64_t)q->r->n_tokens - 1;
    if (left > context) left = context;
    if (n > left) n = left;
    return n > 0 ? (int32_t)n : 0;
}

int32_t scheduler_drafts_placed(const struct scheduler *s, const struct sequence *q, int32_t n)
{
    const struct replica *replica = &s->replicas[q->replica];
    int64_t n_blocks = (int64_t)q->n_blocks;
    const int64_t n_free = replica_n_free(replica) - replica->n_kept;
    if (n_free > 0) n_blocks += n_free / plan_tables_count(&s->o.tables);
    const int64_t most = n_blocks * PLAN_BLOCK_TOKENS - (int64_t)q->r->n_tokens;
    return n < most ? n : (int32_t)most;
}

/* Returns how many of q's n drafts, from the first on, its guide allows; stops before a draft after
 * which no token can follow. */
static int32_t n_fitting(const struct sequence *q, int32_t n)
{
    const struct request *r = q->r;
    uint16_t state = r->guide_state;
    if (r->ask->guide == NULL) return n;
    for (int32_t i = 0; i < n; i++) {
        state =
            guide_next(r->ask->guide, state, q->drafts[i], r->n_tokens + (size_t)i == r->n_prompt);
        if (state == GUIDE_LOST || !guide_goes_on(r->ask->guide, state)) return i;
    }
    return n;
}

/* Returns the probability that the prediction layer's guess of q's next token is right; 0: no
 * guess. */
static float odds_of_guess(const struct scheduler *s, const struct sequence *q)
{
    const bool has_one = s->o.predicts && q->n_before == q->r->n_tokens;
    return has_one ? drafting_predicted_odds(&q->drafting) : 0;
}

struct status scheduler_drafts_room(struct sequence *q)
{
    if (q->drafts != NULL) return status_ok();
    return mem_alloc(&q->drafts, SEQUENCE_DRAFTS_MAX, sizeof *q->drafts, "drafts");
}

/* Writes q's draft tokens; *n is their number. */
static struct status make_drafts(struct scheduler *s, struct drafting_step *step,
                                 struct sequence *q, int32_t n_rows, int32_t n_most, int32_t *n)
{
    struct drafting *d = &q->drafting;
    const struct request *r = q->r;
    TRY(scheduler_drafts_room(q));
    if (s->o.drafter != NULL) {
        *n = s->o.drafter(s->o.drafter_user, r, n_most, q->drafts);
        return status_ok();
    }
    if (q->n_proposed > 0) {
        *n = q->n_proposed < n_most ? q->n_proposed : n_most;
        return status_ok();
    }
    if (!s->o.no_repeats) TRY(drafting_look(d, r->tokens, r->n_tokens));
    const float odds = odds_of_guess(s, q);
    if (odds > drafting_odds(d) && n_most > 0) {
        q->is_predicted = drafting_is_worth(odds, step, n_rows);
        q->drafts[0] = q->predicted;
        *n = q->is_predicted ? 1 : 0;
        return status_ok();
    }
    *n = drafting_worth(d, step, n_rows, n_most);
    for (int32_t i = 0; i < *n; i++) {
        const size_t at = d->from + (size_t)i; /* a repeated text may go on into the drafts
                                                  themselves */
        q->drafts[i] = at < r->n_tokens ? r->tokens[at] : q->drafts[at - r->n_tokens];
    }
    return status_ok();
}

/* Finds the sequences that may get drafts. Returns their number. */
static int32_t open_drafts(struct scheduler *s, struct microbatch *m)
{
    int32_t n_open = 0;
    for (struct sequence *q = m->running.head; q != NULL; q = q->next) {
        q->n_drafts = 0;
        q->n_proposed = 0;
        q->is_predicted = false;
        q->drafting.n_same = 0;
        q->may_draft = q->n_rows == 1 && q->r->n_tokens - q->n_computed == 1 &&
                       scheduler_drafts_usable(s, q) > 0;
        n_open += q->may_draft;
    }
    return n_open;
}

int32_t scheduler_drafts_left(const struct scheduler *s, const struct microbatch *m)
{
    const int32_t most = DRAFTING_ROWS < s->budget ? DRAFTING_ROWS : s->budget;
    return s->o.flags.n_drafts == 0 || most < m->n_rows ? 0 : most - m->n_rows;
}

/* Adds draft tokens to a microbatch whose other rows are planned. Its sequences that may get some
 * share the remaining rows evenly. */
static struct status give(struct scheduler *s, struct drafting_step *step, struct microbatch *m)
{
    int32_t left = scheduler_drafts_left(s, m), n_open = m->n_open;
    if (left == 0) return status_ok();
    for (struct sequence *q = m->running.head; q != NULL; q = q->next) {
        if (!q->may_draft) continue;
        int32_t n = scheduler_drafts_usable(s, q);
        const int32_t share = (left + n_open - 1) / n_open;
        n_open--;
        if (n > share) n = share;
        TRY(make_drafts(s, step, q, m->n_rows, scheduler_drafts_placed(s, q, n), &n));
        q->n_drafts = n_fitting(q, n);
        m->n_rows += q->n_drafts;
        left -= q->n_drafts;
        const size_t n_end = (size_t)scheduler_blocks_for(q->r->n_tokens + (size_t)q->n_drafts);
        TRY(scheduler_take_blocks(s, q, n_end, n_end));
    }
    return status_ok();
}

struct status scheduler_give_drafts(struct scheduler *s, int32_t group)
{
    struct drafting_step step = {0};
    drafting_times(&s->o.draft_cost, step.times);
    for (int32_t i = 0; i < s->o.n_replicas; i++) {
        struct microbatch *m = &s->replicas[i].groups[group];
        step.n_good += (float)m->n_rows;
        if (m->n_rows > step.most_rows) step.most_rows = m->n_rows;
        m->n_open = open_drafts(s, m);
    }
    if (s->o.draft_model.propose != NULL) TRY(scheduler_ask_model(s, group, &step));
    for (int32_t i = 0; i < s->o.n_replicas; i++)
        TRY(give(s, &step, &s->replicas[i].groups[group]));
    return status_ok();
}

/* When guesses do not pay, raises their estimated probability a little, so that they are tried
 * again from time to time. */
bool scheduler_predicts(struct scheduler *s, int32_t group)
{
    static const float recovery = 1.0f / 8192;
    float times[DRAFTING_ROWS + 1];
    size_t n_most = 0;
    if (!s->o.predicts || s->o.flags.n_drafts == 0) return false;
    drafting_times(&s->o.draft_cost, times);
    for (int32_t i = 0; i < s->o.n_replicas; i++) {
        const size_t n = s->replicas[i].groups[group].running.n;
        if (n > n_most) n_most = n;
    }
    const int32_t n = n_most < DRAFTING_ROWS ? (int32_t)n_most : DRAFTING_ROWS;
    if (drafting_pays(&s->o.draft_cost, times, s->predicted_odds, n)) return true;
    if (s->predicted_odds < 1) s->predicted_odds += recovery;
    return false;
}

void scheduler_learn_guess(struct scheduler *s, struct sequence *q, int32_t token)
{
    static const float weight = 1.0f / 64;
    const bool is_right = token == q->predicted;
    if (!s->o.predicts || q->n_before != q->r->n_tokens || token < 0) return;
    drafting_learn_predicted(&q->drafting, is_right);
    s->predicted_odds += weight * ((is_right ? 1.0f : 0.0f) - s->predicted_odds);
    s->stats->n_guesses++;
    s->stats->n_right_guesses += is_right;
}

void scheduler_learn(struct scheduler *s, struct sequence *q, const struct result_seq *first,
                     int32_t n_right)
{
    struct drafting *d = &q->drafting;
    int32_t n_tried = q->is_predicted || q->n_proposed > 0 ? 0 : q->n_drafts;
    if (q->n_proposed > 0) scheduler_learn_model(s, q, first, n_right);
    if (n_tried == 0) n_right = 0;
    if (n_tried == 0 && d->n_same > 0) { /* the first draft got no row, but can be compared */
        n_tried = 1;
        n_right = first->token == q->r->tokens[d->from];
    }
    drafting_learn(d, n_tried > n_right ? n_right + 1 : n_tried, n_right);
}
