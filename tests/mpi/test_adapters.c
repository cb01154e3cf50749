/* Tests that the ranks of every layout hold the parts of an adapter's published matrices that their
 * linears need. */
#include "weights/adapters.h"

#include "base/mem.h"
#include "checkpoint/convert/convert.h"
#include "kernels/ops.h"
#include "model/stage.h"
#include "mpi/util_mpi.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A golden adapter, and the model for which it was made. */
struct adapted {
    struct ckpt *model, *adapter; /* adapters_load opens the adapter once more */
    char path[64];                /* of the adapter */
    struct arch arch;
    struct layout_model layout_model;
    double (*scaling)(uint32_t layer, enum adapter_site site);
    bool (*has)(uint32_t layer, enum adapter_site site);
    uint32_t max_rank;
    size_t n_cut_by_outputs, n_compared;
};

static const char *const site_names[ADAPTER_V_B + 1] = {"self_attn.q_proj",
                                                        "self_attn.k_proj",
                                                        "self_attn.v_proj",
                                                        "self_attn.o_proj",
                                                        "mlp.gate_proj",
                                                        "mlp.up_proj",
                                                        "mlp.down_proj",
                                                        "self_attn.q_a_proj",
                                                        "self_attn.kv_a_proj_with_mqa",
                                                        "self_attn.kv_a_proj_with_mqa",
                                                        "self_attn.kv_b_proj",
                                                        "self_attn.kv_b_proj"};

/* ---- files ---- */

