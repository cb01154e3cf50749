/* Loads adapters: finds the linear of each tensor, cuts A and B as the layout cuts the linear, and
 * packs them. */
#include "weights/adapters.h"

#include "arch/arch_rope.h"
#include "base/ends_with.h"
#include "base/json.h"
#include "base/mem.h"
#include "kernels/ops.h"
#include "weights/adapters_private.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROLES_MAX = 2 /* of one linear: those of kv_a_proj_with_mqa, or of gate_up_proj */ };

static const char *const pair_ends[2] = {ADAPTER_A_END, ADAPTER_B_END};

/* ---- the linear of a tensor ---- */

static struct status find_linear(const struct adapter_loading *ld, const char *linear,
                                 struct adapter_target *t)
{
    const struct arch *m = ld->from->model;
    size_t from = 0;
    const bool in_layer = adapter_layer_index(m, linear, &t->layer);
    t->linear = in_layer ? adapter_row_of(m, t->layer, linear, &from) : NULL;
    const char *why =
        t->linear != NULL ? adapter_linear_refusal(m, t->linear) : adapter_name_refusal(linear);
    if (why == NULL) {
        (void)adapter_site_of(t->linear->role, &t->site);
        return status_ok();
    }
    return status_make(STATUS_INPUT, "%s: tensor %s: %s (%s)", ckpt_path(ld->ckpt), t->tensor->name,
                       why, m->family->title);
}

/* ---- checks ---- */

/* Checks the type of one tensor of a pair, and the shapes of both: A [r, inputs] and
 * B [outputs, r]. */
static struct status check_pair(const struct adapter_loading *ld, const struct adapter_target *t,
                                const struct ckpt_tensor *other)
{
    const struct ckpt_tensor *a = t->is_b ? other : t->tensor, *b = t->is_b ? t->tensor : other;
    const struct arch *m = ld->from->model;
    const uint64_t n_in = arch_dim_size(m, t->linear->cols);
    const struct weight_spec s = weights_slab(&ld->cut, t->linear);
    const bool is_joined = adapter_is_joined(t->tensor, t->linear);
    const bool has_up = is_joined && t->linear->role != WEIGHT_EXPERT_DOWN;
    const uint64_t n_out = s.n_rows * (has_up ? 2 : 1);
    const uint64_t r = adapter_rank_of(m, t->linear, a, false), n_outer = is_joined ? 1 : s.n_outer;
    const uint64_t n_ranks = is_joined ? r * s.n_outer : r; /* columns of B */
    const uint32_t n_dims = s.is_expert && !is_joined ? 3 : 2;
    const enum dtype dtype = t->tensor->dtype;
    const bool is_plain = t->tensor->quant.kind == QUANT_NONE &&
                          (dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16);
    if (!is_plain || t->tensor->n_dims != n_dims || other->n_dims != n_dims)
        return status_make(STATUS_INPUT, "%s: tensor %s: expected %s of f32, f16 or bf16",
                           ckpt_path(ld->ckpt), t->tensor->name,
                           s.is_expert ? "a matrix for each expert" : "a matrix");
    if (n_dims == 3 && t->tensor->dims[0] != n_outer)
        return status_make(STATUS_INPUT, "%s: tensor %s: expected %llu experts, found %llu",
                           ckpt_path(ld->ckpt), t->tensor->name, (unsigned long long)n_outer,
                           (unsigned long long)t->tensor->dims[0]);
    if (a->n_cols == n_in && b->n_rows == n_outer * n_out && a->n_rows == n_outer * n_ranks &&
        b->n_cols == n_ranks && r > 0 && r <= UINT16_MAX)
        return status_ok();
    return status_make(
        STATUS_INPUT,
        "%s: tensor %s: the model asks for A [r, %llu] and B [%llu, r], found [%llu, %llu] and "
        "[%llu, %llu]",
        ckpt_path(ld->ckpt), t->tensor->name, (unsigned long long)n_in, (unsigned long long)n_out,
        (unsigned long long)a->n_rows, (unsigned long long)a->n_cols, (unsigned long long)b->n_rows,
        (unsigned long long)b->n_cols);
}

static struct status scaling_of(const struct adapter_loading *ld, const char *linear, double *out)
{
    const struct js_node *root = js_root(ld->config);
    const struct js_node *own = js_get(js_get(root, "scalings"), linear);
    if (js_number(own != NULL ? own : js_get(root, "scaling"), out) && isfinite(*out))
        return status_ok();
    return status_make(STATUS_INPUT, "%s: config: scaling of %s: expected a number",
                       ckpt_path(ld->ckpt), linear);
}

