/* Translates GGUF metadata and names into those of a Hugging Face checkpoint. */
#include "checkpoint/convert/gguf_model.h"

#include "base/mem.h"
#include "text/tokenizer/tokenizer_synth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE_MAX_SANE = 1 << 28 }; /* no dimension of a model is larger */

struct arch_names {
    const char *gguf;         /* general.architecture, the prefix of its keys */
    const char *architecture; /* Hugging Face's class */
    const char *model_type;
    const char *experts; /* names within a layer: of the experts' module and its linears */
    const char *gate_proj, *up_proj, *down_proj;
    bool paired;        /* q and k rows are stored in pairs */
    const char *router; /* the router's name after `experts`; NULL: "gate" */
};

static const struct arch_names arch_names[GGUF_ARCH_COUNT] = {
    [GGUF_LLAMA] = {"llama", "LlamaForCausalLM", "llama", NULL, NULL, NULL, NULL, true},
    [GGUF_MIXTRAL] = {"llama", "MixtralForCausalLM", "mixtral", "block_sparse_moe", "w1", "w3",
                      "w2", true},
    [GGUF_QWEN2] = {"qwen2", "Qwen2ForCausalLM", "qwen2", NULL, NULL, NULL, NULL, false},
    [GGUF_QWEN3] = {"qwen3", "Qwen3ForCausalLM", "qwen3", NULL, NULL, NULL, NULL, false},
    [GGUF_QWEN3_MOE] = {"qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", "mlp", "gate_proj",
                        "up_proj", "down_proj", false},
    [GGUF_GPT_OSS] = {"gpt-oss", "GptOssForCausalLM", "gpt_oss", "mlp", "gate_proj", "up_proj",
                      "down_proj", false, "router"},
};

/* ---- metadata ---- */

static struct status key_bad(const struct gguf_model *m, const char *key, const char *expected)
{
    return status_make(STATUS_INPUT, "%s: key %s.%s: expected %s", gguf_path(m->file),
                       arch_names[m->arch].gguf, key, expected);
}

static void key_full(const struct gguf_model *m, const char *key, char out[128])
{
    snprintf(out, 128, "%s.%s", arch_names[m->arch].gguf, key);
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

/* True when a key after the architecture's prefix is read, or does not change the arithmetic. */
static bool key_is_known(const char *key)
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
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "vocab_size",
        "tensor_data_layout",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.finetuned",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(key, known[i]) == 0) return true;
    }
    return false;
}

static struct status gguf_model_keys_check(const struct gguf_model *m)
{
    const char *prefix = arch_names[m->arch].gguf;
    const size_t n = strlen(prefix);
    for (size_t i = 0; i < gguf_key_count(m->file); i++) {
        const char *key = gguf_key_at(m->file, i);
        if (strncmp(key, prefix, n) != 0 || key[n] != '.') continue;
        const bool is_window = strcmp(key + n + 1, "attention.sliding_window") == 0;
        if (!key_is_known(key + n + 1) && !(is_window && m->arch == GGUF_GPT_OSS)) {
            return status_make(STATUS_INPUT, "%s: key %.200s is not implemented",
                               gguf_path(m->file), key);
        }
    }
    int64_t n_split = 0;
    if (gguf_int(m->file, "split.count", &n_split) && n_split > 1) {
        return status_make(STATUS_INPUT, "%s: is one of %lld parts: merge them into one file first",
                           gguf_path(m->file), (long long)n_split);
    }
    return status_ok();
}

static struct status arch_get(struct gguf_model *m)
{
    const char *name = gguf_string(m->file, "general.architecture", NULL);
    if (name == NULL) {
        return status_make(STATUS_INPUT, "%s: has no general.architecture", gguf_path(m->file));
    }
    for (int i = 0; i < GGUF_ARCH_COUNT; i++) {
        if (strcmp(name, arch_names[i].gguf) != 0) continue;
        m->arch = (enum gguf_arch)i;
        if (m->arch == GGUF_LLAMA && gguf_has(m->file, "llama.expert_count")) {
            m->arch = GGUF_MIXTRAL;
        }
        return status_ok();
    }
    return status_make(STATUS_INPUT,
                       "%s: architecture %.80s is not implemented (expected llama, qwen2, qwen3, "
                       "qwen3moe or gpt-oss)",
                       gguf_path(m->file), name);
}

static struct status heads_get(struct gguf_model *m)
{
    int64_t value_dim, rope_dim;
    TRY(size_get(m, "attention.head_count", -1, &m->n_heads));
    TRY(size_get(m, "attention.head_count_kv", m->n_heads, &m->n_kv_heads));
    TRY(size_get(m, "attention.key_length", m->width / m->n_heads, &m->head_dim));
    TRY(size_get(m, "attention.value_length", m->head_dim, &value_dim));
    TRY(size_get(m, "rope.dimension_count", m->head_dim, &rope_dim));
    if (m->head_dim < 1)
        return key_bad(m, "attention.head_count", "at most the embedding's length");
    if (value_dim != m->head_dim) return key_bad(m, "attention.value_length", "the key length");
    if (rope_dim != m->head_dim || rope_dim % 2 != 0) {
        return key_bad(m, "rope.dimension_count", "the whole head, an even size");
    }
    return status_ok();
}

