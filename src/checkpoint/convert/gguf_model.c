/* Reads the sizes of a GGUF file's model and translates its tensors' names. */
#include "checkpoint/convert/gguf_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE_MAX_SANE = 1 << 28 }; /* no dimension of a model is larger */

/* ---- metadata ---- */

static struct status key_bad(const struct gguf_model *m, const char *key, const char *expected)
{
    return status_make(STATUS_INPUT, "%s: key %s.%s: expected %s", gguf_path(m->file),
                       m->family->gguf, key, expected);
}

static void key_full(const struct gguf_model *m, const char *key, char out[128])
{
    snprintf(out, 128, "%s.%s", m->family->gguf, key);
}

/* Reads a size; without the key it is `otherwise`, or an error if that is negative. */
static struct status size_get(const struct gguf_model *m, const char *key, int64_t otherwise,
                              int64_t *out)
{
    char full[128];
    key_full(m, key, full);
    *out = otherwise;
    if (!gguf_has(m->file, full) && otherwise >= 0) return status_ok();
    if (!gguf_int(m->file, full, out) || *out < 1 || *out > SIZE_MAX_SANE) {
        return key_bad(m, key, "a size (one integer of at least 1)");
    }
    return status_ok();
}

static struct status float_get(const struct gguf_model *m, const char *key, double otherwise,
                               double *out)
{
    char full[128];
    key_full(m, key, full);
    *out = otherwise;
    if (!gguf_has(m->file, full) && otherwise > 0) return status_ok();
    if (!gguf_float(m->file, full, out) || !(*out > 0 && *out < 1e30)) {
        return key_bad(m, key, "a number above 0");
    }
    return status_ok();
}

/* True when a key, given without its prefix, is read or does not change the arithmetic. */
static bool key_is_known(const struct gguf_family *f, const char *key)
{
    static const char *const known[] = {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.freq_base",
        "rope.dimension_count",
        "rope.scaling.type",
        "expert_feed_forward_length",
        "vocab_size",
        "tensor_data_layout",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    };
    static const char *const of_sigmoids[] = {"expert_gating_func", "nextn_predict_layers"};
    static const char *const latent[] = {"attention.key_length_mla", "attention.value_length_mla",
                                         "rope.scaling.yarn_log_multiplier", "expert_group_count",
                                         "expert_group_used_count"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(key, known[i]) == 0) return true;
    }
    if (f->delta && strcmp(key, "ssm.inner_size") == 0) return true;
    for (size_t i = 0; f->states_gating && i < sizeof of_sigmoids / sizeof of_sigmoids[0]; i++) {
        if (strcmp(key, of_sigmoids[i]) == 0) return true;
    }
    for (size_t i = 0; f->latent && i < sizeof latent / sizeof latent[0]; i++) {
        if (strcmp(key, latent[i]) == 0) return true;
    }
    for (const struct gguf_member *own = f->members; own->key != NULL; own++) {
        if (strcmp(key, own->key) == 0) return true;
    }
    return false;
}

static struct status gguf_model_keys_check(const struct gguf_model *m)
{
    const char *prefix = m->family->gguf;
    const size_t n = strlen(prefix);
    for (size_t i = 0; i < gguf_key_count(m->file); i++) {
        const char *key = gguf_key_at(m->file, i);
        if (strncmp(key, prefix, n) != 0 || key[n] != '.') continue;
        if (!key_is_known(m->family, key + n + 1)) {
            return status_make(STATUS_INPUT, "%s: key %.200s is not implemented",
                               gguf_path(m->file), key);
        }
    }
    int64_t n_split = 0;
    if (gguf_int(m->file, "split.count", &n_split) && n_split > 1) {
        return status_make(STATUS_INPUT, "%s: is one of %lld parts: merge them into one file first",
                           gguf_path(m->file), (long long)n_split);
    }
    char full[128];
    bool rotates = true;
    key_full(m, "rope.scaling.finetuned", full);
    if (m->family->may_not_rotate && gguf_bool(m->file, full, &rotates) && !rotates)
        return key_bad(m, "rope.scaling.finetuned", "true");
    return status_ok();
}

