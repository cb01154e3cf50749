/* config.json to struct arch. arch_fields.c says which fields may stand there, arch_family.c which
 * families there are. */
#include "arch/arch.h"

#include "arch/arch_fields.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "tensor/dims.h"

#include <stdio.h>
#include <string.h>

/* A positive integer field of at most `most`; absent or null: `otherwise` (0: required). */
static struct status get_count(const struct js_node *root, const char *what, const char *key,
                               uint32_t most, uint32_t otherwise, uint32_t *out)
{
    const struct js_node *node = js_get(root, key);
    int64_t value;
    if (js_type(node) == JS_NULL && otherwise > 0) {
        *out = otherwise;
        return status_ok();
    }
    if (!js_int(node, &value) || value < 1 || value > most) {
        char found[64] = "another type";
        if (js_type(node) == JS_NULL) snprintf(found, sizeof found, "nothing");
        if (js_int(node, &value)) snprintf(found, sizeof found, "%lld", (long long)value);
        return status_make(STATUS_INPUT,
                           "%s: field \"%s\": expected an integer from 1 to %u, found %s", what,
                           key, most, found);
    }
    *out = (uint32_t)value;
    return status_ok();
}

/* The sentence for an architecture that is in no row. */
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

static struct status find_family(const struct js_node *root, const char *what,
                                 const struct arch_family **out)
{
    const char *name = js_string(js_at(js_get(root, "architectures"), 0), NULL);
    for (size_t i = 0; name != NULL && arch_family_at(i) != NULL; i++) {
        if (strcmp(name, arch_family_at(i)->architecture) != 0) continue;
        *out = arch_family_at(i);
        return status_ok();
    }
    return unknown_family(what, name == NULL ? "(none)" : name);
}

/* rope_theta stands at the top (older files) or inside rope_parameters. */
static struct status read_rope(const struct js_node *root, const char *what, struct arch *out)
{
    const char *const keys[] = {"rope_scaling", "rope_parameters"};
    out->rope_theta = 10000.0;
    js_number(js_get(root, "rope_theta"), &out->rope_theta);
    for (size_t i = 0; i < 2; i++) {
        const struct js_node *rope = js_get(root, keys[i]);
        TRY(arch_fields_check_rope(rope, what, keys[i]));
        js_number(js_get(rope, "rope_theta"), &out->rope_theta);
    }
    if (!(out->rope_theta > 1.0 && out->rope_theta < 1e12)) {
        return status_make(STATUS_INPUT, "%s: rope_theta: expected above 1, found %g", what,
                           out->rope_theta);
    }
    return status_ok();
}

/* Latent attention. What a token leaves in the cache, its latent and the rotated key that all heads
 * share, is one KV head; the heads' own parts of keys and values go to the query and the output. */
static struct status read_latent(const struct js_node *root, const char *what, struct arch *out)
{
    uint32_t own;
    TRY(get_count(root, what, "kv_lora_rank", 960, 0, &out->kv_lora));
    TRY(get_count(root, what, "qk_rope_head_dim", 1024 - out->kv_lora, 0, &out->rotary));
    TRY(get_count(root, what, "qk_nope_head_dim", 1024, 0, &own));
    TRY(get_count(root, what, "v_head_dim", 1024, 0, &out->value_dim));
    if (js_type(js_get(root, "q_lora_rank")) != JS_NULL)
        TRY(get_count(root, what, "q_lora_rank", 1 << 20, 0, &out->q_lora));
    if (out->kv_lora % LANES != 0 || out->rotary % LANES != 0) {
        return status_make(STATUS_INPUT,
                           "%s: kv_lora_rank, qk_rope_head_dim: expected multiples of %d, found %u "
                           "and %u",
                           what, LANES, out->kv_lora, out->rotary);
    }
    out->query_dim = own + out->rotary;
    out->head_dim = out->kv_lora + out->rotary;
    out->n_kv_heads = 1;
    out->rope_pairs = out->family->rope_pairs;
    js_bool(js_get(root, "rope_interleave"), &out->rope_pairs);
    return status_ok();
}

