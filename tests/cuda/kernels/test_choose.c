/* Tests every kind of router, and the sampler, on the device against the reference. */
#include "util_device.h"

#include "kernels/logit_body.h"
#include "sample/pick.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>

static void check_router(struct both *b, struct router_args a, size_t rows, bool biased,
                         size_t every)
{
    struct twin logits = twin_floats(b, rows * a.n_experts, 4.0f, every);
    struct twin bias = twin_floats(b, a.n_experts, 0.5f, 0);
    struct twin ids = twin_zeros(b, rows * a.n_chosen * sizeof(int32_t));
    struct twin weights = twin_zeros(b, rows * a.n_chosen * sizeof(float));
    a.logits = logits.host;
    a.ids = ids.host;
    a.weights = weights.host;
    a.bias = biased ? bias.host : NULL;
    op_router(&b->cpu, &a, rows);
    a.logits = logits.device;
    a.ids = ids.device;
    a.weights = weights.device;
    a.bias = biased ? bias.device : NULL;
    op_router(&b->gpu, &a, rows);
    twin_same(b, &ids, "chosen experts");
    twin_same_floats(b, &weights, "their weights");
    twin_free(b, &logits);
    twin_free(b, &bias);
    twin_free(b, &ids);
    twin_free(b, &weights);
}

static void routers(void)
{
    static const struct {
        uint32_t e, k, groups, chosen_groups;
    } shapes[] = {{1, 1, 0, 0},   {5, 5, 0, 0},      {60, 4, 1, 0},
                  {64, 8, 8, 3},  {256, 8, 8, 4},    {384, 8, 1, 1},
                  {160, 6, 8, 3}, {256, 8, 256, 30}, {4096, 16, 0, 0}};
    struct both b = both_open(11);
    for (int kind = 0; kind < ROUTER_COUNT; kind++) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            const struct router_args a = {.n_experts = shapes[i].e,
                                          .n_chosen = shapes[i].k,
                                          .rule = {(enum router_kind)kind, shapes[i].groups,
                                                   shapes[i].chosen_groups, i % 2 ? 2.5f : 0.0f}};
            check_router(&b, a, shapes[i].e > 1000 ? 1 : 17, i % 2 == 0, i % 3 == 2 ? 40 : 0);
        }
    }
    both_close(&b);
}

/* Equal keys: the smallest ids win. */
static void ties(void)
{
    struct both b = both_open(12);
    const struct router_args a = {
        .n_experts = 64, .n_chosen = 6, .rule = {ROUTER_SIGMOID_RENORM, 8, 2, 1.0f}};
    struct twin logits = twin_zeros(&b, 3 * 64 * sizeof(float));
    struct twin ids = twin_zeros(&b, 3 * 6 * sizeof(int32_t));
    struct twin weights = twin_zeros(&b, 3 * 6 * sizeof(float));
    struct router_args w = a;
    w.logits = logits.host;
    w.ids = ids.host;
    w.weights = weights.host;
    op_router(&b.cpu, &w, 3);
    w.logits = logits.device;
    w.ids = ids.device;
    w.weights = weights.device;
    op_router(&b.gpu, &w, 3);
    twin_same(&b, &ids, "chosen of equals");
    twin_same(&b, &weights, "weights of equals");
    twin_free(&b, &logits);
    twin_free(&b, &ids);
    twin_free(&b, &weights);
    both_close(&b);
}

/* Rows of logits, many of which are equal; every third row is nearly flat. */
static struct twin logits_of(struct both *b, size_t rows, size_t n)
{
    struct twin t = twin_floats(b, rows * n, 12.0f, 0);
    float *x = t.host;
    for (size_t i = 0; i < rows * n; i++) {
        if (rng_below(&b->rng, 3) == 0) x[i] = (float)(int)x[i];
        if (i / n % 3 == 2) x[i] *= 0.01f;
    }
    mem_ops_put(&b->gpu, t.device, t.host, t.n_bytes);
    return t;
}

static void argmaxima(void)
{
    static const size_t sizes[] = {1, 127, 4096, 4097, 50000};
    enum { ROWS = 9 };
    struct both b = both_open(13);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const size_t n = sizes[i];
        struct twin logits = twin_floats(&b, ROWS * n, 4.0f, i % 2 ? 700 : 0);
        struct twin keys = twin_zeros(&b, ROWS * sizeof(uint64_t));
        struct twin bad = twin_zeros(&b, ROWS * sizeof(int64_t));
        for (size_t r = 0; r < ROWS; r++) {
            uint64_t n_bad;
            ((uint64_t *)keys.host)[r] = b.cpu.argmax(twin_host(&logits) + r * n, n, 100, &n_bad);
            ((int64_t *)bad.host)[r] = (int64_t)n_bad;
        }
        const struct argmax_args a = {logits.device, ROWS, n, 100, keys.device, bad.device};
        op_argmax_rows(&b.gpu, &a);
        twin_same(&b, &keys, "largest logits");
        twin_same(&b, &bad, "bad logits");
        twin_free(&b, &logits);
        twin_free(&b, &keys);
        twin_free(&b, &bad);
    }
    both_close(&b);
}

