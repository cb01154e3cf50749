/* Carries out a plan's orders to move KV blocks between the pool and this rank's file or the prefix
 * store. When the plan asks, tells the lead how many reads of this rank's replica have ended. */
#include "engine/engine_private.h"

#include "base/mem.h"

/* Opens the prefix store for this rank's layers and heads. */
static struct status create_store(struct engine *e, const struct engine_tier *o)
{
    const struct kv_shape *shape = &stage_kv_pool(e->stage)->shape;
    const struct weights *w = e->o.weights;
    uint32_t *layers = NULL, n = 0;
    TRY(mem_alloc(&layers, range_count(w->layers) + 1, sizeof *layers, "prefix store"));
    for (uint32_t i = 0; i < range_count(w->layers); i++)
        if (w->stage_layers[i].has_kv) layers[n++] = w->stage_layers[i].index;
    const struct kv_store_part part = {.layers = layers,
                                       .n_layers = n,
                                       .head_begin = w->kv_heads.begin,
                                       .head_end = w->kv_heads.end,
                                       .n_halves = shape->latent ? 1 : 2,
                                       .half_bytes = kv_half_bytes(shape->dtype, shape->head_dim),
                                       .beside_bytes =
                                           kv_pool_index_bytes(shape->dtype, shape->index_dim)};
    const struct status st =
        kv_store_create(o->store_dir, o->store_bytes, o->store_sweeps, &part, &e->moves.store);
    mem_free(&layers);
    return st;
}

struct status engine_create_tier(struct engine *e, const struct engine_tier *o)
{
    if (o->n_slots == 0 && o->store_bytes == 0) return status_ok();
    if (o->store_bytes > 0) TRY(create_store(e, o));
    const struct kv_tier_options options = {.dir = o->dir,
                                            .n_slots = o->n_slots,
                                            .pool = stage_kv_pool(e->stage),
                                            .store = e->moves.store,
                                            .failpoint = o->failpoint};
    return kv_tier_create(&options, &e->moves.tier);
}

bool engine_store_has(void *engine, const uint64_t *key)
{
    const struct engine *e = engine;
    return kv_store_has(e->moves.store, (struct kv_store_key){key[0], key[1]});
}

void engine_store_key(const uint64_t *before, const int32_t *tokens, uint64_t *key)
{
    const struct kv_store_key k =
        kv_store_key_of((struct kv_store_key){before[0], before[1]}, tokens);
    key[0] = k.low;
    key[1] = k.high;
}

static struct kv_store_key move_key(const struct plan_move *m)
{
    return (struct kv_store_key){.low = (uint64_t)m->key[1] << 32 | m->key[0],
                                 .high = (uint64_t)m->key[3] << 32 | m->key[2]};
}

static struct status run_move(struct engine *e, const struct plan_move *m, struct batch *b)
{
    if (e->moves.tier == NULL || m->block < 0 || m->slot < 0)
        return status_make(STATUS_BUG, "an order to move block %d and slot %d", m->block, m->slot);
    switch ((enum plan_move_kind)m->kind) {
    case PLAN_MOVE_OUT:
        return kv_tier_out(e->moves.tier, (uint32_t)m->block, (uint32_t)m->slot);
    case PLAN_MOVE_IN:
        e->moves.n_reads++;
        return kv_tier_in(e->moves.tier, (uint32_t)m->slot, (uint32_t)m->block);
    case PLAN_MOVE_PUT:
        return kv_tier_put(e->moves.tier, (uint32_t)m->block, move_key(m));
    case PLAN_MOVE_GET:
        e->moves.n_reads++;
        return kv_tier_get(e->moves.tier, move_key(m), (uint32_t)m->block);
    case PLAN_MOVE_ASK:
        b->ask = m;
        return status_ok();
    }
    return status_make(STATUS_BUG, "an order to move of kind %d", m->kind);
}

struct status engine_run_moves(struct engine *e, const struct step_plan *plan, struct batch *b)
{
    for (size_t i = 0; i < plan->n_moves; i++) {
        const struct plan_move *m = &plan->moves[i];
        if (m->replica == (int32_t)e->place.dp) TRY(run_move(e, m, b));
    }
    /* A read may still be under way into a block whose sequence has left and which belongs to
     * another sequence by now. */
    if (e->moves.tier == NULL || kv_tier_n_ended(e->moves.tier, false) == e->moves.n_reads)
        return status_ok();
    size_t n_blocks = 0;
    for (size_t i = 0; i < b->n_seqs; i++) n_blocks += (size_t)b->seqs[i].n_blocks;
    for (size_t i = 0; i < n_blocks; i++)
        kv_tier_await_block(e->moves.tier, (uint32_t)b->blocks[i]);
    return status_ok();
}

