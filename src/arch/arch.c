/* Turns config.json into struct arch: derives values from the fields and checks the fields against
 * each other. arch_fields_read.c reads the fields, arch_family.c lists the families. */
#include "arch/arch_private.h"
#include "base/strbuf.h"
#include "tensor/dims.h"

#include <string.h>

/* Makes the error for an architecture that is in no row of the table. */
static struct status unknown_family(const char *what, const char *name)
{
    struct strbuf known;
    strbuf_init(&known);
    for (size_t i = 0; arch_family_at(i) != NULL; i++) {
        strbuf_printf(&known, "%s%s", i > 0 ? ", " : "", arch_family_at(i)->architecture);
    }
    const struct status st =
        status_make(STATUS_INPUT, "%s: architecture \"%s\" is not implemented; shoal runs %s", what,
                    name, known.data == NULL ? "others" : known.data);
    strbuf_fini(&known);
    return st;
}

static struct status arch_find_family(const struct js_node *root, const char *what,
                                      const struct arch_family **out)
{
    const char *name = js_string(js_at(js_get(root, "architectures"), 0), NULL);
    *out = arch_family_find(name);
    return *out != NULL ? status_ok() : unknown_family(what, name == NULL ? "(none)" : name);
}

static struct status no_theta(const struct arch_reading *r)
{
    return status_make(STATUS_INPUT, "%s: field \"rope_theta\": expected a number, found nothing",
                       r->what);
}

/* Refuses two different values for RoPE in two places: other programs read one or the other. */
static struct status check_rope_is_one(const struct arch_reading *r)
{
    const bool is_old = r->rope_parameters == NULL;
    double theta, outer;
    if (r->rope_scaling != NULL && r->rope_parameters != NULL) {
        return status_make(STATUS_INPUT, "%s: rope_scaling, rope_parameters: expected one of them",
                           r->what);
    }
    if (!js_number(js_get(r->root, "rope_theta"), &outer) ||
        !js_number(js_get(is_old ? r->rope_scaling : r->rope_parameters, "rope_theta"), &theta) ||
        theta == outer)
        return status_ok();
    return status_make(STATUS_INPUT, "%s: rope_theta: expected %g, as %s says, found %g", r->what,
                       theta, is_old ? "rope_scaling" : "rope_parameters", outer);
}

static struct status check_theta(const struct arch_reading *r)
{
    static const char key[] = "rope_theta";
    const bool is_given = js_type(js_get(r->root, key)) != JS_NULL ||
                          js_type(js_get(r->rope_scaling, key)) != JS_NULL ||
                          js_type(js_get(r->rope_parameters, key)) != JS_NULL;
    return is_given || !r->m.family->states_base ? status_ok() : no_theta(r);
}

/* What transformers uses for layers with a window if config.json has one rope_theta for all. */
static const double LOCAL_THETA = 5e5;

/* Finds the RoPE of layers with a window, which may differ: rope_parameters then holds an object
 * for each kind of layer. Without such objects, rope_scaling applies to the other layers alone. */
static struct status find_local_rope(struct arch_reading *r)
{
    const struct js_node *full = js_get(r->rope_parameters, "full_attention");
    double theta;
    if (!r->m.family->local_rope) return status_ok();
    r->m.local_rope = true;
    if (r->rope_parameters == NULL) {
        if (r->m.family->modern) return status_ok(); /* both thetas have defaults */
        if (!js_number(js_get(r->root, "rope_theta"), &theta)) return no_theta(r);
        if (r->m.family->hybrid_kv) return status_ok(); /* arch_derive_hybrid has checked it */
        if (r->m.family->local_theta && r->local_theta == 0)
            return arch_field_missing(r, "rope_local_base_freq");
        if (r->m.family->local_theta) return status_ok();
        if (theta == LOCAL_THETA) return status_ok();
        return status_make(STATUS_INPUT,
                           "%s: rope_theta: expected %.0f for %s, whose implementations differ "
                           "otherwise, found %g",
                           r->what, LOCAL_THETA, r->m.family->title, theta);
    }
    r->local_rope = js_get(r->rope_parameters, "sliding_attention");
    if (js_type(full) != JS_OBJECT || js_type(r->local_rope) != JS_OBJECT) {
        return status_make(STATUS_INPUT,
                           "%s: rope_parameters: expected objects \"full_attention\" and "
                           "\"sliding_attention\" for %s",
                           r->what, r->m.family->title);
    }
    r->rope_parameters = full;
    if (!js_number(js_get(full, "rope_theta"), &theta)) return no_theta(r);
    if (!js_number(js_get(r->local_rope, "rope_theta"), &theta)) return no_theta(r);
    const char *rule = js_string(js_get(r->local_rope, "rope_type"), NULL);
    if (rule == NULL) rule = js_string(js_get(r->local_rope, "type"), NULL);
    if (rule != NULL && strcmp(rule, "default") != 0) {
        return status_make(
            STATUS_INPUT,
            "%s: rope_parameters: sliding_attention of type \"%s\" is not implemented", r->what,
            rule);
    }
    return arch_rope_fields_check(r, r->local_rope, "rope_parameters.sliding_attention");
}

