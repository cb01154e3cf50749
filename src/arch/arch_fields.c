/* The fields of config.json: what is read, what changes nothing, and what is refused by name. */
#include "arch/arch_fields.h"

#include <string.h>

/* Fields that arch_parse reads. */
static const char *const used_fields[] = {
    "architectures",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "rms_norm_eps",
    "rope_theta",
    "rope_parameters",
    "rope_scaling",
    "tie_word_embeddings",
    "hidden_act",
    "num_local_experts",
    "num_experts",
    "num_experts_per_tok",
    "norm_topk_prob",
    "decoder_sparse_step",
    "mlp_only_layers",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "moe_intermediate_size",
    "eos_token_id",
    "max_position_embeddings",
    "attention_bias",
    "mlp_bias",
    "layer_types",
    "qkv_bias",
    "clip_qkv",
    "shared_expert_intermediate_size",
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "swiglu_alpha",
    "swiglu_limit",
    "n_routed_experts",
    "n_shared_experts",
    "first_k_dense_replace",
    "moe_layer_freq",
    "n_group",
    "topk_group",
    "topk_method",
    "scoring_func",
    "routed_scaling_factor",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "qk_head_dim",
    "v_head_dim",
    "rope_interleave",
    "use_qk_norm",
    "partial_rotary_factor",
};

/* Fields that do not change what a forward pass computes. */
static const char *const inert_fields[] = {
    "model_type",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "quantization_config", /* of the tensors' layout in the source; the checkpoint says its own */
    "use_cache",
    "initializer_range",
    "initial_context_length", /* of the training; rope_scaling says it too */
    "experts_per_token",      /* gpt-oss says num_experts_per_tok beside it */
    "attention_dropout",
    "bos_token_id",
    "pad_token_id",
    "unk_token_id",
    "pretraining_tp",
    "router_aux_loss_coef",
    "output_router_logits",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "is_encoder_decoder",
    "id2label",
    "label2id",
    "problem_type",
    "chunk_size_feed_forward",
    "is_llama_config",
    "rope_interleaved",
    "transformers.js_config",
    "router_jitter_noise",
    "hidden_dropout",
    "use_mems",
    "auto_map",
    "num_nextn_predict_layers", /* convert leaves them out */
    "num_mtp_layers",
    "seq_aux",
    "aux_loss_alpha",
    "ep_size",
};

static bool listed(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(name, list[i]) == 0) return true;
    }
    return false;
}

#define LISTED(name, list) listed(name, list, sizeof(list) / sizeof((list)[0]))

bool arch_field_is_off(const struct js_node *node)
{
    bool flag;
    double number;
    size_t n;
    if (js_bool(node, &flag)) return !flag;
    if (js_number(node, &number)) return number == 0;
    if (js_string(node, &n) != NULL) return n == 0;
    return js_count(node) == 0;
}

static struct status check_names(const struct js_node *root, const char *what)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(root, &it, &key, &value)) {
        if (key[0] == '_' || LISTED(key, used_fields) || LISTED(key, inert_fields)) continue;
        if (arch_field_is_off(value)) continue;
        return status_make(STATUS_INPUT,
                           "%s: field \"%s\" is set, and shoal does not know whether it changes "
                           "the arithmetic; it is not implemented",
                           what, key);
    }
    return status_ok();
}

/* A field of a wrong type is not an absent one: its default would change the arithmetic in silence.
 */
static struct status check_types(const struct js_node *root, const char *what)
{
    static const char *const numbers[] = {"rope_theta",
                                          "rms_norm_eps",
                                          "clip_qkv",
                                          "swiglu_alpha",
                                          "swiglu_limit",
                                          "routed_scaling_factor",
                                          "partial_rotary_factor",
                                          "embedding_multiplier",
                                          "residual_multiplier",
                                          "attention_multiplier",
                                          "logits_scaling",
                                          "first_k_dense_replace",
                                          "moe_layer_freq"};
    static const char *const switches[] = {"tie_word_embeddings", "attention_bias", "mlp_bias",
                                           "use_sliding_window",  "norm_topk_prob", "use_qk_norm",
                                           "rope_interleave"};
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(root, &it, &key, &value)) {
        const enum js_type type = js_type(value);
        const bool is_number = LISTED(key, numbers), is_switch = LISTED(key, switches);
        if (type == JS_NULL || (!is_number && !is_switch)) continue;
        if (is_number ? type == JS_INT || type == JS_REAL : type == JS_BOOL) continue;
        return status_make(STATUS_INPUT, "%s: field \"%s\": expected %s, found another type", what,
                           key, is_number ? "a number" : "true or false");
    }
    return status_ok();
}

struct status arch_fields_check(const struct js_node *root, const char *what)
{
    TRY(check_names(root, what));
    return check_types(root, what);
}

struct status arch_fields_check_rope(const struct js_node *rope, const char *what,
                                     const char *where)
{
    static const char *const rules[] = {"default", "linear", "llama3", "yarn", "frequency_factors"};
    static const char *const fields[] = {
        "rope_type",       "type",
        "rope_theta",      "partial_rotary_factor",
        "factor",          "original_max_position_embeddings",
        "low_freq_factor", "high_freq_factor",
        "beta_fast",       "beta_slow",
        "mscale",          "mscale_all_dim",
        "truncate",        "attention_factor",
        "finetuned",       "factors",
    };
    const char *rule = js_string(js_get(rope, "rope_type"), NULL);
    if (rule == NULL) rule = js_string(js_get(rope, "type"), NULL);
    if (rule != NULL && !LISTED(rule, rules)) {
        return status_make(STATUS_INPUT,
                           "%s: %s of type \"%s\" is not implemented; shoal knows default, "
                           "linear, llama3 and yarn",
                           what, where, rule);
    }
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(rope, &it, &key, &value)) {
        if (LISTED(key, fields) || arch_field_is_off(value)) continue;
        return status_make(STATUS_INPUT, "%s: %s: field \"%s\" is not implemented", what, where,
                           key);
    }
    return status_ok();
}
