/* Converts loaded parameters to the values that the ops take, and checks tables of experts. */
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

/* Multiplies the weights of the router's norm by the constant factor of its input, 1 / sqrt(D). */
static void finish_router_norms(struct weights *w, const struct arch *m)
{
    const float factor = 1.0f / __builtin_sqrtf((float)m->width);
    for (uint32_t i = 0; i < range_count(w->layers); i++) {
        float *norm = w->stage_layers[i].moe.router_norm;
        for (uint32_t k = 0; norm != NULL && k < m->width; k++) norm[k] *= factor;
    }
}

struct status weights_check_tables(const struct weights *w, const struct arch *m)
{
    const size_t n = (size_t)m->vocab * m->moe.n_chosen;
    for (uint32_t l = 0; l < range_count(w->layers); l++) {
        const float *table = w->stage_layers[l].moe.table;
        for (size_t i = 0; table != NULL && i < n; i++) {
            if (table[i] >= 0 && table[i] < (float)m->moe.n_experts &&
                table[i] == (float)(uint32_t)table[i])
                continue;
            return status_make(STATUS_INPUT,
                               "layer %u: table of experts: token %zu: expected numbers of experts "
                               "below %u, found %g",
                               w->stage_layers[l].index, i / m->moe.n_chosen, m->moe.n_experts,
                               (double)table[i]);
        }
    }
    return status_ok();
}

void weights_finish(struct weights *w, const struct arch *m)
{
    if (m->family->xielu) finish_xielu(w);
    if (m->moe.joins) finish_router_norms(w, m);
}
