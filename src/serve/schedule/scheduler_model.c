/* Draft tokens from a second model (--draft): asks it for drafts where right drafts save more
 * time than its steps and the drafts' rows take. How the time of a step depends on its rows is a
 * formula (drafting_times). How long a step of one row takes in either model is measured, because
 * it depends on the machine and the layout. Drafts change no byte, so neither does the clock. */
#include "base/clock.h"
#include "base/mem.h"
#include "serve/schedule/scheduler_private.h"

/* Steps that must have been timed before drafts are asked for. */
enum { TIMED_LEAST = 4 };

/* When cost is weighed, the draft model is not asked for a sequence whose drafts are right with a
 * lower probability. */
static const float least_model_odds = 0.4f;

/* A sequence is assumed to draw as many more tokens as it has drawn, but at least this many, and no
 * more than max_tokens leaves. */
enum { HORIZON_LEAST = 16 };

/* A sequence that lacks at most this many rows in the draft model is asked for without weighing
 * their time: they are those of its last token and of the drafts that were right. */
enum { ROWS_ALWAYS = 8 };

static float odds_of_model(const struct scheduler *s, const struct sequence *q)
{
    return q->drafting.n_predicted > 0 ? q->drafting.predicted_odds : s->predicted_odds;
}

/* True when the number of drafts follows from their cost; otherwise the user gave it. */
static bool weighs_cost(const struct drafting_step *step)
{
    return step->times[1] > 0;
}

/* Returns the time of a step of one row of the draft model, in steps of one row of the model. */
static float model_step(const struct scheduler *s)
{
    const struct draft_source *d = &s->o.draft_model;
    return s->row_ns > 0 ? (float)(d->step_ns(d->user) / s->row_ns) : 0;
}

/* Decides whether the draft model may be asked for q: not if q is too long for it, nor, when cost
 * is weighed, if its drafts are improbable or the text gives better ones. */
static struct status may_ask(const struct scheduler *s, const struct drafting_step *step,
                             struct sequence *q, bool *may)
{
    *may = q->may_draft && q->r->n_tokens <= s->o.draft_model.context;
    if (!*may || !weighs_cost(step)) return status_ok();
    if (!s->o.no_repeats) TRY(drafting_look(&q->drafting, q->r->tokens, q->r->n_tokens));
    drafting_recover_predicted(&q->drafting, q->r->n_tokens);
    const float odds = odds_of_model(s, q);
    *may = odds >= least_model_odds && odds > drafting_odds(&q->drafting);
    return status_ok();
}

static struct draft_ask ask_of(const struct sequence *q)
{
    const struct request *r = q->r;
    return (struct draft_ask){.id = q->id,
                              .tokens = r->tokens,
                              .n_tokens = r->n_tokens,
                              .draw = {.top_k = r->ask->top_k,
                                       .temperature = r->ask->temperature,
                                       .top_p = r->ask->top_p,
                                       .min_p = r->ask->min_p,
                                       .penalties = {.repetition = 1},
                                       .key = {r->ask->key[0], r->ask->key[1]},
                                       .choice = r->choice},
                              .drafts = q->drafts};
}

/* Adds q to the asks. Errors: STATUS_MEMORY. */
static struct status add_ask(struct scheduler *s, struct sequence *q)
{
    struct model_asks *all = &s->model_asks;
    if (all->n == all->capacity) {
        const size_t to = 2 * all->n + 16;
        TRY(mem_grow(&all->asks, all->n, to, sizeof *all->asks, "drafts"));
        TRY(mem_grow(&all->of, all->n, to, sizeof(struct sequence *), "drafts"));
        TRY(mem_grow(&all->odds, all->n, to, sizeof *all->odds, "drafts"));
        all->capacity = to;
    }
    TRY(scheduler_drafts_room(q));
    all->asks[all->n] = ask_of(q);
    all->asks[all->n].n_most = scheduler_drafts_placed(s, q, scheduler_drafts_usable(s, q));
    all->odds[all->n] = odds_of_model(s, q);
    all->of[all->n++] = q;
    return status_ok();
}

