/* How linears are divided among threads: into strips of rows, and these into units of panels
 * (packed tiles), each with a cost. Included only by ops.c and ops_gated.c. */
#ifndef SHOAL_KERNELS_LINEAR_STRIPS_H
#define SHOAL_KERNELS_LINEAR_STRIPS_H

#include "kernels/kern.h"
#include "kernels/part.h"

enum {
    LINEAR_ROWS = 256,    /* rows of one strip; they share converted weights */
    LINEAR_LOAD_COST = 4, /* loading a weight costs as much as this many multiply-adds */
    QUANT_SPEED = 4,      /* int8 multiply-adds in the time of one f32 multiply-add */
    TILE_PANELS = 4,      /* panels of the widest register tile */
    PAIRED_PANELS = 2,    /* panels that kernels multiply side by side for one row of floats */
    TILES_WORTH = 16,     /* with this many tiles, whole tiles can be divided evenly enough */
};

/* A strip: some rows of a group and all panels, divided into units of `unit` panels; the last unit
 * may have fewer. */
struct strip {
    size_t n_panels, unit, n_units, n_rows;
    uint64_t unit_cost; /* in multiply-adds; never 0, not even for a weight without inputs */
};

static inline linear_slice_fn *slice_of(const struct kern_table *k, const struct packed *w,
                                        bool leafy)
{
    if (w->quant.kind != QUANT_NONE)
        return leafy ? k->linear_quant_leaf[w->quant.kind] : k->linear_quant[w->quant.kind];
    return leafy ? k->linear_leaf[w->dtype] : k->linear[w->dtype];
}

/* Returns the strip that begins at row `row` of a group. unit 0: chooses a unit that suits the
 * register tiles. */
static inline struct strip strip_of(const struct linear_args *a, const struct linear_group *g,
                                    size_t row, size_t unit)
{
    const size_t left = g->n_rows - row, n_rows = left < LINEAR_ROWS ? left : LINEAR_ROWS;
    const size_t n_panels = ((size_t)g->w->n_out + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
    const bool is_cut_by_tiles = n_rows > 1 && n_panels >= TILES_WORTH * TILE_PANELS;
    const bool is_fast = g->w->quant.kind != QUANT_NONE && a->xq != NULL;
    const uint64_t n_weights = (uint64_t)(g->w->n_in + 1) * PANEL_COLUMNS;
    const bool is_cut_by_pairs = n_rows == 1 && !is_fast;
    struct strip s = {.n_panels = n_panels, .n_rows = n_rows};
    s.unit = unit != 0 ? unit : is_cut_by_tiles ? TILE_PANELS : is_cut_by_pairs ? PAIRED_PANELS : 1;
    s.n_units = (n_panels + s.unit - 1) / s.unit;
    s.unit_cost = n_weights / (is_fast ? QUANT_SPEED : 1) * (n_rows + LINEAR_LOAD_COST) * s.unit;
    return s;
}

/* Finds the panels [*panel0, *panel1) of the strip that fall to a share. False: none do. */
static inline bool strip_take(struct part *part, const struct strip *s, size_t *panel0,
                              size_t *panel1)
{
    if (!part_take(part, s->n_units, s->unit_cost, panel0, panel1)) return false;
    *panel0 *= s->unit;
    *panel1 *= s->unit;
    if (*panel1 > s->n_panels) *panel1 = s->n_panels;
    return true;
}

#endif
