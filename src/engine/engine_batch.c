/* A plan's sequences on this rank: the rows of its replica, the last stage's wants of each row
 * (logits, tokens, guesses, pools), and the results. Sends and receives nothing. */
#include "engine/engine_private.h"

#include "base/mem.h"
#include "kernels/device.h"

#include <math.h>
#include <string.h>

_Static_assert((int)PLAN_BLOCK_TOKENS == (int)KV_BLOCK_TOKENS,
               "plans and caches have one block size");

/* True when the entry s continues the run of rows before it. Each draft token is an entry of one
 * row; joined to one run, their attention reads the cache once, as for a chunk of a prompt. Two
 * sequences never write into the same block, so equal last blocks mean the same sequence. */
static bool goes_on(const struct seq_rows *run, const struct plan_seq *s, const int32_t *blocks)
{
    const size_t end = run->pos0 + run->n_rows, last = (end - 1) / PLAN_BLOCK_TOKENS;
    return end == (size_t)s->pos0 && run->blocks[last] == blocks[last];
}

/* The blocks of a plan's entry, table after table. */
struct entry_tables {
    const int32_t *at[KV_GROUPS_MAX]; /* indexed by a position's block; windowed tables are valid
                                         from the entry's first block on */
};

/* Finds an entry's tables. A windowed table has no entries before first_block. So that it can be
 * indexed by a position's block anyway, it is copied to e->windowed at *free, which is at least
 * first_block, and the pointer to it starts first_block earlier. Errors: STATUS_BUG. */
static struct status find_tables(struct engine *e, const struct plan_seq *s, const int32_t *blocks,
                                 size_t *free, struct entry_tables *out)
{
    const size_t end = (size_t)s->pos0 + (size_t)s->n_rows;
    const size_t n = (end + PLAN_BLOCK_TOKENS - 1) / PLAN_BLOCK_TOKENS;
    const size_t first = (size_t)s->first_block, n_full = e->groups.n_full;
    const size_t n_windowed = e->groups.n_windowed;
    if (s->first_block < 0 || first >= n || (n_windowed == 0 && first > 0) ||
        n_full * n + n_windowed * (n - first) != (size_t)s->n_blocks) {
        return status_make(STATUS_BUG, "%d blocks from block %d on for %zu positions", s->n_blocks,
                           s->first_block, end);
    }
    for (size_t t = 0; t < n_full; t++, blocks += n) out->at[t] = blocks;
    for (size_t t = n_full; t < n_full + n_windowed; t++, blocks += n - first) {
        memcpy(e->windowed + *free, blocks, (n - first) * sizeof *blocks);
        out->at[t] = e->windowed + *free - first;
        *free += n - first;
    }
    return status_ok();
}

/* Makes room for the windowed tables of a plan's entries. *free: the place of the first one in
 * e->windowed. */
static struct status place_windowed(struct engine *e, const struct plan_seq *seqs, size_t n_seqs,
                                    size_t *free)
{
    size_t most = 0, n = 0;
    for (size_t i = 0; i < n_seqs; i++) {
        if (seqs[i].first_block > 0 && (size_t)seqs[i].first_block > most)
            most = (size_t)seqs[i].first_block;
        n += (size_t)seqs[i].n_blocks;
    }
    *free = most;
    if (e->groups.n_windowed == 0 || most + n <= e->windowed_capacity) return status_ok();
    TRY(mem_grow(&e->windowed, 0, 2 * (most + n), sizeof *e->windowed, "engine"));
    e->windowed_capacity = 2 * (most + n);
    return status_ok();
}

/* Adds an entry to the step's runs of rows. */
static void add_run(struct engine *e, struct batch *b, const struct plan_seq *s,
                    const struct entry_tables *tables)
{
    const size_t n_tables = e->groups.n_full + e->groups.n_windowed;
    const bool joins = b->n_runs > 0 && goes_on(&e->seqs[b->n_runs - 1], s, tables->at[0]);
    for (size_t t = 0; t < n_tables; t++) {
        struct seq_rows *run = &e->seqs[t * e->o.max_rows + b->n_runs];
        if (joins) {
            run[-1].n_rows += (size_t)s->n_rows;
            run[-1].blocks = tables->at[t]; /* the longer table */
            continue;
        }
        *run = (struct seq_rows){.row0 = b->n_rows,
                                 .n_rows = (size_t)s->n_rows,
                                 .pos0 = (size_t)s->pos0,
                                 .blocks = tables->at[t],
                                 .slot = (uint32_t)s->slot};
    }
    if (joins) return;
    e->second_from[b->n_runs] = s->second_from;
    e->adapters[b->n_runs++] = s->adapter;
}

