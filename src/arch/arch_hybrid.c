/* Reads and checks the parts of a config that only MiMo-V2 has: twice as many KV heads in layers
 * with a window, and fields of the published file that must equal the values that transformers
 * derives from other fields. Called by arch.c. */
#include "arch/arch_private.h"

#include <string.h>

/* transformers' own values for MiMo-V2: the first three if config.json lacks rope_parameters, the
 * last if it lacks the eps of the norms. */
static const double FULL_THETA = 5e6, WINDOW_THETA = 1e4, ROTARY_PART = 0.334;
static const float NORM_EPS = 1e-5f;

/* Refuses a number that differs from `wanted`; accepts a missing one unless it is required. */
static struct status check_number(const struct arch_reading *r, const char *key, double wanted,
                                  bool is_required)
{
    const struct js_node *node = js_get(r->root, key);
    double found;
    if (js_type(node) == JS_NULL && !is_required) return status_ok();
    if (js_number(node, &found) && found == wanted) return status_ok();
    return status_make(STATUS_INPUT, "%s: field \"%s\": expected %g for %s", r->what, key, wanted,
                       r->m.family->title);
}

/* Refuses a list of 0 and 1 that differs from `wanted` [n_layers]; accepts a missing list. */
static struct status check_flags(const struct arch_reading *r, const char *key, const bool *wanted)
{
    const struct js_node *list = js_get(r->root, key);
    for (uint32_t l = 0; js_type(list) != JS_NULL && l < r->m.n_layers; l++) {
        int64_t flag;
        if (js_int(js_at(list, l), &flag) && flag == wanted[l]) continue;
        return status_make(STATUS_INPUT, "%s: %s[%u]: expected %d, as the other fields say",
                           r->what, key, l, wanted[l]);
    }
    return status_ok();
}

/* Checks that both kinds of layers rotate the same part of a head, by plain RoPE. */
static struct status check_rope_parameters(const struct arch_reading *r)
{
    static const char *const kinds[] = {"full_attention", "sliding_attention"};
    double parts[2];
    for (int i = 0; i < 2; i++) {
        const struct js_node *own = js_get(r->node.rope_parameters, kinds[i]);
        const char *rule = arch_rope_rule(own);
        if (rule != NULL && strcmp(rule, "default") != 0)
            return status_make(STATUS_INPUT,
                               "%s: rope_parameters.%s of type \"%s\" is not implemented for %s",
                               r->what, kinds[i], rule, r->m.family->title);
        if (js_number(js_get(own, "partial_rotary_factor"), &parts[i])) continue;
        return status_make(STATUS_INPUT,
                           "%s: rope_parameters.%s: field \"partial_rotary_factor\": expected a "
                           "number, found nothing",
                           r->what, kinds[i]);
    }
    if (parts[0] == parts[1]) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: rope_parameters: expected one partial_rotary_factor, found %g and %g",
                       r->what, parts[0], parts[1]);
}

static struct status derive_eps(struct arch_reading *r)
{
    const bool has_eps = js_type(js_get(r->root, "rms_norm_eps")) != JS_NULL;
    if (!has_eps) r->m.norm_eps = NORM_EPS;
    if (r->norm_eps == 0 && !has_eps) return arch_field_missing(r, "rms_norm_eps");
    if (r->norm_eps == 0 || r->norm_eps == r->m.norm_eps) return status_ok();
    return status_make(STATUS_INPUT, "%s: layernorm_epsilon: expected %g, found %g", r->what,
                       (double)r->m.norm_eps, (double)r->norm_eps);
}

struct status arch_derive_hybrid(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (!m->family->hybrid_kv) return status_ok();
    m->attn.n_full_kv_heads = m->attn.n_kv_heads;
    m->attn.n_kv_heads *= 2;
    if (m->attn.value_dim > m->attn.head_dim)
        return status_make(STATUS_INPUT, "%s: v_head_dim: expected at most head_dim %u, found %u",
                           r->what, m->attn.head_dim, m->attn.value_dim);
    if (r->attention_bias)
        return status_make(STATUS_INPUT, "%s: attention_bias is not implemented for %s", r->what,
                           m->family->title);
    if (r->node.rope_scaling != NULL)
        return status_make(STATUS_INPUT, "%s: rope_scaling is not implemented for %s", r->what,
                           m->family->title);
    if (r->window_before > 0) r->window = r->window_before + 1;
    TRY(derive_eps(r));
    if (r->node.rope_parameters != NULL) return check_rope_parameters(r);
    TRY(check_number(r, "rope_theta", FULL_THETA, true));
    TRY(check_number(r, "swa_rope_theta", WINDOW_THETA, true));
    return check_number(r, "partial_rotary_factor", ROTARY_PART, true);
}

struct status arch_check_hybrid(const struct arch_reading *r)
{
    const struct arch *m = &r->m;
    if (!m->family->hybrid_kv) return status_ok();
    if (m->attn.window == 0) return arch_field_missing(r, "sliding_window");
    TRY(check_number(r, "swa_num_attention_heads", m->attn.n_heads, false));
    TRY(check_number(r, "swa_num_key_value_heads", m->attn.n_kv_heads, false));
    TRY(check_number(r, "swa_head_dim", m->attn.query_dim, false));
    TRY(check_number(r, "swa_v_head_dim", m->attn.value_dim, false));
    TRY(check_flags(r, "hybrid_layer_pattern", m->layer.has_window));
    return check_flags(r, "moe_layer_freq", m->layer.is_moe);
}
