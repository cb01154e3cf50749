/* Sparse attention: an index chooses the positions to which a row attends (DeepSeek-V3.2-Exp, 2025,
 * section 2.1). Every rank with heads computes the whole index, which is small. The published code
 * rotates index queries and keys by a Hadamard matrix, which changes no product, and scores them in
 * fp8; here they stay as they are, as in transformers. Called by stage_latent.c. In MiniMax-M3 it
 * chooses blocks of positions for each KV head, by a head of its own, which a rank computes for its
 * KV heads; called by stage_attention.c. */
#include "base/mem.h"
#include "kernels/ops.h"
#include "kernels/ops_sparse.h"
#include "model/stage_private.h"
#include "parallel/layout/workspace.h"

static const float KEY_NORM_EPS = 1e-6f; /* fixed in the published code */

struct status stage_make_index(struct stage *s)
{
    const struct arch_index *index = &s->o.model->index;
    if (index->n_heads == 0) return status_ok();
    const size_t per_row = index->block > 0 ? index->n_heads : 1;
    return mem_alloc(&s->index.rows, s->o.max_rows * per_row, sizeof *s->index.rows, "workspace");
}

void stage_free_index(struct stage *s)
{
    mem_free(&s->index.rows);
}

/* Rotates the first `rotary` elements of each of n_heads heads [dim] of every row, in place. */
static void rotate_heads(struct stage *s, const struct part *p, float *x, size_t n_heads)
{
    const struct arch *m = s->o.model;
    const size_t n_rows = p->hidden.n_rows;
    op_rope_tails(s->o.kern, &(struct rope_tails){.x = x,
                                                  .out = s->index.turned,
                                                  .x_stride = m->index.dim,
                                                  .out_stride = m->attn.rotary,
                                                  .cos = p->cos,
                                                  .sin = p->sin,
                                                  .n_rows = n_rows,
                                                  .n_heads = n_heads,
                                                  .rot = m->attn.rotary,
                                                  .pairs = m->index.pairs});
    op_place_rows(s->o.kern, &(struct place_args){.from = s->index.turned,
                                                  .n_rows = n_rows * n_heads,
                                                  .width = m->attn.rotary,
                                                  .to_stride = m->index.dim,
                                                  .to = x});
}

void stage_index_project(struct stage *s, const struct index_weights *w, struct act_rows *in)
{
    const struct column columns[] = {{&w->k, s->index.k, NULL}, {&w->mix, s->index.mix, NULL}};
    stage_columns(s, columns, 2, in);
}

void stage_index_keys(struct stage *s, const struct layer *layer, const struct part *p)
{
    const struct index_weights *w = &layer->attention.index;
    const struct arch_index *index = &s->o.model->index;
    const struct kv_view keys = kv_pool_index(s->kv, layer->in_cache);
    const size_t n_rows = p->hidden.n_rows;
    op_rmsnorm(s->o.kern, &(struct norm_args){.x = s->index.k,
                                              .w = w->k_norm,
                                              .bias = w->k_norm_bias,
                                              .n_rows = n_rows,
                                              .n = index->dim,
                                              .eps = KEY_NORM_EPS,
                                              .y = s->index.k});
    op_scale(s->o.kern, s->index.mix, 1.0f / __builtin_sqrtf((float)index->n_heads),
             n_rows * index->n_heads);
    rotate_heads(s, p, s->index.q, index->n_heads);
    rotate_heads(s, p, s->index.k, 1);
    op_kv_write(s->o.kern, s->index.k, NULL, &keys, part_seqs(p, layer), p->n_seqs);
}

/* Chooses the positions to which a row attends, for each of the part's rows that sees more than
 * n_chosen: chosen [T, n_chosen], in which the other rows are not written. */
