/* Computes the size of heads, and rotary frequencies, plain or scaled. */
#include "arch/arch_rope.h"

#include "arch/arch_private.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

static const double PI = 3.14159265358979323846;

/* The inputs of every rule. */
struct rope {
    const struct js_node *config, *scaling; /* scaling: NULL for plain RoPE */
    const char *rule;
    double theta, rotated;
};

static double number_or(const struct js_node *object, const char *key, double otherwise)
{
    double x;
    return js_number(js_get(object, key), &x) ? x : otherwise;
}

static double head_dim_of(const struct js_node *config)
{
    const double n_heads = number_or(config, "num_attention_heads", 0);
    const double width = number_or(config, "hidden_size", 0);
    return number_or(config, "head_dim", n_heads >= 1 ? floor(width / n_heads) : 0);
}

/* Returns the elements of a head in Gemma-4's layers without a window; 0 in other families. */
static double full_dim_of(const struct js_node *config)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *layer;
    const struct js_node *layers = js_get(config, "per_layer_config");
    if (js_type(layers) == JS_OBJECT && js_next(layers, &it, &key, &layer))
        return number_or(layer, "head_dim", 0);
    return number_or(config, "global_head_dim", 0);
}

uint32_t arch_value_dim(const struct js_node *config)
{
    const double grouped = number_or(config, "o_lora_rank", 0); /* DeepSeek-V4 */
    if (grouped >= 1 && grouped <= UINT32_MAX / 2) return (uint32_t)grouped;
    const double n = number_or(config, "v_head_dim", head_dim_of(config));
    return n >= 1 && n <= UINT32_MAX / 2 ? (uint32_t)n : 0;
}

uint32_t arch_full_dim(const struct js_node *config, uint64_t *n_heads)
{
    const double n = full_dim_of(config);
    const double own = n >= 1 ? number_or(config, "num_attention_heads", 0) : 0;
    /* Step-3.5: the heads of layers with a window */
    const double other =
        number_or(js_get(config, "attention_other_setting"), "num_attention_heads", own);
    const double heads = number_or(config, "num_sliding_attention_heads", other);
    const bool is_sane = n <= 1024 && heads >= 1 && heads <= 4096;
    *n_heads = is_sane ? (uint64_t)heads : 0;
    return is_sane && n >= 1 ? (uint32_t)n : 0;
}

uint32_t arch_delta_unit(const struct js_node *config)
{
    /* the fields of a delta rule, of Granite-4 and of Nemotron-H */
    static const struct {
        const char *keys, *values, *dim;
        double n; /* the value of a missing `dim` */
    } names[] = {{"linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim", 0},
                 {NULL, "mamba_n_heads", "mamba_d_head", 0},
                 {NULL, "mamba_num_heads", "mamba_head_dim", 64}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const double n_values = number_or(config, names[i].values, 0);
        const double n_keys =
            names[i].keys != NULL ? number_or(config, names[i].keys, 0) : n_values;
        const double n = number_or(config, names[i].dim, names[i].n);
        if (!(n_keys >= 1 && n_values >= n_keys && n >= 1)) continue;
        const double unit = floor(n_values / n_keys) * n;
        return unit <= UINT32_MAX / 2 ? (uint32_t)unit : 0;
    }
    /* Kimi-Linear and Ling 3: a unit is one head, as each key head has one value head */
    const bool is_ling = js_type(js_get(config, "kda_safe_gate")) != JS_NULL;
    const double published = is_ling ? number_or(config, "head_dim", 0) : 0;
    const double head = number_or(js_get(config, "linear_attn_config"), "head_dim",
                                  number_or(config, "linear_head_dim", published));
    return head >= 1 && head <= UINT32_MAX / 2 ? (uint32_t)head : 0;
}

/* True when the scaling object (rope_scaling, rope_parameters) leaves RoPE plain. */
static bool is_plain(const struct js_node *scaling, const char **rule)
{
    if (js_type(scaling) == JS_NULL) return true;
    const struct js_node *type = js_get(scaling, "rope_type");
    if (type == NULL) type = js_get(scaling, "type");
    if (type == NULL) return js_get(scaling, "factor") == NULL;
    *rule = js_string(type, NULL);
    return *rule != NULL && strcmp(*rule, "default") == 0;
}

static const struct arch_family *family_of(const struct js_node *config)
{
    return arch_family_find(js_string(js_at(js_get(config, "architectures"), 0), NULL));
}

/* True for DeepSeek-V4, whose "rope_parameters" has objects with names of their own. */
static bool is_compressed(const struct js_node *config)
{
    const struct arch_family *family = family_of(config);
    return family != NULL && family->compressed;
}