/* Refuses a model's weight that was quantized by AWQ or SmoothQuant: these scale the linear's
 * inputs, for which the adapter was not trained. */
static struct status check_weight(const struct adapter_loading *ld, const struct adapter_target *t)
{
    char name[CKPT_NAME_MAX];
    arch_tensor_name(t->linear, ld->from->model->family, t->layer, name, sizeof name);
    const struct ckpt_tensor *w = ckpt_find(ld->from->ckpt, name);
    const char *method = w != NULL && w->method != NULL ? w->method : "";
    if (strcmp(method, "awq") != 0 && strcmp(method, "smoothquant") != 0) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: tensor %s: the model's weight was quantized by %s, which scales the "
                       "linear's inputs",
                       ckpt_path(ld->ckpt), t->tensor->name, method);
}

/* Refuses a tensor whose linear has another name in transformers than in the model's checkpoint, if
 * the file also has an A under the checkpoint's name. */
static struct status check_alone(const struct adapter_loading *ld, const struct adapter_target *t,
                                 const char *linear)
{
    char own[CKPT_NAME_MAX + 32];
    arch_tensor_name(t->linear, ld->from->model->family, t->layer, own, CKPT_NAME_MAX);
    own[strlen(own) - strlen(".weight")] = '\0';
    const bool is_renamed = strcmp(own, linear) != 0;
    strcat(own, pair_ends[0]);
    if (!is_renamed || ckpt_find(ld->ckpt, own) == NULL) return status_ok();
    return status_make(STATUS_INPUT, "%s: tensor %s: %s is of the same linear", ckpt_path(ld->ckpt),
                       t->tensor->name, own);
}

/* Sets `linear` to the name of the linear to which t->tensor belongs, finds it in the model, and
 * checks both. */
static struct status target_find(const struct adapter_loading *ld, struct adapter_target *t,
                                 char linear[CKPT_NAME_MAX + 32])
{
    char module[CKPT_NAME_MAX + 1], other[CKPT_NAME_MAX + 32];
    const char *name = t->tensor->name;
    if (!adapter_linear_name(ld->from->model, ld->ckpt, t->tensor, linear, &t->is_b))
        return status_make(STATUS_INPUT, "%s: tensor %s: expected A or B of a linear",
                           ckpt_path(ld->ckpt), name);
    snprintf(module, sizeof module, "%.*s", (int)(strlen(name) - strlen(pair_ends[0])), name);
    snprintf(other, sizeof other, "%s%s", module, pair_ends[t->is_b ? 0 : 1]);
    TRY(find_linear(ld, linear, t));
    TRY(check_alone(ld, t, linear));
    if (ckpt_find(ld->ckpt, other) == NULL)
        return status_make(STATUS_INPUT, "%s: tensor %s: expected %s beside it",
                           ckpt_path(ld->ckpt), name, other);
    TRY(check_pair(ld, t, ckpt_find(ld->ckpt, other)));
    TRY(scaling_of(ld, module, &t->scaling));
    return check_weight(ld, t);
}

/* ---- a rank's slabs ---- */

struct status adapter_take_leaves(const struct adapter_loading *ld, const struct adapter_target *t,
                                  struct packed *a)
{
    char name[CKPT_NAME_MAX];
    arch_tensor_name(t->linear, ld->from->model->family, t->layer, name, sizeof name);
    const struct ckpt_tensor *w = ckpt_find(ld->from->ckpt, name);
    if (w == NULL)
        return status_make(STATUS_INPUT, "%s: tensor %s is missing", ckpt_path(ld->from->ckpt),
                           name);
    a->leaf = w->leaf_elems;
    a->grid_bits = w->grid_bits;
    return status_ok();
}

/* Makes k_b and v_b for the heads of the n_rows rows of kv_b_proj that this rank holds. */
static struct status heads_cut(struct adapter_loading *ld, const struct adapter_target *t,
                               uint32_t n_rows)
{
    const struct arch *m = ld->from->model;
    const uint32_t most = m->attn.kv_lora > m->attn.value_dim ? m->attn.kv_lora : m->attn.value_dim;
    if (most > ld->max_outputs) ld->max_outputs = most;
    return adapter_heads_make(m, n_rows / arch_dim_unit(m, DIM_KV_B), adapter_target_rank(ld, t),
                              adapter_layer_of(ld, t));
}

/* Cuts a tensor as its linear is cut, and sets the shape of its place in the adapter's layer, if
 * this rank holds a part of it. */