/* Tests masses, also with maxima from other shards, and targets inside and outside this shard. */
static void scores(void)
{
    static const size_t sizes[] = {1, 127, 4096, 4097, 50000};
    enum { ROWS = 9 };
    struct both b = both_open(15);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const size_t n = sizes[i];
        struct twin logits = twin_floats(&b, ROWS * n, 4.0f, i % 2 ? 700 : 0);
        struct twin totals = twin_zeros(&b, ROWS * sizeof(int64_t));
        struct twin bits = twin_zeros(&b, ROWS * sizeof(uint32_t));
        float maxima[ROWS];
        int32_t targets[ROWS];
        for (size_t r = 0; r < ROWS; r++) {
            const float *row = twin_host(&logits) + r * n;
            maxima[r] = r % 2 == 0 ? 9.5f : 1.25f;
            targets[r] = r % 3 == 0 ? (int32_t)n : (int32_t)(r * 7919 % (n + 1)) - 1;
            const bool is_here = targets[r] >= 0 && targets[r] < (int32_t)n;
            ((uint64_t *)totals.host)[r] = b.cpu.mass(row, n, maxima[r], 1.0f, NULL);
            if (is_here) memcpy((uint32_t *)bits.host + r, row + targets[r], sizeof(uint32_t));
        }
        const struct score_args a = {logits.device, ROWS,          n,          maxima,
                                     targets,       totals.device, bits.device};
        op_score_rows(&b.gpu, &a);
        twin_same(&b, &totals, "masses");
        twin_same(&b, &bits, "targets' logits");
        twin_free(&b, &logits);
        twin_free(&b, &totals);
        twin_free(&b, &bits);
    }
    both_close(&b);
}

static void changes(void)
{
    enum { N = 500, ROWS = 3 };
    struct both b = both_open(14);
    struct twin logits = twin_floats(&b, ROWS * N, 4.0f, 30);
    struct logit_change list[ROWS * N];
    size_t n = 0;
    for (uint32_t i = 0; i < ROWS * N; i += 1 + (uint32_t)rng_below(&b.rng, 3)) {
        list[n] = (struct logit_change){.row = i / N,
                                        .at = i % N,
                                        .flags = (uint32_t)rng_below(&b.rng, 8),
                                        .bias = rng_float(&b.rng, 3.0f),
                                        .repetition = 1.3f,
                                        .often = 0.2f,
                                        .presence = 0.1f};
        float *logit = twin_host(&logits) + i;
        *logit = kern_changed_logit(&list[n++], *logit);
    }
    const struct change_logits_args a = {logits.device, N, list, n};
    op_change_logits(&b.gpu, &a);
    twin_same_floats(&b, &logits, "changed logits");
    twin_free(&b, &logits);
    both_close(&b);
}

static struct pick_options random_options(struct rng *r, size_t n)
{
    static const float top_p[] = {1.0f, 1.0f, 0.9f, 0.5f, 1e-12f, 0.999f};
    static const float min_p[] = {0.0f, 0.0f, 0.01f, 0.3f, 1.0f};
    const int32_t top_k[] = {0, 0, 1, 5, 40, (int32_t)n, (int32_t)n + 3};
    return (struct pick_options){.temperature = 0.2f + (float)rng_below(r, 20) * 0.1f,
                                 .top_p = top_p[rng_below(r, 6)],
                                 .min_p = min_p[rng_below(r, 5)],
                                 .top_k = top_k[rng_below(r, 7)],
                                 .key = {(uint32_t)rng_next(r), (uint32_t)rng_next(r)},
                                 .choice = 1,
                                 .position = (uint32_t)rng_below(r, 1000)};
}

/* The device draws the tokens of the sampler's own pick_token. */
static void draws(void)
{
    static const size_t sizes[] = {1, 2, 130, 1000, 20000};
    enum { ROWS = 60 };
    struct both b = both_open(15);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const size_t n = sizes[i], rows = n > 10000 ? 12 : ROWS;
        struct twin logits = logits_of(&b, rows, n);
        struct twin tokens = twin_zeros(&b, rows * sizeof(int32_t));
        const struct pick_scratch scratch = {test_memory(n * 8), test_memory(n * 8)};
        struct pick_row picks[ROWS];
        for (size_t r = 0; r < rows; r++) {
            const struct pick_options o = random_options(&b.rng, n);
            const float *row = twin_host(&logits) + r * n;
            uint64_t n_bad;
            const uint64_t key = b.cpu.argmax(row, n, 0, &n_bad);
            const float max = kern_from_ordered_bits((uint32_t)(key >> 32));
            picks[r] = (struct pick_row){max,     1.0f / o.temperature,     o.top_p,        o.min_p,
                                         o.top_k, (int32_t) ~(uint32_t)key, pick_random(&o)};
            ((int32_t *)tokens.host)[r] = pick_token(&b.cpu, &o, row, n, max, &scratch);
        }
        const struct pick_args a = {logits.device, picks, rows, n, tokens.device};
        op_pick_rows(&b.gpu, &a);
        twin_same(&b, &tokens, "drawn tokens");
        twin_free(&b, &logits);
        twin_free(&b, &tokens);
        free(scratch.mass);
        free(scratch.keys);
    }
    both_close(&b);
}

void suite_choose(CU_pSuite suite);
void suite_choose(CU_pSuite suite)
{
    CU_ADD_TEST(suite, routers);
    CU_ADD_TEST(suite, ties);
    CU_ADD_TEST(suite, argmaxima);
    CU_ADD_TEST(suite, scores);
    CU_ADD_TEST(suite, changes);
    CU_ADD_TEST(suite, draws);
}
