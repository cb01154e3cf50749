/* Reads and checks the parts of a config that only Gemma-4 has: heads whose width and number depend
 * on the kind of the layer, and experts beside a dense FFN. Called by arch.c. */
#include "arch/arch_private.h"
#include "tensor/dims.h"

#include <stdlib.h>
#include <string.h>

/* Refuses fields that shoal would read and transformers would not, and attention's biases. */
static struct status check_unread(const struct arch_reading *r)
{
    static const char *const keys[] = {
        "num_experts_per_tok", "num_local_experts", "n_routed_experts",      "n_group",
        "topk_group",          "topk_method",       "scoring_func",          "rope_scaling",
        "attention_bias",      "norm_topk_prob",    "routed_scaling_factor", "moe_layer_freq"};
    return arch_refuse_fields(r, keys, sizeof keys / sizeof keys[0]);
}

/* Refuses the features of the smaller models: embeddings per layer, shared keys and values. */
static struct status check_small(const struct arch_reading *r)
{
    static const char embeds[] = "hidden_size_per_layer_input", shares[] = "num_kv_shared_layers";
    int64_t n;
    if (!js_int(js_get(r->root, embeds), &n))
        return status_make(STATUS_INPUT, "%s: field \"%s\": expected an integer, found nothing",
                           r->what, embeds);
    if (n != 0)
        return status_make(STATUS_INPUT,
                           "%s: %s: embeddings that each layer has of its own are not implemented",
                           r->what, embeds);
    if (arch_field_is_off(js_get(r->root, shares))) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: %s: layers that share keys and values are not implemented", r->what,
                       shares);
}

/* Checks the RoPE of both kinds of layers. It is plain; in layers of full attention it may also be
 * "proportional", the only rule under which a part of a head may be without rotation. */
static struct status check_rope(const struct arch_reading *r)
{
    static const char *const kinds[] = {"full_attention", "sliding_attention"};
    if (r->node.rope_parameters == NULL)
        return status_make(STATUS_INPUT,
                           "%s: field \"rope_parameters\": expected an object, found nothing",
                           r->what);
    for (int i = 0; i < 2; i++) {
        const struct js_node *own = js_get(r->node.rope_parameters, kinds[i]);
        const char *rule = arch_rope_rule(own);
        const bool is_part = i == 0 && rule != NULL && strcmp(rule, "proportional") == 0;
        double part = 1;
        if (js_type(own) == JS_NULL) continue; /* refused where it is read */
        if (!is_part && (rule == NULL || strcmp(rule, "default") != 0))
            return status_make(
                STATUS_INPUT, "%s: rope_parameters.%s: expected rope_type \"default\"%s for %s",
                r->what, kinds[i], i == 0 ? " or \"proportional\"" : "", r->m.family->title);
        js_number(js_get(own, "partial_rotary_factor"), &part);
        if (part == 1 || (is_part && part >= 0 && part < 1)) continue;
        return status_make(STATUS_INPUT,
                           "%s: rope_parameters.%s: partial_rotary_factor %g is not implemented "
                           "for this rope_type",
                           r->what, kinds[i], part);
    }
    return status_ok();
}

/* Reads the heads of a layer in "per_layer_config", where a missing number is that of the whole
 * model. */
static struct status read_layer(const struct arch_reading *r, const char *layer,
                                const struct js_node *config, uint32_t heads[2])
{
    static const char *const keys[] = {"head_dim", "num_key_value_heads"};
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(config, &it, &key, &value)) {
        int64_t n;
        const int i = strcmp(key, keys[1]) == 0;
        if (strcmp(key, keys[i]) == 0 && js_int(value, &n) && n >= 1 && n <= 1024) {
            heads[i] = (uint32_t)n;
            continue;
        }
        return status_make(STATUS_INPUT,
                           "%s: per_layer_config: layer %s: expected head_dim and "
                           "num_key_value_heads, from 1 to 1024, found \"%s\"",
                           r->what, layer, key);
    }
    return status_ok();
}

