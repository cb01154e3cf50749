/* The work before and after a prediction layer (multi-token prediction of DeepSeek-V3, arXiv
 * 2412.19437, section 2.2): joins a hidden row with the token after it to the row that the layer
 * begins with, and turns the layer's row into the head's input. The results are guesses, which a
 * later step checks. */
#include "base/mem.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/stage_private.h"

static const struct layer *prediction_layer(const struct stage *s)
{
    const struct weights *w = s->o.weights;
    return &w->stage_layers[s->o.model->n_layers - w->layers.begin];
}

struct status stage_make_prediction(struct stage *s)
{
    const size_t t = s->o.max_rows, d = s->o.model->width;
    struct prediction *p = &s->prediction;
    if (s->o.weights->layers.end <= s->o.model->n_layers) return status_ok();
    TRY(mem_ops_alloc(s->o.kern, &p->hidden, hidden_bytes(t, (uint32_t)d), 1, "prediction layer"));
    TRY(mem_ops_alloc(s->o.kern, &p->joined, t, 2 * d * sizeof(float), "prediction layer"));
    TRY(mem_ops_alloc(s->o.kern, &p->half, t, d * sizeof(float), "prediction layer"));
    s->workspace_bytes += hidden_bytes(t, (uint32_t)d) + 3 * t * d * sizeof(float);
    return status_ok();
}

void stage_free_prediction(struct stage *s)
{
    mem_ops_free(s->o.kern, &s->prediction.hidden);
    mem_ops_free(s->o.kern, &s->prediction.joined);
    mem_ops_free(s->o.kern, &s->prediction.half);
}

/* Sets half [n_rows, D] to the norm of x by w. */
static void norm_half(struct stage *s, const float *x, const float *w, size_t n_rows)
{
    op_rmsnorm(s->o.kern, &(struct norm_args){.x = x,
                                              .w = w,
                                              .n_rows = n_rows,
                                              .n = s->o.model->width,
                                              .eps = s->o.model->norm_eps,
                                              .y = s->prediction.half});
}

/* Puts half into the first or the second half of the joined rows. */
static void place_half(struct stage *s, size_t n_rows, size_t which)
{
    const size_t d = s->o.model->width;
    op_place_rows(s->o.kern, &(struct place_args){.from = s->prediction.half,
                                                  .n_rows = n_rows,
                                                  .width = d,
                                                  .to_stride = 2 * d,
                                                  .to = s->prediction.joined + which * d});
}

struct hidden stage_join(struct stage *s, const int32_t *next, const struct hidden *hidden)
{
    const size_t n = hidden->n_rows, d = s->o.model->width;
    const struct predict_weights *w = &prediction_layer(s)->predict;
    struct hidden out = hidden_view(s->prediction.hidden, n, (uint32_t)d);
    stage_embed(s, next, &out);
    norm_half(s, out.h, w->token_norm, n);
    place_half(s, n, 0);
    norm_half(s, hidden->h, s->o.weights->final_norm, n);
    norm_half(s, s->prediction.half, w->row_norm, n);
    place_half(s, n, 1);
    const struct linear_group group = {.w = &w->join, .row0 = 0, .n_rows = n};
    op_linear(s->o.kern, &(struct linear_args){.groups = &group,
                                               .n_groups = 1,
                                               .x = s->prediction.joined,
                                               .x_stride = 2 * d,
                                               .y = out.h,
                                               .y_stride = d});
    return out;
}

void stage_predicted_norm(struct stage *s, const size_t *rows, size_t n, float *out)
{
    const struct norm_weights norm = stage_norm(prediction_layer(s)->predict.norm, NULL);
    stage_norm_rows(s, s->prediction.hidden, &norm, rows, n, out);
    stage_scale_rows(s, n, out);
}
