/* Groups of layers that share KV blocks: on published shapes, cut into stages. */
#include "parallel/layout/kv_groups.h"

#include "tensor/dims.h"

#include <CUnit/CUnit.h>
#include <string.h>

/* A model whose every period-th layer sees all positions, the first of these being layer `first`.
 * period 0: no layer sees all; window 0: all layers do. */
static struct arch model_of(uint32_t n_layers, uint32_t window, uint32_t period, uint32_t first)
{
    struct arch m = {.n_layers = n_layers, .attn.window = window, .context = 131072};
    for (uint32_t i = 0; i < n_layers; i++)
        m.layer.has_window[i] = window > 0 && (period == 0 || i % period != first);
    return m;
}

static struct kv_groups groups_of(const struct arch *m, uint32_t pp, struct layout *l)
{
    memset(l, 0, sizeof *l);
    l->model.arch = m;
    l->pp = pp;
    for (uint32_t s = 0; s <= pp; s++) l->stage_begin[s] = s * m->n_layers / pp;
    return kv_groups_of(l);
}

static void groups_of_published_shapes(void)
{
    const struct {
        struct arch m;
        uint32_t pp, n_full, n_windowed, in_block;
    } rows[] = {
        {model_of(36, 0, 0, 0), 1, 1, 0, 36},   /* no windows */
        {model_of(24, 128, 2, 1), 1, 1, 1, 12}, /* gpt-oss-20b */
        {model_of(24, 128, 2, 1), 4, 1, 1, 3},
        {model_of(62, 1024, 6, 5), 1, 1, 5, 11}, /* Gemma 3 27B: 10 and 52 layers */
        {model_of(62, 1024, 6, 5), 2, 1, 6, 5},
        {model_of(32, 4096, 4, 3), 1, 1, 3, 8},  /* Command R7B */
        {model_of(32, 4096, 0, 0), 1, 0, 1, 32}, /* Mistral 7B: all have a window */
        {model_of(24, 128, 2, 1), 24, 1, 0,
         1}, /* one layer a stage: two groups would leave half of each block empty */
    };
    static struct layout l;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct kv_groups g = groups_of(&rows[i].m, rows[i].pp, &l);
        CU_ASSERT_EQUAL(g.n_full, rows[i].n_full);
        CU_ASSERT_EQUAL(g.n_windowed, rows[i].n_windowed);
        CU_ASSERT_EQUAL(kv_groups_layers(&g, &l, 0), rows[i].in_block);
    }
}

/* Each layer has a place of its own, in a table of its kind. */
static void layers_have_places_of_their_own(void)
{
    const struct arch m = model_of(62, 1024, 6, 5);
    static struct layout l;
    const struct kv_groups g = groups_of(&m, 1, &l);
    const uint32_t in_block = kv_groups_layers(&g, &l, 0);
    bool taken[KV_GROUPS_MAX][62] = {{false}};
    uint32_t n_before[2] = {0};
    for (uint32_t i = 0; i < m.n_layers; i++) {
        const bool windowed = m.layer.has_window[i];
        const struct kv_place at = kv_groups_place(&g, in_block, windowed, n_before[windowed]++);
        CU_ASSERT_FATAL(at.table < g.n_full + g.n_windowed && at.in_block < in_block);
        CU_ASSERT_EQUAL(at.table >= g.n_full, windowed);
        CU_ASSERT_FALSE(taken[at.table][at.in_block]);
        taken[at.table][at.in_block] = true;
    }
}

/* gpt-oss: half of its layers have a window of 128 positions, which lie in at most 3 blocks. A
 * context of 131,072 needs 2,048 + 3 blocks of 12 layers instead of 2,048 blocks of 24. */
static void a_windowed_context_needs_fewer_blocks(void)
{
    const struct kv_groups g = {1, 1, 128}, all = {.n_full = 1};
    CU_ASSERT_EQUAL(kv_groups_blocks(&g, 131072, 1), 2048 + 3);
    CU_ASSERT_EQUAL(kv_groups_blocks(&g, 131072, 512), 2048 + 11);
    CU_ASSERT_EQUAL(kv_groups_blocks(&g, 100, 512), 2 + 2);
    CU_ASSERT_EQUAL(kv_groups_blocks(&all, 131072, 512), 2048);
}

/* The positions that `rows` rows see may begin anywhere in a block; kv_groups_blocks returns the
 * most blocks in which they can lie. */
static void the_count_is_the_most_that_rows_see(void)
{
    for (uint32_t window = 1; window < 200; window += 7) {
        for (uint32_t rows = 1; rows < 150; rows += 11) {
            const struct kv_groups g = {0, 1, window};
            uint64_t most = 0;
            for (uint32_t begin = 0; begin < KV_BLOCK_TOKENS; begin++) {
                const uint32_t end = begin + window - 1 + rows;
                const uint64_t n = (end - 1) / KV_BLOCK_TOKENS + 1;
                if (n > most) most = n;
            }
            CU_ASSERT_EQUAL(kv_groups_blocks(&g, 100000, rows), most);
        }
    }
}

void suite_kv_groups(CU_pSuite suite);
void suite_kv_groups(CU_pSuite suite)
{
    CU_add_test(suite, "groups of published shapes", groups_of_published_shapes);
    CU_add_test(suite, "layers have places of their own", layers_have_places_of_their_own);
    CU_add_test(suite, "a windowed context needs fewer blocks",
                a_windowed_context_needs_fewer_blocks);
    CU_add_test(suite, "the count is the most that rows see", the_count_is_the_most_that_rows_see);
}
