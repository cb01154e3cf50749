/* Plans steps. All sequences are in one order (sequence_is_before); "older" means earlier in it.
 * The oldest sequence of a replica is never preempted, and the pool holds a full context, so the
 * oldest sequence always advances. */
#include "serve/schedule/scheduler.h"

#include "base/clock.h"
#include "base/mem.h"
#include "serve/schedule/adjusts.h"
#include "serve/schedule/scheduler_private.h"

/* After each preemption a replica keeps another 1/KEPT_PART of its pool free, up to half of it.
 * After CALM_PLANS plans without a preemption it keeps an eighth less. */
enum { KEPT_PART = 64, CALM_PLANS = 32 };

/* Fills in options that may be left at 0. Turns off the prefix cache when logits are wanted, and
 * drafts when nothing is sampled. */
static void settle_options(struct scheduler_options *o)
{
    if (plan_tables_count(&o->tables) == 0) o->tables.n_full = 1;
    if (o->flags.chunk_tokens == 0) o->flags.chunk_tokens = o->flags.step_tokens;
    if (o->logits != NULL) o->flags.prefix_cache = false;
    if (o->rules->score || o->rules->embed != NULL) o->flags.n_drafts = 0;
    if (o->rules->embed == NULL || !o->rules->embed->is_whole) return;
    o->flags.prefix_cache = false; /* K and V depend on later tokens, too */
    o->flags.chunk_tokens = o->flags.step_tokens;
    o->flags.step_ns = o->eased_step_ns = 0; /* a smaller budget would not hold every text */
}

static bool tables_are_sound(const struct plan_tables *t)
{
    return t->n_full >= 0 && t->n_windowed >= 0 && plan_tables_count(t) <= PLAN_TABLES_MAX &&
           (t->n_windowed == 0 || t->window > 0);
}

static struct status check_options(const struct scheduler_options *o)
{
    const struct scheduler as_asked = {.o = *o};
    const int64_t n_needed = scheduler_blocks_held(&as_asked, (size_t)o->rules->max_model_len);
    if (o->n_replicas < 1 || o->n_groups < 1 || o->n_blocks < 1 || o->flags.max_batch < 0 ||
        o->flags.step_tokens < 1 || o->flags.chunk_tokens < 0 || o->flags.n_drafts < 0 ||
        o->flags.n_drafts > SEQUENCE_DRAFTS_MAX || o->rules->max_model_len < 2 ||
        o->n_state_slots < 0 || !tables_are_sound(&o->tables) ||
        (o->n_state_slots > 0 && (o->flags.n_drafts > 0 || o->flags.prefix_cache))) {
        return status_make(STATUS_USAGE,
                           "scheduler: a size is out of range: %d replicas, %d groups, %d blocks, "
                           "batch limit %d, %d tokens a step, chunk %d, %d drafts, context %d, %d "
                           "slots",
                           o->n_replicas, o->n_groups, o->n_blocks, o->flags.max_batch,
                           o->flags.step_tokens, o->flags.chunk_tokens, o->flags.n_drafts,
                           o->rules->max_model_len, o->n_state_slots);
    }
    if (o->n_blocks < n_needed) {
        return status_make(STATUS_USAGE,
                           "KV pool: expected room for one full context of %d tokens, %lld blocks "
                           "of %d, found %d; lower --max-model-len to at most %lld or give more "
                           "memory",
                           o->rules->max_model_len, (long long)n_needed, PLAN_BLOCK_TOKENS,
                           o->n_blocks, (long long)o->n_blocks * PLAN_BLOCK_TOKENS);
    }
    return status_ok();
}

