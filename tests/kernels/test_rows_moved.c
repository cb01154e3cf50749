/* Tests moving rows between tokens and experts, and several linears in one op, against plain loops.
 */
#include "kernels/ops.h"
#include "util_kernels.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 70, N_CHOSEN = 3, WIDTH = 517, N_SLOTS = N_TOKENS * N_CHOSEN };

/* A permutation of slots in which every seventh choice is dropped. */
static size_t make_slots(struct rng *r, int32_t *slots)
{
    size_t n = 0;
    for (size_t i = 0; i < N_SLOTS; i++) slots[i] = i % 7 == 6 ? -1 : (int32_t)n++;
    for (size_t i = N_SLOTS - 1; i > 0; i--) {
        const size_t j = rng_next(r) % (i + 1);
        const int32_t other = slots[j];
        slots[j] = slots[i];
        slots[i] = other;
    }
    return n;
}

static void rows_reach_their_slots(void)
{
    struct rng r = {3};
    int32_t slots[N_SLOTS];
    const size_t n = make_slots(&r, slots);
    float *x = test_floats(N_TOKENS * WIDTH), *to = test_floats(n * WIDTH);
    rng_floats(&r, x, N_TOKENS * WIDTH, 1.0f);
    const struct scatter_args a = {
        .x = x, .slots = slots, .n_slots = N_SLOTS, .per_row = N_CHOSEN, .width = WIDTH, .to = to};
    const struct kern_table table = table_best();
    op_scatter_rows(&table, &a);
    size_t n_wrong = 0;
    for (size_t i = 0; i < N_SLOTS; i++)
        if (slots[i] >= 0 &&
            memcmp(to + (size_t)slots[i] * WIDTH, x + i / N_CHOSEN * WIDTH, WIDTH * sizeof *x) != 0)
            n_wrong++;
    CU_ASSERT_EQUAL(n_wrong, 0);
    free(x);
    free(to);
}

static void combine_is_a_chain_of_fma(void)
{
    enum { STRIDE = WIDTH + 1 };
    struct rng r = {4};
    const struct kern_table tables[] = {table_ref(), table_best()};
    int32_t slots[N_SLOTS];
    const size_t n = make_slots(&r, slots);
    float *y = test_floats(n * STRIDE), *weights = test_floats(N_SLOTS);
    float *out = test_floats(N_TOKENS * WIDTH);
    rng_floats(&r, y, n * STRIDE, 1.0f);
    rng_floats(&r, weights, N_SLOTS, 1.0f);
    for (int i = 0; i < 2; i++) {
        const struct combine_args a = {.y = y,
                                       .y_stride = STRIDE,
                                       .width = WIDTH,
                                       .slots = slots,
                                       .weights = weights,
                                       .n_rows = N_TOKENS,
                                       .n_chosen = N_CHOSEN,
                                       .out = out};
        size_t n_wrong = 0;
        memset(out, 0xFF, N_TOKENS * WIDTH * sizeof *out);
        op_combine_rows(&tables[i], &a);
        for (size_t t = 0; t < N_TOKENS; t++) {
            for (size_t d = 0; d < WIDTH; d++) {
                float acc = 0.0f;
                for (size_t c = t * N_CHOSEN; c < (t + 1) * N_CHOSEN; c++)
                    if (slots[c] >= 0)
                        acc = fmaf(weights[c], y[(size_t)slots[c] * STRIDE + d], acc);
                if (f32_bits(acc) != f32_bits(out[t * WIDTH + d])) n_wrong++;
            }
        }
        CU_ASSERT_EQUAL(n_wrong, 0);
    }
    free(y);
    free(weights);
    free(out);
}

/* Three weights of different widths and types, one without outputs, on 1 to 3 threads. */
static void linears_together_equal_linears_alone(void)
{
    enum { N_IN = 300, N_ROWS = 101, N = 3 };
    static const size_t n_out[N] = {130, 0, 77};
    static const enum dtype types[N] = {DTYPE_F16, DTYPE_F32, DTYPE_BF16};
    struct kern_table table = table_best();
    struct team *team = test_team(3);
    struct rng r = {6};
    struct packed w[N];
    struct linear_group groups[N];
    struct linear_args args[N];
    float *x = test_floats(N_ROWS * N_IN), *alone[N], *together[N];
    rng_floats(&r, x, N_ROWS * N_IN, 1.0f);
    for (size_t i = 0; i < N; i++) {
        const size_t n = N_ROWS * (n_out[i] + 1);
        w[i] = random_packed(&r, types[i], n_out[i], N_IN, 0, 32, 0);
        groups[i] = (struct linear_group){.w = &w[i], .row0 = 0, .n_rows = N_ROWS};
        alone[i] = test_floats(n);
        together[i] = test_floats(n);
        args[i] = (struct linear_args){.groups = &groups[i],
                                       .n_groups = 1,
                                       .x = x,
                                       .x_stride = N_IN,
                                       .y = alone[i],
                                       .y_stride = n_out[i]};
        op_linear(&table, &args[i]);
        args[i].y = together[i];
    }
    table.team = team;
    for (uint32_t threads = 1; threads <= 3; threads++) {
        team_use(team, threads);
        for (size_t i = 0; i < N; i++) memset(together[i], 0xFF, N_ROWS * n_out[i] * sizeof *x);
        op_linears(&table, args, N);
        for (size_t i = 0; i < N; i++)
            CU_ASSERT_EQUAL(memcmp(alone[i], together[i], N_ROWS * n_out[i] * sizeof *x), 0);
    }
    team_destroy(&team);
    free(x);
    for (size_t i = 0; i < N; i++) {
        free(packed_memory(&w[i]));
        free(alone[i]);
        free(together[i]);
    }
}

void suite_rows_moved(CU_pSuite suite);
void suite_rows_moved(CU_pSuite suite)
{
    CU_add_test(suite, "rows reach their slots", rows_reach_their_slots);
    CU_add_test(suite, "combine is a chain of fma", combine_is_a_chain_of_fma);
    CU_add_test(suite, "linears together equal linears alone",
                linears_together_equal_linears_alone);
}
