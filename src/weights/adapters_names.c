/* The linears of a model that an adapter's tensors name. */
#include "base/ends_with.h"
#include "weights/adapters_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool adapter_site_of(enum weight_role role, enum adapter_site *out)
{
    static const struct {
        enum weight_role role;
        enum adapter_site site;
    } sites[] = {{WEIGHT_Q, ADAPTER_Q},
                 {WEIGHT_K, ADAPTER_K},
                 {WEIGHT_V, ADAPTER_V},
                 {WEIGHT_O, ADAPTER_O},
                 {WEIGHT_UP, ADAPTER_UP},
                 {WEIGHT_GATE, ADAPTER_GATE},
                 {WEIGHT_DOWN, ADAPTER_DOWN},
                 {WEIGHT_SHARED_UP, ADAPTER_UP},
                 {WEIGHT_SHARED_GATE, ADAPTER_GATE},
                 {WEIGHT_SHARED_DOWN, ADAPTER_DOWN},
                 {WEIGHT_Q_A, ADAPTER_Q_A},
                 {WEIGHT_KV_A, ADAPTER_KV_A},
                 {WEIGHT_K_ROPE, ADAPTER_K_ROPE},
                 {WEIGHT_KV_B, ADAPTER_K_B},
                 {WEIGHT_EXPERT_GATE, ADAPTER_OF_EXPERTS + ADAPTER_EXPERT_GATE},
                 {WEIGHT_EXPERT_UP, ADAPTER_OF_EXPERTS + ADAPTER_EXPERT_UP},
                 {WEIGHT_EXPERT_DOWN, ADAPTER_OF_EXPERTS + ADAPTER_EXPERT_DOWN}};
    for (size_t i = 0; i < sizeof sites / sizeof sites[0]; i++) {
        if (sites[i].role != role) continue;
        *out = sites[i].site;
        return true;
    }
    return false;
}

const char *adapter_linear_refusal(const struct arch *m, const struct arch_tensor *t)
{
    enum adapter_site site;
    if (t->is_vector) return "it is not a linear";
    if (m->rounds_inputs) return "adapters of linears that read rounded rows are not implemented";
    if ((t->part & (PART_ANY_DELTA | PART_CHANNEL_GATES | PART_MAMBA)) != 0)
        return "adapters of recurrent layers are not implemented";
    if (t->role == WEIGHT_ROUTER) return "adapters of routers are not implemented";
    if (m->streams.n > 0 || m->shortcut)
        return "adapters of models with several residual streams or with two blocks of attention "
               "in a layer are not implemented";
    if (m->compression.o_groups > 0) return "adapters of compressed attention are not implemented";
    if ((t->part & (PART_UNGATED | PART_RELU2 | PART_SHARED_RELU2)) != 0 ||
        (t->is_expert && m->gate == GATE_RELU2))
        return "adapters of an FFN without a gate are not implemented";
    const bool is_latent = (t->part & PART_LATENT) != 0; /* kv_a_proj_with_mqa is one linear */
    if (t->part == PART_LONE_SHARED || (!is_latent && arch_tensor_is_joined(t, m->family)))
        return "adapters of linears that are published as one tensor are not implemented";
    if (!adapter_site_of(t->role, &site))
        return "adapters of gates and of an index are not implemented";
    return NULL;
}

const char *adapter_name_refusal(const char *linear)
{
    static const char *const joined[] = {"qkv_proj", "gate_up_proj", "query_key_value",
                                         "input_linear"};
    for (size_t i = 0; i < sizeof joined / sizeof joined[0]; i++)
        if (ends_with(linear, joined[i]))
            return "adapters of linears that are published as one tensor are not implemented";
    if (strcmp(linear, "lm_head") == 0) return "adapters of the head are not implemented";
    return "the model has no such linear";
}

bool adapter_layer_index(const struct arch *m, const char *name, uint32_t *layer)
{
    static const char prefix[] = "model.layers.";
    char *end;
    if (strncmp(name, prefix, strlen(prefix)) != 0) return false;
    const char *digits = name + strlen(prefix);
    if (*digits < '0' || *digits > '9') return false;
    const unsigned long n = strtoul(digits, &end, 10);
    *layer = (uint32_t)n;
    return *end == '.' && n < m->n_layers;
}

/* True when a linear is the experts' parameter of which a tensor is a part. */
static bool is_parameter_of(const struct arch_tensor *t, uint32_t layer, const char *linear)
{
    static const char *const places[] = {"", "mlp.", "block_sparse_moe.", "feed_forward."};
    char wanted[64];
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        snprintf(wanted, sizeof wanted, "model.layers.%u.%sexperts.%s", layer, places[i],
                 t->role == WEIGHT_EXPERT_DOWN ? "down_proj" : "gate_up_proj");
        if (strcmp(linear, wanted) == 0) return true;
    }
    return false;
}

/* True when the linear with this name in transformers is the checkpoint's tensor t of the layer.
 * Some families' modules have other names in transformers than their tensors in a checkpoint. */
