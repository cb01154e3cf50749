/* Reads and checks the parts of a config that only Step-3.5 and Step-3.7 have: lists with an entry
 * for each layer, which may go on with entries for prediction layers, and fields with several
 * names. Called by arch.c. */
#include "arch/arch_private.h"

#include <stdlib.h>
#include <string.h>

static const char FULL[] = "full_attention", SLIDING[] = "sliding_attention";

/* Refuses fields that shoal would read and transformers would not. */
static struct status check_step_unread(const struct arch_reading *r)
{
    static const char *const keys[] = {
        "num_experts",           "n_group",        "topk_group",      "topk_method",
        "scoring_func",          "norm_topk_prob", "moe_layer_freq",  "routed_scaling_factor",
        "first_k_dense_replace", "attention_bias", "mlp_only_layers", "max_window_layers"};
    return arch_refuse_fields(r, keys, sizeof keys / sizeof keys[0]);
}

/* Checks fields of which all names but the first are other spellings: one must be given, and all
 * that are given must agree. */
static struct status check_spellings(const struct arch_reading *r)
{
    static const char *const groups[][3] = {
        {"num_key_value_heads", "num_attention_groups"},
        {"n_routed_experts", "moe_num_experts", "num_local_experts"},
        {"num_experts_per_tok", "moe_top_k"},
        {"share_expert_dim", "share_expert_dims"}};
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        int64_t first = 0, n;
        for (size_t i = 0; i < 3 && groups[g][i] != NULL; i++) {
            if (!js_int(js_get(r->root, groups[g][i]), &n)) continue;
            if (first != 0 && n != first)
                return status_make(STATUS_INPUT, "%s: %s: expected %lld, as %s says, found %lld",
                                   r->what, groups[g][i], (long long)first, groups[g][0],
                                   (long long)n);
            first = n;
        }
        if (first == 0) return arch_field_missing(r, groups[g][0]);
    }
    return status_ok();
}

/* Returns a list with an entry for each layer; *n: 0 if it is absent. Its length may include the
 * prediction layers. */
static struct status find_list(const struct arch_reading *r, const char *key,
                               const struct js_node **list, size_t *n)
{
    int64_t n_predict = 0;
    *list = js_get(r->root, key);
    *n = 0;
    if (arch_field_is_off(*list)) return status_ok();
    js_int(js_get(r->root, "num_nextn_predict_layers"), &n_predict);
    *n = js_count(*list);
    if (js_type(*list) == JS_ARRAY && *n >= r->m.n_layers &&
        (*n == r->m.n_layers || (int64_t)(*n - r->m.n_layers) == n_predict))
        return status_ok();
    return status_make(STATUS_INPUT, "%s: %s: expected a list of %u", r->what, key, r->m.n_layers);
}

/* Sets out[l] to whether entry l of the list is the text `yes`; others must be `no`. */
static struct status read_kinds(const struct arch_reading *r, const char *key, const char *yes,
                                const char *no, bool *out)
{
    const struct js_node *list;
    size_t n;
    TRY(find_list(r, key, &list, &n));
    if (n == 0) return arch_field_missing(r, key);
    for (uint32_t l = 0; l < r->m.n_layers; l++) {
        const char *found = js_string(js_at(list, l), NULL);
        out[l] = found != NULL && strcmp(found, yes) == 0;
        if (out[l] || (found != NULL && strcmp(found, no) == 0)) continue;
        return status_make(STATUS_INPUT, "%s: %s[%u]: expected \"%s\" or \"%s\", found \"%s\"",
                           r->what, key, l, no, yes, found == NULL ? "(no text)" : found);
    }
    return status_ok();
}

/* ---- heads ---- */

