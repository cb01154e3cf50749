/* Tables of the forms in which families publish their tensors, by architecture. */
#include "checkpoint/convert/published.h"

#include "arch/arch_rope.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How the rows of a source tensor are divided among shoal's tensors, one after another. */
enum rows_kind {
    ROWS_ALL,
    ROWS_QKV,
    ROWS_HALVES,
    ROWS_FLAT,  /* [1, n] becomes [n], and so does [1, 1, n, 1] */
    ROWS_MAMBA, /* Mamba-2's projections: z, x, B, C, dt */
    ROWS_CONV,  /* the channels of Mamba-2's convolution: x, B, C */
};

/* A tensor whose name ends with `from` becomes tensors whose names end with `to` instead. */
struct published_form {
    const char *from, *to[PUBLISHED_PARTS_MAX];
    enum rows_kind rows;
};

/* A part of a name, and what replaces it. */
struct name_part {
    const char *from, *to;
};

struct published_family {
    const char *architecture;
    bool norms_less_one; /* weights named "...norm.weight" are stored minus 1, except gated norms */
    bool is_backbone;    /* names begin with "backbone." instead of "model." */
    bool in_pairs;       /* a layer of the file is two of shoal's (rename_paired) */
    bool is_encoder;     /* names are those of published_encoder.c */
    bool is_mixed;       /* tensors of recurrent layers have attention's names (rename_mixer) */
    bool is_short;       /* names are DeepSeek-V4's (rename_short) */
    const struct name_part *parts; /* replaced wherever they occur; the last one is empty; NULL:
                                      none */
    const struct published_form *forms; /* the last one is empty; NULL: none */
};