struct status scheduler_create(const struct scheduler_options *options, struct serve_summary *stats,
                               struct scheduler **out)
{
    *out = NULL;
    struct scheduler_options o = *options;
    settle_options(&o);
    TRY(check_options(&o));
    struct scheduler *s = NULL;
    TRY(mem_alloc(&s, 1, sizeof *s, "scheduler"));
    struct status st;
    s->o = o;
    s->budget = s->o.flags.step_tokens;
    s->bound = (struct step_bound){s->o.flags.step_ns, s->budget};
    s->eased = (struct step_bound){s->o.eased_step_ns, s->budget};
    s->predicted_odds = drafting_predicted_odds(&(struct drafting){0});
    s->stats = stats;
    const size_t n = (size_t)options->n_replicas;
    TRY_GOTO(st, mem_alloc(&s->replicas, n, sizeof *s->replicas, "scheduler"), fail);
    for (size_t i = 0; i < n; i++) {
        struct replica *r = &s->replicas[i];
        const int32_t n_cacheable = s->o.flags.prefix_cache ? options->n_blocks : 0;
        TRY_GOTO(st, block_pool_init(&r->pool, options->n_blocks), fail);
        const int32_t n_on_disk = s->o.flags.prefix_cache ? s->o.n_tier_slots : 0;
        TRY_GOTO(st, tier_index_init(&r->tier, n_on_disk, plan_tables_count(&s->o.tables)), fail);
        TRY_GOTO(st, block_pool_init(&r->slots, options->n_state_slots), fail);
        TRY_GOTO(st, prefix_cache_init(&r->cache, n_cacheable, &s->o.tables), fail);
        TRY_GOTO(st,
                 mem_alloc(&r->groups, (size_t)options->n_groups, sizeof *r->groups, "scheduler"),
                 fail);
    }
    *out = s;
    return st;
fail:
    scheduler_destroy(&s);
    return st;
}

void scheduler_destroy(struct scheduler **scheduler)
{
    struct scheduler *s = *scheduler;
    if (s == NULL) return;
    sequence_list_clear(&s->waiting);
    sequence_list_clear(&s->finished);
    for (int32_t i = 0; s->replicas != NULL && i < s->o.n_replicas; i++) {
        struct replica *r = &s->replicas[i];
        for (int32_t g = 0; r->groups != NULL && g < s->o.n_groups; g++) {
            sequence_list_clear(&r->groups[g].running);
            mem_free(&r->groups[g].flight);
        }
        mem_free(&r->groups);
        prefix_cache_fini(&r->cache);
        tier_index_fini(&r->tier);
        mem_free(&r->reads);
        block_pool_fini(&r->slots);
        block_pool_fini(&r->pool);
    }
    mem_free(&s->replicas);
    adjusts_fini(&s->draft_adjusts);
    mem_free(&s->model_asks.asks);
    mem_free(&s->model_asks.of);
    mem_free(&s->model_asks.odds);
    mem_free(&s->allowed);
    mem_free(&s->table);
    mem_free(scheduler);
}

struct status scheduler_submit(struct scheduler *s, struct request *r)
{
    struct sequence *q = NULL;
    const struct status st = sequence_create(r, &q);
    if (status_failed(&st)) {
        request_destroy(&r);
        return st;
    }
    q->id = (int32_t)(s->n_submitted++ & INT32_MAX);
    q->slot = -1;
    s->n_streams += r->ask->streams;
    *(request_runs_last(r) ? &s->n_last : &s->n_others) += 1;
    const uint64_t now = clock_ns();
    if (!request_runs_last(r)) s->came_ns = now;
    if (r->arrived_ns == 0) r->arrived_ns = now;
    sequence_list_put_from_tail(&s->waiting, q);
    return st;
}

bool scheduler_wants_more(const struct scheduler *s)
{
    /* enough to fill the next steps, but few enough that reading does not delay a step */
    const size_t n_ahead = 64;
    return s->waiting.n < n_ahead + s->n_running;
}

bool scheduler_is_idle(const struct scheduler *s)
{
    return s->waiting.n == 0 && s->n_running == 0;
}

struct scheduler_load scheduler_load(const struct scheduler *s)
{
    struct scheduler_load load = {.n_waiting = s->waiting.n, .n_running = s->n_running};
    for (int32_t i = 0; i < s->o.n_replicas; i++) {
        load.n_free_blocks += replica_n_free(&s->replicas[i]);
        load.n_blocks += s->replicas[i].pool.n_blocks;
    }
    return load;
}

/* Visits a list; with `begun`, only the requests that have had a step. */
static struct status visit_list(const struct sequence_list *l, bool begun,
                                struct status (*visit)(void *user, struct request *r), void *user)
{
    for (struct sequence *q = l->head; q != NULL; q = q->next)
        if (!begun || q->first_plan_ns > 0) TRY(visit(user, q->r));
    return status_ok();
}

struct status scheduler_visit(struct scheduler *s, int32_t group,
                              struct status (*visit)(void *user, struct request *r), void *user)
{
    for (int32_t i = 0; i < s->o.n_replicas; i++) {
        for (int32_t g = 0; g < s->o.n_groups; g++) {
            if (group >= 0 && g != group) continue;
            TRY(visit_list(&s->replicas[i].groups[g].running, false, visit, user));
        }
    }
    return visit_list(&s->waiting, group >= 0, visit, user);
}

