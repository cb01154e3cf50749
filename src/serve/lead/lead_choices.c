/* Lines with several answers, and beam searches. Each answer is a request of its own; the line's
 * row is written when the last one has finished. */
#include "base/mem.h"
#include "serve/lead/lead_private.h"
#include "serve/request/beam.h"
#include "serve/request/request_choice.h"

/* Makes the request for answer i of p and passes it on to the result cache and the scheduler. */
static struct status run_choice(struct lead *l, struct request *p, uint32_t i,
                                const struct journal_hit *hit)
{
    struct request *c = NULL;
    TRY(request_create_choice(p, i, &c));
    c->order = l->n_ordered++;
    return lead_take_request(l, c, hit);
}

/* Submits one probe for each running hypothesis. Probe i has the line's order number plus i. */
static struct status run_probes(struct lead *l, struct request *p)
{
    const int32_t n = beam_n_running(p->choices.search);
    p->choices.n_open = n;
    for (int32_t i = 0; i < n; i++) {
        struct request *c = NULL;
        TRY(beam_make_probe(p->choices.search, i, &c));
        c->order = p->order + (uint64_t)i;
        TRY(scheduler_submit(l->scheduler, c));
    }
    return status_ok();
}

struct status lead_open_choices(struct lead *l, struct request *p, const struct journal_hit *hit)
{
    const bool is_beam = p->ask->beam.width > 0;
    const size_t n = (size_t)(is_beam ? p->ask->beam.width : p->ask->n_choices);
    request_list_put(&l->parents, p, NULL);
    TRY(mem_alloc(&p->choices.at, n, sizeof(struct request *), "choices"));
    p->choices.capacity = n;
    if (is_beam) {
        l->n_ordered += n - 1; /* p already has the first of n numbers */
        TRY(beam_create(p, &l->rules, &p->choices.search));
        TRY(lead_take_search(l, p, hit));
        return run_probes(l, p);
    }
    p->choices.n_open = (int32_t)n;
    for (uint32_t i = 0; i < n; i++)
        TRY(run_choice(l, p, i, hit)); /* the last call may destroy
                                          p */
    return status_ok();
}

static void drop_choices(struct request *p)
{
    for (size_t i = 0; i < p->choices.capacity; i++) request_destroy(&p->choices.at[i]);
}

/* Advances the beam search by a step, once all probes of the step are back. After the last step,
 * makes the answers. */
static struct status lead_choices_advance(struct lead *l, struct request *p)
{
    TRY(beam_advance(p->choices.search, p->choices.at));
    drop_choices(p);
    if (l->o.flags.checkpoint_tokens > 0)
        TRY(lead_save_search(l, p, (size_t)l->o.flags.checkpoint_tokens));
    if (beam_n_running(p->choices.search) > 0) return run_probes(l, p);
    for (int32_t i = 0; i < p->ask->n_choices; i++)
        TRY(beam_make_answer(p->choices.search, i, &p->choices.at[i]));
    return status_ok();
}

/* Makes p an error row if an answer has an error; the first such answer counts. */
static struct status take_errors(struct request *p)
{
    for (size_t i = 0; i < p->choices.capacity; i++) {
        const struct request *c = p->choices.at[i];
        if (c == NULL || c->error.code == NULL) continue;
        return request_fail(p, c->error.code, c->error.message);
    }
    return status_ok();
}

struct status lead_end_request(struct lead *l, struct request *r)
{
    struct status st = status_ok();
    if (r->parent != NULL) {
        struct request *p = r->parent;
        p->choices.at[r->choice] = r;
        p->n_dropped += r->n_dropped;
        if (--p->choices.n_open > 0)
            return l->o.flags.checkpoint_tokens > 0 ? lead_save_tokens(l, r, 1) : st;
        st = take_errors(p);
        if (!status_failed(&st) && p->error.code == NULL && p->choices.search != NULL)
            st = lead_choices_advance(l, p);
        if (status_failed(&st) || p->choices.n_open > 0) return st; /* the lead keeps p */
        request_list_take(&l->parents, p);
        beam_destroy(&p->choices.search);
        r = p;
    }
    st = lead_put(l, r);
    request_destroy(&r);
    return st;
}