/* As number_or, of a number that may be a list with one for each layer (Step-3.5): reads that of
 * the first layer with a window, or without one. */
static double number_of_kind(const struct js_node *config, const char *key, bool is_local,
                             double otherwise)
{
    const struct js_node *list = js_get(config, key), *types = js_get(config, "layer_types");
    double x;
    if (js_type(list) != JS_ARRAY) return number_or(config, key, otherwise);
    for (size_t l = 0; l < js_count(types); l++) {
        const char *type = js_string(js_at(types, l), NULL);
        const bool slides = type != NULL && strcmp(type, "sliding_attention") == 0;
        if (slides == is_local && js_number(js_at(list, l), &x)) return x;
    }
    return otherwise;
}

/* Reads theta from outside of rope_parameters. */
static double theta_of(const struct js_node *config, bool is_local)
{
    const struct arch_family *family = family_of(config);
    if (family != NULL && family->modern)
        return number_or(config, is_local ? "local_rope_theta" : "global_rope_theta",
                         is_local ? ARCH_LOCAL_THETA : ARCH_GLOBAL_THETA);
    double theta = number_of_kind(config, "rope_theta", is_local, 10000.0);
    if (is_compressed(config) && !is_local) return number_or(config, "compress_rope_theta", 0);
    if (is_local) theta = number_or(config, "swa_rope_theta", theta);
    return is_local ? number_or(config, "rope_local_base_freq", theta) : theta;
}

/* Reads the RoPE of layers without a window, or with one; in most families both are the same. */
static struct rope rope_read(const struct js_node *config, bool is_local)
{
    const struct js_node *parameters = js_get(config, "rope_parameters");
    const struct js_node *scaling = is_local ? NULL : js_get(config, "rope_scaling");
    const bool has_entries = is_compressed(config);
    const struct js_node *own =
        js_get(parameters, is_local ? (has_entries ? "main" : "sliding_attention")
                                    : (has_entries ? "compress" : "full_attention"));
    if (js_type(own) == JS_OBJECT) parameters = own;
    const double full_dim = is_local ? 0 : full_dim_of(config);
    const double head_dim =
        number_or(config, "qk_rope_head_dim", full_dim > 0 ? full_dim : head_dim_of(config));
    const double part = number_or(parameters, "partial_rotary_factor",
                                  number_of_kind(config, "partial_rotary_factors", is_local,
                                                 number_or(config, "partial_rotary_factor", 1.0)));
    struct rope r = {.config = config};
    r.rotated = part != 1 ? floor(head_dim * part) : number_or(config, "rotary_dim", head_dim);
    r.rotated = number_or(config, "qk_rope_head_dim", r.rotated);
    r.theta = number_or(parameters, "rope_theta",
                        number_or(scaling, "rope_theta", theta_of(config, is_local)));
    if (!is_plain(parameters, &r.rule)) {
        r.scaling = parameters;
    } else if (!is_plain(scaling, &r.rule)) {
        r.scaling = scaling;
    }
    if (r.rule != NULL && strcmp(r.rule, "proportional") == 0) r.rotated = head_dim;
    return r;
}

/* Reads a parameter of the rule, which must be in (least, 1e9]. If it is absent, *out is
 * `otherwise`; that is an error if `otherwise` is 0. */
static struct status parameter(const struct rope *r, const char *key, double least,
                               double otherwise, double *out)
{
    const struct js_node *node = js_get(r->scaling, key);
    *out = otherwise;
    if (js_type(node) == JS_NULL && otherwise != 0) return status_ok();
    if (!js_number(node, out) || !(*out > least && *out <= 1e9)) {
        return status_make(
            STATUS_INPUT,
            "config.json: RoPE scaling \"%s\": field \"%s\": expected a number above "
            "%g, at most 1e9",
            r->rule, key, least);
    }
    return status_ok();
}

static double plain_of(const struct rope *r, size_t i)
{
    return pow(r->theta, -(2.0 * (double)i) / r->rotated);
}

static struct status make_linear(const struct rope *r, struct arch_rope *out)
{
    double factor;
    TRY(parameter(r, "factor", 0, 0, &factor));
    for (size_t i = 0; i < out->n; i++) out->inv_freq[i] = (float)(plain_of(r, i) / factor);
    return status_ok();
}

/* Reads the context length before scaling: from its own field, or max_position_embeddings. */
static struct status original_context(const struct rope *r, double *out)
{
    const char *key = "original_max_position_embeddings";
    return parameter(r, key, 0,
                     number_or(r->config, key, number_or(r->config, "max_position_embeddings", 0)),
                     out);
}

