/* Decides whether a job's experts stay in memory or stream from disk, and chooses the layout. A
 * pure function: all ranks decide the same. Called by the job and by `shoal plan`. */
#ifndef SHOAL_WEIGHTS_WEIGHTS_FIT_H
#define SHOAL_WEIGHTS_WEIGHTS_FIT_H

#include "parallel/layout/layout_choose.h"
#include "weights/weights_flags.h"

struct weights_fit {
    enum weights_place place;
    bool may_stream;         /* experts may be read from disk as needed; false on a GPU */
    bool step_is_given;      /* budget.step_tokens stays as it is */
    const struct topo *topo; /* this and the next: borrowed */
    const struct layout_flags *flags;
};

/* Local. Chooses the layout within the budget (layout_choose): with all weights in memory, or with
 * streamed experts; sets model->streams_experts. For streamed experts it also chooses
 * budget->step_tokens, unless given: the largest step of 4,096, 2,048, ... 64 rows that fits (64 if
 * none does), because an expert that is read serves all rows of the step. If budget->rank_bytes is
 * given, a step fits only if it leaves a quarter of these bytes to KV cache and experts. `order`
 * and `fits`: as in layout_choose. Errors: layout_choose's; STATUS_USAGE when streaming is asked
 * for and is not possible. */
struct status weights_fit_layout(const struct weights_fit *f, struct layout_model *model,
                                 struct layout_budget *budget, struct layout *out, uint32_t *order,
                                 bool *fits);

#endif
