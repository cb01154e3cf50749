/* Reads the configs of Kimi-Linear and Ling 3: marks the layers that have a delta rule with a decay
 * for each channel, sets the rule's sizes, and refuses fields that shoal cannot run. Called by
 * arch.c. */
#include "arch/arch_private.h"

#include <string.h>

static struct status expected(const struct arch_reading *r, const char *key, const char *what)
{
    return status_make(STATUS_INPUT, "%s: %s: expected %s for %s", r->what, key, what,
                       r->m.family->title);
}

static bool is_given(const struct arch_reading *r, const char *key)
{
    return js_type(js_get(r->root, key)) != JS_NULL;
}

/* Two names that transformers takes for one field: that of most families, and the family's own.
 * Programs differ in which they read. */
struct names {
    const char *usual, *own;
};

static const struct names either[] = {{"max_position_embeddings", "model_max_length"},
                                      {"norm_topk_prob", "moe_renormalize"},
                                      {"n_group", "num_expert_group"},
                                      {"num_experts_per_tok", "num_experts_per_token"}};
static const struct names only_own[] = {{"num_local_experts", "num_experts"},
                                        {"n_routed_experts", "num_experts"},
                                        {"n_shared_experts", "num_shared_experts"}};
enum { N_EITHER = sizeof either / sizeof either[0], N_OWN = sizeof only_own / sizeof only_own[0] };

/* Refuses the usual names. */
static struct status check_names(const struct arch_reading *r, const struct names *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!is_given(r, names[i].usual)) continue;
        return status_make(STATUS_INPUT, "%s: field \"%s\": expected the name \"%s\" for %s",
                           r->what, names[i].usual, names[i].own, r->m.family->title);
    }
    return status_ok();
}

/* Refuses a field with both names, or with none. */
static struct status check_either(const struct arch_reading *r)
{
    for (size_t i = 0; i < N_EITHER; i++) {
        const bool has_usual = is_given(r, either[i].usual), has_own = is_given(r, either[i].own);
        if (has_usual != has_own) continue;
        return status_make(STATUS_INPUT,
                           "%s: fields \"%s\", \"%s\": expected one of them, found %s", r->what,
                           either[i].usual, either[i].own, has_own ? "both" : "none");
    }
    return status_ok();
}

static struct status check_kimi_unread(const struct arch_reading *r)
{
    int64_t n_kv;
    if (r->m.tied) return expected(r, "tie_word_embeddings", "false");
    if (js_int(js_get(r->root, "num_key_value_heads"), &n_kv) && n_kv != r->m.attn.n_heads)
        return expected(r, "num_key_value_heads", "num_attention_heads, or none");
    return status_ok();
}

/* Reads the numbers of linear_attn_config. They override the sizes that were read from fields
 * outside it. */
static struct status read_sizes(struct arch_reading *r)
{
    struct arch_delta *d = &r->m.delta;
    const struct {
        const char *key;
        uint32_t most, *to;
    } sizes[] = {{"head_dim", 1024, &d->key_dim},
                 {"num_heads", 4096, &d->n_key_heads},
                 {"short_conv_kernel_size", ARCH_TAPS_MAX, &d->n_taps}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const struct js_node *node = js_get(r->node.linear_config, sizes[i].key);
        int64_t n = *sizes[i].to;
        const bool is_read = js_type(node) == JS_NULL || js_int(node, &n);
        if (!is_read || n < 1 || n > sizes[i].most)
            return status_make(STATUS_INPUT,
                               "%s: linear_attn_config: field \"%s\": expected an integer from 1 "
                               "to %u",
                               r->what, sizes[i].key, sizes[i].most);
        *sizes[i].to = (uint32_t)n;
    }
    d->value_dim = d->key_dim;
    d->n_value_heads = d->n_key_heads;
    d->by_channel = true;
    return status_ok();
}

