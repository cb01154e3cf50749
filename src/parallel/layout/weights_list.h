/* Lists the slabs (parts of tensors) that a place holds, from the table of tensors
 * (arch/arch_tensors.h) and the layout. Pure functions. The loader reads the slabs of the list, and
 * `shoal plan` counts them. */
#ifndef SHOAL_PARALLEL_LAYOUT_WEIGHTS_LIST_H
#define SHOAL_PARALLEL_LAYOUT_WEIGHTS_LIST_H

#include "parallel/layout/layout.h"

/* One slab: the ranges of the whole tensor [n_outer, n_rows, n_cols] that a place holds. */
struct weight_spec {
    char name[128];
    enum weight_role role;
    const struct arch_tensor *tensor; /* borrowed: its row of the table */
    uint32_t layer;                   /* absolute; 0 for roles outside layers */
    bool is_vector; /* a norm, a bias or the like, kept in f32. Its tensor is [n_cols]; a
                       convolution's is [n_rows, n_cols] */
    bool is_expert; /* the tensor is [E, out, in], and `outer` is the range of places of experts.
                       A vector's tensor is [E, n_cols], and `rows` is that range */
    uint32_t n_outer, n_rows, n_cols;
    struct range outer, rows, cols;
};

/* The part of each axis that a place holds, computed once for all of its tensors. */
struct weights_cut {
    const struct layout *l; /* borrowed */
    struct layout_place place;
    struct range axis[AXIS_COUNT], experts;
};

/* Local. Computes the range of each axis that a place holds. */
struct weights_cut weights_cut_of(const struct layout *l, struct layout_place place);

/* Local. Returns the slab of a tensor, without its name and layer. A place that holds nothing of
 * the tensor gets an empty range. */
struct weight_spec weights_slab(const struct weights_cut *cut, const struct arch_tensor *t);

/* Local. Returns the parts (enum arch_part) outside the layers that a place holds. A tied head is
 * listed on a last stage that is not also the first, which holds the embedding; a headless model
 * has no head. */
uint64_t weights_outer_parts(const struct layout *l, struct layout_place place);

/* Called for each slab; ctx is the argument of weights_list. */
typedef struct status weight_emit(void *ctx, const struct weight_spec *spec);

/* Local. Calls emit for each slab of the place until one fails: the embedding, then layer by layer,
 * then the rest, each in the order of the table. Empty slabs are left out. Errors: emit's. */
struct status weights_list(const struct layout *l, struct layout_place place, weight_emit *emit,
                           void *ctx);

#endif
