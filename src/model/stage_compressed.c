/* Compressed attention (DeepSeek-V4, 2026, section 2.3): one head of keys, which are values too,
 * for all query heads; a row attends to a window of them and to entries that stand for many
 * positions each, all of them or those that an index chooses. The outputs of a group of heads pass
 * a linear before o. Every rank with heads computes the keys, the entries and the index, which are
 * small.
 * The sums of unfinished entries are in slots, as recurrent states are. Called by stage_attention.
 */
#include "kernels/ops.h"
#include "kernels/ops_sparse.h"
#include "model/stage_private.h"
#include "parallel/layout/workspace.h"

/* True when the layer's index chooses entries. */
static bool stage_compressed_chooses(const struct stage *s, const struct layer *layer)
{
    return s->o.model->layer.compression[layer->index] == COMPRESSION_SPARSE;
}

/* Computes the linears before attention: q [T, H, Hd], keys s->qkv.k [T, Hd], the values and logits
 * of entries and of their index keys, and the index's q and weights. */
static void project_compressed(struct stage *s, const struct layer *layer, struct act_rows *in)
{
    const struct latent_weights *w = &layer->attention.latent;
    const struct arch *m = s->o.model;
    const struct column first[] = {{&w->q_a, s->latent.q_low, NULL},
                                   {&w->kv_a, s->qkv.k, NULL},
                                   {&w->pool.kv, s->entries.kv, NULL}};
    const struct column rest[] = {{&w->pool.gate, s->entries.gate, NULL},
                                  {&layer->attention.index.pool.kv, s->entries.index_kv, NULL},
                                  {&layer->attention.index.pool.gate, s->entries.index_gate, NULL}};
    const struct column mix = {&layer->attention.index.mix, s->index.mix, NULL};
    stage_columns(s, first, 3, in);
    stage_columns(s, rest, 3, in);
    stage_columns(s, &mix, 1, in);
    op_rmsnorm(s->o.kern, &(struct norm_args){.x = s->latent.q_low,
                                              .w = w->q_a_norm,
                                              .n_rows = in->n_rows,
                                              .n = m->attn.q_lora,
                                              .eps = m->norm_eps,
                                              .y = s->latent.q_low});
    struct act_rows low = stage_input(s, s->latent.q_low, in->n_rows, m->attn.q_lora);
    const struct column q[] = {{&layer->attention.q, s->qkv.q, NULL},
                               {&layer->attention.index.q, s->index.q, NULL}};
    stage_columns(s, q, 2, &low);
}

/* Rotates the ends of n_heads heads [width] of each row. */
static void rotate(struct stage *s, const struct layer *layer, const struct part *p, float *x,
                   struct rope_ends_args a)
{
    a.x = x;
    a.cos = layer->is_local ? p->local.cos : p->cos;
    a.sin = layer->is_local ? p->local.sin : p->sin;
    a.n_rows = p->hidden.n_rows;
    a.rot = s->o.model->attn.rotary;
    op_rope_ends(s->o.kern, &a);
}

static void norm_heads(struct stage *s, float *x, const float *w, size_t n_heads)
{
    op_rmsnorm(s->o.kern, &(struct norm_args){.x = x,
                                              .w = w,
                                              .n_rows = n_heads,
                                              .n = s->o.model->attn.head_dim,
                                              .eps = s->o.model->norm_eps,
                                              .y = x});
}

static struct entry_view entries_of(const struct stage *s, const struct layer *layer)
{
    return (struct entry_view){.kv = kv_pool_layer(s->kv, layer->in_cache),
                               .rate = layer->rate,
                               .index_dim = arch_entry_key_dim(s->o.model, layer->index)};
}

/* Makes the entries that end in the part's rows, and their index keys. */
static void make_entries(struct stage *s, const struct layer *layer, const struct part *p)
{
    const struct arch *m = s->o.model;
    const struct latent_weights *w = &layer->attention.latent;
    const bool chooses = stage_compressed_chooses(s, layer);
    struct pool_args a = {.v = s->entries.kv,
                          .z = s->entries.gate,
                          .bias = w->pool.bias,
                          .norm = w->pool.norm,
                          .parts = chooses ? 2 : 1,
                          .dim = m->attn.head_dim,
                          .eps = m->norm_eps,
                          .inv_freq = s->o.weights->inv_freq,
                          .rot = m->attn.rotary,
                          .rope_scale = s->o.weights->rope_factors.attention,
                          .states = state_pool_floats(s->states, layer->in_states),
                          .state_stride = s->states->shape.n_floats,
                          .to = entries_of(s, layer),
                          .seqs = part_seqs(p, layer),
                          .n_seqs = p->n_seqs,
                          .n_rows = p->hidden.n_rows};
    op_pool(s->o.kern, &a);
    if (!chooses) return;
    a.v = s->entries.index_kv;
    a.z = s->entries.index_gate;
    a.bias = layer->attention.index.pool.bias;
    a.norm = layer->attention.index.pool.norm;
    a.dim = m->index.dim;
    a.states += pool_state_floats(2, m->attn.head_dim);
    a.is_index = true;
    op_pool(s->o.kern, &a);
}

