/* The forward pass of a stage: for each layer norm, attention, sum; norm, FFN or MoE, sum. */
#include "base/mem.h"
#include "collective/device_comm.h"
#include "collective/grid_sum.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/stage_private.h"
#include "parallel/layout/workspace.h"

#include <assert.h>
#include <string.h>

size_t hidden_bytes(size_t n_rows, uint32_t width)
{
    return n_rows * ((size_t)width * sizeof(float) + 2 * sizeof(int32_t));
}

struct hidden hidden_view(void *buffer, size_t n_rows, uint32_t width)
{
    float *h = buffer;
    int32_t *counters = (int32_t *)(h + n_rows * width);
    return (struct hidden){.n_rows = n_rows, .h = h, .bad = counters, .dropped = counters + n_rows};
}

bool stage_layer_is_quantized(const struct layer *l)
{
    const struct attention_weights *a = &l->attention;
    const struct packed *all[] = {&a->q,
                                  &a->k,
                                  &a->v,
                                  &a->o,
                                  &a->latent.q_a,
                                  &a->latent.kv_a,
                                  &a->index.q,
                                  &a->index.k,
                                  &a->index.pool.kv,
                                  &a->index.pool.gate,
                                  &a->latent.o_a,
                                  &a->latent.pool.kv,
                                  &a->latent.pool.gate,
                                  &l->ffn.gate,
                                  &l->ffn.up,
                                  &l->ffn.down,
                                  &l->delta.qkvz,
                                  &l->delta.ba,
                                  &l->delta.o,
                                  &l->delta.q,
                                  &l->delta.z};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i]->quant.kind != QUANT_NONE) return true;
    }
    return false;
}

/* Bytes of quantized rows of at most n_most inputs; 0 if no dense linear reads such rows. */
static size_t codes_bytes(const struct stage *s, size_t n_most)
{
    const struct weights *w = s->o.weights;
    bool any = false;
    for (uint32_t i = 0; i < range_count(w->layers); i++) {
        any = any || stage_layer_is_quantized(&w->stage_layers[i]);
    }
    return !any || stage_is_weight_only(&s->o) ? 0 : act_codes_bytes(s->o.max_rows, n_most);
}

static struct workspace_shape stage_shape_of(const struct stage *s)
{
    struct workspace_shape shape =
        workspace_shape_of(s->o.layout, s->o.weights->place, s->o.max_rows);
    shape.bytes[WORKSPACE_CODES] = codes_bytes(s, (size_t)shape.code_inputs);
    shape.bytes[WORKSPACE_INNER_CODES] = codes_bytes(s, (size_t)shape.inner_code_inputs);
    return shape;
}

/* Points the arrays into the workspace. Without latents, and unless heads are wider in the cache
 * than in the model, k_narrow and v_narrow are k and v, q_wide is q, and o_wide is attended. */