/* Rank 0 converts a folder of tests/golden. */
static void convert_golden(const char *folder, const char *path)
{
    char source[480];
    snprintf(source, sizeof source, "%s/golden/%s/hf", TEST_DATA_DIR, folder);
    const struct convert_options o = {.source = source, .path = path, .keep_dtype = true};
    if (util_rank() == 0) CU_ASSERT_EQUAL_FATAL(convert_run(&o, NULL, NULL).code, STATUS_OK);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void parse_config(struct ckpt *c, struct arch *out)
{
    size_t n;
    const char *config = ckpt_config_json(c, &n);
    CU_ASSERT_EQUAL_FATAL(arch_parse(config, n, "config.json", out).code, STATUS_OK);
}

static void adapted_open(struct adapted *a, const char *model, const char *adapter)
{
    char path[64], folder[128];
    memset(a, 0, sizeof *a);
    util_shared_path("model", path, sizeof path);
    util_shared_path("adapter", a->path, sizeof a->path);
    snprintf(folder, sizeof folder, "models/%s", model);
    convert_golden(folder, path);
    snprintf(folder, sizeof folder, "adapters/%s", adapter);
    convert_golden(folder, a->path);
    CU_ASSERT_EQUAL_FATAL(ckpt_open(path, &a->model).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(ckpt_open(a->path, &a->adapter).code, STATUS_OK);
    MPI_Barrier(MPI_COMM_WORLD);
    if (util_rank() == 0) unlink(path);
    parse_config(a->model, &a->arch);
    CU_ASSERT_EQUAL_FATAL(weights_check(&a->arch, a->model, &a->layout_model).code, STATUS_OK);
}

static void adapted_close(struct adapted *a)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (util_rank() == 0) unlink(a->path);
    ckpt_close(&a->model);
    ckpt_close(&a->adapter);
}

/* ---- published matrices ---- */

/* Reads A or B of a linear as f32 [*n_rows, *n_cols]. The caller frees the values. */
static float *published(struct adapted *a, uint32_t layer, enum adapter_site site, char part,
                        uint32_t *n_rows, uint32_t *n_cols)
{
    char name[128];
    const char *linear = site_names[site];
    if (site == ADAPTER_Q && a->arch.attn.q_lora > 0) linear = "self_attn.q_b_proj";
    snprintf(name, sizeof name, "model.layers.%u.%s.lora_%c.weight", layer, linear, part);
    const struct ckpt_tensor *t = ckpt_find(a->adapter, name);
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    void *stored = malloc(t->n_bytes);
    float *values = malloc(t->n_rows * t->n_cols * sizeof *values);
    CU_ASSERT_EQUAL_FATAL(ckpt_read_tensor(a->adapter, t, stored).code, STATUS_OK);
    dtype_to_f32(t->dtype, stored, t->n_rows * t->n_cols, values);
    free(stored);
    *n_rows = (uint32_t)t->n_rows;
    *n_cols = (uint32_t)t->n_cols;
    return values;
}

/* True when p holds rows x cols of a published matrix times a factor, packed. */
static bool holds(const struct packed *p, const float *whole, uint32_t n_cols, struct range rows,
                  struct range cols, double factor)
{
    const uint32_t n_out = range_count(rows), n_in = range_count(cols);
    if (p->dtype != DTYPE_F32 || p->n_out != n_out || p->n_in != n_in || p->quant.kind != 0)
        return false;
    if (n_in == 0) return p->data == NULL;
    const size_t n_bytes = packed_bytes(DTYPE_F32, n_out, n_in);
    float *part = malloc((size_t)n_out * n_in * sizeof *part);
    for (uint32_t r = 0; r < n_out; r++)
        for (uint32_t k = 0; k < n_in; k++)
            part[r * n_in + k] =
                (float)(factor * (double)whole[(rows.begin + r) * n_cols + cols.begin + k]);
    void *want = aligned_alloc(64, (n_bytes + 63) / 64 * 64);
    memset(want, 0, n_bytes);
    const struct matrix_rows all = {.data = part, .stride_bytes = n_in * sizeof *part, .n = n_out};
    packed_put_rows(DTYPE_F32, want, n_in, &all);
    const bool same = p->data != NULL && memcmp(p->data, want, n_bytes) == 0;
    free(part);
    free(want);
    return same;
}

static struct range times(struct range units, uint32_t unit)
{
    return (struct range){units.begin * unit, units.end * unit};
}

/* The outputs of a column-parallel linear, or the inputs of a row-parallel one, that a place holds.
 */
static struct range own_of(const struct layout *l, struct layout_place at, enum adapter_site site)
{
    const struct arch *m = l->model.arch;
    switch (site) {
    case ADAPTER_Q:
        return times(layout_heads(l, at.tp), m->attn.query_dim);
    case ADAPTER_K:
    case ADAPTER_V:
        return times(layout_kv_heads(l, at.tp), m->attn.query_dim);
    case ADAPTER_O:
        if (l->cuts_outputs) return (struct range){0, m->attn.n_heads * m->attn.value_dim};
        return times(layout_heads(l, at.tp), m->attn.value_dim);
    case ADAPTER_Q_A:
        return (struct range){0, m->attn.q_lora};
    case ADAPTER_KV_A:
        return (struct range){0, m->attn.kv_lora};
    case ADAPTER_K_ROPE:
        return (struct range){m->attn.kv_lora, m->attn.kv_lora + m->attn.rotary};
    case ADAPTER_DOWN:
        return l->cuts_outputs ? (struct range){0, m->ffn} : layout_ffn(l, at.tp);
    default:
        return layout_ffn(l, at.tp);
    }
}

static void compare_linear(struct adapted *a, const struct layout *l, struct layout_place at,
                           uint32_t layer, enum adapter_site site, const struct adapter_linear *x)
{
    static const struct adapter_linear none;
    uint32_t rank, n_in, n_out, r;
    if (!a->has(layer, site)) {
        CU_ASSERT_EQUAL(memcmp(x, &none, sizeof none), 0);
        return;
    }
    float *whole_a = published(a, layer, site, 'A', &rank, &n_in);
    float *whole_b = published(a, layer, site, 'B', &n_out, &r);
    const bool by_rows = site == ADAPTER_O || site == ADAPTER_DOWN;
    const struct range own = own_of(l, at, site), all = {0, rank};
    const double scaling = a->scaling(layer, site);
    CU_ASSERT(r == rank && x->rank == rank);
    if (by_rows) {
        CU_ASSERT(holds(&x->a, whole_a, n_in, all, own, 1));
        CU_ASSERT(holds(&x->b, whole_b, rank, (struct range){0, n_out}, all, scaling));
        const uint32_t leaf = site == ADAPTER_O ? a->layout_model.o_leaf : a->layout_model.ffn_leaf;
        CU_ASSERT(x->a.leaf == leaf && x->a.grid_bits == 32 && x->b.leaf == 0);
    } else if (range_count(own) > 0) {
        CU_ASSERT(holds(&x->a, whole_a, n_in, all, (struct range){0, n_in}, 1));
        CU_ASSERT(holds(&x->b, whole_b, rank, own, all, scaling));
        CU_ASSERT(x->a.leaf == 0 && x->b.leaf == 0);
    }
    a->n_compared++;
    free(whole_a);
    free(whole_b);
}

/* Returns `rows` of a matrix [.., n_cols], transposed. The caller frees the values. */
static float *transposed(const float *whole, uint32_t n_cols, struct range rows)
{
    const uint32_t n = range_count(rows);
    float *out = malloc((size_t)n * n_cols * sizeof *out);
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t c = 0; c < n_cols; c++)
            out[c * n + r] = whole[(size_t)(rows.begin + r) * n_cols + c];
    return out;
}

