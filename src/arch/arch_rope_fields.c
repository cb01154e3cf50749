/* The members that a RoPE object of config.json (rope_scaling, rope_parameters) may have. A
 * rope_type that is not listed is refused by name; so is a member that is not listed, unless its
 * value is false, 0, null or empty (arch_field_is_off). arch_rope.c interprets the values. */
#include "arch/arch_private.h"

#include <string.h>

static bool listed(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(name, list[i]) == 0) return true;
    }
    return false;
}

const char *arch_rope_rule(const struct js_node *rope)
{
    const char *rule = js_string(js_get(rope, "rope_type"), NULL);
    return rule != NULL ? rule : js_string(js_get(rope, "type"), NULL);
}

static bool rule_is_long(const struct js_node *rope)
{
    const char *rule = arch_rope_rule(rope);
    return rule != NULL && (strcmp(rule, "longrope") == 0 || strcmp(rule, "su") == 0);
}

/* Checks the types of the rule and of numbers: arch_rope.c takes a value of another type for one
 * that is missing. */
static struct status check_type(const struct arch_reading *r, const char *where, const char *key,
                                const struct js_node *value)
{
    static const char *const numbers[] = {
        "rope_theta",      "partial_rotary_factor", "factor",
        "mscale",          "mscale_all_dim",        "original_max_position_embeddings",
        "low_freq_factor", "high_freq_factor",      "beta_fast",
        "beta_slow",       "attention_factor",
    };
    const bool is_rule = strcmp(key, "rope_type") == 0 || strcmp(key, "type") == 0;
    const bool is_number = listed(key, numbers, sizeof numbers / sizeof numbers[0]);
    double number;
    if (js_type(value) == JS_NULL || (is_rule && js_string(value, NULL) != NULL) ||
        (is_number && js_number(value, &number)) || !(is_rule || is_number))
        return status_ok();
    return status_make(STATUS_INPUT, "%s: %s: field \"%s\": expected %s, found another type",
                       r->what, where, key, is_rule ? "a rule's name" : "a number");
}

struct status arch_rope_fields_check(const struct arch_reading *r, const struct js_node *rope,
                                     const char *where)
{
    static const char *const rules[] = {"default", "linear", "llama3", "yarn", "frequency_factors"};
    const bool is_long = r->m.family->longrope && rule_is_long(rope);
    const bool is_ntk = r->m.family->ntk_alpha && js_type(js_get(rope, "alpha")) != JS_NULL;
    static const char *const names[] = {
        "rope_type",       "type",
        "rope_theta",      "partial_rotary_factor",
        "factor",          "original_max_position_embeddings",
        "low_freq_factor", "high_freq_factor",
        "beta_fast",       "beta_slow",
        "mscale",          "mscale_all_dim",
        "truncate",        "attention_factor",
        "finetuned",       "factors",
    };
    static const char *const more[] = {"short_factor", "long_factor", "alpha"};
    static const char *const scales[] = {"short_mscale", "long_mscale"};
    static const char *const growth[] = {"llama_4_scaling_beta", "max_position_embeddings"};
    /* for images; without effect on text, whose positions are equal in all sections */
    static const char *const images[] = {"mrope_section", "mrope_interleaved"};
    const char *rule = arch_rope_rule(rope);
    const bool is_part =
        r->m.family->typed_heads && rule != NULL && strcmp(rule, "proportional") == 0;
    const bool is_special =
        is_part || is_long || (is_ntk && rule != NULL && strcmp(rule, "dynamic") == 0);
    if (rule != NULL && !is_special && !listed(rule, rules, sizeof rules / sizeof rules[0])) {
        return status_make(STATUS_INPUT,
                           "%s: %s of type \"%s\" is not implemented; shoal knows default, "
                           "linear, llama3 and yarn",
                           r->what, where, rule);
    }
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    if (js_type(rope) != JS_OBJECT && !arch_field_is_off(rope))
        return status_make(STATUS_INPUT, "%s: %s: expected an object, found another type", r->what,
                           where);
    while (js_next(rope, &it, &key, &value)) {
        TRY(check_type(r, where, key, value));
        if (listed(key, names, sizeof names / sizeof names[0]) || arch_field_is_off(value) ||
            (is_special && listed(key, more, sizeof more / sizeof more[0])) ||
            (r->m.family->delta_apart && listed(key, images, sizeof images / sizeof images[0])) ||
            (r->m.family->grows && listed(key, growth, sizeof growth / sizeof growth[0])) ||
            (r->m.family->mixer && listed(key, scales, sizeof scales / sizeof scales[0])))
            continue;
        return status_make(STATUS_INPUT, "%s: %s: field \"%s\" is not implemented", r->what, where,
                           key);
    }
    return status_ok();
}