static void choose_positions(struct stage *s, const struct layer *layer,
                             const struct attn_args *args, int32_t *chosen)
{
    const struct arch_index *m = &s->o.model->index;
    const struct workspace_index work = workspace_index_of(s->o.model, s->o.max_rows);
    const struct index_args index = {.q = s->index.q,
                                     .weights = s->index.mix,
                                     .keys = kv_pool_index(s->kv, layer->in_cache),
                                     .n_heads = m->n_heads,
                                     .scale = 1.0f / __builtin_sqrtf((float)m->dim),
                                     .n_chosen = m->n_chosen,
                                     .seqs = args->seqs,
                                     .n_seqs = args->n_seqs};
    op_index(s->o.kern, &index, chosen, s->index.scores, work.n_scores);
}

void stage_attend_chosen(struct stage *s, const struct layer *layer, const struct part *p,
                         const struct attn_args *args)
{
    const uint32_t n_chosen = s->o.model->index.n_chosen;
    const struct workspace_index work = workspace_index_of(s->o.model, s->o.max_rows);
    int32_t *chosen = s->index.chosen + p->row0 * n_chosen;
    if (arch_has_index(s->o.model, layer->index)) choose_positions(s, layer, args, chosen);
    op_sparse_attention(s->o.kern, &(struct sparse_args){.attention = *args,
                                                         .chosen = chosen,
                                                         .n_chosen = n_chosen,
                                                         .gathered = s->index.gathered,
                                                         .n_gather = work.n_gather,
                                                         .blocks = s->index.blocks,
                                                         .rows = s->index.rows});
}

/* Makes the index's queries for the rank's KV heads, and its keys, which go to the cache. */
static void enter_block_index(struct stage *s, const struct layer *layer, const struct part *p,
                              struct act_rows *in)
{
    const struct index_weights *w = &layer->attention.index;
    const struct kv_view keys = kv_pool_index(s->kv, layer->in_cache);
    const size_t n_rows = p->hidden.n_rows, n_heads = s->attention.n_kv_heads;
    const struct column columns[] = {{&w->q, s->index.q, NULL}, {&w->k, s->index.k, NULL}};
    struct norm_args norm = {.x = s->index.q,
                             .w = w->q_norm,
                             .n_rows = n_rows * n_heads,
                             .n = s->o.model->index.dim,
                             .eps = s->o.model->norm_eps,
                             .y = s->index.q};
    stage_columns(s, columns, 2, in);
    op_rmsnorm(s->o.kern, &norm);
    norm.x = norm.y = s->index.k;
    norm.w = w->k_norm;
    norm.n_rows = n_rows;
    op_rmsnorm(s->o.kern, &norm);
    rotate_heads(s, p, s->index.q, n_heads);
    rotate_heads(s, p, s->index.k, 1);
    op_kv_write(s->o.kern, s->index.k, NULL, &keys, part_seqs(p, layer), p->n_seqs);
}

void stage_attend_blocks(struct stage *s, const struct layer *layer, const struct part *p,
                         struct act_rows *in, const struct attention_work *work)
{
    const struct arch_index *m = &s->o.model->index;
    const struct workspace_index sizes = workspace_index_of(s->o.model, s->o.max_rows);
    if (s->attention.n_heads == 0) return;
    enter_block_index(s, layer, p, in);
    attention_enter(s->o.kern, &s->attention, work);
    const struct block_attention a = {.attention = attention_args(&s->attention, work),
                                      .choice = {.n_blocks = m->n_chosen / m->block,
                                                 .block = m->block,
                                                 .n_local = m->n_local,
                                                 .chosen = s->index.chosen},
                                      .tables = s->index.blocks,
                                      .rows = s->index.rows};
    const struct index_args index = {.q = s->index.q,
                                     .keys = kv_pool_index(s->kv, layer->in_cache),
                                     .n_heads = s->attention.n_kv_heads,
                                     .scale = 1,
                                     .n_chosen = m->n_chosen,
                                     .seqs = work->seqs,
                                     .n_seqs = work->n_seqs};
    op_index_blocks(s->o.kern, &index, &a.choice, s->index.scores, sizes.n_scores);
    op_block_attention(s->o.kern, &a);
}