/* Chooses entries for those rows of one sequence that see more than n_chosen: s->index.rows makes
 * each of them a sequence of the entries that it sees. */
static void choose_of(struct stage *s, const struct layer *layer, const struct seq_rows *seq,
                      int32_t *chosen)
{
    const struct arch_index *m = &s->o.model->index;
    const struct workspace_index work = workspace_index_of(s->o.model, s->o.max_rows);
    const struct entry_view entries = entries_of(s, layer);
    struct index_args a = {.q = s->index.q,
                           .weights = s->index.mix,
                           .keys = {.base = s->entries.keys,
                                    .dtype = entries.kv.dtype,
                                    .n_kv_heads = 1,
                                    .head_dim = m->dim,
                                    .latent = true},
                           .n_heads = m->n_heads,
                           .scale = 1.0f / __builtin_sqrtf((float)m->dim),
                           .n_chosen = m->n_chosen,
                           .seqs = s->index.rows};
    const size_t n = (seq->pos0 + seq->n_rows) / layer->rate;
    if (n <= m->n_chosen) return;
    op_entry_keys(s->o.kern, &entries, seq, n, &a.keys);
    for (size_t r = 0; r < seq->n_rows; r++) {
        const size_t seen = (seq->pos0 + r + 1) / layer->rate;
        if (seen <= m->n_chosen) continue;
        s->index.rows[a.n_seqs++] = (struct seq_rows){
            .row0 = seq->row0 + r, .n_rows = 1, .pos0 = seen - 1, .blocks = s->entries.key_blocks};
    }
    op_index(s->o.kern, &a, chosen, s->index.scores, work.n_scores);
}

/* Chooses the entries of each row that sees more than n_chosen: chosen [T, n_chosen], in which the
 * other rows are not written. Those attend to all entries that they see. */
static void choose_entries(struct stage *s, const struct layer *layer, const struct part *p,
                           int32_t *chosen)
{
    const struct arch_index *m = &s->o.model->index;
    const struct workspace_index work = workspace_index_of(s->o.model, s->o.max_rows);
    const struct seq_rows *seqs = part_seqs(p, layer);
    op_scale(s->o.kern, s->index.mix, 1.0f / __builtin_sqrtf((float)m->n_heads),
             p->hidden.n_rows * m->n_heads);
    rotate(s, layer, p, s->index.q,
           (struct rope_ends_args){.n_heads = m->n_heads, .width = m->dim});
    for (size_t i = 0; i < work.n_key_tiles; i++) s->entries.key_blocks[i] = (int32_t)i;
    for (size_t i = 0; i < p->n_seqs; i++) choose_of(s, layer, &seqs[i], chosen);
}

/* Returns the largest number of keys and entries that any row of the part sees. In each sequence
 * that is the last row's number. */
static size_t most_seen(const struct stage *s, const struct layer *layer, const struct part *p)
{
    const struct arch *m = s->o.model;
    const struct seq_rows *seqs = part_seqs(p, layer);
    size_t most = 1;
    for (size_t i = 0; i < p->n_seqs; i++) {
        const size_t end = seqs[i].pos0 + seqs[i].n_rows;
        size_t n = end / layer->rate;
        if (stage_compressed_chooses(s, layer) && n > m->index.n_chosen) n = m->index.n_chosen;
        n += end < m->attn.window ? end : m->attn.window;
        if (n > most) most = n;
    }
    return most;
}

