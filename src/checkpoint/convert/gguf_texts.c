/* Writes a GGUF file's metadata as config.json, generation_config.json and tokenizer.json. */
#include "checkpoint/convert/gguf_model.h"

#include "base/log.h"
#include "base/mem.h"
#include "text/tokenizer/tokenizer_synth.h"

#include <stdio.h>
#include <string.h>

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

static bool member_value(const struct gguf_model *m, const struct gguf_member *own,
                         struct strbuf *out)
{
    char full[128];
    int64_t i;
    double x;
    bool flag;
    snprintf(full, sizeof full, "%s.%s", m->family->gguf, own->key);
    if (strcmp(own->key, "expert_feed_forward_length") == 0) { /* read by gguf_model_read */
        put_int(out, own->hf, m->expert_ffn);
        return true;
    }
    switch (own->kind) {
    case GGUF_MEMBER_INT:
        if (!gguf_int(m->file, full, &i)) break;
        put_int(out, own->hf, i);
        return true;
    case GGUF_MEMBER_FLOAT:
        if (!gguf_float(m->file, full, &x)) break;
        put_float(out, own->hf, x);
        return true;
    case GGUF_MEMBER_BOOL:
        if (!gguf_bool(m->file, full, &flag)) break;
        strbuf_printf(out, "  \"%s\": %s,\n", own->hf, flag ? "true" : "false");
        return true;
    }
    if (gguf_has(m->file, full) || own->otherwise == NULL) return false;
    if (own->otherwise[0] != '\0') strbuf_printf(out, "  \"%s\": %s,\n", own->hf, own->otherwise);
    return true;
}

/* Appends the config's members that are listed for this family. */
static struct status put_members(const struct gguf_model *m, struct strbuf *out)
{
    static const char *const kinds[] = {"an integer", "a number", "a boolean"};
    for (const struct gguf_member *own = m->family->members; own->key != NULL; own++) {
        if (member_value(m, own, out)) continue;
        return status_make(STATUS_INPUT, "%s: key %s.%s: expected %s", gguf_path(m->file),
                           m->family->gguf, own->key, kinds[own->kind]);
    }
    return status_ok();
}

static bool has_own_expert_width(const struct gguf_family *f)
{
    for (const struct gguf_member *own = f->members; own->key != NULL; own++) {
        if (strcmp(own->key, "expert_feed_forward_length") == 0) return true;
    }
    return false;
}

/* Appends the numbers and sizes of heads. */
static void put_heads(const struct gguf_model *m, struct strbuf *out)
{
    put_int(out, "num_attention_heads", m->n_heads);
    put_int(out, "num_key_value_heads", m->n_kv_heads);
    if (m->family->latent) {
        put_int(out, "qk_nope_head_dim", m->head_dim - m->rotary);
        put_int(out, "qk_rope_head_dim", m->rotary);
        put_int(out, "v_head_dim", m->value_dim);
        return;
    }
    put_int(out, "head_dim", m->head_dim);
    if (m->family->partial)
        strbuf_printf(out, "  \"partial_rotary_factor\": %.17g,\n",
                      (double)m->rotary / (double)m->head_dim);
}

/* Appends the router's expert groups, for the families with latent attention. Files written before
 * llama.cpp knew these keys (2025) lack them; llama.cpp then routes without groups. shoal takes the
 * groups from the number of experts: the published models with 160 and 256 experts are DeepSeek-V2
 * and V3. */