/* Compares the parts of kv_b_proj (k_b and v_b) of the heads that a place holds. */
static void compare_heads(struct adapted *a, struct range heads, uint32_t layer,
                          const struct adapter_layer *x)
{
    const struct arch *m = &a->arch;
    const uint32_t n_k = m->attn.query_dim - m->attn.rotary, n_v = m->attn.value_dim;
    uint32_t rank, latent, n_out, r;
    if (range_count(heads) == 0 || !a->has(layer, ADAPTER_K_B)) {
        CU_ASSERT(x->k_b == NULL && x->v_b == NULL);
        return;
    }
    float *whole_a = published(a, layer, ADAPTER_K_B, 'A', &rank, &latent);
    float *whole_b = published(a, layer, ADAPTER_K_B, 'B', &n_out, &r);
    float *a_t = transposed(whole_a, latent, (struct range){0, rank});
    const struct range ranks = {0, rank}, latents = {0, latent};
    const double scaling = a->scaling(layer, ADAPTER_K_B);
    CU_ASSERT_FATAL(x->n_heads == range_count(heads) && n_out == m->attn.n_heads * (n_k + n_v));
    for (uint32_t h = 0; h < x->n_heads; h++) {
        const uint32_t first = (heads.begin + h) * (n_k + n_v);
        const struct range k = {first, first + n_k}, v = {first + n_k, first + n_k + n_v};
        float *k_t = transposed(whole_b, rank, k);
        CU_ASSERT(x->k_b[h].rank == rank && x->v_b[h].rank == rank);
        CU_ASSERT(holds(&x->k_b[h].a, k_t, n_k, ranks, (struct range){0, n_k}, scaling));
        CU_ASSERT(holds(&x->k_b[h].b, a_t, rank, latents, ranks, 1));
        CU_ASSERT(holds(&x->v_b[h].a, whole_a, latent, ranks, latents, 1));
        CU_ASSERT(holds(&x->v_b[h].b, whole_b, rank, v, ranks, scaling));
        free(k_t);
    }
    a->n_compared++;
    free(whole_a);
    free(whole_b);
    free(a_t);
}

/* The tensors of an adapter of experts, and the scalings. */
struct expert_case {
    const char *model, *adapter, *linears[ADAPTER_EXPERT_LINEARS];
    bool is_joined; /* in the matrices of a parameter */
    double scaling[ADAPTER_EXPERT_LINEARS];
    uint32_t max_rank, max_expert_rank;
};

static const struct expert_case *expert_case; /* of the test that runs; or NULL */

/* Reads all of a tensor of experts as f32, and sets *n_rows; owner: the caller, free. */
static float *read_experts(struct adapted *a, uint32_t layer, int which, char part,
                           uint32_t *n_rows)
{
    char name[128];
    snprintf(name, sizeof name, "model.layers.%u.%s.lora_%c.weight", layer,
             expert_case->linears[which], part);
    const struct ckpt_tensor *t = ckpt_find(a->adapter, name);
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    void *stored = malloc(t->n_bytes);
    float *values = malloc(t->n_rows * t->n_cols * sizeof *values);
    CU_ASSERT_EQUAL_FATAL(ckpt_read_tensor(a->adapter, t, stored).code, STATUS_OK);
    dtype_to_f32(t->dtype, stored, t->n_rows * t->n_cols, values);
    free(stored);
    *n_rows = (uint32_t)t->n_rows;
    return values;
}

/* Takes A [n_rows, n_cols] of an expert out of a tensor; owner: the caller, free. */
static float *a_of_expert(const float *all, uint32_t expert, uint32_t n_rows, uint32_t n_cols)
{
    const size_t n = (size_t)n_rows * n_cols;
    float *out = malloc(n * sizeof *out);
    memcpy(out, all + expert * n, n * sizeof *out);
    return out;
}

