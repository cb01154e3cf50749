/* Replaces experts by their places: each choice gets the place of its expert or, where the expert
 * has copies, of the copy that computes it (parallel/layout/expert_copies.h). Called by moe.c;
 * moe_expect_rows also by stage.c. */
#include "base/mem.h"
#include "moe/moe_private.h"
#include "parallel/layout/expert_places.h"

#include <string.h>

/* Estimates, for a layer, how many rows each ep part gets from the ranks of all parts but this
 * rank's (added to others [ep], which the caller has zeroed), and how many rows this rank sends
 * (*own). sent [ep, ep] is scratch. */
static struct status expect_others(struct moe *m, uint32_t layer, int64_t *sent, int64_t *others,
                                   int64_t *own)
{
    const struct layout *l = m->o.layout;
    const struct expert_places *p = l->expert_places;
    TRY(expert_flow(l, p, p->load + (size_t)layer * p->n_experts, layer, sent));
    *own = 0;
    for (uint32_t source = 0; source < l->ep; source++) {
        for (uint32_t i = 0; i < l->ep; i++) {
            const int64_t n = sent[(size_t)source * l->ep + i];
            *(source == m->place.ep ? own : &others[i]) += n;
        }
    }
    return status_ok();
}

struct status moe_expect_rows(struct moe *m)
{
    struct copies *c = &m->copies;
    const struct layout *l = m->o.layout;
    const struct range layers = layout_layers(l, m->place.pp);
    int64_t *sent = NULL;
    struct status st = status_ok();
    if (l->n_expert_copies == 0) return st;
    memset(c->others, 0, (size_t)range_count(layers) * l->ep * sizeof *c->others);
    TRY(mem_alloc(&sent, (size_t)l->ep * l->ep, sizeof *sent, "copies"));
    for (uint32_t i = 0; i < range_count(layers) && !status_failed(&st); i++)
        if (m->o.model->layer.is_moe[layers.begin + i])
            st =
                expect_others(m, layers.begin + i, sent, c->others + (size_t)i * l->ep, &c->own[i]);
    mem_free(&sent);
    return st;
}

struct status moe_copies_create(struct moe *m)
{
    struct copies *c = &m->copies;
    const struct layout *l = m->o.layout;
    if (l->n_expert_copies == 0) return status_ok();
    TRY(mem_alloc(&c->rows, m->o.model->moe.n_experts, sizeof *c->rows, "copies"));
    TRY(mem_alloc(&c->share, m->n_places, sizeof *c->share, "copies"));
    TRY(mem_alloc(&c->before, l->ep, sizeof *c->before, "copies"));
    TRY(mem_alloc(&c->part_rows, l->ep, sizeof *c->part_rows, "copies"));
    TRY(mem_alloc(&c->distance, l->ep, sizeof *c->distance, "copies"));
    expert_distances(l, l->expert_places, m->o.rank, c->distance);
    const size_t n_layers = range_count(layout_layers(l, m->place.pp));
    TRY(mem_alloc(&c->others, n_layers * l->ep, sizeof *c->others, "copies"));
    TRY(mem_alloc(&c->own, n_layers, sizeof *c->own, "copies"));
    return moe_expect_rows(m);
}

void moe_copies_destroy(struct moe *m)
{
    struct copies *c = &m->copies;
    mem_free(&c->distance);
    mem_free(&c->part_rows);
    mem_free(&c->before);
    mem_free(&c->share);
    mem_free(&c->rows);
    mem_free(&c->own);
    mem_free(&c->others);
}

/* Divides the counted rows of the experts among their copies. If the exchange lists all tokens'
 * choices on every rank, all ranks must choose the same copies, so all parts count as equally near.
 * Otherwise a rank knows its own rows only, and estimates the other ranks' rows from the load by
 * which the experts were placed. */
static void share_rows(struct moe *m, const struct pass *p, int64_t n_rows)
{
    struct copies *c = &m->copies;
    const uint32_t ep = m->o.layout->ep;
    struct expert_copies all = {.n_experts = m->o.model->moe.n_experts,
                                .n_parts = ep,
                                .first = p->w->first,
                                .place = p->w->place,
                                .part_of = m->o.layout->expert_places->part_of};
    if (!m->exchange->lists_all) {
        const int64_t own = c->own[p->in_stage];
        for (uint32_t i = 0; i < ep; i++)
            c->before[i] = own > 0 ? c->others[(size_t)p->in_stage * ep + i] * n_rows / own : 0;
        all.distance = c->distance;
        all.before = c->before;
    }
    expert_copies_share(&all, c->rows, c->share, c->part_rows);
}

/* Returns the next of the expert's places that still gets a row, and counts that row off. */
static uint32_t next_copy_place(const struct moe *m, const struct pass *p, uint32_t e)
{
    uint32_t i = p->w->first[e];
    while (m->copies.share[i] == 0) i++;
    m->copies.share[i]--;
    return p->w->place[i];
}

/* Counts the rows of each expert. Returns their sum. */
static int64_t count_rows(struct moe *m, const struct pass *p)
{
    const size_t n_choices = (size_t)range_count(p->listed) * m->o.model->moe.n_chosen;
    int64_t *rows = m->copies.rows, n = 0;
    memset(rows, 0, m->o.model->moe.n_experts * sizeof *rows);
    for (size_t i = 0; i < n_choices; i++) {
        if (p->ids[i] < 0) continue;
        rows[p->ids[i]]++;
        n++;
    }
    return n;
}

void moe_take_places(struct moe *m, struct pass *p)
{
    const size_t n_choices = (size_t)range_count(p->listed) * m->o.model->moe.n_chosen;
    const bool has_copies = m->o.layout->n_expert_copies > 0;
    if (p->w->place == NULL) return;
    if (has_copies) share_rows(m, p, count_rows(m, p));
    for (size_t i = 0; i < n_choices; i++) {
        if (p->ids[i] < 0) continue;
        const uint32_t e = (uint32_t)p->ids[i];
        p->ids[i] = (int32_t)(has_copies ? next_copy_place(m, p, e) : p->w->place[e]);
    }
}
