/* Keeps the rows of the residual stream after the layers that --save-hidden names, for the engine
 * to send to the lead. */
#include "base/mem.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/stage_private.h"

struct status stage_make_kept(struct stage *s)
{
    const struct weights *w = s->o.weights;
    const uint32_t n_layers = s->o.model->n_layers;
    const uint32_t end = w->layers.end < n_layers ? w->layers.end : n_layers;
    struct kept_layers *k = &s->kept;
    if (s->o.hidden == NULL) return status_ok();
    k->n = hidden_layers_within(s->o.hidden, w->layers.begin, end, k->entries);
    if (k->n == 0 || w->place.tp != 0) return status_ok();
    const size_t n = k->n * s->o.max_rows * s->o.model->width;
    s->workspace_bytes += n * sizeof *k->rows;
    return mem_ops_alloc(s->o.kern, &k->rows, n, sizeof *k->rows, "kept hidden rows");
}

void stage_free_kept(struct stage *s)
{
    mem_ops_free(s->o.kern, &s->kept.rows);
}

/* Returns the place of the i-th kept layer's rows. */
static float *place_of(const struct stage *s, uint32_t i)
{
    return s->kept.rows + i * s->o.max_rows * s->o.model->width;
}

static void copy_part(struct stage *s, uint32_t i, const struct part *p)
{
    const size_t d = s->o.model->width;
    op_place_rows(s->o.kern, &(struct place_args){.from = p->hidden.h,
                                                  .n_rows = p->hidden.n_rows,
                                                  .width = d,
                                                  .to_stride = d,
                                                  .to = place_of(s, i) + p->row0 * d});
}

/* Returns a model layer's index among the kept layers; kept.n: it is not kept. */
static uint32_t find_kept(const struct stage *s, uint32_t layer)
{
    uint32_t i = 0;
    while (i < s->kept.n && s->o.hidden->at[s->kept.entries[i]] != layer) i++;
    return i;
}

struct status stage_keep(struct stage *s, const struct layer *layer, size_t n_parts)
{
    const uint32_t i = find_kept(s, layer->index);
    if (i == s->kept.n) return status_ok();
    TRY(stage_settle(s, n_parts));
    for (size_t p = 0; s->kept.rows != NULL && p < n_parts; p++) copy_part(s, i, &s->parts[p]);
    return status_ok();
}

const float *stage_kept_rows(const struct stage *s, uint32_t layer)
{
    return place_of(s, find_kept(s, layer));
}
