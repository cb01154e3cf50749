/* Reads the config of DeepSeek-V4: the layers with compressed entries and the positions of an
 * entry, the hashed layers (a table gives each token's experts), the widths of heads, and the two
 * RoPEs. Called by arch.c. */
#include "arch/arch_private.h"
#include "tensor/dims.h"

#include <string.h>

/* The kinds of layers: their names in "layer_types" and "compress_rates", and their numbers in
 * "compress_ratios", which are also their rates if the file gives none. */
static const struct {
    const char *word;
    uint32_t ratio;
} kinds[] = {[COMPRESSION_NONE] = {"sliding_attention", 0},
             [COMPRESSION_SPARSE] = {"compressed_sparse_attention", 4},
             [COMPRESSION_FULL] = {"heavily_compressed_attention", 128}};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static struct status expected(const struct arch_reading *r, const char *key, const char *what)
{
    return status_make(STATUS_INPUT, "%s: %s: expected %s for %s", r->what, key, what,
                       r->m.family->title);
}

static bool is_given(const struct arch_reading *r, const char *key)
{
    return js_type(js_get(r->root, key)) != JS_NULL;
}

/* Refuses YaRN without truncation, because the reference always truncates, and a null
 * attention_factor, which the reference reads differently from an absent one. */
static struct status check_yarn(const struct arch_reading *r, const struct js_node *rope)
{
    const struct js_node *factor = js_get(rope, "attention_factor");
    bool truncate = true;
    js_bool(js_get(rope, "truncate"), &truncate);
    if (!truncate) return expected(r, "truncate", "true");
    if (factor != NULL && js_type(factor) == JS_NULL)
        return expected(r, "attention_factor", "a number");
    return status_ok();
}

/* "rope_parameters" has an object for each RoPE; without it, "rope_scaling" describes the RoPE of
 * layers with entries. */
struct status arch_find_compressed_rope(struct arch_reading *r)
{
    const struct js_node *compress = js_get(r->node.rope_parameters, "compress");
    r->m.local_rope = true;
    TRY(check_yarn(r, r->node.rope_scaling));
    TRY(check_yarn(r, compress));
    if (js_get(r->node.rope_scaling, "rope_theta") != NULL ||
        js_get(r->node.rope_scaling, "partial_rotary_factor") != NULL)
        return expected(r, "rope_scaling", "no rope_theta and no partial_rotary_factor");
    if (r->node.rope_parameters == NULL) return status_ok();
    r->node.local_rope = js_get(r->node.rope_parameters, "main");
    if (js_type(compress) != JS_OBJECT || js_type(r->node.local_rope) != JS_OBJECT)
        return expected(r, "rope_parameters", "objects \"main\" and \"compress\"");
    if (js_count(r->node.rope_parameters) != 2)
        return expected(r, "rope_parameters", "no members but \"main\" and \"compress\"");
    r->node.rope_parameters = compress;
    const char *rule = arch_rope_rule(r->node.local_rope);
    if (rule != NULL && strcmp(rule, "default") != 0)
        return expected(r, "rope_parameters.main", "the type \"default\"");
    double theta;
    if (!js_number(js_get(compress, "rope_theta"), &theta) ||
        !js_number(js_get(r->node.local_rope, "rope_theta"), &theta))
        return expected(r, "rope_parameters", "a rope_theta in each object");
    return arch_rope_fields_check(r, r->node.local_rope, "rope_parameters.main");
}

/* Returns the rotated elements of a head by the "partial_rotary_factor" of a RoPE object, by
 * default all; 0: the factor is out of range. rope NULL: returns attn.rotary. */
static uint32_t rotary_by(const struct arch_reading *r, const struct js_node *rope)
{
    double part = 1;
    if (rope == NULL || !js_number(js_get(rope, "partial_rotary_factor"), &part))
        return rope == NULL ? r->m.attn.rotary : r->m.attn.head_dim;
    if (!(part > 0 && part <= 1)) return 0;
    return (uint32_t)(r->m.attn.head_dim * part);
}

/* Sets the rotated elements of a head. All fields that give their number must agree. */
static struct status derive_rotary(struct arch_reading *r)
{
    struct arch_attention *a = &r->m.attn;
    const bool has_part = is_given(r, "partial_rotary_factor");
    const uint32_t by_part = (uint32_t)(a->head_dim * r->rotary_part);
    if (a->rotary == 0 && !has_part) return arch_field_missing(r, "qk_rope_head_dim");
    if (a->rotary == 0) a->rotary = by_part;
    if ((has_part && by_part != a->rotary) || rotary_by(r, r->node.rope_parameters) != a->rotary ||
        rotary_by(r, r->node.local_rope) != a->rotary)
        return expected(r, "partial_rotary_factor",
                        "the same number of rotated elements everywhere, as qk_rope_head_dim says");
    if (a->rotary >= 2 && a->rotary % 2 == 0 && a->rotary <= a->head_dim) return status_ok();
    return expected(r, "qk_rope_head_dim", "an even number up to head_dim");
}

struct status arch_derive_compressed_heads(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const struct arch_compression *c = &m->compression;
    TRY(derive_rotary(r));
    if (m->attn.n_kv_heads != 1) return expected(r, "num_key_value_heads", "1");
    if (m->attn.head_dim % LANES != 0) return expected(r, "head_dim", "a multiple of 16");
    if (m->attn.n_heads % c->o_groups != 0)
        return expected(r, "o_groups", "a divisor of num_attention_heads");
    if (c->o_lora % PANEL_COLUMNS != 0) return expected(r, "o_lora_rank", "a multiple of 16");
    if (c->o_groups * c->o_lora % m->attn.n_heads != 0)
        return expected(r, "o_groups, o_lora_rank", "a product that num_attention_heads divides");
    m->attn.query_dim = m->attn.kv_lora = m->attn.head_dim;
    m->attn.value_dim = c->o_groups * c->o_lora / m->attn.n_heads;
    return status_ok();
}

