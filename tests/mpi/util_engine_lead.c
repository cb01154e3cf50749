/* Makes plans with idle replicas and without sequences, keeps pp steps in flight, and compares
 * greedy tokens with the goldens. Loads no model and starts no engine. */
#include "mpi/util_engine_lead.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "parallel/layout/kv_groups.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A sequence that is being computed. */
struct seq {
    const int32_t *tokens; /* the prompt, then the tokens that greedy decoding must give */
    int32_t n_tokens, pos;
    int32_t blocks[BLOCKS];
    float scores[TOKENS_MAX]; /* [i]: score of token i + 1 */
    int32_t n_scores;
    uint64_t n_bad;
};

void util_golden_read(struct golden_seqs *g, const char *dir)
{
    char path[512];
    char *text = NULL;
    size_t n;
    memset(g, 0, sizeof *g);
    snprintf(path, sizeof path, "%s/sequences.jsonl", dir);
    CU_ASSERT_EQUAL_FATAL(file_read(path, 1 << 20, &text, &n).code, STATUS_OK);
    char *line = text;
    for (size_t i = 0; i < N_GOLDEN && line < text + n; i++) {
        char *end = memchr(line, '\n', n - (size_t)(line - text));
        struct js_doc *doc = NULL;
        CU_ASSERT_PTR_NOT_NULL_FATAL(end);
        CU_ASSERT_EQUAL_FATAL(js_parse(line, (size_t)(end - line), path, &doc).code, STATUS_OK);
        const struct js_node *ids = js_get(js_root(doc), "prompt_token_ids");
        CU_ASSERT_FATAL(js_count(ids) > DECODED && js_count(ids) <= TOKENS_MAX);
        g->n_tokens[i] = (int32_t)js_count(ids);
        for (size_t t = 0; t < js_count(ids); t++) {
            int64_t id = -1;
            CU_ASSERT(js_int(js_at(ids, t), &id));
            g->tokens[i][t] = (int32_t)id;
        }
        js_destroy(&doc);
        line = end + 1;
        g->n = i + 1;
    }
    mem_free(&text);
}

struct lead {
    struct engine *engine;
    const struct layout *l;
    bool counts_bad; /* count values that leave the grid, instead of checking tokens and scores */
    struct seq seqs[N_SEQS];
    struct step_plan plan;
    struct step_result result;
    uint64_t submitted[64];  /* [pp] the step in flight of each group */
    int32_t ids[64][N_SEQS]; /* [pp] the sequences of each group's plan, in order */
    int32_t n_ids[64][64];   /* [pp, dp] their number in each replica */
    bool in_flight[64];
    size_t n_empty_plans, n_idle_replicas, n_most_in_flight;
};

static void start_seqs(struct lead *d, const struct golden_seqs *g)
{
    /* the halves of a step differ: two ranks that hold one half each cannot swap them unseen */
    static const size_t order[N_SEQS] = {0, 1, 2, 1, 2, 0};
    for (int32_t i = 0; i < N_SEQS; i++) {
        struct seq *s = &d->seqs[i];
        const size_t golden = order[i] % g->n;
        s->tokens = g->tokens[golden];
        s->n_tokens = g->n_tokens[golden];
        /* the blocks of a sequence are not neighbours, and sequences are not in order */
        for (int32_t b = 0; b < BLOCKS; b++) s->blocks[b] = (b * N_SEQS + i * 5 % N_SEQS);
    }
}

/* Writes the block tables of s for the positions before `end`, and returns the number of entries.
 * Ids of table t are those of table 0 plus t * N_SEQS * BLOCKS. Windowed tables begin with
 * *first_block. */
