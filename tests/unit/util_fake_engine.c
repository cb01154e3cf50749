/* An engine that computes with integers: see util_fake_engine.h. */
#include "util_fake_engine.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64 };

#define FLAG_OWNER struct schedule_flags
static const struct flag schedule_rows[] = {SCHEDULE_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER

struct schedule_flags fake_schedule_flags(void)
{
    const struct flag_group group = FLAG_GROUP(schedule_rows, 0);
    const struct flag_table table = {.groups = &group, .n_groups = 1};
    struct schedule_flags flags = {0};
    flags_preset(&table, &flags);
    flags.step_tokens = FAKE_STEP_TOKENS;
    flags.n_drafts = 0;
    flags.prefix_cache = false;
    return flags;
}

uint64_t fake_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15u + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9u;
    x ^= x >> 29;
    x *= 0x94D049BB133111EBu;
    return x ^ (x >> 32);
}

/* The cache entry of a token, which depends on the entry before it. */
static uint64_t entry(uint64_t before, int32_t token, int64_t position)
{
    return mix(mix(before, (uint64_t)token), (uint64_t)position);
}

/* The entry before a sequence's first one: rows of another adapter have other keys and values. */
static uint64_t first_entry(uint32_t adapter)
{
    return 1 + adapter;
}

/* Draws a token: one in 40 is an end token, most others are printable. */
static int32_t draw(uint64_t fold, int64_t position, const struct plan_seq *s, uint64_t adjusts)
{
    uint64_t h = mix(fold, (uint64_t)position);
    if (s->temperature > 0) h = mix(mix(h, s->key[0]), s->key[1]);
    if (s->temperature > 0 && s->choice > 0) h = mix(h, s->choice);
    if (adjusts != 0) h = mix(h, adjusts);
    if (h % 40 == 0) return FAKE_END_ID;
    return h % 3 == 0 ? (int32_t)(h / 40 % FAKE_END_ID) : (int32_t)(' ' + h / 40 % 95);
}

/* Returns the first allowed token from `token` on, continuing at token 0 after the last one. If
 * none is allowed, returns `token`. */
static int32_t allowed_from(int32_t token, const uint32_t *allowed)
{
    for (int32_t i = 0; i < FAKE_VOCAB; i++) {
        const int32_t id = (token + i) % FAKE_VOCAB;
        if (allowed[id / 32] >> (id % 32) & 1) return id;
    }
    return token;
}

/* Hashes a sequence's penalties and adjusts; 0 if it has none. */
static uint64_t mix_adjusts(const struct plan_seq *s, const struct plan_adjust *adjusts)
{
    uint64_t h = 0;
    if (s->penalties.repetition != 1 || s->penalties.frequency != 0 || s->penalties.presence != 0)
        h = mix(1, (uint64_t)(s->penalties.repetition * 1000 + s->penalties.frequency * 100 +
                              s->penalties.presence * 10 + 500));
    for (int32_t i = 0; i < s->n_adjusts; i++) {
        const struct plan_adjust *a = &adjusts[i];
        h = mix(h, (uint64_t)a->id << 32 | (uint32_t)a->n_sampled);
        h = mix(h, (uint64_t)(a->bias * 8 + 2000) << 8 | a->flags);
    }
    return h;
}

static float score_of(uint64_t fold, int32_t next)
{
    return -(float)(mix(fold, (uint64_t)next) % 100000) / 8192.0f;
}

static void wrong(struct fake_engine *e, const char *what)
{
    if (e->n_wrong++ == 0) e->wrong = what;
}

