/* Reads which layers have a gated delta rule, and checks that its sizes fit together. Called by
 * arch.c. */
#include "arch/arch_private.h"

#include <string.h>

enum { FULL_EVERY = 4 /* one layer in this many has attention, if the file does not say */ };

static struct status check_sizes(const struct arch_reading *r)
{
    const struct arch_delta *d = &r->m.delta;
    if (d->n_value_heads % d->n_key_heads == 0) return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: linear_num_value_heads: expected a multiple of the %u key heads, found "
                       "%u",
                       r->what, d->n_key_heads, d->n_value_heads);
}

static struct status wrong_list(const struct arch_reading *r)
{
    return status_make(STATUS_INPUT, "%s: layer_types: expected a list of %u", r->what,
                       r->m.n_layers);
}

struct status arch_derive_delta(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const uint32_t every = r->pattern.full_every > 0 ? r->pattern.full_every : FULL_EVERY;
    bool any_attention = false;
    TRY(check_sizes(r));
    if (r->node.layer_types != NULL &&
        (js_type(r->node.layer_types) != JS_ARRAY || js_count(r->node.layer_types) != m->n_layers))
        return wrong_list(r);
    for (uint32_t l = 0; l < m->n_layers; l++) {
        const char *type = js_string(js_at(r->node.layer_types, l), NULL);
        const bool by_rule = (l + 1) % every != 0;
        if (r->node.layer_types == NULL) type = by_rule ? "linear_attention" : "full_attention";
        m->layer.is_delta[l] = type != NULL && strcmp(type, "linear_attention") == 0;
        if (!m->layer.is_delta[l] && (type == NULL || strcmp(type, "full_attention") != 0)) {
            return status_make(STATUS_INPUT,
                               "%s: layer_types[%u]: expected \"linear_attention\" or "
                               "\"full_attention\"",
                               r->what, l);
        }
        if (r->pattern.full_every > 0 && m->layer.is_delta[l] != by_rule) {
            return status_make(STATUS_INPUT,
                               "%s: full_attention_interval: layer %u is %s by layer_types",
                               r->what, l, type);
        }
        any_attention = any_attention || !m->layer.is_delta[l];
    }
    if (any_attention) return status_ok();
    return status_make(STATUS_INPUT, "%s: layer_types: %s without attention is not implemented",
                       r->what, m->family->title);
}
