/* The forward pass of a stage. Reads like the paper: norm, attention, sum; norm, FFN or MoE, sum.
 */
#include "model/stage.h"

#include "attention/attention.h"
#include "base/mem.h"
#include "kernels/act.h"
#include "kernels/grid_sum.h"
#include "kernels/ops.h"

#include <assert.h>
#include <string.h>

struct stage {
    struct stage_options o;
    struct attention_shape attention;
    uint8_t kv_of_head[4096]; /* local kv head of each local head */
    struct kv_pool *kv;
    struct moe *moe;       /* NULL for dense models */
    uint64_t *expert_load; /* [layers, E] */
    uint64_t workspace_bytes;
    /* workspace, for T <= max_rows */
    float *x;            /* [T, D] normed input of a block */
    float *q, *attended; /* [T, H Hd] */
    float *k, *v;        /* [T, G Hd] */
    float *gate, *up;    /* [T, F] */
    int64_t *sums;       /* [T, D + 1]; own_sums, or memory that the tp ranks share */
    int64_t *own_sums;
    float *cos, *sin;   /* [T, Hd / 2] */
    int32_t *positions; /* [T] */
    void *codes;        /* the rows that meet quantized weights; NULL: there are none */
};

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

static struct status take(struct stage *s, void *out, size_t n, size_t elem_bytes)
{
    s->workspace_bytes += n * elem_bytes;
    return mem_alloc(out, n, elem_bytes, "workspace");
}

/* Sums stand where the other tp ranks of this host can read them, if there is such a place. */
static struct status take_sums(struct stage *s, size_t n)
{
    s->sums = comm_lane(s->o.comm, COMM_TP, COMM_LANE_SUMS, n * sizeof *s->sums);
    if (s->sums == NULL) {
        TRY(take(s, &s->own_sums, n, sizeof *s->own_sums));
        s->sums = s->own_sums;
        return status_ok();
    }
    s->workspace_bytes += n * sizeof *s->sums;
    return status_ok();
}

static bool is_quantized(const struct layer_weights *w)
{
    const struct packed *all[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i]->quant.kind != QUANT_NONE) return true;
    }
    return false;
}