static bool is_linear_of(const struct arch *m, const struct arch_tensor *t, uint32_t layer,
                         const char *linear)
{
    char name[CKPT_NAME_MAX];
    arch_tensor_name(t, m->family, layer, name, sizeof name);
    static const struct {
        const char *architecture, *module, *tensor;
    } renamed[] = {
        {"Llama4ForCausalLM", ".feed_forward.", ".mlp."}, /* a dense FFN */
        {"HYV3ForCausalLM", ".mlp.shared_experts.", ".mlp.shared_mlp."},
        {"Step3p5ForCausalLM", ".mlp.shared_experts.", ".share_expert."},
        {"KimiLinearForCausalLM", ".mlp.shared_experts.", ".block_sparse_moe.shared_experts."}};
    char wanted[CKPT_NAME_MAX + 32];
    snprintf(wanted, sizeof wanted, "%s.weight", linear);
    if (strcmp(name, wanted) == 0) return true;
    for (size_t i = 0; i < sizeof renamed / sizeof renamed[0]; i++) {
        const char *at = strstr(linear, renamed[i].module);
        if (at == NULL || strcmp(m->family->architecture, renamed[i].architecture) != 0) continue;
        snprintf(wanted, sizeof wanted, "%.*s%s%s.weight", (int)(at - linear), linear,
                 renamed[i].tensor, at + strlen(renamed[i].module));
        if (strcmp(name, wanted) == 0) return true;
    }
    return t->is_expert && !t->is_vector && is_parameter_of(t, layer, linear);
}

const struct arch_tensor *adapter_row_of(const struct arch *m, uint32_t layer, const char *linear,
                                         size_t *i)
{
    const struct arch_tensor *t;
    while ((t = arch_tensor_at(*i)) != NULL) {
        ++*i;
        if ((t->part & arch_layer_parts(m, layer)) == 0) continue;
        if (is_linear_of(m, t, layer, linear)) return t;
    }
    return NULL;
}

bool adapter_is_joined(const struct ckpt_tensor *t, const struct arch_tensor *linear)
{
    return linear->is_expert && t->n_dims == 2;
}

uint32_t adapter_rank_of(const struct arch *m, const struct arch_tensor *linear,
                         const struct ckpt_tensor *t, bool is_b)
{
    const uint64_t n = is_b                ? t->n_cols
                       : linear->is_expert ? t->n_rows / m->moe.n_experts
                                           : t->n_rows;
    return (uint32_t)(is_b && adapter_is_joined(t, linear) ? n / m->moe.n_experts : n);
}

/* Returns the name of the parameter whose shape A [.., n_in] and B [n_out, ..] fit; NULL: none. */
static const char *parameter_of(const struct arch *m, uint64_t n_in, uint64_t n_out)
{
    if (n_in == m->width && n_out == 2 * (uint64_t)m->moe.ffn) return "gate_up_proj";
    return n_in == m->moe.ffn && n_out == m->width ? "down_proj" : NULL;
}

bool adapter_linear_name(const struct arch *m, const struct ckpt *c, const struct ckpt_tensor *t,
                         char linear[CKPT_NAME_MAX + 32], bool *is_b)
{
    char other[CKPT_NAME_MAX + 32];
    *is_b = ends_with(t->name, ADAPTER_B_END);
    if (!*is_b && !ends_with(t->name, ADAPTER_A_END)) return false;
    const int n = (int)(strlen(t->name) - strlen(ADAPTER_A_END));
    snprintf(linear, CKPT_NAME_MAX + 32, "%.*s", n, t->name);
    if (!ends_with(linear, ".experts") && !ends_with(linear, ".experts.base_layer")) return true;
    snprintf(other, sizeof other, "%s%s", linear, *is_b ? ADAPTER_A_END : ADAPTER_B_END);
    const struct ckpt_tensor *b = *is_b ? t : ckpt_find(c, other),
                             *a = *is_b ? ckpt_find(c, other) : t;
    const char *parameter = a != NULL && b != NULL ? parameter_of(m, a->n_cols, b->n_rows) : NULL;
    if (parameter == NULL) return true;
    const int n_module = n - (ends_with(linear, ".base_layer") ? (int)strlen(".base_layer") : 0);
    snprintf(linear + n_module, (size_t)(CKPT_NAME_MAX + 32 - n_module), ".%s", parameter);
    return true;
}

/* Returns the bytes of A or B (is_b) of one row of the table that a stored tensor belongs to. */
static uint64_t part_bytes(const struct arch *m, const struct arch_tensor *linear, bool is_b,
                           const struct ckpt_tensor *t)
{
    const uint32_t rank = adapter_rank_of(m, linear, t, is_b);
    const uint64_t n_rows = is_b ? arch_dim_size(m, linear->rows) : rank;
    const struct packed whole = {
        .dtype = DTYPE_F32, .n_out = (uint32_t)n_rows, .n_in = is_b ? rank : (uint32_t)t->n_cols};
    if (linear->role == WEIGHT_KV_B) return adapter_heads_bytes(m, rank, is_b);
    if (linear->is_expert) return m->moe.n_experts * adapter_packed_room(&whole);
    return adapter_packed_room(&whole);
}

bool adapters_file_has_experts(const struct ckpt *c)
{
    for (size_t i = 0; i < ckpt_tensor_count(c); i++)
        if (strstr(ckpt_tensor_at(c, i)->name, ".experts.") != NULL) return true;
    return false;
}

uint64_t adapters_file_bytes(const struct arch *m, const struct ckpt *c)
{
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < ckpt_tensor_count(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(c, i);
        const struct arch_tensor *linear;
        char name[CKPT_NAME_MAX + 32];
        uint32_t layer;
        size_t from = 0;
        bool is_b;
        if (!adapter_linear_name(m, c, t, name, &is_b) || !adapter_layer_index(m, name, &layer))
            continue;
        while ((linear = adapter_row_of(m, layer, name, &from)) != NULL)
            n_bytes += part_bytes(m, linear, is_b, t);
    }
    return n_bytes;
}