/* Marks the layers without RoPE: those with a 0 in "no_rope_layers", or without that list the last
 * layer of each interval. */
static struct status derive_unrotated(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (!m->family->unrotated) return status_ok();
    for (uint32_t l = 0; l < m->n_layers; l++) {
        int64_t rotates = (l + 1) % r->unrotated_every != 0;
        if (r->no_rope_layers != NULL && !js_int(js_at(r->no_rope_layers, l), &rotates)) {
            return status_make(
                STATUS_INPUT, "%s: no_rope_layers[%u]: expected 0 or 1, found nothing", r->what, l);
        }
        m->layer_is_unrotated[l] = rotates == 0;
    }
    return status_ok();
}

/* Derives RoPE's parameters, which are at the top (older files) or inside rope_parameters. */
static struct status derive_rope(struct arch_reading *r)
{
    struct arch *m = &r->m;
    double part = 1;
    TRY(check_rope_is_one(r));
    TRY(find_local_rope(r));
    TRY(arch_rope_fields_check(r, r->rope_scaling, "rope_scaling"));
    TRY(arch_rope_fields_check(r, r->rope_parameters, "rope_parameters"));
    js_number(js_get(r->rope_scaling, "rope_theta"), &m->rope_theta);
    js_number(js_get(r->rope_parameters, "rope_theta"), &m->rope_theta);
    TRY(check_theta(r));
    TRY(arch_derive_longrope(r));
    TRY(arch_derive_growth(r));
    if (!(m->rope_theta > 1.0 && m->rope_theta < 1e12)) {
        return status_make(STATUS_INPUT, "%s: rope_theta: expected above 1, found %g", r->what,
                           m->rope_theta);
    }
    if (m->family->typed_heads) return status_ok(); /* arch_derive_typed has checked it */
    if (!js_number(js_get(r->rope_parameters, "partial_rotary_factor"), &part)) return status_ok();
    if (!(part > 0 && part <= 1)) {
        return status_make(STATUS_INPUT,
                           "%s: partial_rotary_factor: expected above 0 to 1, found %g", r->what,
                           part);
    }
    if (m->family->ling) return status_ok();  /* arch_derive_ling has checks for it */
    if (m->family->mla && m->family->grows) { /* a part of all elements of a head of q */
        if ((uint32_t)((r->query_own + m->rotary) * part) == m->rotary) return status_ok();
        return status_make(STATUS_INPUT,
                           "%s: partial_rotary_factor: expected %u of %u elements, as "
                           "qk_rope_head_dim says, found %g",
                           r->what, m->rotary, r->query_own + m->rotary, part);
    }
    if (part != 1 && !m->family->partial_rotary) {
        return status_make(STATUS_INPUT,
                           "%s: rope_parameters: partial_rotary_factor is not implemented for %s",
                           r->what, m->family->title);
    }
    r->rotary_part = part;
    return status_ok();
}

/* Derives the sizes of latent attention. The cache holds one KV head per token: the latent, and the
 * rotated key that all heads share. The heads' own projections of keys and values are applied to
 * the query and to the output. */
/* The published code of latent attention scales the scores by mscale_all_dim with every rule;
 * shoal does with yarn. */
