/* Brute force: in every layout of up to 12 ranks, every element of every tensor is held by the
 * right number of ranks in the right stages; rows of k_proj and v_proj by exactly the right ranks.
 * Elements are counted one by one in the slabs that a rank would load. Expectations use only the
 * stages, the places of ranks and the numbers of replicas of the layout. */
#include "weights/weights.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS_MAX = 12, TENSORS_MAX = 128 };

static const char *const configs[] = {
    /* dense, 6 heads over 2 kv heads, tied, odd vocabulary */
    "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":96,\"num_hidden_layers\":5,"
    "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":16,\"intermediate_size\":208,"
    "\"vocab_size\":307,\"max_position_embeddings\":512,\"tie_word_embeddings\":true}",
    /* Qwen2: biases of q, k and v follow their heads */
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"intermediate_size\":96,"
    "\"head_dim\":16,\"vocab_size\":100,\"max_position_embeddings\":512}",
    /* gpt-oss: sinks follow their heads, biases their experts */
    "{\"architectures\":[\"GptOssForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,"
    "\"intermediate_size\":96,\"num_local_experts\":6,\"num_experts_per_tok\":2,"
    "\"vocab_size\":100,\"max_position_embeddings\":512,\"attention_bias\":true,"
    "\"sliding_window\":null,\"rope_theta\":1e6,\"rms_norm_eps\":1e-5}",
    /* Mixtral, 5 experts, untied */
    "{\"architectures\":[\"MixtralForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":4,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":16,\"intermediate_size\":96,"
    "\"num_local_experts\":5,\"num_experts_per_tok\":2,\"vocab_size\":160,"
    "\"max_position_embeddings\":512,\"rope_theta\":1e6,\"rms_norm_eps\":1e-5}",
    /* Qwen3-MoE with q/k norms and dense layers in between */
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"hidden_size\":32,\"num_hidden_layers\":4,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"head_dim\":32,\"intermediate_size\":64,"
    "\"moe_intermediate_size\":96,\"num_experts\":8,\"num_experts_per_tok\":3,"
    "\"decoder_sparse_step\":2,\"vocab_size\":100,\"max_position_embeddings\":512}",
    /* Qwen2-MoE: a shared expert is cut like a dense FFN */
    "{\"architectures\":[\"Qwen2MoeForCausalLM\"],\"hidden_size\":32,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,\"intermediate_size\":64,"
    "\"moe_intermediate_size\":32,\"shared_expert_intermediate_size\":96,\"num_experts\":4,"
    "\"num_experts_per_tok\":2,\"mlp_only_layers\":[0],\"vocab_size\":100,"
    "\"max_position_embeddings\":512}",
    /* OLMoE: norms follow their heads */
    "{\"architectures\":[\"OlmoeForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":64,"
    "\"num_experts\":4,\"num_experts_per_tok\":2,\"vocab_size\":100,"
    "\"max_position_embeddings\":512,\"rope_theta\":1e6,\"rms_norm_eps\":1e-5}",
    /* Granite-MoE: gate and up are one tensor */
    "{\"architectures\":[\"GraniteMoeForCausalLM\"],\"hidden_size\":32,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":96,"
    "\"num_local_experts\":4,\"num_experts_per_tok\":2,\"vocab_size\":100,"
    "\"max_position_embeddings\":512}",
};

/* A tensor of the model, as a single rank lists it, and the ranks that hold each element. */
struct tensor {
    struct weight_spec spec;
    uint16_t *holders; /* [n_outer, n_rows, n_cols]; bit r: rank r holds the element */
};

struct model_tensors {
    struct tensor tensors[TENSORS_MAX];
    size_t n;
    unsigned rank; /* the rank whose tensors are listed */
};

static size_t element_count(const struct weight_spec *s)
{
    return (size_t)s->n_outer * s->n_rows * s->n_cols;
}

static struct tensor *find(struct model_tensors *all, const char *name)
{
    for (size_t i = 0; i < all->n; i++) {
        if (strcmp(all->tensors[i].spec.name, name) == 0) return &all->tensors[i];
    }
    return NULL;
}

static struct status add_tensor(void *ctx, const struct weight_spec *spec)
{
    struct model_tensors *all = ctx;
    if (find(all, spec->name) != NULL)
        return status_ok(); /* the other half of a tensor that is
                               listed in two parts */
    struct tensor *t = &all->tensors[all->n++];
    t->spec = *spec;
    t->holders = calloc(element_count(spec), sizeof *t->holders);
    return status_ok();
}

