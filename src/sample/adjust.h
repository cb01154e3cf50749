/* Bias and penalties on one rank's part of a row of logits. A logit's change depends on the logit,
 * its own entry and the row's penalties alone, not on how the vocabulary is sharded. Called by
 * vocab_parallel.c and draw_device.c. */
#ifndef SHOAL_SAMPLE_ADJUST_H
#define SHOAL_SAMPLE_ADJUST_H

#include "kernels/ops.h"
#include "plan/step_plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bias, penalties and constraints of one row before its draw. Borrowed. */
struct adjust {
    struct plan_penalties penalties;
    const struct plan_adjust *entries; /* [n], ids ascending */
    size_t n;
    const uint32_t *allowed; /* bit i: token i may be drawn; NULL: all may */
};

/* Local. True when `a` may change a logit. */
bool adjust_is_any(const struct adjust *a);

/* Local. Returns how many elements of `saved` a row of `width` logits needs. */
size_t adjust_n_saved(const struct adjust *a, size_t width);

/* Local. Changes one logit, in f32 and in this order: adds the bias; for tokens of prompt and
 * answer divides a positive logit by the repetition penalty (Keskar et al. 2019) and multiplies any
 * other by it; for tokens of the answer subtracts the frequency penalty times n_sampled, then the
 * presence penalty. The result is the nearest finite float; a forbidden token gets the lowest one.
 */
float adjust_logit(const struct plan_penalties *p, const struct plan_adjust *entry, float logit);

/* Local. Returns the same change as an argument of kern_changed_logit, with row and `at` 0. */
struct logit_change adjust_change(const struct plan_penalties *p, const struct plan_adjust *entry);

/* Local. Writes the changes of the logits of ids [id0, id0 + width), for row `row` of a device's
 * logits, to out. Returns their number, at most a->n. */
size_t adjust_list(const struct adjust *a, uint32_t id0, size_t width, uint32_t row,
                   struct logit_change *out);

/* Local. Adjusts the logits of ids [id0, id0 + width) in place and sets those that are not allowed
 * to the lowest finite float. Saves the old logits to `saved`: those of the entries, in their
 * order, or all of them if `allowed` is set. Returns how many it saved, at most adjust_n_saved. */
size_t adjust_row(const struct adjust *a, uint32_t id0, size_t width, float *logits, float *saved);

/* Local. Undoes adjust_row: restores the saved logits. Returns the same number as adjust_row. */
size_t adjust_undo(const struct adjust *a, uint32_t id0, size_t width, float *logits,
                   const float *saved);

#endif