static const struct published_form fused_all[] = {
    {"self_attn.qkv_proj.weight",
     {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"},
     ROWS_QKV},
    {"mlp.gate_up_proj.weight", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, ROWS_HALVES},
    {0}};
static const struct published_form fused_ffn[] = {
    {"mlp.gate_up_proj.weight", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, ROWS_HALVES}, {0}};
static const struct published_form granite_shared[] = {
    {"shared_mlp.input_linear.weight",
     {"shared_mlp.gate_proj.weight", "shared_mlp.up_proj.weight"},
     ROWS_HALVES},
    {"shared_mlp.output_linear.weight", {"shared_mlp.down_proj.weight"}, ROWS_ALL},
    {0}};
#define MAMBA_FORMS(where)                                                                         \
    {where ".in_proj.weight",                                                                      \
     {"mamba.z_proj.weight", "mamba.x_proj.weight", "mamba.b_proj.weight", "mamba.c_proj.weight",  \
      "mamba.dt_proj.weight"},                                                                     \
     ROWS_MAMBA},                                                                                  \
    {                                                                                              \
        where ".conv1d.bias",                                                                      \
            {"mamba.conv1d_x.bias", "mamba.conv1d_b.bias", "mamba.conv1d_c.bias"}, ROWS_CONV       \
    }
static const struct published_form granite_hybrid[] = {
    MAMBA_FORMS("mamba"),
    {"shared_mlp.input_linear.weight",
     {"shared_mlp.gate_proj.weight", "shared_mlp.up_proj.weight"},
     ROWS_HALVES},
    {"shared_mlp.output_linear.weight", {"shared_mlp.down_proj.weight"}, ROWS_ALL},
    {0}};
static const struct published_form nemotron_h[] = {
    MAMBA_FORMS("mixer"),
    {"mixer.conv1d.weight", {"mamba.conv1d.weight"}, ROWS_ALL},
    {"mixer.A_log", {"mamba.A_log"}, ROWS_ALL},
    {"mixer.D", {"mamba.D"}, ROWS_ALL},
    {"mixer.dt_bias", {"mamba.dt_bias"}, ROWS_ALL},
    {"mixer.norm.weight", {"mamba.norm.weight"}, ROWS_ALL},
    {"mixer.out_proj.weight", {"mamba.out_proj.weight"}, ROWS_ALL},
    {"mixer.q_proj.weight", {"self_attn.q_proj.weight"}, ROWS_ALL},
    {"mixer.k_proj.weight", {"self_attn.k_proj.weight"}, ROWS_ALL},
    {"mixer.v_proj.weight", {"self_attn.v_proj.weight"}, ROWS_ALL},
    {"mixer.o_proj.weight", {"self_attn.o_proj.weight"}, ROWS_ALL},
    {"mixer.up_proj.weight", {"mlp.up_proj.weight"}, ROWS_ALL},
    {"mixer.down_proj.weight", {"mlp.down_proj.weight"}, ROWS_ALL},
    {"mixer.gate.weight", {"mlp.gate.weight"}, ROWS_ALL},
    {"mixer.gate.e_score_correction_bias", {"mlp.gate.e_score_correction_bias"}, ROWS_ALL},
    {"mixer.shared_experts.up_proj.weight", {"mlp.shared_experts.up_proj.weight"}, ROWS_ALL},
    {"mixer.shared_experts.down_proj.weight", {"mlp.shared_experts.down_proj.weight"}, ROWS_ALL},
    {".norm.weight", {".input_layernorm.weight"}, ROWS_ALL},
    {".norm_f.weight", {".norm.weight"}, ROWS_ALL},
    {".embeddings.weight", {".embed_tokens.weight"}, ROWS_ALL},
    {0}};
static const struct published_form ernie_moe[] = {{"mlp.moe_statics.e_score_correction_bias",
                                                   {"mlp.moe_statics.e_score_correction_bias"},
                                                   ROWS_FLAT},
                                                  {0}};
/* transformers saves a dense FFN under the left names, the publisher under the right ones */
static const struct published_form kimi_linear[] = {
    {"self_attn.A_log", {"self_attn.A_log"}, ROWS_FLAT},
    {"block_sparse_moe.gate_proj.weight", {"mlp.gate_proj.weight"}, ROWS_ALL},
    {"block_sparse_moe.up_proj.weight", {"mlp.up_proj.weight"}, ROWS_ALL},
    {"block_sparse_moe.down_proj.weight", {"mlp.down_proj.weight"}, ROWS_ALL},
    {0}};
static const struct published_form ling[] = {
    {".A_log", {".A_log"}, ROWS_FLAT},
    {".word_embeddings.weight", {".embed_tokens.weight"}, ROWS_ALL},
    {".gate.expert_bias", {".gate.e_score_correction_bias"}, ROWS_ALL},
    {0}};
static const struct published_form hunyuan[] = {
    {".query_layernorm.weight", {".q_norm.weight"}, ROWS_ALL},
    {".key_layernorm.weight", {".k_norm.weight"}, ROWS_ALL},
    {0}};

static const struct published_form apertus[] = {
    {".attention_layernorm.weight", {".input_layernorm.weight"}, ROWS_ALL},
    {".feedforward_layernorm.weight", {".post_attention_layernorm.weight"}, ROWS_ALL},
    {0}};

static const struct published_form modern_bert[] = {
    {"attn.Wqkv.weight",
     {"attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight"},
     ROWS_QKV},
    {"attn.Wqkv.bias", {"attn.q_proj.bias", "attn.k_proj.bias", "attn.v_proj.bias"}, ROWS_QKV},
    {"mlp.Wi.weight", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, ROWS_HALVES},
    {"mlp.Wi.bias", {"mlp.gate_proj.bias", "mlp.up_proj.bias"}, ROWS_HALVES},
    {0}};

/* transformers joins gate and up in a checkpoint of the text model alone */
static const struct published_form minimax_m3[] = {
    {"mlp.gate_up_proj.weight", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, ROWS_HALVES},
    {"mlp.shared_experts.gate_up_proj.weight",
     {"mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.up_proj.weight"},
     ROWS_HALVES},
    {0}};
static const struct name_part minimax_m3_parts[] = {
    {".block_sparse_moe.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"},
    {".block_sparse_moe.", ".mlp."},
    {".w1.", ".gate_proj."},
    {".w2.", ".down_proj."},
    {".w3.", ".up_proj."},
    {".self_attn.indexer.", ".self_attn.index_"}, /* as transformers writes it */
    {0}};

static const struct published_form llama4[] = {
    {"feed_forward.gate_proj.weight", {"mlp.gate_proj.weight"}, ROWS_ALL},
    {"feed_forward.up_proj.weight", {"mlp.up_proj.weight"}, ROWS_ALL},
    {"feed_forward.down_proj.weight", {"mlp.down_proj.weight"}, ROWS_ALL},
    {0}};

static const struct published_family families[] = {
    {.architecture = "Llama4ForCausalLM", .forms = llama4},
    {.architecture = "Gemma2ForCausalLM", .norms_less_one = true},
    {.architecture = "Gemma3ForCausalLM", .norms_less_one = true},
    {.architecture = "Qwen3NextForCausalLM", .norms_less_one = true},
    {.architecture = "Step3p5ForCausalLM", .norms_less_one = true},
    {.architecture = "Qwen3_5ForCausalLM", .norms_less_one = true},
    {.architecture = "Qwen3_5MoeForCausalLM", .norms_less_one = true},
    {.architecture = "MiniMaxM3VLForCausalLM",
     .norms_less_one = true,
     .forms = minimax_m3,
     .parts = minimax_m3_parts},
    {.architecture = "Phi3ForCausalLM", .forms = fused_all},
    {.architecture = "Glm4ForCausalLM", .forms = fused_ffn},
    {.architecture = "Ernie4_5ForCausalLM"}, /* q and k: arch_rope_in_pairs */
    {.architecture = "Ernie4_5_MoeForCausalLM", .forms = ernie_moe},
    {.architecture = "HunYuanDenseV1ForCausalLM", .forms = hunyuan},
    {.architecture = "HunYuanMoEV1ForCausalLM", .forms = hunyuan},
    {.architecture = "ApertusForCausalLM", .forms = apertus},
    {.architecture = "GraniteMoeSharedForCausalLM", .forms = granite_shared},
    {.architecture = "GraniteMoeHybridForCausalLM", .forms = granite_hybrid},
    {.architecture = "NemotronHForCausalLM", .forms = nemotron_h, .is_backbone = true},
    {.architecture = "LongcatFlashForCausalLM", .in_pairs = true},
    {.architecture = "KimiLinearForCausalLM", .is_mixed = true, .forms = kimi_linear},
    {.architecture = "BailingHybridForCausalLM", .is_mixed = true, .forms = ling},
    {.architecture = "BailingMoeV3ForCausalLM", .is_mixed = true, .forms = ling},
    {.architecture = "DeepseekV4ForCausalLM", .is_short = true},
    {.architecture = "BertModel", .is_encoder = true},
    {.architecture = "RobertaModel", .is_encoder = true},
    {.architecture = "XLMRobertaModel", .is_encoder = true},
    {.architecture = "ModernBertModel", .is_encoder = true, .forms = modern_bert},
};

struct published {
    const struct published_family *family;
    struct arch arch;
};

struct status published_open(const struct strbuf *config, struct published **out)
{
    struct js_doc *doc = NULL;
    const struct published_family *found = NULL;
    *out = NULL;
    TRY(js_parse(config->data, config->n, "config.json", &doc));
    const char *name = js_string(js_at(js_get(js_root(doc), "architectures"), 0), NULL);
    for (size_t i = 0; name != NULL && i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(name, families[i].architecture) == 0) found = &families[i];
    }
    js_destroy(&doc);
    if (found == NULL) return status_ok();
    TRY(mem_alloc(out, 1, sizeof **out, "published tensors"));
    (*out)->family = found;
    const struct status st = arch_parse(config->data, config->n, "config.json", &(*out)->arch);
    if (status_failed(&st)) published_close(out);
    return st;
}