static struct status check_latent_scale(const struct arch_reading *r, const struct js_node *rope)
{
    const char *rule = js_string(js_get(rope, "rope_type"), NULL);
    if (rule == NULL) rule = js_string(js_get(rope, "type"), NULL);
    if (rule == NULL || strcmp(rule, "default") == 0 || strcmp(rule, "yarn") == 0 ||
        arch_field_is_off(js_get(rope, "mscale_all_dim")))
        return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: mscale_all_dim is not implemented with RoPE of type \"%s\"", r->what,
                       rule);
}

static struct status derive_latent(struct arch_reading *r)
{
    struct arch *m = &r->m;
    TRY(check_latent_scale(r, r->rope_parameters));
    TRY(check_latent_scale(r, r->rope_scaling));
    if (r->attention_bias) /* of the latents' linears and of o_proj in the published code */
        return status_make(STATUS_INPUT, "%s: attention_bias is not implemented for %s", r->what,
                           m->family->title);
    if (m->kv_lora % LANES != 0 || m->rotary % LANES != 0 || m->kv_lora + m->rotary > 1024) {
        return status_make(STATUS_INPUT,
                           "%s: kv_lora_rank, qk_rope_head_dim: expected multiples of %d, together "
                           "at most 1024, found %u and %u",
                           r->what, LANES, m->kv_lora, m->rotary);
    }
    const bool whole = m->family->grows && m->head_dim == r->query_own + m->rotary;
    if (m->head_dim != 0 && m->head_dim != m->rotary && !whole) {
        return status_make(STATUS_INPUT,
                           "%s: head_dim: expected %u, as qk_rope_head_dim says, found %u", r->what,
                           m->rotary, m->head_dim);
    }
    m->query_dim = r->query_own + m->rotary;
    m->head_dim = m->kv_lora + m->rotary;
    m->latent_norm_eps = 1e-6f; /* fixed in the published code, whatever rms_norm_eps says */
    m->n_kv_heads = 1;
    return status_ok();
}

/* Sets the number of rotated elements of a head. A family with partial rotation must give a
 * fraction or a number, because implementations differ when both are missing (transformers then
 * rotates half of each head of GLM-4.5). */
static struct status derive_rotary(struct arch_reading *r)
{
    static const char key[] = "partial_rotary_factor";
    struct arch *m = &r->m;
    const bool has_part = js_type(js_get(r->root, key)) != JS_NULL ||
                          js_type(js_get(r->rope_parameters, key)) != JS_NULL;
    if (m->family->partial_rotary && !has_part && r->rotary_dim == 0) {
        return status_make(STATUS_INPUT, "%s: field \"%s\": expected a number, found nothing",
                           r->what, key);
    }
    m->rotary = (uint32_t)(m->query_dim * r->rotary_part);
    if (r->rotary_dim > 0 && has_part && r->rotary_dim != m->rotary) {
        return status_make(STATUS_INPUT,
                           "%s: rotary_dim: expected %u, as partial_rotary_factor says, found %u",
                           r->what, m->rotary, r->rotary_dim);
    }
    if (r->rotary_dim > m->query_dim) {
        return status_make(STATUS_INPUT, "%s: rotary_dim: expected at most head_dim %u, found %u",
                           r->what, m->query_dim, r->rotary_dim);
    }
    if (r->rotary_dim > 0) m->rotary = r->rotary_dim;
    if (m->rotary >= 2 && m->rotary % 2 == 0) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: head_dim, partial_rotary_factor: %u rotated elements, expected an even "
                       "number",
                       r->what, m->rotary);
}

enum { HEAD_DIM_MAX = 1024 }; /* also the bound of the field "head_dim" in arch_fields.c */