/* Checks an integer of attention_other_setting against the rest of the config; 0: any is right. */
static struct status check_other(const struct arch_reading *r, const char *key,
                                 const struct js_node *value, uint32_t wanted)
{
    int64_t n;
    if (js_int(value, &n) && n >= 1 && n <= 4096 && (wanted == 0 || n == wanted))
        return status_ok();
    if (wanted == 0)
        return status_make(STATUS_INPUT,
                           "%s: attention_other_setting: %s: expected an integer from 1 to 4096",
                           r->what, key);
    return status_make(STATUS_INPUT,
                       "%s: attention_other_setting: %s: expected %u, as in the other layers",
                       r->what, key, wanted);
}

/* Reads the published object with the heads of layers with a window. */
static struct status read_other_setting(const struct arch_reading *r, uint32_t *n_heads)
{
    const struct js_node *other = js_get(r->root, "attention_other_setting"), *value;
    const void *it = NULL;
    const char *key;
    int64_t n;
    while (js_next(other, &it, &key, &value)) {
        const char *text = js_string(value, NULL);
        const bool is_kind = strcmp(key, "attention_type") == 0;
        if (is_kind && text != NULL && strcmp(text, SLIDING) == 0) continue;
        const uint32_t wanted = strcmp(key, "num_attention_groups") == 0 ? r->m.attn.n_kv_heads
                                : strcmp(key, "head_dim") == 0 || strcmp(key, "true_head_dim") == 0
                                    ? r->m.attn.head_dim
                                    : 0;
        if (wanted == 0 && strcmp(key, "num_attention_heads") != 0)
            return status_make(STATUS_INPUT,
                               "%s: attention_other_setting: field \"%s\" is not implemented",
                               r->what, key);
        TRY(check_other(r, key, value, wanted));
        if (wanted == 0 && js_int(value, &n)) *n_heads = (uint32_t)n;
    }
    return status_ok();
}

/* Checks that per_layer_config gives n_heads to all layers with a window, and nothing else. */
static struct status check_step_layers(const struct arch_reading *r, uint32_t n_heads)
{
    const struct js_node *value, *member;
    const void *it = NULL;
    const char *key, *name;
    uint32_t n = 0, n_windows = 0;
    if (arch_field_is_off(r->node.layer_config)) return status_ok();
    for (uint32_t l = 0; l < r->m.n_layers; l++) n_windows += r->m.layer.has_window[l];
    for (; js_next(r->node.layer_config, &it, &key, &value); n++) {
        char *end;
        const void *in = NULL;
        int64_t heads = 0;
        const unsigned long l = strtoul(key, &end, 10);
        while (js_next(value, &in, &name, &member))
            if (strcmp(name, "num_attention_heads") != 0 || !js_int(member, &heads)) heads = -1;
        if (*end == 0 && end != key && l < r->m.n_layers && r->m.layer.has_window[l] &&
            heads == n_heads)
            continue;
        return status_make(STATUS_INPUT,
                           "%s: per_layer_config: layer %s: expected a layer of sliding_attention "
                           "with %u num_attention_heads alone",
                           r->what, key, n_heads);
    }
    if (n == n_windows) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: per_layer_config: expected all %u layers of sliding_attention, found "
                       "%u",
                       r->what, n_windows, n);
}

/* Sets the numbers of query heads. m.attn.n_heads holds that of the layers without a window. */
static struct status derive_step_heads(struct arch_reading *r)
{
    static const char key[] = "num_sliding_attention_heads";
    struct arch_attention *a = &r->m.attn;
    const uint32_t n_full = a->n_heads;
    uint32_t n_local = 0;
    int64_t named;
    bool any_full = false, any_local = false;
    TRY(read_other_setting(r, &n_local));
    if (js_int(js_get(r->root, key), &named)) {
        if (named < 1 || named > 4096 || (n_local > 0 && named != n_local))
            return status_make(STATUS_INPUT, "%s: %s: expected from 1 to 4096%s, found %lld",
                               r->what, key, n_local > 0 ? ", as attention_other_setting says" : "",
                               (long long)named);
        n_local = (uint32_t)named;
    }
    if (n_local == 0) n_local = n_full;
    TRY(check_step_layers(r, n_local));
    for (uint32_t l = 0; l < r->m.n_layers; l++) {
        any_local = any_local || r->m.layer.has_window[l];
        any_full = any_full || !r->m.layer.has_window[l];
    }
    if (any_local) a->n_heads = n_local;
    if (any_full && a->n_heads != n_full) a->n_full_heads = n_full;
    a->head_gates = true;
    if (r->query_scalar > 0) r->m.scale.attention = 1.0f / __builtin_sqrtf(r->query_scalar);
    if (a->n_full_heads % a->n_kv_heads == 0 && a->n_full_heads / a->n_kv_heads <= 256)
        return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: num_attention_heads: expected a multiple of the %u KV heads, at most "
                       "256 times, found %u",
                       r->what, a->n_kv_heads, a->n_full_heads);
}

