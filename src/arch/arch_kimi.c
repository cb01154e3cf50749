/* Reads Kimi-Linear's config: marks the layers that have a delta rule with a decay for each
 * channel, sets the rule's sizes, and refuses fields that shoal cannot run. Called by arch.c. */
#include "arch/arch_private.h"

#include <string.h>

static struct status expected(const struct arch_reading *r, const char *key, const char *what)
{
    return status_make(STATUS_INPUT, "%s: %s: expected %s for %s", r->what, key, what,
                       r->m.family->title);
}

/* Refuses the first name of each pair. transformers takes it for another name of the second field;
 * programs differ in which of the two they read. */
static struct status check_names(const struct arch_reading *r)
{
    static const char *const names[][2] = {{"max_position_embeddings", "model_max_length"},
                                           {"norm_topk_prob", "moe_renormalize"},
                                           {"n_group", "num_expert_group"},
                                           {"num_local_experts", "num_experts"},
                                           {"n_routed_experts", "num_experts"},
                                           {"num_experts_per_tok", "num_experts_per_token"},
                                           {"n_shared_experts", "num_shared_experts"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (js_type(js_get(r->root, names[i][0])) == JS_NULL) continue;
        return status_make(STATUS_INPUT, "%s: field \"%s\": expected the name \"%s\" for %s",
                           r->what, names[i][0], names[i][1], r->m.family->title);
    }
    return status_ok();
}

static struct status check_unread(const struct arch_reading *r)
{
    int64_t n_kv;
    if (r->m.tied) return expected(r, "tie_word_embeddings", "false");
    if (r->rope_scaling != NULL || r->rope_parameters != NULL)
        return expected(r, "rope_scaling, rope_parameters", "none, because there is no RoPE,");
    if (js_int(js_get(r->root, "num_key_value_heads"), &n_kv) && n_kv != r->m.n_heads)
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
        const struct js_node *node = js_get(r->linear_config, sizes[i].key);
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
    while (js_next(r->linear_config, &it, &key, &value)) {
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
    const struct js_node *list = js_get(r->linear_config, key);
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

/* Sets layer_is_delta by the lists in linear_attn_config; each layer must be in one of the two. */
static struct status take_lists(struct arch_reading *r)
{
    bool full[ARCH_LAYERS_MAX] = {false};
    memset(r->m.layer_is_delta, 0, sizeof r->m.layer_is_delta);
    TRY(mark_listed(r, "full_attn_layers", full));
    TRY(mark_listed(r, "kda_layers", r->m.layer_is_delta));
    for (uint32_t l = 0; l < r->m.n_layers; l++) {
        if (full[l] != r->m.layer_is_delta[l]) continue;
        return status_make(STATUS_INPUT,
                           "%s: linear_attn_config: expected layer %u in one of full_attn_layers "
                           "and kda_layers",
                           r->what, l + 1);
    }
    return status_ok();
}

/* Sets layer_is_delta by layer_types, which may repeat the lists but not contradict them. */
static struct status take_types(struct arch_reading *r, bool has_lists)
{
    if (js_type(r->layer_types) != JS_ARRAY || js_count(r->layer_types) != r->m.n_layers)
        return status_make(STATUS_INPUT, "%s: layer_types: expected a list of %u", r->what,
                           r->m.n_layers);
    for (uint32_t l = 0; l < r->m.n_layers; l++) {
        const char *type = js_string(js_at(r->layer_types, l), NULL);
        const bool is_delta = type != NULL && strcmp(type, "linear_attention") == 0;
        const bool is_full = type != NULL && strcmp(type, "full_attention") == 0;
        if ((!is_delta && !is_full) || (has_lists && is_delta != r->m.layer_is_delta[l]))
            return status_make(STATUS_INPUT,
                               "%s: layer_types[%u]: expected \"linear_attention\" or "
                               "\"full_attention\", as linear_attn_config says if it has lists",
                               r->what, l);
        r->m.layer_is_delta[l] = is_delta;
    }
    return status_ok();
}

struct status arch_derive_kimi(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const bool has_lists = js_type(js_get(r->linear_config, "full_attn_layers")) != JS_NULL ||
                           js_type(js_get(r->linear_config, "kda_layers")) != JS_NULL;
    TRY(check_names(r));
    TRY(check_unread(r));
    TRY(check_members(r));
    TRY(read_sizes(r));
    if (has_lists) TRY(take_lists(r));
    if (r->layer_types != NULL) TRY(take_types(r, has_lists));
    if (!has_lists && r->layer_types == NULL)
        return expected(r, "linear_attn_config", "full_attn_layers and kda_layers");
    for (uint32_t l = 0; l < m->n_layers; l++) m->layer_is_unrotated[l] = true;
    const uint32_t n_delta = arch_delta_layers(m, 0, m->n_layers);
    if (n_delta > 0 && n_delta < m->n_layers) return status_ok();
    return expected(r, "linear_attn_config", "layers of both kinds");
}