/* Heads as they are in most families; a part of each may be all that is rotated. */
static struct status read_heads(const struct js_node *root, const char *what, struct arch *out)
{
    double part = 1.0;
    TRY(get_count(root, what, "num_attention_heads", 4096, 0, &out->n_heads));
    if (out->family->mla) return read_latent(root, what, out);
    TRY(get_count(root, what, "num_key_value_heads", 4096, out->n_heads, &out->n_kv_heads));
    TRY(get_count(root, what, "head_dim", 1024, out->width / out->n_heads, &out->head_dim));
    js_number(js_get(root, "partial_rotary_factor"), &part);
    js_number(js_get(js_get(root, "rope_parameters"), "partial_rotary_factor"), &part);
    if (!(part > 0 && part <= 1)) {
        return status_make(
            STATUS_INPUT, "%s: partial_rotary_factor: expected above 0 to 1, found %g", what, part);
    }
    out->query_dim = out->value_dim = out->head_dim;
    out->rotary = (uint32_t)(out->head_dim * part);
    if (out->rotary >= 2 && out->rotary % 2 == 0) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: partial_rotary_factor: %u rotated elements, expected an even number",
                       what, out->rotary);
}

static struct status read_sizes(const struct js_node *root, const char *what, struct arch *out)
{
    TRY(get_count(root, what, "num_hidden_layers", ARCH_LAYERS_MAX, 0, &out->n_layers));
    TRY(get_count(root, what, "hidden_size", 1 << 20, 0, &out->width));
    TRY(read_heads(root, what, out));
    TRY(get_count(root, what, "vocab_size", 1 << 24, 0, &out->vocab));
    TRY(get_count(root, what, "max_position_embeddings", 1 << 24, 0, &out->context));
    if (out->n_heads % out->n_kv_heads != 0) {
        return status_make(
            STATUS_INPUT,
            "%s: num_attention_heads: expected a multiple of the %u KV heads, found %u", what,
            out->n_kv_heads, out->n_heads);
    }
    if (out->head_dim % LANES != 0) {
        return status_make(STATUS_INPUT, "%s: head_dim: expected a multiple of %d, found %u", what,
                           LANES, out->head_dim);
    }
    if (out->n_heads / out->n_kv_heads > 256 || out->n_kv_heads > 256) {
        return status_make(STATUS_INPUT,
                           "%s: num_key_value_heads: expected at most 256, and at least a 256th of "
                           "the %u heads, found %u",
                           what, out->n_heads, out->n_kv_heads);
    }
    double eps = 1e-6;
    js_number(js_get(root, "rms_norm_eps"), &eps);
    out->norm_eps = (float)eps;
    if (!(eps >= 0 && eps < 1)) {
        return status_make(STATUS_INPUT, "%s: rms_norm_eps: expected 0 to 1, found %g", what, eps);
    }
    js_bool(js_get(root, "tie_word_embeddings"), &out->tied);
    js_bool(js_get(root, "attention_bias"), &out->qkv_bias);
    out->o_bias = out->qkv_bias && !out->family->qkv_bias && !out->family->o_unbiased;
    out->qkv_bias = out->qkv_bias || out->family->qkv_bias;
    out->qk_norm = out->family->qk_norm;
    js_bool(js_get(root, "use_qk_norm"), &out->qk_norm);
    js_bool(js_get(root, "mlp_bias"), &out->ffn_bias);
    if (out->ffn_bias && !out->family->mlp_bias) {
        return status_make(STATUS_INPUT, "%s: mlp_bias is not implemented for %s", what,
                           out->family->title);
    }
    const char *act = js_string(js_get(root, "hidden_act"), NULL);
    if (act != NULL && strcmp(act, "silu") != 0) {
        return status_make(STATUS_INPUT, "%s: hidden_act \"%s\" is not implemented", what, act);
    }
    return status_ok();
}

/* "layer_types" names each layer's attention. Where the family's own rule is for all layers, it may
 * say nothing else. */