/* Derives the head sizes; latent attention has its own. */
static struct status derive_heads(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (m->family->mla) return derive_latent(r);
    if (m->n_kv_heads == 0) m->n_kv_heads = m->n_heads;
    if (m->head_dim == 0) m->head_dim = m->width / m->n_heads;
    if (m->head_dim > HEAD_DIM_MAX) {
        return status_make(STATUS_INPUT,
                           "%s: hidden_size / num_attention_heads: expected at most %d, found %u",
                           r->what, HEAD_DIM_MAX, m->head_dim);
    }
    m->query_dim = m->head_dim;
    if (m->value_dim == 0) m->value_dim = m->head_dim;
    m->head_dim = (m->head_dim + LANES - 1) / LANES * LANES;
    if ((m->family->qk_norm_last || m->l2_norm) && m->head_dim != m->query_dim) {
        return status_make(STATUS_INPUT, "%s: head_dim: expected a multiple of %d for %s, found %u",
                           r->what, LANES, m->family->title, m->query_dim);
    }
    TRY(derive_rotary(r));
    return arch_derive_typed_heads(r);
}

static struct status check_heads(const struct arch_reading *r)
{
    const struct arch *m = &r->m;
    if (m->n_heads % m->n_kv_heads != 0) {
        return status_make(
            STATUS_INPUT,
            "%s: num_attention_heads: expected a multiple of the %u KV heads, found %u", r->what,
            m->n_kv_heads, m->n_heads);
    }
    if (m->n_heads / m->n_kv_heads > 256 || m->n_kv_heads > 256) {
        return status_make(STATUS_INPUT,
                           "%s: num_key_value_heads: expected at most 256, and at least a 256th of "
                           "the %u heads, found %u",
                           r->what, m->n_heads, m->n_kv_heads);
    }
    return status_ok();
}

/* Derives the biases of attention's linears, its norms, and the scale of its scores. */
static void derive_attention(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const struct arch_family *f = m->family;
    m->qkv_bias = f->qkv_bias ? r->qkv_bias : r->attention_bias;
    m->ffn_bias = m->ffn_bias || (f->use_bias && r->attention_bias);
    m->o_bias = f->o_bias_switch ? r->attention_out_bias
                                 : r->attention_bias && !f->qkv_bias && !f->o_unbiased;
    m->qk_norm = m->qk_norm || f->qk_norm;
    m->qk_norm_whole = f->qk_norm_whole;
    m->gated_heads = f->gated_heads;
    m->sinks = f->sinks;
    if (m->scale.attention == 0) m->scale.attention = 1.0f / __builtin_sqrtf((float)m->query_dim);
    m->scale.logits = 1.0f / r->logits_divisor;
}

/* Reads each layer's attention from "layer_types". If a family's window rule covers all layers or
 * none, the list may only repeat that rule, unless the family is window_listed. */
static struct status derive_layer_types(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const enum window_rule rule = m->family->window;
    const char *word = m->family->chunked ? "chunked_attention" : "sliding_attention";
    if (m->family->delta) return arch_derive_delta(r);
    if (m->family->delta_by_channel) return arch_derive_kimi(r);
    if (m->family->ling) return arch_derive_ling(r);
    if (m->family->mamba) return arch_derive_mamba(r);
    if (m->family->indexed) return arch_derive_index(r);
    if (r->layer_types == NULL) return status_ok();
    if (js_type(r->layer_types) != JS_ARRAY || js_count(r->layer_types) != m->n_layers) {
        return status_make(STATUS_INPUT, "%s: layer_types: expected a list of %u", r->what,
                           m->n_layers);
    }
    for (uint32_t l = 0; l < m->n_layers; l++) {
        const char *type = js_string(js_at(r->layer_types, l), NULL);
        const bool slides = type != NULL && strcmp(type, word) == 0;
        const bool may = m->family->chunked || rule == WINDOW_UPPER || rule == WINDOW_EVEN ||
                         rule == WINDOW_MOST || rule == WINDOW_INNER || rule == WINDOW_AFTER ||
                         m->family->window_listed;
        if ((!slides && (type == NULL || strcmp(type, "full_attention") != 0)) ||
            (slides && m->window == 0) || (!may && slides != m->layer_has_window[l])) {
            return status_make(STATUS_INPUT,
                               "%s: layer_types[%u] \"%s\" is not implemented for %s with "
                               "sliding_window %u",
                               r->what, l, type == NULL ? "(no text)" : type, m->family->title,
                               m->window);
        }
        m->layer_has_window[l] = slides;
    }
    return status_ok();
}

