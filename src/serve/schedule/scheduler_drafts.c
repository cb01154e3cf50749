/* Drafts: tokens that a decoding request may come to draw, tried in the same step as the one before
 * them. A draft is a row like any other, with all that is asked of it, at its own position: because
 * a row's bytes do not depend on what else the step computes, what is drawn behind right drafts is
 * what later steps would have drawn. The first one that is wrong ends it: the rows behind it were
 * computed for nothing, and their places in the cache are written again. */
#include "base/mem.h"
#include "serve/schedule/scheduler_private.h"

/* Drafts that r could still use: behind each one more token is drawn. */
static int32_t n_usable(const struct scheduler *s, const struct request *r)
{
    const int64_t n_drawn = (int64_t)(r->n_tokens - r->n_prompt);
    int64_t n = s->o.n_drafts, left = r->max_tokens - n_drawn - 1;
    const int64_t context = s->o.rules->max_model_len - (int64_t)r->n_tokens - 1;
    if (left > context) left = context;
    if (n > left) n = left;
    return n > 0 ? (int32_t)n : 0;
}

/* Rows whose blocks r has, or could have without anybody missing them. */
static int32_t n_placed(const struct scheduler *s, const struct request *r, int32_t n)
{
    const struct replica *replica = &s->replicas[r->replica];
    int64_t n_blocks = (int64_t)r->n_blocks;
    const int64_t n_free = replica_n_free(replica) - replica->n_kept;
    if (n_free > 0) n_blocks += n_free;
    const int64_t most = n_blocks * PLAN_BLOCK_TOKENS - (int64_t)r->n_tokens;
    return n < most ? n : (int32_t)most;
}

/* Of n drafts behind r's tokens those that its form allows and goes on after. */
static int32_t n_fitting(const struct request *r, int32_t n)
{
    uint16_t state = r->guide_state;
    if (r->guide == NULL) return n;
    for (int32_t i = 0; i < n; i++) {
        const size_t at = r->n_tokens + (size_t)i;
        state = guide_next(r->guide, state, r->tokens[at], at == r->n_prompt);
        if (state == GUIDE_LOST || !guide_goes_on(r->guide, state)) return i;
    }
    return n;
}

static struct status reserve_tokens(struct request *r, size_t n)
{
    if (n <= r->tokens_capacity) return status_ok();
    const size_t grown = n + n / 2 + 64;
    TRY(mem_grow(&r->tokens, r->n_tokens, grown, sizeof *r->tokens, "request tokens"));
    r->tokens_capacity = grown;
    return status_ok();
}

/* How many drafts, which then stand behind r's tokens. */
static struct status guess(struct scheduler *s, struct drafting_step *step, struct request *r,
                           int32_t n_rows, int32_t n_most, int32_t *n)
{
    struct drafting *d = &r->drafting;
    TRY(reserve_tokens(r, r->n_tokens + (size_t)n_most + 1));
    if (s->o.drafter != NULL) {
        *n = s->o.drafter(s->o.drafter_user, r, n_most, r->tokens + r->n_tokens);
        return status_ok();
    }
    TRY(drafting_look(d, r->tokens, r->n_tokens));
    *n = drafting_worth(d, step, n_rows, n_most);
    /* the text may run into its own continuation */
    for (int32_t i = 0; i < *n; i++)
        r->tokens[r->n_tokens + (size_t)i] = r->tokens[d->from + (size_t)i];
    return status_ok();
}

/* After all other rows of the step were given. */
static struct status give(struct scheduler *s, struct drafting_step *step, struct microbatch *m)
{
    int32_t left = DRAFTING_ROWS < s->step_rows ? DRAFTING_ROWS : s->step_rows, n_open = 0;
    left -= m->n_rows;
    for (struct request *r = m->running.head; r != NULL; r = r->next) {
        r->n_drafts = 0;
        r->drafting.n_same = 0;
        r->may_draft = r->n_rows == 1 && r->n_tokens - r->n_computed == 1 && n_usable(s, r) > 0;
        n_open += r->may_draft;
    }
    if (s->o.n_drafts == 0 || left <= 0) return status_ok();
    for (struct request *r = m->running.head; r != NULL; r = r->next) {
        if (!r->may_draft) continue;
        int32_t n = n_usable(s, r);
        const int32_t share = (left + n_open - 1) / n_open;
        n_open--;
        if (n > share) n = share;
        TRY(guess(s, step, r, m->n_rows, n_placed(s, r, n), &n));
        r->n_drafts = n_fitting(r, n);
        m->n_rows += r->n_drafts;
        left -= r->n_drafts;
        TRY(scheduler_take_blocks(s, r,
                                  (size_t)scheduler_blocks_for(r->n_tokens + (size_t)r->n_drafts)));
    }
    return status_ok();
}

struct status scheduler_give_drafts(struct scheduler *s, int32_t group)
{
    struct drafting_step step = {0};
    drafting_times(&s->o.draft_cost, step.times);
    for (int32_t i = 0; i < s->o.n_replicas; i++) {
        const int32_t n_rows = s->replicas[i].groups[group].n_rows;
        step.n_good += (float)n_rows;
        if (n_rows > step.most_rows) step.most_rows = n_rows;
    }
    for (int32_t i = 0; i < s->o.n_replicas; i++)
        TRY(give(s, &step, &s->replicas[i].groups[group]));
    return status_ok();
}
