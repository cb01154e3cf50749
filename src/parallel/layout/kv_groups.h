/* Finds the layers of a stage that share KV blocks. A block holds 64 positions of some layers that
 * all have the same window, so that blocks that have left the window can be freed while the other
 * layers keep theirs. Pure functions. Called by the layout, the weights, the stages, the engine,
 * the job and `shoal plan`.
 *
 *   layers   F  W  F  W  F  W  F  W      F: sees all positions, W: has a window
 *   groups   {F F F F} {W W W W}         one block is 64 positions of one group's layers
 *
 * All groups have blocks of one size, so one pool serves them; a group may have fewer layers than
 * its blocks have room for. A sequence has a block table for each group. */
#ifndef SHOAL_PARALLEL_LAYOUT_KV_GROUPS_H
#define SHOAL_PARALLEL_LAYOUT_KV_GROUPS_H

#include "parallel/layout/layout.h"

enum { KV_GROUPS_MAX = 8 };

struct kv_groups {
    uint32_t n_full;     /* groups of layers that see all positions */
    uint32_t n_windowed; /* groups of layers with a window; 0: layers with a window are in the
                            n_full groups and keep all their blocks */
    uint32_t window;     /* positions that a row sees in a windowed group */
};

/* The block table of a layer, and the layer's index in each block of that table. */
struct kv_place {
    uint32_t table, in_block;
};

/* Local. Returns the groups of a layout, the same for all its stages: those that leave the least
 * room in blocks unused. On each stage the unused room, in layers, may be at most a sixth of the
 * number of layers. All layers form one group when no groups satisfy this, when the model has no
 * window or a context no longer than its window, or with model.keeps_windows. */
struct kv_groups kv_groups_of(const struct layout *l);

/* Local. Returns how many layers a block of a stage holds. */
uint32_t kv_groups_layers(const struct kv_groups *g, const struct layout *l, uint32_t pp);

/* Local. Returns the place of a layer with KV. n: its number, from 0, among the stage's layers of
 * its kind (windowed or not), or among all when there is only one group. n_in_block:
 * kv_groups_layers. */
struct kv_place kv_groups_place(const struct kv_groups *g, uint32_t n_in_block, bool windowed,
                                uint32_t n);

/* Local. Returns the most blocks, over all tables, that a sequence of n_positions holds during a
 * step that computes at most step_rows of its rows. */
uint64_t kv_groups_blocks(const struct kv_groups *g, uint64_t n_positions, uint64_t step_rows);

/* Local. Returns the number of blocks of one full context, of b->min_kv_blocks times 64 positions.
 */
uint64_t kv_groups_context(const struct layout *l, const struct layout_budget *b);

#endif
