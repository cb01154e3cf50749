/* Experts over ranks by their load. The file's side of it: expert_load.c; how even the result is:
 * expert_evenness.c. */
#include "parallel/layout/expert_places.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* An expert, or a copy of it, that needs a place. */
struct item {
    int64_t load; /* an even share of the expert's */
    uint32_t expert, part;
};

/* The state of one layer while its experts are placed. */
struct deal {
    const struct layout *l;
    const int64_t *load;     /* [E] */
    uint32_t n_hosts;        /* of the parts */
    const uint32_t *host_of; /* [ep] of each part, from 0 on */
    uint32_t *n_copies;      /* [E] */
    struct item *items;      /* [P] the heaviest first */
    int64_t *of_part;        /* [ep] */
    int64_t *before;         /* [ep] of the layers before */
    uint32_t *n_in_part;     /* [ep] */
    uint16_t *in_part;       /* [ep, E] copies of each expert */
    uint16_t *on_host;       /* [n_hosts, E] likewise */
};

static uint32_t n_experts_of(const struct deal *d)
{
    return d->l->model.arch->n_experts;
}

static uint16_t *in_part(const struct deal *d, uint32_t part, uint32_t e)
{
    return &d->in_part[(size_t)part * n_experts_of(d) + e];
}

static uint16_t *on_host(const struct deal *d, uint32_t part, uint32_t e)
{
    return &d->on_host[(size_t)d->host_of[part] * n_experts_of(d) + e];
}

static void put(struct deal *d, struct item *x, uint32_t part)
{
    x->part = part;
    d->of_part[part] += x->load;
    d->n_in_part[part]++;
    ++*in_part(d, part, x->expert);
    ++*on_host(d, part, x->expert);
}

static void take(struct deal *d, const struct item *x)
{
    d->of_part[x->part] -= x->load;
    d->n_in_part[x->part]--;
    --*in_part(d, x->part, x->expert);
    --*on_host(d, x->part, x->expert);
}

/* The heaviest first; of equal ones the first. */
static int by_load(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->load != y->load) return x->load < y->load ? 1 : -1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

/* --- copies --------------------------------------------------------------------------------- */

/* Copies that an expert needs at once to make its fullest one less full: a token takes a copy of
 * its own host, so once all hosts have one, each host needs one more. */
static uint32_t copies_at_once(const struct deal *d, uint32_t e)
{
    return d->n_copies[e] < d->n_hosts ? 1 : d->n_hosts;
}

/* Whether the copies of a have more load each than those of b; of equal ones, fewer copies. */
static bool needs_more(const struct deal *d, uint32_t a, uint32_t b)
{
    const int64_t x = d->load[a] * d->n_copies[b], y = d->load[b] * d->n_copies[a];
    return x != y ? x > y : d->n_copies[a] < d->n_copies[b];
}

/* The expert whose copies have the most load each, among those that may get more; E: none.
 * in_rounds: it gets copies_at_once. */
static uint32_t neediest(const struct deal *d, uint32_t left, bool in_rounds)
{
    const uint32_t n = n_experts_of(d);
    uint32_t best = n;
    for (uint32_t e = 0; e < n; e++) {
        const uint32_t more = in_rounds ? copies_at_once(d, e) : 1;
        if (more > left || d->n_copies[e] + more > d->l->ep) continue;
        if (best == n || needs_more(d, e, best)) best = e;
    }
    return best;
}

static void choose_copies(struct deal *d)
{
    const uint32_t n = n_experts_of(d);
    for (uint32_t e = 0; e < n; e++) d->n_copies[e] = 1;
    for (uint32_t left = d->l->n_expert_copies; left > 0;) {
        const uint32_t in_rounds = neediest(d, left, true);
        const uint32_t e = in_rounds < n ? in_rounds : neediest(d, left, false);
        assert(e < n); /* the layout has at most ep copies of each */
        const uint32_t more = in_rounds < n ? copies_at_once(d, e) : 1;
        d->n_copies[e] += more;
        left -= more;
    }
}