/* Takes B [n_out, rank] out of the outputs from `first` on of a parameter's B [.., rank * E]. */
static float *b_of_parameter(const struct adapted *a, const float *all, uint32_t expert,
                             uint32_t first, uint32_t n_out, uint32_t rank)
{
    const uint32_t n_experts = a->arch.moe.n_experts;
    float *out = malloc((size_t)n_out * rank * sizeof *out);
    for (uint32_t r = 0; r < n_out; r++)
        for (uint32_t k = 0; k < rank; k++)
            out[r * rank + k] = all[((size_t)(first + r) * rank + k) * n_experts + expert];
    return out;
}

/* Compares one linear of all experts, whoever holds them. */
static void compare_experts(struct adapted *a, const struct layout *l, struct layout_place at,
                            uint32_t layer, int which, const struct adapter_linear *x)
{
    const struct arch *m = &a->arch;
    const bool is_down = which == ADAPTER_EXPERT_DOWN;
    const uint32_t n_in = is_down ? m->moe.ffn : m->width, n_out = is_down ? m->width : m->moe.ffn;
    uint32_t n_a, n_b;
    float *a_all = read_experts(a, layer, which, 'A', &n_a),
          *b_all = read_experts(a, layer, which, 'B', &n_b);
    const uint32_t rank = n_a / m->moe.n_experts, first = which == ADAPTER_EXPERT_UP ? n_out : 0;
    const struct range inner = layout_expert_ffn(l, at.etp), ranks = {0, rank}, all = {0, n_in};
    const struct range in = is_down && !l->cuts_expert_outputs ? inner : all;
    const struct range outputs = is_down ? layout_expert_outputs(l, at.etp) : inner;
    for (uint32_t e = 0; e < m->moe.n_experts; e++) {
        float *one_a = a_of_expert(a_all, e, rank, n_in);
        float *one_b = expert_case->is_joined ? b_of_parameter(a, b_all, e, first, n_out, rank)
                                              : a_of_expert(b_all, e, n_out, rank);
        CU_ASSERT(x[e].rank == rank && holds(&x[e].a, one_a, n_in, ranks, in, 1));
        if (range_count(outputs) > 0)
            CU_ASSERT(holds(&x[e].b, one_b, rank, outputs, ranks, expert_case->scaling[which]));
        CU_ASSERT_EQUAL(x[e].a.leaf, is_down ? a->layout_model.expert_leaf : 0);
        free(one_a);
        free(one_b);
    }
    a->n_compared++;
    free(a_all);
    free(b_all);
}

static void compare_layer_experts(struct adapted *a, const struct layout *l, struct layout_place at,
                                  uint32_t layer, const struct adapter_layer *x)
{
    for (int which = 0; which < ADAPTER_EXPERT_LINEARS; which++) {
        if (expert_case != NULL && a->arch.layer.is_moe[layer])
            compare_experts(a, l, at, layer, which, x->experts[which]);
        else
            CU_ASSERT_PTR_NULL(x->experts[which]);
    }
}

/* ---- layouts ---- */