static struct status read_layer_types(const struct js_node *root, const char *what,
                                      struct arch *out)
{
    const struct js_node *types = js_get(root, "layer_types");
    const enum window_rule rule = out->family->window;
    if (js_type(types) == JS_NULL) return status_ok();
    if (js_type(types) != JS_ARRAY || js_count(types) != out->n_layers) {
        return status_make(STATUS_INPUT, "%s: layer_types: expected a list of %u", what,
                           out->n_layers);
    }
    for (uint32_t l = 0; l < out->n_layers; l++) {
        const char *type = js_string(js_at(types, l), NULL);
        const bool slides = type != NULL && strcmp(type, "sliding_attention") == 0;
        const bool may = rule == WINDOW_UPPER || rule == WINDOW_EVEN;
        if ((!slides && (type == NULL || strcmp(type, "full_attention") != 0)) ||
            (slides && out->window == 0) || (!may && slides != out->layer_has_window[l])) {
            return status_make(STATUS_INPUT,
                               "%s: layer_types[%u] \"%s\" is not implemented for %s with "
                               "sliding_window %u",
                               what, l, type == NULL ? "(no text)" : type, out->family->title,
                               out->window);
        }
        out->layer_has_window[l] = slides;
    }
    return status_ok();
}

/* A factor above 0; absent: 1. */
static struct status get_scale(const struct js_node *root, const char *what, const char *key,
                               float *out)
{
    double value = 1.0;
    js_number(js_get(root, key), &value);
    *out = (float)value;
    if (*out > 0 && *out < 1e6f) return status_ok();
    return status_make(STATUS_INPUT, "%s: %s: expected above 0, found %g", what, key, value);
}

/* Scales of rows and scores; logits are divided by theirs. */
static struct status read_scales(const struct js_node *root, const char *what, struct arch *out)
{
    float divisor;
    double clip = 0;
    TRY(get_scale(root, what, "embedding_multiplier", &out->embed_scale));
    TRY(get_scale(root, what, "residual_multiplier", &out->residual_scale));
    TRY(get_scale(root, what, "logits_scaling", &divisor));
    out->logits_scale = 1.0f / divisor;
    out->attention_scale = 1.0f / __builtin_sqrtf((float)out->query_dim);
    if (js_type(js_get(root, "attention_multiplier")) != JS_NULL)
        TRY(get_scale(root, what, "attention_multiplier", &out->attention_scale));
    js_number(js_get(root, "clip_qkv"), &clip);
    out->clip_qkv = (float)clip;
    if (clip == 0 || (out->clip_qkv > 0 && out->clip_qkv < 1e6f)) return status_ok();
    return status_make(STATUS_INPUT, "%s: clip_qkv: expected above 0, found %g", what, clip);
}

static struct status read_window(const struct js_node *root, const char *what, struct arch *out)
{
    const struct arch_family *f = out->family;
    bool used = f->window != WINDOW_NONE && !f->window_switch;
    int64_t first = f->window == WINDOW_UPPER ? 28 : 0;
    if (!used) js_bool(js_get(root, "use_sliding_window"), &used);
    if (used && f->window == WINDOW_NONE) {
        return status_make(STATUS_INPUT, "%s: use_sliding_window is not implemented for %s", what,
                           f->title);
    }
    if (used && js_type(js_get(root, "sliding_window")) != JS_NULL) {
        TRY(get_count(root, what, "sliding_window", 1 << 24, 0, &out->window));
        if (f->window == WINDOW_UPPER) js_int(js_get(root, "max_window_layers"), &first);
        for (uint32_t l = 0; l < out->n_layers; l++) {
            out->layer_has_window[l] = f->window == WINDOW_EVEN ? l % 2 == 0 : l >= first;
        }
    }
    return read_layer_types(root, what, out);
}

