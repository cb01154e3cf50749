/* Experts over ranks by their load. The file's side of it: expert_load.c. */
#include "parallel/layout/expert_places.h"

#include "base/mem.h"

#include <stdlib.h>

/* The state of one layer while its experts are placed. */
struct deal {
    const struct layout *l;
    const int64_t *load; /* [E] */
    uint32_t *part;      /* [E] of each expert */
    int64_t *of_part;    /* [ep] */
    int64_t *before;     /* [ep] of the layers before */
    uint32_t *n_in_part; /* [ep] */
    struct weighed {
        int64_t load;
        uint32_t expert;
    } * order; /* [E] */
};

/* The heaviest first; of equal ones the first. */
static int by_load(const void *a, const void *b)
{
    const struct weighed *x = a, *y = b;
    if (x->load != y->load) return x->load < y->load ? 1 : -1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

/* True when part a has less load in this layer than b, or the same and less in the layers before.
 * So an imbalance that a layer cannot avoid does not hit the same rank in every layer. */
static bool is_lighter(const struct deal *d, uint32_t a, uint32_t b)
{
    if (d->of_part[a] != d->of_part[b]) return d->of_part[a] < d->of_part[b];
    return d->before[a] < d->before[b];
}

static uint32_t lightest_with_room(const struct deal *d)
{
    uint32_t best = d->l->ep;
    for (uint32_t i = 0; i < d->l->ep; i++) {
        if (d->n_in_part[i] == range_count(layout_experts(d->l, i))) continue;
        if (best == d->l->ep || is_lighter(d, i, best)) best = i;
    }
    return best;
}

static void deal_greedily(struct deal *d)
{
    const uint32_t n = d->l->model.arch->n_experts;
    for (uint32_t i = 0; i < d->l->ep; i++) {
        d->of_part[i] = 0;
        d->n_in_part[i] = 0;
    }
    for (uint32_t e = 0; e < n; e++) d->order[e] = (struct weighed){d->load[e], e};
    qsort(d->order, n, sizeof *d->order, by_load);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t part = lightest_with_room(d);
        d->part[d->order[i].expert] = part;
        d->of_part[part] += d->order[i].load;
        d->n_in_part[part]++;
    }
}

/* Swaps the pair of experts, one of the fullest part, that leaves the fuller of the two parts least
 * full; false when none makes it less full than it was. */
static bool swap_one(struct deal *d)
{
    const uint32_t n = d->l->model.arch->n_experts;
    uint32_t full = 0, give = n, take = n;
    for (uint32_t i = 1; i < d->l->ep; i++)
        if (d->of_part[i] > d->of_part[full]) full = i;
    int64_t best = d->of_part[full];
    for (uint32_t a = 0; a < n; a++) {
        for (uint32_t b = 0; d->part[a] == full && b < n; b++) {
            const int64_t moved = d->load[a] - d->load[b];
            if (d->part[b] == full || moved <= 0) continue;
            const int64_t less = d->of_part[full] - moved, more = d->of_part[d->part[b]] + moved;
            const int64_t fuller = less > more ? less : more;
            if (fuller >= best) continue;
            best = fuller;
            give = a;
            take = b;
        }
    }
    if (give == n) return false;
    const int64_t moved = d->load[give] - d->load[take];
    d->of_part[full] -= moved;
    d->of_part[d->part[take]] += moved;
    d->part[give] = d->part[take];
    d->part[take] = full;
    return true;
}

/* The experts of a part stand by ascending id. */
static void expert_take_places(const struct deal *d, uint32_t *place, uint32_t *expert)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < d->l->ep; i++) {
        for (uint32_t e = 0; e < d->l->model.arch->n_experts; e++) {
            if (d->part[e] != i) continue;
            place[e] = at;
            expert[at++] = e;
        }
    }
}

static struct status deal_all(struct deal *d, const int64_t *load, struct expert_places *p)
{
    const size_t n = d->l->model.arch->n_experts;
    TRY(mem_alloc(&d->part, n, sizeof *d->part, "experts' places"));
    TRY(mem_alloc(&d->order, n, sizeof *d->order, "experts' places"));
    TRY(mem_alloc(&d->of_part, d->l->ep, sizeof *d->of_part, "experts' places"));
    TRY(mem_alloc(&d->before, d->l->ep, sizeof *d->before, "experts' places"));
    TRY(mem_alloc(&d->n_in_part, d->l->ep, sizeof *d->n_in_part, "experts' places"));
    for (uint32_t layer = 0; layer < d->l->model.arch->n_layers; layer++) {
        d->load = load + layer * n;
        deal_greedily(d);
        for (size_t i = 0; i < n && swap_one(d); i++) {
        }
        expert_take_places(d, p->place + layer * n, p->expert + layer * n);
        for (uint32_t i = 0; i < d->l->ep; i++) d->before[i] += d->of_part[i];
    }
    return status_ok();
}

struct status expert_places_create(const struct layout *l, const int64_t *load,
                                   struct expert_places **out)
{
    struct expert_places *p = NULL;
    struct deal d = {.l = l};
    struct status st;
    *out = NULL;
    const size_t n = (size_t)l->model.arch->n_layers * l->model.arch->n_experts;
    TRY(mem_alloc(&p, 1, sizeof *p, "experts' places"));
    p->n_experts = l->model.arch->n_experts;
    TRY_GOTO(st, mem_alloc(&p->place, n, sizeof *p->place, "experts' places"), done);
    TRY_GOTO(st, mem_alloc(&p->expert, n, sizeof *p->expert, "experts' places"), done);
    st = deal_all(&d, load, p);
done:
    mem_free(&d.part);
    mem_free(&d.order);
    mem_free(&d.of_part);
    mem_free(&d.before);
    mem_free(&d.n_in_part);
    if (status_failed(&st)) expert_places_destroy(&p);
    *out = p;
    return st;
}

void expert_places_destroy(struct expert_places **p)
{
    if (*p == NULL) return;
    mem_free(&(*p)->place);
    mem_free(&(*p)->expert);
    mem_free(p);
}

void expert_part_loads(const struct layout *l, const struct expert_places *p, const int64_t *load,
                       uint32_t layer, int64_t *of_part)
{
    const size_t first = (size_t)layer * l->model.arch->n_experts;
    for (uint32_t i = 0; i < l->ep; i++) {
        const struct range held = layout_experts(l, i);
        of_part[i] = 0;
        for (uint32_t at = held.begin; at < held.end; at++)
            of_part[i] += load[first + (p != NULL ? p->expert[first + at] : at)];
    }
}

struct status expert_evenness_of(const struct layout *l, const struct expert_places *p,
                                 const int64_t *load, struct expert_evenness *out)
{
    int64_t *of_part = NULL;
    uint32_t n = 0;
    *out = (struct expert_evenness){0};
    TRY(mem_alloc(&of_part, l->ep, sizeof *of_part, "experts' load"));
    for (uint32_t layer = 0; layer < l->model.arch->n_layers; layer++) {
        int64_t sum = 0, most = 0;
        expert_part_loads(l, p, load, layer, of_part);
        for (uint32_t i = 0; i < l->ep; i++) {
            sum += of_part[i];
            if (of_part[i] > most) most = of_part[i];
        }
        if (sum == 0) continue;
        const double ratio = (double)most * l->ep / (double)sum;
        out->mean += ratio;
        if (ratio > out->worst) out->worst = ratio;
        n++;
    }
    if (n > 0) out->mean /= n;
    mem_free(&of_part);
    return status_ok();
}