void fake_engine_init(struct fake_engine *e, int32_t n_replicas, int32_t n_blocks)
{
    *e = (struct fake_engine){.n_replicas = n_replicas, .n_blocks = n_blocks, .bad_token = -1};
    e->bad_position = 1;
    e->tables.n_full = 1;
    const size_t n = (size_t)n_replicas * (size_t)n_blocks;
    struct status st = mem_alloc(&e->cache, n * BLOCK, sizeof *e->cache, "fake cache");
    assert(!status_failed(&st));
    e->seqs = malloc(FAKE_SEQS * sizeof *e->seqs); /* cleared when a sequence comes */
    if (e->seqs == NULL) abort();
    st = mem_alloc(&e->is_known, FAKE_SEQS, sizeof *e->is_known, "fake sequences");
    assert(!status_failed(&st));
    st = mem_alloc(&e->owner, n, sizeof *e->owner, "fake owners");
    assert(!status_failed(&st));
    st = mem_alloc(&e->used, (size_t)n_blocks, sizeof *e->used, "fake blocks");
    assert(!status_failed(&st));
    for (size_t i = 0; i < n; i++) e->owner[i] = -1;
}

void fake_engine_fini(struct fake_engine *e)
{
    mem_free(&e->cache);
    free(e->seqs);
    e->seqs = NULL;
    mem_free(&e->is_known);
    mem_free(&e->owner);
    mem_free(&e->used);
    mem_free(&e->disk);
    mem_free(&e->reads);
}

void fake_engine_add_tier(struct fake_engine *e, int32_t n_slots)
{
    const size_t n = (size_t)e->n_replicas;
    struct status st =
        mem_alloc(&e->disk, n * (size_t)n_slots * BLOCK, sizeof *e->disk, "fake disk");
    assert(!status_failed(&st));
    st = mem_alloc(&e->reads, n * FAKE_READS, sizeof *e->reads, "fake disk");
    assert(!status_failed(&st));
    e->n_tier_slots = n_slots;
    e->chance = (uint64_t)n_slots * 7919;
}

static uint64_t *slot(struct fake_engine *e, int32_t replica, const int32_t *blocks, int64_t pos)
{
    const int64_t block = (int64_t)replica * e->n_blocks + blocks[pos / BLOCK];
    return &e->cache[block * BLOCK + pos % BLOCK];
}

/* Folds all that attention would read at `pos` into one number. */
static uint64_t fold_cache(struct fake_engine *e, int32_t replica, const int32_t *blocks,
                           int64_t pos)
{
    uint64_t fold = 0;
    for (int64_t i = 0; i <= pos; i++) fold += mix(*slot(e, replica, blocks, i), (uint64_t)i);
    return fold;
}

/* Returns the number of blocks in each full table of a sequence. */
static int32_t blocks_of(const struct plan_seq *s)
{
    return (s->pos0 + s->n_rows + BLOCK - 1) / BLOCK;
}

/* Returns the number of the block in entry b of a sequence's tables, counted in the sequence from
 * position 0. */
static int32_t place_of(const struct fake_engine *e, const struct plan_seq *s, int32_t b)
{
    const int32_t n = blocks_of(s), n_full = e->tables.n_full;
    if (b < n_full * n) return b % n;
    return s->first_block + (b - n_full * n) % (n - s->first_block);
}

/* Returns table t of a sequence, indexed by the number of a block in the sequence. Only entries
 * from first_block on may be read in a windowed table. */
static const int32_t *table_at(const struct fake_engine *e, const struct plan_seq *s,
                               const int32_t *blocks, int32_t t)
{
    const int32_t n = blocks_of(s), n_full = e->tables.n_full;
    if (t < n_full) return blocks + (int64_t)t * n;
    return blocks + (int64_t)n_full * n + (int64_t)(t - n_full) * (n - s->first_block) -
           s->first_block;
}

/* The first position that the row at pos sees in table t. */
static int64_t seen_from(const struct fake_engine *e, int32_t t, int64_t pos)
{
    const int64_t first = pos + 1 - e->tables.window;
    return t < e->tables.n_full || first < 0 ? 0 : first;
}

/* Writes a row's entry into all tables. */
static void write_entry(struct fake_engine *e, int32_t replica, const struct plan_seq *s,
                        const int32_t *blocks, int64_t pos, uint64_t value)
{
    *slot(e, replica, blocks, pos) = value;
    for (int32_t t = 1; t < plan_tables_count(&e->tables); t++)
        *slot(e, replica, table_at(e, s, blocks, t), pos) = mix(value, (uint64_t)t);
}

