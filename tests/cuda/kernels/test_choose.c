/* What chooses, on the device and the reference: the router of every kind. */
#include "util_device.h"

#include <CUnit/CUnit.h>

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

/* Equal keys everywhere: the smallest ids win. */
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

void suite_choose(CU_pSuite suite);
void suite_choose(CU_pSuite suite)
{
    CU_ADD_TEST(suite, routers);
    CU_ADD_TEST(suite, ties);
}
