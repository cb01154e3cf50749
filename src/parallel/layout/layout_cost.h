/* Estimates a layout on a machine: whether it fits in memory, and about how many tokens per second
 * it gives, to compare layouts. Used by layout_choose, plan_report, the forecasts and the job. */
#ifndef SHOAL_PARALLEL_LAYOUT_LAYOUT_COST_H
#define SHOAL_PARALLEL_LAYOUT_LAYOUT_COST_H

#include "parallel/layout/layout.h"
#include "parallel/topology/topo.h"

/* Whether a layout fits. The tightest rank decides, because all ranks of a replica have KV pools of
 * the same size. */
struct layout_fit {
    bool fits;
    uint32_t worst_rank;    /* its number in the reordered world */
    uint64_t budget_bytes;  /* memory that each rank may use: as the budget says, or nine tenths of
                               the smallest share of a host or GPU */
    uint64_t needed_bytes;  /* bytes that worst_rank needs, with one full context and one
                               sequence's states */
    uint32_t n_state_slots; /* slots of recurrent states that fit on every rank */
    uint64_t n_kv_blocks;   /* KV blocks that fit on every rank besides all else */
};

/* How far apart the ranks of a group are. */
enum layout_link { LINK_NUMA, LINK_HOST, LINK_NET, LINK_COUNT };

/* Local. Compares the memory that the ranks need with the budget. Needs l->expert_hosts. */
struct layout_fit layout_fit_of(const struct layout *l, const struct topo *t,
                                const struct layout_budget *budget);

/* Local. Returns how many of budget->adapter_bytes a rank of stage pp is taken to hold. */
uint64_t layout_adapter_bytes(const struct layout *l, uint32_t pp,
                              const struct layout_budget *budget);

/* Local. Returns the slowest kind of link inside any group of n consecutive ranks; groups start at
 * multiples of n. order [n_ranks]: as in layout_choose. */
enum layout_link layout_link_of(const struct topo *t, const uint32_t *order, uint32_t n);

/* Local. Returns the bandwidth of a host's network in bytes per second. */
double layout_network_bytes_s(const struct layout_budget *budget);

/* Local. Sets l->expert_hosts from the hosts of the ranks. */
void layout_see_hosts(const struct topo *t, const uint32_t *order, struct layout *l);

/* Local. Sets l->halves_from: the smallest power of two of rows from which a replica's step takes
 * clearly less time in two halves, by the estimates of layout_rows_s. One half's rows travel to
 * experts on other hosts while the other half computes. 2 with OVERLAP_ON; 0 if no number pays or
 * steps cannot be divided. Two halves read all weights twice. Needs l->expert_hosts. */
void layout_choose_halves(const struct topo *t, const uint32_t *order,
                          const struct layout_budget *budget, enum overlap overlap,
                          struct layout *l);

/* Local. Estimates the rows (tokens) per second of a long bulk run (prompts of 512 tokens, answers
 * of 128). */
double layout_rows_s(const struct layout *l, const struct topo *t, const uint32_t *order,
                     const struct layout_budget *budget, const struct layout_fit *fit);

#endif