/* Checks, after a sequence's rows are written, that all tables but the first have the entries of
 * all positions that these rows see. */
static void check_tables(struct fake_engine *e, int32_t replica, const struct plan_seq *s,
                         const int32_t *blocks)
{
    for (int32_t t = 1; t < plan_tables_count(&e->tables); t++) {
        const int32_t *table = table_at(e, s, blocks, t);
        for (int64_t i = seen_from(e, t, s->pos0); i < s->pos0 + s->n_rows; i++) {
            if (*slot(e, replica, table, i) != mix(*slot(e, replica, blocks, i), (uint64_t)t))
                wrong(e, "a block of another table has other rows");
        }
    }
}

/* Whether the sequence continues after the first row of its last plan or later, or in the same plan
 * after its last row. The rows in between were draft tokens, and may have been wrong. */
static bool goes_on(const struct fake_seq *seen, const struct plan_seq *s, uint64_t step)
{
    if (seen->step == step) return s->pos0 == seen->end;
    return s->pos0 == seen->end || (s->pos0 > seen->begin && s->pos0 < seen->end);
}

/* A sequence that continues must have the blocks of its last plan, and no other sequence may have
 * been given them. */
static void check_continued(struct fake_engine *e, int32_t replica, const struct plan_seq *s,
                            const struct fake_seq *seen, const int32_t *blocks, uint64_t step)
{
    if (!goes_on(seen, s, step)) wrong(e, "a sequence does not go on where it stopped");
    if (seen->replica != replica) wrong(e, "a sequence changed its replica");
    for (int32_t i = 0; i < seen->n_blocks && i < blocks_of(s); i++) {
        if (seen->blocks[i] != blocks[i]) wrong(e, "a block table changed");
        if (e->owner[(int64_t)replica * e->n_blocks + blocks[i]] != s->id)
            wrong(e, "another sequence was given a block still in use");
    }
}

/* With shared blocks, a sequence continues where it stopped or after full blocks, and must still
 * own the block to which it appends. The content of full blocks is checked through the tokens that
 * follow from it. */
static void check_shared(struct fake_engine *e, int32_t replica, const struct plan_seq *s,
                         const struct fake_seq *seen, const int32_t *blocks, uint64_t step)
{
    if (s->pos0 % BLOCK == 0) return;
    const int32_t at = s->pos0 / BLOCK;
    if (!goes_on(seen, s, step)) wrong(e, "a sequence does not go on where it stopped");
    if (seen->replica != replica) wrong(e, "a sequence changed its replica");
    if (seen->n_blocks <= at || seen->blocks[at] != blocks[at])
        wrong(e, "a block that is not full was exchanged");
    if (e->owner[(int64_t)replica * e->n_blocks + blocks[at]] != s->id)
        wrong(e, "another sequence was given a block still in use");
}

/* Checks that a sequence begins anew or continues as check_shared or check_continued demands, and
 * that its tables have exactly the blocks that its rows need. Returns false if the sequence cannot
 * be run. */