/* Sets *out to the kind of a layer by the lists, which must agree. */
static struct status kind_of(const struct arch_reading *r, uint32_t layer, enum compression *out)
{
    const char *word = js_string(js_at(r->node.layer_types, layer), NULL);
    int64_t ratio = -1;
    const bool by_ratio = js_int(js_at(r->node.ratios, layer), &ratio);
    for (int i = 0; i < N_KINDS; i++) {
        const bool is_word = word == NULL || strcmp(word, kinds[i].word) == 0;
        const bool is_ratio = !by_ratio || ratio == kinds[i].ratio;
        if (!is_word || !is_ratio || (word == NULL && !by_ratio)) continue;
        *out = (enum compression)i;
        return status_ok();
    }
    return status_make(STATUS_INPUT,
                       "%s: layer_types, compress_ratios: layer %u: expected one of the kinds of "
                       "%s, the same in both lists",
                       r->what, layer, r->m.family->title);
}

static struct status derive_kinds(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const struct js_node *types = r->node.layer_types, *ratios = r->node.ratios;
    if (types == NULL && ratios == NULL)
        return expected(r, "layer_types", "a list, or compress_ratios");
    if (types != NULL && js_count(types) != m->n_layers)
        return expected(r, "layer_types", "a text for each layer");
    if (ratios != NULL && js_count(ratios) < m->n_layers) /* more are of prediction layers */
        return expected(r, "compress_ratios", "a number for each layer");
    m->attn.window = r->window;
    for (uint32_t l = 0; l < m->n_layers; l++) {
        TRY(kind_of(r, l, &m->layer.compression[l]));
        m->layer.has_window[l] = m->layer.compression[l] == COMPRESSION_NONE;
    }
    return r->window > 0 ? status_ok() : expected(r, "sliding_window", "at least 1");
}

/* Sets *rate from "compress_rates" or its default, unless another field has set it. Checks it: the
 * positions of a KV block must make whole entries, or those of an entry whole blocks. */
static struct status derive_rate(const struct arch_reading *r, enum compression kind,
                                 uint32_t *rate)
{
    int64_t n = kinds[kind].ratio;
    const struct js_node *node = js_get(r->node.rates, kinds[kind].word);
    if (node != NULL && (!js_int(node, &n) || n < 2 || n > 1 << 16))
        return expected(r, "compress_rates", "integers from 2 to 65536");
    if (*rate == 0) *rate = (uint32_t)n;
    if (*rate >= 2 && (KV_BLOCK_TOKENS % *rate == 0 || *rate % KV_BLOCK_TOKENS == 0))
        return status_ok();
    return expected(r, "compress_rates", "divisors of 64 from 2 on, and multiples of 64,");
}

static struct status check_rates(const struct arch_reading *r)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(r->node.rates, &it, &key, &value)) {
        if (strcmp(key, kinds[COMPRESSION_SPARSE].word) != 0 &&
            strcmp(key, kinds[COMPRESSION_FULL].word) != 0)
            return expected(r, "compress_rates", "the kinds of layers that have entries");
    }
    return status_ok();
}

/* Marks the layers whose experts a table gives: the first "num_hash_layers", or those that
 * "mlp_layer_types" lists. */
static struct status derive_hashed(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const struct js_node *list = r->node.mlp_layer_types;
    const bool has_number = is_given(r, "num_hash_layers");
    if (list == NULL && !has_number)
        return expected(r, "num_hash_layers", "a number, or mlp_layer_types");
    if (list != NULL && js_count(list) != m->n_layers)
        return expected(r, "mlp_layer_types", "a text for each layer");
    for (uint32_t l = 0; l < m->n_layers; l++) {
        const char *word = js_string(js_at(list, l), NULL);
        const bool by_list = word != NULL && strcmp(word, "hash_moe") == 0;
        const bool by_number = l < r->n_hashed;
        m->layer.is_hashed[l] = list != NULL ? by_list : by_number;
        const bool is_known = by_list || (word != NULL && strcmp(word, "moe") == 0);
        if ((list != NULL && !is_known) || (list != NULL && has_number && by_list != by_number))
            return expected(r, "mlp_layer_types",
                            "\"hash_moe\" or \"moe\", as num_hash_layers says if it is given,");
    }
    return status_ok();
}

struct status arch_derive_compressed(struct arch_reading *r)
{
    struct arch *m = &r->m;
    TRY(derive_kinds(r));
    TRY(check_rates(r));
    TRY(derive_rate(r, COMPRESSION_SPARSE, &m->compression.sparse_rate));
    TRY(derive_rate(r, COMPRESSION_FULL, &m->compression.full_rate));
    TRY(derive_hashed(r));
    if (m->index.n_chosen > m->context) m->index.n_chosen = m->context;
    if (m->index.dim % LANES != 0 || m->index.dim < m->attn.rotary)
        return expected(r, "index_head_dim", "a multiple of 16, at least qk_rope_head_dim,");
    if (r->n_shared != 1) return expected(r, "n_shared_experts", "1");
    if (!r->norm_topk_prob) return expected(r, "norm_topk_prob", "true");
    if (r->pattern.n_dense_layers > 0) return expected(r, "first_k_dense_replace", "0");
    if (r->pattern.moe_every != 1) return expected(r, "moe_layer_freq", "1");
    return status_ok();
}
