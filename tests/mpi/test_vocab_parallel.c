/* Tests tokens, scores and logits over a vocabulary divided in every way against one process that
 * has all of it, bit for bit. */
#include "mpi/util_mpi.h"

#include "base/mem.h"
#include "kernels/ops.h"
#include "sample/vocab_parallel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { D = 32, V_MAX = 307, ROWS = 150, TOPS = 9, ADJUSTS = 40 };

/* The model, the requests of the rows, and the answers of a process with the whole vocabulary. */
struct model {
    uint32_t vocab;
    struct kern_table kern;
    float head[V_MAX][D], x[ROWS][D], logits[ROWS][V_MAX];
    struct vocab_want wants[ROWS];
    struct vocab_got got[ROWS];
    struct plan_top tops[ROWS][TOPS];
    struct plan_adjust adjusts[ROWS][ADJUSTS];
    uint32_t allowed[ROWS][(V_MAX + 31) / 32];
    size_t n_adjusted, n_topped, n_masked;
    size_t n_rows, n_greedy, n_drawn, n_scored, n_logits, n_bad;
};

static struct vocab_want want_of(uint64_t *state, uint32_t vocab, size_t row)
{
    static const int32_t kinds[] = {PLAN_SAMPLE,
                                    PLAN_SCORE,
                                    PLAN_LOGITS | PLAN_SCORE,
                                    PLAN_SAMPLE,
                                    PLAN_SAMPLE | PLAN_SCORE | PLAN_LOGITS,
                                    PLAN_SAMPLE | PLAN_LOGPROB,
                                    PLAN_SAMPLE | PLAN_LOGPROB,
                                    0};
    struct vocab_want w = {.want = kinds[util_next(state) % 8],
                           .target = (int32_t)(util_next(state) % (vocab + 1)) - 1};
    const bool greedy = util_next(state) % 3 == 0;
    w.pick = (struct pick_options){.temperature = greedy ? 0 : 0.3f + 0.1f * (float)(row % 9),
                                   .top_p = row % 4 == 0 ? 0.7f : 1,
                                   .min_p = row % 5 == 0 ? 0.05f : 0,
                                   .top_k = row % 3 == 0 ? 12 : 0,
                                   .key = {util_next(state), util_next(state)},
                                   .choice = (uint32_t)row % 2,
                                   .position = (uint32_t)row};
    if (row % 3 == 1) w.n_top = 1 + (int32_t)(util_next(state) % TOPS);
    return w;
}

/* Gives every second row, if it is sampled, some entries with ascending ids: biases, tokens of
 * prompt and answer, forbidden tokens. */
static void add_adjusts(struct model *m, size_t row, uint64_t *state)
{
    struct adjust *a = &m->wants[row].adjust;
    if (row % 2 == 0 || (m->wants[row].want & PLAN_SAMPLE) == 0) return;
    a->entries = m->adjusts[row];
    a->penalties = (struct plan_penalties){.repetition = row % 4 == 1 ? 1 : 1.3f,
                                           .frequency = row % 5 == 0 ? 0 : 0.25f,
                                           .presence = row % 7 == 0 ? -0.5f : 0.75f};
    for (int32_t id = (int32_t)(util_next(state) % 3); id < (int32_t)m->vocab;
         id += 1 + (int32_t)(util_next(state) % 12)) {
        if (a->n == ADJUSTS) break;
        struct plan_adjust *e = &m->adjusts[row][a->n++];
        e->id = id;
        e->n_sampled = (int32_t)(util_next(state) % 4);
        e->flags = util_next(state) % 4; /* PLAN_IN_PROMPT, PLAN_FORBIDDEN, both or none */
        e->bias = util_next(state) % 2 ? 0 : 4 * util_uniform(state);
    }
    if (row % 11 == 3) m->adjusts[row][a->n - 1].bias = 3e38f;
}

