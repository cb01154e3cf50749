/* Tests the blocks that the exchange between hosts sends, damaged ones too, and the bytes that a
 * token costs in a layer of two published models: by formula, and counted in the blocks of random
 * tokens. */
#include "parallel/wire/result_block.h"
#include "parallel/wire/token_block.h"
#include "parallel/wire/wire_bytes.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KB = 1000, ALIGN = 64 };

static uint32_t next(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

/* DeepSeek-V3: 256 experts in 8 groups, of which 4 are chosen; int4 weights in groups of 32. */
static struct wire_shape deepseek(uint32_t n_hosts)
{
    return (struct wire_shape){.format = {7168, 32},
                               .n_experts = 256,
                               .n_chosen = 8,
                               .router = {.n_groups = 8, .n_groups_chosen = 4},
                               .n_hosts = n_hosts};
}

static struct wire_shape qwen3(uint32_t n_hosts)
{
    return (struct wire_shape){
        .format = {4096, 32}, .n_experts = 128, .n_chosen = 8, .n_hosts = n_hosts};
}

/* Chooses the n_chosen different experts of a token at random, from randomly chosen groups if the
 * router has groups. */
static void choose_experts(const struct wire_shape *s, uint64_t *state, uint32_t *experts)
{
    const uint32_t groups = s->router.n_groups > 1 ? s->router.n_groups : 1;
    const uint32_t most = groups > 1 ? s->router.n_groups_chosen : 1, size = s->n_experts / groups;
    bool open[ROUTER_GROUPS_MAX] = {false}, taken[ROUTER_EXPERTS_MAX] = {false};
    for (uint32_t n = 0; n < most;) {
        const uint32_t g = next(state, groups);
        n += !open[g];
        open[g] = true;
    }
    for (uint32_t k = 0; k < s->n_chosen;) {
        const uint32_t e = next(state, s->n_experts);
        if (!open[e / size] || taken[e]) continue;
        taken[e] = true;
        experts[k++] = e;
    }
}

/* Returns what host 0 sends to all other hosts, per token, counted in the blocks of random tokens.
 * `combine` is 0. */
static struct wire_bytes by_blocks(const struct wire_shape *s)
{
    enum { TOKENS = 20000 };
    const uint32_t each = s->n_experts / s->n_hosts;
    size_t rows[64] = {0}, choices[64] = {0}, n_bytes = 0, n_rows = 0, n_choices = 0;
    uint64_t state = 5;
    for (int t = 0; t < TOKENS; t++) {
        uint32_t experts[ROUTER_CHOSEN_MAX];
        bool goes[64] = {false};
        choose_experts(s, &state, experts);
        for (uint32_t k = 0; k < s->n_chosen; k++) {
            const uint32_t h = experts[k] / each;
            choices[h]++;
            rows[h] += !goes[h];
            goes[h] = true;
        }
    }
    for (uint32_t h = 1; h < s->n_hosts; h++) {
        n_bytes += token_block_at(&s->format, rows[h], choices[h], NULL).n_bytes;
        n_rows += rows[h];
        n_choices += choices[h];
    }
    return (struct wire_bytes){.hosts = (double)n_rows / TOKENS,
                               .dispatch = (double)n_bytes / TOKENS,
                               .rows = (double)n_choices / TOKENS * s->format.width * 4};
}

static bool near(double a, double b, double part)
{
    return fabs(a - b) <= part * fabs(b);
}

static void formula_and_blocks_agree(void)
{
    static const uint32_t hosts[] = {2, 4, 8, 16, 32};
    for (size_t i = 0; i < 2 * sizeof hosts / sizeof hosts[0]; i++) {
        const struct wire_shape s = i % 2 == 0 ? deepseek(hosts[i / 2]) : qwen3(hosts[i / 2]);
        const struct wire_bytes by_formula = wire_bytes_of(&s), counted = by_blocks(&s);
        CU_ASSERT(near(by_formula.hosts, counted.hosts, 0.02));
        CU_ASSERT(near(by_formula.dispatch, counted.dispatch, 0.02));
        CU_ASSERT(near(by_formula.rows, counted.rows, 0.02));
    }
}

/* Bounds on the bytes of a token, with sums of 4 bytes. Those of DeepSeek-V3 hold also for a token
 * that goes to all three other hosts. */
static void tokens_cost_as_little_as_they_should(void)
{
    const struct wire_shape d = deepseek(4), q = qwen3(8);
    const struct wire_bytes deep = wire_bytes_of(&d), qwen = wire_bytes_of(&q);
    CU_ASSERT(deep.dispatch > 0 && deep.dispatch <= 31 * KB && deep.combine <= 116 * KB);
    CU_ASSERT(qwen.dispatch > 0 && qwen.dispatch <= 25 * KB && qwen.combine <= 90 * KB);
    CU_ASSERT(3 * deep.dispatch / deep.hosts <= 31 * KB &&
              3 * deep.combine / deep.hosts <= 116 * KB);
    CU_ASSERT(deep.rows > 5 * deep.dispatch && qwen.rows > 5 * qwen.dispatch);
    const struct wire_shape alone = deepseek(1);
    const struct wire_bytes none = wire_bytes_of(&alone);
    CU_ASSERT(none.hosts == 0 && none.dispatch == 0 && none.combine == 0 && none.rows == 0);
}

static void blocks_of_tokens_are_read_as_written(void)
{
    static const struct token_format formats[] = {{70, 0, false}, {70, 32, false}, {70, 0, true}};
    _Alignas(ALIGN) static char memory[1 << 14];
    for (int i = 0; i < 3; i++) {
        const struct token_format *f = &formats[i];
        struct token_block b = token_block_at(f, 5, 9, memory), in;
        CU_ASSERT_FATAL(b.n_bytes <= sizeof memory && b.n_bytes % ALIGN == 0);
        memset(memory, 0xFF, sizeof memory);
        token_block_write_head(&b, memory);
        for (size_t r = 0; r < 5; r++) b.n_chosen[r] = r == 0 ? 5 : 1;
        CU_ASSERT(token_block_read(f, memory, b.n_bytes, &in));
        CU_ASSERT(in.n_rows == 5 && in.n_choices == 9 && in.n_bytes == b.n_bytes);
        CU_ASSERT(in.rows == b.rows && in.scales == b.scales && in.weights == b.weights);
        CU_ASSERT((char *)(b.weights + 9) <= memory + b.n_bytes);
        CU_ASSERT(i < 2 || (char *)(b.adapters + 5) <= memory + b.n_bytes);
        CU_ASSERT(in.adapters == b.adapters && (i < 2 || b.adapters >= (uint32_t *)b.weights + 9));
        CU_ASSERT_EQUAL(token_row_bytes(f), i != 1 ? 280 : 96 + 12);
        CU_ASSERT_FALSE(token_block_read(f, memory, b.n_bytes - 1, &in));
        CU_ASSERT_FALSE(token_block_read(f, memory, ALIGN - 1, &in));
        b.n_chosen[3] = 2;
        CU_ASSERT_FALSE(token_block_read(f, memory, b.n_bytes, &in));
        memset(memory, 0xFF, ALIGN); /* a head with too many rows */
        CU_ASSERT_FALSE(token_block_read(f, memory, sizeof memory, &in));
    }
}

static void blocks_of_results_are_read_as_written(void)
{
    _Alignas(ALIGN) static char memory[1024];
    struct result_block in;
    const size_t n_head = result_head_bytes(3);
    CU_ASSERT_EQUAL(n_head, ALIGN);
    memset(memory, 0xFF, sizeof memory);
    uint64_t *ends = result_block_ends(memory);
    for (uint64_t i = 0; i < 3; i++) ends[i] = 10 * (i + 1);
    result_block_write_head(3, n_head + ALIGN, memory);
    CU_ASSERT(result_block_read(memory, n_head + ALIGN, &in));
    CU_ASSERT(in.n_rows == 3 && in.n_bytes == n_head + ALIGN && in.rows == memory + n_head);
    CU_ASSERT(in.ends[0] == 10 && in.ends[2] == 30);
    CU_ASSERT_FALSE(result_block_read(memory, n_head + ALIGN - 1, &in));
    ends[2] = ALIGN + 1;
    CU_ASSERT_FALSE(result_block_read(memory, n_head + ALIGN, &in));
    ends[2] = 9;
    CU_ASSERT_FALSE(result_block_read(memory, n_head + ALIGN, &in));
}

void suite_wire_bytes(CU_pSuite suite);
void suite_wire_bytes(CU_pSuite suite)
{
    CU_add_test(suite, "formula and blocks agree", formula_and_blocks_agree);
    CU_add_test(suite, "tokens cost as little as they should",
                tokens_cost_as_little_as_they_should);
    CU_add_test(suite, "blocks of tokens are read as written",
                blocks_of_tokens_are_read_as_written);
    CU_add_test(suite, "blocks of results are read as written",
                blocks_of_results_are_read_as_written);
}
