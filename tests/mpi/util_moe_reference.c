/* Routes and computes one token at a time, in plain C, without the block under test. For sigmoids
 * it calls the reference kernel of the router, and for capacity limits capacity_apply. */
#include "mpi/util_moe_reference.h"

#include "kernels/elementary.h"
#include "mpi/util_mpi.h"

#include <math.h>
#include <string.h>

static void fill(float *out, size_t n, float scale, uint64_t *state)
{
    for (size_t i = 0; i < n; i++) out[i] = util_uniform(state) * scale;
}

void util_moe_model(const struct moe_case *c, struct moe_model *m)
{
    uint64_t state = 7 + c->n_tokens;
    fill(&m->router[0][0], E * D, 1, &state);
    fill(&m->gate[0][0][0], sizeof m->gate / 4, 1, &state);
    fill(&m->up[0][0][0], sizeof m->up / 4, 1, &state);
    fill(&m->down[0][0][0], sizeof m->down / 4, 1, &state);
    fill(&m->x[0][0], sizeof m->x / 4, 1, &state);
    fill(&m->h[0][0], sizeof m->h / 4, 4, &state);
    fill(&m->shared[0][0], sizeof m->shared / 4, 2, &state);
    fill(m->bias, E, 0.3f, &state);
    fill(&m->router[E][0], ZERO * D, 1, &state);
    m->n_zero = c->has_zero ? ZERO : 0;
    for (size_t t = 0; t < N_MAX && c->only_zero; t++) m->x[t][0] = 1;
    for (size_t e = 0; e < E + ZERO && c->only_zero; e++)
        m->router[e][0] = e == E + 1 || e == E + 4 ? 60 : 0;
    for (size_t t = 0; t < N_MAX && c->same_experts; t++) m->x[t][0] = 1;
    for (size_t e = 0; e < E && c->same_experts; e++) m->router[e][0] = e == 2 || e == 3 ? 60 : 0;
    /* only every fifth output of one leaf is huge, so that the counts differ from token to token */
    for (size_t n = 0; n < D && c->huge; n += 5) m->down[3][n][17] = 3e5f;
}

static float chain(const float *x, const float *w, size_t n)
{
    float acc = 0;
    for (size_t i = 0; i < n; i++) acc = __builtin_fmaf(x[i], w[i], acc);
    return acc;
}

bool util_moe_chosen(const struct moe_answer *a, size_t t, size_t n, int32_t e)
{
    for (size_t k = 0; k < n; k++) {
        if (a->ids[t][k] == e) return true;
    }
    return false;
}

struct router_rule util_moe_rule_of(const struct moe_case *c)
{
    if (c->router == ROUTER_SIGMOID) return (struct router_rule){ROUTER_SIGMOID, 3, 2, 2.5f};
    return (struct router_rule){.kind = c->router};
}

float util_moe_scale_of(const struct moe_case *c)
{
    return c->residual_scale != 0 ? c->residual_scale : 1;
}

/* The router itself is tested in tests/kernels. */
static void route_sigmoid(const struct moe_case *c, const struct moe_model *m, struct moe_answer *a,
                          size_t t)
{
    struct kern_table ref;
    CU_ASSERT_EQUAL_FATAL(kern_select("ref", &ref).code, STATUS_OK);
    const struct router_args args = {a->logits[t],        a->ids[t], a->weights[t], E, K,
                                     util_moe_rule_of(c), m->bias,   NULL};
    ref.router(&args, 0);
}

static void route_token(const struct moe_case *c, const struct moe_model *m, struct moe_answer *a,
                        size_t t)
{
    const int32_t n = E + (int32_t)m->n_zero;
    float l[E + ZERO];
    for (int32_t e = 0; e < n; e++) l[e] = chain(m->x[t], m->router[e], D);
    memcpy(a->logits[t], l, sizeof a->logits[t]);
    if (c->router == ROUTER_SIGMOID) {
        route_sigmoid(c, m, a, t);
        return;
    }
    float max = l[0], sum = 0, kept = 0;
    for (int32_t e = 1; e < n; e++) max = l[e] > max ? l[e] : max;
    for (int32_t e = 0; e < n; e++) sum += el_expf(l[e] - max);
    for (size_t k = 0; k < K; k++) {
        int32_t best = -1;
        for (int32_t e = 0; e < n; e++) {
            if (!util_moe_chosen(a, t, k, e) && (best < 0 || l[e] > l[best])) best = e;
        }
        a->ids[t][k] = best;
    }
    if (a->ids[t][0] > a->ids[t][1]) {
        const int32_t other = a->ids[t][0];
        a->ids[t][0] = a->ids[t][1];
        a->ids[t][1] = other;
    }
    for (size_t k = 0; k < K; k++) {
        a->weights[t][k] = el_expf(l[a->ids[t][k]] - max) / sum;
        kept += a->weights[t][k];
    }
    for (size_t k = 0; k < K && c->router == ROUTER_SOFTMAX_RENORM; k++) a->weights[t][k] /= kept;
}