static struct status derive_step_window(struct arch_reading *r)
{
    struct arch *m = &r->m;
    TRY(read_kinds(r, "layer_types", SLIDING, FULL, m->layer.has_window));
    for (uint32_t l = 0; l < m->n_layers; l++)
        if (m->layer.has_window[l]) m->attn.window = r->window;
    for (uint32_t l = 0; l < m->n_layers; l++)
        if (m->layer.has_window[l] && r->window == 0)
            return arch_field_missing(r, "sliding_window");
    return status_ok();
}

/* ---- RoPE ---- */

/* Reads a number, or a list whose entries are the same in all layers of a kind: out[0] of layers
 * without a window, out[1] of the others. Leaves what the config does not give. */
static struct status read_by_kind(const struct arch_reading *r, const char *key, double out[2])
{
    const struct js_node *list;
    bool is_set[2] = {false};
    size_t n;
    double x;
    if (js_number(js_get(r->root, key), &x)) {
        out[0] = out[1] = x;
        return status_ok();
    }
    TRY(find_list(r, key, &list, &n));
    for (uint32_t l = 0; n > 0 && l < r->m.n_layers; l++) {
        const bool kind = r->m.layer.has_window[l];
        if (js_number(js_at(list, l), &x) && (!is_set[kind] || x == out[kind])) {
            out[kind] = x;
            is_set[kind] = true;
            continue;
        }
        return status_make(STATUS_INPUT,
                           "%s: %s[%u]: expected a number, the same in all layers of a kind",
                           r->what, key, l);
    }
    return status_ok();
}

/* Refuses the published fields of RoPE beside rope_parameters. */
static struct status check_no_lists(const struct arch_reading *r)
{
    static const char *const keys[] = {"rope_theta", "partial_rotary_factors"};
    for (size_t i = 0; i < 2; i++) {
        if (js_type(js_get(r->root, keys[i])) == JS_NULL) continue;
        return status_make(STATUS_INPUT, "%s: %s, rope_parameters: expected one of them", r->what,
                           keys[i]);
    }
    return status_ok();
}

/* Checks that rope_scaling names the only kind of layers that transformers scales, and that it does
 * not change which part of a head is rotated. */
static struct status check_scaled_kind(const struct arch_reading *r)
{
    const struct js_node *kinds = js_get(r->root, "yarn_only_types");
    const char *kind = js_string(js_at(kinds, 0), NULL);
    if (arch_field_is_off(r->node.rope_scaling)) return status_ok();
    if (js_count(kinds) != 1 || kind == NULL || strcmp(kind, FULL) != 0)
        return status_make(STATUS_INPUT,
                           "%s: yarn_only_types: expected [\"%s\"] beside rope_scaling", r->what,
                           FULL);
    if (js_type(js_get(r->node.rope_scaling, "partial_rotary_factor")) == JS_NULL)
        return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: rope_scaling: partial_rotary_factor is not implemented for %s", r->what,
                       r->m.family->title);
}

