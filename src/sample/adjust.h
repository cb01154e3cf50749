/* Bias and penalties on one rank's part of a row of logits. What is done to a logit depends on the
 * logit and on its own entry alone, so where the vocabulary was cut never shows. Called by
 * vocab_parallel.c. */
#ifndef SHOAL_SAMPLE_ADJUST_H
#define SHOAL_SAMPLE_ADJUST_H

#include "kernels/ops.h"
#include "plan/step_plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is done to one row before its draw. Borrowed. */
struct adjust {
    struct plan_penalties penalties;
    const struct plan_adjust *entries; /* [n], ids ascending */
    size_t n;
    const uint32_t *allowed; /* bit i: token i may be drawn; NULL: all may */
};

/* Local. Whether anything is. */
bool adjust_is_any(const struct adjust *a);

/* Local. Room that a row takes of `saved`, for `width` logits. */
size_t adjust_n_saved(const struct adjust *a, size_t width);

/* Local. One logit, in f32 and in this order: the bias is added; the repetition penalty (Keskar et
 * al. 2019) divides a positive logit and multiplies another, for tokens of prompt and answer; the
 * frequency penalty times n_sampled is taken away; the presence penalty is. What leaves the finite
 * floats becomes the nearest of them; a forbidden token becomes the least. */
float adjust_logit(const struct plan_penalties *p, const struct plan_adjust *entry, float logit);

/* Local. The same as a change for kern_changed_logit, without its place. */
struct logit_change adjust_change(const struct plan_penalties *p, const struct plan_adjust *entry);

/* Local. The changes of the logits of ids [id0, id0 + width), row `row` of a device's logits.
 * Returns how many that were: at most a->n. */
size_t adjust_list(const struct adjust *a, uint32_t id0, size_t width, uint32_t row,
                   struct logit_change *out);

/* Local. Adjusts the logits of ids [id0, id0 + width) in place, and makes those the least that are
 * not allowed; what they were goes to saved, in the order of the entries, or all of them. Returns
 * how many that were: at most adjust_n_saved. */
size_t adjust_row(const struct adjust *a, uint32_t id0, size_t width, float *logits, float *saved);

/* Local. The inverse: puts back what was saved. Returns the same. */
size_t adjust_undo(const struct adjust *a, uint32_t id0, size_t width, float *logits,
                   const float *saved);

#endif