static struct status arch_get(struct gguf_model *m)
{
    const char *name = gguf_string(m->file, "general.architecture", NULL);
    if (name == NULL) {
        return status_make(STATUS_INPUT, "%s: has no general.architecture", gguf_path(m->file));
    }
    for (int i = 0; i < GGUF_ARCH_COUNT; i++) {
        if (strcmp(name, gguf_family_at(i)->gguf) != 0) continue;
        m->arch = (enum gguf_arch)i;
        if (m->arch == GGUF_LLAMA && gguf_has(m->file, "llama.expert_count"))
            m->arch = GGUF_MIXTRAL;
        if (m->arch == GGUF_GRANITE_MOE &&
            gguf_has(m->file, "granitemoe.expert_shared_feed_forward_length"))
            m->arch = GGUF_GRANITE_MOE_SHARED;
        m->family = gguf_family_at(m->arch);
        return status_ok();
    }
    return status_make(
        STATUS_INPUT, "%s: architecture %.80s is not implemented (expected " GGUF_ARCHITECTURES ")",
        gguf_path(m->file), name);
}

/* Reads the sizes of latent attention. attention.key_length_mla and value_length_mla are a head's
 * sizes; key_length and value_length then describe the latent, as one K and V head. Older files
 * lack the keys with _mla, and key_length and value_length are a head's. */
static struct status latent_heads_get(struct gguf_model *m)
{
    int64_t own;
    TRY(size_get(m, "attention.key_length", -1, &own));
    TRY(size_get(m, "attention.key_length_mla", own, &m->head_dim));
    TRY(size_get(m, "attention.value_length", -1, &own));
    TRY(size_get(m, "attention.value_length_mla", own, &m->value_dim));
    TRY(size_get(m, "attention.kv_lora_rank", -1, &m->kv_lora));
    TRY(size_get(m, "rope.dimension_count", -1, &m->rotary));
    m->n_kv_heads = m->n_heads;
    if (m->rotary >= m->head_dim)
        return key_bad(m, "rope.dimension_count", "less than the key length");
    return status_ok();
}

static struct status heads_get(struct gguf_model *m)
{
    TRY(size_get(m, "attention.head_count", -1, &m->n_heads));
    if (m->family->latent) return latent_heads_get(m);
    TRY(size_get(m, "attention.head_count_kv", m->n_heads, &m->n_kv_heads));
    TRY(size_get(m, "attention.key_length", m->width / m->n_heads, &m->head_dim));
    TRY(size_get(m, "attention.value_length", m->head_dim, &m->value_dim));
    TRY(size_get(m, "rope.dimension_count", m->head_dim, &m->rotary));
    if (m->head_dim < 1)
        return key_bad(m, "attention.head_count", "at most the embedding's length");
    if (m->value_dim != m->head_dim) return key_bad(m, "attention.value_length", "the key length");
    if (m->rotary > m->head_dim || m->rotary % 2 != 0)
        return key_bad(m, "rope.dimension_count", "an even size, at most that of a head");
    if (m->rotary < m->head_dim && !m->family->partial)
        return key_bad(m, "rope.dimension_count", "the whole head");
    return status_ok();
}

/* Reads the sizes of a gated delta rule. ssm.inner_size counts the elements of all value heads. */
static struct status delta_get(struct gguf_model *m)
{
    int64_t n_value_heads, inner;
    if (!m->family->delta) return status_ok();
    TRY(size_get(m, "ssm.state_size", -1, &m->delta.key_dim));
    TRY(size_get(m, "ssm.group_count", -1, &m->delta.n_key_heads));
    TRY(size_get(m, "ssm.time_step_rank", -1, &n_value_heads));
    TRY(size_get(m, "ssm.inner_size", -1, &inner));
    if (n_value_heads % m->delta.n_key_heads != 0)
        return key_bad(m, "ssm.time_step_rank", "a multiple of ssm.group_count");
    if (inner % n_value_heads != 0)
        return key_bad(m, "ssm.inner_size", "a multiple of ssm.time_step_rank");
    m->delta.value_dim = inner / n_value_heads;
    m->delta.value_rows = inner / m->delta.n_key_heads;
    return status_ok();
}

/* Splits the blocks into layers and the prediction layers after them. */
static struct status layers_get(struct gguf_model *m)
{
    char full[128];
    TRY(size_get(m, "block_count", -1, &m->n_layers));
    key_full(m, "nextn_predict_layers", full);
    m->n_predict = 0;
    if ((gguf_has(m->file, full) && !gguf_int(m->file, full, &m->n_predict)) || m->n_predict < 0 ||
        m->n_predict >= m->n_layers)
        return key_bad(m, "nextn_predict_layers", "fewer than the blocks");
    m->n_layers -= m->n_predict;
    return status_ok();
}

