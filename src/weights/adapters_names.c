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
                 {WEIGHT_KV_B, ADAPTER_K_B}};
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
    if (t->is_expert) return "adapters of experts are not implemented";
    if (m->rounds_inputs) return "adapters of linears that read rounded rows are not implemented";
    if ((t->part & (PART_ANY_DELTA | PART_CHANNEL_GATES | PART_MAMBA)) != 0)
        return "adapters of recurrent layers are not implemented";
    if (t->role == WEIGHT_ROUTER) return "adapters of routers are not implemented";
    if (m->streams.n > 0 || m->shortcut)
        return "adapters of models with several residual streams or with two blocks of attention "
               "in a layer are not implemented";
    if (m->compression.o_groups > 0) return "adapters of compressed attention are not implemented";
    if ((t->part & (PART_UNGATED | PART_RELU2 | PART_SHARED_RELU2)) != 0)
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

/* True when the linear with this name in transformers is the checkpoint's tensor `name`. Some
 * families' modules have other names in transformers than their tensors in a checkpoint. */
static bool is_linear_of(const struct arch *m, const char *linear, const char *name)
{
    static const struct {
        const char *architecture, *module, *tensor;
    } renamed[] = {
        {"Llama4ForCausalLM", ".feed_forward.", ".mlp."}, /* a dense FFN */
        {"HYV3ForCausalLM", ".mlp.shared_experts.", ".mlp.shared_mlp."},
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
    return false;
}

const struct arch_tensor *adapter_row_of(const struct arch *m, uint32_t layer, const char *linear,
                                         size_t *i)
{
    char name[CKPT_NAME_MAX];
    const struct arch_tensor *t;
    while ((t = arch_tensor_at(*i)) != NULL) {
        ++*i;
        if ((t->part & arch_layer_parts(m, layer)) == 0) continue;
        arch_tensor_name(t, m->family, layer, name, sizeof name);
        if (is_linear_of(m, linear, name)) return t;
    }
    return NULL;
}

/* Returns the bytes of A or B (is_b) of one row of the table that a stored tensor belongs to. */
static uint64_t part_bytes(const struct arch *m, const struct arch_tensor *linear, bool is_b,
                           const struct ckpt_tensor *t)
{
    const uint64_t n_rows = is_b ? arch_dim_size(m, linear->rows) : t->n_rows;
    const uint32_t rank = (uint32_t)(is_b ? t->n_cols : t->n_rows);
    const struct packed whole = {
        .dtype = DTYPE_F32, .n_out = (uint32_t)n_rows, .n_in = (uint32_t)t->n_cols};
    if (linear->role == WEIGHT_KV_B) return adapter_heads_bytes(m, rank, is_b);
    return adapter_packed_room(&whole);
}

uint64_t adapters_file_bytes(const struct arch *m, const struct ckpt *c)
{
    uint64_t n_bytes = 0;
    for (size_t i = 0; i < ckpt_tensor_count(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(c, i);
        const struct arch_tensor *linear;
        const bool is_b = ends_with(t->name, ADAPTER_B_END);
        char name[CKPT_NAME_MAX + 1];
        uint32_t layer;
        size_t from = 0;
        if (!is_b && !ends_with(t->name, ADAPTER_A_END)) continue;
        snprintf(name, sizeof name, "%.*s", (int)(strlen(t->name) - strlen(ADAPTER_A_END)),
                 t->name);
        if (!adapter_layer_index(m, name, &layer)) continue;
        while ((linear = adapter_row_of(m, layer, name, &from)) != NULL)
            n_bytes += part_bytes(m, linear, is_b, t);
    }
    return n_bytes;
}