void published_close(struct published **p)
{
    mem_free(p);
}

static bool published_ends(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Sets rows[i]: how many rows (of a vector: elements) of a source tensor of n_rows rows go to its
 * part i. */
static void part_rows(const struct published *p, const struct published_form *form, uint64_t n_rows,
                      uint64_t rows[PUBLISHED_PARTS_MAX])
{
    const struct arch *m = &p->arch;
    rows[0] = n_rows;
    if (form->to[1] == NULL) return;
    if (form->rows == ROWS_HALVES) {
        rows[0] = rows[1] = n_rows / 2;
        return;
    }
    if (form->rows == ROWS_MAMBA || form->rows == ROWS_CONV) {
        const uint64_t n_v = (uint64_t)m->delta.n_value_heads * m->delta.value_dim;
        const uint64_t n_k = (uint64_t)m->delta.n_key_heads * m->delta.key_dim;
        const uint64_t all[] = {n_v, n_v, n_k, n_k, m->delta.n_value_heads};
        const size_t first = form->rows == ROWS_CONV ? 1 : 0;
        memcpy(rows, all + first, (first > 0 ? 3 : 5) * sizeof rows[0]);
        return;
    }
    rows[0] = (uint64_t)m->attn.n_heads * m->attn.query_dim;
    rows[1] = rows[2] = (uint64_t)m->attn.n_kv_heads * m->attn.query_dim;
}

static bool is_rotated(const char *name)
{
    return published_ends(name, ".q_proj.weight") || published_ends(name, ".k_proj.weight") ||
           published_ends(name, ".q_proj.bias") || published_ends(name, ".k_proj.bias");
}

static bool is_in_pairs(const struct published *p, const char *name)
{
    return arch_rope_in_pairs(p->arch.family) && is_rotated(name);
}

/* Replaces "mixer" by "mlp" in the name of an expert's tensor. */
static void rename_experts(char *name)
{
    static const char from[] = ".mixer.experts.", to[] = ".mlp.experts.";
    char *at = strstr(name, from);
    if (at == NULL) return;
    memcpy(at, to, strlen(to));
    memmove(at + strlen(to), at + strlen(from), strlen(at + strlen(from)) + 1);
}

/* Renames a tensor of a published layer L, which is two of shoal's layers. A tensor with a number 0
 * or 1 after its block's name belongs to layer 2 L or 2 L + 1, any other to layer 2 L. A name that
 * would not fit name [n] is not changed, so its layer lacks the tensor. */
static void rename_paired(char *name, size_t n)
{
    static const char prefix[] = "model.layers.";
    static const char *const blocks[][2] = {
        {".self_attn.", ".self_attn."},
        {".mlps.", ".mlp."},
        {".input_layernorm.", ".input_layernorm."},
        {".post_attention_layernorm.", ".post_attention_layernorm."}};
    char *rest, out[CKPT_NAME_MAX];
    if (strncmp(name, prefix, strlen(prefix)) != 0) return;
    const unsigned long layer = strtoul(name + strlen(prefix), &rest, 10);
    if (layer >= ARCH_LAYERS_MAX) return;
    int length = snprintf(out, sizeof out, "%s%lu%s", prefix, 2 * layer, rest);
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        const size_t at = strlen(blocks[i][0]);
        if (strncmp(rest, blocks[i][0], at) != 0) continue;
        if ((rest[at] != '0' && rest[at] != '1') || rest[at + 1] != '.') continue;
        length = snprintf(out, sizeof out, "%s%lu%s%s", prefix, 2 * layer + (rest[at] == '1'),
                          blocks[i][1], rest + at + 2);
    }
    if (length < (int)sizeof out && (size_t)length < n) memcpy(name, out, (size_t)length + 1);
}