static struct status put_expert_groups(const struct gguf_model *m, struct strbuf *out)
{
    static const char count[] = "deepseek2.expert_group_count";
    static const char used[] = "deepseek2.expert_group_used_count";
    int64_t n_experts = 0, n_groups = 1, n_used = 1;
    (void)gguf_int(m->file, "deepseek2.expert_count", &n_experts);
    if (!gguf_has(m->file, count) && !gguf_has(m->file, used)) {
        if (n_experts == 160 || n_experts == 256) n_groups = 8;
        if (n_groups == 8) n_used = n_experts == 160 ? 3 : 4;
        log_line(LOG_WARN, "%s: has no key %s; a token is routed to %lld of %lld groups",
                 gguf_path(m->file), count, (long long)n_used, (long long)n_groups);
    } else if (!gguf_int(m->file, count, &n_groups) || !gguf_int(m->file, used, &n_used)) {
        return status_make(STATUS_INPUT, "%s: keys %s and %s: expected two integers",
                           gguf_path(m->file), count, used);
    }
    put_int(out, "n_group", n_groups);
    put_int(out, "topk_group", n_used);
    if (!m->sigmoid)
        strbuf_printf(out, "  \"topk_method\": \"%s\",\n",
                      n_groups > 1 ? "group_limited_greedy" : "greedy");
    return status_ok();
}

/* Appends the fields that follow from the model's sizes and tensors, not from a key. */
static struct status put_derived(const struct gguf_model *m, struct strbuf *out)
{
    /* the 27B models have another scale, and no key marks them: their number of layers does, as in
     * llama.cpp */
    const bool is_27b = m->n_layers == (m->arch == GGUF_GEMMA2 ? 46 : 62);
    if (m->arch == GGUF_GEMMA2 || m->arch == GGUF_GEMMA3)
        put_int(out, "query_pre_attn_scalar", is_27b ? m->width / m->n_heads : m->head_dim);
    if (m->arch == GGUF_GLM4_MOE) {
        const bool normed = gguf_find(m->file, "blk.0.attn_q_norm.weight") != NULL;
        strbuf_printf(out, "  \"use_qk_norm\": %s,\n", normed ? "true" : "false");
    }
    if (m->arch == GGUF_LLAMA4) {
        int64_t n_experts = 0; /* of the published models, the one with 128 experts has no norms */
        (void)gguf_int(m->file, "llama4.expert_count", &n_experts);
        put_int(out, "intermediate_size_mlp", m->ffn);
        strbuf_printf(out, "  \"use_qk_norm\": %s,\n", n_experts == 128 ? "false" : "true");
    }
    if (m->family->delta) put_int(out, "linear_value_head_dim", m->delta.value_dim);
    return m->family->latent ? put_expert_groups(m, out) : status_ok();
}

struct status gguf_model_config(const struct gguf_model *m, struct strbuf *out)
{
    const struct gguf_family *f = m->family;
    const bool is_v2 = f->latent && !m->sigmoid; /* DeepSeek-V2 and V3 are both "deepseek2" */
    strbuf_printf(out, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n",
                  is_v2 ? "DeepseekV2ForCausalLM" : f->architecture,
                  is_v2 ? "deepseek_v2" : f->model_type);
    put_int(out, "hidden_size", m->width);
    put_int(out, "intermediate_size", has_own_expert_width(f) ? m->ffn : m->expert_ffn);
    put_int(out, "num_hidden_layers", m->n_layers);
    put_heads(m, out);
    put_int(out, "vocab_size", m->n_vocab);
    put_int(out, "max_position_embeddings", m->n_context);
    put_float(out, "rms_norm_eps", m->norm_eps);
    put_float(out, "rope_theta", m->rope_theta);
    TRY(gguf_model_rope(m, f->gguf, out));
    TRY(put_members(m, out));
    TRY(put_derived(m, out));
    gguf_model_put_token(m, out, "bos_token_id", "tokenizer.ggml.bos_token_id");
    gguf_model_put_token(m, out, "eos_token_id", "tokenizer.ggml.eos_token_id");
    if (!f->implies_bias)
        strbuf_printf(out, "  \"attention_bias\": %s,\n", m->attention_bias ? "true" : "false");
    strbuf_printf(out, "  %s,\n  \"tie_word_embeddings\": %s\n}\n", f->fixed,
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