/* --- places --------------------------------------------------------------------------------- */

static void make_items(struct deal *d)
{
    const uint32_t n = n_experts_of(d);
    uint32_t at = 0;
    for (uint32_t e = 0; e < n; e++)
        for (uint32_t i = 0; i < d->n_copies[e]; i++)
            d->items[at++] = (struct item){.load = d->load[e] / d->n_copies[e], .expert = e};
    qsort(d->items, at, sizeof *d->items, by_load);
}

/* True when part a suits an expert better than b: first a part without it, then a host with fewer
 * of its copies, then the part with less load in this layer, then with less in the layers before.
 * So an imbalance that a layer cannot avoid does not hit the same rank in every layer. */
static bool suits_better(const struct deal *d, uint32_t e, uint32_t a, uint32_t b)
{
    const uint16_t in_a = *in_part(d, a, e), in_b = *in_part(d, b, e);
    const uint16_t on_a = *on_host(d, a, e), on_b = *on_host(d, b, e);
    if (in_a != in_b) return in_a < in_b;
    if (on_a != on_b) return on_a < on_b;
    if (d->of_part[a] != d->of_part[b]) return d->of_part[a] < d->of_part[b];
    return d->before[a] < d->before[b];
}

static uint32_t best_with_room(const struct deal *d, uint32_t e)
{
    uint32_t best = d->l->ep;
    for (uint32_t i = 0; i < d->l->ep; i++) {
        if (d->n_in_part[i] == range_count(layout_experts(d->l, i))) continue;
        if (best == d->l->ep || suits_better(d, e, i, best)) best = i;
    }
    return best;
}

static void deal_greedily(struct deal *d)
{
    const size_t n = n_experts_of(d);
    memset(d->of_part, 0, d->l->ep * sizeof *d->of_part);
    memset(d->n_in_part, 0, d->l->ep * sizeof *d->n_in_part);
    memset(d->in_part, 0, d->l->ep * n * sizeof *d->in_part);
    memset(d->on_host, 0, d->n_hosts * n * sizeof *d->on_host);
    for (uint32_t i = 0; i < layout_n_places(d->l); i++)
        put(d, &d->items[i], best_with_room(d, d->items[i].expert));
}

/* Whether an expert may move to another part: one without it, on a host that then has no more
 * copies than the old host had. */
static bool may_move(const struct deal *d, const struct item *x, uint32_t part)
{
    if (d->n_copies[x->expert] == 1) return true;
    if (*in_part(d, part, x->expert) > 0) return false;
    return d->host_of[part] == d->host_of[x->part] ||
           *on_host(d, part, x->expert) < *on_host(d, x->part, x->expert);
}

/* Swaps the pair of items, one of the fullest part, that leaves the fuller of the two parts least
 * full; false when none makes it less full than it was. */
static bool swap_one(struct deal *d)
{
    const uint32_t n = layout_n_places(d->l);
    uint32_t full = 0;
    struct item *give = NULL, *get = NULL;
    for (uint32_t i = 1; i < d->l->ep; i++)
        if (d->of_part[i] > d->of_part[full]) full = i;
    int64_t best = d->of_part[full];
    for (struct item *a = d->items; a < d->items + n; a++) {
        for (struct item *b = d->items; a->part == full && b < d->items + n; b++) {
            const int64_t moved = a->load - b->load;
            if (b->part == full || moved <= 0) continue;
            const int64_t less = d->of_part[full] - moved, more = d->of_part[b->part] + moved;
            const int64_t fuller = less > more ? less : more;
            if (fuller >= best || !may_move(d, a, b->part) || !may_move(d, b, full)) continue;
            best = fuller;
            give = a;
            get = b;
        }
    }
    if (give == NULL) return false;
    const uint32_t other = get->part;
    take(d, give);
    take(d, get);
    put(d, give, other);
    put(d, get, full);
    return true;
}