/* Codes of the widest input of a dense linear, if any of them is quantized. */
static struct status take_codes(struct stage *s, size_t n_most)
{
    const struct weights *w = s->o.weights;
    bool any = false;
    for (uint32_t i = 0; i < range_count(w->layers); i++) {
        any = any || is_quantized(&w->layers_of_stage[i]);
    }
    if (!any || s->o.weight_only) return status_ok();
    return take(s, &s->codes, act_codes_bytes(s->o.max_rows, n_most), 1);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static struct status make_workspace(struct stage *s)
{
    const struct model_config *m = s->o.model;
    const size_t t = s->o.max_rows, d = m->width, half = m->head_dim / 2;
    const size_t n_q = (size_t)s->attention.n_heads * m->head_dim;
    const size_t n_kv = (size_t)s->attention.n_kv_heads * m->head_dim;
    const size_t f = range_count(layout_ffn(s->o.layout, s->o.weights->place.tp));
    TRY(take(s, &s->x, t * d, sizeof(float)));
    TRY(take(s, &s->q, t * n_q, sizeof(float)));
    TRY(take(s, &s->attended, t * n_q, sizeof(float)));
    TRY(take(s, &s->k, t * n_kv, sizeof(float)));
    TRY(take(s, &s->v, t * n_kv, sizeof(float)));
    TRY(take(s, &s->gate, t * f, sizeof(float)));
    TRY(take(s, &s->up, t * f, sizeof(float)));
    TRY(take_sums(s, t * (d + 1)));
    TRY(take_codes(s, larger(d, larger(n_q, f))));
    TRY(take(s, &s->cos, t * half, sizeof(float)));
    TRY(take(s, &s->sin, t * half, sizeof(float)));
    return take(s, &s->positions, t, sizeof(int32_t));
}

static void describe_attention(struct stage *s)
{
    const struct model_config *m = s->o.model;
    const struct weights *w = s->o.weights;
    const uint32_t heads_per_kv = m->n_heads / m->n_kv_heads;
    s->attention = (struct attention_shape){.n_heads = range_count(w->heads),
                                            .n_kv_heads = range_count(w->kv_heads),
                                            .head_dim = m->head_dim,
                                            .kv_of_head = s->kv_of_head,
                                            .scale = 1.0f / __builtin_sqrtf((float)m->head_dim),
                                            .norm_eps = m->norm_eps,
                                            .window = m->window};
    for (uint32_t h = w->heads.begin; h < w->heads.end; h++) {
        s->kv_of_head[h - w->heads.begin] = (uint8_t)(h / heads_per_kv - w->kv_heads.begin);
    }
}

static struct status make_moe(struct stage *s)
{
    const struct model_config *m = s->o.model;
    if (m->n_experts == 0) return status_ok();
    const struct moe_options o = {.kern = s->o.kern,
                                  .comm = s->o.comm,
                                  .layout = s->o.layout,
                                  .rank = s->o.rank,
                                  .width = m->width,
                                  .n_experts = m->n_experts,
                                  .n_chosen = m->n_chosen,
                                  .router = m->router,
                                  .policy = s->o.policy,
                                  .capacity_factor = s->o.capacity_factor,
                                  .weight_only = s->o.weight_only,
                                  .tap = s->o.tap};
    TRY(mem_alloc(&s->expert_load, (size_t)range_count(s->o.weights->layers) * m->n_experts,
                  sizeof *s->expert_load, "expert load"));
    return moe_create(&o, &s->moe);
}

struct status stage_create(const struct stage_options *o, struct stage **out)
{
    *out = NULL;
    struct stage *s = NULL;
    TRY(mem_alloc(&s, 1, sizeof *s, "stage"));
    s->o = *o;
    describe_attention(s);
    struct status st = make_workspace(s);
    if (!status_failed(&st)) st = make_moe(s);
    if (!status_failed(&st)) {
        st = kv_pool_create(range_count(o->weights->layers), o->n_kv_blocks,
                            s->attention.n_kv_heads, o->model->head_dim, o->kv_dtype, &s->kv);
    }
    if (status_failed(&st)) stage_destroy(&s);
    *out = s;
    return st;
}

void stage_destroy(struct stage **stage)
{
    if (*stage == NULL) return;
    struct stage *s = *stage;
    kv_pool_destroy(&s->kv);
    moe_destroy(&s->moe);
    mem_free(&s->expert_load);
    mem_free(&s->x);
    mem_free(&s->q);
    mem_free(&s->attended);
    mem_free(&s->k);
    mem_free(&s->v);
    mem_free(&s->gate);
    mem_free(&s->up);
    mem_free(&s->own_sums);
    mem_free(&s->cos);
    mem_free(&s->sin);
    mem_free(&s->positions);
    mem_free(&s->codes);
    mem_free(stage);
}

void stage_embed(struct stage *s, const int32_t *tokens, struct hidden *hidden)
{
    const struct weights *w = s->o.weights;
    const size_t d = s->o.model->width;
    for (size_t t = 0; t < hidden->n_rows; t++) {
        const uint32_t id = (uint32_t)tokens[t];
        float *row = hidden->h + t * d;
        if (id >= w->vocab.begin && id < w->vocab.end) {
            op_embed_row(&w->embed, id - w->vocab.begin, row);
        } else {
            memset(row, 0, d * sizeof *row);
        }
    }
    memset(hidden->bad, 0, hidden->n_rows * sizeof *hidden->bad);
    memset(hidden->dropped, 0, hidden->n_rows * sizeof *hidden->dropped);
    /* the owner's bytes are moved: all others hold zero bits */
    comm_or_u32(s->o.comm, COMM_TP, (uint32_t *)hidden->h, hidden->n_rows * d);
}

/* Rows x [n_rows, n] as linears read them. */
static struct act_rows input_of(const struct stage *s, const float *x, size_t n_rows, size_t n)
{
    return (struct act_rows){.x = x, .stride = n, .n_rows = n_rows, .n = n, .memory = s->codes};
}

/* One column-parallel linear: y [T, N] = x w^T, this rank's outputs. */
struct column {
    const struct packed *w;
    float *y;
};

/* Column-parallel linears of one input, at most three, in one op unless their codes differ. */
static void column_parallel(struct stage *s, const struct column *columns, size_t n,
                            struct act_rows *in)
{
    struct linear_group groups[3];
    struct linear_args args[3];
    size_t n_args = 0;
    for (size_t i = 0; i < n; i++) {
        const struct packed *w = columns[i].w;
        if (w->n_out == 0) continue;
        if (act_codes_replace(in, w)) {
            op_linears(s->o.kern, args, n_args);
            n_args = 0;
        }
        groups[n_args] = (struct linear_group){.w = w, .row0 = 0, .n_rows = in->n_rows};
        args[n_args] = (struct linear_args){.groups = &groups[n_args],
                                            .n_groups = 1,
                                            .x = in->x,
                                            .x_stride = in->stride,
                                            .xq = act_codes(s->o.kern, in, w),
                                            .y = columns[i].y,
                                            .y_stride = w->n_out};
        n_args++;
    }
    op_linears(s->o.kern, args, n_args);
    comm_poll(s->o.comm);
}

/* h [T, D] += x w^T, a row-parallel linear: the tp ranks' leaves summed on the integer grid. */
static void row_parallel(struct stage *s, const struct packed *w, const float *x,
                         struct hidden *hidden)
{
    const size_t n_rows = hidden->n_rows, d = s->o.model->width;
    if (w->n_in > 0) {
        struct act_rows in = input_of(s, x, n_rows, w->n_in);
        const struct linear_group group = {.w = w, .row0 = 0, .n_rows = n_rows};
        const struct linear_args args = {.groups = &group,
                                         .n_groups = 1,
                                         .x = x,
                                         .x_stride = w->n_in,
                                         .xq = act_codes(s->o.kern, &in, w),
                                         .sums = s->sums};
        op_linear_leaf(s->o.kern, &args);
    } else {
        memset(s->sums, 0, n_rows * (d + 1) * sizeof *s->sums);
    }
    const struct grid_sum sum = {.kern = s->o.kern,
                                 .sums = s->sums,
                                 .n_rows = n_rows,
                                 .n_out = d,
                                 .grid_bits = w->grid_bits,
                                 .y = hidden->h,
                                 .bad = hidden->bad};
    grid_sum_add(&sum, s->o.comm, COMM_TP);
    comm_poll(s->o.comm);
}

static void show(const struct stage *s, enum tap_site site, const float *x, size_t n_rows, size_t n)
{
    if (s->o.tap != NULL) s->o.tap->see(s->o.tap->ctx, site, 0, x, n_rows, n);
}

static void attention_block(struct stage *s, uint32_t layer, const struct layer_weights *w,
                            const struct seq_rows *seqs, size_t n_seqs, struct hidden *hidden)
{
    const size_t n_rows = hidden->n_rows;
    op_rmsnorm(s->o.kern, hidden->h, w->attn_norm, n_rows, s->o.model->width, s->o.model->norm_eps,
               s->x);
    show(s, TAP_ATTENTION, s->x, n_rows, s->o.model->width);
    struct act_rows in = input_of(s, s->x, n_rows, s->o.model->width);
    const struct column qkv[] = {{&w->q, s->q}, {&w->k, s->k}, {&w->v, s->v}};
    column_parallel(s, qkv, 3, &in);
    const struct attention_work work = {.q = s->q,
                                        .k = s->k,
                                        .v = s->v,
                                        .out = s->attended,
                                        .q_norm = w->q_norm,
                                        .k_norm = w->k_norm,
                                        .cos = s->cos,
                                        .sin = s->sin,
                                        .kv = kv_pool_layer(s->kv, layer),
                                        .seqs = seqs,
                                        .n_seqs = n_seqs,
                                        .n_rows = n_rows};
    attention_run(s->o.kern, &s->attention, &work);
    show(s, TAP_O, s->attended, n_rows, w->o.n_in);
    row_parallel(s, &w->o, s->attended, hidden);
}

static void dense_block(struct stage *s, const struct layer_weights *w, struct hidden *hidden)
{
    const size_t n_rows = hidden->n_rows, f = w->gate.n_out;
    struct act_rows in = input_of(s, s->x, n_rows, s->o.model->width);
    const struct column gate_up[] = {{&w->gate, s->gate}, {&w->up, s->up}};
    column_parallel(s, gate_up, 2, &in);
    if (f > 0) op_swiglu(s->o.kern, s->gate, s->up, f, n_rows, f, s->gate, f);
    show(s, TAP_DOWN, s->gate, n_rows, f);
    row_parallel(s, &w->down, s->gate, hidden);
}

static struct status ffn_block(struct stage *s, uint32_t layer, const struct layer_weights *w,
                               struct hidden *hidden)
{
    op_rmsnorm(s->o.kern, hidden->h, w->ffn_norm, hidden->n_rows, s->o.model->width,
               s->o.model->norm_eps, s->x);
    show(s, TAP_FFN, s->x, hidden->n_rows, s->o.model->width);
    if (!w->is_moe) {
        dense_block(s, w, hidden);
        return status_ok();
    }
    const struct moe_weights moe = {
        .router = &w->router, .gate = w->expert_gate, .up = w->expert_up, .down = w->expert_down};
    return moe_forward(s->moe, &moe, s->x, hidden->n_rows, hidden->h, hidden->bad, hidden->dropped,
                       s->expert_load + (size_t)layer * s->o.model->n_experts);
}

/* Positions of all rows, and their rotations, which all layers share. */
static void rotate_rows(struct stage *s, const struct seq_rows *seqs, size_t n_seqs, size_t n_rows)
{
    for (size_t i = 0; i < n_seqs; i++) {
        for (size_t r = 0; r < seqs[i].n_rows; r++) {
            s->positions[seqs[i].row0 + r] = (int32_t)(seqs[i].pos0 + r);
        }
    }
    op_rope_table(s->positions, n_rows, s->o.weights->inv_freq, s->o.model->head_dim, 1.0f, s->cos,
                  s->sin);
}

struct status stage_forward(struct stage *s, const struct seq_rows *seqs, size_t n_seqs,
                            struct hidden *hidden)
{
    assert(hidden->n_rows <= s->o.max_rows);
    rotate_rows(s, seqs, n_seqs, hidden->n_rows);
    const uint32_t n_layers = range_count(s->o.weights->layers);
    for (uint32_t l = 0; l < n_layers; l++) {
        const struct layer_weights *w = &s->o.weights->layers_of_stage[l];
        comm_mark_layer(s->o.comm, (int32_t)(s->o.weights->layers.begin + l));
        attention_block(s, l, w, seqs, n_seqs, hidden);
        TRY(ffn_block(s, l, w, hidden));
    }
    comm_mark_layer(s->o.comm, FLIGHT_NO_LAYER);
    return status_ok();
}

void stage_final_norm(struct stage *s, const struct hidden *hidden, const size_t *rows, size_t n,
                      float *out)
{
    const size_t d = s->o.model->width;
    for (size_t i = 0; i < n; i++) memcpy(out + i * d, hidden->h + rows[i] * d, d * sizeof *out);
    op_rmsnorm(s->o.kern, out, s->o.weights->final_norm, n, d, s->o.model->norm_eps, out);
}

const uint64_t *stage_expert_load(const struct stage *s)
{
    return s->expert_load;
}

uint64_t stage_kv_bytes(const struct stage *s)
{
    return s->kv->n_bytes;
}

uint64_t stage_workspace_bytes(const struct stage *s)
{
    return s->workspace_bytes;
}