static struct status derive_step_rope(struct arch_reading *r)
{
    const struct js_node *both = r->node.rope_parameters;
    double thetas[2] = {1e4, 1e4}, parts[2] = {1, 1};
    if (both != NULL) {
        TRY(check_no_lists(r));
        js_number(js_get(js_get(both, FULL), "partial_rotary_factor"), &parts[0]);
        js_number(js_get(js_get(both, SLIDING), "partial_rotary_factor"), &parts[1]);
    } else {
        TRY(check_scaled_kind(r));
        TRY(read_by_kind(r, "rope_theta", thetas));
        TRY(read_by_kind(r, "partial_rotary_factors", parts));
        r->m.rope_theta = thetas[0];
    }
    if (!(thetas[1] > 1 && thetas[1] < 1e12))
        return status_make(STATUS_INPUT, "%s: rope_theta: expected above 1, found %g", r->what,
                           thetas[1]);
    for (int i = 0; i < 2; i++) {
        const uint32_t n =
            parts[i] > 0 && parts[i] <= 1 ? (uint32_t)(r->m.attn.head_dim * parts[i]) : 0;
        if (n >= 2 && n % 2 == 0) continue;
        return status_make(STATUS_INPUT,
                           "%s: partial_rotary_factor %g: expected a number above 0 to 1 that "
                           "rotates an even number of elements",
                           r->what, parts[i]);
    }
    r->rotary_part = parts[0];
    r->m.attn.local_rotary = (uint32_t)(r->m.attn.head_dim * parts[1]);
    return status_ok();
}

/* ---- FFNs ---- */

/* Marks the layers in moe_layers_enum, a text "3,4,5" or a list. */
static struct status read_moe_enum(struct arch_reading *r, const struct js_node *node)
{
    struct arch *m = &r->m;
    const char *text = js_string(node, NULL);
    for (size_t i = 0; text == NULL ? i < js_count(node) : *text != 0; i++) {
        int64_t layer = -1;
        if (text == NULL) {
            js_int(js_at(node, i), &layer);
        } else {
            char *end;
            layer = strtol(text, &end, 10);
            if (end == text || (*end != 0 && *end != ',')) layer = -1;
            text = end + (*end == ',');
        }
        if (layer >= 0 && layer < ARCH_LAYERS_MAX) {
            if (layer < m->n_layers) m->layer.is_moe[layer] = true;
            continue;
        }
        return status_make(STATUS_INPUT, "%s: moe_layers_enum: expected numbers of layers",
                           r->what);
    }
    return status_ok();
}

static struct status derive_step_moe(struct arch_reading *r)
{
    static const char key[] = "mlp_layer_types";
    const struct js_node *old = js_get(r->root, "moe_layers_enum");
    const bool has_old = js_type(old) != JS_NULL;
    if (r->node.mlp_layer_types == NULL && has_old) return read_moe_enum(r, old);
    if (has_old)
        return status_make(STATUS_INPUT, "%s: moe_layers_enum, %s: expected one of them", r->what,
                           key);
    return read_kinds(r, key, "sparse", "dense", r->m.layer.is_moe);
}

static struct status read_caps(const struct arch_reading *r, const char *key, float *out)
{
    const struct js_node *list;
    size_t n;
    TRY(find_list(r, key, &list, &n));
    for (uint32_t l = 0; n > 0 && l < r->m.n_layers; l++) {
        double x = 0;
        const struct js_node *node = js_at(list, l);
        out[l] = 0;
        if (js_type(node) == JS_NULL) continue;
        if (!js_number(node, &x) || !(x >= 0 && x <= 1e6) || (x > 0 && (float)x == 0))
            return status_make(STATUS_INPUT, "%s: %s[%u]: expected null or a number from 0 to 1e6",
                               r->what, key, l);
        out[l] = (float)x;
    }
    return status_ok();
}

struct status arch_derive_step(struct arch_reading *r)
{
    if (!r->m.family->stepped) return status_ok();
    TRY(check_step_unread(r));
    TRY(check_spellings(r));
    TRY(derive_step_window(r));
    TRY(derive_step_heads(r));
    TRY(derive_step_rope(r));
    TRY(derive_step_moe(r));
    TRY(read_caps(r, "swiglu_limits", r->m.layer.expert_cap));
    return read_caps(r, "swiglu_limits_shared", r->m.layer.ffn_cap);
}