static bool check_seq(struct fake_engine *e, int32_t replica, const struct plan_seq *s,
                      const int32_t *blocks, uint64_t step)
{
    struct fake_seq *seen = &e->seqs[s->id % FAKE_SEQS];
    if (!e->is_known[s->id % FAKE_SEQS]) *seen = (struct fake_seq){0};
    e->is_known[s->id % FAKE_SEQS] = true;
    const int32_t end = s->pos0 + s->n_rows;
    const uint64_t n_before = e->n_wrong;
    const int32_t n = blocks_of(s);
    if (s->n_rows < 1) wrong(e, "a sequence without rows");
    if (s->n_blocks != e->tables.n_full * n + e->tables.n_windowed * (n - s->first_block))
        wrong(e, "a table of another length than needed");
    if (e->tables.n_windowed > 0 && s->first_block * BLOCK > s->pos0 + 1 - e->tables.window &&
        s->first_block > 0)
        wrong(e, "a windowed table begins behind a position that a row sees");
    if (n > FAKE_TABLE) wrong(e, "a table longer than the context");
    for (int32_t i = 0; i < s->n_blocks; i++)
        if (blocks[i] < 0 || blocks[i] >= e->n_blocks) wrong(e, "a block id out of range");
    if (e->n_wrong != n_before) return false;
    if (s->pos0 > 0)
        (e->shares ? check_shared : check_continued)(e, replica, s, seen, blocks, step);
    for (int32_t i = 0; i < s->n_blocks; i++)
        e->owner[(int64_t)replica * e->n_blocks + blocks[i]] = s->id;
    if (seen->step != step || seen->n_blocks == 0) seen->begin = s->pos0;
    seen->step = step;
    seen->replica = replica;
    seen->end = end;
    seen->n_blocks = n;
    memcpy(seen->blocks, blocks, (size_t)n * sizeof *blocks);
    return true;
}

/* Adds n most likely tokens that follow from the fold, with log-probabilities in descending
 * order. */
static void add_tops(struct result_seq *out, uint64_t fold, int32_t n, struct step_result *result)
{
    for (int32_t k = 0; k < n; k++) {
        const uint64_t h = mix(fold, (uint64_t)k);
        /* one id in each stride of 4, so the ids of a row differ */
        const struct plan_top top = {.id = 4 * k + (int32_t)(h % 4),
                                     .logprob = -(float)k - (float)(h % 8192) / 8192.0f};
        const struct status st = step_result_add_tops(result, &top, 1);
        assert(!status_failed(&st));
        out->n_tops++;
    }
}

/* Returns a guess of the token that will be drawn after `token`, which was drawn from the
 * sequence's last row. The guess is right two times of three, unless the draws are adjusted. */
static int32_t guess_of(struct fake_engine *e, int32_t replica, const struct plan_seq *s,
                        const int32_t *blocks, uint64_t fold, int32_t token)
{
    const int64_t last = s->pos0 + s->n_rows - 1;
    const uint64_t next = entry(*slot(e, replica, blocks, last), token, last + 1);
    const int32_t found = draw(fold + mix(next, (uint64_t)last + 1), last + 2, s, 0);
    return fold % 3 == 0 ? (found + 1) % FAKE_VOCAB : found;
}

/* Makes room for the hidden rows of a replica's sequences [begin, end). A row is one cache entry;
 * add_hidden counts the rows that it adds. */
static void place_hidden(const struct step_plan *plan, int32_t begin, int32_t end,
                         struct step_result *result)
{
    size_t n = 0;
    for (int32_t i = begin; i < end; i++) n += (size_t)plan->seqs[i].n_hidden;
    const struct status st = step_result_place_hidden(result, n, sizeof(uint64_t));
    assert(!status_failed(&st));
    result->n_hidden_rows = 0;
}

static void add_hidden(struct result_seq *out, uint64_t entry, struct step_result *result)
{
    memcpy(result->hidden + result->n_hidden_rows++ * sizeof entry, &entry, sizeof entry);
    out->n_hidden++;
}