/* Returns the layer of a tensor's name, and sets *rest to the text after the layer's number.
 * Returns n_layers if the tensor belongs to none of the model's layers. */
static unsigned long layer_of_name(const struct arch *m, char *name, char **rest)
{
    static const char prefix[] = "model.layers.";
    if (strncmp(name, prefix, strlen(prefix)) != 0) return m->n_layers;
    const unsigned long layer = strtoul(name + strlen(prefix), rest, 10);
    return layer < m->n_layers ? layer : m->n_layers;
}

/* `rest` is the end of name [n]. Replaces its beginning by the first of the pairs {from, to} whose
 * `from` it begins with. A name that would become too long is not changed, so its layer lacks the
 * tensor. */
static void rename_block(char *name, size_t n, char *rest, const char *const (*pairs)[2],
                         size_t n_pairs)
{
    char out[CKPT_NAME_MAX];
    for (size_t i = 0; i < n_pairs; i++) {
        const size_t at = strlen(pairs[i][0]);
        if (strncmp(rest, pairs[i][0], at) != 0) continue;
        const int length =
            snprintf(out, sizeof out, "%.*s%s%s", (int)(rest - name), name, pairs[i][1], rest + at);
        if (length < (int)sizeof out && (size_t)length < n) memcpy(name, out, (size_t)length + 1);
        return;
    }
}

