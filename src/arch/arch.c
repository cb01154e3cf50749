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

/* Refuses rope_scaling beside rope_parameters, and a rope_theta that differs from the one in such
 * an object: other programs read one or the other. */
static struct status check_rope_is_one(const struct arch_reading *r)
{
    const bool is_old = r->node.rope_parameters == NULL;
    double theta, outer;
    if (r->node.rope_scaling != NULL && r->node.rope_parameters != NULL) {
        return status_make(STATUS_INPUT, "%s: rope_scaling, rope_parameters: expected one of them",
                           r->what);
    }
    if (!js_number(js_get(r->root, "rope_theta"), &outer) ||
        !js_number(js_get(is_old ? r->node.rope_scaling : r->node.rope_parameters, "rope_theta"),
                   &theta) ||
        theta == outer)
        return status_ok();
    return status_make(STATUS_INPUT, "%s: rope_theta: expected %g, as %s says, found %g", r->what,
                       theta, is_old ? "rope_scaling" : "rope_parameters", outer);
}

static struct status check_theta(const struct arch_reading *r)
{
    static const char key[] = "rope_theta";
    const bool is_given = js_type(js_get(r->root, key)) != JS_NULL ||
                          js_type(js_get(r->node.rope_scaling, key)) != JS_NULL ||
                          js_type(js_get(r->node.rope_parameters, key)) != JS_NULL;
    return is_given || !r->m.family->states_base ? status_ok() : no_theta(r);
}

/* The theta that transformers gives layers with a window if config.json has one rope_theta for all.
 */
static const double LOCAL_THETA = 5e5;

/* Finds the RoPE of layers with a window, which may differ: rope_parameters then holds an object
 * for each kind of layer. Without such objects, rope_scaling applies only to the layers without a
 * window. */
