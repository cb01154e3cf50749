/* Tests the MoE block on every layout of these ranks against one process that computes each token
 * by itself, by the numerics law: outputs, counters, drops and loads must be equal, bit for bit. */
#include "mpi/util_mpi.h"

#include "base/mem.h"
#include "kernels/elementary.h"
#include "kernels/ops.h"
#include "model/stage.h"
#include "moe/moe.h"
#include "parallel/layout/expert_places.h"
#include "parallel/wire/token_block.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { D = 48, E = 6, K = 2, F = 40, LEAF = 16, GRID = 32, N_MAX = 80, P_MAX = 4 * E };

static const struct util_shape shape = {
    .width = D, .n_experts = E, .n_chosen = K, .expert_ffn = F, .expert_leaf = LEAF, .vocab = 64};

/* The tokens of a case, and its options. */
struct moe_case {
    uint32_t n_tokens; /* of all replicas */
    bool first_replica_idle;
    bool one_expert;         /* all tokens choose experts 2 and 3; the others get none */
    bool huge;               /* expert 3's down projection leaves the grid */
    enum router_kind router; /* of sigmoids: 3 groups, 2 chosen, with a bias */
    bool has_shared;
    float residual_scale;
    enum capacity_policy policy;
    double capacity_factor;
    bool placed;       /* experts are not placed by their ids */
    uint32_t n_copies; /* of experts, where they are placed */
};

/* The load by which experts are placed, the same in each layer. Of copies the first go to expert 3,
 * then 2. */
static const int64_t load_of[E] = {20, 10, 60, 100, 30, 5};

struct model {
    float router[E][D], gate[E][F][D], up[E][F][D], down[E][D][F];
    float x[N_MAX][D], h[N_MAX][D], shared[N_MAX][D], bias[E];
};

struct answer {
    float logits[N_MAX][E], h[N_MAX][D], weights[N_MAX][K];
    int32_t ids[N_MAX][K], bad[N_MAX], dropped[N_MAX];
    uint64_t load[E];
};

static void fill(float *out, size_t n, float scale, uint64_t *state)
{
    for (size_t i = 0; i < n; i++) out[i] = util_uniform(state) * scale;
}

static void make_model(const struct moe_case *c, struct model *m)
{
    uint64_t state = 7 + c->n_tokens;
    fill(&m->router[0][0], sizeof m->router / 4, 1, &state);
    fill(&m->gate[0][0][0], sizeof m->gate / 4, 1, &state);
    fill(&m->up[0][0][0], sizeof m->up / 4, 1, &state);
    fill(&m->down[0][0][0], sizeof m->down / 4, 1, &state);
    fill(&m->x[0][0], sizeof m->x / 4, 1, &state);
    fill(&m->h[0][0], sizeof m->h / 4, 4, &state);
    fill(&m->shared[0][0], sizeof m->shared / 4, 2, &state);
    fill(m->bias, E, 0.3f, &state);
    for (size_t t = 0; t < N_MAX && c->one_expert; t++) m->x[t][0] = 1;
    for (size_t e = 0; e < E && c->one_expert; e++) m->router[e][0] = e == 2 || e == 3 ? 60 : 0;
    /* only some outputs of some leaves, so that the counts differ from token to token */
    for (size_t n = 0; n < D && c->huge; n += 5) m->down[3][n][17] = 3e5f;
}

/* --- the reference: one token at a time --------------------------------------------------- */

static float chain(const float *x, const float *w, size_t n)
{
    float acc = 0;
    for (size_t i = 0; i < n; i++) acc = __builtin_fmaf(x[i], w[i], acc);
    return acc;
}

static bool chosen(const struct answer *a, size_t t, size_t n, int32_t e)
{
    for (size_t k = 0; k < n; k++) {
        if (a->ids[t][k] == e) return true;
    }
    return false;
}