/* Adds the sequences of m for which the draft model may be asked. Lowers *n_each to the drafts for
 * which each of them has room, and raises *n_busiest to their number. */
static struct status add_asks(struct scheduler *s, const struct drafting_step *step,
                              struct microbatch *m, int32_t *n_each, int32_t *n_busiest)
{
    const size_t first = s->model_asks.n;
    bool may;
    for (struct sequence *q = m->running.head; q != NULL; q = q->next) {
        TRY(may_ask(s, step, q, &may));
        if (may) TRY(add_ask(s, q));
    }
    const int32_t n = (int32_t)(s->model_asks.n - first);
    if (n == 0) return status_ok();
    const int32_t each = scheduler_drafts_left(s, m) / m->n_open;
    if (each < *n_each) *n_each = each;
    if (n > *n_busiest) *n_busiest = n;
    return status_ok();
}

/* True when the rows that the draft model lacks for ask i are at most ROWS_ALWAYS, or take less
 * time than the ask's drafts can save. saved: time that drafts save for each token. */
static bool pays_for_rows(const struct scheduler *s, const struct drafting_step *step, size_t i,
                          float saved)
{
    const struct draft_source *d = &s->o.draft_model;
    const struct draft_ask *a = &s->model_asks.asks[i];
    const struct request *r = s->model_asks.of[i]->r;
    const size_t n_rows = a->n_tokens - d->n_known(d->user, a), n_drawn = r->n_tokens - r->n_prompt;
    const float row = model_step(s) * step->times[DRAFTING_ROWS] / DRAFTING_ROWS;
    int64_t horizon = n_drawn > HORIZON_LEAST ? (int64_t)n_drawn : HORIZON_LEAST;
    const int64_t left = r->ask->max_tokens - (int64_t)n_drawn;
    if (horizon > left) horizon = left;
    return n_rows <= ROWS_ALWAYS || row * (float)n_rows < saved * (float)horizon;
}

/* Limits the asks to n_each drafts; drops those that get none or are not worth the draft model's
 * rows. */
static void choose_asks(struct scheduler *s, const struct drafting_step *step, int32_t n_each,
                        float saved)
{
    struct model_asks *all = &s->model_asks;
    size_t n = 0;
    for (size_t i = 0; i < all->n; i++) {
        struct draft_ask *a = &all->asks[i];
        if (a->n_most > n_each) a->n_most = n_each;
        if (a->n_most <= 0) continue;
        if (weighs_cost(step) && !pays_for_rows(s, step, i, saved)) continue;
        all->asks[n] = *a;
        all->odds[n] = all->odds[i];
        all->of[n++] = all->of[i];
    }
    all->n = n;
}

/* Takes the proposals: each sequence's n_proposed. A sequence for which the draft model has no room
 * or no token counts as one with a wrong draft, so that it is seldom asked in vain. */
static void take_proposals(struct scheduler *s, struct drafting_step *step)
{
    for (size_t i = 0; i < s->model_asks.n; i++) {
        struct sequence *q = s->model_asks.of[i];
        const struct draft_ask *a = &s->model_asks.asks[i];
        q->n_proposed = a->n;
        step->n_good += drafting_expected(s->model_asks.odds[i], q->n_proposed);
        if (a->n == 0 && !a->is_late) drafting_learn_predicted(&q->drafting, false);
    }
}

/* Raises step->most_rows to the rows that the group has with its proposals. */
static void count_proposals(const struct scheduler *s, int32_t group, struct drafting_step *step)
{
    for (int32_t i = 0; i < s->o.n_replicas; i++) {
        const struct microbatch *m = &s->replicas[i].groups[group];
        int32_t n = m->n_rows;
        for (const struct sequence *q = m->running.head; q != NULL; q = q->next) n += q->n_proposed;
        if (n > step->most_rows) step->most_rows = n;
    }
}