/* Restricts every third row, if it is sampled, to some tokens, at least one. */
static void add_allowed(struct model *m, size_t row, uint64_t *state)
{
    if (row % 3 != 2 || (m->wants[row].want & PLAN_SAMPLE) == 0) return;
    for (uint32_t v = 0; v < m->vocab; v++) {
        const bool is_in = util_next(state) % 5 == 0 || v + 1 == m->vocab;
        m->allowed[row][v / 32] |= (uint32_t)is_in << (v % 32);
    }
    m->wants[row].adjust.allowed = m->allowed[row];
    m->n_masked++;
}

/* Writes the row's logits after biases, penalties and the mask of allowed tokens. */
static void expect_adjusted(const struct model *m, size_t row, float *logits)
{
    const struct adjust *a = &m->wants[row].adjust;
    memcpy(logits, m->logits[row], m->vocab * sizeof *logits);
    for (size_t i = 0; i < a->n; i++) {
        const struct plan_adjust *e = &a->entries[i];
        volatile float x = logits[e->id] + e->bias; /* volatile: each step is rounded */
        if (e->n_sampled > 0 || e->flags & PLAN_IN_PROMPT) {
            if (x > 0)
                x = x / a->penalties.repetition;
            else
                x = x * a->penalties.repetition;
        }
        volatile float often = (float)e->n_sampled * a->penalties.frequency;
        if (e->n_sampled > 0) x = x - often;
        if (e->n_sampled > 0) x = x - a->penalties.presence;
        if (e->flags & PLAN_FORBIDDEN) x = -3.402823466e38f;
        logits[e->id] = fminf(fmaxf(x, -3.402823466e38f), 3.402823466e38f);
    }
    for (uint32_t v = 0; v < m->vocab && a->allowed != NULL; v++)
        if ((a->allowed[v / 32] >> (v % 32) & 1) == 0) logits[v] = -3.402823466e38f;
}

/* Finds the most likely tokens one by one: each time the best that was not taken yet. */
static void expect_tops(struct model *m, size_t row, float max, uint64_t total)
{
    bool taken[V_MAX] = {false};
    for (int32_t k = 0; k < m->wants[row].n_top; k++) {
        int32_t best = -1;
        for (uint32_t v = 0; v < m->vocab; v++) {
            if (!taken[v] && (best < 0 || m->logits[row][v] > m->logits[row][best]))
                best = (int32_t)v;
        }
        m->tops[row][k] = (struct plan_top){.id = best};
        if (best < 0) continue;
        m->tops[row][k].logprob = pick_logprob(m->logits[row][best], max, total);
        taken[best] = true;
    }
}

static void expect_row(struct model *m, size_t i, const struct pick_scratch *scratch)
{
    const struct vocab_want *w = &m->wants[i];
    struct vocab_got *g = &m->got[i];
    uint64_t n_bad = 0;
    const uint64_t key = m->kern.argmax(m->logits[i], m->vocab, 0, &n_bad);
    const float max = kern_from_ordered_bits((uint32_t)(key >> 32));
    *g = (struct vocab_got){.token = -1, .n_bad = (int32_t)n_bad};
    m->n_bad += n_bad > 0;
    m->n_logits += (w->want & PLAN_LOGITS) != 0;
    for (int32_t k = 0; k < w->n_top; k++) m->tops[i][k].id = -1;
    if (n_bad > 0) return;
    float drawn_from[V_MAX];
    const uint64_t total = m->kern.mass(m->logits[i], m->vocab, max, 1, NULL);
    expect_tops(m, i, max, total);
    expect_adjusted(m, i, drawn_from);
    m->n_topped += w->n_top > 0;
    m->n_adjusted += w->adjust.n > 0;
    if ((w->want & PLAN_SCORE) != 0 && w->target >= 0) {
        g->logprob = pick_logprob(m->logits[i][w->target], max, total);
        m->n_scored++;
    }
    if ((w->want & PLAN_SAMPLE) == 0) return;
    if (w->pick.temperature > 0) {
        float most = drawn_from[0];
        for (uint32_t v = 1; v < m->vocab; v++) most = fmaxf(most, drawn_from[v]);
        g->token = pick_token(&m->kern, &w->pick, drawn_from, m->vocab, most, scratch);
        m->n_drawn++;
    } else {
        g->token = 0;
        for (uint32_t v = 1; v < m->vocab; v++) {
            if (drawn_from[v] > drawn_from[g->token]) g->token = (int32_t)v;
        }
        m->n_greedy++;
    }
    if ((w->want & PLAN_LOGPROB) == 0) return;
    g->token_logprob = pick_logprob(m->logits[i][g->token], max, total);
}

