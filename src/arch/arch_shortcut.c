/* Models whose experts take a shortcut (LongCat-Flash): a published layer is two of shoal's, and
 * some experts have no weights. LongCat-Flash, 2025 (arXiv 2509.01322), sections 2.1 and 2.2.
 * Called by arch.c. */
#include "arch/arch_private.h"

#include <string.h>

/* Refuses the field if it is there and has another value: programs read one name or the other. */
static struct status check_same(const struct arch_reading *r, const char *key, uint32_t value)
{
    int64_t found;
    const struct js_node *node = js_get(r->root, key);
    if (js_type(node) == JS_NULL || (js_int(node, &found) && found == value)) return status_ok();
    return status_make(STATUS_INPUT, "%s: %s: expected %u, as other fields say, or nothing",
                       r->what, key, value);
}

static struct status check_shortcut_names(const struct arch_reading *r)
{
    const struct arch *m = &r->m;
    TRY(check_same(r, "num_hidden_layers", m->n_layers));
    TRY(check_same(r, "intermediate_size", m->ffn));
    TRY(check_same(r, "moe_intermediate_size", m->moe.ffn));
    TRY(check_same(r, "num_local_experts", m->moe.n_experts));
    TRY(check_same(r, "num_experts", m->moe.n_experts));
    TRY(check_same(r, "num_experts_per_tok", m->moe.n_chosen));
    TRY(check_same(r, "num_key_value_heads", m->attn.n_heads));
    return check_same(r, "qk_head_dim", r->query_own + m->attn.rotary);
}

static struct status check_absent(const struct arch_reading *r, const char *key, bool is_set)
{
    if (!is_set) return status_ok();
    return status_make(STATUS_INPUT, "%s: %s is not implemented for %s", r->what, key,
                       r->m.family->title);
}

struct status arch_derive_shortcut(struct arch_reading *r)
{
    struct arch *m = &r->m;
    if (!m->family->shortcut) return status_ok();
    m->shortcut = true;
    m->n_layers *= 2;
    TRY(check_shortcut_names(r));
    TRY(check_absent(r, "n_group", m->moe.router.n_groups > 1));
    if (m->moe.n_experts + m->moe.n_zero > ROUTER_EXPERTS_MAX) {
        return status_make(STATUS_INPUT,
                           "%s: n_routed_experts, zero_expert_num: expected at most %d together, "
                           "found %u",
                           r->what, (int)ROUTER_EXPERTS_MAX, m->moe.n_experts + m->moe.n_zero);
    }
    const double q_scale = __builtin_sqrt((double)m->width / m->attn.q_lora);
    m->scale.attention = (float)(q_scale / __builtin_sqrt((double)(r->query_own + m->attn.rotary)));
    m->attn.latent_scale = (float)__builtin_sqrt((double)m->width / m->attn.kv_lora);
    return status_ok();
}