/* Refuses members of linear_attn_config that shoal does not know. */
static struct status check_members(const struct arch_reading *r)
{
    static const char *const known[] = {"head_dim", "num_heads", "short_conv_kernel_size",
                                        "full_attn_layers", "kda_layers"};
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(r->node.linear_config, &it, &key, &value)) {
        bool is_known = arch_field_is_off(value);
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            is_known = is_known || strcmp(key, known[i]) == 0;
        if (!is_known)
            return status_make(STATUS_INPUT,
                               "%s: linear_attn_config: field \"%s\" is not implemented", r->what,
                               key);
    }
    return status_ok();
}

/* Marks the layers in a list, which counts them from 1. */
static struct status mark_listed(const struct arch_reading *r, const char *key,
                                 bool marks[ARCH_LAYERS_MAX])
{
    const struct js_node *list = js_get(r->node.linear_config, key);
    for (size_t i = 0; i < js_count(list); i++) {
        int64_t l;
        if (!js_int(js_at(list, i), &l) || l < 1 || l > r->m.n_layers)
            return status_make(STATUS_INPUT,
                               "%s: linear_attn_config: %s: expected layers from 1 to "
                               "%u",
                               r->what, key, r->m.n_layers);
        marks[l - 1] = true;
    }
    return status_ok();
}

/* Sets layer.is_delta by the two lists in linear_attn_config; each layer must be in just one. */
static struct status take_lists(struct arch_reading *r)
{
    bool full[ARCH_LAYERS_MAX] = {false};
    memset(r->m.layer.is_delta, 0, sizeof r->m.layer.is_delta);
    TRY(mark_listed(r, "full_attn_layers", full));
    TRY(mark_listed(r, "kda_layers", r->m.layer.is_delta));
    for (uint32_t l = 0; l < r->m.n_layers; l++) {
        if (full[l] != r->m.layer.is_delta[l]) continue;
        return status_make(STATUS_INPUT,
                           "%s: linear_attn_config: expected layer %u in one of full_attn_layers "
                           "and kda_layers",
                           r->what, l + 1);
    }
    return status_ok();
}

/* Sets layer.is_delta by layer_types, which may repeat the lists but not contradict them. */
static struct status take_types(struct arch_reading *r, bool has_lists)
{
    if (js_type(r->node.layer_types) != JS_ARRAY || js_count(r->node.layer_types) != r->m.n_layers)
        return status_make(STATUS_INPUT, "%s: layer_types: expected a list of %u", r->what,
                           r->m.n_layers);
    for (uint32_t l = 0; l < r->m.n_layers; l++) {
        const char *type = js_string(js_at(r->node.layer_types, l), NULL);
        const bool is_delta = type != NULL && strcmp(type, "linear_attention") == 0;
        const bool is_full = type != NULL && strcmp(type, "full_attention") == 0;
        if ((!is_delta && !is_full) || (has_lists && is_delta != r->m.layer.is_delta[l]))
            return status_make(STATUS_INPUT,
                               "%s: layer_types[%u]: expected \"linear_attention\" or "
                               "\"full_attention\", as linear_attn_config says if it has lists",
                               r->what, l);
        r->m.layer.is_delta[l] = is_delta;
    }
    return status_ok();
}

static struct status check_kinds(const struct arch_reading *r, const char *key)
{
    const uint32_t n_delta = arch_delta_layers(&r->m, 0, r->m.n_layers);
    if (n_delta > 0 && n_delta < r->m.n_layers) return status_ok();
    return expected(r, key, "layers of both kinds");
}