struct request *scheduler_take_finished(struct scheduler *s)
{
    struct sequence *q = s->finished.head;
    if (q == NULL) return NULL;
    struct request *r = q->r;
    sequence_list_take(&s->finished, q);
    q->r = NULL;
    sequence_destroy(&q);
    return r;
}

void scheduler_leave(struct scheduler *s, struct sequence *q)
{
    struct replica *replica = &s->replicas[q->replica];
    struct microbatch *m = &replica->groups[q->group];
    sequence_list_take(&m->running, q);
    scheduler_tier_leave(s, q);
    scheduler_release_blocks(s, q);
    if (q->slot >= 0) block_pool_give(&replica->slots, &q->slot, 1);
    q->slot = -1;
    q->n_computed = 0;
    drafting_fini(&q->drafting);
    replica->n_running--;
    s->n_running--;
}

void scheduler_wait_again(struct scheduler *s, struct sequence *q)
{
    scheduler_leave(s, q);
    q->state = SEQUENCE_WAITING;
    sequence_list_put_from_head(&s->waiting, q);
}

/* Makes a sequence wait again, even one that is in flight in another group. That is safe: its step
 * was planned before any plan that reuses its blocks or its slot, so every rank has used them by
 * then, and its token is still valid. Recurrent states are computed again from the first token. */
static void preempt(struct scheduler *s, struct sequence *q)
{
    struct replica *replica = &s->replicas[q->replica];
    if (!q->in_flight) { /* the step being planned may have given it rows */
        replica->groups[q->group].n_rows -= q->n_rows;
        q->n_rows = 0;
    }
    scheduler_tier_want(s, q);
    s->stats->n_preemptions++;
    replica->n_kept += s->o.n_blocks / KEPT_PART + 1;
    if (replica->n_kept > s->o.n_blocks / 2) replica->n_kept = s->o.n_blocks / 2;
    replica->n_calm = 0;
    scheduler_wait_again(s, q);
}

static struct sequence *youngest(const struct scheduler *s, const struct replica *replica)
{
    struct sequence *found = NULL;
    for (int32_t g = 0; g < s->o.n_groups; g++) {
        struct sequence *tail = replica->groups[g].running.tail;
        if (tail != NULL && (found == NULL || sequence_is_before(found, tail))) found = tail;
    }
    return found;
}

/* Gets the blocks of a running request: in full tables for all its tokens, in windowed tables up to
 * its next n_rows. While too few blocks are free, preempts the youngest request. If that is q
 * itself, q waits again, and q->state is not SEQUENCE_RUNNING. */
static struct status hold_blocks(struct scheduler *s, struct sequence *q, size_t n_rows)
{
    struct replica *replica = &s->replicas[q->replica];
    const size_t n_full = (size_t)scheduler_blocks_for(q->r->n_tokens);
    const size_t n_window = (size_t)scheduler_blocks_for(q->n_computed + n_rows);
    while (replica_n_free(replica) < scheduler_blocks_lacking(s, q, n_full, n_window)) {
        struct sequence *victim = youngest(s, replica);
        preempt(s, victim);
        if (victim == q) return status_ok();
    }
    return scheduler_take_blocks(s, q, n_full, n_window);
}

/* Returns the number of q's next rows that may be computed in one step. In a step either all rows
 * of a sequence give log-probabilities or none does; rows that give none need no logits. So when
 * log-probabilities begin late in a prompt, a step ends before the first of them. */
static size_t n_in_one_chunk(const struct scheduler *s, const struct sequence *q)
{
    const size_t n_least = PLAN_BLOCK_TOKENS; /* fewer rows are not worth a step of their own */
    const size_t n_left = q->r->n_tokens - q->n_computed;
    if (q->r->ask->n_prompt_tops < 0 || s->o.logits != NULL) return n_left;
    const size_t first = q->r->logprobs.score_from - 1;
    return first >= q->n_computed + n_least ? first - q->n_computed : n_left;
}

/* True when q's tokens must be computed in one step, and the step being planned has too little room
 * for them. A later step has room: its oldest sequence comes first, and no text is longer than a
 * step. */
static bool must_wait(const struct scheduler *s, const struct sequence *q, size_t left)
{
    const struct embed_rules *e = s->o.rules->embed;
    return e != NULL && e->is_whole && q->r->n_tokens > left;
}