static void make_model(struct model *m, uint32_t vocab, size_t n_rows)
{
    static uint64_t mass[V_MAX], keys[V_MAX];
    const struct pick_scratch scratch = {.mass = mass, .keys = keys};
    uint64_t state = vocab * 1000 + n_rows;
    memset(m, 0, sizeof *m);
    CU_ASSERT_EQUAL_FATAL(kern_select(NULL, &m->kern).code, STATUS_OK);
    m->vocab = vocab;
    m->n_rows = n_rows;
    for (size_t v = 0; v < vocab; v++) {
        for (size_t d = 0; d < D; d++) m->head[v][d] = util_uniform(&state);
    }
    /* equal logits far apart: the smaller id wins, whichever rank has it */
    memcpy(m->head[vocab - 1], m->head[3], sizeof m->head[0]);
    for (size_t i = 0; i < n_rows; i++) {
        for (size_t d = 0; d < D; d++) m->x[i][d] = util_uniform(&state) * 2;
        if (i % 10 == 6) memcpy(m->x[i], m->head[3], sizeof m->x[0]);
        if (i % 37 == 20) m->x[i][4] = NAN;
        if (i % 37 == 30) m->x[i][5] = m->x[i][6] = 3e38f; /* some logits become infinite */
        m->wants[i] = want_of(&state, vocab, i);
        add_adjusts(m, i, &state);
        add_allowed(m, i, &state);
        for (size_t v = 0; v < vocab; v++) {
            float acc = 0;
            for (size_t d = 0; d < D; d++) {
                acc = __builtin_fmaf(m->x[i][d], m->head[v][d], acc);
            }
            m->logits[i][v] = acc;
        }
        expect_row(m, i, &scratch);
    }
}

struct trial {
    const struct model *m;
    size_t n_empty; /* ranks without a part of the vocabulary */
};

static void check_logits(const struct model *m, const struct step_result *r)
{
    size_t at = 0;
    CU_ASSERT_EQUAL_FATAL(r->n_logit_rows, m->n_logits);
    for (size_t i = 0; i < m->n_rows; i++) {
        if ((m->wants[i].want & PLAN_LOGITS) == 0) continue;
        const float *row = r->logits + at++ * m->vocab;
        size_t n_wrong = 0;
        for (size_t v = 0; v < m->vocab; v++) {
            const bool both_nan = isnan(row[v]) && isnan(m->logits[i][v]);
            n_wrong += !both_nan && f32_bits(row[v]) != f32_bits(m->logits[i][v]);
        }
        CU_ASSERT_EQUAL(n_wrong, 0);
    }
}

