/* Bias and penalties; their arithmetic stands in kernels/logit_body.h. */
#include "sample/adjust.h"

#include "kernels/logit_body.h"

struct logit_change adjust_change(const struct plan_penalties *p, const struct plan_adjust *entry)
{
    const bool sampled = entry->n_sampled > 0;
    const bool seen = sampled || (entry->flags & PLAN_IN_PROMPT) != 0;
    const bool forbidden = (entry->flags & PLAN_FORBIDDEN) != 0;
    return (struct logit_change){.flags = (forbidden ? LOGIT_FORBIDDEN : 0u) |
                                          (seen ? LOGIT_REPEATED : 0u) |
                                          (sampled ? LOGIT_SAMPLED : 0u),
                                 .bias = entry->bias,
                                 .repetition = p->repetition,
                                 .often = p->frequency * (float)entry->n_sampled,
                                 .presence = p->presence};
}

float adjust_logit(const struct plan_penalties *p, const struct plan_adjust *entry, float logit)
{
    const struct logit_change c = adjust_change(p, entry);
    return kern_changed_logit(&c, logit);
}

/* The first entry with an id of at least id0. */
static size_t first_of(const struct adjust *a, uint32_t id0)
{
    size_t low = 0, high = a->n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if ((uint32_t)a->entries[middle].id < id0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

size_t adjust_row(const struct adjust *a, uint32_t id0, size_t width, float *logits, float *saved)
{
    size_t n = 0;
    for (size_t i = first_of(a, id0); i < a->n; i++) {
        const size_t at = (size_t)((uint32_t)a->entries[i].id - id0);
        if (at >= width) break;
        saved[n++] = logits[at];
        logits[at] = adjust_logit(&a->penalties, &a->entries[i], logits[at]);
    }
    return n;
}

size_t adjust_list(const struct adjust *a, uint32_t id0, size_t width, uint32_t row,
                   struct logit_change *out)
{
    size_t n = 0;
    for (size_t i = first_of(a, id0); i < a->n; i++) {
        const size_t at = (size_t)((uint32_t)a->entries[i].id - id0);
        if (at >= width) break;
        out[n] = adjust_change(&a->penalties, &a->entries[i]);
        out[n].row = row;
        out[n++].at = (uint32_t)at;
    }
    return n;
}

size_t adjust_undo(const struct adjust *a, uint32_t id0, size_t width, float *logits,
                   const float *saved)
{
    size_t n = 0;
    for (size_t i = first_of(a, id0); i < a->n; i++) {
        const size_t at = (size_t)((uint32_t)a->entries[i].id - id0);
        if (at >= width) break;
        logits[at] = saved[n++];
    }
    return n;
}