static struct result_seq run_seq(struct fake_engine *e, int32_t replica, const struct plan_seq *s,
                                 const int32_t *tokens, const int32_t *blocks,
                                 const struct plan_adjust *adjusts, const uint32_t *allowed,
                                 struct step_result *result)
{
    struct result_seq out = {.id = s->id, .token = -1, .draft = -1};
    const int64_t last = s->pos0 + s->n_rows - 1;
    const bool scores = s->want & PLAN_SCORE;
    uint64_t fold = scores && s->pos0 > 0 ? fold_cache(e, replica, blocks, s->pos0 - 1) : 0;
    for (int32_t i = 0; i < s->n_rows; i++) {
        const int64_t pos = s->pos0 + i;
        const uint64_t before =
            pos == 0 ? first_entry(s->adapter) : *slot(e, replica, blocks, pos - 1);
        write_entry(e, replica, s, blocks, pos, entry(before, tokens[i], pos));
        if (tokens[i] == e->bad_token && pos == e->bad_position) out.n_bad++;
        if (i >= s->hidden_from && i < s->hidden_from + s->n_hidden)
            add_hidden(&out, *slot(e, replica, blocks, pos), result);
        if (scores) {
            const int32_t next = i + 1 < s->n_rows ? tokens[i + 1] : s->next_token;
            fold += mix(*slot(e, replica, blocks, pos), (uint64_t)pos);
            const float score = score_of(fold, next);
            if (next < 0) continue;
            add_tops(&out, fold, s->n_prompt_logprobs, result);
            const struct status st = step_result_add_scores(result, &score, 1);
            assert(!status_failed(&st));
            out.n_scores++;
        }
    }
    check_tables(e, replica, s, blocks);
    if (scores && fold != fold_cache(e, replica, blocks, last))
        wrong(e, "a row has overwritten one that it sees");
    if (s->want & PLAN_SAMPLE) {
        fold = fold_cache(e, replica, blocks, last);
        out.token = draw(fold, last + 1, s, mix_adjusts(s, adjusts));
        if (s->n_allowed_words > 0) out.token = allowed_from(out.token, allowed);
        out.logprob = score_of(fold, out.token);
        if (e->predicts) out.draft = guess_of(e, replica, s, blocks, fold, out.token);
        if (s->want & PLAN_LOGPROB) add_tops(&out, fold, s->n_logprobs, result);
    }
    if (s->want & PLAN_LOGITS) {
        float row[FAKE_VOCAB];
        for (int32_t i = 0; i < s->n_rows; i++) {
            for (int v = 0; v < FAKE_VOCAB; v++) row[v] = (float)((s->pos0 + i) * 1000 + v);
            const struct status st = step_result_add_logits(result, row, 1);
            assert(!status_failed(&st));
        }
        out.n_logits = s->n_rows;
    }
    return out;
}

/* The memory of a block in the cache, and of a slot on the disk. */
static uint64_t *block_at(struct fake_engine *e, int32_t replica, int32_t block)
{
    return e->cache + ((int64_t)replica * e->n_blocks + block) * BLOCK;
}

static uint64_t *slot_at(struct fake_engine *e, int32_t replica, int32_t slot_)
{
    return e->disk + ((int64_t)replica * e->n_tier_slots + slot_) * BLOCK;
}

/* Ends the replica's reads with numbers below `end`. A failed read leaves wrong content in its
 * block. */
static void end_reads(struct fake_engine *e, int32_t replica, uint64_t end)
{
    for (; e->n_reads_ended[replica] < end; e->n_reads_ended[replica]++) {
        struct fake_read *read =
            &e->reads[(uint64_t)replica * FAKE_READS + e->n_reads_ended[replica] % FAKE_READS];
        uint64_t *to = block_at(e, replica, read->block);
        read->is_good = mix(e->chance++, 5) % 12 > 0;
        e->n_failed += !read->is_good;
        memcpy(to, slot_at(e, replica, read->slot), BLOCK * sizeof *to);
        if (!read->is_good) to[7] ^= 1;
    }
}

static void report_reads(struct fake_engine *e, const struct plan_move *m,
                         struct step_result *result)
{
    static uint64_t moved[PLAN_MOVED_READS + FAKE_READS];
    const uint64_t from = plan_move_from(m), n = e->n_reads[m->replica];
    if (m->block != 0 || mix(e->chance++, 6) % 2 == 0) end_reads(e, m->replica, n);
    moved[PLAN_MOVED_FROM] = from;
    moved[PLAN_MOVED_N_ENDED] = e->n_reads_ended[m->replica];
    moved[PLAN_MOVED_RATE_IN] = moved[PLAN_MOVED_RATE_OUT] = UINT64_MAX;
    for (uint64_t i = from; i < n; i++) {
        const struct fake_read *read =
            &e->reads[(uint64_t)m->replica * FAKE_READS + i % FAKE_READS];
        moved[PLAN_MOVED_READS + i - from] = i >= e->n_reads_ended[m->replica] || read->is_good;
    }
    const struct status st = step_result_take_moved(result, moved, PLAN_MOVED_READS + n - from);
    assert(!status_failed(&st));
}