/* When sequences of the group may get drafts but none is asked for, raises the estimated
 * probability of drafts a little, so that they are tried again from time to time. */
static void recover_odds(struct scheduler *s, int32_t group)
{
    static const float recovery = 1.0f / 8192;
    int32_t n_open = 0;
    for (int32_t i = 0; i < s->o.n_replicas; i++) n_open += s->replicas[i].groups[group].n_open;
    if (n_open > 0 && s->predicted_odds < 1) s->predicted_odds += recovery;
}

/* Leaves in s->model_asks the sequences of the group for which the draft model is asked. */
static struct status find_asks(struct scheduler *s, int32_t group, const struct drafting_step *step)
{
    struct model_asks *all = &s->model_asks;
    int32_t n_each = s->o.flags.n_drafts, n_busiest = 0;
    float saved;
    for (int32_t i = 0; i < s->o.n_replicas; i++)
        TRY(add_asks(s, step, &s->replicas[i].groups[group], &n_each, &n_busiest));
    if (all->n == 0) return status_ok();
    const struct drafting_asked asked = {
        .odds = all->odds, .n = (int32_t)all->n, .n_busiest = n_busiest, .step = model_step(s)};
    n_each = drafting_asked_worth(&asked, step, n_each, &saved);
    choose_asks(s, step, n_each, saved);
    return status_ok();
}

struct status scheduler_ask_model(struct scheduler *s, int32_t group, struct drafting_step *step)
{
    struct model_asks *all = &s->model_asks;
    all->n = 0;
    if (weighs_cost(step) && s->n_timed < TIMED_LEAST) return status_ok();
    TRY(find_asks(s, group, step));
    if (all->n == 0) {
        recover_odds(s, group);
        return status_ok();
    }
    const uint64_t since = clock_ns();
    TRY(s->o.draft_model.propose(s->o.draft_model.user, all->asks, all->n));
    s->stats->model_drafts.ns += clock_ns() - since;
    take_proposals(s, step);
    count_proposals(s, group, step);
    return status_ok();
}

void scheduler_time_step(struct scheduler *s, const struct replica *replica,
                         const struct microbatch *m)
{
    float times[DRAFTING_ROWS + 1];
    int32_t n_busy = 0; /* groups whose steps are in flight and share the time */
    const bool decodes = m->n_rows > 0 && (size_t)m->n_rows == m->n_entries;
    if (s->o.draft_model.propose == NULL || !decodes || m->n_rows > DRAFTING_ROWS) return;
    drafting_times(&s->o.draft_cost, times);
    if (times[1] == 0) return;
    for (int32_t g = 0; g < s->o.n_groups; g++) n_busy += replica->groups[g].n_flight > 0;
    const uint64_t drafting = s->stats->model_drafts.ns - m->drafting_ns; /* of other groups */
    const double ns = (double)(clock_ns() - m->plan_ns - drafting);
    const double one = ns / (n_busy * (double)times[m->n_rows]);
    if (s->n_timed < TIMED_LEAST) s->n_timed++;
    s->row_ns = drafting_usual_ns(s->row_ns, one);
}

void scheduler_learn_model(struct scheduler *s, struct sequence *q, const struct result_seq *first,
                           int32_t n_right)
{
    static const float weight = 1.0f / 64;
    int32_t n_tried = q->n_drafts;
    if (n_tried == 0 && first->token >= 0) { /* the first draft got no row, but can be compared */
        n_tried = 1;
        n_right = first->token == q->drafts[0];
    }
    for (int32_t i = 0; i <= n_right && i < n_tried; i++) {
        const bool is_right = i < n_right;
        drafting_learn_predicted(&q->drafting, is_right);
        s->predicted_odds += weight * ((is_right ? 1.0f : 0.0f) - s->predicted_odds);
    }
}