static struct status target_cut(struct adapter_loading *ld, struct adapter_target *t)
{
    const struct weight_spec s = weights_slab(&ld->cut, t->linear);
    const bool row_parallel = t->linear->has_leaves;
    const struct range layers = ld->base->layers;
    if (t->layer < layers.begin || t->layer >= layers.end) return status_ok();
    if (adapter_is_of_experts(t)) return adapter_experts_cut(ld, t, &s);
    struct adapter_linear *linear =
        t->site == ADAPTER_K_B ? NULL : &adapter_layer_of(ld, t)->at[t->site];
    if (linear != NULL) linear->rank = adapter_target_rank(ld, t);
    if (!row_parallel && range_count(s.rows) == 0) return status_ok();
    t->rows = t->is_b && !row_parallel ? s.rows : adapter_all_of(t->tensor->n_rows);
    t->cols = !t->is_b && row_parallel ? s.cols : adapter_all_of(t->tensor->n_cols);
    if (linear == NULL) return heads_cut(ld, t, range_count(s.rows));
    t->packed = t->is_b ? &linear->b : &linear->a;
    *t->packed = (struct packed){
        .dtype = DTYPE_F32, .n_out = range_count(t->rows), .n_in = range_count(t->cols)};
    if (t->is_b && t->packed->n_out > ld->max_outputs) ld->max_outputs = t->packed->n_out;
    return !t->is_b && row_parallel ? adapter_take_leaves(ld, t, t->packed) : status_ok();
}

static size_t target_bytes(const struct adapter_loading *ld, const struct adapter_target *t)
{
    if (range_count(t->rows) == 0 || range_count(t->cols) == 0) return 0;
    if (adapter_is_of_experts(t)) return adapter_experts_place(ld, t, NULL);
    if (t->packed == NULL) return adapter_heads_place(adapter_layer_of(ld, t), t->is_b, NULL);
    return adapter_packed_room(t->packed);
}

static void target_place(const struct adapter_loading *ld, const struct adapter_target *t,
                         char *memory)
{
    if (adapter_is_of_experts(t)) {
        adapter_experts_place(ld, t, memory);
    } else if (t->packed == NULL) {
        adapter_heads_place(adapter_layer_of(ld, t), t->is_b, memory);
    } else {
        t->packed->data = memory;
    }
}

/* Gives all targets their memory in one block, and lists the slabs to read. */
static struct status targets_place(struct adapter_loading *ld, struct weights_block *block)
{
    for (size_t i = 0; i < ld->n_targets; i++) block->n_bytes += target_bytes(ld, &ld->targets[i]);
    TRY(mem_alloc(&ld->wants, ld->n_targets, sizeof *ld->wants, "an adapter"));
    TRY(mem_alloc(&ld->want_target, ld->n_targets, sizeof *ld->want_target, "an adapter"));
    if (block->n_bytes == 0) return status_ok();
    TRY(mem_map(&block->base, block->n_bytes, "an adapter"));
    for (size_t i = 0; i < ld->n_targets; i++) {
        const struct adapter_target *t = &ld->targets[i];
        if (target_bytes(ld, t) == 0) continue;
        target_place(ld, t, (char *)block->base + block->n_used);
        block->n_used += target_bytes(ld, t);
        ld->want_target[ld->n_wants] = (uint32_t)i;
        ld->wants[ld->n_wants++] = (struct slab_want){.tensor = t->tensor,
                                                      .n_outer = adapter_n_outer(ld, t),
                                                      .row0 = t->rows.begin,
                                                      .n_rows = range_count(t->rows),
                                                      .col0 = t->cols.begin,
                                                      .n_cols = range_count(t->cols)};
    }
    return status_ok();
}

/* ---- reading ---- */

/* True for B of a q or k whose rows convert has reordered. */
static bool is_reordered(const struct adapter_loading *ld, const struct adapter_target *t)
{
    const bool is_rotated = t->site == ADAPTER_Q || t->site == ADAPTER_K;
    return t->is_b && is_rotated && arch_rope_in_pairs(ld->from->model->family);
}

