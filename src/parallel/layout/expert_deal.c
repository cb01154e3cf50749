/* Deals the experts of one layer, and their copies, to the parts. */
#include "parallel/layout/expert_places_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void put_down(struct deal *d, struct item *x, uint32_t part)
{
    x->part = part;
    d->of_part[part] += x->load;
    d->n_in_part[part]++;
    ++*deal_in_part(d, part, x->expert);
    ++*deal_on_host(d, part, x->expert);
}

static void take(struct deal *d, const struct item *x)
{
    d->of_part[x->part] -= x->load;
    d->n_in_part[x->part]--;
    --*deal_in_part(d, x->part, x->expert);
    --*deal_on_host(d, x->part, x->expert);
}

/* Sorts by falling load, and equal loads by expert. */
static int by_load(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->load != y->load) return x->load < y->load ? 1 : -1;
    return x->expert < y->expert ? -1 : x->expert > y->expert;
}

/* --- copies --------------------------------------------------------------------------------- */

/* Returns how many copies to add to an expert at a time. Tokens use a copy on their own host. So
 * once every host has a copy, the fullest copy becomes less full only when every host gets one
 * more. */
static uint32_t copies_at_once(const struct deal *d, uint32_t e)
{
    return d->n_copies[e] < d->n_hosts ? 1 : d->n_hosts;
}

/* True when a copy of expert a has more load than a copy of expert b or, with equal loads, a has
 * fewer copies than b. */
static bool needs_more(const struct deal *d, uint32_t a, uint32_t b)
{
    const int64_t x = d->load[a] * d->n_copies[b], y = d->load[b] * d->n_copies[a];
    return x != y ? x > y : d->n_copies[a] < d->n_copies[b];
}

/* Returns the expert with the most load per copy among those that may get more copies while `left`
 * copies are left; E: none. in_rounds: an expert gets copies_at_once copies, otherwise one. */
static uint32_t neediest(const struct deal *d, uint32_t left, bool in_rounds)
{
    const uint32_t n = deal_n_experts(d);
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
    const uint32_t n = deal_n_experts(d);
    for (uint32_t e = 0; e < n; e++) d->n_copies[e] = 1;
    for (uint32_t left = d->l->n_expert_copies; left > 0;) {
        const uint32_t in_rounds = neediest(d, left, true);
        const uint32_t e = in_rounds < n ? in_rounds : neediest(d, left, false);
        assert(e < n); /* the layout has at most ep copies of an expert, so one may still get a
                          copy */
        const uint32_t more = in_rounds < n ? copies_at_once(d, e) : 1;
        d->n_copies[e] += more;
        left -= more;
    }
}

/* --- places --------------------------------------------------------------------------------- */

static void make_items(struct deal *d)
{
    d->n_items = 0;
    for (uint32_t e = 0; e < deal_n_experts(d); e++)
        for (uint32_t i = 0; i < d->n_copies[e]; i++)
            d->items[d->n_items++] =
                (struct item){.load = d->load[e] / d->n_copies[e], .expert = e};
    qsort(d->items, d->n_items, sizeof *d->items, by_load);
}

/* Returns the number of places of a part. */
static uint32_t places_of(const struct deal *d, uint32_t part)
{
    return range_count(layout_experts(d->l, part));
}

/* True when part a suits expert e better than part b. Compares in this order, and the smaller
 * number wins: copies of e in the part; copies of e on its host; load in this layer; places, while
 * copies are still to come, because a part with fewer places can take fewer of them; load in the
 * layers before, so that an imbalance that a layer cannot avoid does not hit the same rank in every
 * layer. */
static bool suits_better(const struct deal *d, uint32_t e, uint32_t a, uint32_t b)
{
    const uint16_t in_a = *deal_in_part(d, a, e), in_b = *deal_in_part(d, b, e);
    const uint16_t on_a = *deal_on_host(d, a, e), on_b = *deal_on_host(d, b, e);
    if (in_a != in_b) return in_a < in_b;
    if (on_a != on_b) return on_a < on_b;
    if (d->of_part[a] != d->of_part[b]) return d->of_part[a] < d->of_part[b];
    if (d->n_items < layout_n_places(d->l) && places_of(d, a) != places_of(d, b))
        return places_of(d, a) < places_of(d, b);
    return d->before[a] < d->before[b];
}

static uint32_t best_with_room(const struct deal *d, uint32_t e)
{
    uint32_t best = d->l->ep;
    for (uint32_t i = 0; i < d->l->ep; i++) {
        if (d->n_in_part[i] == d->room[i]) continue;
        if (best == d->l->ep || suits_better(d, e, i, best)) best = i;
    }
    return best;
}

static void deal_greedily(struct deal *d)
{
    const size_t n = deal_n_experts(d);
    memset(d->of_part, 0, d->l->ep * sizeof *d->of_part);
    memset(d->n_in_part, 0, d->l->ep * sizeof *d->n_in_part);
    memset(d->in_part, 0, d->l->ep * n * sizeof *d->in_part);
    memset(d->on_host, 0, d->n_hosts * n * sizeof *d->on_host);
    for (uint32_t i = 0; i < d->n_items; i++)
        put_down(d, &d->items[i], best_with_room(d, d->items[i].expert));
}

/* True when an item may move to `part`. An expert without copies always may. Otherwise `part` must
 * not have the expert, and its host, if it is another host, must have fewer copies than the old
 * host. */
