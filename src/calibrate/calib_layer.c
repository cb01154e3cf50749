/* Loads one layer: its weights, its stage, and the list of matrices that are quantized together. */
#include "calibrate/calibrate_private.h"

#include "base/mem.h"
#include "kernels/ops.h"
#include "quant/quantize.h"

#include <stdio.h>

enum { SEARCH_ROWS = 512 }; /* outputs of a linear that a search uses, at most */

/* ---- members ---- */

static float element(const struct packed *w, size_t at)
{
    switch (w->dtype) {
    case DTYPE_F16:
        return f32_from_f16(((const uint16_t *)w->data)[at]);
    case DTYPE_BF16:
        return f32_from_bf16(((const uint16_t *)w->data)[at]);
    default:
        return ((const float *)w->data)[at];
    }
}

void calib_member_rows(const struct calib_member *m, size_t row0, size_t n_rows, float *out)
{
    const size_t n_in = m->w->n_in;
    for (size_t r = 0; r < n_rows; r++) {
        const size_t row = row0 + r;
        const size_t first = row / PANEL_COLUMNS * n_in * PANEL_COLUMNS + row % PANEL_COLUMNS;
        for (size_t k = 0; k < n_in; k++) {
            float x = element(m->w, first + k * PANEL_COLUMNS);
            if (m->s_in != NULL) x *= m->s_in[k];
            if (m->s_out != NULL) x /= m->s_out[row];
            out[r * n_in + k] = x;
        }
    }
}

struct status calib_some_rows(const struct calib_member *m, float **rows, size_t *n)
{
    const size_t n_out = m->w->n_out;
    *n = n_out < SEARCH_ROWS ? n_out : SEARCH_ROWS;
    TRY(mem_alloc(rows, *n * m->w->n_in, sizeof **rows, "rows for the search"));
    for (size_t i = 0; i < *n; i++) {
        calib_member_rows(m, i * n_out / *n, 1, *rows + i * m->w->n_in);
    }
    return status_ok();
}

/* ---- units ---- */

/* Collects the layer's tensors by role from the list of a rank's weights. */
struct finder {
    const struct ckpt *ckpt;
    const struct ckpt_tensor *of_role[WEIGHT_ROLE_COUNT];
};

static struct status find_one(void *ctx, const struct weight_spec *spec)
{
    struct finder *f = ctx;
    f->of_role[spec->role] = ckpt_find(f->ckpt, spec->name);
    return status_ok();
}

static void add_unit(struct calib *c, enum tap_site site, uint32_t expert)
{
    if (expert == 0) c->unit_of[site] = c->n_units;
    c->units[c->n_units++] =
        (struct calib_unit){.site = site, .expert = expert, .members = c->members + c->n_members};
}

/* Adds a matrix to the last unit. */
static void calib_layer_add_member(struct calib *c, const struct finder *f, enum weight_role role,
                                   struct packed *w)
{
    struct calib_unit *u = &c->units[c->n_units - 1];
    const struct ckpt_tensor *t = f->of_role[role];
    struct calib_member m = {.role = role, .w = w, .tensor = t};
    /* whatever the policy says, the router, the sigmoid gate of the shared experts' output and the
     * weights of index heads are not quantized */
    if (role != WEIGHT_ROUTER && role != WEIGHT_SHARED_MIX && role != WEIGHT_INDEX_MIX)
        m.format = c->o->format_of(c->o->format_ctx, t);
    u->members[u->n_members++] = m;
    u->is_quantized = u->is_quantized || m.format.kind != QUANT_NONE;
    u->n_in = w->n_in;
    c->n_members++;
}

static void add_attention(struct calib *c, const struct finder *f, struct layer *w)
{
    const struct arch *m = c->o->model;
    add_unit(c, TAP_ATTENTION, 0);
    if (m->attn.kv_lora == 0) {
        calib_layer_add_member(c, f, WEIGHT_Q, &w->attention.q);
        calib_layer_add_member(c, f, WEIGHT_K, &w->attention.k);
        calib_layer_add_member(c, f, WEIGHT_V, &w->attention.v);
    } else {
        calib_layer_add_member(c, f, m->attn.q_lora > 0 ? WEIGHT_Q_A : WEIGHT_Q,
                               m->attn.q_lora > 0 ? &w->attention.latent.q_a : &w->attention.q);
        calib_layer_add_member(c, f, WEIGHT_KV_A, &w->attention.latent.kv_a);
        calib_layer_add_member(c, f, WEIGHT_K_ROPE, &w->attention.latent.k_rope);
    }
    if (arch_has_index(m, c->layer)) {
        const bool has_blocks = m->index.block > 0;
        calib_layer_add_member(c, f, WEIGHT_INDEX_K, &w->attention.index.k);
        calib_layer_add_member(c, f, has_blocks ? WEIGHT_INDEX_Q : WEIGHT_INDEX_MIX,
                               has_blocks ? &w->attention.index.q : &w->attention.index.mix);
    }
    if (m->attn.q_lora > 0) {
        add_unit(c, TAP_Q_LATENT, 0);
        calib_layer_add_member(c, f, WEIGHT_Q, &w->attention.q);
        if (arch_has_index(m, c->layer))
            calib_layer_add_member(c, f, WEIGHT_INDEX_Q, &w->attention.index.q);
    }
    add_unit(c, TAP_O, 0);
    calib_layer_add_member(c, f, WEIGHT_O, &w->attention.o);
}