static int32_t list_blocks(const struct lead *d, const struct seq *s, int32_t end, int32_t *out,
                           int32_t *first_block)
{
    const struct kv_groups g = kv_groups_of(d->l);
    const int32_t n = (end + 63) / 64, first_seen = s->pos + 1 - (int32_t)g.window;
    int32_t at = 0;
    *first_block = g.n_windowed > 0 && first_seen > 0 ? first_seen / 64 : 0;
    for (int32_t t = 0; t < (int32_t)(g.n_full + g.n_windowed); t++) {
        for (int32_t b = t < (int32_t)g.n_full ? 0 : *first_block; b < n; b++)
            out[at++] = t * N_SEQS * BLOCKS + s->blocks[b];
    }
    return at;
}

static void add_seq(struct lead *d, int32_t i, int32_t replica)
{
    struct seq *s = &d->seqs[i];
    const int32_t prompt = s->n_tokens - DECODED;
    int32_t n_rows = s->pos < prompt ? prompt - s->pos : 1;
    if (n_rows > CHUNK) n_rows = CHUNK;
    const int32_t end = s->pos + n_rows;
    int32_t blocks[KV_GROUPS_MAX * BLOCKS], first_block;
    const int32_t n_blocks = list_blocks(d, s, end, blocks, &first_block);
    const struct plan_seq p = {.id = i,
                               .n_rows = n_rows,
                               .pos0 = s->pos,
                               .n_blocks = n_blocks,
                               .first_block = first_block,
                               .want = PLAN_SCORE | (end >= prompt ? PLAN_SAMPLE : 0) |
                                       (i == 0 ? PLAN_LOGITS : 0),
                               .next_token = s->tokens[end],
                               .top_p = 1};
    CU_ASSERT_EQUAL_FATAL(
        step_plan_add(&d->plan, replica, &p,
                      &(struct plan_lists){.tokens = s->tokens + s->pos, .blocks = blocks})
            .code,
        STATUS_OK);
}

/* Makes a plan. Sequence i belongs to replica i mod dp and to group i / dp mod pp. */
static void make_plan(struct lead *d, uint32_t group, uint64_t step)
{
    step_plan_clear(&d->plan, PLAN_RUN, step);
    int32_t n = 0;
    for (uint32_t r = 0; r < d->l->dp; r++) {
        d->n_ids[group][r] = 0;
        for (uint32_t i = r; i < N_SEQS; i += d->l->dp) {
            if (i / d->l->dp % d->l->pp != group) continue;
            if (d->seqs[i].pos + 1 >= d->seqs[i].n_tokens) continue;
            add_seq(d, (int32_t)i, (int32_t)r);
            d->ids[group][n++] = (int32_t)i;
            d->n_ids[group][r]++;
        }
        step_plan_end_replica(&d->plan, (int32_t)r);
        d->n_idle_replicas += d->n_ids[group][r] == 0;
    }
    d->n_empty_plans += n == 0;
}

/* Checks a sequence's part of a result; its scores and rows of logits begin at *score and *logit,
 * which move to the next sequence's. */
static void take_seq(struct lead *d, const struct result_seq *got, size_t *score, size_t *logit)
{
    struct seq *s = &d->seqs[got->id];
    const int32_t prompt = s->n_tokens - DECODED, n_rows = got->n_scores;
    CU_ASSERT_FATAL(n_rows > 0 && s->pos + n_rows < s->n_tokens);
    CU_ASSERT_EQUAL(got->n_dropped, 0);
    CU_ASSERT_EQUAL(got->n_logits, got->id == 0 ? n_rows : 0);
    memcpy(s->scores + s->pos, d->result.scores + *score, (size_t)n_rows * sizeof(float));
    *score += (size_t)n_rows;
    *logit += (size_t)got->n_logits;
    s->n_scores += n_rows;
    s->pos += n_rows;
    if (d->counts_bad) {
        s->n_bad += (uint64_t)got->n_bad;
        return;
    }
    CU_ASSERT_EQUAL(got->n_bad, 0);
    CU_ASSERT_EQUAL(got->token, s->pos < prompt ? -1 : s->tokens[s->pos]);
    if (got->id != 0 || s->pos < prompt) return;
    const float *row = d->result.logits + (*logit - 1) * (size_t)d->result.vocab;
    int32_t best = 0;
    for (int32_t v = 1; v < d->result.vocab; v++) best = row[v] > row[best] ? v : best;
    CU_ASSERT_EQUAL(best, s->tokens[s->pos]);
}