/* Gives q rows for tokens that are not computed yet, within the chunk and the step's budget, and
 * the blocks for these rows. */
static struct status give_rows(struct scheduler *s, struct microbatch *m, struct sequence *q)
{
    size_t n = n_in_one_chunk(s, q);
    const size_t left = m->n_rows < s->budget ? (size_t)(s->budget - m->n_rows) : 0;
    if (must_wait(s, q, left)) return status_ok();
    if (n > (size_t)s->o.flags.chunk_tokens) n = (size_t)s->o.flags.chunk_tokens;
    if (n > left) n = left;
    TRY(hold_blocks(s, q, n));
    if (q->state != SEQUENCE_RUNNING) return status_ok();
    q->n_rows = (int32_t)n;
    m->n_rows += (int32_t)n;
    return status_ok();
}

/* Returns the sequence to look at after q. prev: q's predecessor before q was looked at; q or
 * younger sequences may have been preempted since. */
static struct sequence *after(const struct microbatch *m, struct sequence *q, struct sequence *prev)
{
    if (q->state == SEQUENCE_RUNNING) return q->next;
    return prev != NULL ? prev->next : m->running.head;
}

/* Plans decode rows first, the oldest first; prefill chunks get the rest of the budget. */
static struct status plan_running(struct scheduler *s, struct microbatch *m)
{
    m->n_rows = 0;
    for (struct sequence *q = m->running.head; q != NULL; q = q->next) q->n_rows = 0;
    struct sequence *q = m->running.head;
    while (q != NULL) {
        struct sequence *prev = q->prev;
        if (q->r->n_tokens - q->n_computed == 1 && q->n_arriving == 0) TRY(give_rows(s, m, q));
        q = after(m, q, prev);
    }
    q = m->running.head;
    while (q != NULL) {
        struct sequence *prev = q->prev;
        if (q->n_rows == 0 && q->n_arriving == 0) {
            TRY(scheduler_prefix_adopt(s, q));
            if (!scheduler_prefix_is_coming(s, q)) TRY(give_rows(s, m, q));
        }
        q = after(m, q, prev);
    }
    return status_ok();
}

/* Returns the number of sequences that a group of a replica may run: an even share of all
 * sequences, so that every group in flight has work, but no more than an even share of --max-batch.
 */
static size_t group_share(const struct scheduler *s)
{
    const size_t n_groups = (size_t)s->o.n_groups;
    const size_t n_shares = (size_t)s->o.n_replicas * n_groups;
    size_t share = (s->n_running + s->waiting.n + n_shares - 1) / n_shares;
    if (s->o.flags.max_batch > 0) {
        const size_t limit = ((size_t)s->o.flags.max_batch + n_groups - 1) / n_groups;
        if (share > limit) share = limit;
    }
    return share;
}

/* True when q can start in this group of this replica. The replica must have free blocks for all
 * tokens of q that it does not share, plus a hundredth of the pool and the blocks kept because of
 * preemptions. A group may use at most its part of the pool. Neither rule holds back the only
 * sequence of a replica or group. */
static bool fits(const struct scheduler *s, const struct replica *replica,
                 const struct microbatch *m, const struct sequence *q,
                 const struct prefix_match *match)
{
    const int64_t n_blocks = s->o.n_blocks;
    const int64_t n_needed = scheduler_blocks_held(s, q->r->n_tokens) - match->n_shared;
    const int64_t spare = replica->n_running == 0 ? 0 : n_blocks / 100 + replica->n_kept;
    const int64_t part = (n_blocks + s->o.n_groups - 1) / s->o.n_groups;
    if (m->n_rows >= s->budget || m->running.n >= group_share(s)) return false;
    if (s->o.flags.max_batch > 0 && replica->n_running >= (size_t)s->o.flags.max_batch)
        return false;
    if (s->o.n_state_slots > 0 && replica->slots.n_free == 0) return false;
    if (m->running.n > 0 && m->n_blocks + n_needed > part) return false;
    return replica_n_free(replica) - match->n_idle >= n_needed + spare;
}

/* Chooses a replica in which q fits: the one that has or computes most of q's prefix, then the one
 * with the fewest running sequences, then the one with the most free blocks. Because of `fits` each
 * replica gets at most an even share, so a common prefix does not leave replicas idle. */
