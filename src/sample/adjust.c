/* Bias and penalties; their arithmetic is in kernels/logit_body.h. */
#include "sample/adjust.h"

#include "kernels/logit_body.h"

#include <float.h>
#include <string.h>

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

/* Returns the index of the first entry with an id of at least id0; a->n if there is none. */
static size_t adjust_first_of(const struct adjust *a, uint32_t id0)
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

bool adjust_is_any(const struct adjust *a)
{
    return a->n > 0 || a->allowed != NULL;
}

size_t adjust_n_saved(const struct adjust *a, size_t width)
{
    return a->n + (a->allowed != NULL ? width : 0);
}

static size_t adjust_entries(const struct adjust *a, uint32_t id0, size_t width, float *logits,
                             float *saved)
{
    size_t n = 0;
    for (size_t i = adjust_first_of(a, id0); i < a->n; i++) {
        const size_t at = (size_t)((uint32_t)a->entries[i].id - id0);
        if (at >= width) break;
        saved[n++] = logits[at];
        logits[at] = adjust_logit(&a->penalties, &a->entries[i], logits[at]);
    }
    return n;
}

size_t adjust_row(const struct adjust *a, uint32_t id0, size_t width, float *logits, float *saved)
{
    if (a->allowed == NULL) return adjust_entries(a, id0, width, logits, saved);
    if (width > 0) memcpy(saved, logits, width * sizeof *logits);
    adjust_entries(a, id0, width, logits, saved + width);
    for (size_t i = 0; i < width; i++) {
        const uint32_t id = id0 + (uint32_t)i;
        if ((a->allowed[id / 32] >> (id % 32) & 1) == 0) logits[i] = -FLT_MAX;
    }
    return width;
}

size_t adjust_list(const struct adjust *a, uint32_t id0, size_t width, uint32_t row,
                   struct logit_change *out)
{
    size_t n = 0;
    for (size_t i = adjust_first_of(a, id0); i < a->n; i++) {
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
    if (a->allowed != NULL) {
        if (width > 0) memcpy(logits, saved, width * sizeof *logits);
        return width;
    }
    for (size_t i = adjust_first_of(a, id0); i < a->n; i++) {
        const size_t at = (size_t)((uint32_t)a->entries[i].id - id0);
        if (at >= width) break;
        logits[at] = saved[n++];
    }
    return n;
}