/* Returns bytes per ms, at least 1; UINT64_MAX: not measured yet. */
static uint64_t rate(uint64_t n_bytes, uint64_t ns)
{
    if (n_bytes == 0) return UINT64_MAX;
    return (uint64_t)((double)n_bytes * 1e6 / (double)(ns + 1)) + 1;
}

struct status engine_report_moves(struct engine *e, const struct batch *b)
{
    if (b->ask == NULL) return status_ok();
    const uint64_t from = plan_move_from(b->ask);
    const uint64_t n = PLAN_MOVED_READS + e->moves.n_reads - from;
    comm_wait(e->o.comm, &e->moves.moved_send);
    if (n > e->moves.moved_capacity) {
        TRY(mem_grow(&e->moves.moved, 0, 2 * n, sizeof *e->moves.moved, "engine"));
        e->moves.moved_capacity = 2 * n;
    }
    const uint64_t n_ended = kv_tier_n_ended(e->moves.tier, b->ask->block != 0);
    const struct kv_tier_stats s = kv_tier_stats_of(e->moves.tier);
    const double one = (double)kv_pool_one_bytes(stage_kv_pool(e->stage));
    e->moves.moved[PLAN_MOVED_FROM] = from;
    e->moves.moved[PLAN_MOVED_N_ENDED] = n_ended;
    e->moves.moved[PLAN_MOVED_RATE_IN] = rate(s.in_bytes, s.in_ns);
    e->moves.moved[PLAN_MOVED_RATE_OUT] = rate(s.out_bytes, s.out_ns);
    for (int i = PLAN_MOVED_RATE_IN; one > 0 && i <= PLAN_MOVED_RATE_OUT; i++) {
        /* in blocks per 1000 s, because ranks have blocks of different sizes */
        if (e->moves.moved[i] != UINT64_MAX)
            e->moves.moved[i] = (uint64_t)((double)e->moves.moved[i] * 1e6 / one) + 1;
    }
    for (uint64_t i = from; i < e->moves.n_reads; i++)
        e->moves.moved[PLAN_MOVED_READS + i - from] =
            i >= n_ended || kv_tier_is_good(e->moves.tier, i);
    comm_min_u64(e->o.comm, COMM_TP, e->moves.moved, n);
    if (e->place.tp != 0) return status_ok();
    comm_send_start(e->o.comm, 0, COMM_TAG_MOVED, e->moves.moved, n * sizeof *e->moves.moved,
                    &e->moves.moved_send);
    e->stats.n_sent++;
    return status_ok();
}

void engine_note_asked(struct engine *e, const struct step_plan *plan)
{
    const size_t dp = e->o.layout->dp, at = (size_t)(e->n_submitted % (e->o.layout->pp + 1)) * dp;
    for (size_t r = 0; r < dp; r++) e->moves.asked[at + r] = false;
    for (size_t i = 0; i < plan->n_moves; i++) {
        if (plan->moves[i].kind == PLAN_MOVE_ASK)
            e->moves.asked[at + (size_t)plan->moves[i].replica] = true;
    }
}

struct status engine_collect_moved(struct engine *e, int32_t replica, struct step_result *out)
{
    const struct layout *l = e->o.layout;
    const uint64_t n_before = e->moves.n_collected[replica]++;
    out->n_moved = 0;
    if (!e->moves.asked[(size_t)(n_before % (l->pp + 1)) * l->dp + (size_t)replica])
        return status_ok();
    for (uint32_t s = 0; s < l->pp; s++) {
        const int from = (int)layout_rank_of(l, (uint32_t)replica, s, 0);
        const size_t n_bytes = comm_probe(e->o.comm, from, COMM_TAG_MOVED);
        const size_t n = n_bytes / sizeof(uint64_t);
        if (n < PLAN_MOVED_READS || (s > 0 && n != out->n_moved))
            return status_make(STATUS_BUG, "a report of moved blocks of %zu bytes", n_bytes);
        if (n > e->moves.collected_capacity) {
            TRY(mem_grow(&e->moves.collected, 0, 2 * n, sizeof *e->moves.collected, "engine"));
            e->moves.collected_capacity = 2 * n;
        }
        comm_recv(e->o.comm, from, COMM_TAG_MOVED, e->moves.collected, n_bytes);
        TRY(step_result_take_moved(out, e->moves.collected, n));
    }
    return status_ok();
}
