/* Serves the choices of a microbatch within a capacity. */
#include "moe/capacity.h"

#include "kernels/elementary.h"

#include <stdbool.h>
#include <string.h>

uint32_t capacity_of(double factor, size_t n_tokens, uint32_t n_chosen, uint32_t n_experts)
{
    const double exact = factor * (double)n_tokens * n_chosen / n_experts;
    const uint32_t floor = (uint32_t)exact;
    const uint32_t c = floor + ((double)floor < exact);
    return c < 1 ? 1 : c;
}

/* True when expert a is preferred to b: larger logit, then smaller id. */
static bool preferred(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* Sets order[j] to the slot (in ids) of the token's j-th preference. */
static void rank_choices(const float *logits, const int32_t *ids, uint32_t n_chosen,
                         uint16_t *order)
{
    for (uint32_t j = 0; j < n_chosen; j++) {
        uint32_t at = j;
        for (; at > 0 && preferred(logits, ids[j], ids[order[at - 1]]); at--) {
            order[at] = order[at - 1];
        }
        order[at] = (uint16_t)j;
    }
}

static bool has_chosen(const int32_t *ids, uint32_t n_chosen, int32_t e)
{
    for (uint32_t k = 0; k < n_chosen; k++) {
        if (ids[k] == e) return true;
    }
    return false;
}

/* Returns the token's best expert with room that it has neither chosen nor been given; -1: none. */
static int32_t next_with_room(const struct capacity_work *w, size_t t, uint32_t capacity)
{
    const float *logits = w->logits + t * w->n_experts;
    const int32_t *chosen = w->ids + t * w->n_chosen;
    const int32_t *given = w->kept_ids + t * w->n_chosen;
    int32_t best = -1;
    for (int32_t e = 0; e < (int32_t)w->n_experts; e++) {
        if (w->load[e] >= capacity || has_chosen(chosen, w->n_chosen, e) ||
            has_chosen(given, w->n_chosen, e)) {
            continue;
        }
        if (best < 0 || preferred(logits, e, best)) best = e;
    }
    return best;
}

/* Serves one choice: keeps it, reroutes it or drops it. */
static void serve(enum capacity_policy policy, uint32_t capacity, const struct capacity_work *w,
                  size_t t, uint32_t preference)
{
    const float *logits = w->logits + t * w->n_experts;
    const int32_t *chosen = w->ids + t * w->n_chosen;
    uint16_t order[CAPACITY_CHOSEN_MAX];
    rank_choices(logits, chosen, w->n_chosen, order);
    const size_t slot = t * w->n_chosen + order[preference];
    const int32_t wanted = w->ids[slot];
    int32_t got = wanted;
    const bool exempt = policy == CAPACITY_TOP1 && preference == 0;
    if (w->load[wanted] >= capacity && !exempt) {
        got = policy == CAPACITY_NEXT ? next_with_room(w, t, capacity) : -1;
    }
    w->kept_ids[slot] = got;
    if (got < 0) {
        w->kept_weights[slot] = 0;
        w->n_dropped[t]++;
        return;
    }
    w->load[got]++;
    w->kept_weights[slot] = w->weights[slot] * el_expf(logits[got] - logits[wanted]);
}

/* Sorts by ascending id, dropped choices (-1) last; by insertion, because K is small. */
static void sort_by_id(int32_t *ids, float *weights, uint32_t n_chosen)
{
    for (uint32_t j = 1; j < n_chosen; j++) {
        const int32_t id = ids[j];
        const float weight = weights[j];
        uint32_t at = j;
        for (; at > 0 && (uint32_t)ids[at - 1] > (uint32_t)id; at--) {
            ids[at] = ids[at - 1];
            weights[at] = weights[at - 1];
        }
        ids[at] = id;
        weights[at] = weight;
    }
}

void capacity_apply(enum capacity_policy policy, uint32_t capacity, const struct capacity_work *w)
{
    memset(w->load, 0, w->n_experts * sizeof *w->load);
    memset(w->n_dropped, 0, w->n_tokens * sizeof *w->n_dropped);
    for (size_t i = 0; i < w->n_tokens * w->n_chosen; i++) w->kept_ids[i] = -1;
    for (uint32_t preference = 0; preference < w->n_chosen; preference++) {
        for (size_t t = 0; t < w->n_tokens; t++) serve(policy, capacity, w, t, preference);
    }
    for (size_t t = 0; t < w->n_tokens; t++) {
        sort_by_id(w->kept_ids + t * w->n_chosen, w->kept_weights + t * w->n_chosen, w->n_chosen);
    }
}