/* True when the layer has a window by the family's rule. */
static bool rule_has_window(const struct arch_reading *r, uint32_t layer, uint32_t period)
{
    const struct arch_family *f = r->m.family;
    const bool has_from = js_type(js_get(r->root, "max_window_layers")) != JS_NULL;
    switch (f->window) {
    case WINDOW_NONE:
        return false;
    case WINDOW_ALL:
        return true;
    case WINDOW_UPPER:
        return layer >= (has_from || f->window_from == 0 ? r->window_from : f->window_from);
    case WINDOW_EVEN:
        return layer % 2 == 0;
    case WINDOW_INNER:
        return layer > 0 && (layer + 1) % period != 0;
    case WINDOW_MOST:
        return (layer + 1) % period != 0;
    case WINDOW_AFTER:
        return layer % r->full_every != 0;
    }
    return false;
}

/* Finds the period of WINDOW_MOST; a text ("LLLG") in its place needs "layer_types" beside it. */
static struct status find_period(const struct arch_reading *r, uint32_t *out)
{
    int64_t period = r->m.family->window_period > 0 ? r->m.family->window_period : 4;
    *out = (uint32_t)period;
    if (r->layer_types != NULL || js_type(r->window_pattern) == JS_NULL) return status_ok();
    if (!js_int(r->window_pattern, &period) || period < 1 || period > ARCH_LAYERS_MAX) {
        return status_make(STATUS_INPUT,
                           "%s: sliding_window_pattern: expected an integer from 1 to %d, or "
                           "layer_types beside it",
                           r->what, ARCH_LAYERS_MAX);
    }
    *out = (uint32_t)period;
    return status_ok();
}

static struct status derive_window(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const struct arch_family *f = m->family;
    const bool always = f->window != WINDOW_NONE && !f->window_switch;
    uint32_t period;
    TRY(find_period(r, &period));
    if (r->uses_window && f->window == WINDOW_NONE) {
        return status_make(STATUS_INPUT, "%s: use_sliding_window is not implemented for %s",
                           r->what, f->title);
    }
    if ((f->window_stated || r->uses_window) && js_get(r->root, "sliding_window") == NULL) {
        return status_make(
            STATUS_INPUT,
            "%s: field \"sliding_window\": expected an integer or null, found nothing", r->what);
    }
    if (f->chunked) TRY(arch_derive_chunks(r));
    if (f->local_theta && r->window == 0) {
        return status_make(STATUS_INPUT, "%s: field \"sliding_window\": expected at least 1 for %s",
                           r->what, f->title);
    }
    if ((always || r->uses_window) && r->window > 0) {
        m->window = r->window;
        for (uint32_t l = 0; l < m->n_layers; l++) {
            m->layer_has_window[l] = rule_has_window(r, l, period);
        }
    }
    TRY(derive_layer_types(r));
    for (uint32_t l = 0; f->unrotated_full && m->window > 0 && l < m->n_layers; l++) {
        m->layer_is_unrotated[l] = !m->layer_has_window[l];
    }
    return status_ok();
}

/* Marks the MoE layers: layer l if sparse_step divides l + 1 and moe_every divides l, except
 * mlp_only_layers, the first n_dense_layers and those after moe_last. */
static struct status derive_sparsity(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (m->family->mamba_blocks) return status_ok(); /* arch_derive_mamba has marked them */
    if (m->family->typed_mlps) return arch_derive_typed_mlps(r);
    if (r->moe_layers != NULL) return arch_derive_moe_layers(r);
    for (uint32_t l = 0; m->shortcut && l < m->n_layers; l += 2) m->layer_is_moe[l] = true;
    if (m->shortcut) return status_ok();
    for (uint32_t l = 0; l < m->n_layers + m->may_predict; l++) {
        m->layer_is_moe[l] = (l + 1) % r->sparse_step == 0 && l >= r->n_dense_layers &&
                             l % r->moe_every == 0 && l <= r->moe_last;
    }
    for (size_t i = 0; i < js_count(r->mlp_only_layers); i++) {
        int64_t l;
        if (!js_int(js_at(r->mlp_only_layers, i), &l) || l < 0 || l >= m->n_layers) {
            return status_make(STATUS_INPUT, "%s: mlp_only_layers[%zu]: expected a layer below %u",
                               r->what, i, m->n_layers);
        }
        m->layer_is_moe[l] = false;
    }
    return status_ok();
}

