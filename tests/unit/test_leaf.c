/* The rule for leaves (K-blocks) as a table: shapes of real models, and limits. */
#include "tensor/leaf.h"

#include <CUnit/CUnit.h>

struct row {
    const char *what;
    uint64_t n_columns;
    uint32_t unit, n_least, leaf;
    uint64_t n_leaves;
};

static const struct row table[] = {
    {"SmolLM2-135M o_proj", 576, 64, 8, 64, 9},
    {"SmolLM2-135M down_proj", 1536, 32, 8, 192, 8},
    {"TinyLlama o_proj", 2048, 64, 8, 256, 8},
    {"TinyLlama down_proj", 5632, 32, 8, 352, 16},
    {"Llama-3-8B o_proj", 4096, 128, 8, 256, 16},
    {"Llama-3-8B down_proj", 14336, 32, 8, 512, 28},
    {"Llama-3-70B o_proj", 8192, 128, 8, 512, 16},
    {"Mixtral-8x7B o_proj", 4096, 128, 8, 256, 16},
    {"Mixtral-8x7B w2", 14336, 32, 2, 512, 28},
    {"Qwen3-235B-A22B o_proj", 8192, 128, 8, 512, 16},
    {"Qwen3-235B-A22B down_proj", 1536, 32, 2, 256, 6},
    {"an expert of two leaves", 384, 32, 2, 192, 2},
    {"16 leaves would be short", 3584, 32, 2, 256, 14},
    {"8 leaves when 16 cannot be", 480, 32, 8, 64, 8},
    {"a tail of its own", 100, 32, 8, 32, 4},
    {"fewer columns than a unit", 20, 32, 8, 32, 1},
    {"a unit above 512", 16 * 576, 576, 8, 576, 16},
    {"few units above 512", 4 * 576, 576, 8, 576, 4},
    {"one unit", 64, 64, 8, 64, 1},
    {"nothing", 0, 32, 8, 0, 0},
    {"no unit", 64, 0, 8, 0, 0},
    {"too many leaves", 512ull * 4096 + 1, 32, 8, 0, 0},
    {"as many leaves as allowed", 512ull * 4096, 32, 8, 512, 4096},
};

static void the_rule_is_the_table(void)
{
    for (unsigned i = 0; i < sizeof table / sizeof table[0]; i++) {
        const struct row *r = &table[i];
        const uint32_t leaf = leaf_choose(r->n_columns, r->unit, r->n_least);
        CU_ASSERT_EQUAL(leaf, r->leaf);
        CU_ASSERT_EQUAL(leaf_count(r->n_columns, leaf), r->n_leaves);
    }
}

static void leaves_are_whole_units_and_never_more_than_the_law_allows(void)
{
    for (uint64_t n = 1; n < 40000; n += 37) {
        for (uint32_t unit = 32; unit <= 256; unit *= 2) {
            for (uint64_t least = LEAF_EXPERT_LEAST; least <= LEAF_COUNT_LOW; least *= 2) {
                const uint32_t leaf = leaf_choose(n, unit, least);
                CU_ASSERT(leaf >= unit && leaf % unit == 0 && leaf <= LEAF_ELEMS_AIM);
                CU_ASSERT(leaf_count(n, leaf) <= LEAF_COUNT_MAX);
                if (leaf_count(n, unit) >= least) CU_ASSERT(leaf_count(n, leaf) >= least);
            }
        }
    }
}

/* Leaves of quantized tensors, also of short ones such as the demo's of 192 columns, are whole
 * groups and whole heads, and there are enough of them if the smallest group allows it. */
static void quantized_leaves_are_whole_groups_and_enough_of_them(void)
{
    static const uint32_t wholes[] = {1, 16, 32, 48, 64, 80, 96, 128, 192};
    for (uint64_t n = 1; n < 6000; n += 1 + n / 64) {
        for (unsigned i = 0; i < sizeof wholes / sizeof wholes[0]; i++) {
            for (uint32_t group = 32; group <= 128; group *= 2) {
                const uint32_t fit = leaf_fit_group(n, wholes[i], group, LEAF_DENSE_LEAST);
                const uint32_t unit = leaf_common_unit(wholes[i], fit);
                const uint32_t leaf = leaf_choose_quantized(n, unit, LEAF_DENSE_LEAST);
                const uint32_t least = leaf_common_unit(wholes[i], LEAF_GROUP_LEAST);
                CU_ASSERT(fit >= LEAF_GROUP_LEAST && fit <= group && group % fit == 0);
                CU_ASSERT_FATAL(leaf > 0 && leaf % fit == 0 && leaf % wholes[i] == 0);
                CU_ASSERT(leaf <= LEAF_ELEMS_AIM || leaf == unit);
                if (leaf_count(n, least) >= LEAF_DENSE_LEAST && least <= LEAF_ELEMS_AIM) {
                    CU_ASSERT(leaf_count(n, leaf) >= LEAF_DENSE_LEAST);
                }
            }
        }
    }
    CU_ASSERT_EQUAL(leaf_fit_group(192, 1, 128, LEAF_DENSE_LEAST), 32);
    CU_ASSERT_EQUAL(leaf_fit_group(192, 1, 128, LEAF_EXPERT_LEAST), 128);
    CU_ASSERT_EQUAL(leaf_fit_group(512, 80, 128, LEAF_DENSE_LEAST), 32); /* 128 and 80 have no
                                                                            common multiple below
                                                                            640 */
    CU_ASSERT_EQUAL(leaf_fit_group(1280, 80, 128, LEAF_DENSE_LEAST), 64);
    CU_ASSERT_EQUAL(leaf_fit_group(512, 64, 128, LEAF_DENSE_LEAST), 128);
}

void suite_leaf(CU_pSuite suite);
void suite_leaf(CU_pSuite suite)
{
    CU_add_test(suite, "the rule is the table", the_rule_is_the_table);
    CU_add_test(suite, "leaves are whole units, never too many",
                leaves_are_whole_units_and_never_more_than_the_law_allows);
    CU_add_test(suite, "quantized leaves are whole groups, and enough",
                quantized_leaves_are_whole_groups_and_enough_of_them);
}