static struct status mark_held(void *ctx, const struct weight_spec *s)
{
    struct model_tensors *all = ctx;
    struct tensor *t = find(all, s->name);
    if (t == NULL) return status_make(STATUS_BUG, "%s is no tensor of the model", s->name);
    for (uint32_t o = s->outer.begin; o < s->outer.end; o++) {
        for (uint32_t r = s->rows.begin; r < s->rows.end; r++) {
            for (uint32_t c = s->cols.begin; c < s->cols.end; c++) {
                t->holders[((size_t)o * s->n_rows + r) * s->n_cols + c] |=
                    (uint16_t)(1u << all->rank);
            }
        }
    }
    return status_ok();
}

/* A mask of the pipeline stages that need the tensor; bit p is stage p. */
static unsigned stages_of(const struct layout *l, const struct arch *m, const struct weight_spec *s)
{
    if (s->role == WEIGHT_EMBED) return 1u | (m->tied ? 1u << (l->pp - 1) : 0);
    if (s->role == WEIGHT_HEAD || s->role == WEIGHT_FINAL_NORM) return 1u << (l->pp - 1);
    for (uint32_t p = 0; p < l->pp; p++) {
        if (s->layer >= l->stage_begin[p] && s->layer < l->stage_begin[p + 1]) return 1u << p;
    }
    return 0;
}

/* Whether the rank needs this kv head: it holds rows of q_proj of a query head that reads it. */
static bool uses_kv_head(struct model_tensors *all, const struct arch *m, uint32_t layer,
                         uint32_t kv_head, unsigned rank)
{
    char name[64];
    snprintf(name, sizeof name, "model.layers.%u.self_attn.q_proj.weight", layer);
    const struct tensor *q = find(all, name);
    const uint32_t per_kv = m->attn.n_heads / m->attn.n_kv_heads;
    for (uint32_t h = kv_head * per_kv; h < (kv_head + 1) * per_kv; h++) {
        if (q->holders[(size_t)h * m->attn.head_dim * m->width] >> rank & 1) return true;
    }
    return false;
}

/* The number of ranks in the bits of `holders` that belong to stage `stage` and, if dp >= 0, to
 * replica dp. */
static unsigned count_in(const struct layout *l, uint16_t holders, uint32_t stage, int dp)
{
    unsigned n = 0;
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        const struct layout_place p = layout_place_of(l, r);
        if (p.pp == stage && (dp < 0 || p.dp == (uint32_t)dp)) n += holders >> r & 1;
    }
    return n;
}

static bool kv_is_right(struct model_tensors *all, const struct arch *m, const struct layout *l,
                        const struct weight_spec *s, uint32_t row, uint16_t holders, uint32_t stage)
{
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        const bool here = layout_place_of(l, r).pp == stage;
        const bool wanted = here && uses_kv_head(all, m, s->layer, row / m->attn.head_dim, r);
        if (wanted != (holders >> r & 1)) return false;
    }
    return true;
}

/* Whether the right number of a stage's ranks holds the element; for K and V, whether exactly the
 * right ranks do. */
static bool stage_is_right(struct model_tensors *all, const struct arch *m, const struct layout *l,
                           const struct weight_spec *s, uint32_t row, uint16_t holders,
                           uint32_t stage)
{
    const bool follows_heads =
        s->role == WEIGHT_Q_BIAS || (s->role == WEIGHT_Q_NORM && m->attn.qk_norm_whole);
    if (s->role == WEIGHT_K_BIAS || s->role == WEIGHT_V_BIAS ||
        (s->role == WEIGHT_K_NORM && m->attn.qk_norm_whole)) {
        return kv_is_right(all, m, l, s, row, holders, stage);
    }
    if (s->role == WEIGHT_EXPERT_DOWN_BIAS) {
        return count_in(l, holders, stage, -1) == l->n_expert_replicas * l->etp;
    }
    if (s->role == WEIGHT_EXPERT_GATE_BIAS || s->role == WEIGHT_EXPERT_UP_BIAS) {
        return count_in(l, holders, stage, -1) == l->n_expert_replicas;
    }
    if ((s->is_vector && !follows_heads && s->role != WEIGHT_SINKS) || s->role == WEIGHT_ROUTER ||
        s->role == WEIGHT_SHARED_MIX) {
        return count_in(l, holders, stage, -1) == l->dp * l->tp;
    }
    if (s->is_expert) return count_in(l, holders, stage, -1) == l->n_expert_replicas;
    if (s->role == WEIGHT_K || s->role == WEIGHT_V) {
        return kv_is_right(all, m, l, s, row, holders, stage);
    }
    for (uint32_t dp = 0; dp < l->dp; dp++) {
        if (count_in(l, holders, stage, (int)dp) != 1) return false;
    }
    return true;
}