/* Renames a layer's "attention" tensors (Ling 3) to "self_attn", and those of a recurrent layer
 * from "self_attn" to "linear_attn". */
static void rename_mixer(const struct arch *m, char *name, size_t n)
{
    static const char *const usual[][2] = {{".attention.dense.", ".self_attn.o_proj."},
                                           {".attention.", ".self_attn."}};
    static const char *const recurrent[][2] = {{".self_attn.o_norm.", ".linear_attn.norm."},
                                               {".self_attn.o_proj.", ".linear_attn.out_proj."},
                                               {".self_attn.", ".linear_attn."}};
    char *rest;
    const unsigned long layer = layer_of_name(m, name, &rest);
    if (layer == m->n_layers) return;
    rename_block(name, n, rest, usual, sizeof usual / sizeof usual[0]);
    if (m->layer.is_delta[layer])
        rename_block(name, n, rest, recurrent, sizeof recurrent / sizeof recurrent[0]);
}

/* Replaces every occurrence of `from` in name [n] by `to`. Stops when the name would become too
 * long; its layer then lacks the tensor. */
static void replace_all(char *name, size_t n, const char *from, const char *to)
{
    const size_t n_from = strlen(from), n_to = strlen(to);
    for (char *at = strstr(name, from); at != NULL; at = strstr(at + n_to, from)) {
        if (strlen(name) + n_to >= n + n_from) return;
        memmove(at + n_to, at + n_from, strlen(at + n_from) + 1);
        memcpy(at, to, n_to);
    }
}

/* Gives DeepSeek-V4's tensors their usual names. The publisher's names lack the "model." that
 * transformers writes before them. */
static void rename_short(char *name, size_t n)
{
    static const char *const outside[][2] = {
        {"embed.weight", "model.embed_tokens.weight"}, {"head.weight", "lm_head.weight"},
        {"norm.weight", "model.norm.weight"},          {"hc_head_fn", "model.hc_head.hc_fn"},
        {"hc_head_base", "model.hc_head.hc_base"},     {"hc_head_scale", "model.hc_head.hc_scale"}};
    static const char *const inside[][2] = {
        {".attn_norm.", ".input_layernorm."},
        {".ffn_norm.", ".post_attention_layernorm."},
        {".hc_attn_", ".attn_hc."},
        {".hc_ffn_", ".ffn_hc."},
        {".attn.attn_sink", ".self_attn.sinks"},
        {".attn.wq_a.", ".self_attn.q_a_proj."},
        {".attn.q_norm.", ".self_attn.q_a_layernorm."},
        {".attn.wq_b.", ".self_attn.q_b_proj."},
        {".attn.norm.", ".self_attn.kv_norm."}, /* the left name is transformers' */
        {".attn.wo_a.", ".self_attn.o_a_proj."},
        {".attn.wo_b.", ".self_attn.o_b_proj."},
        {".attn.indexer.compressor.", ".self_attn.indexer."},
        {".attn.", ".self_attn."},
        {".wkv.", ".kv_proj."},
        {".wgate.", ".gate_proj."},
        {".ape", ".position_bias"},
        {".ffn.gate.bias", ".mlp.gate.e_score_correction_bias"},
        {".ffn.", ".mlp."},
        {".w1.", ".gate_proj."},
        {".w2.", ".down_proj."},
        {".w3.", ".up_proj."}};
    static const char prefix[] = "model.", layers[] = "layers.";
    const char *own = strncmp(name, prefix, strlen(prefix)) == 0 ? name + strlen(prefix) : name;
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        if (strcmp(own, outside[i][0]) != 0) continue;
        snprintf(name, n, "%s", outside[i][1]);
        return;
    }
    if (strncmp(own, layers, strlen(layers)) != 0) return;
    if (own == name && strlen(name) + strlen(prefix) < n) {
        memmove(name + strlen(prefix), name, strlen(name) + 1);
        memcpy(name, prefix, strlen(prefix));
    }
    for (size_t i = 0; i < sizeof inside / sizeof inside[0]; i++)
        replace_all(name, n, inside[i][0], inside[i][1]);
}