/* Sets the heads of layers without a window to those of the first layer in "per_layer_config". */
static struct status take_layer_config(struct arch_reading *r)
{
    struct arch *m = &r->m;
    uint32_t heads[2] = {m->attn.head_dim, m->attn.n_kv_heads};
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    if (js_type(r->node.layer_config) != JS_OBJECT ||
        !js_next(r->node.layer_config, &it, &key, &value))
        return status_make(STATUS_INPUT, "%s: per_layer_config: expected an object with layers",
                           r->what);
    TRY(read_layer(r, key, value, heads));
    m->attn.full_dim = heads[0];
    m->attn.n_full_kv_heads = heads[1];
    return status_ok();
}

/* Sets the experts, if the model has them, from fields with names of their own. */
static struct status take_experts(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (!r->has_moe) {
        m->moe.n_experts = m->moe.ffn = 0;
        return status_ok();
    }
    if (m->moe.n_experts == 0) return arch_field_missing(r, "num_experts");
    if (r->top_k == 0) return arch_field_missing(r, "top_k_experts");
    if (m->moe.ffn == 0) return arch_field_missing(r, "moe_intermediate_size");
    if (m->ffn == 0) return arch_field_missing(r, "intermediate_size");
    m->moe.n_chosen = r->top_k;
    m->moe.joins = true;
    return status_ok();
}

struct status arch_derive_typed(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (!m->family->typed_heads) return status_ok();
    TRY(check_unread(r));
    TRY(check_small(r));
    TRY(check_rope(r));
    if (!m->attn.full_k_is_v || m->attn.n_full_kv_heads == 0)
        m->attn.n_full_kv_heads = m->attn.n_kv_heads;
    if (r->node.layer_config != NULL) TRY(take_layer_config(r));
    if (m->attn.full_dim == 0) return arch_field_missing(r, "global_head_dim");
    m->attn.v_norm = m->layer_scale = true;
    return take_experts(r);
}

struct status arch_derive_typed_heads(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (!m->family->typed_heads) return status_ok();
    const uint32_t wide = (m->attn.full_dim + LANES - 1) / LANES * LANES;
    if (wide > m->attn.head_dim) m->attn.head_dim = wide;
    m->attn.rotary = m->attn.full_dim;
    if (m->attn.full_dim % 2 != 0)
        return status_make(STATUS_INPUT, "%s: global_head_dim: expected an even number, found %u",
                           r->what, m->attn.full_dim);
    if (m->attn.n_kv_heads % m->attn.n_full_kv_heads == 0) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: num_global_key_value_heads: expected a divisor of the %u "
                       "num_key_value_heads, found %u",
                       r->what, m->attn.n_kv_heads, m->attn.n_full_kv_heads);
}

/* Checks that "per_layer_config" has the layers without a window, all with the same heads. */
static struct status check_layer_config(const struct arch_reading *r)
{
    const struct arch *m = &r->m;
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    uint32_t n = 0, n_full = 0;
    for (uint32_t l = 0; l < m->n_layers; l++) n_full += !m->layer.has_window[l];
    for (; js_next(r->node.layer_config, &it, &key, &value); n++) {
        char *end;
        uint32_t heads[2] = {m->attn.query_dim, m->attn.n_kv_heads};
        const unsigned long l = strtoul(key, &end, 10);
        TRY(read_layer(r, key, value, heads));
        if (*end == 0 && end != key && l < m->n_layers && !m->layer.has_window[l] &&
            heads[0] == m->attn.full_dim && heads[1] == m->attn.n_full_kv_heads)
            continue;
        return status_make(STATUS_INPUT,
                           "%s: per_layer_config: layer %s: expected a layer of full_attention "
                           "with %u KV heads of %u elements, as the first one has",
                           r->what, key, m->attn.n_full_kv_heads, m->attn.full_dim);
    }
    if (n == n_full) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: per_layer_config: expected all %u layers of full_attention, found %u",
                       r->what, n_full, n);
}

struct status arch_check_typed(const struct arch_reading *r)
{
    const struct arch *m = &r->m;
    if (!m->family->typed_heads) return status_ok();
    if (r->node.layer_types == NULL)
        return status_make(STATUS_INPUT,
                           "%s: field \"layer_types\": expected a list of %u, found nothing",
                           r->what, m->n_layers);
    if (m->attn.window == 0) return arch_field_missing(r, "sliding_window");
    if (m->layer.has_window[m->n_layers - 1])
        return status_make(STATUS_INPUT, "%s: layer_types: expected \"full_attention\" at the end",
                           r->what);
    return r->node.layer_config != NULL ? check_layer_config(r) : status_ok();
}
