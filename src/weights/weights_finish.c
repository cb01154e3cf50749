/* Turns loaded numbers into those that the ops take. */
#include "kernels/elementary.h"
#include "weights/weights_private.h"

static float softplus(float x)
{
    return x > 20 ? x : (float)el_log(1.0 + (double)el_expf(x));
}

static void finish_xielu(struct weights *w)
{
    for (uint32_t i = 0; i < range_count(w->layers); i++) {
        struct ffn_weights *f = &w->stage_layers[i].ffn;
        f->xielu[0] = softplus(f->xielu[0]);
        f->xielu[1] = f->xielu[2] + softplus(f->xielu[1]);
    }
}

/* Joins the router's constant factor to the weights of its norm. */
static void finish_router_norms(struct weights *w, const struct arch *m)
{
    const float factor = 1.0f / __builtin_sqrtf((float)m->width);
    for (uint32_t i = 0; i < range_count(w->layers); i++) {
        float *norm = w->stage_layers[i].moe.router_norm;
        for (uint32_t k = 0; norm != NULL && k < m->width; k++) norm[k] *= factor;
    }
}

void weights_finish(struct weights *w, const struct arch *m)
{
    if (m->family->xielu) finish_xielu(w);
    if (m->moe.joins) finish_router_norms(w, m);
}