static struct status make_llama3(const struct rope *r, struct arch_rope *out)
{
    double factor, low, high, context;
    TRY(parameter(r, "factor", 0, 0, &factor));
    TRY(parameter(r, "low_freq_factor", 0, 0, &low));
    TRY(parameter(r, "high_freq_factor", low, 0, &high));
    TRY(original_context(r, &context));
    for (size_t i = 0; i < out->n; i++) {
        const double plain = plain_of(r, i), wavelength = 2 * PI / plain;
        /* 0 for long waves, which are scaled; 1 for short waves, which are not */
        const double smooth = fmin(fmax((context / wavelength - low) / (high - low), 0), 1);
        out->inv_freq[i] = (float)((1 - smooth) * plain / factor + smooth * plain);
    }
    return status_ok();
}

/* Returns the (fractional) index i of the frequency that makes n_turns turns within the context. */
static double turning_dimension(const struct rope *r, double n_turns, double context)
{
    return r->rotated * log(context / (n_turns * 2 * PI)) / (2 * log(r->theta));
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static struct status yarn_factors(const struct rope *r, double factor, struct arch_rope *out)
{
    const double mscale = number_or(r->scaling, "mscale", 0);
    const double all = number_or(r->scaling, "mscale_all_dim", 0);
    double attention = yarn_mscale(factor, 1), softmax = 1;
    if (!(fabs(mscale) < 1e3 && fabs(all) < 1e3)) {
        return status_make(STATUS_INPUT, "config.json: RoPE scaling \"yarn\": mscale and "
                                         "mscale_all_dim: expected numbers below 1000");
    }
    if (mscale != 0 && all != 0) attention = yarn_mscale(factor, mscale) / yarn_mscale(factor, all);
    if (all != 0) softmax = yarn_mscale(factor, all) * yarn_mscale(factor, all);
    if (is_compressed(r->config)) softmax = 1;
    if (is_compressed(r->config) && js_type(js_get(r->config, "rope_parameters")) != JS_OBJECT)
        attention = 1;
    TRY(parameter(r, "attention_factor", 0, attention, &attention));
    out->attention_factor = (float)attention;
    out->softmax_factor = (float)softmax;
    return status_ok();
}

static struct status make_yarn(const struct rope *r, struct arch_rope *out)
{
    double factor, fast, slow, context;
    bool truncate = true;
    TRY(original_context(r, &context));
    TRY(parameter(r, "factor", 0, number_or(r->config, "max_position_embeddings", 0) / context,
                  &factor));
    TRY(parameter(r, "beta_fast", 0, 32, &fast));
    TRY(parameter(r, "beta_slow", 0, 1, &slow));
    js_bool(js_get(r->scaling, "truncate"), &truncate);
    double low = turning_dimension(r, fast, context), high = turning_dimension(r, slow, context);
    if (truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, r->rotated - 1);
    if (low == high) high += 0.001;
    for (size_t i = 0; i < out->n; i++) {
        const double plain = plain_of(r, i);
        const double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        out->inv_freq[i] = (float)(plain / factor * ramp + plain * (1 - ramp));
    }
    return yarn_factors(r, factor, out);
}

/* Makes LongRoPE's frequencies (Ding et al. 2024) for the original context. */
static struct status make_long(const struct rope *r, struct arch_rope *out)
{
    const struct js_node *factors = js_get(r->scaling, "short_factor");
    const double most = number_or(r->config, "max_position_embeddings", 0);
    double context, factor, otherwise = 1;
    TRY(original_context(r, &context));
    TRY(parameter(r, "factor", 0, most / context, &factor));
    if (factor > 1) otherwise = sqrt(1 + log(factor) / log(context));
    TRY(parameter(r, "attention_factor", 0, otherwise, &otherwise));
    TRY(parameter(r, "short_mscale", 0, otherwise, &otherwise)); /* Phi-3.5-MoE */
    out->attention_factor = (float)otherwise;
    for (size_t i = 0; i < out->n; i++) {
        double divisor;
        if (js_count(factors) != out->n || !js_number(js_at(factors, i), &divisor) ||
            !(divisor > 1e-6 && divisor < 1e9)) {
            return status_make(STATUS_INPUT,
                               "config.json: RoPE scaling \"%s\": field \"short_factor\": expected "
                               "%zu numbers above 0",
                               r->rule, out->n);
        }
        out->inv_freq[i] = (float)(plain_of(r, i) / (double)(float)divisor);
    }
    return status_ok();
}

/* Makes plain frequencies with theta times alpha^(d / (d - 2)), for any length (Hunyuan). */
static struct status make_alpha(const struct rope *r, struct arch_rope *out)
{
    struct rope grown = *r;
    double alpha;
    TRY(parameter(r, "alpha", 0, 0, &alpha));
    grown.theta *= pow(alpha, r->rotated / (r->rotated - 2));
    for (size_t i = 0; i < out->n; i++) out->inv_freq[i] = (float)plain_of(&grown, i);
    return status_ok();
}

static struct status make_divided(const struct rope *r, struct arch_rope *out)
{
    const struct js_node *factors = js_get(r->scaling, "factors");
    for (size_t i = 0; i < out->n; i++) {
        double factor;
        if (js_count(factors) != out->n || !js_number(js_at(factors, i), &factor) ||
            !(factor > 1e-6 && factor < 1e9)) {
            return status_make(STATUS_INPUT,
                               "config.json: RoPE scaling: field \"factors\": expected %zu numbers "
                               "above 0",
                               out->n);
        }
        out->inv_freq[i] = (float)(plain_of(r, i) / (double)(float)factor);
    }
    return status_ok();
}

/* Makes plain / factor for the first part of the elements, and 0 for the others (Gemma-4). */
static struct status make_proportional(const struct rope *r, struct arch_rope *out)
{
    const double part = number_or(r->scaling, "partial_rotary_factor", 1);
    const double n_turned = floor(part * r->rotated / 2);
    double factor;
    TRY(parameter(r, "factor", 0, 1, &factor));
    for (size_t i = 0; i < out->n; i++)
        out->inv_freq[i] = (double)i < n_turned ? (float)(plain_of(r, i) / factor) : 0;
    return status_ok();
}

static struct status arch_rope_make_plain(const struct rope *r, struct arch_rope *out)
{
    for (size_t i = 0; i < out->n; i++) out->inv_freq[i] = (float)plain_of(r, i);
    return status_ok();
}

static const struct {
    const char *rule;
    struct status (*make)(const struct rope *r, struct arch_rope *out);
} rules[] = {{"linear", make_linear},
             {"llama3", make_llama3},
             {"yarn", make_yarn},
             {"longrope", make_long},
             {"su", make_long},
             {"dynamic", make_alpha},
             {"proportional", make_proportional},
             {"frequency_factors", make_divided}};

static struct status rope_make(const struct rope *of, struct arch_rope *out)
{
    const struct rope r = *of;
    struct status (*make)(const struct rope *, struct arch_rope *) = NULL;
    *out = (struct arch_rope){.attention_factor = 1, .softmax_factor = 1};
    if (r.scaling == NULL) make = arch_rope_make_plain;
    for (size_t i = 0; r.scaling != NULL && r.rule != NULL && i < sizeof rules / sizeof rules[0];
         i++) {
        if (strcmp(r.rule, rules[i].rule) == 0) make = rules[i].make;
    }
    if (make == NULL || !(r.rotated >= 2 && r.rotated <= 2.0 * ARCH_ROPE_MAX) || !(r.theta > 0)) {
        return status_ok();
    }
    TRY(mem_alloc(&out->inv_freq, (size_t)r.rotated / 2, sizeof(float), "rotary frequencies"));
    out->n = (size_t)r.rotated / 2;
    const struct status st = make(&r, out);
    if (status_failed(&st)) {
        mem_free(&out->inv_freq);
        out->n = 0;
    }
    return st;
}

struct status arch_rope_make(const struct js_node *config, struct arch_rope *out)
{
    const struct rope r = rope_read(config, false);
    return rope_make(&r, out);
}

struct status arch_rope_make_local(const struct js_node *config, struct arch_rope *out)
{
    const struct rope r = rope_read(config, true);
    const struct arch_family *family = family_of(config);
    *out = (struct arch_rope){.attention_factor = 1, .softmax_factor = 1};
    const bool is_own = family != NULL && (family->local_rope || family->compressed);
    return is_own ? rope_make(&r, out) : status_ok();
}

bool arch_rope_in_pairs(const struct arch_family *family)
{
    static const char *const names[] = {"Llama4ForCausalLM", "Glm4ForCausalLM",
                                        "Ernie4_5ForCausalLM", "Ernie4_5_MoeForCausalLM"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(family->architecture, names[i]) == 0) return true;
    return false;
}

uint64_t arch_rope_unpaired(uint64_t row, uint32_t head_rows, uint32_t rotated)
{
    const uint64_t in_head = row % head_rows;
    if (in_head >= rotated) return row;
    return row - in_head + in_head % 2 * (rotated / 2) + in_head / 2;
}
