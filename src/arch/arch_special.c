/* Derivations for features of only a few families. Called by arch.c. */
#include "arch/arch_private.h"

#include <string.h>
#include <strings.h>

/* Checks that a softcap is given, as null or a number: other programs' defaults differ. */
static struct status softcap_given(const struct arch_reading *r, const char *key)
{
    if (js_get(r->root, key) != NULL) return status_ok();
    return status_make(STATUS_INPUT, "%s: field \"%s\": expected a number or null, found nothing",
                       r->what, key);
}

struct status arch_derive_gemma(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const struct arch_family *f = m->family;
    if (f->gelu) m->gate = GATE_GEGLU;
    if (f->root_embed) m->scale.embed = __builtin_sqrtf((float)m->width);
    if (f->query_scalar) m->scale.attention = 1.0f / __builtin_sqrtf(r->query_scalar);
    if (f->typed_heads) m->scale.attention = 1;
    if (f->caps_scores) TRY(softcap_given(r, "attn_logit_softcapping"));
    if (f->caps_scores) TRY(softcap_given(r, "final_logit_softcapping"));
    return status_ok();
}

/* Checks a field of quantization_config, which is `otherwise` where it is absent. */
static struct status check_rounding(const struct arch_reading *r, const char *key,
                                    const char *otherwise, const char *wanted, const char *why)
{
    const char *found = js_string(js_get(r->node.quantization, key), NULL);
    if (found == NULL) found = otherwise;
    if (strcmp(found, wanted) == 0) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: quantization_config.%s: expected \"%s\", found \"%.40s\", %s", r->what,
                       key, wanted, found, why);
}

/* True for a list of only the output layer. Without a list that layer is left as it is, too; an
 * empty list would round its inputs. */
static bool is_head_alone(const struct js_node *list)
{
    const char *name = js_string(js_at(list, 0), NULL);
    return js_type(list) == JS_ARRAY && js_count(list) == 1 && name != NULL &&
           strcmp(name, "lm_head") == 0;
}

/* With BitNet's quant_method, linears read rows that are rounded to 8 bits. Refuses linears of the
 * class "bitlinear", which divide by their scale, and the mode "online", which rounds weights that
 * the file has as floats. */
static struct status derive_rounding(struct arch_reading *r)
{
    const struct js_node *q = r->node.quantization;
    const char *method = js_string(js_get(q, "quant_method"), NULL);
    if (method == NULL || strcasecmp(method, "bitnet") != 0) return status_ok();
    if (!r->m.family->sub_norms) {
        return status_make(
            STATUS_INPUT,
            "%s: quantization_config.quant_method \"bitnet\" is not implemented for %s", r->what,
            r->m.family->title);
    }
    TRY(check_rounding(r, "linear_class", "bitlinear", "autobitlinear",
                       "whose weights are divided by their scales"));
    TRY(check_rounding(r, "quantization_mode", "offline", "offline",
                       "which rounds weights that are stored as floats; the packed checkpoint has "
                       "them rounded"));
    const struct js_node *left_alone = js_get(q, "modules_to_not_convert");
    if (!arch_field_is_off(js_get(q, "use_rms_norm")))
        return status_make(STATUS_INPUT, "%s: quantization_config: use_rms_norm is not implemented",
                           r->what);
    if (js_type(left_alone) != JS_NULL && !is_head_alone(left_alone))
        return status_make(STATUS_INPUT,
                           "%s: quantization_config: modules_to_not_convert is not implemented for "
                           "other lists than [\"lm_head\"]",
                           r->what);
    r->m.rounds_inputs = true;
    return status_ok();
}

struct status arch_derive_sub_norms(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const uint64_t n = (uint64_t)m->attn.n_heads * m->attn.value_dim;
    m->sub_norms = m->family->sub_norms;
    TRY(derive_rounding(r));
    if (!m->sub_norms || n == m->width) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: head_dim: expected %u heads of %u elements to have hidden_size %u "
                       "elements together, as the norm of attention's output needs in %s",
                       r->what, m->attn.n_heads, m->attn.value_dim, m->width, m->family->title);
}

/* Limits the model's context to the original one, for which the short factors hold: a longer
 * sequence would change the factors of all its positions, even of those in the cache. */
struct status arch_derive_longrope(struct arch_reading *r)
{
    static const char key[] = "original_max_position_embeddings";
    const struct js_node *rope =
        r->node.rope_parameters != NULL ? r->node.rope_parameters : r->node.rope_scaling;
    int64_t inner = 0;
    if (r->m.family->xielu && rope == NULL) {
        return status_make(
            STATUS_INPUT, "%s: field \"rope_scaling\": expected an object, found nothing", r->what);
    }
    if (!r->m.family->longrope || js_type(js_get(rope, "short_factor")) == JS_NULL)
        return status_ok();
    if (r->m.family->mixer && js_type(js_get(rope, "short_mscale")) == JS_NULL)
        return status_make(
            STATUS_INPUT,
            "%s: RoPE scaling: field \"short_mscale\": expected a number, found nothing", r->what);
    if (r->original_context == 0) return arch_field_missing(r, key);
    if (js_int(js_get(rope, key), &inner) && inner != r->original_context) {
        return status_make(STATUS_INPUT, "%s: %s: expected %u as beside the RoPE's, found %lld",
                           r->what, key, r->original_context, (long long)inner);
    }
    if (r->original_context < r->m.context) r->m.context = r->original_context;
    return status_ok();
}