/* Refuses a text other than `wanted`; accepts a missing one. */
static struct status check_text(const struct arch_reading *r, const struct js_node *node,
                                const char *key, const char *wanted)
{
    const char *found = js_string(node, NULL);
    if (found == NULL || strcmp(found, wanted) == 0) return status_ok();
    return status_make(STATUS_INPUT, "%s: %s \"%s\" is not implemented for %s", r->what, key, found,
                       r->m.family->title);
}

/* Derives group-limited routing: a token's experts are in its best topk_group of n_group groups. */
static struct status derive_groups(struct arch_reading *r)
{
    const struct arch *m = &r->m;
    struct router_rule *rule = &r->m.router;
    const bool sigmoid = m->family->sigmoid;
    const char *method = js_string(r->topk_method, NULL);
    if (rule->n_groups == 0 || (!sigmoid && method != NULL && strcmp(method, "greedy") == 0)) {
        rule->n_groups = rule->n_groups_chosen = 0;
        return status_ok();
    }
    TRY(check_text(r, r->topk_method, "topk_method",
                   sigmoid ? "noaux_tc" : "group_limited_greedy"));
    if (!sigmoid && method == NULL && rule->n_groups > 1) {
        return status_make(
            STATUS_INPUT,
            "%s: field \"topk_method\": expected a text beside n_group, found nothing", r->what);
    }
    if (m->family->grows && rule->n_groups > 1) {
        return status_make(STATUS_INPUT, "%s: n_group: expected 1 for %s, found %u", r->what,
                           m->family->title, rule->n_groups);
    }
    if (rule->n_groups_chosen == 0) return arch_field_missing(r, "topk_group");
    if (m->n_experts % rule->n_groups == 0 && rule->n_groups_chosen <= rule->n_groups &&
        m->n_chosen <= m->n_experts / rule->n_groups * rule->n_groups_chosen)
        return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: n_group: %u experts, %u of them in %u of %u equal groups, cannot be",
                       r->what, m->n_experts, m->n_chosen, rule->n_groups_chosen, rule->n_groups);
}

static struct status derive_router(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const struct arch_family *f = m->family;
    const bool renormalise = f->renormalise || r->norm_topk_prob;
    TRY(check_text(r, r->scoring_func, "scoring_func", f->sigmoid ? "sigmoid" : "softmax"));
    if (r->norm_topk_prob && f->never_renormalised) {
        return status_make(STATUS_INPUT,
                           "%s: norm_topk_prob: true is not implemented for %s, whose "
                           "implementations scale such weights differently",
                           r->what, f->title);
    }
    m->router.kind = f->sigmoid ? (renormalise ? ROUTER_SIGMOID_RENORM : ROUTER_SIGMOID)
                                : (renormalise ? ROUTER_SOFTMAX_RENORM : ROUTER_SOFTMAX);
    if (f->biased_softmax) m->router.kind = f->shortcut ? ROUTER_BIASED : ROUTER_BIASED_RENORM;
    m->router.scale = r->routed_scale == 1.0f ? 0.0f : r->routed_scale;
    TRY(derive_groups(r));
    if (f->weighs_inputs) m->router = (struct router_rule){.kind = ROUTER_SIGMOID_AFTER};
    if (!f->mixer) return status_ok();
    m->router = (struct router_rule){.kind = ROUTER_MIXER, .scale = 2 * r->jitter};
    return status_ok();
}

