/* Scales between a layer's linears: the output of the operation on the left is divided by a scale,
 * the weights on the right are multiplied by it. AWQ searches for the scales, SmoothQuant computes
 * them.
 *
 *     norm -> q, k, v
 *     norm -> latents             latent attention
 *     norm of q's latent -> q     latent attention
 *     norm -> gate, up            and the router; experts and shared experts have one scale
 *     v -> o                      an input of o is a channel of v; query heads that share a KV
 *                                 head share its scales
 *     up -> down                  in each expert separately
 *
 * A scale is used only if every matrix that it changes is quantized or stored as f32 (as the
 * router, the shared experts' sigmoid gate and the index heads' weights are): rounding scaled
 * floats back to a narrow type would add another error. */
#include "calibrate/calibrate_private.h"

#include "base/mem.h"
#include "quant/smoothquant.h"

#include <string.h>

/* True when all members are quantized, except those that become f32: the router, the shared
 * experts' sigmoid gate and the index heads' weights. */
static bool all_quantized(const struct calib_unit *u)
{
    for (uint32_t i = 0; i < u->n_members; i++) {
        const struct calib_member *m = &u->members[i];
        const bool becomes_f32 =
            m->role == WEIGHT_ROUTER || m->role == WEIGHT_SHARED_MIX || m->role == WEIGHT_INDEX_MIX;
        if (!becomes_f32 && m->format.kind == QUANT_NONE) return false;
    }
    return true;
}

static bool experts_quantized(struct calib *c)
{
    const struct calib_unit *first = calib_unit_of(c, TAP_EXPERT, 0);
    return first == NULL || all_quantized(first); /* one tensor holds all experts */
}

static bool after_norm(const struct calib_unit *u)
{
    return u->site == TAP_ATTENTION || u->site == TAP_Q_LATENT || u->site == TAP_FFN;
}

/* Returns the member whose outputs are the inputs of `u`; NULL if a norm makes them, or no single
 * member does. */
static struct calib_member *maker_of(struct calib *c, const struct calib_unit *u)
{
    if (u->site == TAP_O) return calib_member_of(calib_unit_of(c, TAP_ATTENTION, 0), WEIGHT_V);
    if (u->site == TAP_DOWN) {
        const struct calib_unit *ffn = calib_unit_of(c, TAP_FFN, 0);
        struct calib_member *up = calib_member_of(ffn, WEIGHT_UP);
        return up != NULL ? up : calib_member_of(ffn, WEIGHT_SHARED_UP);
    }
    if (u->site == TAP_EXPERT_DOWN)
        return calib_member_of(calib_unit_of(c, TAP_EXPERT, u->expert), WEIGHT_EXPERT_UP);
    return NULL;
}

/* True when the input of a unit may be scaled. */
static bool may_scale(struct calib *c, const struct calib_unit *u)
{
    const struct arch *m = c->o->model;
    const struct calib_member *maker = maker_of(c, u);
    if (u->site == TAP_EXPERT) return false;                   /* experts share the FFN's scale */
    if (m->family->out_norms && after_norm(u)) return false;   /* no norm precedes it */
    if (m->family->layer_norms && after_norm(u)) return false; /* a bias would need scaling too */
    if (u->site == TAP_FFN) return all_quantized(u) && experts_quantized(c);
    if (after_norm(u)) return all_quantized(u);
    if (c->o->method == CALIBRATE_SMOOTHQUANT || maker == NULL) return false;
    if (u->site == TAP_O && (m->attn.qkv_bias || m->attn.clip_qkv > 0))
        return false; /* the bias or the clamp would have to be scaled too */
    if (m->swiglu.limit > 0 && (u->site == TAP_DOWN || u->site == TAP_EXPERT_DOWN))
        return false; /* likewise the limits of up, and the 1 that is added to it */
    if (u->site == TAP_EXPERT_DOWN && m->moe.bias) return false; /* the bias of up */
    if (u->site == TAP_DOWN && m->ffn_bias) return false;
    return all_quantized(u) && maker->format.kind != QUANT_NONE;
}