static void point(struct stage *s, const struct workspace_place *at, bool has_codes)
{
    char *base = s->workspace;
    void *const arrays[WORKSPACE_COUNT] = {[WORKSPACE_NORMED] = &s->x,
                                           [WORKSPACE_CODES] = &s->codes,
                                           [WORKSPACE_INNER_CODES] = &s->inner_codes,
                                           [WORKSPACE_COS] = &s->rotation.cos,
                                           [WORKSPACE_SIN] = &s->rotation.sin,
                                           [WORKSPACE_LOCAL_COS] = &s->rotation.local.cos,
                                           [WORKSPACE_LOCAL_SIN] = &s->rotation.local.sin,
                                           [WORKSPACE_Q] = &s->qkv.q,
                                           [WORKSPACE_K] = &s->qkv.k,
                                           [WORKSPACE_V] = &s->qkv.v,
                                           [WORKSPACE_HEAD_SUMS] = &s->head_sums,
                                           [WORKSPACE_TILE_PARTS] = &s->tile_parts,
                                           [WORKSPACE_Q_LOW] = &s->latent.q_low,
                                           [WORKSPACE_K_ROPE] = &s->latent.k_rope,
                                           [WORKSPACE_HEAD_GATES] = &s->qkv.gates,
                                           [WORKSPACE_Q_GATED] = &s->qkv.q_gated,
                                           [WORKSPACE_DELTA_QKVZ] = &s->delta.qkvz,
                                           [WORKSPACE_DELTA_BA] = &s->delta.ba,
                                           [WORKSPACE_DELTA_MIXED] = &s->delta.mixed,
                                           [WORKSPACE_DELTA_GATES] = &s->delta.gates,
                                           [WORKSPACE_INDEX_Q] = &s->index.q,
                                           [WORKSPACE_INDEX_TURNED] = &s->index.turned,
                                           [WORKSPACE_INDEX_K] = &s->index.k,
                                           [WORKSPACE_INDEX_MIX] = &s->index.mix,
                                           [WORKSPACE_INDEX_CHOSEN] = &s->index.chosen,
                                           [WORKSPACE_INDEX_SCORES] = &s->index.scores,
                                           [WORKSPACE_INDEX_GATHERED] = &s->index.gathered,
                                           [WORKSPACE_INDEX_BLOCKS] = &s->index.blocks,
                                           [WORKSPACE_ENTRY_KEYS] = &s->entries.keys,
                                           [WORKSPACE_ENTRY_BLOCKS] = &s->entries.key_blocks,
                                           [WORKSPACE_POOL_KV] = &s->entries.kv,
                                           [WORKSPACE_POOL_GATE] = &s->entries.gate,
                                           [WORKSPACE_INDEX_POOL_KV] = &s->entries.index_kv,
                                           [WORKSPACE_INDEX_POOL_GATE] = &s->entries.index_gate,
                                           [WORKSPACE_STREAM_ROWS] = &s->streams.rows,
                                           [WORKSPACE_STREAM_NORMED] = &s->streams.normed,
                                           [WORKSPACE_STREAM_MIX] = &s->streams.mix,
                                           [WORKSPACE_STREAM_PRE] = &s->streams.pre,
                                           [WORKSPACE_STREAM_POST] = &s->streams.post,
                                           [WORKSPACE_STREAM_COMB] = &s->streams.comb,
                                           [WORKSPACE_K_NARROW] = &s->qkv.k_narrow,
                                           [WORKSPACE_V_NARROW] = &s->qkv.v_narrow,
                                           [WORKSPACE_Q_WIDE] = &s->qkv.q_wide,
                                           [WORKSPACE_O_WIDE] = &s->qkv.o_wide,
                                           [WORKSPACE_ATTENDED] = &s->qkv.attended,
                                           [WORKSPACE_GATE] = &s->ffn.gate,
                                           [WORKSPACE_INNER_SUMS] = &s->ffn.sums,
                                           [WORKSPACE_UP] = &s->ffn.up,
                                           [WORKSPACE_MIX] = &s->ffn.mix,
                                           [WORKSPACE_SHARED] = &s->ffn.shared,
                                           [WORKSPACE_SHORTCUT] = &s->ffn.shortcut,
                                           [WORKSPACE_ROUTED] = &s->ffn.routed};
    for (int i = 0; i < WORKSPACE_COUNT; i++) {
        void *p = base + at->offset[i];
        memcpy(arrays[i], &p, sizeof p);
    }
    if (!has_codes) s->codes = s->inner_codes = NULL;
    if (s->o.model->attn.kv_lora > 0 || stage_is_padded(s)) return;
    s->qkv.k_narrow = s->qkv.k;
    s->qkv.v_narrow = s->qkv.v;
    s->qkv.q_wide = s->qkv.q;
    s->qkv.o_wide = s->qkv.attended;
}