static void check_layout(const struct layout *l, void *ctx)
{
    static struct vocab_got got[ROWS];
    static struct vocab_want wants[ROWS];
    static struct plan_top tops[ROWS][TOPS];
    struct trial *t = ctx;
    const struct model *m = t->m;
    struct comm *c = util_comm(l, 0);
    struct vocab_parallel *v = NULL;
    struct step_result r;
    void *data = NULL;
    const struct range shard = layout_vocab(l, (uint32_t)comm_rank(c, COMM_TP));
    const size_t n = range_count(shard);
    CU_ASSERT_EQUAL_FATAL(mem_alloc(&data, packed_bytes(DTYPE_F32, n, D), 1, "test head").code,
                          STATUS_OK);
    packed_put_rows(DTYPE_F32, data, D,
                    &(struct matrix_rows){m->head[shard.begin], D * sizeof(float), 0, n});
    const struct packed head = {.dtype = DTYPE_F32, .n_out = (uint32_t)n, .n_in = D, .data = data};
    CU_ASSERT_EQUAL_FATAL(vocab_parallel_create(&m->kern, c, l, false, NULL, &v).code, STATUS_OK);
    step_result_init(&r);
    for (int pass = 0; pass < 2; pass++) {
        memset(got, 0xEE, sizeof got);
        memset(tops, 0xEE, sizeof tops);
        memcpy(wants, m->wants, sizeof wants);
        for (size_t i = 0; i < m->n_rows; i++) wants[i].tops = tops[i];
        step_result_clear(&r, 0, 0, (int32_t)m->vocab);
        CU_ASSERT_EQUAL(vocab_parallel_run(v, &head, &m->x[0][0], wants, m->n_rows, got, &r).code,
                        STATUS_OK);
        for (size_t i = 0; i < m->n_rows; i++) {
            CU_ASSERT_EQUAL(got[i].token, m->got[i].token);
            CU_ASSERT_EQUAL(f32_bits(got[i].logprob), f32_bits(m->got[i].logprob));
            CU_ASSERT_EQUAL(got[i].n_bad, m->got[i].n_bad);
            CU_ASSERT_EQUAL(f32_bits(got[i].token_logprob), f32_bits(m->got[i].token_logprob));
            if (comm_rank(c, COMM_TP) > 0) continue;
            CU_ASSERT_EQUAL(memcmp(tops[i], m->tops[i], (size_t)m->wants[i].n_top * sizeof **tops),
                            0);
        }
        if (comm_rank(c, COMM_TP) == 0) {
            check_logits(m, &r);
        } else {
            CU_ASSERT_EQUAL(r.n_logit_rows, 0);
        }
    }
    t->n_empty += n == 0;
    step_result_fini(&r);
    vocab_parallel_destroy(&v);
    mem_free(&data);
    comm_stop(&c);
}

static size_t try_vocab(struct model *m, uint32_t vocab, size_t n_rows)
{
    const struct util_shape shape = {.width = D,
                                     .n_experts = 8,
                                     .n_chosen = 2,
                                     .expert_ffn = 64,
                                     .expert_leaf = 16,
                                     .vocab = vocab};
    static struct arch arch;
    const struct layout_model model = util_layout_model(&shape, &arch);
    struct trial t = {.m = m};
    make_model(m, vocab, n_rows);
    CU_ASSERT(util_each_layout(&model, check_layout, &t) >= util_n_ranks());
    return t.n_empty;
}

static void an_uneven_vocabulary_never_shows(void)
{
    struct model *m = malloc(sizeof *m);
    try_vocab(m, V_MAX, ROWS);
    /* the case really contains rows of each kind */
    CU_ASSERT(m->n_greedy > 5 && m->n_drawn > 20 && m->n_scored > 20);
    CU_ASSERT(m->n_adjusted > 20 && m->n_topped > 20 && m->n_masked > 10);
    CU_ASSERT(m->n_logits > 20 && m->n_bad >= 6);
    free(m);
}

static void batches_of_rows_have_edges(void)
{
    static const size_t n_rows[] = {0,
                                    1,
                                    VOCAB_ROWS_AT_ONCE - 1,
                                    VOCAB_ROWS_AT_ONCE,
                                    VOCAB_ROWS_AT_ONCE + 1,
                                    2 * VOCAB_ROWS_AT_ONCE};
    struct model *m = malloc(sizeof *m);
    for (size_t i = 0; i < sizeof n_rows / sizeof n_rows[0]; i++) try_vocab(m, 100, n_rows[i]);
    free(m);
}

/* The vocabulary is cut in panels of 16 tokens: with 20 tokens, two of four ranks have none. */
static void ranks_without_vocabulary_take_part(void)
{
    struct model *m = malloc(sizeof *m);
    int64_t mine = (int64_t)try_vocab(m, 20, 70), sum = 0;
    MPI_Allreduce(&mine, &sum, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    CU_ASSERT_EQUAL(sum > 0, util_n_ranks() > 2);
    try_vocab(m, 5, 10);
    free(m);
}

void suite_vocab_parallel(CU_pSuite suite);
void suite_vocab_parallel(CU_pSuite suite)
{
    CU_add_test(suite, "an uneven vocabulary never shows", an_uneven_vocabulary_never_shows);
    CU_add_test(suite, "batches of rows have edges", batches_of_rows_have_edges);
    CU_add_test(suite, "ranks without vocabulary take part", ranks_without_vocabulary_take_part);
}