/* Which layers have experts (Qwen's keys): every decoder_sparse_step-th, except mlp_only_layers. */
static struct status read_sparsity(const struct js_node *root, const char *what, struct arch *out)
{
    uint32_t step = 1;
    int64_t n_dense = 0, every = 1;
    const struct js_node *dense = js_get(root, "mlp_only_layers");
    if (out->family->sparsity_keys) {
        TRY(get_count(root, what, "decoder_sparse_step", 1 << 20, 1, &step));
    } else {
        dense = NULL;
    }
    js_int(js_get(root, "first_k_dense_replace"), &n_dense);
    js_int(js_get(root, "moe_layer_freq"), &every);
    if (n_dense < 0 || every < 1) {
        return status_make(STATUS_INPUT,
                           "%s: first_k_dense_replace, moe_layer_freq: expected at least 0 and 1, "
                           "found %lld and %lld",
                           what, (long long)n_dense, (long long)every);
    }
    for (uint32_t l = 0; l < out->n_layers; l++)
        out->layer_is_moe[l] = (l + 1) % step == 0 && l >= n_dense && l % every == 0;
    for (size_t i = 0; i < js_count(dense); i++) {
        int64_t l;
        if (!js_int(js_at(dense, i), &l) || l < 0 || l >= out->n_layers) {
            return status_make(STATUS_INPUT, "%s: mlp_only_layers[%zu]: expected a layer below %u",
                               what, i, out->n_layers);
        }
        out->layer_is_moe[l] = false;
    }
    return status_ok();
}

/* gpt-oss: the published configs name the limit only. */
static struct status read_activation(const struct js_node *root, const char *what, struct arch *out)
{
    double alpha = 1.702, limit = 7.0;
    if (!out->family->clamped) {
        if (arch_field_is_off(js_get(root, "swiglu_limit"))) return status_ok();
        return status_make(STATUS_INPUT, "%s: swiglu_limit is not implemented for %s", what,
                           out->family->title);
    }
    js_number(js_get(root, "swiglu_alpha"), &alpha);
    js_number(js_get(root, "swiglu_limit"), &limit);
    out->swiglu_alpha = (float)alpha;
    out->swiglu_limit = (float)limit;
    if (alpha > 0 && alpha < 1e3 && limit > 0 && limit < 1e6) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: swiglu_alpha, swiglu_limit: expected above 0, found %g and %g", what,
                       alpha, limit);
}

static struct status read_shared(const struct js_node *root, const char *what, struct arch *out)
{
    const struct arch_family *f = out->family;
    uint32_t n = 0;
    if (f->shared_ffn != NULL)
        return get_count(root, what, f->shared_ffn, 1 << 24, 0, &out->shared_ffn);
    if (f->shared_count == NULL || arch_field_is_off(js_get(root, f->shared_count)))
        return status_ok();
    TRY(get_count(root, what, f->shared_count, 256, 0, &n));
    out->shared_ffn = n * out->expert_ffn;
    return status_ok();
}

/* Experts in groups of which a few are open to a token. */
static struct status read_groups(const struct js_node *root, const char *what, struct arch *out)
{
    struct router_rule *r = &out->router;
    const char *method = js_string(js_get(root, "topk_method"), NULL);
    const char *wanted = out->family->sigmoid ? "noaux_tc" : "group_limited_greedy";
    if (arch_field_is_off(js_get(root, "n_group")) ||
        (method != NULL && strcmp(method, "greedy") == 0))
        return status_ok();
    if (method != NULL && strcmp(method, wanted) != 0) {
        return status_make(STATUS_INPUT, "%s: topk_method \"%s\" is not implemented for %s", what,
                           method, out->family->title);
    }
    TRY(get_count(root, what, "n_group", ROUTER_GROUPS_MAX, 0, &r->n_groups));
    TRY(get_count(root, what, "topk_group", r->n_groups, 0, &r->n_groups_chosen));
    if (out->n_experts % r->n_groups == 0 &&
        out->n_chosen <= out->n_experts / r->n_groups * r->n_groups_chosen)
        return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: n_group: %u experts, %u of them in %u of %u equal groups, cannot be",
                       what, out->n_experts, out->n_chosen, r->n_groups_chosen, r->n_groups);
}