static struct status make_ones(struct stage *s)
{
    const struct arch *m = s->o.model;
    size_t n = m->attn.l2_norm || m->attn.v_norm ? arch_value_dim_most(m) : 0;
    if (m->compression.o_groups > 0) n = m->attn.head_dim;
    if (m->streams.n > 0 && n < arch_row_width(m)) n = arch_row_width(m);
    if (n == 0) return status_ok();
    TRY(mem_alloc(&s->ones, n, sizeof *s->ones, "workspace"));
    for (size_t i = 0; i < n; i++) s->ones[i] = 1;
    return status_ok();
}

static struct status make_workspace(struct stage *s)
{
    const size_t t = s->o.max_rows;
    const struct workspace_shape shape = stage_shape_of(s);
    const struct workspace_place at = workspace_place(&shape);
    if (at.n_bytes > SIZE_MAX / 2)
        return status_make(STATUS_MEMORY, "workspace: too large for %zu rows", t);
    s->workspace_bytes += at.n_bytes;
    TRY(mem_ops_alloc(s->o.kern, &s->workspace, (size_t)at.n_bytes, 1, "workspace"));
    point(s, &at, shape.bytes[WORKSPACE_CODES] > 0);
    TRY(stage_make_latent(s));
    TRY(stage_make_index(s));
    TRY(stage_make_prediction(s));
    if (s->o.model->tuning.scale != 0)
        TRY(mem_alloc(&s->rotation.q_scale, t, sizeof *s->rotation.q_scale, "workspace"));
    TRY(make_ones(s));
    TRY(mem_alloc(&s->part_seqs, (t + 1) * stage_n_tables(s), sizeof *s->part_seqs, "workspace"));
    TRY(mem_alloc(&s->final_rows, t, sizeof *s->final_rows, "workspace"));
    return mem_alloc(&s->positions, t, sizeof *s->positions, "workspace");
}

/* Allocates the KV blocks, and in them the index keys or compressed entries of layers with an index
 * or compressed attention. */
static struct status make_kv(struct stage *s)
{
    const struct stage_options *o = &s->o;
    bool has_beside[ARCH_LAYERS_MAX] = {false};
    for (uint32_t i = 0; i < range_count(o->weights->layers); i++) {
        const struct layer *layer = &o->weights->stage_layers[i];
        if (layer->has_kv && arch_has_beside(o->model, layer->index))
            has_beside[layer->in_cache] = true;
    }
    const struct kv_shape shape = {
        .n_layers = kv_groups_layers(&s->kv_groups, o->layout, o->weights->place.pp),
        .n_blocks = o->n_kv_blocks,
        .n_kv_heads = s->attention.n_kv_heads,
        .head_dim = o->model->attn.head_dim,
        .dtype = o->flags->kv_dtype,
        .latent = o->model->attn.kv_lora > 0,
        .index_dim = arch_beside_dim(o->model),
        .has_index = has_beside};
    return kv_pool_create(o->kern, &shape, &s->kv);
}

struct status stage_create(const struct stage_options *o, struct stage **out)
{
    *out = NULL;
    struct stage *s = NULL;
    TRY(mem_alloc(&s, 1, sizeof *s, "stage"));
    s->o = *o;
    s->kv_groups = kv_groups_of(o->layout);
    stage_describe_attention(s);
    struct status st = make_workspace(s);
    if (!status_failed(&st)) st = stage_make_moe(s);
    if (!status_failed(&st)) st = stage_make_adapters(s);
    if (!status_failed(&st)) st = stage_make_kept(s);
    s->row_sum = row_sum_choose(s);
    if (!status_failed(&st)) st = s->row_sum->create(s);
    if (!status_failed(&st)) st = make_kv(s);
    if (!status_failed(&st)) st = stage_make_states(s);
    if (status_failed(&st)) stage_destroy(&s);
    *out = s;
    return st;
}