/* Carries out the orders of one replica; returns its PLAN_MOVE_ASK, or NULL. */
static const struct plan_move *run_moves(struct fake_engine *e, int32_t replica,
                                         const struct step_plan *plan)
{
    const struct plan_move *ask = NULL;
    for (size_t i = 0; i < plan->n_moves; i++) {
        const struct plan_move *m = &plan->moves[i];
        if (m->replica != replica) continue;
        if (m->kind == PLAN_MOVE_ASK) {
            ask = m;
            continue;
        }
        if (m->slot < 0 || m->slot >= e->n_tier_slots || m->block < 0 || m->block >= e->n_blocks) {
            wrong(e, "an order to move out of range");
            continue;
        }
        if (m->kind == PLAN_MOVE_OUT) {
            end_reads(e, replica, e->n_reads[replica]); /* orders are carried out in sequence */
            memcpy(slot_at(e, replica, m->slot), block_at(e, replica, m->block),
                   BLOCK * sizeof(uint64_t));
            e->n_out++;
        } else {
            e->reads[(uint64_t)replica * FAKE_READS + e->n_reads[replica]++ % FAKE_READS] =
                (struct fake_read){m->block, m->slot, true};
        }
    }
    return ask;
}

/* Ends the reads into blocks that the replica's sequences use, and all earlier reads, as the ranks
 * do. */
static void await_blocks(struct fake_engine *e, int32_t replica, const int32_t *blocks, size_t n)
{
    for (uint64_t i = e->n_reads_ended[replica]; i < e->n_reads[replica]; i++) {
        const int32_t block = e->reads[(uint64_t)replica * FAKE_READS + i % FAKE_READS].block;
        for (size_t b = 0; b < n; b++)
            if (blocks[b] == block) end_reads(e, replica, i + 1);
    }
}

/* Where a sequence's entries are in the arrays of the plan. */
struct plan_at {
    size_t token, block, adjust, allowed;
};

static void run_replica(struct fake_engine *e, int32_t replica, const struct step_plan *plan,
                        struct plan_at *at, struct step_result *result)
{
    step_result_clear(result, plan->step, replica, FAKE_VOCAB);
    e->predicts = plan->predicts;
    int64_t n_rows = 0;
    int32_t n_seqs = 0;
    const int32_t begin = plan->replica_begin[replica], end = plan->replica_begin[replica + 1];
    const struct plan_move *ask = e->n_tier_slots > 0 ? run_moves(e, replica, plan) : NULL;
    size_t n_table = 0;
    for (int32_t i = begin; i < end; i++) n_table += (size_t)plan->seqs[i].n_blocks;
    place_hidden(plan, begin, end, result);
    if (e->n_tier_slots > 0) await_blocks(e, replica, plan->blocks + at->block, n_table);
    enum { UNUSED, READ, WRITTEN };
    uint8_t *used = e->used;
    memset(used, UNUSED, (size_t)e->n_blocks);
    for (int32_t i = begin; i < end; i++) {
        const struct plan_seq *s = &plan->seqs[i];
        const int32_t *blocks = plan->blocks + at->block;
        const bool is_draft = i > begin && s[-1].id == s->id;
        n_seqs += !is_draft;
        if (check_seq(e, replica, s, blocks, plan->step)) {
            for (int32_t b = 0; b < s->n_blocks; b++) {
                const bool is_full = e->shares && (place_of(e, s, b) + 1) * BLOCK <= s->pos0;
                if (used[blocks[b]] > (is_full ? READ : UNUSED) && !is_draft)
                    wrong(e, "a block is held twice in one step");
                used[blocks[b]] = is_full ? READ : WRITTEN;
            }
            const struct result_seq out =
                run_seq(e, replica, s, plan->tokens + at->token, blocks, plan->adjusts + at->adjust,
                        plan->allowed + at->allowed, result);
            const struct status st = step_result_add(result, &out);
            assert(!status_failed(&st));
        }
        at->token += (size_t)s->n_rows;
        at->block += (size_t)s->n_blocks;
        at->adjust += (size_t)s->n_adjusts;
        at->allowed += (size_t)s->n_allowed_words;
        n_rows += s->n_rows;
    }
    e->n_rows += (uint64_t)n_rows;
    if (e->step_tokens > 0 && n_rows > e->step_tokens) wrong(e, "more rows than the token budget");
    if (e->max_batch > 0 && n_seqs > e->max_batch) wrong(e, "more sequences than the limit");
    if (ask != NULL) report_reads(e, ask, result);
}