static struct status read_router(const struct js_node *root, const char *what, struct arch *out)
{
    const struct arch_family *f = out->family;
    const char *scores = js_string(js_get(root, "scoring_func"), NULL);
    const char *wanted = f->sigmoid ? "sigmoid" : "softmax";
    bool renormalise = f->renormalise;
    if (scores != NULL && strcmp(scores, wanted) != 0) {
        return status_make(STATUS_INPUT, "%s: scoring_func \"%s\" is not implemented for %s", what,
                           scores, f->title);
    }
    if (!renormalise) js_bool(js_get(root, "norm_topk_prob"), &renormalise);
    out->router.kind = f->sigmoid ? (renormalise ? ROUTER_SIGMOID_RENORM : ROUTER_SIGMOID)
                                  : (renormalise ? ROUTER_SOFTMAX_RENORM : ROUTER_SOFTMAX);
    if (!renormalise || !f->scaled_or_renormalised)
        TRY(get_scale(root, what, "routed_scaling_factor", &out->router.scale));
    if (out->router.scale == 1.0f) out->router.scale = 0.0f;
    return read_groups(root, what, out);
}

static struct status read_ffn(const struct js_node *root, const char *what, struct arch *out)
{
    const struct arch_family *f = out->family;
    if (!f->has_experts) return get_count(root, what, "intermediate_size", 1 << 24, 0, &out->ffn);
    const char *count_key = "num_local_experts";
    if (js_type(js_get(root, "n_routed_experts")) == JS_INT) count_key = "n_routed_experts";
    if (js_type(js_get(root, "num_experts")) == JS_INT) count_key = "num_experts";
    TRY(get_count(root, what, count_key, 4096, 0, &out->n_experts));
    TRY(get_count(root, what, "num_experts_per_tok", 256, 0, &out->n_chosen));
    if (out->n_chosen > out->n_experts) {
        return status_make(STATUS_INPUT,
                           "%s: num_experts_per_tok: expected at most the %u experts, found %u",
                           what, out->n_experts, out->n_chosen);
    }
    const char *ffn_key = f->expert_ffn != NULL ? f->expert_ffn : "intermediate_size";
    TRY(get_count(root, what, ffn_key, 1 << 24, 0, &out->expert_ffn));
    TRY(read_sparsity(root, what, out));
    TRY(read_shared(root, what, out));
    bool any_dense = false;
    for (uint32_t l = 0; l < out->n_layers; l++) any_dense |= !out->layer_is_moe[l];
    if (any_dense) TRY(get_count(root, what, "intermediate_size", 1 << 24, 0, &out->ffn));
    return read_router(root, what, out);
}

static void read_eos(const struct js_node *root, struct arch *out)
{
    const struct js_node *node = js_get(root, "eos_token_id");
    int64_t id;
    if (js_int(node, &id)) out->eos_ids[out->n_eos_ids++] = (int32_t)id;
    for (size_t i = 0; js_type(node) == JS_ARRAY && i < js_count(node) && i < 16; i++) {
        if (js_int(js_at(node, i), &id)) out->eos_ids[out->n_eos_ids++] = (int32_t)id;
    }
}

static struct status parse_root(const struct js_node *root, const char *what, struct arch *out)
{
    if (js_type(root) != JS_OBJECT) {
        return status_make(STATUS_INPUT, "%s: expected a JSON object", what);
    }
    TRY(find_family(root, what, &out->family));
    TRY(arch_fields_check(root, what));
    TRY(read_sizes(root, what, out));
    TRY(read_rope(root, what, out));
    TRY(read_scales(root, what, out));
    TRY(read_window(root, what, out));
    TRY(read_ffn(root, what, out));
    TRY(read_activation(root, what, out));
    read_eos(root, out);
    return status_ok();
}

struct status arch_parse(const char *json, size_t n, const char *what, struct arch *out)
{
    memset(out, 0, sizeof *out);
    struct js_doc *doc = NULL;
    TRY(js_parse(json, n, what, &doc));
    const struct status st = parse_root(js_root(doc), what, out);
    js_destroy(&doc);
    return st;
}