static struct status derive_ffn(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const struct arch_family *f = m->family;
    bool any_dense = false;
    if (f->mamba_granite && m->n_experts == 0) {
        m->lone_shared = true;
        m->n_chosen = 0;
        m->ffn = m->shared_ffn;
        m->shared_ffn = 0;
    }
    const bool may_be_dense = f->mamba_blocks || f->typed_heads;
    if (!f->has_experts || m->lone_shared || (may_be_dense && m->n_experts == 0))
        return m->ffn > 0 ? status_ok() : arch_field_missing(r, "intermediate_size");
    if (m->n_experts == 0)
        return arch_field_missing(r, f->ling || f->delta_by_channel ? "num_experts"
                                                                    : "num_local_experts");
    TRY(arch_derive_experts(r));
    if (m->n_chosen > m->n_experts) {
        return status_make(STATUS_INPUT,
                           "%s: num_experts_per_tok: expected at most the %u experts, found %u",
                           r->what, m->n_experts, m->n_chosen);
    }
    if (!f->own_expert_width && !f->mamba_blocks && !f->shortcut) m->expert_ffn = m->ffn;
    if (f->weighs_inputs) m->ffn = r->ffn_mlp;
    if (f->counts_shared) m->shared_ffn = r->n_shared * m->expert_ffn;
    m->shared_mix = m->shared_ffn > 0 && f->names->shared_mix != NULL;
    m->expert_bias = f->expert_bias;
    m->select_bias = f->sigmoid || f->biased_softmax;
    TRY(derive_sparsity(r));
    for (uint32_t l = 0; l < m->n_layers; l++)
        any_dense = any_dense || (!m->layer_is_moe[l] && !m->layer_lacks_ffn[l]);
    if (m->ffn == 0 && (any_dense || (!f->own_expert_width && !f->mamba_blocks)))
        return arch_field_missing(r, "intermediate_size");
    if (!any_dense) m->ffn = 0;
    return derive_router(r);
}

static void derive_eos(struct arch_reading *r)
{
    struct arch *m = &r->m;
    int64_t id;
    if (js_int(r->eos_token_id, &id)) m->eos_ids[m->n_eos_ids++] = (int32_t)id;
    if (js_type(r->eos_token_id) != JS_ARRAY) return;
    for (size_t i = 0; i < js_count(r->eos_token_id) && i < 16; i++) {
        if (js_int(js_at(r->eos_token_id, i), &id)) m->eos_ids[m->n_eos_ids++] = (int32_t)id;
    }
}

static struct status parse_root(struct arch_reading *r)
{
    if (js_type(r->root) != JS_OBJECT) {
        return status_make(STATUS_INPUT, "%s: expected a JSON object", r->what);
    }
    if (js_get(r->root, "adapter_type") != NULL) {
        return status_make(STATUS_INPUT,
                           "%s: is an adapter, not a model; expected the model here, and the "
                           "adapter as --adapter NAME=FILE.h5 beside it",
                           r->what);
    }
    TRY(arch_find_family(r->root, r->what, &r->m.family));
    r->m.rope_pairs = r->m.family->mla;
    r->m.tied = r->m.family->tied;
    r->norm_topk_prob = r->m.family->mamba_blocks; /* the default of "norm_topk_prob" */
    TRY(arch_fields_read(r));
    r->m.may_predict = r->n_predict > 0 && r->m.n_layers < ARCH_LAYERS_MAX;
    TRY(arch_derive_blocks(r));
    TRY(arch_derive_shortcut(r));
    TRY(arch_derive_hybrid(r));
    TRY(arch_derive_typed(r));
    TRY(derive_rope(r));
    TRY(derive_unrotated(r));
    TRY(derive_heads(r));
    TRY(check_heads(r));
    derive_attention(r);
    TRY(arch_derive_encoder(r));
    TRY(arch_derive_gemma(r));
    TRY(derive_window(r));
    TRY(derive_ffn(r));
    TRY(arch_check_hybrid(r));
    TRY(arch_check_typed(r));
    derive_eos(r);
    return status_ok();
}

struct status arch_parse(const char *json, size_t n, const char *what, struct arch *out)
{
    memset(out, 0, sizeof *out);
    struct js_doc *doc = NULL;
    TRY(js_parse(json, n, what, &doc));
    /* values for families without these fields */
    struct arch_reading r = {
        .m = {.scale = {.embed = 1, .residual = 1}, .delta = {.conv_bias = true}},
        .what = what,
        .root = js_root(doc),
        .rotary_part = 1,
        .qkv_bias = true,
        .sparse_step = 1,
        .moe_every = 1,
        .moe_last = ARCH_LAYERS_MAX,
        .routed_scale = 1,
        .logits_divisor = 1};
    const struct status st = parse_root(&r);
    if (!status_failed(&st)) *out = r.m;
    js_destroy(&doc);
    return st;
}