static struct status part_fill(const struct published *p, const char *name,
                               struct published_part *t)
{
    static const char backbone[] = "backbone.";
    const bool begins = p->family->is_backbone && strncmp(name, backbone, strlen(backbone)) == 0;
    const int n = snprintf(t->name, sizeof t->name, "%s%s", begins ? "model." : "",
                           name + (begins ? strlen(backbone) : 0));
    if (n >= (int)sizeof t->name)
        return status_make(STATUS_INPUT, "tensor '%.100s...': its name is too long", name);
    if (p->family->is_backbone) rename_experts(t->name);
    if (p->family->in_pairs) rename_paired(t->name, sizeof t->name);
    if (p->family->is_mixed) rename_mixer(&p->arch, t->name, sizeof t->name);
    if (p->family->is_short) rename_short(t->name, sizeof t->name);
    for (const struct name_part *r = p->family->parts; r != NULL && r->from != NULL; r++)
        replace_all(t->name, sizeof t->name, r->from, r->to);
    if (p->family->is_encoder) published_encoder_name(&p->arch, name, t->name, sizeof t->name);
    if (is_in_pairs(p, name)) {
        t->head_rows = p->arch.attn.query_dim;
        t->rotated = p->arch.attn.rotary;
    }
    t->adds_one = p->family->norms_less_one && published_ends(name, "norm.weight") &&
                  !published_ends(name, ".linear_attn.norm.weight");
    return status_ok();
}

static const struct published_form *form_of(const struct published *p, const char *name)
{
    for (const struct published_form *f = p->family->forms; f != NULL && f->from != NULL; f++) {
        if (published_ends(name, f->from)) return f;
    }
    return NULL;
}

bool published_only_renames(const struct published *p)
{
    return p != NULL && (p->family->in_pairs || p->family->is_mixed || p->family->is_short ||
                         p->family->parts != NULL);
}

bool published_splits(const struct published *p, const char *name)
{
    return p != NULL && (form_of(p, name) != NULL || p->family->is_backbone ||
                         p->family->in_pairs || p->family->is_encoder || is_in_pairs(p, name));
}

struct status published_parts(const struct published *p, const char *name, uint32_t n_dims,
                              const uint64_t *dims,
                              struct published_part parts[PUBLISHED_PARTS_MAX], size_t *n)
{
    *n = 0;
    if (p == NULL) return status_ok();
    const struct published_form *f = form_of(p, name), own = {.from = "", .to = {""}};
    uint64_t rows[PUBLISHED_PARTS_MAX] = {0}, row0 = 0;
    if (f == NULL) f = &own;
    part_rows(p, f, dims[0], rows);
    for (; *n < PUBLISHED_PARTS_MAX && f->to[*n] != NULL; (*n)++) {
        struct published_part *t = &parts[*n];
        char whole[2 * CKPT_NAME_MAX];
        snprintf(whole, sizeof whole, "%.*s%s", (int)(strlen(name) - strlen(f->from)), name,
                 f->to[*n]);
        *t = (struct published_part){.n_dims = n_dims, .row0 = row0};
        for (uint32_t d = 0; d < n_dims && d < CKPT_DIMS_MAX; d++) t->dims[d] = dims[d];
        t->dims[0] = rows[*n];
        row0 += rows[*n];
        if (f->rows == ROWS_FLAT && dims[0] == 1) {
            t->n_dims = 1;
            for (uint32_t d = 1; d < n_dims; d++) t->dims[0] *= dims[d];
        }
        TRY(part_fill(p, whole, t));
    }
    if (row0 == dims[0]) return status_ok();
    return status_make(STATUS_INPUT, "tensor '%.200s': expected %llu rows, found %llu", name,
                       (unsigned long long)row0, (unsigned long long)dims[0]);
}
