/* Decides whether all weights are in memory or experts stream from disk, and chooses the layout. */
#include "weights/weights_fit.h"

enum { STEP_MOST = 4096, STEP_LEAST = 64 };

static struct status choose_resident(const struct weights_fit *f, struct layout_model *model,
                                     const struct layout_budget *budget, struct layout *out,
                                     uint32_t *order, bool *fits)
{
    model->streams_experts = false;
    return layout_choose(model, f->topo, f->flags, budget, out, order, fits);
}

static struct status choose_streaming(const struct weights_fit *f, struct layout_model *model,
                                      struct layout_budget *budget, struct layout *out,
                                      uint32_t *order, bool *fits)
{
    struct layout_budget part = *budget;
    model->streams_experts = true;
    part.rank_bytes = budget->rank_bytes / 4 * 3;
    for (uint32_t step = STEP_MOST; !f->step_is_given && step >= STEP_LEAST; step /= 2) {
        budget->step_tokens = part.step_tokens = step;
        TRY(layout_choose(model, f->topo, f->flags, &part, out, order, fits));
        if (*fits) break;
    }
    return layout_choose(model, f->topo, f->flags, budget, out, order, fits);
}

static struct status check(const struct weights_fit *f, const struct layout_model *model)
{
    if (f->place != WEIGHTS_STREAM) return status_ok();
    if (model->arch->moe.n_experts == 0)
        return status_make(STATUS_USAGE,
                           "--weights stream: only experts stream, and this model has none");
    if (model->arch->gate == GATE_RELU2)
        return status_make(
            STATUS_USAGE, "--weights stream: not implemented for experts without a gate, as %s has",
            model->arch->family->title);
    return f->may_stream ? status_ok()
                         : status_make(STATUS_USAGE, "--weights stream: needs --device cpu");
}

struct status weights_fit_layout(const struct weights_fit *f, struct layout_model *model,
                                 struct layout_budget *budget, struct layout *out, uint32_t *order,
                                 bool *fits)
{
    TRY(check(f, model));
    if (f->place == WEIGHTS_STREAM) return choose_streaming(f, model, budget, out, order, fits);
    TRY(choose_resident(f, model, budget, out, order, fits));
    const bool may_stream = f->may_stream && model->arch->moe.n_experts > 0 &&
                            model->arch->gate != GATE_RELU2 && f->place == WEIGHTS_AUTO &&
                            budget->rank_bytes > 0;
    if (*fits || !may_stream) return status_ok();
    return choose_streaming(f, model, budget, out, order, fits);
}