/* Packs f32 rows [n_rows, n_in], of which the first is the slab's row `row0`. */
static void put_adapter_rows(const struct adapter_loading *ld, const struct adapter_target *t,
                             const float *values, size_t row0, size_t n_rows)
{
    const struct arch *m = ld->from->model;
    const bool one_by_one = is_reordered(ld, t);
    const size_t n_in = range_count(t->cols);
    if (t->packed == NULL) {
        const struct matrix_rows all = {
            .data = values, .stride_bytes = n_in * sizeof *values, .row0 = row0, .n = n_rows};
        adapter_heads_take(ld->from->kern, adapter_layer_of(ld, t), t->is_b, &all);
        return;
    }
    for (size_t i = 0; i < n_rows; i += one_by_one ? 1 : n_rows) {
        const uint64_t row = row0 + i;
        const struct matrix_rows rows = {
            .data = values + i * n_in,
            .stride_bytes = n_in * sizeof *values,
            .row0 = one_by_one ? arch_rope_unpaired(row, m->attn.query_dim, m->attn.rotary) : row,
            .n = one_by_one ? 1 : n_rows};
        op_pack_rows(ld->from->kern, t->packed, &rows);
    }
}

/* Takes rows from the loader, as its sink; ctx: the loading. */
static struct status take_adapter_rows(void *ctx, const struct slab_piece *piece)
{
    const struct adapter_loading *ld = ctx;
    const struct adapter_target *t = &ld->targets[ld->want_target[piece->want]];
    const size_t n_in = range_count(t->cols), n = (size_t)piece->n_rows * n_in;
    float *values = NULL;
    TRY(mem_alloc(&values, n, sizeof *values, "rows of an adapter"));
    for (size_t r = 0; r < piece->n_rows; r++)
        dtype_to_f32(t->tensor->dtype, (const char *)piece->data + r * piece->stride_bytes, n_in,
                     values + r * n_in);
    for (size_t i = 0; t->is_b && i < n; i++) values[i] = (float)(t->scaling * (double)values[i]);
    const size_t row0 = (size_t)(piece->row - t->rows.begin), n_rows = (size_t)piece->n_rows;
    struct status st = status_ok();
    if (adapter_is_of_experts(t))
        st =
            adapter_experts_take(ld, t, piece->outer, &(struct adapter_rows){values, row0, n_rows});
    else
        put_adapter_rows(ld, t, values, row0, n_rows);
    mem_free(&values);
    return st;
}

static struct status config_open(struct adapter_loading *ld)
{
    size_t n;
    const char *text = ckpt_config_json(ld->ckpt, &n);
    TRY(status_wrap(js_parse(text, n, "config", &ld->config), "%s", ckpt_path(ld->ckpt)));
    const char *type = js_string(js_get(js_root(ld->config), "adapter_type"), NULL);
    if (type != NULL && strcmp(type, "lora") == 0) return status_ok();
    return status_make(
        STATUS_INPUT,
        "%s: is not an adapter's checkpoint; expected one that shoal convert made of "
        "a folder with adapter_config.json",
        ckpt_path(ld->ckpt));
}

/* Adds the targets of tensor i of the adapter's file: one for each role in the model's tensor. */
static struct status targets_add(struct adapter_loading *ld, size_t i)
{
    const struct arch *m = ld->from->model;
    char linear[CKPT_NAME_MAX + 32];
    size_t from = 0;
    struct adapter_target t = {.tensor = ckpt_tensor_at(ld->ckpt, i)};
    TRY(target_find(ld, &t, linear));
    const uint32_t rank = adapter_target_rank(ld, &t);
    uint32_t *max_rank = adapter_is_of_experts(&t) ? &ld->max_expert_rank : &ld->max_rank;
    if (rank > *max_rank) *max_rank = rank;
    while ((t.linear = adapter_row_of(m, t.layer, linear, &from)) != NULL) {
        assert(ld->n_targets < ROLES_MAX * ckpt_tensor_count(ld->ckpt));
        struct adapter_target *to = &ld->targets[ld->n_targets++];
        *to = t;
        (void)adapter_site_of(t.linear->role, &to->site);
        TRY(target_cut(ld, to));
    }
    return status_ok();
}

/* Does the part of a rank's loading that reads no weights. */
static struct status adapter_prepare(struct adapter_loading *ld, const char *path,
                                     struct weights_block *block)
{
    TRY(ckpt_open(path, &ld->ckpt));
    TRY(config_open(ld));
    ld->adapter->digest = ckpt_digest(ld->ckpt);
    const size_t n = ckpt_tensor_count(ld->ckpt);
    TRY(mem_alloc(&ld->targets, ROLES_MAX * n, sizeof *ld->targets, "an adapter"));
    TRY(mem_alloc(&ld->adapter->layers, range_count(ld->base->layers), sizeof *ld->adapter->layers,
                  "an adapter"));
    for (size_t i = 0; i < n; i++) TRY(targets_add(ld, i));
    return targets_place(ld, block);
}