static size_t count_wrong(struct model_tensors *all, const struct arch *m, const struct layout *l,
                          const struct tensor *t)
{
    const struct weight_spec *s = &t->spec;
    const unsigned stages = stages_of(l, m, s);
    size_t n_wrong = 0;
    bool right = true;
    for (size_t i = 0; i < element_count(s); i++) {
        /* element i of a bias belongs to output i */
        const uint32_t row = (uint32_t)(s->is_vector ? i : i / s->n_cols % s->n_rows);
        /* an element with the same holders as its neighbour in the row needs no new check */
        if (s->is_vector || i % s->n_cols == 0 || t->holders[i] != t->holders[i - 1]) {
            right = true;
            for (uint32_t p = 0; p < l->pp; p++) {
                right &= stages >> p & 1 ? stage_is_right(all, m, l, s, row, t->holders[i], p)
                                         : count_in(l, t->holders[i], p, -1) == 0;
            }
        }
        n_wrong += !right;
    }
    return n_wrong;
}

static void check_layout(struct model_tensors *all, const struct arch *m, const struct layout *l)
{
    for (size_t i = 0; i < all->n; i++) {
        struct tensor *t = &all->tensors[i];
        memset(t->holders, 0, element_count(&t->spec) * sizeof *t->holders);
    }
    for (all->rank = 0; all->rank < l->n_ranks; all->rank++) {
        const struct status st = weights_list(l, layout_place_of(l, all->rank), mark_held, all);
        CU_ASSERT_EQUAL(st.code, STATUS_OK);
    }
    for (size_t i = 0; i < all->n; i++)
        CU_ASSERT_EQUAL(count_wrong(all, m, l, &all->tensors[i]), 0);
}

static unsigned n_layouts;

static void check_model(const char *config)
{
    static struct arch m;
    static struct layout_model lm;
    static struct layout l;
    static struct model_tensors all;
    memset(&all, 0, sizeof all);
    CU_ASSERT_EQUAL_FATAL(arch_parse(config, strlen(config), "test", &m).code, STATUS_OK);
    layout_describe(&m, 2, &lm);
    const struct layout_flags one = {.tp = 1, .pp = 1, .ep = 1, .dp = 1};
    CU_ASSERT_EQUAL_FATAL(layout_build(&lm, 1, &one, &l).code, STATUS_OK);
    CU_ASSERT_EQUAL(weights_list(&l, layout_place_of(&l, 0), add_tensor, &all).code, STATUS_OK);
    for (uint32_t tp = 1; tp <= RANKS_MAX; tp++) {
        for (uint32_t pp = 1; tp * pp <= RANKS_MAX; pp++) {
            for (uint32_t dp = 1; tp * pp * dp <= RANKS_MAX; dp++) {
                for (uint32_t ep = 1; ep <= tp * dp; ep++) {
                    const struct layout_flags f = {.tp = tp, .pp = pp, .ep = ep, .dp = dp};
                    const struct status st = layout_build(&lm, tp * pp * dp, &f, &l);
                    if (status_failed(&st)) continue;
                    check_layout(&all, &m, &l);
                    n_layouts++;
                }
            }
        }
    }
    for (size_t i = 0; i < all.n; i++) free(all.tensors[i].holders);
}

static void every_element_is_where_it_belongs(void)
{
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) check_model(configs[i]);
    printf("%u layouts ", n_layouts);
    CU_ASSERT(n_layouts > 150);
}

void suite_weights_layout(CU_pSuite suite);
void suite_weights_layout(CU_pSuite suite)
{
    CU_add_test(suite, "every element is where it belongs", every_element_is_where_it_belongs);
}