/* Averages the scales of the query heads that share a kv head, in place: s [H value_dim]. */
static void share_heads(const struct arch *m, float *s)
{
    const uint32_t per_kv = m->attn.n_heads / m->attn.n_kv_heads;
    for (uint32_t g = 0; g < m->attn.n_kv_heads; g++) {
        for (uint32_t d = 0; d < m->attn.value_dim; d++) {
            double sum = 0;
            for (uint32_t h = 0; h < per_kv; h++)
                sum += s[(g * per_kv + h) * m->attn.value_dim + d];
            for (uint32_t h = 0; h < per_kv; h++) {
                s[(g * per_kv + h) * m->attn.value_dim + d] = (float)(sum / per_kv);
            }
        }
    }
}

static void scales_of_try(const struct calib *c, const struct calib_unit *u, int step, float *s)
{
    awq_scales(u->h.sum_abs, u->h.n_tokens, u->n_in, step, s);
    if (u->site == TAP_O) share_heads(c->o->model, s);
}

/* ---- AWQ's search ---- */

/* Adds to `errors`, for each try that falls to this rank, the output error of one member with that
 * try's scales. */
static struct status try_member(struct calib *c, const struct calib_unit *scaled,
                                const struct calib_member *m, double *errors)
{
    float *rows = NULL, *s = NULL;
    size_t n_rows;
    struct status st;
    TRY_GOTO(st, calib_some_rows(m, &rows, &n_rows), out);
    TRY_GOTO(st, mem_alloc(&s, m->w->n_in, sizeof *s, "scales"), out);
    const struct awq_linear linear = {m->format, rows, n_rows, m->w->n_in, c->full};
    for (int step = 0; step < AWQ_TRIED; step++) {
        double error;
        if ((uint32_t)step % c->n_ranks != c->rank) continue;
        scales_of_try(c, scaled, step, s);
        TRY_GOTO(st, awq_error(c->o->kern->team, &linear, s, &error), out);
        errors[step] += error * (double)m->w->n_out / (double)n_rows;
    }
out:
    mem_free(&s);
    mem_free(&rows);
    return st;
}

/* Sends the errors of all tries to all ranks and sets the unit's scales to those of the best try.
 * Sets none if try 0 (no scaling) is best, or if too few tokens reached the unit. */
static struct status take_best(struct calib *c, struct calib_unit *u)
{
    for (int step = 0; step < AWQ_TRIED; step++) {
        comm_broadcast(c->o->comm, COMM_WORLD, (int)((uint32_t)step % c->n_ranks), &u->errors[step],
                       sizeof u->errors[step]);
    }
    const int best = awq_best(u->errors);
    if (best == 0 || u->h.n_tokens < c->o->min_tokens) return status_ok();
    struct status st = mem_alloc(&u->s, u->n_in, sizeof *u->s, "scales");
    if (!status_failed(&st)) scales_of_try(c, u, best, u->s);
    return comm_agree(c->o->comm, st);
}

/* Adds the errors of a unit's tries and takes the best try. The experts share the FFN's scales,
 * which choose_awq takes after the errors of all experts have been added. */
static struct status try_unit(struct calib *c, struct calib_unit *u, void *ctx)
{
    (void)ctx;
    struct calib_unit *scaled = u->site == TAP_EXPERT ? calib_unit_of(c, TAP_FFN, 0) : u;
    struct status st = status_ok();
    if (!may_scale(c, scaled)) return status_ok();
    for (uint32_t i = 0; i < u->n_members && !status_failed(&st); i++) {
        if (u->members[i].format.kind == QUANT_NONE) continue;
        st = try_member(c, scaled, &u->members[i], scaled->errors);
    }
    TRY(comm_agree(c->o->comm, st));
    return scaled->site == TAP_FFN ? status_ok() : take_best(c, u);
}

static struct status choose_awq(struct calib *c)
{
    struct calib_unit *ffn = calib_unit_of(c, TAP_FFN, 0);
    TRY(calib_visit_units(c, try_unit, NULL));
    return may_scale(c, ffn) ? take_best(c, ffn) : status_ok();
}

