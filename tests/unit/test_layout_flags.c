/* Layouts from flags: the values of those that are not given, and the sentence of each refusal. */
#include "parallel/layout/layout.h"

#include "util_models.h"

#include <CUnit/CUnit.h>

static struct layout built(const struct layout_model *m, uint32_t n, struct layout_flags flags)
{
    struct layout l;
    const struct status st = layout_build(m, n, &flags, &l);
    CU_ASSERT_FATAL(!status_failed(&st));
    return l;
}

struct derived {
    enum util_model model;
    uint32_t n_ranks;
    struct layout_flags flags, want;
};

static void missing_flags_follow_from_the_others(void)
{
    static const struct derived cases[] = {
        {MODEL_DEMO, 4, {0}, {.tp = 1, .pp = 1, .dp = 4, .ep = 4}},
        {MODEL_SMOLLM2, 4, {0}, {.tp = 1, .pp = 1, .dp = 4, .ep = 1}},
        {MODEL_DEMO, 4, {.ep = 4}, {.tp = 4, .pp = 1, .dp = 1, .ep = 4}},
        {MODEL_DEMO, 4, {.ep = 2}, {.tp = 2, .pp = 1, .dp = 2, .ep = 2}},
        {MODEL_DEMO, 4, {.ep = 2, .pp = 2}, {.tp = 2, .pp = 2, .dp = 1, .ep = 2}},
        {MODEL_DEMO, 4, {.dp = 2}, {.tp = 2, .pp = 1, .dp = 2, .ep = 4}},
        {MODEL_DEMO, 4, {.tp = 2, .dp = 2, .ep = 4}, {.tp = 2, .pp = 1, .dp = 2, .ep = 4}},
        {MODEL_DEMO, 8, {.tp = 2, .dp = 2}, {.tp = 2, .pp = 2, .dp = 2, .ep = 4}},
        {MODEL_DEMO, 16, {.dp = 8, .tp = 2}, {.tp = 2, .pp = 1, .dp = 8, .ep = 8}},
        {MODEL_QWEN3, 128, {.ep = 128}, {.tp = 32, .pp = 1, .dp = 4, .ep = 128}},
        {MODEL_SMOLLM2, 3, {.tp = 3}, {.tp = 3, .pp = 1, .dp = 1, .ep = 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct derived *c = &cases[i];
        const struct layout_model m = util_model(c->model);
        const struct layout l = built(&m, c->n_ranks, c->flags);
        CU_ASSERT(l.tp == c->want.tp && l.pp == c->want.pp);
        CU_ASSERT(l.dp == c->want.dp && l.ep == c->want.ep);
    }
}

static void an_experts_parts_lie_inside_a_tp_group(void)
{
    const struct layout_model m = util_model(MODEL_DEMO);
    const struct layout l = built(&m, 8, (struct layout_flags){.tp = 4, .dp = 2, .ep = 4});
    CU_ASSERT_EQUAL(l.etp, 2);
    CU_ASSERT_EQUAL(l.n_expert_replicas, 1);
    CU_ASSERT(l.pp_outermost);
    const struct layout_place p = layout_place_of(&l, 7);
    CU_ASSERT(p.dp == 1 && p.tp == 3 && p.ep == 3 && p.etp == 1);
}

struct refusal {
    enum util_model model;
    uint32_t n_ranks;
    struct layout_flags flags;
    const char *sentence;
};

static void refusals_name_what_expected_and_found(void)
{
    static const struct refusal cases[] = {
        {MODEL_SMOLLM2,
         16,
         {.tp = 16},
         "--tp 16: SmolLM2-135M has 9 query heads; tp may be at most 9"},
        {MODEL_MIXTRAL,
         32,
         {.tp = 32},
         "--tp 32: Mixtral-8x7B has 32 query heads in 16 units of 2 (o_proj's leaves have 256 "
         "elements); tp may be at most 16"},
        {MODEL_DEMO, 5, {.pp = 5}, "--pp 5: demo has 4 layers; pp may be at most 4"},
        {MODEL_SMOLLM2,
         2,
         {.ep = 2},
         "--ep 2: SmolLM2-135M is dense, it has no experts; ep may only be 1"},
        {MODEL_DEMO, 16, {.ep = 16}, "--ep 16: demo has 8 experts; ep may be at most 8"},
        {MODEL_DEMO,
         4,
         {.tp = 2, .dp = 2, .ep = 3},
         "--ep 3 does not divide the 4 ranks of a stage (dp 2 x tp 2)"},
        {MODEL_DEMO,
         6,
         {.tp = 2, .pp = 2, .dp = 2},
         "tp 2 x pp 2 x dp 2 needs 8 ranks, but there are 6"},
        {MODEL_DEMO, 4, {.tp = 3}, "tp 3 x pp 1 needs a multiple of 3 ranks, but there are 4"},
        {MODEL_DEMO,
         4,
         {.ep = 3},
         "--ep 3 alone means tp 3: tp 3 x pp 1 needs a multiple of 3 ranks, but there are 4"},
        {MODEL_DEMO,
         6,
         {.tp = 2, .dp = 2},
         "tp 2 x dp 2 needs a multiple of 4 ranks, but there are 6"},
        {MODEL_DEMO, 6, {.dp = 4}, "pp 1 x dp 4 needs a multiple of 4 ranks, but there are 6"},
        {MODEL_DEMO, 4, {.dp = 4000000000}, "--dp 4000000000: there are only 4 ranks"},
        {MODEL_DEMO, 0, {0}, "0 ranks, expected 1 to 65536"},
        {MODEL_DEMO, 70000, {0}, "70000 ranks, expected 1 to 65536"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct layout_model m = util_model(cases[i].model);
        struct layout l;
        const struct status st = layout_build(&m, cases[i].n_ranks, &cases[i].flags, &l);
        CU_ASSERT_EQUAL(st.code, STATUS_USAGE);
        CU_ASSERT_STRING_EQUAL(st.text, cases[i].sentence);
    }
}

static void expect_bad_model(const struct layout_model *m, const char *sentence)
{
    struct layout l;
    const struct status st = layout_build(m, 1, &(struct layout_flags){0}, &l);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_STRING_EQUAL(st.text, sentence);
}

/* Returns a model whose description is *arch, a copy that the test may change. */
static struct layout_model bad_model(enum util_model which, struct arch *arch)
{
    struct layout_model m = util_model(which);
    *arch = *m.arch;
    m.arch = arch;
    return m;
}

static void impossible_models_are_refused(void)
{
    struct arch arch;
    struct layout_model m = bad_model(MODEL_DEMO, &arch);
    arch.attn.n_heads = 0;
    expect_bad_model(&m, "demo: 0 query heads and 4 kv heads, expected a positive multiple");
    m = bad_model(MODEL_DEMO, &arch);
    arch.attn.n_kv_heads = 3;
    expect_bad_model(&m, "demo: 8 query heads and 3 kv heads, expected a positive multiple");
    m = bad_model(MODEL_DEMO, &arch);
    arch.moe.n_chosen = 9;
    expect_bad_model(&m, "demo: 9 experts chosen per token, expected 1 to 8");
    m = bad_model(MODEL_DEMO, &arch);
    arch.n_layers = ARCH_LAYERS_MAX + 1;
    expect_bad_model(&m, "demo: 513 layers, expected 1 to 512");
    m = bad_model(MODEL_DEMO, &arch);
    m.o_leaf = 48;
    expect_bad_model(&m, "demo: leaves of o_proj have 48 elements, expected a multiple of the head "
                         "dimension 32");
    m = bad_model(MODEL_DEMO, &arch);
    arch.moe.n_experts = 0;
    expect_bad_model(&m, "demo: MoE layers need experts, found 0 of width 192");
    m = bad_model(MODEL_SMOLLM2, &arch);
    arch.ffn = 0;
    expect_bad_model(&m, "SmolLM2-135M: dense layers need an FFN width, found 0");
    m = bad_model(MODEL_DEMO, &arch);
    arch.vocab = 0;
    expect_bad_model(&m, "demo: head dimension 32, width 128, vocabulary 0, 4 bytes per weight: "
                         "expected none to be 0");
}

void suite_layout_flags(CU_pSuite suite);
void suite_layout_flags(CU_pSuite suite)
{
    CU_add_test(suite, "missing flags follow", missing_flags_follow_from_the_others);
    CU_add_test(suite, "an expert's parts lie inside a tp group",
                an_experts_parts_lie_inside_a_tp_group);
    CU_add_test(suite, "refusals", refusals_name_what_expected_and_found);
    CU_add_test(suite, "impossible models", impossible_models_are_refused);
}