void stage_destroy(struct stage **stage)
{
    if (*stage == NULL) return;
    struct stage *s = *stage;
    state_pool_destroy(&s->states);
    kv_pool_destroy(&s->kv);
    moe_destroy(&s->moe);
    mem_free(&s->expert_load);
    if (s->row_sum != NULL) s->row_sum->destroy(s);
    stage_free_latent(s);
    stage_free_index(s);
    stage_free_prediction(s);
    stage_free_adapters(s);
    stage_free_kept(s);
    mem_ops_free(s->o.kern, &s->workspace);
    mem_free(&s->rotation.q_scale);
    mem_free(&s->ones);
    mem_free(&s->part_seqs);
    mem_free(&s->positions);
    mem_free(&s->final_rows);
    mem_free(stage);
}

/* Makes each row of h [T, n D] n copies of a row of from [T, D]. */
static void spread_streams(struct stage *s, const float *from, struct hidden *hidden)
{
    const size_t d = s->o.model->width;
    for (uint32_t i = 0; i < s->o.model->streams.n; i++)
        op_place_rows(s->o.kern, &(struct place_args){.from = from,
                                                      .n_rows = hidden->n_rows,
                                                      .width = d,
                                                      .to_stride = arch_row_width(s->o.model),
                                                      .to = hidden->h + i * d});
}

void stage_embed(struct stage *s, const int32_t *tokens, struct hidden *hidden)
{
    const struct weights *w = s->o.weights;
    const size_t d = s->o.model->width;
    float *h = s->o.model->streams.n > 0 ? s->x : hidden->h;
    const struct embed_args args = {.w = &w->embed,
                                    .tokens = tokens,
                                    .n_rows = hidden->n_rows,
                                    .vocab_begin = w->vocab.begin,
                                    .vocab_end = w->vocab.end,
                                    .h = h};
    if (range_count(w->vocab) > 0) {
        op_embed(s->o.kern, &args);
    } else {
        mem_ops_fill(s->o.kern, h, 0, hidden->n_rows * d * sizeof(float));
    }
    mem_ops_fill(s->o.kern, hidden->bad, 0, hidden->n_rows * sizeof *hidden->bad);
    mem_ops_fill(s->o.kern, hidden->dropped, 0, hidden->n_rows * sizeof *hidden->dropped);
    /* one rank has a token's embedding, the others have zero bits: OR copies it */
    device_or_u32(s->o.kern, s->o.comm, COMM_TP, (uint32_t *)h, hidden->n_rows * d);
    if (s->o.model->scale.embed != 1.0f)
        op_scale(s->o.kern, h, s->o.model->scale.embed, hidden->n_rows * d);
    if (h != hidden->h) spread_streams(s, h, hidden);
}

/* Sets s->positions to the rows' positions in the table of embeddings: 0, 1, ...; with
 * pad_positions, pad_id for padding tokens and pad_id + 1, pad_id + 2, ... for the others. Sets
 * s->final_rows to the rows' types. */
static void set_places(struct stage *s, const struct encoder_rows *rows)
{
    const int32_t pad = s->o.model->pad_id;
    for (size_t i = 0; i < rows->n_seqs; i++) {
        const struct seq_rows *seq = &rows->seqs[i];
        const int32_t second = rows->second_from[i];
        int32_t position = pad;
        for (size_t k = 0; k < seq->n_rows; k++) {
            const size_t r = seq->row0 + k;
            const bool is_pad = pad >= 0 && rows->tokens[r] == pad;
            s->positions[r] = is_pad ? pad : ++position;
            s->final_rows[r] = second > 0 && k >= (size_t)second;
        }
    }
}

/* h += rows [n_rows] of a table [.., D]. */
static void add_rows(struct stage *s, const float *table, const int32_t *rows,
                     struct hidden *hidden)
{
    const size_t n_rows = hidden->n_rows, d = s->o.model->width;
    const struct gather_args args = {
        .from = table, .rows = rows, .n_rows = n_rows, .width = d, .to = s->x};
    op_gather_rows(s->o.kern, &args);
    op_add(s->o.kern, hidden->h, s->x, n_rows * d);
}