/* v on the grid; 0 when it is too large, and then *n_bad grows. */
static int64_t on_grid(double v, int32_t *n_bad)
{
    const bool fits = v < 0x1p19 && v > -0x1p19; /* 2^(51 - GRID) */
    *n_bad += !fits;
    return fits ? (int64_t)rint(v * 0x1p32) : 0;
}

/* y [D] = expert e of x [D]. Returns the number of sums of a leaf that left the grid. */
static int32_t run_expert(const struct moe_model *m, size_t e, const float *x, float *y)
{
    float mid[F];
    int32_t n_bad = 0;
    for (size_t f = 0; f < F; f++) {
        const float g = chain(x, m->gate[e][f], D), u = chain(x, m->up[e][f], D);
        mid[f] = (g / (1.0f + el_expf(-g))) * u;
    }
    for (size_t n = 0; n < D; n++) {
        int64_t sum = 0;
        for (size_t f = 0; f < F; f += LEAF) {
            const float p = chain(mid + f, m->down[e][n] + f, F - f < LEAF ? F - f : LEAF);
            sum += on_grid((double)p, &n_bad);
        }
        y[n] = (float)((double)sum * 0x1p-32);
    }
    return n_bad;
}

static void limit_all(const struct moe_case *c, struct moe_answer *a)
{
    static int32_t ids[N_MAX * K], dropped[N_MAX];
    static float weights[N_MAX * K];
    uint32_t load[E];
    const struct capacity_work w = {.logits = &a->logits[0][0],
                                    .ids = &a->ids[0][0],
                                    .weights = &a->weights[0][0],
                                    .kept_ids = ids,
                                    .kept_weights = weights,
                                    .n_dropped = dropped,
                                    .load = load,
                                    .n_tokens = c->n_tokens,
                                    .n_experts = E,
                                    .n_chosen = K};
    capacity_apply(c->policy, capacity_of(c->capacity_factor, c->n_tokens, K, E), &w);
    memcpy(a->ids, ids, c->n_tokens * sizeof a->ids[0]);
    memcpy(a->weights, weights, c->n_tokens * sizeof a->weights[0]);
    memcpy(a->dropped, dropped, c->n_tokens * sizeof dropped[0]);
}

void util_moe_answer(const struct moe_case *c, const struct moe_model *m, struct moe_answer *a)
{
    memset(a, 0, sizeof *a);
    for (size_t t = 0; t < c->n_tokens; t++) route_token(c, m, a, t);
    if (c->policy != CAPACITY_DROPLESS) limit_all(c, a);
    for (size_t t = 0; t < c->n_tokens; t++) {
        int64_t sums[D] = {0};
        for (size_t k = 0; k < K; k++) {
            float y[D];
            const int32_t e = a->ids[t][k];
            if (e >= E) {
                a->zero[t] += a->weights[t][k];
                a->ids[t][k] = -1;
            }
            if (e < 0 || e >= E) continue;
            a->load[e]++;
            a->bad[t] += run_expert(m, (size_t)e, m->x[t], y);
            for (size_t n = 0; n < D; n++)
                sums[n] += on_grid((double)a->weights[t][k] * (double)y[n], &a->bad[t]);
        }
        for (size_t n = 0; n < D; n++) {
            float acc = (float)((double)sums[n] * 0x1p-32);
            if (m->n_zero > 0) acc += m->x[t][n] * a->zero[t];
            if (c->has_shared) acc += m->shared[t][n];
            a->h[t][n] = __builtin_fmaf(util_moe_scale_of(c), acc, m->h[t][n]);
        }
    }
}