static void collect(struct lead *d, uint32_t group)
{
    size_t at = 0;
    for (uint32_t r = 0; r < d->l->dp; r++) {
        CU_ASSERT_EQUAL_FATAL(engine_collect(d->engine, (int32_t)r, &d->result).code, STATUS_OK);
        CU_ASSERT_EQUAL(d->result.step, d->submitted[group]);
        CU_ASSERT_EQUAL(d->result.replica, (int32_t)r);
        CU_ASSERT_EQUAL_FATAL(d->result.n_seqs, (size_t)d->n_ids[group][r]);
        size_t score = 0, logit = 0;
        for (size_t i = 0; i < d->result.n_seqs; i++) {
            CU_ASSERT_EQUAL_FATAL(d->result.seqs[i].id, d->ids[group][at++]);
            take_seq(d, &d->result.seqs[i], &score, &logit);
        }
        CU_ASSERT(score == d->result.n_scores && logit == d->result.n_logit_rows);
    }
    d->in_flight[group] = false;
}

static bool all_done(const struct lead *d)
{
    for (size_t i = 0; i < N_SEQS; i++) {
        if (d->seqs[i].pos + 1 < d->seqs[i].n_tokens) return false;
    }
    return true;
}

static uint64_t hash_counts(const struct lead *d)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < N_SEQS; i++) {
        CU_ASSERT(d->seqs[i].n_bad > 0);
        hash = (hash ^ d->seqs[i].n_bad) * 1099511628211u;
    }
    return hash;
}

static uint64_t hash_scores(const struct lead *d)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < N_SEQS; i++) {
        const struct seq *s = &d->seqs[i];
        CU_ASSERT_EQUAL(s->n_scores, s->n_tokens - 1);
        for (int32_t t = 0; t < s->n_scores; t++) {
            hash = (hash ^ f32_bits(s->scores[t])) * 1099511628211u;
        }
    }
    return hash;
}

uint64_t util_engine_lead(struct engine *engine, const struct layout *l,
                          const struct golden_seqs *golden, bool counts_bad)
{
    struct lead *d = calloc(1, sizeof *d);
    d->engine = engine;
    d->l = l;
    d->counts_bad = counts_bad;
    start_seqs(d, golden);
    step_result_init(&d->result);
    CU_ASSERT_EQUAL_FATAL(step_plan_init(&d->plan, (int32_t)l->dp).code, STATUS_OK);
    size_t n_after = 0, n_in_flight = 0;
    uint64_t step = 0;
    for (; n_after < 2 * (size_t)l->pp + 3; step++) {
        const uint32_t group = (uint32_t)(step % l->pp);
        if (d->in_flight[group]) {
            collect(d, group);
            n_in_flight--;
        }
        n_after += all_done(d);
        make_plan(d, group, step);
        CU_ASSERT_EQUAL_FATAL(engine_submit(engine, &d->plan).code, STATUS_OK);
        d->submitted[group] = step;
        d->in_flight[group] = true;
        if (++n_in_flight > d->n_most_in_flight) d->n_most_in_flight = n_in_flight;
    }
    for (uint32_t g = 0; g < l->pp; g++, step++) {
        const uint32_t group = (uint32_t)(step % l->pp);
        if (d->in_flight[group]) collect(d, group);
    }
    step_plan_clear(&d->plan, PLAN_STOP, 0);
    CU_ASSERT_EQUAL(engine_submit(engine, &d->plan).code, STATUS_OK);
    CU_ASSERT(d->n_empty_plans >= 3 && d->n_most_in_flight == l->pp);
    CU_ASSERT(d->n_idle_replicas >= 3 * (size_t)l->dp);
    const uint64_t hash = d->counts_bad ? hash_counts(d) : hash_scores(d);
    step_plan_fini(&d->plan);
    step_result_fini(&d->result);
    free(d);
    return hash;
}
