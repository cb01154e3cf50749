/* Keeps the debts of layers whose experts have moved. */
#include "parallel/layout/replan_ledger.h"

#include "base/mem.h"
#include "parallel/layout/expert_places_private.h"

#include <string.h>

struct status replan_ledger_init(struct replan_ledger *g, const struct layout *l,
                                 const struct expert_places *places)
{
    const char *what = "experts' load";
    const size_t n_layers = l->model.arch->n_layers, n = n_layers * l->model.arch->moe.n_experts;
    *g = (struct replan_ledger){.left = NULL};
    TRY(mem_alloc(&g->counted, n, sizeof *g->counted, what));
    TRY(mem_alloc(&g->since, n, sizeof *g->since, what));
    TRY(mem_alloc(&g->recent, n, sizeof *g->recent, what));
    TRY(mem_alloc(&g->debt, n_layers, sizeof *g->debt, what));
    TRY(mem_alloc(&g->price, n_layers, sizeof *g->price, what));
    return expert_places_copy(l, places, places->load, &g->left);
}

void replan_ledger_fini(struct replan_ledger *g)
{
    expert_places_destroy(&g->left);
    mem_free(&g->price);
    mem_free(&g->debt);
    mem_free(&g->recent);
    mem_free(&g->since);
    mem_free(&g->counted);
}

/* Subtracts what a layer's last move has saved since the last look. Losses count, too: topics that
 * take turns save as much as they lose. The price bounds the debt, so that text that has changed
 * for good can still pay. of_part [ep]: scratch. */
static struct status settle(struct replan_ledger *g, const struct layout *l,
                            const struct expert_places *now, uint32_t layer, int64_t *of_part)
{
    int64_t before, after;
    if (g->price[layer] == 0) return status_ok();
    TRY(expert_places_fullest(l, g->left, g->since, layer, of_part, &before));
    TRY(expert_places_fullest(l, now, g->since, layer, of_part, &after));
    g->debt[layer] -= before - after;
    if (g->debt[layer] > g->price[layer]) g->debt[layer] = g->price[layer];
    if (g->debt[layer] <= 0) g->debt[layer] = g->price[layer] = 0;
    return status_ok();
}

struct status replan_ledger_look(struct replan_ledger *g, const struct layout *l,
                                 const struct expert_places *now, int64_t *load)
{
    const size_t n_layers = l->model.arch->n_layers, n_experts = l->model.arch->moe.n_experts;
    int64_t *of_part = NULL;
    struct status st = status_ok();
    for (size_t i = 0; i < n_layers * n_experts; i++) {
        g->since[i] = load[i] - g->counted[i];
        g->counted[i] = load[i];
        load[i] = g->recent[i] = g->recent[i] / 2 + g->since[i];
    }
    for (size_t i = 0; i < n_layers; i++) {
        expert_load_fit(load + i * n_experts, n_experts);
        expert_load_fit(g->since + i * n_experts, n_experts);
    }
    TRY(mem_alloc(&of_part, l->ep, sizeof *of_part, "experts' load"));
    for (uint32_t layer = 0; layer < n_layers && !status_failed(&st); layer++)
        st = settle(g, l, now, layer, of_part);
    mem_free(&of_part);
    return st;
}

void replan_ledger_move(struct replan_ledger *g, const struct layout *l,
                        const struct expert_places *old, const struct expert_places *now,
                        int64_t move_rows)
{
    for (uint32_t layer = 0; layer < l->model.arch->n_layers; layer++) {
        const size_t at = (size_t)layer * old->n_places;
        const uint64_t n_moves = expert_places_moves(old, now, layer);
        if (n_moves == 0) continue;
        g->debt[layer] += (int64_t)n_moves * move_rows;
        g->price[layer] += (int64_t)n_moves * move_rows;
        memcpy(g->left->expert + at, old->expert + at, old->n_places * sizeof *old->expert);
        expert_places_list(g->left, layer);
    }
}