static struct replica *choose_replica(struct scheduler *s, int32_t group, const struct sequence *q)
{
    struct replica *best = NULL;
    size_t n_best = 0;
    for (int32_t i = 0; i < s->o.n_replicas; i++) {
        struct replica *replica = &s->replicas[i];
        const struct prefix_match match = scheduler_prefix_match(s, replica, q);
        if (!fits(s, replica, &replica->groups[group], q, &match)) continue;
        bool better = best == NULL || match.n_coming > n_best;
        if (!better && match.n_coming == n_best) {
            better = replica->n_running < best->n_running ||
                     (replica->n_running == best->n_running &&
                      replica_n_free(replica) > replica_n_free(best));
        }
        if (better) best = replica;
        if (better) n_best = match.n_coming;
    }
    return best;
}

/* Starts waiting requests in order. Stops at a request that was preempted while in flight, until
 * its token has come. */
static struct status admit(struct scheduler *s, int32_t group)
{
    for (;;) {
        struct sequence *q = s->waiting.head;
        if (q == NULL || q->in_flight) return status_ok();
        TRY(scheduler_prefix_keys(s, q));
        struct replica *replica = choose_replica(s, group, q);
        if (replica == NULL) return status_ok();
        struct microbatch *m = &replica->groups[group];
        q->replica = (int32_t)(replica - s->replicas);
        q->group = group;
        const size_t n_needed = (size_t)scheduler_blocks_for(q->r->n_tokens);
        TRY(scheduler_grow_table(s, q, n_needed));
        TRY(scheduler_prefix_adopt(s, q));
        TRY(scheduler_tier_fetch(s, q));
        TRY(scheduler_take_blocks(s, q, n_needed, 0));
        q->n_wanted = 0;
        q->slot = block_pool_take(&replica->slots);
        sequence_list_take(&s->waiting, q);
        sequence_list_put_from_tail(&m->running, q);
        q->state = SEQUENCE_RUNNING;
        replica->n_running++;
        if (replica->n_running > s->stats->n_peak_batch)
            s->stats->n_peak_batch = replica->n_running;
        s->stats->n_admissions++;
        s->n_running++;
        q->n_rows = 0;
        if (q->n_arriving == 0 && !scheduler_prefix_is_coming(s, q)) TRY(give_rows(s, m, q));
    }
}

/* True when someone may see how long the next step takes (scheduler_plan). */
static bool step_is_seen(const struct scheduler *s)
{
    const uint64_t calm_ns = 60000000000u;
    if (s->o.eased_step_ns == 0 || s->n_streams > 0) return true;
    if (s->n_last == 0) return false;
    return s->n_others > 0 || (s->came_ns > 0 && clock_ns() - s->came_ns < calm_ns);
}

static void choose_budget(struct scheduler *s)
{
    const struct step_bound *b = step_is_seen(s) ? &s->bound : &s->eased;
    s->budget = b->rows;
    if (b->most_ns == 0) return;
    if (s->stats->n_least_step_rows == 0 || (uint64_t)b->rows < s->stats->n_least_step_rows)
        s->stats->n_least_step_rows = (uint64_t)b->rows;
}

/* Keeps fewer blocks free after CALM_PLANS plans without a preemption. */
static void calm_down(struct replica *replica)
{
    if (replica->n_kept == 0 || ++replica->n_calm < CALM_PLANS) return;
    replica->n_kept -= replica->n_kept / 8 + 1;
    replica->n_calm = 0;
}

struct status scheduler_plan(struct scheduler *s, int32_t group, uint64_t step,
                             struct step_plan *plan)
{
    step_plan_clear(plan, PLAN_RUN, step);
    s->plan = plan;
    choose_budget(s);
    for (int32_t i = 0; i < s->o.n_replicas; i++) {
        struct replica *replica = &s->replicas[i];
        if (replica->groups[group].n_flight > 0) {
            return status_make(STATUS_BUG,
                               "step %llu: group %d is planned before replica %d's result of step "
                               "%llu was committed",
                               (unsigned long long)step, group, i,
                               (unsigned long long)replica->groups[group].step);
        }
        TRY(plan_running(s, &replica->groups[group]));
        calm_down(replica);
    }
    TRY(admit(s, group));
    TRY(scheduler_give_drafts(s, group));
    plan->predicts = scheduler_predicts(s, group);
    for (int32_t i = 0; i < s->o.n_replicas; i++) {
        TRY(scheduler_emit(s, i, group, step, plan));
    }
    TRY(scheduler_tier_ask(s));
    s->plan = NULL;
    if (plan->n_seqs > 0) s->stats->n_steps++;
    return status_ok();
}
