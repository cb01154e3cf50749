/* Bias and penalties. Single f32 operations, each rounded once: the same on every CPU. */
#include "sample/adjust.h"

#include <float.h>

float adjust_logit(const struct plan_penalties *p, const struct plan_adjust *entry, float logit)
{
    if ((entry->flags & PLAN_FORBIDDEN) != 0) return -FLT_MAX;
    float x = logit + entry->bias;
    if (entry->n_sampled > 0 || (entry->flags & PLAN_IN_PROMPT) != 0) {
        x = x > 0 ? x / p->repetition : x * p->repetition;
    }
    if (entry->n_sampled > 0) {
        const float often = p->frequency * (float)entry->n_sampled;
        x = x - often;
        x = x - p->presence;
    }
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
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