struct status engine_open_batch(struct engine *e, const struct step_plan *plan, struct batch *out)
{
    const size_t first = (size_t)plan->replica_begin[e->place.dp];
    const size_t last = (size_t)plan->replica_begin[e->place.dp + 1];
    size_t token = 0, block = 0, adjust = 0, allowed = 0, windowed;
    const size_t n_allowed_words = (e->o.layout->model.arch->vocab + 31) / 32;
    const uint32_t n_adapters = e->o.adapters != NULL ? (uint32_t)e->o.adapters->n : 0;
    for (size_t i = 0; i < first; i++) {
        token += (size_t)plan->seqs[i].n_rows;
        block += (size_t)plan->seqs[i].n_blocks;
        adjust += (size_t)plan->seqs[i].n_adjusts;
        allowed += (size_t)plan->seqs[i].n_allowed_words;
    }
    *out = (struct batch){.seqs = plan->seqs + first,
                          .n_seqs = last - first,
                          .blocks = plan->blocks + block,
                          .tokens = plan->tokens + token,
                          .adjusts = plan->adjusts + adjust,
                          .allowed = plan->allowed + allowed};
    TRY(place_windowed(e, out->seqs, out->n_seqs, &windowed));
    for (size_t i = first; i < last; i++) {
        const struct plan_seq *s = &plan->seqs[i];
        if (s->n_allowed_words != 0 && (size_t)s->n_allowed_words != n_allowed_words) {
            return status_make(STATUS_BUG, "step %llu: %d words of allowed tokens, expected %zu",
                               (unsigned long long)plan->step, s->n_allowed_words, n_allowed_words);
        }
        if (out->n_rows + (size_t)s->n_rows > e->o.max_rows || s->n_rows < 1) {
            return status_make(STATUS_BUG, "step %llu: a sequence of %d rows after %zu, limit %zu",
                               (unsigned long long)plan->step, s->n_rows, out->n_rows,
                               e->o.max_rows);
        }
        if (s->slot < 0 || (s->slot > 0 && (uint32_t)s->slot >= e->o.n_state_slots)) {
            return status_make(STATUS_BUG, "step %llu: state slot %d of %u",
                               (unsigned long long)plan->step, s->slot, e->o.n_state_slots);
        }
        if (s->adapter > n_adapters) {
            return status_make(STATUS_BUG, "step %llu: adapter %u of %u",
                               (unsigned long long)plan->step, s->adapter, n_adapters);
        }
        struct entry_tables tables;
        TRY(find_tables(e, s, plan->blocks + block, &windowed, &tables));
        add_run(e, out, s, &tables);
        out->n_rows += (size_t)s->n_rows;
        block += (size_t)s->n_blocks;
    }
    return status_ok();
}

/* Returns the token that follows row r of a sequence, -1 when the plan does not know it. */
static int32_t next_token(const struct plan_seq *s, const int32_t *tokens, int32_t r)
{
    return r + 1 < s->n_rows ? tokens[r + 1] : s->next_token;
}

/* Returns the vocab_want of a row that samples a token. */
static struct vocab_want sampled_want(const struct plan_seq *s, const struct plan_adjust *adjusts,
                                      const uint32_t *allowed)
{
    return (struct vocab_want){.want = s->want,
                               .target = s->next_token,
                               .pick = {.temperature = s->temperature,
                                        .top_p = s->top_p,
                                        .min_p = s->min_p,
                                        .top_k = s->top_k,
                                        .key = {s->key[0], s->key[1]},
                                        .choice = s->choice,
                                        .position = (uint32_t)(s->pos0 + s->n_rows)},
                               .adjust = {.penalties = s->penalties,
                                          .entries = adjusts,
                                          .n = (size_t)s->n_adjusts,
                                          .allowed = s->n_allowed_words > 0 ? allowed : NULL},
                               .n_top = (s->want & PLAN_LOGPROB) != 0 ? s->n_logprobs : 0};
}

