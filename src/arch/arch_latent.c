/* Checks the config of multi-head latent attention (MLA; DeepSeek-V2, 2024, arXiv 2405.04434,
 * section 2.1), and derives the sizes of its heads. */
#include "arch/arch_private.h"
#include "tensor/dims.h"

#include <string.h>

/* The published code of latent attention scales the scores by mscale_all_dim under every rule;
 * shoal does so only under yarn. */
static struct status check_latent_scale(const struct arch_reading *r, const struct js_node *rope)
{
    const char *rule = arch_rope_rule(rope);
    if (rule == NULL || strcmp(rule, "default") == 0 || strcmp(rule, "yarn") == 0 ||
        arch_field_is_off(js_get(rope, "mscale_all_dim")))
        return status_ok();
    return status_make(STATUS_INPUT,
                       "%s: mscale_all_dim is not implemented with RoPE of type \"%s\"", r->what,
                       rule);
}

/* The cache holds one KV head per token: the latent, and the rotated key that all heads share. The
 * heads' own projections of keys and values are applied to the query and to the output. */
struct status arch_derive_latent(struct arch_reading *r)
{
    struct arch *m = &r->m;
    TRY(check_latent_scale(r, r->node.rope_parameters));
    TRY(check_latent_scale(r, r->node.rope_scaling));
    if (r->attention_bias) /* in the published code, the latents' linears and o_proj have biases */
        return status_make(STATUS_INPUT, "%s: attention_bias is not implemented for %s", r->what,
                           m->family->title);
    if (m->attn.kv_lora % LANES != 0 || m->attn.rotary % LANES != 0 ||
        m->attn.kv_lora + m->attn.rotary > 1024) {
        return status_make(STATUS_INPUT,
                           "%s: kv_lora_rank, qk_rope_head_dim: expected multiples of %d, together "
                           "at most 1024, found %u and %u",
                           r->what, LANES, m->attn.kv_lora, m->attn.rotary);
    }
    const bool whole = m->family->grows && m->attn.head_dim == r->query_own + m->attn.rotary;
    if (m->attn.head_dim != 0 && m->attn.head_dim != m->attn.rotary && !whole) {
        return status_make(STATUS_INPUT,
                           "%s: head_dim: expected %u, as qk_rope_head_dim says, found %u", r->what,
                           m->attn.rotary, m->attn.head_dim);
    }
    m->attn.query_dim = r->query_own + m->attn.rotary;
    m->attn.head_dim = m->attn.kv_lora + m->attn.rotary;
    m->attn.latent_norm_eps = 1e-6f; /* fixed in the published code, whatever rms_norm_eps says */
    m->attn.n_kv_heads = 1;
    return status_ok();
}