/* Adds in the order of the transformers library. */
void stage_embed_places(struct stage *s, const struct encoder_rows *rows, struct hidden *hidden)
{
    if (s->o.model->n_positions == 0) return;
    set_places(s, rows);
    add_rows(s, s->o.weights->types, s->final_rows, hidden);
    add_rows(s, s->o.weights->positions, s->positions, hidden);
}

void stage_keep_normed(struct stage *s, const struct part *p, bool is_first, const float *x)
{
    const struct arch_family *f = s->o.model->family;
    const size_t d = s->o.model->width, first = p->own.begin * d;
    if (!f->bert && !(f->modern && is_first)) return;
    op_place_rows(s->o.kern, &(struct place_args){.from = x + first,
                                                  .n_rows = range_count(p->own),
                                                  .width = d,
                                                  .to_stride = d,
                                                  .to = p->hidden.h + first});
}

/* Describes rows [row0, row0 + n_rows) of the step as a part, without its sequences. */
static struct part stage_part_of(const struct stage *s, const struct hidden *hidden, size_t row0,
                                 size_t n_rows, int lane)
{
    const size_t d = arch_row_width(s->o.model), half = s->o.model->attn.rotary / 2;
    const size_t local = arch_local_rotary(s->o.model) / 2;
    return (struct part){
        .hidden = {.n_rows = n_rows,
                   .h = hidden->h + row0 * d,
                   .bad = hidden->bad + row0,
                   .dropped = hidden->dropped + row0},
        .row0 = row0,
        .cos = s->rotation.cos + row0 * half,
        .sin = s->rotation.sin + row0 * half,
        .local = {s->rotation.local.cos + row0 * local, s->rotation.local.sin + row0 * local},
        .lane = lane};
}

/* Writes to `out` the parts of the sequences that are in rows [begin, end) of the step, with rows
 * counted from `begin`. Returns how many sequences have such rows. */
static size_t cut_seqs(const struct seq_rows *seqs, size_t n_seqs, size_t begin, size_t end,
                       struct seq_rows *out)
{
    size_t n = 0;
    for (size_t k = 0; k < n_seqs; k++) {
        const struct seq_rows *q = &seqs[k];
        const size_t row0 = q->row0 > begin ? q->row0 : begin;
        const size_t row1 = q->row0 + q->n_rows < end ? q->row0 + q->n_rows : end;
        if (row0 >= row1) continue;
        out[n++] = (struct seq_rows){.row0 = row0 - begin,
                                     .n_rows = row1 - row0,
                                     .pos0 = q->pos0 + (row0 - q->row0),
                                     .blocks = q->blocks,
                                     .slot = q->slot};
    }
    return n;
}

/* Makes two parts of the step. A sequence may be cut between them. That changes none of its bytes:
 * a row reads earlier rows from the cache only, and the first part writes them before the second
 * part reads. */
static void stage_cut(struct stage *s, const struct seq_rows *seqs, size_t n_seqs,
                      const struct hidden *hidden)
{
    const size_t at = (hidden->n_rows + 1) / 2, stride = s->o.max_rows + 1;
    struct seq_rows *to = s->part_seqs;
    for (size_t i = 0; i < STAGE_PARTS; i++) {
        const size_t begin = i == 0 ? 0 : at, end = i == 0 ? at : hidden->n_rows;
        struct part *p = &s->parts[i];
        *p = stage_part_of(s, hidden, begin, end - begin, (int)i);
        p->seqs = to;
        p->table_stride = stride;
        for (size_t t = 0; t < stage_n_tables(s); t++)
            p->n_seqs = cut_seqs(seqs + t * s->o.max_rows, n_seqs, begin, end, to + t * stride);
        to += p->n_seqs;
    }
}

