/* Decides which copy of an expert computes which rows. A source of rows (a rank) sends an expert's
 * rows to the copies nearest to it and, of these, to those on the parts with the fewest rows. A
 * pure function in integers. Sums over experts have no order, so results do not depend on the
 * choice. The MoE block calls it for the rows of a step, the placement for expected rows. */
#ifndef SHOAL_PARALLEL_LAYOUT_EXPERT_COPIES_H
#define SHOAL_PARALLEL_LAYOUT_EXPERT_COPIES_H

#include <stdint.h>

/* How far a part's rank is from a source. */
enum copy_distance { COPY_OWN_RANK, COPY_OWN_HOST, COPY_OTHER_HOST };

/* The places of one layer's experts as a source sees them. All arrays are borrowed. Expert e
 * is at place[first[e]] to place[first[e + 1] - 1]. */
struct expert_copies {
    uint32_t n_experts, n_parts; /* E, ep */
    const uint32_t *first;       /* [E + 1] */
    const uint32_t *place;       /* [P] numbers of places, 0 to P - 1, expert after expert */
    const uint32_t *part_of;     /* [P] the part of each place; P = first[E] */
    const uint8_t *distance;     /* [ep] enum copy_distance; NULL: all parts are equally near */
    const int64_t *before;       /* [ep] rows that the parts get from other sources; NULL: none */
};

/* Local. Divides rows [E], the rows that a source has for each expert. share [P] becomes the number
 * of rows that go to place[i]; part_rows [ep] becomes the rows of each part, with `before`. First
 * counts the rows of experts that have one place. Then, in several rounds, divides the rows of each
 * expert with copies so that the parts of its nearest copies become level. */
void expert_copies_share(const struct expert_copies *c, const int64_t *rows, int64_t *share,
                         int64_t *part_rows);

#endif