static struct status find_local_rope(struct arch_reading *r)
{
    const struct js_node *full = js_get(r->node.rope_parameters, "full_attention");
    double theta;
    if (r->m.family->compressed) return arch_find_compressed_rope(r);
    if (!r->m.family->local_rope) return status_ok();
    r->m.local_rope = true;
    if (r->node.rope_parameters == NULL) {
        if (r->m.family->modern) return status_ok();  /* both thetas have defaults */
        if (r->m.family->stepped) return status_ok(); /* arch_derive_step has read them */
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
    r->node.local_rope = js_get(r->node.rope_parameters, "sliding_attention");
    if (js_type(full) != JS_OBJECT || js_type(r->node.local_rope) != JS_OBJECT) {
        return status_make(STATUS_INPUT,
                           "%s: rope_parameters: expected objects \"full_attention\" and "
                           "\"sliding_attention\" for %s",
                           r->what, r->m.family->title);
    }
    r->node.rope_parameters = full;
    if (!js_number(js_get(full, "rope_theta"), &theta)) return no_theta(r);
    if (!js_number(js_get(r->node.local_rope, "rope_theta"), &theta)) return no_theta(r);
    const char *rule = arch_rope_rule(r->node.local_rope);
    if (rule != NULL && strcmp(rule, "default") != 0) {
        return status_make(
            STATUS_INPUT,
            "%s: rope_parameters: sliding_attention of type \"%s\" is not implemented", r->what,
            rule);
    }
    return arch_rope_fields_check(r, r->node.local_rope, "rope_parameters.sliding_attention");
}

/* Marks the layers without RoPE: those with a 0 in "no_rope_layers", or without that list the last
 * layer of each interval. */
static struct status derive_unrotated(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (!m->family->unrotated) return status_ok();
    for (uint32_t l = 0; l < m->n_layers; l++) {
        int64_t rotates = (l + 1) % r->pattern.unrotated_every != 0;
        if (r->node.no_rope_layers != NULL && !js_int(js_at(r->node.no_rope_layers, l), &rotates)) {
            return status_make(
                STATUS_INPUT, "%s: no_rope_layers[%u]: expected 0 or 1, found nothing", r->what, l);
        }
        m->layer.is_unrotated[l] = rotates == 0;
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
    TRY(arch_rope_fields_check(r, r->node.rope_scaling, "rope_scaling"));
    TRY(arch_rope_fields_check(r, r->node.rope_parameters, "rope_parameters"));
    js_number(js_get(r->node.rope_scaling, "rope_theta"), &m->rope_theta);
    js_number(js_get(r->node.rope_parameters, "rope_theta"), &m->rope_theta);
    TRY(check_theta(r));
    TRY(arch_derive_longrope(r));
    TRY(arch_derive_growth(r));
    if (!(m->rope_theta > 1.0 && m->rope_theta < 1e12)) {
        return status_make(STATUS_INPUT, "%s: rope_theta: expected above 1, found %g", r->what,
                           m->rope_theta);
    }
    /* arch_derive_typed and arch_derive_step have checked partial_rotary_factor; arch_compressed.c
     * checks it later */
    if (m->family->typed_heads || m->family->stepped || m->family->compressed) return status_ok();
    if (!js_number(js_get(r->node.rope_parameters, "partial_rotary_factor"), &part))
        return status_ok();
    if (!(part > 0 && part <= 1)) {
        return status_make(STATUS_INPUT,
                           "%s: partial_rotary_factor: expected above 0 to 1, found %g", r->what,
                           part);
    }
    if (m->family->ling) return status_ok();  /* arch_derive_ling checks the factor */
    if (m->family->mla && m->family->grows) { /* the factor counts all elements of a head of q */
        if ((uint32_t)((r->query_own + m->attn.rotary) * part) == m->attn.rotary)
            return status_ok();
        return status_make(STATUS_INPUT,
                           "%s: partial_rotary_factor: expected %u of %u elements, as "
                           "qk_rope_head_dim says, found %g",
                           r->what, m->attn.rotary, r->query_own + m->attn.rotary, part);
    }
    if (part != 1 && !m->family->partial_rotary) {
        return status_make(STATUS_INPUT,
                           "%s: rope_parameters: partial_rotary_factor is not implemented for %s",
                           r->what, m->family->title);
    }
    r->rotary_part = part;
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
                          js_type(js_get(r->node.rope_parameters, key)) != JS_NULL;
    /* transformers reads only the fraction of MiniMax-M3 */
    const bool needs_part = m->family->block_indexed || r->rotary_dim == 0;
    if (m->family->partial_rotary && !has_part && needs_part) {
        return status_make(STATUS_INPUT, "%s: field \"%s\": expected a number, found nothing",
                           r->what, key);
    }
    m->attn.rotary = (uint32_t)(m->attn.query_dim * r->rotary_part);
    if (r->rotary_dim > 0 && has_part && r->rotary_dim != m->attn.rotary) {
        return status_make(STATUS_INPUT,
                           "%s: rotary_dim: expected %u, as partial_rotary_factor says, found %u",
                           r->what, m->attn.rotary, r->rotary_dim);
    }
    if (r->rotary_dim > m->attn.query_dim) {
        return status_make(STATUS_INPUT, "%s: rotary_dim: expected at most head_dim %u, found %u",
                           r->what, m->attn.query_dim, r->rotary_dim);
    }
    if (r->rotary_dim > 0) m->attn.rotary = r->rotary_dim;
    if (m->attn.rotary >= 2 && m->attn.rotary % 2 == 0) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: head_dim, partial_rotary_factor: %u rotated elements, expected an even "
                       "number",
                       r->what, m->attn.rotary);
}

enum { HEAD_DIM_MAX = 1024 }; /* also the bound of the field "head_dim" in arch_fields.c */

/* Derives the head sizes, except those of latent and compressed attention, which have functions of
 * their own. */
static struct status derive_heads(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (m->family->mla) return arch_derive_latent(r);
    if (m->family->compressed) return arch_derive_compressed_heads(r);
    if (m->attn.n_kv_heads == 0) m->attn.n_kv_heads = m->attn.n_heads;
    if (m->attn.head_dim == 0) m->attn.head_dim = m->width / m->attn.n_heads;
    if (m->attn.head_dim > HEAD_DIM_MAX) {
        return status_make(STATUS_INPUT,
                           "%s: hidden_size / num_attention_heads: expected at most %d, found %u",
                           r->what, HEAD_DIM_MAX, m->attn.head_dim);
    }
    m->attn.query_dim = m->attn.head_dim;
    if (m->attn.value_dim == 0) m->attn.value_dim = m->attn.head_dim;
    m->attn.head_dim = (m->attn.head_dim + LANES - 1) / LANES * LANES;
    if ((m->family->qk_norm_last || m->attn.l2_norm) && m->attn.head_dim != m->attn.query_dim) {
        return status_make(STATUS_INPUT, "%s: head_dim: expected a multiple of %d for %s, found %u",
                           r->what, LANES, m->family->title, m->attn.query_dim);
    }
    TRY(derive_rotary(r));
    return arch_derive_typed_heads(r);
}

static struct status check_heads(const struct arch_reading *r)
{
    const struct arch *m = &r->m;
    if (m->attn.n_heads % m->attn.n_kv_heads != 0) {
        return status_make(
            STATUS_INPUT,
            "%s: num_attention_heads: expected a multiple of the %u KV heads, found %u", r->what,
            m->attn.n_kv_heads, m->attn.n_heads);
    }
    if (m->attn.n_heads / m->attn.n_kv_heads > 256 || m->attn.n_kv_heads > 256) {
        return status_make(STATUS_INPUT,
                           "%s: num_key_value_heads: expected at most 256, and at least a 256th of "
                           "the %u heads, found %u",
                           r->what, m->attn.n_heads, m->attn.n_kv_heads);
    }
    return status_ok();
}

/* Derives the biases of attention's linears, its norms, and the scale of its scores. */
static void derive_attention(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const struct arch_family *f = m->family;
    m->attn.qkv_bias = f->qkv_bias ? r->qkv_bias : r->attention_bias;
    m->ffn_bias = m->ffn_bias || (f->use_bias && r->attention_bias);
    m->attn.o_bias = f->o_bias_switch ? r->attention_out_bias
                                      : r->attention_bias && !f->qkv_bias && !f->o_unbiased;
    m->attn.qk_norm = m->attn.qk_norm || f->qk_norm;
    m->attn.qk_norm_whole = f->qk_norm_whole;
    m->attn.gated_heads = f->gated_heads;
    m->attn.sinks = f->sinks;
    if (m->scale.attention == 0)
        m->scale.attention = 1.0f / __builtin_sqrtf((float)m->attn.query_dim);
    m->scale.logits = 1.0f / r->logits_divisor;
}

/* Reads each layer's attention from "layer_types". If a family's window rule covers all layers or
 * none, the list may only repeat that rule, unless the family is window_listed or chunked. */
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
    if (m->family->block_indexed) return arch_derive_block_index(r);
    if (m->family->compressed) return arch_derive_compressed(r);
    if (m->family->stepped) return status_ok(); /* arch_derive_step has marked them */
    if (r->node.layer_types == NULL) return status_ok();
    if (js_type(r->node.layer_types) != JS_ARRAY || js_count(r->node.layer_types) != m->n_layers) {
        return status_make(STATUS_INPUT, "%s: layer_types: expected a list of %u", r->what,
                           m->n_layers);
    }
    for (uint32_t l = 0; l < m->n_layers; l++) {
        const char *type = js_string(js_at(r->node.layer_types, l), NULL);
        const bool slides = type != NULL && strcmp(type, word) == 0;
        const bool may = m->family->chunked || rule == WINDOW_UPPER || rule == WINDOW_EVEN ||
                         rule == WINDOW_MOST || rule == WINDOW_INNER || rule == WINDOW_AFTER ||
                         m->family->window_listed;
        if ((!slides && (type == NULL || strcmp(type, "full_attention") != 0)) ||
            (slides && m->attn.window == 0) || (!may && slides != m->layer.has_window[l])) {
            return status_make(STATUS_INPUT,
                               "%s: layer_types[%u] \"%s\" is not implemented for %s with "
                               "sliding_window %u",
                               r->what, l, type == NULL ? "(no text)" : type, m->family->title,
                               m->attn.window);
        }
        m->layer.has_window[l] = slides;
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
        return layer >= (has_from || f->window_from == 0 ? r->pattern.window_from : f->window_from);
    case WINDOW_EVEN:
        return layer % 2 == 0;
    case WINDOW_INNER:
        return layer > 0 && (layer + 1) % period != 0;
    case WINDOW_MOST:
        return (layer + 1) % period != 0;
    case WINDOW_AFTER:
        return layer % r->pattern.full_every != 0;
    }
    return false;
}

