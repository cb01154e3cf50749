/* Keeps the counts of --expert-replan between two looks, and the rows that its moves cost and
 * saved. An estimate that a move pays trusts that the text stays as it was. Where topics take
 * turns, that is wrong each time. So a layer owes the price of its moves until, by later counts,
 * they have saved as much, and a further move must earn the debt, too (the bound of renting before
 * buying). A pure function of the counts, in integers, so every rank gets the same. Called by the
 * job. */
#ifndef SHOAL_PARALLEL_LAYOUT_REPLAN_LEDGER_H
#define SHOAL_PARALLEL_LAYOUT_REPLAN_LEDGER_H

#include "parallel/layout/expert_places.h"

struct replan_ledger {
    int64_t *counted; /* owned [L, E] the load when it was looked at last */
    int64_t *since;   /* owned [L, E] the load since the look before */
    int64_t *recent;  /* owned [L, E] `since`, plus half of what was recent before */
    int64_t *debt;    /* owned [L] rows that a layer's moves have not saved yet */
    int64_t *price;   /* owned [L] rows that these moves cost; 0: the layer owes nothing */
    struct expert_places *left; /* owned; the places before each layer's last move */
};

/* Local. Nothing is counted, and no layer has moved from `places`, which is borrowed. Errors:
 * STATUS_MEMORY; fini may then be called, as for a zeroed ledger. */
struct status replan_ledger_init(struct replan_ledger *g, const struct layout *l,
                                 const struct expert_places *places);
void replan_ledger_fini(struct replan_ledger *g);

/* Local. Looks at the load of the whole run, load [L, E], which becomes the recent one, scaled by
 * expert_load_fit. Subtracts from a layer's debt the rows that the fullest part of `now`, the
 * present places, had less since the last look than that of g->left. If it had more rows, the debt
 * grows, at most to the price. Errors: STATUS_MEMORY. */
struct status replan_ledger_look(struct replan_ledger *g, const struct layout *l,
                                 const struct expert_places *now, int64_t *load);

/* Local. Notes that layers go from the places `old` to `now`; each place that gets another expert
 * costs move_rows. */
void replan_ledger_move(struct replan_ledger *g, const struct layout *l,
                        const struct expert_places *old, const struct expert_places *now,
                        int64_t move_rows);

#endif