/* Returns the vocab_want of a row that does not sample: its next token is scored (target; -1:
 * unknown), its logits are sent back, or both. */
static struct vocab_want scored_want(const struct plan_seq *s, int32_t target)
{
    const bool has_tops = (s->want & PLAN_SCORE) != 0 && target >= 0;
    return (struct vocab_want){.want = s->want & ~(PLAN_SAMPLE | PLAN_LOGPROB),
                               .target = target,
                               .n_top = has_tops ? s->n_prompt_logprobs : 0};
}

/* Gives the wanted rows room for their most likely tokens, in e->tops. */
static struct status place_tops(struct engine *e, size_t n_wants)
{
    size_t n = 0;
    for (size_t i = 0; i < n_wants; i++) n += (size_t)e->wants[i].n_top;
    if (n > e->tops_capacity) {
        TRY(mem_grow(&e->tops, 0, 2 * n, sizeof *e->tops, "engine"));
        e->tops_capacity = 2 * n;
    }
    for (size_t i = 0, at = 0; i < n_wants; at += (size_t)e->wants[i++].n_top) {
        e->wants[i].tops = e->tops + at;
    }
    return status_ok();
}

struct status engine_list_wants(struct engine *e, const struct batch *b, size_t *n_wants)
{
    size_t n = 0, row0 = 0;
    const struct plan_adjust *adjusts = b->adjusts;
    const uint32_t *allowed = b->allowed;
    for (size_t i = 0; i < b->n_seqs; i++) {
        const struct plan_seq *s = &b->seqs[i];
        const int32_t *tokens = b->tokens + row0;
        const bool all_rows = (s->want & (PLAN_SCORE | PLAN_LOGITS)) != 0;
        for (int32_t r = 0; r < s->n_rows; r++) {
            const bool samples = r + 1 == s->n_rows && (s->want & PLAN_SAMPLE) != 0;
            if (!all_rows && !samples) continue;
            e->rows[n] = row0 + (size_t)r;
            e->wants[n++] = samples ? sampled_want(s, adjusts, allowed)
                                    : scored_want(s, next_token(s, tokens, r));
        }
        adjusts += s->n_adjusts;
        allowed += s->n_allowed_words;
        row0 += (size_t)s->n_rows;
    }
    *n_wants = n;
    return place_tops(e, n);
}

void engine_list_guesses(struct engine *e, const struct batch *b, size_t n_wants)
{
    size_t row0 = 0, at = 0; /* at: in wants and got, which are in the order of the rows */
    e->guess.n = 0;
    for (size_t i = 0; i < b->n_seqs; i++) {
        const struct plan_seq *s = &b->seqs[i];
        for (int32_t r = 0; r < s->n_rows; r++) {
            const size_t row = row0 + (size_t)r;
            int32_t next = next_token(s, b->tokens + row0, r);
            const bool is_wanted = at < n_wants && e->rows[at] == row;
            if (is_wanted && (e->wants[at].want & PLAN_SAMPLE) != 0) {
                next = e->got[at].token;
                e->guess.rows[e->guess.n] = row;
                e->guess.wants[e->guess.n++] = (struct vocab_want){.want = PLAN_SAMPLE};
            }
            at += is_wanted;
            e->guess.next[row] = next < 0 ? 0 : next; /* 0: no token is known, or the draw failed */
        }
        row0 += (size_t)s->n_rows;
    }
}

static int32_t clamp_count(int64_t n)
{
    return n > INT32_MAX ? INT32_MAX : (int32_t)n;
}