static void load_cut(const struct layout *whole, struct adapted *a, bool in_memory)
{
    struct layout *l = malloc(sizeof *l);
    struct comm *c = util_comm(whole, 1);
    struct kern_table kern;
    *l = *whole;
    CU_ASSERT_EQUAL_FATAL(kern_select(NULL, &kern).code, STATUS_OK);
    if (in_memory) stage_choose_cuts(&kern, c, CAPACITY_DROPLESS, l);
    a->n_cut_by_outputs += l->cuts_outputs;
    const struct layout_place at = layout_place_of(l, (uint32_t)comm_rank(c, COMM_WORLD));
    const struct weights base = {.place = at, .layers = layout_layers(l, at.pp)};
    const struct weights_source from = {
        .model = &a->arch, .layout = l, .place = at, .kern = &kern, .ckpt = a->model, .comm = c};
    const struct adapter_file files[2] = {{"x", a->path}, {"y", a->path}};
    struct adapters *found = NULL;
    CU_ASSERT_EQUAL_FATAL(adapters_load(&from, &base, files, 2, &found).code, STATUS_OK);
    CU_ASSERT_FATAL(found->n == 2);
    const size_t n_before = a->n_compared;
    for (size_t i = 0; i < found->n; i++) {
        const struct ckpt_digest d = found->all[i].digest, want = ckpt_digest(a->adapter);
        CU_ASSERT_STRING_EQUAL(found->all[i].name, files[i].name);
        CU_ASSERT(d.low == want.low && d.high == want.high);
        for (uint32_t layer = base.layers.begin; layer < base.layers.end; layer++)
            for (int site = 0; site < ADAPTER_SITE_COUNT; site++)
                compare_linear(a, l, at, layer, (enum adapter_site)site,
                               &found->all[i].layers[layer - base.layers.begin].at[site]);
        for (uint32_t layer = base.layers.begin; layer < base.layers.end; layer++)
            compare_layer_experts(a, l, at, layer,
                                  &found->all[i].layers[layer - base.layers.begin]);
        for (uint32_t layer = base.layers.begin; layer < base.layers.end; layer++)
            compare_heads(a, layout_heads(l, at.tp), layer,
                          &found->all[i].layers[layer - base.layers.begin]);
    }
    CU_ASSERT_EQUAL(found->n_bytes > 0, a->n_compared > n_before);
    const uint64_t counted = found->n * adapters_file_bytes(&a->arch, a->adapter);
    CU_ASSERT(util_n_ranks() > 1 ? found->n_bytes <= counted : found->n_bytes == counted);
    CU_ASSERT_EQUAL(found->max_rank, a->max_rank);
    CU_ASSERT_EQUAL(found->max_expert_rank, expert_case != NULL ? expert_case->max_expert_rank : 0);
    adapters_destroy(&found);
    CU_ASSERT_PTR_NULL(found);
    comm_stop(&c);
    free(l);
}

static void load_layout(const struct layout *l, void *ctx)
{
    load_cut(l, ctx, false);
    load_cut(l, ctx, true);
}

static double attention_scaling(uint32_t layer, enum adapter_site site)
{
    if (site == ADAPTER_O) return 0.75;
    return layer == 1 && site == ADAPTER_K ? 4 : 2;
}

static bool attention_has(uint32_t layer, enum adapter_site site)
{
    (void)layer;
    return site <= ADAPTER_O;
}

static double all_scaling(uint32_t layer, enum adapter_site site)
{
    (void)layer;
    (void)site;
    return 5 / sqrt(8.0);
}

static bool all_has(uint32_t layer, enum adapter_site site)
{
    return site <= ADAPTER_DOWN && (layer == 1 || layer == 3);
}

static double heads_scaling(uint32_t layer, enum adapter_site site)
{
    (void)layer;
    (void)site;
    return 3;
}

static bool heads_has(uint32_t layer, enum adapter_site site)
{
    (void)layer;
    return site == ADAPTER_K_B;
}

static bool latent_has(uint32_t layer, enum adapter_site site)
{
    (void)layer;
    return site == ADAPTER_Q || site == ADAPTER_KV_A || site == ADAPTER_K_ROPE ||
           site == ADAPTER_K_B;
}

static void ranks_hold_their_parts_of_attention(void)
{
    struct adapted *a = malloc(sizeof *a);
    adapted_open(a, "llama-gqa", "attention");
    a->scaling = attention_scaling;
    a->has = attention_has;
    a->max_rank = 4;
    CU_ASSERT(util_each_layout(&a->layout_model, load_layout, a) > 0 && a->n_compared > 0);
    CU_ASSERT(util_n_ranks() != 2 || a->n_cut_by_outputs > 0);
    adapted_close(a);
    free(a);
}

static void ranks_hold_their_parts_of_all_linears(void)
{
    struct adapted *a = malloc(sizeof *a);
    adapted_open(a, "llama-gqa", "all-linears");
    a->scaling = all_scaling;
    a->has = all_has;
    a->max_rank = 8;
    CU_ASSERT(util_each_layout(&a->layout_model, load_layout, a) > 0);
    CU_ASSERT(util_n_ranks() != 2 || a->n_cut_by_outputs > 0);
    adapted_close(a);
    free(a);
}

