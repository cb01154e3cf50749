/* Tests the MoE block with experts placed on any rank, and with copies of experts: the same
 * bits as from one process, on every layout of these ranks. */
#include "mpi/util_moe.h"
#include "mpi/util_mpi.h"

static void experts_may_stand_anywhere(void)
{
    static const uint32_t counts[] = {1, 7, N_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        struct moe_case c = {
            .n_tokens = counts[i], .router = ROUTER_SOFTMAX_RENORM, .placed = true};
        util_moe_try(&c, NULL);
        c.policy = CAPACITY_NEXT;
        c.capacity_factor = 1;
        util_moe_try(&c, NULL);
    }
    const struct moe_case huge = {.n_tokens = 33, .huge = true, .placed = true};
    util_moe_try(&huge, NULL);
}

static void copies_give_the_same_bits(void)
{
    static const uint32_t counts[] = {7, N_MAX}, n_copies[] = {2, P_MAX};
    for (size_t i = 0; i < 4; i++) {
        const struct moe_case c = {.n_tokens = counts[i % 2],
                                   .router = ROUTER_SOFTMAX_RENORM,
                                   .placed = true,
                                   .n_copies = n_copies[i / 2]};
        util_moe_try(&c, NULL);
    }
    const struct moe_case crowded = {
        .n_tokens = N_MAX, .same_experts = true, .has_shared = true, .placed = true, .n_copies = 2};
    util_moe_try(&crowded, NULL);
    const struct moe_case dropped = {.n_tokens = 33,
                                     .router = ROUTER_SOFTMAX_RENORM,
                                     .policy = CAPACITY_DROP,
                                     .capacity_factor = 0.7,
                                     .placed = true,
                                     .n_copies = 3};
    util_moe_try(&dropped, NULL);
    const struct moe_case huge = {
        .n_tokens = 33, .first_replica_idle = true, .huge = true, .placed = true, .n_copies = 3};
    util_moe_try(&huge, NULL);
}

void suite_moe_places(CU_pSuite suite);
void suite_moe_places(CU_pSuite suite)
{
    CU_add_test(suite, "experts may stand anywhere", experts_may_stand_anywhere);
    CU_add_test(suite, "copies give the same bits", copies_give_the_same_bits);
}