static struct status experts_get(struct gguf_model *m)
{
    if (arch_names[m->arch].experts == NULL) return status_ok();
    TRY(size_get(m, "expert_count", -1, &m->n_experts));
    TRY(size_get(m, "expert_used_count", -1, &m->n_experts_used));
    return size_get(m, "expert_feed_forward_length", m->ffn, &m->expert_ffn);
}

struct status gguf_model_read(const struct gguf *g, struct gguf_model *out)
{
    struct gguf_model m = {.file = g};
    TRY(arch_get(&m));
    TRY(gguf_model_keys_check(&m));
    TRY(size_get(&m, "block_count", -1, &m.n_layers));
    TRY(size_get(&m, "context_length", -1, &m.n_context));
    TRY(size_get(&m, "embedding_length", -1, &m.width));
    TRY(size_get(&m, "feed_forward_length", -1, &m.ffn));
    TRY(heads_get(&m));
    TRY(experts_get(&m));
    if (m.arch == GGUF_GPT_OSS) TRY(size_get(&m, "attention.sliding_window", -1, &m.window));
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

struct name_pair {
    const char *gguf, *hf;
};

static const struct name_pair outer_names[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

static const struct name_pair layer_names[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
    {"attn_sinks.weight", "self_attn.sinks"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
};

/* Writes the name, within a layer, of a tensor of experts or of their router. False when the suffix
 * is not that of such a tensor. */
static bool expert_name(const struct arch_names *a, const char *suffix, char *out, size_t n_max)
{
    const struct name_pair pairs[] = {{"ffn_gate_exps", a->gate_proj},
                                      {"ffn_up_exps", a->up_proj},
                                      {"ffn_down_exps", a->down_proj}};
    const char *kind = strrchr(suffix, '.'); /* ".weight", ".bias" */
    if (a->experts == NULL || kind == NULL) return false;
    const size_t n = (size_t)(kind - suffix);
    if (n == strlen("ffn_gate_inp") && strncmp(suffix, "ffn_gate_inp", n) == 0) {
        const char *router = a->router != NULL ? a->router : "gate";
        return snprintf(out, n_max, "%s.%s%s", a->experts, router, kind) < (int)n_max;
    }
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (n != strlen(pairs[i].gguf) || strncmp(suffix, pairs[i].gguf, n) != 0) continue;
        return snprintf(out, n_max, "%s.experts.%s%s", a->experts, pairs[i].hf, kind) < (int)n_max;
    }
    return false;
}

/* Splits "blk.N.suffix". False when the name has another form or N is not a layer. */
static bool layer_split(const struct gguf_model *m, const char *name, int64_t *layer,
                        const char **suffix)
{
    if (strncmp(name, "blk.", 4) != 0 || name[4] < '0' || name[4] > '9') return false;
    char *end;
    *layer = strtol(name + 4, &end, 10);
    if (*end != '.' || *layer >= m->n_layers || (name[4] == '0' && end != name + 5)) return false;
    *suffix = end + 1;
    return true;
}

static struct status paired_rows(const struct gguf_model *m, const struct gguf_tensor *t,
                                 const char *suffix, uint32_t *pair_rows)
{
    const bool is_q = strncmp(suffix, "attn_q.", 7) == 0, is_k = strncmp(suffix, "attn_k.", 7) == 0;
    *pair_rows = 0;
    if (!arch_names[m->arch].paired || (!is_q && !is_k)) return status_ok();
    const int64_t n_heads = is_q ? m->n_heads : m->n_kv_heads;
    if (t->n_dims != 2 || t->dims[0] != (uint64_t)(n_heads * m->head_dim)) {
        return status_make(STATUS_INPUT, "%s: tensor '%s': expected %lld heads of %lld rows",
                           gguf_path(m->file), t->name, (long long)n_heads, (long long)m->head_dim);
    }
    *pair_rows = (uint32_t)m->head_dim;
    return status_ok();
}

struct status gguf_model_name(const struct gguf_model *m, const struct gguf_tensor *t, char *name,
                              size_t n_max, uint32_t *pair_rows)
{
    int64_t layer;
    const char *suffix;
    char expert[96];
    const char *inner = NULL;
    *pair_rows = 0;
    for (size_t i = 0; i < sizeof outer_names / sizeof outer_names[0]; i++) {
        if (strcmp(t->name, outer_names[i].gguf) != 0) continue;
        snprintf(name, n_max, "%s", outer_names[i].hf);
        return status_ok();
    }
    if (layer_split(m, t->name, &layer, &suffix)) {
        for (size_t i = 0; i < sizeof layer_names / sizeof layer_names[0] && inner == NULL; i++) {
            if (strcmp(suffix, layer_names[i].gguf) == 0) inner = layer_names[i].hf;
        }
        if (expert_name(&arch_names[m->arch], suffix, expert, sizeof expert)) inner = expert;
    }
    if (inner == NULL) {
        return status_make(STATUS_INPUT, "%s: tensor '%.200s' is not implemented for %s",
                           gguf_path(m->file), t->name, arch_names[m->arch].model_type);
    }
    snprintf(name, n_max, "model.layers.%lld.%s", (long long)layer, inner);
    return paired_rows(m, t, suffix, pair_rows);
}

/* ---- texts ---- */

static void put_int(struct strbuf *out, const char *key, int64_t value)
{
    strbuf_printf(out, "  \"%s\": %lld,\n", key, (long long)value);
}

static void put_float(struct strbuf *out, const char *key, double value)
{
    strbuf_printf(out, "  \"%s\": ", key);
    strbuf_json_float(out, (float)value);
    strbuf_puts(out, ",\n");
}

/* Appends "key": id if the file has the GGUF key. */
static void gguf_model_put_token(const struct gguf_model *m, struct strbuf *out, const char *key,
                                 const char *gguf_key)
{
    int64_t id;
    if (gguf_int(m->file, gguf_key, &id)) put_int(out, key, id);
}

static void put_experts(const struct gguf_model *m, struct strbuf *out)
{
    if (m->n_experts == 0) return;
    put_int(out, "num_experts_per_tok", m->n_experts_used);
    if (m->arch == GGUF_MIXTRAL || m->arch == GGUF_GPT_OSS) {
        put_int(out, "num_local_experts", m->n_experts);
        return;
    }
    put_int(out, "num_experts", m->n_experts);
    put_int(out, "moe_intermediate_size", m->expert_ffn);
    strbuf_puts(out, "  \"norm_topk_prob\": true,\n  \"decoder_sparse_step\": 1,\n"
                     "  \"mlp_only_layers\": [],\n");
}

struct status gguf_model_config(const struct gguf_model *m, struct strbuf *out)
{
    const struct arch_names *a = &arch_names[m->arch];
    strbuf_printf(out, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n",
                  a->architecture, a->model_type);
    put_int(out, "hidden_size", m->width);
    put_int(out, "intermediate_size",
            m->arch == GGUF_MIXTRAL || m->arch == GGUF_GPT_OSS ? m->expert_ffn : m->ffn);
    put_int(out, "num_hidden_layers", m->n_layers);
    put_int(out, "num_attention_heads", m->n_heads);
    put_int(out, "num_key_value_heads", m->n_kv_heads);
    put_int(out, "head_dim", m->head_dim);
    put_int(out, "vocab_size", m->n_vocab);
    put_int(out, "max_position_embeddings", m->n_context);
    put_float(out, "rms_norm_eps", m->norm_eps);
    put_float(out, "rope_theta", m->rope_theta);
    TRY(gguf_model_rope(m, a->gguf, out));
    if (m->window > 0) put_int(out, "sliding_window", m->window);
    put_experts(m, out);
    gguf_model_put_token(m, out, "bos_token_id", "tokenizer.ggml.bos_token_id");
    gguf_model_put_token(m, out, "eos_token_id", "tokenizer.ggml.eos_token_id");
    if (m->arch != GGUF_QWEN2 && m->arch != GGUF_MIXTRAL) {
        strbuf_printf(out, "  \"attention_bias\": %s,\n", m->attention_bias ? "true" : "false");
    }
    strbuf_printf(out, "  \"hidden_act\": \"silu\",\n  \"tie_word_embeddings\": %s\n}\n",
                  m->tied ? "true" : "false");
    return strbuf_status(out);
}

struct status gguf_model_generation_config(const struct gguf_model *m, struct strbuf *out)
{
    int64_t end[2];
    size_t n = 0;
    strbuf_puts(out, "{\n");
    gguf_model_put_token(m, out, "bos_token_id", "tokenizer.ggml.bos_token_id");
    if (gguf_int(m->file, "tokenizer.ggml.eos_token_id", &end[n])) n++;
    if (gguf_int(m->file, "tokenizer.ggml.eot_token_id", &end[n]) && (n == 0 || end[1] != end[0])) {
        n++;
    }
    strbuf_puts(out, "  \"eos_token_id\": [");
    for (size_t i = 0; i < n; i++) {
        strbuf_printf(out, "%s%lld", i > 0 ? ", " : "", (long long)end[i]);
    }
    strbuf_puts(out, "]\n}\n");
    return strbuf_status(out);
}

/* Lists the strings of an array; they are borrowed from the file. */
static struct status texts_get(const struct gguf_model *m, const char *key, struct gguf_text **out,
                               size_t *n_out)
{
    enum gguf_type type;
    uint64_t n;
    if (!gguf_array(m->file, key, &type, &n) || type != GGUF_STRING) {
        return status_make(STATUS_INPUT, "%s: key %s: expected a list of strings",
                           gguf_path(m->file), key);
    }
    TRY(mem_alloc(out, n, sizeof **out, key));
    for (uint64_t i = 0; i < n; i++) {
        (*out)[i].bytes = gguf_array_string(m->file, key, i, &(*out)[i].n);
    }
    *n_out = n;
    return status_ok();
}

static struct status types_get(const struct gguf_model *m, size_t n_tokens, int32_t **out)
{
    static const char key[] = "tokenizer.ggml.token_type";
    enum gguf_type type;
    uint64_t n;
    if (!gguf_has(m->file, key)) return status_ok();
    if (!gguf_array(m->file, key, &type, &n) || n != n_tokens) {
        return status_make(STATUS_INPUT, "%s: key %s: expected a list of %zu integers",
                           gguf_path(m->file), key, n_tokens);
    }
    TRY(mem_alloc(out, n, sizeof **out, key));
    for (uint64_t i = 0; i < n; i++) {
        int64_t value = -1;
        if (!gguf_array_int(m->file, key, i, &value) || value < 0 || value > 255) {
            return status_make(STATUS_INPUT, "%s: key %s: element %llu is no token type",
                               gguf_path(m->file), key, (unsigned long long)i);
        }
        (*out)[i] = (int32_t)value;
    }
    return status_ok();
}

static struct status scores_get(const struct gguf_model *m, size_t n_tokens, float **out)
{
    static const char key[] = "tokenizer.ggml.scores";
    enum gguf_type type;
    uint64_t n;
    if (!gguf_has(m->file, key)) return status_ok();
    if (!gguf_array(m->file, key, &type, &n) || n != n_tokens || type != GGUF_F32) {
        return status_make(STATUS_INPUT, "%s: key %s: expected a list of %zu f32",
                           gguf_path(m->file), key, n_tokens);
    }
    TRY(mem_alloc(out, n, sizeof **out, key));
    for (uint64_t i = 0; i < n; i++) gguf_array_f32(m->file, key, i, &(*out)[i]);
    return status_ok();
}

static int64_t id_or_none(const struct gguf_model *m, const char *key)
{
    int64_t id;
    return gguf_int(m->file, key, &id) ? id : -1;
}

static int flag_or_absent(const struct gguf_model *m, const char *key)
{
    bool flag;
    return gguf_bool(m->file, key, &flag) ? flag : -1;
}

struct status gguf_model_tokenizer(const struct gguf_model *m, struct strbuf *out)
{
    struct gguf_text *tokens = NULL, *merges = NULL;
    int32_t *types = NULL;
    float *scores = NULL;
    struct gguf_vocab v = {
        .model = gguf_string(m->file, "tokenizer.ggml.model", NULL),
        .pre = gguf_string(m->file, "tokenizer.ggml.pre", NULL),
        .bos_id = id_or_none(m, "tokenizer.ggml.bos_token_id"),
        .eos_id = id_or_none(m, "tokenizer.ggml.eos_token_id"),
        .add_bos = flag_or_absent(m, "tokenizer.ggml.add_bos_token"),
        .add_eos = flag_or_absent(m, "tokenizer.ggml.add_eos_token"),
        .add_blank = flag_or_absent(m, "tokenizer.ggml.add_space_prefix"),
    };
    if (v.model == NULL) {
        return status_make(STATUS_INPUT, "%s: has no tokenizer.ggml.model", gguf_path(m->file));
    }
    if (v.pre == NULL) v.pre = "default";
    struct status st;
    TRY_GOTO(st, texts_get(m, "tokenizer.ggml.tokens", &tokens, &v.n_tokens), out);
    TRY_GOTO(st, types_get(m, v.n_tokens, &types), out);
    TRY_GOTO(st, scores_get(m, v.n_tokens, &scores), out);
    if (gguf_has(m->file, "tokenizer.ggml.merges")) {
        TRY_GOTO(st, texts_get(m, "tokenizer.ggml.merges", &merges, &v.n_merges), out);
    }
    v.tokens = tokens;
    v.token_types = types;
    v.scores = scores;
    v.merges = merges;
    st = tokenizer_json_from_gguf(&v, out);
    st = status_wrap(st, "%s", gguf_path(m->file));
out:
    mem_free(&types);
    mem_free(&scores);
    mem_free(&merges);
    mem_free(&tokens);
    return st;
}