static struct status adapter_read(struct adapter_loading *ld)
{
    const struct weights_source *from = ld->from;
    const struct loader_job job = {.c = ld->ckpt,
                                   .host = comm_handle(from->comm, COMM_HOST),
                                   .team = comm_team(from->comm),
                                   .wants = ld->wants,
                                   .n_wants = ld->n_wants,
                                   .sink = take_adapter_rows,
                                   .ctx = ld,
                                   .cache = from->cache,
                                   .free_bytes = from->free_bytes};
    return loader_run(&job, NULL);
}

/* **Collective (world)**. Loads one adapter and appends it to `to`. */
static struct status adapter_load(const struct weights_source *from, const struct weights *base,
                                  const struct adapter_file *file, struct adapters *to)
{
    struct weights_block *block = &to->blocks[to->n_blocks++];
    struct adapter_loading ld = {.from = from,
                                 .base = base,
                                 .adapter = &to->all[to->n++],
                                 .cut = weights_cut_of(from->layout, from->place)};
    ld.adapter->name = file->name;
    struct status st = comm_agree(from->comm, adapter_prepare(&ld, file->path, block));
    if (!status_failed(&st)) st = loader_check_same(ld.ckpt, comm_handle(from->comm, COMM_WORLD));
    if (!status_failed(&st)) st = comm_agree(from->comm, adapter_read(&ld));
    if (ld.max_rank > to->max_rank) to->max_rank = ld.max_rank;
    if (ld.max_expert_rank > to->max_expert_rank) to->max_expert_rank = ld.max_expert_rank;
    if (ld.max_outputs > to->max_outputs) to->max_outputs = ld.max_outputs;
    to->n_bytes += block->n_used;
    mem_free(&ld.wants);
    mem_free(&ld.want_target);
    mem_free(&ld.targets);
    js_destroy(&ld.config);
    ckpt_close(&ld.ckpt);
    return st;
}

static struct status adapters_alloc(size_t n, struct adapters **out)
{
    TRY(mem_alloc(out, 1, sizeof **out, "adapters"));
    TRY(mem_alloc(&(*out)->all, n, sizeof *(*out)->all, "adapters"));
    return mem_alloc(&(*out)->blocks, n, sizeof *(*out)->blocks, "adapters");
}

/* Returns the bytes of moe's arrays for a row of an expert (struct adapted). */
static uint64_t expert_row_bytes(const struct arch *m, const struct adapters *a)
{
    enum { LISTS = 112 }; /* its adapter, sent, received and sorted; number, pair, group, counter */
    const uint64_t wide = m->width > m->moe.ffn ? m->width : m->moe.ffn, r = a->max_expert_rank;
    const uint64_t floats = 2 * (wide > r ? wide : r) + r;
    return LISTS + floats * sizeof(float) + (r + 1) * sizeof(int64_t);
}

struct status adapters_load(const struct weights_source *from, const struct weights *base,
                            const struct adapter_file *files, size_t n, struct adapters **out)
{
    assert(from->kern->device == NULL);
    struct adapters *a = NULL;
    *out = NULL;
    struct status st = comm_agree(from->comm, adapters_alloc(n, &a));
    if (!status_failed(&st)) a->n_layers = range_count(base->layers);
    for (size_t i = 0; !status_failed(&st) && i < n; i++)
        st = adapter_load(from, base, &files[i], a);
    if (status_failed(&st)) adapters_destroy(&a);
    if (a != NULL && a->max_expert_rank > 0) a->expert_row_bytes = expert_row_bytes(from->model, a);
    *out = a;
    return st;
}

static void adapter_free_layers(struct adapter *a, size_t n)
{
    for (size_t i = 0; a->layers != NULL && i < n; i++) {
        mem_free(&a->layers[i].k_b);
        mem_free(&a->layers[i].v_b);
        for (int k = 0; k < ADAPTER_EXPERT_LINEARS; k++) mem_free(&a->layers[i].experts[k]);
    }
    mem_free(&a->layers);
}

void adapters_destroy(struct adapters **a)
{
    if (*a == NULL) return;
    for (size_t i = 0; i < (*a)->n; i++) adapter_free_layers(&(*a)->all[i], (*a)->n_layers);
    for (size_t i = 0; i < (*a)->n_blocks; i++)
        mem_unmap(&(*a)->blocks[i].base, (*a)->blocks[i].n_bytes);
    mem_free(&(*a)->blocks);
    mem_free(&(*a)->all);
    mem_free(a);
}
