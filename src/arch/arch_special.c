/* Derives what only a few families have. Called by arch.c. */
#include "arch/arch_private.h"

/* A softcap is null or a number: other programs have defaults for an absent one. */
static struct status softcap_given(const struct arch_reading *r, const char *key)
{
    if (js_get(r->root, key) != NULL) return status_ok();
    return status_make(STATUS_INPUT, "%s: field \"%s\": expected a number or null, found nothing",
                       r->what, key);
}

struct status arch_derive_gemma(struct arch_reading *r)
{
    struct arch *m = &r->m;
    const struct arch_family *f = m->family;
    if (f->gelu) m->gate = GATE_GEGLU;
    if (f->root_embed) m->scale.embed = __builtin_sqrtf((float)m->width);
    if (f->query_scalar) m->scale.attention = 1.0f / __builtin_sqrtf(r->query_scalar);
    if (f->caps_scores) TRY(softcap_given(r, "attn_logit_softcapping"));
    if (f->caps_scores) TRY(softcap_given(r, "final_logit_softcapping"));
    return status_ok();
}