/* The experts of a part stand by ascending id. */
static void take_places(const struct deal *d, struct expert_places *p, uint32_t layer)
{
    const uint32_t n = p->n_experts;
    uint32_t *expert = p->expert + (size_t)layer * p->n_places, at = 0;
    uint32_t *place = p->place + (size_t)layer * p->n_places;
    uint32_t *first = p->first + (size_t)layer * (n + 1);
    for (uint32_t i = 0; i < d->l->ep; i++)
        for (uint32_t e = 0; e < n; e++)
            for (uint16_t k = 0; k < *in_part(d, i, e); k++) expert[at++] = e;
    first[0] = 0;
    for (uint32_t e = 0; e < n; e++) first[e + 1] = first[e] + d->n_copies[e];
    for (at = 0; at < p->n_places; at++) place[first[expert[at]]++] = at;
    for (uint32_t e = n; e > 0; e--) first[e] = first[e - 1]; /* they had become the ends */
    first[0] = 0;
}

/* The hosts of the parts in a stage, numbered from 0 on: host [ep]. Returns how many. */
static uint32_t hosts_of_parts(const struct layout *l, const struct expert_places *p, uint32_t pp,
                               uint32_t *host)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->ep; i++) {
        const uint32_t here = p->host_of[layout_expert_rank(l, pp, 0, i)];
        uint32_t before = 0;
        while (before < i && p->host_of[layout_expert_rank(l, pp, 0, before)] != here) before++;
        host[i] = before < i ? host[before] : n++;
    }
    return n;
}

static void deal_all(struct deal *d, const int64_t *load, uint32_t *host, struct expert_places *p)
{
    d->host_of = host;
    for (uint32_t pp = 0; pp < d->l->pp; pp++) {
        const struct range layers = layout_layers(d->l, pp);
        d->n_hosts = hosts_of_parts(d->l, p, pp, host);
        memset(d->before, 0, d->l->ep * sizeof *d->before);
        for (uint32_t layer = layers.begin; layer < layers.end; layer++) {
            d->load = load + (size_t)layer * p->n_experts;
            choose_copies(d);
            make_items(d);
            deal_greedily(d);
            for (size_t i = 0; i < p->n_places && swap_one(d); i++) {
            }
            take_places(d, p, layer);
            for (uint32_t i = 0; i < d->l->ep; i++) d->before[i] += d->of_part[i];
        }
    }
}

static struct status deal_in(const struct layout *l, const int64_t *load, struct expert_places *p)
{
    const char *what = "experts' places";
    const size_t n = p->n_experts;
    struct deal d = {.l = l};
    uint32_t *host = NULL;
    struct status st;
    TRY_GOTO(st, mem_alloc(&host, l->ep, sizeof *host, what), done);
    TRY_GOTO(st, mem_alloc(&d.n_copies, n, sizeof *d.n_copies, what), done);
    TRY_GOTO(st, mem_alloc(&d.items, p->n_places, sizeof *d.items, what), done);
    TRY_GOTO(st, mem_alloc(&d.of_part, l->ep, sizeof *d.of_part, what), done);
    TRY_GOTO(st, mem_alloc(&d.before, l->ep, sizeof *d.before, what), done);
    TRY_GOTO(st, mem_alloc(&d.n_in_part, l->ep, sizeof *d.n_in_part, what), done);
    TRY_GOTO(st, mem_alloc(&d.in_part, l->ep * n, sizeof *d.in_part, what), done);
    TRY_GOTO(st, mem_alloc(&d.on_host, l->ep * n, sizeof *d.on_host, what), done);
    deal_all(&d, load, host, p);
done:
    mem_free(&d.on_host);
    mem_free(&d.in_part);
    mem_free(&d.n_in_part);
    mem_free(&d.before);
    mem_free(&d.of_part);
    mem_free(&d.items);
    mem_free(&d.n_copies);
    mem_free(&host);
    return st;
}