/* Finds the period of WINDOW_MOST and WINDOW_INNER. If "sliding_window_pattern" is a text ("LLLG"),
 * "layer_types" must be given, too. */
static struct status find_period(const struct arch_reading *r, uint32_t *out)
{
    int64_t period = r->m.family->window_period > 0 ? r->m.family->window_period : 4;
    *out = (uint32_t)period;
    if (r->node.layer_types != NULL || js_type(r->node.window_pattern) == JS_NULL)
        return status_ok();
    if (!js_int(r->node.window_pattern, &period) || period < 1 || period > ARCH_LAYERS_MAX) {
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
        m->attn.window = r->window;
        for (uint32_t l = 0; l < m->n_layers; l++) {
            m->layer.has_window[l] = rule_has_window(r, l, period);
        }
    }
    TRY(derive_layer_types(r));
    for (uint32_t l = 0; f->unrotated_full && m->attn.window > 0 && l < m->n_layers; l++) {
        m->layer.is_unrotated[l] = !m->layer.has_window[l];
    }
    return status_ok();
}

/* Marks the MoE layers. In families without a rule of their own: layer l if sparse_step divides l +
 * 1 and moe_every divides l, except mlp_only_layers, the first n_dense_layers and those after
 * moe_last. */
static struct status derive_sparsity(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (m->family->mamba_blocks) return status_ok(); /* arch_derive_mamba has marked them */
    if (m->family->stepped) return status_ok();      /* so has arch_derive_step */
    if (m->family->typed_mlps) return arch_derive_typed_mlps(r);
    if (r->node.moe_layers != NULL) return arch_derive_moe_layers(r);
    for (uint32_t l = 0; m->shortcut && l < m->n_layers; l += 2) m->layer.is_moe[l] = true;
    if (m->shortcut) return status_ok();
    for (uint32_t l = 0; l < m->n_layers + m->may_predict; l++) {
        m->layer.is_moe[l] = (l + 1) % r->pattern.sparse_step == 0 &&
                             l >= r->pattern.n_dense_layers && l % r->pattern.moe_every == 0 &&
                             l <= r->pattern.moe_last;
    }
    for (size_t i = 0; i < js_count(r->node.mlp_only_layers); i++) {
        int64_t l;
        if (!js_int(js_at(r->node.mlp_only_layers, i), &l) || l < 0 || l >= m->n_layers) {
            return status_make(STATUS_INPUT, "%s: mlp_only_layers[%zu]: expected a layer below %u",
                               r->what, i, m->n_layers);
        }
        m->layer.is_moe[l] = false;
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
    struct router_rule *rule = &r->m.moe.router;
    const bool sigmoid = m->family->sigmoid;
    const char *method = js_string(r->node.topk_method, NULL);
    if (m->family->compressed && rule->n_groups > 1) {
        return status_make(STATUS_INPUT, "%s: n_group: expected 1 for %s, found %u", r->what,
                           m->family->title, rule->n_groups);
    }
    if (rule->n_groups == 0 || m->family->compressed ||
        (!sigmoid && method != NULL && strcmp(method, "greedy") == 0)) {
        rule->n_groups = rule->n_groups_chosen = 0;
        return status_ok();
    }
    TRY(check_text(r, r->node.topk_method, "topk_method",
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
    if (m->moe.n_experts % rule->n_groups == 0 && rule->n_groups_chosen <= rule->n_groups &&
        m->moe.n_chosen <= m->moe.n_experts / rule->n_groups * rule->n_groups_chosen)
        return status_ok();
    return status_make(
        STATUS_INPUT, "%s: n_group: %u experts, %u of them in %u of %u equal groups, cannot be",
        r->what, m->moe.n_experts, m->moe.n_chosen, rule->n_groups_chosen, rule->n_groups);
}

static struct status derive_router(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const struct arch_family *f = m->family;
    const bool renormalise = f->renormalise || r->norm_topk_prob;
    TRY(check_text(r, r->node.scoring_func, "scoring_func",
                   f->compressed ? "sqrtsoftplus"
                   : f->sigmoid  ? "sigmoid"
                                 : "softmax"));
    if (r->norm_topk_prob && f->never_renormalised) {
        return status_make(STATUS_INPUT,
                           "%s: norm_topk_prob: true is not implemented for %s, whose "
                           "implementations scale such weights differently",
                           r->what, f->title);
    }
    m->moe.router.kind = f->sigmoid ? (renormalise ? ROUTER_SIGMOID_RENORM : ROUTER_SIGMOID)
                                    : (renormalise ? ROUTER_SOFTMAX_RENORM : ROUTER_SOFTMAX);
    if (f->biased_softmax) m->moe.router.kind = f->shortcut ? ROUTER_BIASED : ROUTER_BIASED_RENORM;
    if (f->compressed) m->moe.router.kind = ROUTER_ROOT_RENORM;
    m->moe.router.scale = r->routed_scale == 1.0f ? 0.0f : r->routed_scale;
    TRY(derive_groups(r));
    if (f->weighs_inputs) m->moe.router = (struct router_rule){.kind = ROUTER_SIGMOID_AFTER};
    if (!f->mixer) return status_ok();
    m->moe.router = (struct router_rule){.kind = ROUTER_MIXER, .scale = 2 * r->jitter};
    return status_ok();
}

static struct status derive_ffn(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const struct arch_family *f = m->family;
    bool any_dense = false;
    if (f->mamba_granite && m->moe.n_experts == 0) {
        m->moe.lone_shared = true;
        m->moe.n_chosen = 0;
        m->ffn = m->moe.shared_ffn;
        m->moe.shared_ffn = 0;
    }
    const bool may_be_dense = f->mamba_blocks || f->typed_heads;
    if (!f->has_experts || m->moe.lone_shared || (may_be_dense && m->moe.n_experts == 0))
        return m->ffn > 0 ? status_ok() : arch_field_missing(r, "intermediate_size");
    if (m->moe.n_experts == 0)
        return arch_field_missing(r, f->ling || f->delta_by_channel ? "num_experts"
                                                                    : "num_local_experts");
    TRY(arch_derive_experts(r));
    if (m->moe.n_chosen > m->moe.n_experts) {
        return status_make(STATUS_INPUT,
                           "%s: num_experts_per_tok: expected at most the %u experts, found %u",
                           r->what, m->moe.n_experts, m->moe.n_chosen);
    }
    if (!f->own_expert_width && !f->mamba_blocks && !f->shortcut) {
        if (m->ffn == 0) return arch_field_missing(r, "intermediate_size");
        m->moe.ffn = m->ffn;
    }
    if (f->weighs_inputs || f->clamps_all) m->ffn = r->ffn_mlp;
    m->swiglu.everywhere = f->clamps_all;
    if (f->counts_shared) m->moe.shared_ffn = r->n_shared * m->moe.ffn;
    m->moe.shared_mix = m->moe.shared_ffn > 0 && f->names->shared_mix != NULL;
    m->moe.bias = f->expert_bias;
    m->moe.select_bias = f->sigmoid || f->biased_softmax || f->compressed;
    TRY(derive_sparsity(r));
    for (uint32_t l = 0; l < m->n_layers; l++)
        any_dense = any_dense || (!m->layer.is_moe[l] && !m->layer.lacks_ffn[l]);
    if (m->ffn == 0 && any_dense) return arch_field_missing(r, "intermediate_size");
    if (!any_dense) m->ffn = 0;
    return derive_router(r);
}

static void derive_eos(struct arch_reading *r)
{
    struct arch *m = &r->m;
    int64_t id;
    if (js_int(r->node.eos_token_id, &id)) m->eos_ids[m->n_eos_ids++] = (int32_t)id;
    if (js_type(r->node.eos_token_id) != JS_ARRAY) return;
    for (size_t i = 0; i < js_count(r->node.eos_token_id) && i < 16; i++) {
        if (js_int(js_at(r->node.eos_token_id, i), &id)) m->eos_ids[m->n_eos_ids++] = (int32_t)id;
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
    r->norm_topk_prob = r->m.family->mamba_blocks; /* the default: true only with mamba_blocks */
    TRY(arch_fields_read(r));
    r->m.may_predict = r->n_predict > 0 && r->m.n_layers < ARCH_LAYERS_MAX;
    TRY(arch_derive_blocks(r));
    TRY(arch_derive_shortcut(r));
    TRY(arch_derive_hybrid(r));
    TRY(arch_derive_typed(r));
    TRY(arch_derive_step(r));
    TRY(derive_rope(r));
    TRY(derive_unrotated(r));
    TRY(derive_heads(r));
    TRY(check_heads(r));
    derive_attention(r);
    TRY(arch_derive_encoder(r));
    TRY(arch_derive_gemma(r));
    TRY(arch_derive_sub_norms(r));
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
    /* values of fields that are absent or that the family does not read */
    struct arch_reading r = {
        .m = {.scale = {.embed = 1, .residual = 1}, .delta = {.conv_bias = true}},
        .what = what,
        .root = js_root(doc),
        .rotary_part = 1,
        .qkv_bias = true,
        .pattern.sparse_step = 1,
        .pattern.moe_every = 1,
        .pattern.moe_last = ARCH_LAYERS_MAX,
        .routed_scale = 1,
        .logits_divisor = 1};
    const struct status st = parse_root(&r);
    if (!status_failed(&st)) *out = r.m;
    js_destroy(&doc);
    return st;
}