/* Reads whether the router turns logits into scores by sigmoid or by softmax: m->sigmoid. */
static struct status gating_get(struct gguf_model *m)
{
    enum { SOFTMAX = 1, SIGMOID = 2 };
    char full[128];
    int64_t gating = m->arch == GGUF_GLM4_MOE ? SIGMOID : SOFTMAX;
    if (!m->family->states_gating) return status_ok();
    key_full(m, "expert_gating_func", full);
    (void)gguf_int(m->file, full, &gating);
    m->sigmoid = gating == SIGMOID;
    if (gating == SIGMOID || (gating == SOFTMAX && m->arch != GGUF_GLM4_MOE)) return status_ok();
    return key_bad(m, "expert_gating_func", "2 (sigmoid), or for deepseek2 also 1 (softmax)");
}

struct status gguf_model_read(const struct gguf *g, struct gguf_model *out)
{
    struct gguf_model m = {.file = g};
    TRY(arch_get(&m));
    TRY(gguf_model_keys_check(&m));
    TRY(layers_get(&m));
    TRY(size_get(&m, "context_length", -1, &m.n_context));
    TRY(size_get(&m, "embedding_length", -1, &m.width));
    TRY(size_get(&m, "feed_forward_length", -1, &m.ffn));
    TRY(size_get(&m, "expert_feed_forward_length", m.ffn, &m.expert_ffn));
    TRY(heads_get(&m));
    TRY(delta_get(&m));
    TRY(gating_get(&m));
    TRY(float_get(&m, "rope.freq_base", 10000.0, &m.rope_theta));
    TRY(float_get(&m, "attention.layer_norm_rms_epsilon", -1, &m.norm_eps));
    const struct gguf_tensor *embedding = gguf_find(g, "token_embd.weight");
    if (embedding == NULL || embedding->n_dims != 2) {
        return status_make(STATUS_INPUT, "%s: expected a tensor token_embd.weight of 2 dimensions",
                           gguf_path(g));
    }
    m.n_vocab = (int64_t)embedding->dims[0];
    m.tied = gguf_find(g, "output.weight") == NULL;
    m.attention_bias = gguf_find(g, "blk.0.attn_q.bias") != NULL;
    *out = m;
    return status_ok();
}

/* ---- names ---- */

static const struct gguf_name outer_names[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

/* Writes the name, within a layer, of a tensor of experts or of their router. False when the suffix
 * is not that of such a tensor. */
static bool expert_name(const struct gguf_family *a, const char *suffix, char *out, size_t n_max)
{
    const struct gguf_name pairs[] = {{"ffn_gate_exps", a->gate_proj},
                                      {"ffn_up_exps", a->up_proj},
                                      {"ffn_down_exps", a->down_proj}};
    const char *kind = strrchr(suffix, '.'); /* ".weight", ".bias" */
    if (a->experts == NULL || kind == NULL) return false;
    const size_t n = (size_t)(kind - suffix);
    if (n == strlen("ffn_gate_inp") && strncmp(suffix, "ffn_gate_inp", n) == 0) {
        return snprintf(out, n_max, "%s.%s%s", a->experts, a->router, kind) < (int)n_max;
    }
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (n != strlen(pairs[i].gguf) || strncmp(suffix, pairs[i].gguf, n) != 0) continue;
        return snprintf(out, n_max, "%s.experts.%s%s", a->experts, pairs[i].hf, kind) < (int)n_max;
    }
    return false;
}

bool gguf_model_layer(const struct gguf_model *m, const char *name, int64_t *layer,
                      const char **suffix)
{
    if (strncmp(name, "blk.", 4) != 0 || name[4] < '0' || name[4] > '9') return false;
    char *end;
    *layer = strtol(name + 4, &end, 10);
    if (*end != '.' || *layer >= m->n_layers + m->n_predict || (name[4] == '0' && end != name + 5))
        return false;
    *suffix = end + 1;
    return true;
}

/* Writes the name of a layer's tensor to `name`, and returns the tensor; NULL: the file has none.
 */
static const struct gguf_tensor *layer_tensor(const struct gguf_model *m, int64_t layer,
                                              const char *suffix, char name[static 128])
{
    snprintf(name, 128, "blk.%lld.%s", (long long)layer, suffix);
    return gguf_find(m->file, name);
}

