/* Places experts on ranks by their load: makes the lists of places and chooses the way to deal.
 * expert_deal.c deals, expert_load.c reads the file, expert_evenness.c says how even the result is.
 */
#include "base/mem.h"
#include "parallel/layout/expert_places_private.h"

#include <string.h>

void expert_places_list(struct expert_places *p, uint32_t layer)
{
    const uint32_t n = p->n_experts;
    const uint32_t *expert = p->expert + (size_t)layer * p->n_places;
    uint32_t *place = p->place + (size_t)layer * p->n_places;
    uint32_t *first = p->first + (size_t)layer * (n + 1);
    memset(first, 0, (n + (size_t)1) * sizeof *first);
    for (uint32_t at = 0; at < p->n_places; at++) first[expert[at] + 1]++;
    for (uint32_t e = 0; e < n; e++) first[e + 1] += first[e];
    for (uint32_t at = 0; at < p->n_places; at++) place[first[expert[at]]++] = at;
    for (uint32_t e = n; e > 0; e--)
        first[e] = first[e - 1]; /* filling `place` moved each
                                    first[e] to the end of its run */
    first[0] = 0;
}

/* Writes the lists of places of a layer whose experts have been dealt to the parts (ranks of the
 * expert-parallel axis). Within a part, places are in the order of the experts' ids. */
static void take_places(const struct deal *d, struct expert_places *p, uint32_t layer)
{
    uint32_t *expert = p->expert + (size_t)layer * p->n_places, at = 0;
    for (uint32_t i = 0; i < d->l->ep; i++)
        for (uint32_t e = 0; e < p->n_experts; e++)
            for (uint16_t k = 0; k < *deal_in_part(d, i, e); k++) expert[at++] = e;
    expert_places_list(p, layer);
}

/* Numbers the hosts of the parts in a stage, from 0 on: host [ep]. Returns the number of hosts. */
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

/* Sets *most to the expected rows of the fullest part of a layer. sent [ep, ep]: scratch. */
static struct status fullest_of(const struct deal *d, const struct expert_places *p, uint32_t layer,
                                int64_t *sent, int64_t *most)
{
    const uint32_t ep = d->l->ep;
    TRY(expert_flow(d->l, p, d->load, layer, sent));
    *most = 0;
    for (uint32_t i = 0; i < ep; i++) {
        int64_t sum = 0;
        for (uint32_t source = 0; source < ep; source++) sum += sent[(size_t)source * ep + i];
        if (sum > *most) *most = sum;
    }
    return status_ok();
}

/* Deals a layer: without copies evenly, with copies in the way whose fullest part has the fewest
 * expected rows. */
static struct status deal_best(struct deal *d, uint32_t layer, int64_t *sent,
                               struct expert_places *p)
{
    enum deal_way best = DEAL_EVENLY;
    int64_t least = INT64_MAX;
    for (enum deal_way way = 0; way < DEAL_WAY_COUNT && d->l->n_expert_copies > 0; way++) {
        int64_t most;
        deal_layer(d, way);
        take_places(d, p, layer);
        TRY(fullest_of(d, p, layer, sent, &most));
        if (most >= least) continue;
        least = most;
        best = way;
    }
    deal_layer(d, best);
    take_places(d, p, layer);
    return status_ok();
}

static struct status deal_all(struct deal *d, const int64_t *load, uint32_t *host, int64_t *sent,
                              struct expert_places *p)
{
    d->host_of = host;
    for (uint32_t pp = 0; pp < d->l->pp; pp++) {
        const struct range layers = layout_layers(d->l, pp);
        d->n_hosts = hosts_of_parts(d->l, p, pp, host);
        memset(d->before, 0, d->l->ep * sizeof *d->before);
        for (uint32_t layer = layers.begin; layer < layers.end; layer++) {
            d->load = load + (size_t)layer * p->n_experts;
            TRY(deal_best(d, layer, sent, p));
            for (uint32_t i = 0; i < d->l->ep; i++) d->before[i] += d->of_part[i];
        }
    }
    return status_ok();
}

static struct status deal_in(const struct layout *l, const int64_t *load, struct expert_places *p)
{
    const char *what = "experts' places";
    const size_t n = p->n_experts, n_parts = l->ep;
    struct deal d = {.l = l};
    uint32_t *host = NULL;
    int64_t *sent = NULL;
    struct status st;
    TRY_GOTO(st, mem_alloc(&host, n_parts, sizeof *host, what), done);
    TRY_GOTO(st, mem_alloc(&sent, n_parts * n_parts, sizeof *sent, what), done);
    TRY_GOTO(st, mem_alloc(&d.n_copies, n, sizeof *d.n_copies, what), done);
    TRY_GOTO(st, mem_alloc(&d.items, p->n_places, sizeof *d.items, what), done);
    TRY_GOTO(st, mem_alloc(&d.room, n_parts, sizeof *d.room, what), done);
    TRY_GOTO(st, mem_alloc(&d.of_part, n_parts, sizeof *d.of_part, what), done);
    TRY_GOTO(st, mem_alloc(&d.before, n_parts, sizeof *d.before, what), done);
    TRY_GOTO(st, mem_alloc(&d.n_in_part, n_parts, sizeof *d.n_in_part, what), done);
    TRY_GOTO(st, mem_alloc(&d.in_part, n_parts * n, sizeof *d.in_part, what), done);
    TRY_GOTO(st, mem_alloc(&d.on_host, n_parts * n, sizeof *d.on_host, what), done);
    st = deal_all(&d, load, host, sent, p);
done:
    mem_free(&d.on_host);
    mem_free(&d.in_part);
    mem_free(&d.n_in_part);
    mem_free(&d.before);
    mem_free(&d.of_part);
    mem_free(&d.room);
    mem_free(&d.items);
    mem_free(&d.n_copies);
    mem_free(&sent);
    mem_free(&host);
    return st;
}

static struct status make_place_lists(const struct layout *l, const uint32_t *host_of,
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

/* Makes places that have no experts yet. */
static struct status make_empty(const struct layout *l, const int64_t *load,
                                const uint32_t *host_of, struct expert_places **out)
{
    const size_t n_load = (size_t)l->model.arch->n_layers * l->model.arch->moe.n_experts;
    struct expert_places *p = NULL;
    *out = NULL;
    TRY(mem_alloc(&p, 1, sizeof *p, "experts' places"));
    p->n_experts = l->model.arch->moe.n_experts;
    p->n_places = layout_n_places(l);
    const struct status st = make_place_lists(l, host_of, p);
    if (status_failed(&st)) {
        expert_places_destroy(&p);
        return st;
    }
    memcpy(p->load, load, n_load * sizeof *load);
    *out = p;
    return st;
}

struct status expert_places_create(const struct layout *l, const int64_t *load,
                                   const uint32_t *host_of, struct expert_places **out)
{
    TRY(make_empty(l, load, host_of, out));
    const struct status st = deal_in(l, load, *out);
    if (status_failed(&st)) expert_places_destroy(out);
    return st;
}

struct status expert_places_copy(const struct layout *l, const struct expert_places *from,
                                 const int64_t *load, struct expert_places **out)
{
    TRY(make_empty(l, load, from->host_of, out));
    for (uint32_t layer = 0; layer < l->model.arch->n_layers; layer++) {
        const size_t at = (size_t)layer * from->n_places;
        memcpy((*out)->expert + at, from->expert + at, from->n_places * sizeof *from->expert);
        expert_places_list(*out, layer);
    }
    return status_ok();
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
