/* Tests the MoE block on every layout of these ranks against one process that computes each token
 * by itself, by the numerics law: outputs, counters, drops and loads must be equal, bit for bit. */
#include "mpi/util_moe.h"
#include "mpi/util_mpi.h"

static void every_layout_gives_the_same_bits(void)
{
    static const uint32_t counts[] = {0, 1, 2, 7, 33, N_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct moe_case c = {.n_tokens = counts[i], .router = ROUTER_SOFTMAX_RENORM};
        util_moe_try(&c, NULL);
        c.router = ROUTER_SOFTMAX;
        util_moe_try(&c, NULL);
    }
}

static void groups_shared_rows_and_scales_give_the_same_bits(void)
{
    const struct moe_case c = {
        .n_tokens = 33, .router = ROUTER_SIGMOID, .has_shared = true, .residual_scale = 0.22f};
    util_moe_try(&c, NULL);
}

static void an_idle_replica_takes_part(void)
{
    const struct moe_case c = {.n_tokens = 9, .first_replica_idle = true};
    util_moe_try(&c, NULL);
}

/* So many rows of two experts that ranks without these experts take some of them. */
static void rows_of_few_experts_are_shared(void)
{
    const struct moe_case c = {.n_tokens = N_MAX, .same_experts = true, .has_shared = true};
    util_moe_try(&c, NULL);
    const struct moe_case placed = {.n_tokens = N_MAX, .same_experts = true, .placed = true};
    util_moe_try(&placed, NULL);
}

static void all_tokens_may_choose_the_same_experts(void)
{
    const struct moe_case c = {.n_tokens = 21, .same_experts = true};
    const struct moe_answer *a = util_moe_try(&c, NULL);
    CU_ASSERT(a->load[2] == 21 && a->load[3] == 21 && a->load[0] == 0 && a->load[5] == 0);
}

static void ranks_without_a_leaf_take_part(void)
{
    size_t n_empty = 0;
    const struct moe_case c = {.n_tokens = 11};
    util_moe_try(&c, &n_empty);
    int64_t sum = 0, mine = (int64_t)n_empty;
    MPI_Allreduce(&mine, &sum, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    CU_ASSERT_EQUAL(sum > 0, util_n_ranks() == 4); /* 3 leaves on etp 4 */
}

static void leaves_beyond_the_grid_are_counted_in_their_rows(void)
{
    const struct moe_case c = {.n_tokens = 33, .huge = true};
    const struct moe_answer *a = util_moe_try(&c, NULL);
    size_t n_bad = 0, n_good = 0;
    for (size_t t = 0; t < c.n_tokens; t++) {
        n_bad += a->bad[t] > 0;
        n_good += a->bad[t] == 0;
        if (a->bad[t] > 0) CU_ASSERT(util_moe_chosen(a, t, K, 3));
    }
    CU_ASSERT(n_bad > 0 && n_good > 0);
}

/* Rows do not travel to zero-computation experts. These are some or all of a token's choices. */
static void experts_without_weights_give_back_their_input(void)
{
    const struct moe_case few = {.n_tokens = 33, .has_zero = true};
    const struct moe_case shared = {.n_tokens = N_MAX,
                                    .router = ROUTER_SOFTMAX_RENORM,
                                    .has_zero = true,
                                    .has_shared = true,
                                    .residual_scale = 0.5f,
                                    .placed = true};
    const struct moe_case copied = {
        .n_tokens = 40, .has_zero = true, .placed = true, .n_copies = 3};
    const struct moe_case only = {.n_tokens = 17, .has_zero = true, .only_zero = true};
    const struct moe_answer *a = util_moe_try(&few, NULL);
    size_t n_zero = 0, n_mixed = 0;
    for (size_t t = 0; t < few.n_tokens; t++) {
        n_zero += a->zero[t] != 0;
        n_mixed += a->zero[t] != 0 && (a->ids[t][0] >= 0 || a->ids[t][1] >= 0);
    }
    CU_ASSERT(n_mixed > 0 && n_zero < few.n_tokens);
    util_moe_try(&shared, NULL);
    util_moe_try(&copied, NULL);
    a = util_moe_try(&only, NULL);
    for (size_t t = 0; t < only.n_tokens; t++)
        CU_ASSERT(a->ids[t][0] == -1 && a->ids[t][1] == -1 && a->zero[t] > 0);
}

static void capacity_is_agreed_over_the_microbatch(void)
{
    static const enum capacity_policy policies[] = {CAPACITY_DROP, CAPACITY_NEXT, CAPACITY_TOP1};
    for (size_t i = 0; i < 3; i++) {
        for (int idle = 0; idle < 2; idle++) {
            const struct moe_case c = {.n_tokens = 33,
                                       .first_replica_idle = idle == 1,
                                       .same_experts = idle == 1,
                                       .router = ROUTER_SOFTMAX_RENORM,
                                       .policy = policies[i],
                                       .capacity_factor = 0.7};
            const struct moe_answer *a = util_moe_try(&c, NULL);
            int64_t n_dropped = 0;
            for (size_t t = 0; t < c.n_tokens; t++) n_dropped += a->dropped[t];
            CU_ASSERT(n_dropped > 0);
        }
    }
    const struct moe_case nothing = {.n_tokens = 0, .policy = CAPACITY_DROP, .capacity_factor = 1};
    util_moe_try(&nothing, NULL);
}

void suite_moe(CU_pSuite suite);
void suite_moe(CU_pSuite suite)
{
    CU_add_test(suite, "every layout gives the same bits", every_layout_gives_the_same_bits);
    CU_add_test(suite, "groups, shared rows and scales give the same bits",
                groups_shared_rows_and_scales_give_the_same_bits);
    CU_add_test(suite, "an idle replica takes part", an_idle_replica_takes_part);
    CU_add_test(suite, "rows of few experts are shared", rows_of_few_experts_are_shared);
    CU_add_test(suite, "all tokens may choose the same experts",
                all_tokens_may_choose_the_same_experts);
    CU_add_test(suite, "ranks without a leaf take part", ranks_without_a_leaf_take_part);
    CU_add_test(suite, "leaves beyond the grid are counted in their rows",
                leaves_beyond_the_grid_are_counted_in_their_rows);
    CU_add_test(suite, "experts without weights give back their input",
                experts_without_weights_give_back_their_input);
    CU_add_test(suite, "capacity is agreed over the microbatch",
                capacity_is_agreed_over_the_microbatch);
}