struct status gguf_model_pair(const struct gguf_model *m, const struct gguf_tensor *t,
                              const char *const suffixes[2], bool *found, struct gguf_pair *out)
{
    const char *suffix;
    char name[128];
    *found = gguf_model_layer(m, t->name, &out->layer, &suffix) && strcmp(suffix, suffixes[0]) == 0;
    if (!*found) return status_ok();
    out->first = t;
    out->second = layer_tensor(m, out->layer, suffixes[1], name);
    if (out->second != NULL) return status_ok();
    return status_make(STATUS_INPUT, "%s: has a tensor '%s', but no '%s'", gguf_path(m->file),
                       t->name, name);
}

bool gguf_model_leaves_out(const struct gguf_model *m, const struct gguf_tensor *t)
{
    int64_t layer;
    const char *suffix;
    char other[128];
    if (strcmp(t->name, GGUF_ROPE_FREQS) == 0) return true; /* it is in the config */
    if (!gguf_model_layer(m, t->name, &layer, &suffix)) return false;
    if (m->family->delta && strcmp(suffix, "attn_gate.weight") == 0)
        return layer_tensor(m, layer, "attn_qkv.weight", other) != NULL;
    if (m->family->joined_experts != NULL && strcmp(suffix, gguf_expert_halves[1]) == 0)
        return layer_tensor(m, layer, gguf_expert_halves[0], other) != NULL;
    return layer >= m->n_layers || (m->family->latent && strcmp(suffix, "attn_v_b.weight") == 0);
}

static struct status paired_rows(const struct gguf_model *m, const struct gguf_tensor *t,
                                 const char *suffix, uint32_t *pair_rows)
{
    const bool is_q = strncmp(suffix, "attn_q.", 7) == 0, is_k = strncmp(suffix, "attn_k.", 7) == 0;
    *pair_rows = 0;
    if (!m->family->paired || (!is_q && !is_k)) return status_ok();
    const int64_t n_heads = is_q ? m->n_heads : m->n_kv_heads;
    if (t->n_dims > 2 || t->dims[0] != (uint64_t)(n_heads * m->head_dim)) {
        return status_make(STATUS_INPUT, "%s: tensor '%s': expected %lld heads of %lld rows",
                           gguf_path(m->file), t->name, (long long)n_heads, (long long)m->head_dim);
    }
    *pair_rows = (uint32_t)m->head_dim;
    return status_ok();
}

/* Sets the dimensions: those of the file, with dimensions of size 1 before the last until there are
 * n_dims. */
static void dims_set(const struct gguf_tensor *t, uint32_t n_dims, struct gguf_target *out)
{
    const uint32_t n_added = n_dims > t->n_dims ? n_dims - t->n_dims : 0;
    out->n_dims = t->n_dims + n_added;
    for (uint32_t d = 0; d < out->n_dims; d++) out->dims[d] = 1;
    for (uint32_t d = 0; d + 1 < t->n_dims; d++) out->dims[d] = t->dims[d];
    out->dims[out->n_dims - 1] = t->dims[t->n_dims - 1];
}

struct status gguf_model_target(const struct gguf_model *m, const struct gguf_tensor *t,
                                struct gguf_target *out)
{
    int64_t layer;
    const char *suffix, *inner = NULL;
    char expert[96];
    *out = (struct gguf_target){0};
    for (size_t i = 0; i < sizeof outer_names / sizeof outer_names[0]; i++) {
        if (strcmp(t->name, outer_names[i].gguf) != 0) continue;
        snprintf(out->name, sizeof out->name, "%s", outer_names[i].hf);
        dims_set(t, 0, out);
        return status_ok();
    }
    if (gguf_model_layer(m, t->name, &layer, &suffix)) {
        inner = gguf_family_name(m->family, suffix);
        if (expert_name(m->family, suffix, expert, sizeof expert)) inner = expert;
    }
    if (inner == NULL) {
        return status_make(STATUS_INPUT, "%s: tensor '%.200s' is not implemented for %s",
                           gguf_path(m->file), t->name, m->family->model_type);
    }
    snprintf(out->name, sizeof out->name, "model.layers.%lld.%s", (long long)layer, inner);
    dims_set(t, gguf_family_dims(suffix), out);
    out->is_decay = strcmp(suffix, GGUF_DECAYS) == 0;
    if (out->is_decay && t->quant != GGUF_F32_TENSOR)
        return status_make(STATUS_INPUT, "%s: tensor '%s': expected F32", gguf_path(m->file),
                           t->name);
    return paired_rows(m, t, suffix, &out->pair_rows);
}