static struct status make_lists(const struct layout *l, const uint32_t *host_of,
                                struct expert_places *p)
{
    const char *what = "experts' places";
    const size_t n_layers = l->model.arch->n_layers;
    TRY(mem_alloc(&p->expert, n_layers * p->n_places, sizeof *p->expert, what));
    TRY(mem_alloc(&p->place, n_layers * p->n_places, sizeof *p->place, what));
    TRY(mem_alloc(&p->first, n_layers * (p->n_experts + (size_t)1), sizeof *p->first, what));
    TRY(mem_alloc(&p->load, n_layers * p->n_experts, sizeof *p->load, what));
    TRY(mem_alloc(&p->part_of, p->n_places, sizeof *p->part_of, what));
    TRY(mem_alloc(&p->host_of, l->n_ranks, sizeof *p->host_of, what));
    for (uint32_t r = 0; r < l->n_ranks && host_of != NULL; r++) p->host_of[r] = host_of[r];
    for (uint32_t i = 0; i < l->ep; i++) {
        const struct range held = layout_experts(l, i);
        for (uint32_t at = held.begin; at < held.end; at++) p->part_of[at] = i;
    }
    return status_ok();
}

struct status expert_places_create(const struct layout *l, const int64_t *load,
                                   const uint32_t *host_of, struct expert_places **out)
{
    const size_t n_load = (size_t)l->model.arch->n_layers * l->model.arch->n_experts;
    struct expert_places *p = NULL;
    *out = NULL;
    TRY(mem_alloc(&p, 1, sizeof *p, "experts' places"));
    p->n_experts = l->model.arch->n_experts;
    p->n_places = layout_n_places(l);
    struct status st = make_lists(l, host_of, p);
    if (!status_failed(&st)) memcpy(p->load, load, n_load * sizeof *load);
    if (!status_failed(&st)) st = deal_in(l, load, p);
    if (status_failed(&st)) expert_places_destroy(&p);
    *out = p;
    return st;
}

struct status expert_places_on(const struct layout *l, const int64_t *load, const struct topo *t,
                               const uint32_t *order, struct expert_places **out)
{
    uint32_t *host_of = NULL;
    *out = NULL;
    TRY(mem_alloc(&host_of, l->n_ranks, sizeof *host_of, "hosts"));
    for (uint32_t r = 0; r < l->n_ranks; r++) host_of[r] = t->ranks[order[r]].host;
    const struct status st = expert_places_create(l, load, host_of, out);
    mem_free(&host_of);
    return st;
}

void expert_places_destroy(struct expert_places **p)
{
    if (*p == NULL) return;
    mem_free(&(*p)->load);
    mem_free(&(*p)->host_of);
    mem_free(&(*p)->part_of);
    mem_free(&(*p)->first);
    mem_free(&(*p)->place);
    mem_free(&(*p)->expert);
    mem_free(p);
}

struct expert_copies expert_copies_of(const struct layout *l, const struct expert_places *p,
                                      uint32_t layer)
{
    return (struct expert_copies){.n_experts = p->n_experts,
                                  .n_parts = l->ep,
                                  .first = p->first + (size_t)layer * (p->n_experts + 1),
                                  .place = p->place + (size_t)layer * p->n_places,
                                  .part_of = p->part_of};
}

void expert_distances(const struct layout *l, const struct expert_places *p, uint32_t rank,
                      uint8_t *distance)
{
    const struct layout_place me = layout_place_of(l, rank);
    for (uint32_t i = 0; i < l->ep; i++) {
        const uint32_t there = layout_expert_rank(l, me.pp, me.expert_replica, i);
        distance[i] = i == me.ep                              ? COPY_OWN_RANK
                      : p->host_of[there] == p->host_of[rank] ? COPY_OWN_HOST
                                                              : COPY_OTHER_HOST;
    }
}
