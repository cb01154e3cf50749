/* Plans the places of experts anew in a running job, by the loads that its steps counted. The
 * number of places of a part stays, and so does the memory for their weights: a move reads another
 * expert into a place. A pure function of its input, in integers, so every rank gets the same
 * result. Results of a job do not depend on the places. Called by the job between two steps. */
#ifndef SHOAL_PARALLEL_LAYOUT_EXPERT_REPLAN_H
#define SHOAL_PARALLEL_LAYOUT_EXPERT_REPLAN_H

#include "parallel/layout/expert_places.h"

struct expert_replan {
    struct expert_places *places;         /* the new places; owned */
    uint64_t n_moves;                     /* places, in all layers, that get another expert */
    uint32_t n_layers;                    /* layers with such places */
    struct expert_evenness before, after; /* of the old and of the new places under the load */
};

enum {
    EXPERT_REPLAN_GAIN = 2, /* percent of the fullest part's rows that a layer's new places must
                               save; below that reading weights is not worth it */
    EXPERT_MOVE_BYTE_ROWS = 120, /* rows of an expert that take as long as reading its weights, for
                                    each byte of a weight. By the rates of layout_cost.c: a host of
                                    100 cores passes a row through a weight (2 operations) in
                                    1 / 1.5e12 s, and its network brings a byte in 1 / 12.5e9 s */
    EXPERT_REPLAN_AHEAD = 4 /* the load is taken to last for this many times the counted rows */
};

/* Local. Returns the rows that one moved expert costs, by the bytes of its weights. Replicas of the
 * experts share a part's rows, and each of them reads the expert. */
int64_t expert_move_rows(const struct layout *l);

/* Local. Deals the experts as expert_places_create does, by load [L, E], each 0 to EXPERT_LOAD_MAX.
 * A layer keeps its old places if new ones save less than EXPERT_REPLAN_GAIN, or if they do not
 * pay: the rows that its fullest part saves, EXPERT_REPLAN_AHEAD times, must be at least move_rows
 * for each place that gets another expert, plus the layer's debt (debt [L]: replan_ledger.h; NULL:
 * none). move_rows 0: new places cost nothing. In other layers parts of one host with equally many
 * places may exchange all their experts, so that more experts stay where they are (chosen
 * greedily), and an expert that stays in a part keeps its place there. `old` is borrowed, and has
 * the hosts of the ranks. Errors: STATUS_MEMORY. fini frees the places. */
struct status expert_replan_make(const struct layout *l, const struct expert_places *old,
                                 const int64_t *load, int64_t move_rows, const int64_t *debt,
                                 struct expert_replan *out);
void expert_replan_fini(struct expert_replan *r);

/* Local. Copies the places and the load of `from` into p, both of the same layout, which has
 * n_layers layers. The arrays of p stay where they are, so pointers to them stay valid. */
void expert_places_take(struct expert_places *p, const struct expert_places *from,
                        uint32_t n_layers);

#endif