struct status arch_derive_growth(struct arch_reading *r)
{
    static const char beta_key[] = "llama_4_scaling_beta";
    static const char step_key[] = "original_max_position_embeddings";
    const struct js_node *rope = r->node.rope_parameters;
    const char *rule = js_string(js_get(rope, "rope_type"), NULL);
    double beta = 0;
    int64_t step = 0;
    if (!r->m.family->grows) return status_ok();
    if (rule == NULL) rule = js_string(js_get(rope, "type"), NULL);
    if (rule == NULL || strcmp(rule, "yarn") != 0) {
        return status_make(STATUS_INPUT, "%s: rope_parameters: expected type \"yarn\" for %s",
                           r->what, r->m.family->title);
    }
    if (!js_number(js_get(rope, beta_key), &beta) || !(beta >= 0 && beta < 1e3)) {
        return status_make(STATUS_INPUT,
                           "%s: rope_parameters: field \"%s\": expected a number from 0 to 1000",
                           r->what, beta_key);
    }
    if (!js_int(js_get(rope, step_key), &step) || step < 1 || step > 1 << 24) {
        return status_make(STATUS_INPUT,
                           "%s: rope_parameters: field \"%s\": expected an integer from 1 to %d",
                           r->what, step_key, 1 << 24);
    }
    r->m.tuning =
        (struct arch_tuning){.step = (uint32_t)step, .scale = (float)beta, .everywhere = true};
    return status_ok();
}

struct status arch_derive_chunks(struct arch_reading *r)
{
    struct arch *m = &r->m;
    bool tunes = true;
    int64_t number;
    if (js_get(r->root, "attention_chunk_size") == NULL)
        return status_make(STATUS_INPUT,
                           "%s: field \"attention_chunk_size\": expected an integer or null, found "
                           "nothing",
                           r->what);
    if (r->window > 0)
        return status_make(STATUS_INPUT, "%s: sliding_window is not implemented for %s", r->what,
                           m->family->title);
    m->attn.chunked = true;
    m->attn.window = r->chunk;
    for (uint32_t l = 0; l < m->n_layers; l++)
        m->layer.has_window[l] = r->chunk > 0 && !m->layer.is_unrotated[l];
    if (js_int(r->node.tuning, &number)) tunes = number != 0;
    if (r->node.tuning != NULL) js_bool(r->node.tuning, &tunes);
    if (!tunes) m->tuning.scale = 0;
    m->tuning.first = 1;
    return status_ok();
}

struct status arch_derive_moe_layers(struct arch_reading *r)
{
    struct arch *m = &r->m;
    for (size_t i = 0; i < js_count(r->node.moe_layers); i++) {
        int64_t l;
        if (!js_int(js_at(r->node.moe_layers, i), &l) || l < 0 || l >= m->n_layers)
            return status_make(STATUS_INPUT, "%s: moe_layers[%zu]: expected a layer below %u",
                               r->what, i, m->n_layers);
        m->layer.is_moe[l] = true;
    }
    return status_ok();
}

/* Refuses an "is_moe_layer" that differs from the marked layers: some programs read only that list.
 */
static struct status check_moe_flags(const struct arch_reading *r)
{
    for (uint32_t l = 0; r->node.is_moe_layer != NULL && l < r->m.n_layers; l++) {
        bool is_moe;
        if (js_bool(js_at(r->node.is_moe_layer, l), &is_moe) && is_moe == r->m.layer.is_moe[l])
            continue;
        return status_make(STATUS_INPUT,
                           "%s: is_moe_layer[%u]: expected %s, as the other fields say", r->what, l,
                           r->m.layer.is_moe[l] ? "true" : "false");
    }
    return status_ok();
}

/* Returns the type of a layer's FFN when "mlp_layer_types" is absent; NULL: "moe_layer_freq" has no
 * integer for the layer. */
static const char *unlisted_mlp(const struct arch_reading *r, uint32_t layer)
{
    const struct arch_family *f = r->m.family;
    const bool is_counted =
        f->counts_dense || f->moe_flags || f->delta_by_channel || f->ling || f->block_indexed;
    int64_t flag = layer >= (is_counted ? r->pattern.n_dense_layers : 1);
    if (r->node.moe_freq != NULL && !js_int(js_at(r->node.moe_freq, layer), &flag)) return NULL;
    return flag == 0 ? "dense" : "sparse";
}