static void ranks_hold_their_parts_of_latent_attention(void)
{
    static const struct {
        const char *model, *adapter;
        bool (*has)(uint32_t layer, enum adapter_site site);
        uint32_t max_rank;
    } cases[] = {{"deepseek-v3", "latent-heads", heads_has, 4},
                 {"deepseek-v2-lite", "latent-query", latent_has, 2}};
    struct adapted *a = malloc(sizeof *a);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        adapted_open(a, cases[i].model, cases[i].adapter);
        a->scaling = heads_scaling;
        a->has = cases[i].has;
        a->max_rank = cases[i].max_rank;
        CU_ASSERT(util_each_layout(&a->layout_model, load_layout, a) > 0 && a->n_compared > 0);
        adapted_close(a);
    }
    free(a);
}

static bool output_has(uint32_t layer, enum adapter_site site)
{
    (void)layer;
    return expert_case->is_joined && site == ADAPTER_O;
}

static void ranks_hold_the_linears_of_all_experts(void)
{
    static const struct expert_case cases[] = {
        {"mixtral",
         "each-expert",
         {"block_sparse_moe.experts.w1", "block_sparse_moe.experts.w3",
          "block_sparse_moe.experts.w2"},
         false,
         {4, 4, 4},
         0,
         1},
        {"deepseek-v3",
         "parameters",
         {"mlp.experts.base_layer", "mlp.experts.base_layer", "mlp.experts"},
         true,
         {3, 3, 5},
         2,
         2}};
    struct adapted *a = malloc(sizeof *a);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expert_case = &cases[i];
        adapted_open(a, cases[i].model, cases[i].adapter);
        a->scaling = heads_scaling;
        a->has = output_has;
        a->max_rank = cases[i].max_rank;
        CU_ASSERT(util_each_layout(&a->layout_model, load_layout, a) > 0 && a->n_compared > 0);
        adapted_close(a);
    }
    expert_case = NULL;
    free(a);
}

/* On one rank any allocation may fail, and everything is released. */
static void fail_allocations(const char *adapter)
{
    const struct layout_flags flags = {.tp = 1, .pp = 1, .dp = 1, .ep = 1};
    struct kern_table kern;
    struct adapted *a = malloc(sizeof *a);
    struct layout *l = malloc(sizeof *l);
    adapted_open(a, "deepseek-v3", adapter);
    CU_ASSERT_EQUAL_FATAL(layout_build(&a->layout_model, 1, &flags, l).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(kern_select(NULL, &kern).code, STATUS_OK);
    struct comm *c = util_comm(l, 0);
    const struct layout_place at = layout_place_of(l, 0);
    const struct weights base = {.place = at, .layers = layout_layers(l, at.pp)};
    const struct weights_source from = {
        .model = &a->arch, .layout = l, .place = at, .kern = &kern, .ckpt = a->model, .comm = c};
    const struct adapter_file files[2] = {{"x", a->path}, {"y", a->path}};
    uint64_t n_failed = 0;
    for (uint64_t i = 1; i < 10000; i++) {
        struct adapters *found = NULL;
        mem_fail_after(i);
        const struct status st = adapters_load(&from, &base, files, 2, &found);
        mem_fail_after(0);
        CU_ASSERT_EQUAL(found != NULL, st.code == STATUS_OK);
        adapters_destroy(&found);
        if (!status_failed(&st)) break;
        CU_ASSERT_EQUAL(st.code, STATUS_MEMORY);
        n_failed++;
    }
    CU_ASSERT(n_failed > 50 && n_failed < 9999);
    comm_stop(&c);
    adapted_close(a);
    free(l);
    free(a);
}

static void every_failed_allocation_is_a_status(void)
{
    if (util_n_ranks() > 1) return;
    fail_allocations("latent");
    fail_allocations("parameters");
}

void suite_adapters(CU_pSuite suite);
void suite_adapters(CU_pSuite suite)
{
    CU_add_test(suite, "ranks hold their parts of attention", ranks_hold_their_parts_of_attention);
    CU_add_test(suite, "ranks hold their parts of all linears",
                ranks_hold_their_parts_of_all_linears);
    CU_add_test(suite, "ranks hold their parts of latent attention",
                ranks_hold_their_parts_of_latent_attention);
    CU_add_test(suite, "ranks hold the linears of all experts",
                ranks_hold_the_linears_of_all_experts);
    CU_add_test(suite, "every failed allocation is a status", every_failed_allocation_is_a_status);
}