struct status engine_write_result(struct engine *e, const struct batch *b, size_t n_wants)
{
    size_t at = 0; /* in wants and got, which are in the order of the rows */
    size_t t = 0, guess = 0;
    const struct plan_top *tops = e->tops;
    for (size_t i = 0; i < b->n_seqs; i++) {
        struct result_seq r = {
            .id = b->seqs[i].id, .token = -1, .draft = -1, .n_hidden = b->seqs[i].n_hidden};
        int64_t n_bad = 0, n_dropped = 0;
        const size_t row_end = t + (size_t)b->seqs[i].n_rows;
        for (; t < row_end; t++) {
            n_bad += e->pipe.counters[t];
            n_dropped += e->pipe.counters[b->n_rows + t];
        }
        for (; at < n_wants && e->rows[at] < row_end; at++) {
            n_bad += e->got[at].n_bad;
            r.n_tops += e->wants[at].n_top;
            if ((e->wants[at].want & PLAN_SAMPLE) != 0) {
                r.token = e->got[at].token;
                r.logprob = e->got[at].token_logprob;
                if (guess < e->guess.n) r.draft = e->guess.got[guess++].token;
            }
            if ((e->wants[at].want & PLAN_LOGITS) != 0) r.n_logits++;
            if ((e->wants[at].want & PLAN_SCORE) == 0 || e->wants[at].target < 0) continue;
            e->scores[r.n_scores++] = e->got[at].logprob;
        }
        r.n_bad = clamp_count(n_bad);
        r.n_dropped = clamp_count(n_dropped);
        TRY(step_result_add(&e->result.own, &r));
        TRY(step_result_add_scores(&e->result.own, e->scores, (size_t)r.n_scores));
        TRY(step_result_add_tops(&e->result.own, tops, (size_t)r.n_tops));
        tops += r.n_tops;
    }
    return status_ok();
}

/* Lists the rows of all pools in e->rows. Returns their number. */
static size_t list_pooled(struct engine *e, const struct batch *b)
{
    size_t n = 0, row0 = 0;
    for (size_t i = 0; i < b->n_seqs; i++) {
        const struct plan_seq *s = &b->seqs[i];
        const size_t n_pool = (s->want & PLAN_POOL) != 0 ? (size_t)s->n_pool : 0;
        for (size_t r = 0; r < n_pool; r++) e->rows[n++] = row0 + (size_t)s->pool_from + r;
        row0 += (size_t)s->n_rows;
    }
    return n;
}

struct status engine_normed_rows(struct engine *e, const struct hidden *h, const size_t *list,
                                 size_t n, const float **rows)
{
    const size_t width = e->o.model->width;
    stage_hidden_rows(e->stage, h, list, n, e->normed);
    *rows = e->normed;
    if (e->o.kern->device == NULL) return status_ok();
    if (e->pooled == NULL)
        TRY(mem_alloc(&e->pooled, e->o.max_rows * width, sizeof *e->pooled, "pooled rows"));
    mem_ops_get(e->o.kern, e->pooled, e->normed, n * width * sizeof *e->pooled);
    *rows = e->pooled;
    return device_status(e->o.kern->device);
}

/* Adds row x [n] to a pool, except values that the grid cannot hold. Returns how many these are. */
static int64_t pool_row(const float *x, size_t n, int64_t *pool)
{
    int64_t n_bad = 0;
    for (size_t i = 0; i < n; i++) {
        const bool fits = fabsf(x[i]) <= (float)PLAN_POOL_MOST; /* false for a NaN */
        n_bad += !fits;
        if (fits) pool[i] += (int64_t)rint((double)x[i] * (double)(1 << PLAN_POOL_BITS));
    }
    return n_bad;
}

struct status engine_write_pools(struct engine *e, const struct batch *b, const struct hidden *h)
{
    const size_t width = e->o.model->width, n = list_pooled(e, b);
    const float *row;
    e->result.own.width = (int32_t)width;
    if (n == 0) return status_ok();
    TRY(engine_normed_rows(e, h, e->rows, n, &row));
    for (size_t i = 0; i < b->n_seqs; i++) {
        const struct plan_seq *s = &b->seqs[i];
        struct result_seq *r = &e->result.own.seqs[i];
        if ((s->want & PLAN_POOL) == 0) continue;
        int64_t *pool, n_bad = r->n_bad;
        TRY(step_result_add_pool(&e->result.own, &pool));
        r->n_pools = 1;
        for (int32_t k = 0; k < s->n_pool; k++, row += width) n_bad += pool_row(row, width, pool);
        r->n_bad = clamp_count(n_bad);
    }
    return status_ok();
}