void fake_engine_run(struct fake_engine *e, const struct step_plan *plan,
                     struct step_result *results)
{
    struct plan_at at = {0};
    for (int32_t r = 0; r < e->n_replicas; r++) run_replica(e, r, plan, &at, &results[r]);
    if (at.token != plan->n_tokens || at.block != plan->n_blocks || at.adjust != plan->n_adjusts ||
        at.allowed != plan->n_allowed)
        wrong(e, "a plan's counts do not add up");
}

size_t fake_engine_expect(const struct request *r, int32_t max_model_len, int32_t *tokens)
{
    uint64_t before = first_entry(r->ask->adapter), fold = 0;
    size_t n = r->n_prompt;
    memcpy(tokens, r->tokens, n * sizeof *tokens);
    for (size_t i = 0; i < n; i++) {
        before = entry(before, tokens[i], (int64_t)i);
        fold += mix(before, i);
        if (i + 1 < r->n_prompt) continue;
        const struct plan_seq s = {.temperature = r->ask->temperature,
                                   .penalties = {.repetition = 1},
                                   .key = {r->ask->key[0], r->ask->key[1]}};
        const int32_t token = draw(fold, (int64_t)i + 1, &s, mix_adjusts(&s, NULL));
        tokens[n++] = token;
        if (token == FAKE_END_ID || n - r->n_prompt == (size_t)r->ask->max_tokens ||
            n == (size_t)max_model_len)
            break;
    }
    return n - r->n_prompt;
}

int32_t fake_engine_draft(void *user, const struct request *r, int32_t n_most, int32_t *drafts)
{
    int32_t tokens[FAKE_TABLE * BLOCK];
    uint64_t x = mix(r->line, r->n_tokens) | 1;
    (void)user;
    (void)fake_random(&x);
    int32_t n_known = (int32_t)r->n_tokens + n_most + 1; /* more are not read */
    if (n_known > FAKE_TABLE * BLOCK) n_known = FAKE_TABLE * BLOCK;
    const size_t n_all = r->n_prompt + fake_engine_expect(r, n_known, tokens);
    const int64_t n_right = fake_between(&x, 0, 2) ? fake_between(&x, 0, n_most) : n_most;
    const int32_t n = (int32_t)fake_between(&x, 0, n_most);
    for (int32_t i = 0; i < n; i++) {
        const size_t at = r->n_tokens + (size_t)i;
        const int32_t other =
            fake_between(&x, 0, 9) ? (int32_t)fake_between(&x, 0, FAKE_VOCAB - 1) : FAKE_END_ID;
        drafts[i] = at < n_all && i < n_right ? tokens[at] : other;
    }
    return n;
}

void fake_engine_scores(uint32_t adapter, const int32_t *tokens, size_t n, float *scores)
{
    uint64_t before = first_entry(adapter), fold = 0;
    for (size_t i = 0; i < n; i++) {
        scores[i] = score_of(fold, tokens[i]);
        before = entry(before, tokens[i], (int64_t)i);
        fold += mix(before, i);
    }
}
