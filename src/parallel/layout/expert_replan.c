/* Deals the experts anew, and greedily keeps many of them where they are. */
#include "parallel/layout/expert_replan.h"

#include "base/mem.h"
#include "parallel/layout/expert_places_private.h"

#include <string.h>

/* One layer while the parts of a new deal are matched with the old ones. */
struct match {
    const struct layout *l;
    const struct expert_places *old;
    const uint32_t *was, *dealt; /* [P] the experts at the old places, and as they were dealt */
    int64_t move_rows;           /* as expert_replan_make's */
    const int64_t *debt;         /* [L] likewise; NULL: none */
    uint32_t pp;
    uint32_t *takes;  /* [ep] for each part, the dealt part whose experts it gets */
    bool *is_taken;   /* [ep] */
    uint16_t *count;  /* [E] zeros between uses */
    uint32_t *expert; /* [P] the experts at the new places */
};

/* Counts the experts of a dealt part. */
static void count_dealt(struct match *x, uint32_t dealt)
{
    const struct range held = layout_experts(x->l, dealt);
    for (uint32_t at = held.begin; at < held.end; at++) x->count[x->dealt[at]]++;
}

static void forget_dealt(struct match *x, uint32_t dealt)
{
    const struct range held = layout_experts(x->l, dealt);
    for (uint32_t at = held.begin; at < held.end; at++) x->count[x->dealt[at]] = 0;
}

/* Returns how many experts stay if `part` gets the experts of a dealt part. */
static uint32_t n_staying(struct match *x, uint32_t part, uint32_t dealt)
{
    const struct range held = layout_experts(x->l, part);
    uint32_t n = 0;
    count_dealt(x, dealt);
    for (uint32_t at = held.begin; at < held.end; at++) {
        if (x->count[x->was[at]] == 0) continue;
        x->count[x->was[at]]--;
        n++;
    }
    forget_dealt(x, dealt);
    return n;
}

/* True when parts a and b may exchange all their experts: on one host and with equally many places
 * they only exchange their expected rows. */
static bool are_alike(const struct match *x, uint32_t a, uint32_t b)
{
    const uint32_t *host_of = x->old->host_of;
    return range_count(layout_experts(x->l, a)) == range_count(layout_experts(x->l, b)) &&
           host_of[layout_expert_rank(x->l, x->pp, 0, a)] ==
               host_of[layout_expert_rank(x->l, x->pp, 0, b)];
}

/* Matches each part, in order, with the dealt part that has the most of its experts. Returns how
 * many experts stay. */
static uint32_t match_greedily(struct match *x)
{
    const uint32_t ep = x->l->ep;
    uint32_t sum = 0;
    memset(x->is_taken, 0, ep * sizeof *x->is_taken);
    for (uint32_t i = 0; i < ep; i++) {
        uint32_t most = 0, best = ep;
        for (uint32_t k = 0; k < ep; k++) {
            if (x->is_taken[k] || !are_alike(x, i, k)) continue;
            const uint32_t n = n_staying(x, i, k);
            if (best < ep && n <= most) continue;
            most = n;
            best = k;
        }
        x->takes[i] = best; /* one is left: alike parts are as many as alike dealt parts */
        x->is_taken[best] = true;
        sum += most;
    }
    return sum;
}

/* Matches the parts greedily, unless at least as many experts stay without an exchange. */
static void match_parts(struct match *x)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < x->l->ep; i++) sum += n_staying(x, i, i);
    if (match_greedily(x) > sum) return;
    for (uint32_t i = 0; i < x->l->ep; i++) x->takes[i] = i;
}

/* Places the experts that `part` gets: those that it had where they were, the others by ascending
 * id. */
static void place_experts_of(struct match *x, uint32_t part)
{
    const struct range held = layout_experts(x->l, part);
    const uint32_t n_experts = x->old->n_experts;
    count_dealt(x, x->takes[part]);
    for (uint32_t at = held.begin; at < held.end; at++) {
        const bool stays = x->count[x->was[at]] > 0;
        x->expert[at] = stays ? x->was[at] : n_experts;
        if (stays) x->count[x->was[at]]--;
    }
    for (uint32_t at = held.begin, e = 0; at < held.end; at++) {
        if (x->expert[at] < n_experts) continue;
        while (x->count[e] == 0) e++;
        x->expert[at] = e;
        x->count[e]--;
    }
}

/* Sets the layer's places to those of `dealt`, with as few moves as the matching finds. */
static void take_layer_places(struct match *x, const struct expert_places *dealt, uint32_t layer,
                              struct expert_places *p)
{
    const size_t n_places = p->n_places;
    x->was = x->old->expert + layer * n_places;
    x->dealt = dealt->expert + layer * n_places;
    match_parts(x);
    for (uint32_t i = 0; i < x->l->ep; i++) place_experts_of(x, i);
    memcpy(p->expert + layer * n_places, x->expert, n_places * sizeof *x->expert);
    expert_places_list(p, layer);
}

struct status expert_places_fullest(const struct layout *l, const struct expert_places *p,
                                    const int64_t *load, uint32_t layer, int64_t *of_part,
                                    int64_t *most)
{
    struct expert_rows_expected rows = {.of_part = of_part};
    TRY(expert_rows_expect(l, p, load, layer, &rows));
    *most = 0;
    for (uint32_t i = 0; i < l->ep; i++)
        if (of_part[i] > *most) *most = of_part[i];
    return status_ok();
}