/* Sets up the step's parts, s->parts. Returns how many there are. */
static size_t stage_begin_step(struct stage *s, const struct seq_rows *seqs, size_t n_seqs,
                               bool in_halves, const struct hidden *hidden)
{
    const size_t n_parts = in_halves ? STAGE_PARTS : 1;
    assert(hidden->n_rows <= s->o.max_rows);
    s->row_sum->begin_step(s);
    stage_rotate(s, seqs, n_seqs, hidden->n_rows);
    if (in_halves) {
        stage_cut(s, seqs, n_seqs, hidden);
    } else {
        s->parts[0] = stage_part_of(s, hidden, 0, hidden->n_rows, GRID_SUM_NOW);
        s->parts[0].seqs = seqs;
        s->parts[0].n_seqs = n_seqs;
        s->parts[0].table_stride = s->o.max_rows;
    }
    for (size_t i = 0; i < n_parts; i++) {
        s->parts[i].number = (int)i;
        s->row_sum->begin_part(s, &s->parts[i]);
    }
    return n_parts;
}

/* Switches to part i and completes its h. Leaves out the results of shortcut experts, which the
 * layer's FFN adds. */
static struct status stage_enter(struct stage *s, const struct layer *layer, size_t i,
                                 struct part **out)
{
    struct part *p = *out = &s->parts[i];
    op_step_part(s->o.kern, p->row0, p->hidden.n_rows);
    s->row_sum->complete(s, p);
    return layer->ends_shortcut ? status_ok() : stage_take_results(s, p);
}

/* True when the layer's rows travel to experts while this rank computes. The shared experts' output
 * of one part then outlives the attention of another. */
static bool hides_exchange(const struct stage *s, const struct layer *layer, size_t n_parts)
{
    const bool hides = layer->is_moe && moe_travels(s->moe);
    assert(!hides || n_parts == 1 || workspace_keeps_shared(s->o.layout));
    return hides;
}

/* Runs a layer in which rows travel. With two parts, as time runs to the right:
 *
 *     computes   attention 0 | attention 1 | experts 0 | experts 1 | attention 0 of the next layer
 *     travels                | rows of 0   | rows of 1 | sums of 0 | sums of 1 */
static struct status run_hiding(struct stage *s, const struct layer *layer, size_t n_parts)
{
    struct part *p;
    for (size_t i = 0; i < n_parts; i++) {
        TRY(stage_enter(s, layer, i, &p));
        if (layer->has_mixer) stage_attention(s, layer, p);
        TRY(stage_enter(s, layer, i, &p));
        TRY(stage_send_rows(s, layer, p));
    }
    for (size_t i = 0; i < n_parts; i++) TRY(stage_run_experts(s, &s->parts[i]));
    return status_ok();
}

static struct status run_layer(struct stage *s, const struct layer *layer, size_t n_parts)
{
    struct part *p;
    if (hides_exchange(s, layer, n_parts)) return run_hiding(s, layer, n_parts);
    for (size_t i = 0; layer->has_mixer && i < n_parts; i++) {
        TRY(stage_enter(s, layer, i, &p));
        stage_attention(s, layer, p);
    }
    for (size_t i = 0; layer->has_ffn && i < n_parts; i++) {
        TRY(stage_enter(s, layer, i, &p));
        TRY(stage_ffn(s, layer, p));
    }
    return status_ok();
}

struct status stage_settle(struct stage *s, size_t n_parts)
{
    for (size_t i = 0; i < n_parts; i++) {
        struct part *p = &s->parts[i];
        s->row_sum->complete(s, p);
        TRY(stage_take_results(s, p));
        s->row_sum->gather(s, p);
    }
    return status_ok();
}

/* Runs layers [first, end), counted in the stage, over the parts that stage_begin_step made. */
static struct status stage_run_layers(struct stage *s, uint32_t first, uint32_t end, size_t n_parts)
{
    for (uint32_t l = first; l < end; l++) {
        const struct layer *layer = &s->o.weights->stage_layers[l];
        comm_mark_layer(s->o.comm, (int32_t)layer->index);
        TRY(run_layer(s, layer, n_parts));
        TRY(stage_keep(s, layer, n_parts));
    }
    TRY(stage_settle(s, n_parts));
    comm_mark_layer(s->o.comm, FLIGHT_NO_LAYER);
    return device_status(s->o.kern->device);
}