/* s->qkv.o_wide [T, H, Hd] = attention of q to the window and the entries. */
static void attend(struct stage *s, const struct layer *layer, const struct part *p)
{
    const struct arch_index *m = &s->o.model->index;
    const bool chooses = stage_compressed_chooses(s, layer);
    int32_t *chosen = s->index.chosen + p->row0 * m->n_chosen;
    struct entry_attention a = {
        .attention = {.q = s->qkv.q,
                      .out = s->qkv.o_wide,
                      .kv = kv_pool_layer(s->kv, layer->in_cache),
                      .kv_of_head = s->attention.kv_of_head,
                      .n_heads = s->attention.n_heads,
                      .scale = s->attention.scale,
                      .sinks = layer->attention.sinks,
                      .window = s->o.model->attn.window,
                      .seqs = part_seqs(p, layer),
                      .n_seqs = p->n_seqs,
                      .parts = s->tile_parts,
                      .n_part_floats = WORKSPACE_TILE_PARTS_BYTES / sizeof(float)},
        .entries = entries_of(s, layer),
        .chosen = chooses ? chosen : NULL,
        .n_chosen = m->n_chosen,
        .gathered = s->index.gathered,
        .blocks = s->index.blocks,
        .rows = s->index.rows};
    if (layer->rate == 0) {
        op_attention(s->o.kern, &a.attention);
        return;
    }
    const struct workspace_index work =
        workspace_index_seen(workspace_index_of(s->o.model, s->o.max_rows), most_seen(s, layer, p));
    a.n_gather = work.n_gather;
    a.n_tiles = work.n_tiles;
    if (chooses) choose_entries(s, layer, p, chosen);
    op_entry_attention(s->o.kern, &a);
}

/* Returns the quantized values of rows from `row` on; NULL: there are none. */
static const struct quant_rows *codes_at(const struct quant_rows *all, size_t row,
                                         struct quant_rows *out)
{
    if (all == NULL) return NULL;
    *out = act_codes_from(all, row);
    return out;
}

/* s->qkv.attended [T, H value_dim] = the linears of the groups of heads, whose inputs are placed
 * one group after the other. */
static void apply_groups(struct stage *s, const struct packed *w, size_t n_rows)
{
    const struct arch *m = s->o.model;
    const size_t n_heads = m->attn.n_heads / m->compression.o_groups, n_in = w->n_in;
    const size_t n_groups = s->attention.n_heads / n_heads, n_out = m->compression.o_lora;
    float *grouped = s->qkv.q_wide;
    for (size_t g = 0; g < n_groups; g++)
        op_place_rows(s->o.kern, &(struct place_args){.from = s->qkv.o_wide + g * n_in,
                                                      .n_rows = n_rows,
                                                      .width = n_in,
                                                      .to_stride = n_in,
                                                      .to = grouped + g * n_rows * n_in,
                                                      .from_stride = n_groups * n_in});
    struct act_rows in = stage_input(s, grouped, n_groups * n_rows, n_in);
    const struct quant_rows *codes = act_codes(s->o.kern, &in, w);
    for (size_t g = 0; g < n_groups; g++) {
        struct quant_rows own;
        const struct packed part = packed_outputs(w, g * n_out, n_out);
        const struct linear_group group = {.w = &part, .row0 = 0, .n_rows = n_rows};
        op_linear(s->o.kern, &(struct linear_args){.groups = &group,
                                                   .n_groups = 1,
                                                   .x = grouped + g * n_rows * n_in,
                                                   .x_stride = n_in,
                                                   .xq = codes_at(codes, g * n_rows, &own),
                                                   .y = s->qkv.attended + g * n_out,
                                                   .y_stride = n_groups * n_out});
    }
}

void stage_compressed(struct stage *s, const struct layer *layer, const struct part *p,
                      struct act_rows *in)
{
    const size_t n_rows = p->hidden.n_rows, n_heads = s->attention.n_heads;
    const size_t width = s->o.model->attn.head_dim;
    const struct kv_view kv = kv_pool_layer(s->kv, layer->in_cache);
    if (n_heads == 0) return;
    project_compressed(s, layer, in);
    norm_heads(s, s->qkv.q, s->ones, n_rows * n_heads);
    norm_heads(s, s->qkv.k, layer->attention.latent.kv_a_norm, n_rows);
    rotate(s, layer, p, s->qkv.q, (struct rope_ends_args){.n_heads = n_heads, .width = width});
    rotate(s, layer, p, s->qkv.k, (struct rope_ends_args){.n_heads = 1, .width = width});
    op_kv_write(s->o.kern, s->qkv.k, NULL, &kv, part_seqs(p, layer), p->n_seqs);
    if (layer->rate > 0) make_entries(s, layer, p);
    attend(s, layer, p);
    rotate(s, layer, p, s->qkv.o_wide,
           (struct rope_ends_args){.n_heads = n_heads, .width = width, .back = true});
    apply_groups(s, &layer->attention.latent.o_a, n_rows);
}