uint64_t expert_places_moves(const struct expert_places *old, const struct expert_places *p,
                             uint32_t layer)
{
    const size_t n_places = old->n_places;
    uint64_t n = 0;
    for (size_t at = layer * n_places; at < (layer + 1) * n_places; at++)
        n += p->expert[at] != old->expert[at];
    return n;
}

/* Gives a layer its new places if they pay. n_saved: the rows that the fullest part then has
 * less. */
static void replan_layer(struct match *x, const struct expert_places *dealt, uint32_t layer,
                         int64_t n_saved, struct expert_places *p)
{
    const size_t n_places = p->n_places;
    take_layer_places(x, dealt, layer, p);
    const int64_t price = (int64_t)expert_places_moves(x->old, p, layer) * x->move_rows;
    const int64_t debt = x->debt != NULL ? x->debt[layer] : 0;
    if (n_saved * EXPERT_REPLAN_AHEAD >= price + debt) return;
    memcpy(p->expert + layer * n_places, x->was, n_places * sizeof *p->expert);
    expert_places_list(p, layer);
}

static struct status replan_layers(struct match *x, const int64_t *load,
                                   const struct expert_places *dealt, int64_t *of_part,
                                   struct expert_replan *out)
{
    for (uint32_t pp = 0; pp < x->l->pp; pp++) {
        const struct range layers = layout_layers(x->l, pp);
        x->pp = pp;
        for (uint32_t layer = layers.begin; layer < layers.end; layer++) {
            int64_t now, then;
            if (layer >= x->l->model.arch->n_layers || !x->l->model.arch->layer.is_moe[layer])
                continue;
            TRY(expert_places_fullest(x->l, x->old, load, layer, of_part, &now));
            TRY(expert_places_fullest(x->l, dealt, load, layer, of_part, &then));
            if (then * 100 <= now * (100 - EXPERT_REPLAN_GAIN) && now > 0)
                replan_layer(x, dealt, layer, now - then, out->places);
        }
    }
    return status_ok();
}

static void count_moves(const struct expert_places *old, uint32_t n_layers,
                        struct expert_replan *out)
{
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        const uint64_t n = expert_places_moves(old, out->places, layer);
        out->n_moves += n;
        out->n_layers += n > 0;
    }
}

/* Replans with scratch memory; out->places are still the old ones. */
static struct status replan_with(struct match *x, const int64_t *load, struct expert_replan *out)
{
    const char *what = "experts' places";
    struct expert_places *dealt = NULL;
    int64_t *of_part = NULL;
    struct status st;
    TRY(expert_places_create(x->l, load, x->old->host_of, &dealt));
    TRY_GOTO(st, mem_alloc(&of_part, x->l->ep, sizeof *of_part, what), done);
    TRY_GOTO(st, mem_alloc(&x->takes, x->l->ep, sizeof *x->takes, what), done);
    TRY_GOTO(st, mem_alloc(&x->is_taken, x->l->ep, sizeof *x->is_taken, what), done);
    TRY_GOTO(st, mem_alloc(&x->count, x->old->n_experts, sizeof *x->count, what), done);
    TRY_GOTO(st, mem_alloc(&x->expert, x->old->n_places, sizeof *x->expert, what), done);
    st = replan_layers(x, load, dealt, of_part, out);
done:
    mem_free(&x->expert);
    mem_free(&x->count);
    mem_free(&x->is_taken);
    mem_free(&x->takes);
    mem_free(&of_part);
    expert_places_destroy(&dealt);
    return st;
}

int64_t expert_move_rows(const struct layout *l)
{
    const double row = layout_weight_bytes(&l->model, CLASS_EXPERTS) * EXPERT_MOVE_BYTE_ROWS;
    return (int64_t)(row * l->n_expert_replicas);
}

struct status expert_replan_make(const struct layout *l, const struct expert_places *old,
                                 const int64_t *load, int64_t move_rows, const int64_t *debt,
                                 struct expert_replan *out)
{
    struct match x = {.l = l, .old = old, .move_rows = move_rows, .debt = debt};
    *out = (struct expert_replan){0};
    struct status st = expert_places_copy(l, old, load, &out->places);
    if (!status_failed(&st)) st = replan_with(&x, load, out);
    if (!status_failed(&st)) st = expert_evenness_of(l, old, load, &out->before);
    if (!status_failed(&st)) st = expert_evenness_of(l, out->places, load, &out->after);
    if (status_failed(&st)) {
        expert_replan_fini(out);
        return st;
    }
    count_moves(old, l->model.arch->n_layers, out);
    return st;
}

void expert_replan_fini(struct expert_replan *r)
{
    expert_places_destroy(&r->places);
}

void expert_places_take(struct expert_places *p, const struct expert_places *from,
                        uint32_t n_layers)
{
    const size_t n = n_layers, n_places = p->n_places, n_experts = p->n_experts;
    memcpy(p->expert, from->expert, n * n_places * sizeof *p->expert);
    memcpy(p->place, from->place, n * n_places * sizeof *p->place);
    memcpy(p->first, from->first, n * (n_experts + 1) * sizeof *p->first);
    memcpy(p->load, from->load, n * n_experts * sizeof *p->load);
}