static void add_experts(struct calib *c, const struct finder *f, struct layer *w)
{
    for (uint32_t e = 0; e < w->moe.n_experts; e++) {
        add_unit(c, TAP_EXPERT, e);
        calib_layer_add_member(c, f, WEIGHT_EXPERT_GATE, &w->moe.gate[e]);
        calib_layer_add_member(c, f, WEIGHT_EXPERT_UP, &w->moe.up[e]);
        add_unit(c, TAP_EXPERT_DOWN, e);
        calib_layer_add_member(c, f, WEIGHT_EXPERT_DOWN, &w->moe.down[e]);
    }
}

/* Adds the units of the FFN. The router and the shared experts read the same rows; each expert
 * reads some of them. */
static void add_ffn(struct calib *c, const struct finder *f, struct layer *w)
{
    const bool shared = w->is_moe && c->o->model->moe.shared_ffn > 0;
    add_unit(c, TAP_FFN, 0);
    if (w->is_moe) calib_layer_add_member(c, f, WEIGHT_ROUTER, &w->moe.router);
    if (w->ffn.mix.n_out > 0) calib_layer_add_member(c, f, WEIGHT_SHARED_MIX, &w->ffn.mix);
    if (!w->is_moe || shared) {
        calib_layer_add_member(c, f, shared ? WEIGHT_SHARED_GATE : WEIGHT_GATE, &w->ffn.gate);
        if (w->ffn.up.n_out > 0)
            calib_layer_add_member(c, f, shared ? WEIGHT_SHARED_UP : WEIGHT_UP, &w->ffn.up);
        add_unit(c, TAP_DOWN, 0);
        calib_layer_add_member(c, f, shared ? WEIGHT_SHARED_DOWN : WEIGHT_DOWN, &w->ffn.down);
    }
    if (w->is_moe) add_experts(c, f, w);
}

static struct status add_units(struct calib *c, struct layout_place place)
{
    enum { MEMBERS = 13, UNITS = 5 }; /* not counting experts */
    struct layer *w = &c->weights->stage_layers[0];
    const size_t n_experts = w->is_moe ? w->moe.n_experts : 0;
    struct finder f = {.ckpt = c->o->ckpt};
    TRY(mem_alloc(&c->members, MEMBERS + 3 * n_experts, sizeof *c->members, "a layer's matrices"));
    TRY(mem_alloc(&c->units, UNITS + 2 * n_experts, sizeof *c->units, "a layer's linears"));
    TRY(weights_list(c->layout, place, find_one, &f));
    for (int site = 0; site < TAP_SITE_COUNT; site++) c->unit_of[site] = CALIB_NO_UNIT;
    add_attention(c, &f, w);
    add_ffn(c, &f, w);
    size_t widest = 0;
    for (uint32_t i = 0; i < c->n_units; i++) {
        if (c->units[i].n_in > widest) widest = c->units[i].n_in;
    }
    return mem_alloc(&c->full, widest * widest, sizeof *c->full, "second moments");
}

struct calib_unit *calib_unit_of(struct calib *c, enum tap_site site, uint32_t expert)
{
    if (c->unit_of[site] == CALIB_NO_UNIT) return NULL;
    return &c->units[c->unit_of[site] + 2 * expert];
}

struct calib_member *calib_member_of(const struct calib_unit *u, enum weight_role role)
{
    for (uint32_t i = 0; i < u->n_members; i++) {
        if (u->members[i].role == role) return &u->members[i];
    }
    return NULL;
}

/* ---- load ---- */

static struct status make_stage(struct calib *c, uint32_t rank)
{
    static const struct model_flags flags = {.kv_dtype = DTYPE_F16};
    static const struct capacity_flags dropless = {.policy = CAPACITY_DROPLESS};
    const struct stage_options options = {
        .model = c->o->model,
        .layout = c->layout,
        .weights = c->weights,
        .kern = c->o->kern,
        .comm = c->o->comm,
        .rank = rank,
        .max_rows = c->longest,
        .n_kv_blocks = (uint32_t)((c->longest + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS),
        .flags = &flags,
        .capacity = &dropless,
        .tap = &c->tap};
    return stage_create(&options, &c->stage);
}

struct status calib_load(struct calib *c, uint32_t layer)
{
    const uint32_t rank = layout_rank_of(c->layout, 0, layer, 0);
    const struct layout_place place = layout_place_of(c->layout, rank);
    c->layer = layer;
    const struct weights_source source = {.model = c->o->model,
                                          .layout = c->layout,
                                          .place = place,
                                          .kern = c->o->kern,
                                          .ckpt = c->o->ckpt,
                                          .comm = c->o->comm};
    TRY(weights_load(&source, &c->weights, NULL));
    struct status st = add_units(c, place);
    if (!status_failed(&st)) st = make_stage(c, rank);
    return comm_agree(c->o->comm, st);
}

void calib_unload(struct calib *c)
{
    calib_forget(c);
    for (uint32_t i = 0; i < c->n_members; i++) {
        quant_block_destroy(&c->members[i].block);
        mem_free(&c->members[i].values);
    }
    for (uint32_t i = 0; i < c->n_units; i++) mem_free(&c->units[i].s);
    mem_free(&c->v_scales);
    stage_destroy(&c->stage);
    weights_destroy(&c->weights);
    mem_free(&c->members);
    mem_free(&c->units);
    mem_free(&c->full);
    c->n_members = c->n_units = 0;
}