/* ---- SmoothQuant's equation ---- */

static struct status see_weights(const struct calib_unit *u, float *max_w)
{
    float *row = NULL;
    TRY(mem_alloc(&row, u->n_in, sizeof *row, "a row"));
    for (uint32_t i = 0; i < u->n_members; i++) {
        for (size_t r = 0; r < u->members[i].w->n_out; r++) {
            calib_member_rows(&u->members[i], r, 1, row);
            smoothquant_see_weights(row, 1, u->n_in, max_w);
        }
    }
    mem_free(&row);
    return status_ok();
}

static struct status choose_smooth(struct calib *c)
{
    TRY(calib_gather_statistics(c));
    for (uint32_t i = 0; i < c->n_units; i++) {
        struct calib_unit *u = &c->units[i];
        float *max_w = NULL;
        if (!may_scale(c, u)) continue;
        TRY(mem_alloc(&u->s, u->n_in, sizeof *u->s, "scales"));
        TRY(mem_alloc(&max_w, u->n_in, sizeof *max_w, "largest weights"));
        struct status st = status_ok();
        for (uint32_t e = 0; e < c->n_units && !status_failed(&st); e++) {
            const struct calib_unit *sees = &c->units[e];
            const bool is_expert = u->site == TAP_FFN && sees->site == TAP_EXPERT;
            if (sees == u || is_expert) st = see_weights(sees, max_w);
        }
        smoothquant_scales(u->h.max_abs, max_w, u->n_in, c->o->alpha_64ths, u->s);
        mem_free(&max_w);
        TRY(st);
    }
    return status_ok();
}

/* ---- folding ---- */

/* Keeps each kv head's scales only once, because v has fewer outputs than o has inputs. */
static void compact_heads(const struct arch *m, const float *s, float *out)
{
    const uint32_t per_kv = m->attn.n_heads / m->attn.n_kv_heads;
    for (uint32_t g = 0; g < m->attn.n_kv_heads; g++) {
        memcpy(out + g * m->attn.value_dim, s + g * per_kv * m->attn.value_dim,
               m->attn.value_dim * sizeof *out);
    }
}

static void fold_norm(float *norm, const float *s, size_t n)
{
    for (size_t k = 0; k < n; k++) norm[k] /= s[k];
}

static struct status calib_scale_fold(struct calib *c, struct calib_unit *u)
{
    struct layer *w = &c->weights->stage_layers[0];
    struct calib_member *maker = maker_of(c, u);
    for (uint32_t i = 0; i < u->n_members; i++) u->members[i].s_in = u->s;
    for (uint32_t e = 0; e < c->n_units && u->site == TAP_FFN; e++) {
        if (c->units[e].site != TAP_EXPERT) continue;
        c->units[e].members[0].s_in = c->units[e].members[1].s_in = u->s;
    }
    if (u->site == TAP_ATTENTION) fold_norm(w->attn_norm, u->s, u->n_in);
    if (u->site == TAP_Q_LATENT) fold_norm(w->attention.latent.q_a_norm, u->s, u->n_in);
    if (u->site == TAP_FFN) fold_norm(w->ffn_norm, u->s, u->n_in);
    if (maker == NULL) return status_ok();
    maker->s_out = u->s;
    if (u->site != TAP_O) return status_ok();
    float *compact = NULL;
    TRY(mem_alloc(&compact, u->n_in, sizeof *compact, "scales"));
    compact_heads(c->o->model, u->s, compact);
    c->v_scales = compact;
    maker->s_out = compact;
    return status_ok();
}

struct status calib_scale(struct calib *c)
{
    struct status st = status_ok();
    if (c->o->method == CALIBRATE_AWQ) st = choose_awq(c);
    if (c->o->method == CALIBRATE_SMOOTHQUANT) st = choose_smooth(c);
    for (uint32_t i = 0; i < c->n_units && !status_failed(&st); i++) {
        if (c->units[i].s != NULL) st = calib_scale_fold(c, &c->units[i]);
    }
    return comm_agree(c->o->comm, st);
}