static struct router_rule rule_of(const struct moe_case *c)
{
    if (c->router == ROUTER_SIGMOID) return (struct router_rule){ROUTER_SIGMOID, 3, 2, 2.5f};
    return (struct router_rule){.kind = c->router};
}

static float scale_of(const struct moe_case *c)
{
    return c->residual_scale != 0 ? c->residual_scale : 1;
}

/* The router itself is tested in tests/kernels. */
static void route_sigmoid(const struct moe_case *c, const struct model *m, struct answer *a,
                          size_t t)
{
    struct kern_table ref;
    CU_ASSERT_EQUAL_FATAL(kern_select("ref", &ref).code, STATUS_OK);
    const struct router_args args = {a->logits[t], a->ids[t], a->weights[t], E, K,
                                     rule_of(c),   m->bias};
    ref.router(&args, 0);
}

static void route_token(const struct moe_case *c, const struct model *m, struct answer *a, size_t t)
{
    float *l = a->logits[t];
    for (size_t e = 0; e < E; e++) l[e] = chain(m->x[t], m->router[e], D);
    if (c->router == ROUTER_SIGMOID) {
        route_sigmoid(c, m, a, t);
        return;
    }
    float max = l[0], sum = 0, kept = 0;
    for (size_t e = 1; e < E; e++) max = l[e] > max ? l[e] : max;
    for (size_t e = 0; e < E; e++) sum += el_expf(l[e] - max);
    for (size_t k = 0; k < K; k++) {
        int32_t best = -1;
        for (int32_t e = 0; e < E; e++) {
            if (!chosen(a, t, k, e) && (best < 0 || l[e] > l[best])) best = e;
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

/* y = expert e of x. Returns the number of leaves that left the grid. */
static int32_t run_expert(const struct model *m, size_t e, const float *x, float *y)
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

static void limit_all(const struct moe_case *c, struct answer *a)
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

static void answer(const struct moe_case *c, const struct model *m, struct answer *a)
{
    memset(a, 0, sizeof *a);
    for (size_t t = 0; t < c->n_tokens; t++) route_token(c, m, a, t);
    if (c->policy != CAPACITY_DROPLESS) limit_all(c, a);
    for (size_t t = 0; t < c->n_tokens; t++) {
        int64_t sums[D] = {0};
        for (size_t k = 0; k < K; k++) {
            float y[D];
            const int32_t e = a->ids[t][k];
            if (e < 0) continue;
            a->load[e]++;
            a->bad[t] += run_expert(m, (size_t)e, m->x[t], y);
            for (size_t n = 0; n < D; n++)
                sums[n] += on_grid((double)a->weights[t][k] * (double)y[n], &a->bad[t]);
        }
        for (size_t n = 0; n < D; n++) {
            float acc = (float)((double)sums[n] * 0x1p-32);
            if (c->has_shared) acc += m->shared[t][n];
            a->h[t][n] = __builtin_fmaf(scale_of(c), acc, m->h[t][n]);
        }
    }
}

/* --- the block under test ----------------------------------------------------------------- */

/* The slices of the weights that one rank has. */
struct held {
    struct packed gate[P_MAX], up[P_MAX], down[P_MAX];
    float bias[E];
    void *data[3 * P_MAX + 1];
    size_t n;
};

static struct packed pack(struct held *h, const float *w, size_t n_out, size_t n_in, size_t stride)
{
    void *data = NULL;
    CU_ASSERT_EQUAL_FATAL(
        mem_alloc(&data, packed_bytes(DTYPE_F32, n_out, n_in), 1, "test weights").code, STATUS_OK);
    packed_put_rows(DTYPE_F32, data, n_in,
                    &(struct matrix_rows){w, stride * sizeof(float), 0, n_out});
    h->data[h->n++] = data;
    return (struct packed){.dtype = DTYPE_F32,
                           .n_out = (uint32_t)n_out,
                           .n_in = (uint32_t)n_in,
                           .leaf = LEAF,
                           .grid_bits = GRID,
                           .data = data};
}

/* Holds weights as weights_load does: empty slices are absent; if experts are lent, all are here.
 */
static struct layer hold(const struct layout *l, struct layout_place p, const struct model *m,
                         struct held *h)
{
    const struct expert_places *places = l->expert_places;
    const uint32_t layer_index = l->stage_begin[p.pp];
    const struct range own = layout_experts(l, p.ep), f = layout_expert_ffn(l, p.etp);
    const struct range here = l->lends_experts ? (struct range){0, layout_n_places(l)} : own;
    const uint32_t *expert_at =
        places != NULL ? places->expert + (size_t)layer_index * places->n_places : NULL;
    const size_t n_f = range_count(f);
    memset(h, 0, sizeof *h);
    for (uint32_t at = here.begin; at < here.end && n_f > 0; at++) {
        const uint32_t i = at - here.begin, e = expert_at != NULL ? expert_at[at] : at;
        h->gate[i] = pack(h, m->gate[e][f.begin], n_f, D, D);
        h->up[i] = pack(h, m->up[e][f.begin], n_f, D, D);
        const struct range out = layout_expert_outputs(l, p.etp);
        h->down[i] = l->cuts_expert_outputs
                         ? pack(h, &m->down[e][out.begin][0], range_count(out), F, F)
                         : pack(h, &m->down[e][0][f.begin], D, n_f, F);
    }
    memcpy(h->bias, m->bias, sizeof h->bias);
    struct layer layer = {.is_moe = true};
    struct moe_weights *w = &layer.moe;
    *w = (struct moe_weights){.router = pack(h, &m->router[0][0], E, D, D),
                              .select_bias = h->bias,
                              .n_experts = range_count(own),
                              .grid_bits = GRID,
                              .has_others = l->lends_experts,
                              .expert_at = expert_at};
    if (places != NULL) {
        const struct expert_copies all = expert_copies_of(l, places, layer_index);
        w->place = all.place;
        w->first = all.first;
    }
    if (n_f == 0) return layer;
    w->gate = h->gate + (own.begin - here.begin);
    w->up = h->up + (own.begin - here.begin);
    w->down = h->down + (own.begin - here.begin);
    return layer;
}

/* The tokens of a replica. If the first replica is idle, the others share the tokens. */
static struct range tokens_of(const struct layout *l, const struct moe_case *c, uint32_t dp)
{
    if (!c->first_replica_idle || l->dp == 1) return layout_split(c->n_tokens, 1, l->dp, dp);
    return dp == 0 ? (struct range){0, 0} : layout_split(c->n_tokens, 1, l->dp - 1, dp - 1);
}

struct trial {
    const struct moe_case *c;
    const struct model *m;
    const struct answer *want;
    size_t n_layouts, n_empty_parts; /* layouts tested; ranks without a leaf */
    size_t n_cut_by_outputs, n_lent, n_slices;
    size_t n_between_hosts; /* blocks that sent to other hosts */
    size_t n_copied;        /* blocks with copies of experts */
    size_t n_halved;        /* blocks whose halves took turns */
};

/* How the launcher's ranks are dealt to pretended hosts. */
enum hosts { ONE_HOST, TWO_HOSTS /* ranks 0, 2, .. and 1, 3, .. */, OWN_HOSTS };

static int host_of(enum hosts hosts, int rank)
{
    return hosts == ONE_HOST ? 0 : hosts == TWO_HOSTS ? rank % 2 : rank;
}

/* Checks the tokens that this rank has: `own` of the tokens r. The others must be unchanged. */
static void check_tokens(const struct trial *t, struct range r, struct range own, float h[][D],
                         const int32_t *bad, const int32_t *dropped)
{
    for (size_t i = 0; i < range_count(r); i++) {
        const bool holds = i >= own.begin && i < own.end;
        const float *want = holds ? t->want->h[r.begin + i] : t->m->h[r.begin + i];
        CU_ASSERT_EQUAL(memcmp(h[i], want, sizeof h[0]), 0);
        if (!holds) continue;
        /* both are added to earlier counts */
        CU_ASSERT_EQUAL(bad[i], 100 + t->want->bad[r.begin + i]);
        CU_ASSERT_EQUAL(dropped[i], 200 + t->want->dropped[r.begin + i]);
    }
}

/* The host of the first rank that holds an expert, in the replica of experts of `mine`. */
static int host_of_expert(const struct layout *l, struct layout_place mine, uint32_t place,
                          enum hosts hosts)
{
    for (uint32_t r = 0; r < l->n_ranks; r++) {
        const struct layout_place p = layout_place_of(l, r);
        const struct range held = layout_experts(l, p.ep);
        if (p.pp == mine.pp && p.expert_replica == mine.expert_replica && p.etp == 0 &&
            place >= held.begin && place < held.end)
            return host_of(hosts, (int)r);
    }
    return -1;
}

/* Whether the expert has a place on the host. */
static bool stands_on(const struct layout *l, struct layout_place mine, int32_t e, int host,
                      enum hosts hosts)
{
    if (l->expert_places == NULL) return host_of_expert(l, mine, (uint32_t)e, hosts) == host;
    const struct expert_copies c = expert_copies_of(l, l->expert_places, l->stage_begin[mine.pp]);
    for (uint32_t i = c.first[e]; i < c.first[e + 1]; i++)
        if (host_of_expert(l, mine, c.place[i], hosts) == host) return true;
    return false;
}

/* The bytes of this rank's blocks for other hosts: each of its tokens once for each host with an
 * expert of it that its own host lacks. Experts on several other hosts count on each. */
static int64_t bytes_of_tokens(const struct layout *l, uint32_t rank, const struct trial *t,
                               enum hosts hosts)
{
    const struct token_format f = {D, 0};
    const struct layout_place p = layout_place_of(l, rank);
    const struct range replica = tokens_of(l, t->c, p.dp);
    const struct range own = layout_split(range_count(replica), 1, l->tp, p.tp);
    int64_t n_bytes = 0;
    bool is_host[4] = {false};
    const int here = host_of(hosts, (int)rank);
    for (uint32_t at = 0; at < layout_n_places(l); at++)
        is_host[host_of_expert(l, p, at, hosts)] = true;
    for (int h = 0; h < 4; h++) {
        size_t n_rows = 0, n_choices = 0;
        if (h == here || !is_host[h]) continue;
        for (uint32_t i = own.begin; i < own.end; i++) {
            size_t n = 0;
            for (size_t k = 0; k < K; k++) {
                const int32_t e = t->want->ids[replica.begin + i][k];
                if (e < 0) continue;
                n += stands_on(l, p, e, h, hosts) && !stands_on(l, p, e, here, hosts);
            }
            n_rows += n > 0;
            n_choices += n;
        }
        n_bytes += (int64_t)token_block_at(&f, n_rows, n_choices, NULL).n_bytes;
    }
    return n_bytes;
}

/* Compares what all ranks counted in the calls of a block with what they had to send. Every token
 * that went to a host came back as one row of sums, of at most 8 bytes each. */
static void check_bytes(struct trial *t, const struct layout *l, struct comm *c,
                        const struct moe *moe, enum hosts hosts, int n_calls)
{
    const struct moe_traffic mine = moe_traffic_of(moe);
    int64_t all[3] = {(int64_t)mine.dispatch_bytes, (int64_t)mine.combine_bytes, 0};
    if (strcmp(moe_exchange_name(moe), "between hosts") != 0) {
        CU_ASSERT(mine.dispatch_bytes == 0 && mine.combine_bytes == 0 && mine.n_tokens == 0);
        return;
    }
    all[2] = bytes_of_tokens(l, (uint32_t)comm_rank(c, COMM_WORLD), t, hosts) * n_calls;
    comm_sum_i64(c, COMM_EP, all, 3);
    CU_ASSERT(l->n_expert_copies == 0 ? all[0] == all[2] : all[0] <= all[2]);
    t->n_between_hosts += all[0] > 0 && all[1] > 0;
}

/* Places the experts, with their copies, if the case says so. */
static struct expert_places *place_experts(const struct moe_case *c, enum hosts hosts,
                                           struct layout *l)
{
    const uint32_t most = E * (l->ep - 1);
    int64_t load[4 * E];
    uint32_t host[4];
    struct expert_places *p = NULL;
    if (!c->placed) return NULL;
    l->n_expert_copies = c->n_copies < most ? c->n_copies : most;
    for (size_t i = 0; i < sizeof load / sizeof load[0]; i++) load[i] = load_of[i % E];
    for (uint32_t r = 0; r < l->n_ranks; r++) host[r] = (uint32_t)host_of(hosts, (int)r);
    CU_ASSERT_EQUAL_FATAL(expert_places_create(l, load, host, &p).code, STATUS_OK);
    l->expert_places = p;
    return p;
}

/* Runs the rows as two calls that are under way together. */
static void forward_in_halves(struct moe *moe, const struct layer *layer,
                              const struct moe_rows *all)
{
    const size_t at = all->n_tokens / 2;
    struct moe_rows half[MOE_LANES] = {*all, *all};
    half[0].n_tokens = at;
    half[1].n_tokens -= at;
    half[1].x += at * D;
    half[1].h += at * D;
    half[1].bad += at;
    half[1].dropped += at;
    for (int i = 0; i < MOE_LANES; i++) {
        half[i].own = (struct range){0, (uint32_t)half[i].n_tokens};
        half[i].shared = NULL;
        CU_ASSERT_EQUAL(moe_start(moe, layer, &half[i], i).code, STATUS_OK);
        if (all->shared != NULL) half[i].shared = all->shared + (size_t)i * at * D;
    }
    for (int i = 0; i < MOE_LANES; i++) CU_ASSERT_EQUAL(moe_run(moe, i).code, STATUS_OK);
    for (int i = 0; i < MOE_LANES; i++) CU_ASSERT_EQUAL(moe_finish(moe, i).code, STATUS_OK);
}

/* in_memory: uses the host's shared memory: the experts' down projections are cut by outputs, and
 * experts are lent. */
static void check_cut(const struct layout *whole, struct trial *t, struct layout *l, bool in_memory,
                      enum hosts hosts)
{
    static float h[N_MAX][D];
    int32_t bad[N_MAX], dropped[N_MAX];
    int64_t load[E];
    struct comm *c = util_comm_on_host(whole, 0, host_of(hosts, (int)util_rank()));
    struct held held;
    struct moe *moe = NULL;
    struct kern_table kern;
    const uint32_t rank = (uint32_t)comm_rank(c, COMM_WORLD);
    CU_ASSERT_EQUAL_FATAL(kern_select(NULL, &kern).code, STATUS_OK);
    *l = *whole;
    struct expert_places *places = place_experts(t->c, hosts, l);
    if (in_memory) stage_choose_cuts(&kern, c, t->c->policy, l);
    /* without requiring huge pages, which the weights of this test do not need */
    l->lends_experts = in_memory && layout_may_lend_experts(l) &&
                       t->c->policy == CAPACITY_DROPLESS && comm_shares_memory(c, COMM_EP);
    if (in_memory && !l->cuts_expert_outputs && !l->lends_experts) {
        expert_places_destroy(&places);
        comm_stop(&c);
        return;
    }
    t->n_cut_by_outputs += l->cuts_expert_outputs;
    t->n_lent += l->lends_experts;
    const struct layout_place p = layout_place_of(l, rank);
    t->n_copied += l->n_expert_copies > 0;
    const struct layer layer = hold(l, p, t->m, &held);
    const struct arch model = {.width = D,
                               .n_experts = E,
                               .n_chosen = K,
                               .router = rule_of(t->c),
                               .scale.residual = scale_of(t->c)};
    const struct capacity_flags capacity = {t->c->capacity_factor, t->c->policy};
    const struct moe_options o = {.model = &model,
                                  .kern = &kern,
                                  .comm = c,
                                  .layout = l,
                                  .rank = rank,
                                  .capacity = &capacity};
    const struct range r = tokens_of(l, t->c, p.dp);
    /* The second pass reuses the first one's buffers and, where supported, holds only a slice of
     * the tokens. The third is of a block that sends rows even where the ranks of a host could read
     * them; where they travel to other hosts, its halves take turns. */
    const int n_passes = in_memory ? 2 : 3;
    for (int pass = 0; pass < n_passes; pass++) {
        uint64_t mine[E] = {0};
        comm_use_memory(c, COMM_EP, pass < 2 || hosts != ONE_HOST);
        if (pass != 1) {
            moe_destroy(&moe);
            CU_ASSERT_EQUAL_FATAL(moe_create(&o, &moe).code, STATUS_OK);
        }
        const bool slices = pass == 1 && range_count(r) > 1 && moe_takes_slices(moe);
        const struct range own = slices ? layout_split(range_count(r), 1, l->tp, p.tp)
                                        : (struct range){0, range_count(r)};
        t->n_slices += slices;
        memcpy(h, t->m->h[r.begin], range_count(r) * sizeof h[0]);
        for (size_t i = 0; i < N_MAX; i++) {
            bad[i] = 100;
            dropped[i] = 200;
        }
        const struct moe_rows rows = {.n_tokens = range_count(r),
                                      .own = own,
                                      .x = &t->m->x[r.begin][0],
                                      .shared = t->c->has_shared ? &t->m->shared[r.begin][0] : NULL,
                                      .h = &h[0][0],
                                      .bad = bad,
                                      .dropped = dropped,
                                      .load = mine};
        const bool in_halves = pass == 2 && moe_travels(moe) && t->c->policy == CAPACITY_DROPLESS;
        t->n_halved += in_halves;
        if (in_halves) {
            forward_in_halves(moe, &layer, &rows);
        } else {
            CU_ASSERT_EQUAL(moe_forward(moe, &layer, &rows).code, STATUS_OK);
        }
        check_tokens(t, r, own, h, bad, dropped);
        for (size_t e = 0; e < E; e++) load[e] = (int64_t)mine[e];
        if (pass == (hosts == ONE_HOST ? n_passes - 1 : 1))
            check_bytes(t, l, c, moe, hosts, hosts == ONE_HOST ? 1 : 2);
    }
    comm_sum_i64(c, COMM_STAGE, load, E);
    for (size_t e = 0; e < E; e++) CU_ASSERT_EQUAL(load[e], (int64_t)t->want->load[e]);
    t->n_layouts++;
    t->n_empty_parts += range_count(layout_expert_ffn(l, p.etp)) == 0;
    moe_destroy(&moe);
    for (size_t i = 0; i < held.n; i++) mem_free(&held.data[i]);
    expert_places_destroy(&places);
    comm_stop(&c);
}

static void check_layout(const struct layout *l, void *ctx)
{
    struct layout *copy = malloc(sizeof *copy);
    check_cut(l, ctx, copy, false, ONE_HOST);
    check_cut(l, ctx, copy, true, ONE_HOST);
    const bool travels = l->ep * l->etp > 1;
    if (travels && util_n_ranks() > 2) check_cut(l, ctx, copy, false, TWO_HOSTS);
    if (travels) check_cut(l, ctx, copy, false, OWN_HOSTS);
    free(copy);
}

/* Runs a case on every layout. Returns the answer of a single process. */
static const struct answer *try_case(const struct moe_case *c, size_t *n_empty_parts)
{
    static struct model m;
    static struct answer want;
    static struct arch arch;
    const struct layout_model model = util_layout_model(&shape, &arch);
    struct trial t = {.c = c, .m = &m, .want = &want};
    make_model(c, &m);
    answer(c, &m, &want);
    util_each_layout(&model, check_layout, &t);
    CU_ASSERT(t.n_layouts >= util_n_ranks());
    CU_ASSERT(util_n_ranks() != 2 || c->policy != CAPACITY_DROPLESS || t.n_cut_by_outputs > 0);
    CU_ASSERT(util_n_ranks() != 2 || c->policy != CAPACITY_DROPLESS || c->n_tokens < 4 ||
              t.n_slices > 0);
    CU_ASSERT(util_n_ranks() != 2 || c->policy != CAPACITY_DROPLESS || t.n_lent > 0);
    CU_ASSERT(util_n_ranks() == 1 || t.n_between_hosts > 0 || c->n_copies > E);
    CU_ASSERT(util_n_ranks() == 1 || t.n_halved > 0 || c->policy != CAPACITY_DROPLESS);
    CU_ASSERT(util_n_ranks() == 1 || c->n_copies == 0 || t.n_copied > 0);
    if (n_empty_parts != NULL) *n_empty_parts = t.n_empty_parts;
    return &want;
}

static void every_layout_gives_the_same_bits(void)
{
    static const uint32_t counts[] = {0, 1, 2, 7, 33, N_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct moe_case c = {.n_tokens = counts[i], .router = ROUTER_SOFTMAX_RENORM};
        try_case(&c, NULL);
        c.router = ROUTER_SOFTMAX;
        try_case(&c, NULL);
    }
}

static void experts_may_stand_anywhere(void)
{
    static const uint32_t counts[] = {1, 7, N_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct moe_case c = {
            .n_tokens = counts[i], .router = ROUTER_SOFTMAX_RENORM, .placed = true};
        try_case(&c, NULL);
        c.policy = CAPACITY_NEXT;
        c.capacity_factor = 1;
        try_case(&c, NULL);
    }
    const struct moe_case huge = {.n_tokens = 33, .huge = true, .placed = true};
    try_case(&huge, NULL);
}

static void copies_give_the_same_bits(void)
{
    static const uint32_t counts[] = {7, N_MAX}, n_copies[] = {2, P_MAX};
    for (size_t i = 0; i < 4; i++) {
        const struct moe_case c = {.n_tokens = counts[i % 2],
                                   .router = ROUTER_SOFTMAX_RENORM,
                                   .placed = true,
                                   .n_copies = n_copies[i / 2]};
        try_case(&c, NULL);
    }
    const struct moe_case crowded = {
        .n_tokens = N_MAX, .one_expert = true, .has_shared = true, .placed = true, .n_copies = 2};
    try_case(&crowded, NULL);
    const struct moe_case dropped = {.n_tokens = 33,
                                     .router = ROUTER_SOFTMAX_RENORM,
                                     .policy = CAPACITY_DROP,
                                     .capacity_factor = 0.7,
                                     .placed = true,
                                     .n_copies = 3};
    try_case(&dropped, NULL);
    const struct moe_case huge = {
        .n_tokens = 33, .first_replica_idle = true, .huge = true, .placed = true, .n_copies = 3};
    try_case(&huge, NULL);
}

static void groups_shared_rows_and_scales_give_the_same_bits(void)
{
    const struct moe_case c = {
        .n_tokens = 33, .router = ROUTER_SIGMOID, .has_shared = true, .residual_scale = 0.22f};
    try_case(&c, NULL);
}

static void an_idle_replica_takes_part(void)
{
    const struct moe_case c = {.n_tokens = 9, .first_replica_idle = true};
    try_case(&c, NULL);
}

/* So many rows of two experts that ranks without these experts take some of them. */
static void rows_of_few_experts_are_shared(void)
{
    const struct moe_case c = {.n_tokens = N_MAX, .one_expert = true, .has_shared = true};
    try_case(&c, NULL);
    const struct moe_case placed = {.n_tokens = N_MAX, .one_expert = true, .placed = true};
    try_case(&placed, NULL);
}

static void all_tokens_may_choose_the_same_experts(void)
{
    const struct moe_case c = {.n_tokens = 21, .one_expert = true};
    const struct answer *a = try_case(&c, NULL);
    CU_ASSERT(a->load[2] == 21 && a->load[3] == 21 && a->load[0] == 0 && a->load[5] == 0);
}

static void ranks_without_a_leaf_take_part(void)
{
    size_t n_empty = 0;
    const struct moe_case c = {.n_tokens = 11};
    try_case(&c, &n_empty);
    int64_t sum = 0, mine = (int64_t)n_empty;
    MPI_Allreduce(&mine, &sum, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    CU_ASSERT_EQUAL(sum > 0, util_n_ranks() == 4); /* 3 leaves on etp 4 */
}

static void leaves_beyond_the_grid_are_counted_in_their_rows(void)
{
    const struct moe_case c = {.n_tokens = 33, .huge = true};
    const struct answer *a = try_case(&c, NULL);
    size_t n_bad = 0, n_good = 0;
    for (size_t t = 0; t < c.n_tokens; t++) {
        n_bad += a->bad[t] > 0;
        n_good += a->bad[t] == 0;
        if (a->bad[t] > 0) CU_ASSERT(chosen(a, t, K, 3));
    }
    CU_ASSERT(n_bad > 0 && n_good > 0);
}

static void capacity_is_agreed_over_the_microbatch(void)
{
    static const enum capacity_policy policies[] = {CAPACITY_DROP, CAPACITY_NEXT, CAPACITY_TOP1};
    for (size_t i = 0; i < 3; i++) {
        for (int idle = 0; idle < 2; idle++) {
            const struct moe_case c = {.n_tokens = 33,
                                       .first_replica_idle = idle == 1,
                                       .one_expert = idle == 1,
                                       .router = ROUTER_SOFTMAX_RENORM,
                                       .policy = policies[i],
                                       .capacity_factor = 0.7};
            const struct answer *a = try_case(&c, NULL);
            int64_t n_dropped = 0;
            for (size_t t = 0; t < c.n_tokens; t++) n_dropped += a->dropped[t];
            CU_ASSERT(n_dropped > 0);
        }
    }
    const struct moe_case nothing = {.n_tokens = 0, .policy = CAPACITY_DROP, .capacity_factor = 1};
    try_case(&nothing, NULL);
}

void suite_moe(CU_pSuite suite);
void suite_moe(CU_pSuite suite)
{
    CU_add_test(suite, "every layout gives the same bits", every_layout_gives_the_same_bits);
    CU_add_test(suite, "experts may stand anywhere", experts_may_stand_anywhere);
    CU_add_test(suite, "copies give the same bits", copies_give_the_same_bits);
    CU_add_test(suite, "groups, shared rows and scales give the same bits",
                groups_shared_rows_and_scales_give_the_same_bits);
    CU_add_test(suite, "an idle replica takes part", an_idle_replica_takes_part);
    CU_add_test(suite, "rows of few experts are shared", rows_of_few_experts_are_shared);
    CU_add_test(suite, "all tokens may choose the same experts",
                all_tokens_may_choose_the_same_experts);
    CU_add_test(suite, "ranks without a leaf take part", ranks_without_a_leaf_take_part);
    CU_add_test(suite, "leaves beyond the grid are counted in their rows",
                leaves_beyond_the_grid_are_counted_in_their_rows);
    CU_add_test(suite, "capacity is agreed over the microbatch",
                capacity_is_agreed_over_the_microbatch);
}
