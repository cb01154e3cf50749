/* Cuts the states of recurrent layers into tiles of columns and runs the rows of a step through
 * them. */
#include "kernels/state_tiles.h"

#include "kernels/part.h"

#include <string.h>

static size_t tile_columns(const struct delta_shape *s, size_t first)
{
    const size_t left = s->value_dim - first;
    return left < DELTA_TILE ? left : DELTA_TILE;
}

static size_t tiles_of_head(const struct delta_shape *s)
{
    return (s->value_dim + DELTA_TILE - 1) / DELTA_TILE;
}

/* Returns the cost of a row in one tile. */
static uint64_t row_cost(const struct state_tiles *t)
{
    return (uint64_t)t->element_cost * t->shape->key_dim * tile_columns(t->shape, 0);
}

/* Runs the rows of a sequence through one tile: columns from j on of value head v. */
static void run_tile(const struct state_tiles *t, const struct seq_rows *seq, size_t v, size_t j)
{
    const struct delta_shape *s = t->shape;
    const size_t n = delta_channels(s), n_v = delta_value_heads(s), width = tile_columns(s, j);
    const size_t n_k = (size_t)s->n_heads * s->key_dim, head = (s->first_own + v) / s->per_key;
    const size_t n_gates = delta_gates(s), per_head = s->by_channel ? s->key_dim : 1;
    const float *x = t->mixed + seq->row0 * n, *gates = t->gates + seq->row0 * n_gates;
    float *state = t->states + (((size_t)seq->slot * n_v + v) * s->value_dim + j) * s->key_dim;
    if (seq->pos0 == 0) memset(state, 0, width * s->key_dim * sizeof *state);
    t->run(&(struct state_run){.q = x + head * s->key_dim,
                               .k = x + n_k + head * s->key_dim,
                               .v = x + 2 * n_k + v * s->value_dim + j,
                               .decay = gates + v * per_head,
                               .beta = gates + delta_decays(s) + v,
                               .out = t->out + (seq->row0 * n_v + v) * s->value_dim + j,
                               .state = state,
                               .n_rows = seq->n_rows,
                               .n = width,
                               .key_dim = s->key_dim,
                               .key_stride = n,
                               .value_stride = n,
                               .gate_stride = n_gates,
                               .out_stride = n_v * s->value_dim,
                               .state_stride = width,
                               .skip = t->skip != NULL ? t->skip[v] : 0,
                               .by_channel = s->by_channel});
}

static void state_tiles_part(const void *job, struct part part)
{
    const struct state_tiles *t = job;
    const size_t n_tiles = tiles_of_head(t->shape), n = delta_value_heads(t->shape) * n_tiles;
    for (size_t i = 0; i < t->n_seqs; i++) {
        const struct seq_rows *seq = &t->seqs[i];
        size_t unit, end;
        if (!part_take(&part, n, seq->n_rows * row_cost(t), &unit, &end)) continue;
        for (; unit < end; unit++) run_tile(t, seq, unit / n_tiles, unit % n_tiles * DELTA_TILE);
    }
}

void state_tiles_run(struct team *team, const struct state_tiles *t)
{
    const uint64_t n_tiles = delta_value_heads(t->shape) * tiles_of_head(t->shape);
    part_run(team, t->n_rows * n_tiles * row_cost(t), state_tiles_part, t);
}