/* Returns the number of the stage's layers without the prediction layer, which comes last. */
static uint32_t n_own_layers(const struct stage *s)
{
    const struct range layers = s->o.weights->layers;
    return range_count(layers) - (layers.end > s->o.model->n_layers ? 1 : 0);
}

void stage_take_tokens(struct stage *s, const int32_t *tokens)
{
    s->tokens = tokens;
}

struct status stage_forward(struct stage *s, const struct seq_rows *seqs, size_t n_seqs,
                            const uint32_t *adapters, bool in_halves, struct hidden *hidden)
{
    const size_t n_parts = stage_begin_step(s, seqs, n_seqs, in_halves, hidden);
    if (adapters != NULL) stage_adapters_begin(s, seqs, n_seqs, adapters, n_parts);
    return stage_run_layers(s, 0, n_own_layers(s), n_parts);
}

void stage_norm_rows(struct stage *s, const float *h, const struct norm_weights *norm,
                     const size_t *rows, size_t n, float *out)
{
    const size_t d = s->o.model->width;
    for (size_t i = 0; i < n; i++) s->final_rows[i] = (int32_t)rows[i];
    const struct gather_args args = {
        .from = h, .rows = s->final_rows, .n_rows = n, .width = d, .to = out};
    if (s->o.model->streams.n > 0)
        stage_sum_streams(s, h, n, out);
    else
        op_gather_rows(s->o.kern, &args);
    op_rmsnorm(s->o.kern, &(struct norm_args){.x = out,
                                              .w = norm->w,
                                              .bias = norm->bias,
                                              .n_rows = n,
                                              .n = d,
                                              .eps = s->o.model->norm_eps,
                                              .y = out});
}

void stage_scale_rows(struct stage *s, size_t n, float *rows)
{
    const float scale = s->o.model->scale.logits;
    if (scale != 1.0f) op_scale(s->o.kern, rows, scale, n * s->o.model->width);
}

void stage_hidden_rows(struct stage *s, const struct hidden *hidden, const size_t *rows, size_t n,
                       float *out)
{
    const struct norm_weights norm =
        stage_norm(s->o.weights->final_norm, s->o.weights->final_norm_bias);
    stage_norm_rows(s, hidden->h, &norm, rows, n, out);
}

void stage_final_norm(struct stage *s, const struct hidden *hidden, const size_t *rows, size_t n,
                      float *out)
{
    stage_hidden_rows(s, hidden, rows, n, out);
    stage_scale_rows(s, n, out);
}

struct status stage_predict(struct stage *s, const struct seq_rows *seqs, size_t n_seqs,
                            bool in_halves, const int32_t *next, const struct hidden *hidden)
{
    struct hidden h = stage_join(s, next, hidden);
    const size_t n_parts = stage_begin_step(s, seqs, n_seqs, in_halves, &h);
    return stage_run_layers(s, n_own_layers(s), n_own_layers(s) + 1, n_parts);
}

const uint64_t *stage_expert_load(const struct stage *s)
{
    return s->expert_load;
}

void stage_count_busiest(struct stage *s)
{
    if (s->moe != NULL) moe_count_busiest(s->moe);
}

struct status stage_take_places(struct stage *s)
{
    return s->moe != NULL ? moe_expect_rows(s->moe) : status_ok();
}

struct moe_traffic stage_moe_traffic(const struct stage *s)
{
    return s->moe != NULL ? moe_traffic_of(s->moe) : (struct moe_traffic){0};
}

const struct kv_pool *stage_kv_pool(const struct stage *s)
{
    return s->kv;
}

uint64_t stage_kv_bytes(const struct stage *s)
{
    return s->kv->n_bytes;
}

uint64_t stage_state_bytes(const struct stage *s)
{
    return s->states == NULL ? 0 : s->states->n_bytes;
}

uint64_t stage_workspace_bytes(const struct stage *s)
{
    return s->workspace_bytes;
}