static bool may_move(const struct deal *d, const struct item *x, uint32_t part)
{
    if (d->n_copies[x->expert] == 1) return true;
    if (*deal_in_part(d, part, x->expert) > 0) return false;
    return d->host_of[part] == d->host_of[x->part] ||
           *deal_on_host(d, part, x->expert) < *deal_on_host(d, x->part, x->expert);
}

/* Swaps an item of the fullest part with an item of another part; of all such swaps, makes the one
 * after which the fuller of the two parts has the least load. False when no swap makes the fullest
 * part less full. */
static bool swap_one(struct deal *d)
{
    const uint32_t n = d->n_items;
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
    put_down(d, give, other);
    put_down(d, get, full);
    return true;
}

/* Deals the items evenly: a part gets at most their mean, rounded up, and at most its places. */
static void deal_and_swap(struct deal *d)
{
    const uint32_t most = (d->n_items + d->l->ep - 1) / d->l->ep;
    for (uint32_t i = 0; i < d->l->ep; i++)
        d->room[i] = places_of(d, i) < most ? places_of(d, i) : most;
    deal_greedily(d);
    for (size_t i = 0; i < d->n_items && swap_one(d); i++) {
    }
}

/* --- copies that take load above the mean ---------------------------------------------------- */

/* Returns the heaviest item of a part; NULL: the part has none. */
static struct item *heaviest_of(const struct deal *d, uint32_t part)
{
    struct item *best = NULL;
    for (uint32_t i = 0; i < d->n_items; i++) {
        struct item *x = &d->items[i];
        if (x->part == part && (best == NULL || x->load > best->load)) best = x;
    }
    return best;
}

/* Returns the part with the least load among those that have room and lack expert e; with `near`,
 * only among those on `host`. ep: none. */
static uint32_t emptiest_without(const struct deal *d, uint32_t e, uint32_t host, bool near)
{
    uint32_t best = d->l->ep;
    for (uint32_t i = 0; i < d->l->ep; i++) {
        if (d->n_in_part[i] == places_of(d, i) || *deal_in_part(d, i, e) > 0) continue;
        if (near && d->host_of[i] != host) continue;
        if (best == d->l->ep || d->of_part[i] < d->of_part[best]) best = i;
    }
    return best;
}

static void add_copy(struct deal *d, uint32_t e, uint32_t part, int64_t load)
{
    struct item *x = &d->items[d->n_items++];
    *x = (struct item){.load = load, .expert = e};
    d->n_copies[e]++;
    put_down(d, x, part);
}

/* Moves the load that the fullest part has above the mean, or a share of it, to a new copy of its
 * heaviest expert on the emptiest part; with `near`, on the same host if that helps. False when no
 * move would help. */
static bool move_overflow(struct deal *d, int64_t mean, bool near)
{
    uint32_t full = 0;
    for (uint32_t i = 1; i < d->l->ep; i++)
        if (d->of_part[i] > d->of_part[full]) full = i;
    struct item *x = heaviest_of(d, full);
    if (x == NULL || d->of_part[full] <= mean) return false;
    uint32_t to = emptiest_without(d, x->expert, d->host_of[full], near);
    if (near && (to == d->l->ep || d->of_part[to] >= mean))
        to = emptiest_without(d, x->expert, 0, false);
    if (to == d->l->ep || d->of_part[to] + 1 >= d->of_part[full]) return false;
    const int64_t over = d->of_part[full] - mean, half = (d->of_part[full] - d->of_part[to]) / 2;
    int64_t moved = over < half ? over : half;
    if (moved > x->load) moved = x->load;
    x->load -= moved;
    d->of_part[full] -= moved;
    add_copy(d, x->expert, to, moved);
    return true;
}

/* Fills a place of a part with a copy of an expert that the part lacks. Prefers experts of which
 * the part's host has the fewest copies, which saves bytes on the network, and of these the
 * heaviest. */
static void fill_place(struct deal *d, uint32_t part)
{
    const uint32_t n = deal_n_experts(d);
    uint32_t best = n;
    for (uint32_t e = 0; e < n; e++) {
        if (*deal_in_part(d, part, e) > 0) continue;
        const uint16_t on = *deal_on_host(d, part, e);
        const uint16_t on_best = best < n ? *deal_on_host(d, part, best) : 0;
        if (best == n || on < on_best || (on == on_best && needs_more(d, e, best))) best = e;
    }
    add_copy(d, best, part, 0);
}

static void deal_overflow(struct deal *d, bool near, bool fills)
{
    int64_t sum = 0;
    for (uint32_t e = 0; e < deal_n_experts(d); e++) {
        sum += d->load[e];
        d->n_copies[e] = 1;
    }
    make_items(d);
    deal_and_swap(d);
    const int64_t mean = (sum + d->l->ep - 1) / d->l->ep;
    while (d->n_items < layout_n_places(d->l) && move_overflow(d, mean, near)) {
    }
    for (uint32_t i = 0; i < d->l->ep; i++)
        while (d->n_in_part[i] < places_of(d, i)) {
            const struct item *own = heaviest_of(d, i);
            if (fills || own == NULL) {
                fill_place(d, i);
            } else {
                add_copy(d, own->expert, i, 0);
            }
        }
}

void deal_layer(struct deal *d, enum deal_way way)
{
    if (way != DEAL_EVENLY && d->l->n_expert_copies > 0) {
        deal_overflow(d, way == DEAL_NEAR || way == DEAL_NEAR_ONLY,
                      way == DEAL_OVERFLOW || way == DEAL_NEAR);
        return;
    }
    choose_copies(d);
    make_items(d);
    deal_and_swap(d);
}