/* Refuses a "moe_layer_freq" that differs from the marked layers: some programs read only that
 * list. */
static struct status check_moe_freq(const struct arch_reading *r)
{
    for (uint32_t l = 0; r->node.moe_freq != NULL && l < r->m.n_layers; l++) {
        int64_t flag;
        if (js_int(js_at(r->node.moe_freq, l), &flag) && flag == r->m.layer.is_moe[l]) continue;
        return status_make(STATUS_INPUT, "%s: moe_layer_freq[%u]: expected %d", r->what, l,
                           r->m.layer.is_moe[l]);
    }
    return status_ok();
}

struct status arch_derive_typed_mlps(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const bool has_count = js_type(js_get(r->root, "first_k_dense_replace")) != JS_NULL;
    for (uint32_t l = 0; l < m->n_layers; l++) {
        const char *type = js_string(js_at(r->node.mlp_layer_types, l), NULL);
        if (r->node.mlp_layer_types == NULL) type = unlisted_mlp(r, l);
        const bool is_moe = type != NULL && strcmp(type, "sparse") == 0;
        if (!is_moe && (type == NULL || strcmp(type, "dense") != 0)) {
            return status_make(STATUS_INPUT,
                               "%s: mlp_layer_types[%u]: expected \"dense\" or \"sparse\"", r->what,
                               l);
        }
        if ((has_count && is_moe != (l >= r->pattern.n_dense_layers)) ||
            r->pattern.moe_every != 1) {
            return status_make(STATUS_INPUT,
                               "%s: first_k_dense_replace, moe_layer_freq: layer %u is %s by "
                               "mlp_layer_types",
                               r->what, l, type);
        }
        m->layer.is_moe[l] = is_moe;
    }
    if (m->may_predict) m->layer.is_moe[m->n_layers] = true;
    TRY(check_moe_freq(r));
    return check_moe_flags(r);
}

/* Reads a number, or a list with the same number for each layer. */
static struct status one_number(const struct arch_reading *r, const struct js_node *node,
                                const char *key, uint32_t *out)
{
    const size_t n = js_type(node) == JS_ARRAY ? js_count(node) : 1;
    for (size_t i = 0; i < n; i++) {
        int64_t value;
        const struct js_node *at = js_type(node) == JS_ARRAY ? js_at(node, i) : node;
        if (js_int(at, &value) && value >= 1 && value <= ROUTER_CHOSEN_MAX &&
            (i == 0 || value == *out)) {
            *out = (uint32_t)value;
            continue;
        }
        return status_make(STATUS_INPUT,
                           "%s: %s: expected an integer from 1 to %d, the same for all layers",
                           r->what, key, ROUTER_CHOSEN_MAX);
    }
    return status_ok();
}

struct status arch_derive_experts(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const struct arch_family *f = m->family;
    int64_t end = -1;
    if (f->moe_topk) {
        if (r->node.moe_topk != NULL)
            TRY(one_number(r, r->node.moe_topk, "moe_topk", &m->moe.n_chosen));
        m->moe.shared_ffn = m->ffn;
    }
    if (m->moe.n_chosen == 0)
        return arch_field_missing(r, f->moe_topk ? "moe_topk" : "num_experts_per_tok");
    if (f->typed_heads) m->moe.shared_ffn = m->ffn;
    if (f->weighs_inputs) {
        m->moe.weighs_inputs = true;
        m->moe.shared_ffn = m->ffn;
    }
    if (f->weighs_inputs && m->moe.n_chosen != 1)
        return status_make(STATUS_INPUT, "%s: num_experts_per_tok: expected 1 for %s, found %u",
                           r->what, f->title, m->moe.n_chosen);
    if (r->expert_width_again > 0 && r->expert_width_again != m->moe.ffn)
        return status_make(STATUS_INPUT,
                           "%s: %s: expected %u, as moe_intermediate_size says, found %u", r->what,
                           f->ling ? "moe_shared_expert_intermediate_size" : "expert_hidden_dim",
                           m->moe.ffn, r->expert_width_again);
    if (f->mixer && m->moe.n_chosen != 2)
        return status_make(STATUS_INPUT, "%s: num_experts_per_tok: expected 2 for %s, found %u",
                           r->what, f->title, m->moe.n_chosen);
    if (!f->moe_range) return status_ok();
    m->moe.shared_ffn = r->n_shared * m->moe.ffn;
    if (r->node.moe_end != NULL && !js_int(r->node.moe_end, &end))
        return status_make(STATUS_INPUT, "%s: moe_layer_end_index: expected an integer", r->what);
    r->pattern.moe_last = end < 0 || end >= m->n_layers ? m->n_layers - 1 : (uint32_t)end;
    if (end >= -1) return status_ok();
    return status_make(STATUS_INPUT, "%s: moe_layer_end_index: expected at least -1, found %lld",
                       r->what, (long long)end);
}