struct status arch_derive_kimi(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const bool has_lists = js_type(js_get(r->node.linear_config, "full_attn_layers")) != JS_NULL ||
                           js_type(js_get(r->node.linear_config, "kda_layers")) != JS_NULL;
    TRY(check_names(r, either, N_EITHER));
    TRY(check_names(r, only_own, N_OWN));
    TRY(check_kimi_unread(r));
    if (r->node.rope_scaling != NULL || r->node.rope_parameters != NULL)
        return expected(r, "rope_scaling, rope_parameters", "none, because there is no RoPE,");
    TRY(check_members(r));
    TRY(read_sizes(r));
    if (has_lists) TRY(take_lists(r));
    if (r->node.layer_types != NULL) TRY(take_types(r, has_lists));
    if (!has_lists && r->node.layer_types == NULL)
        return expected(r, "linear_attn_config", "full_attn_layers and kda_layers");
    for (uint32_t l = 0; l < m->n_layers; l++) m->layer.is_unrotated[l] = true;
    return check_kinds(r, "linear_attn_config");
}

/* Sets layer.is_delta by "layer_types", or by the number of layers in a group. */
static struct status take_groups(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (r->node.layer_types != NULL) return take_types(r, false);
    if (r->pattern.group_size == 0) return arch_field_missing(r, "layer_group_size");
    /* programs differ in the layers after the last whole group */
    if (m->n_layers % r->pattern.group_size != 0)
        return status_make(STATUS_INPUT,
                           "%s: layer_group_size: expected a divisor of the %u layers, found %u",
                           r->what, m->n_layers, r->pattern.group_size);
    for (uint32_t l = 0; l < m->n_layers; l++)
        m->layer.is_delta[l] = (l + 1) % r->pattern.group_size != 0;
    return status_ok();
}

/* Sets the sizes of Ling's delta rule. transformers writes them under names of its own, which are
 * read first; under the publisher's names it writes other values. */
static struct status take_ling_sizes(struct arch_reading *r)
{
    struct arch_delta *d = &r->m.delta;
    if (d->key_dim == 0) d->key_dim = r->delta_width;
    if (d->key_dim == 0) return arch_field_missing(r, "head_dim");
    if (d->n_taps == 0) d->n_taps = r->delta_taps;
    if (d->n_taps == 0) return arch_field_missing(r, "short_conv_kernel_size");
    if (d->n_key_heads == 0) d->n_key_heads = r->m.attn.n_heads;
    if (d->is_bounded && !is_given(r, "kda_lower_bound"))
        return arch_field_missing(r, "kda_lower_bound");
    d->value_dim = d->key_dim;
    d->n_value_heads = d->n_key_heads;
    d->by_channel = true;
    return status_ok();
}

/* Refuses a "partial_rotary_factor" other than 1 beside a rule that scales RoPE; plain RoPE does
 * not read it. Refuses a "rotary_dim" that is not qk_rope_head_dim. */
static struct status check_ling_rope(const struct arch_reading *r)
{
    static const char key[] = "partial_rotary_factor";
    const struct js_node *rope =
        r->node.rope_parameters != NULL ? r->node.rope_parameters : r->node.rope_scaling;
    const char *rule = arch_rope_rule(rope);
    double part = 1;
    js_number(js_get(r->root, key), &part);
    js_number(js_get(rope, key), &part);
    if (part != 1 && rule != NULL && strcmp(rule, "default") != 0)
        return expected(r, "RoPE scaling: partial_rotary_factor", "1");
    if (r->rotary_dim == 0 || r->rotary_dim == r->m.attn.rotary) return status_ok();
    return expected(r, "rotary_dim", "the number that qk_rope_head_dim says");
}

struct status arch_derive_ling(struct arch_reading *r)
{
    TRY(check_either(r));
    TRY(check_names(r, only_own, N_OWN));
    TRY(check_kimi_unread(r));
    TRY(check_ling_rope(r));
    TRY(take_ling_sizes(r));
    TRY(take_groups(r));
    r->m.attn.head_gates = true;
    if (!is_given(r, "first_k_dense_replace") && r->node.mlp_layer_types == NULL)
        return arch_field_missing(r, "first_k_dense_replace");
    return check_kinds(r, "layer_types, layer_group_size");
}
