/* Holds the slices of the weights that this rank has in a layout, runs the block as one call and as
 * halves that take turns, between ranks of one host and of pretended hosts, and compares each
 * token's bits with the reference's. */
#include "mpi/util_moe.h"

#include "base/mem.h"
#include "model/stage.h"
#include "mpi/util_mpi.h"
#include "parallel/layout/expert_places.h"
#include "parallel/wire/token_block.h"

#include <stdlib.h>
#include <string.h>

static const struct util_shape shape = {
    .width = D, .n_experts = E, .n_chosen = K, .expert_ffn = F, .expert_leaf = LEAF, .vocab = 64};

/* The load by which experts are placed, the same in each layer. Expert 3 gets the first copy, then
 * expert 2. */
static const int64_t load_of[E] = {20, 10, 60, 100, 30, 5};

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
static struct layer hold(const struct layout *l, struct layout_place p, const struct moe_model *m,
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
    *w = (struct moe_weights){.router = pack(h, &m->router[0][0], E + m->n_zero, D, D),
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

/* The tokens of a replica. If the first replica shall be idle, the others, if any, share them. */
static struct range tokens_of(const struct layout *l, const struct moe_case *c, uint32_t dp)
{
    if (!c->first_replica_idle || l->dp == 1) return layout_split(c->n_tokens, 1, l->dp, dp);
    return dp == 0 ? (struct range){0, 0} : layout_split(c->n_tokens, 1, l->dp - 1, dp - 1);
}

struct trial {
    const struct moe_case *c;
    const struct moe_model *m;
    const struct moe_answer *want;
    size_t n_layouts, n_empty_parts; /* runs; runs in which this rank has no leaf */
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

/* Checks the tokens that this rank computes: `own` of the tokens r. The others of r must be
 * unchanged. */
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

/* The host of the first rank that holds an expert's place, in the replica of experts of `mine`. */
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

/* The bytes of this rank's blocks for other hosts. A token counts once for each host that has one
 * of its experts which this host lacks; an expert on several hosts counts for each of them. */
static int64_t bytes_of_tokens(const struct layout *l, uint32_t rank, const struct trial *t,
                               enum hosts hosts)
{
    const struct token_format f = {D, 0, false};
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

/* Compares the bytes of tokens that all ranks counted in n_calls calls with those that they had to
 * send; with copies of experts they may send fewer. Only exchanges between hosts count bytes. */
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

/* Runs the case on one layout. in_memory: through the host's shared memory the experts' down
 * projections are cut by outputs, or experts are lent; if the layout allows neither, there is no
 * run. */
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
                               .moe.n_experts = E,
                               .moe.n_zero = t->m->n_zero,
                               .moe.n_chosen = K,
                               .moe.router = util_moe_rule_of(t->c),
                               .scale.residual = util_moe_scale_of(t->c)};
    const struct capacity_flags capacity = {t->c->capacity_factor, t->c->policy};
    const struct moe_options o = {.model = &model,
                                  .kern = &kern,
                                  .comm = c,
                                  .layout = l,
                                  .rank = rank,
                                  .capacity = &capacity};
    const struct range r = tokens_of(l, t->c, p.dp);
    /* The second pass reuses the first one's buffers and, if supported, holds only a slice of the
     * tokens. The third is of a block that sends rows even if the ranks of a host could read them;
     * if rows travel to other hosts, its halves take turns. */
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

const struct moe_answer *util_moe_try(const struct moe_case *c, size_t *n_empty_parts)
{
    static struct moe_model m;
    static struct moe_answer want;
    static struct arch arch;
    const struct layout_model model = util_layout_model(&shape, &arch);
    struct trial t = {.c = c, .m = &m, .want = &want};
    util_moe_model(c, &m);
    util_moe_answer(c, &m, &want);
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
