/* Tests moving rows between tokens and experts, and several linears in one op, against plain loops.
 */
#include "kernels/ops.h"
#include "util_kernels.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 70, N_CHOSEN = 3, WIDTH = 517, N_SLOTS = N_TOKENS * N_CHOSEN };

/* Gives the choices slots in a random order; a seventh of the choices is dropped (-1). Returns the
 * number of slots. */
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

/* Rows that experts computed, and the tokens' choices of them, of which a seventh are dropped. */
struct combined {
    size_t width, stride, n_slots;
    int32_t slots[N_SLOTS], bad[N_SLOTS];
    float *y, *weights;
    float *out; /* [N_TOKENS, width] */
    int32_t marks[2 * N_TOKENS];
    int64_t *sums; /* [N_TOKENS, width + 1] */
};

static struct combined combined_make(struct rng *r, size_t width, size_t every_special)
{
    struct combined c = {.width = width, .stride = width + 1};
    c.n_slots = make_slots(r, c.slots);
    c.y = test_floats(c.n_slots * c.stride);
    c.weights = test_floats(N_SLOTS);
    c.out = test_floats(N_TOKENS * width);
    c.sums = test_memory(N_TOKENS * (width + 1) * sizeof *c.sums);
    rng_floats(r, c.y, c.n_slots * c.stride, 4.0f);
    rng_floats(r, c.weights, N_SLOTS, 1.0f);
    if (every_special > 0) rng_specials(r, c.y, c.n_slots * c.stride, every_special);
    for (size_t i = 0; i < N_SLOTS; i++) c.bad[i] = (int32_t)rng_below(r, 3);
    return c;
}

static void combined_free(struct combined *c)
{
    free(c->y);
    free(c->weights);
    free(c->out);
    free(c->sums);
}

static struct combine_choices combined_choices(struct combined *c, bool keeps_sums)
{
    return (struct combine_choices){.y = c->y,
                                    .y_stride = c->stride,
                                    .width = c->width,
                                    .slots = c->slots,
                                    .weights = c->weights,
                                    .n_rows = N_TOKENS,
                                    .n_chosen = N_CHOSEN,
                                    .grid_bits = 32,
                                    .out = c->out,
                                    .bad = c->bad,
                                    .bad_stride = 1,
                                    .marks = c->marks,
                                    .sums = keeps_sums ? c->sums : NULL};
}

/* Computes by the contract, one value at a time: returns the sum of column d of token t, and adds
 * to *n_bad the number of values that do not fit the grid. */
static int64_t plain_sum(const struct combined *c, size_t t, size_t d, int64_t *n_bad)
{
    int64_t sum = 0;
    for (size_t i = t * N_CHOSEN; i < (t + 1) * N_CHOSEN; i++) {
        if (c->slots[i] < 0) continue;
        const double v = (double)c->weights[i] * (double)c->y[(size_t)c->slots[i] * c->stride + d];
        const bool fits = v > -0x1p19 && v < 0x1p19;
        sum += fits ? (int64_t)rint(v * 0x1p32) : 0;
        *n_bad += !fits;
    }
    return sum;
}

static int64_t plain_counter(const struct combined *c, size_t t)
{
    int64_t n = 0;
    for (size_t i = t * N_CHOSEN; i < (t + 1) * N_CHOSEN; i++)
        if (c->slots[i] >= 0) n += c->bad[c->slots[i]];
    return n;
}

/* Returns how many values of c->out, c->marks and c->sums differ from the contract, if each sum
 * began as 5 and each mark as 7. */
static size_t combined_wrong(const struct combined *c)
{
    size_t n_wrong = 0;
    for (size_t t = 0; t < N_TOKENS; t++) {
        const int64_t *sums = c->sums + t * (c->width + 1);
        int64_t n_bad = plain_counter(c, t);
        for (size_t d = 0; d < c->width; d++) {
            const int64_t sum = plain_sum(c, t, d, &n_bad);
            const float y = (float)((double)sum * 0x1p-32);
            n_wrong += f32_bits(y) != f32_bits(c->out[t * c->width + d]) || sums[d] != sum + 5;
        }
        n_wrong += c->marks[2 * t] != n_bad + 7 || c->marks[2 * t + 1] != 7;
        n_wrong += sums[c->width] != n_bad + 5;
    }
    return n_wrong;
}

static void combine_adds_on_the_grid(void)
{
    static const size_t widths[] = {1, 15, 16, 32, 47, 64, 131, WIDTH};
    struct rng r = {4};
    struct team *team = test_team(3);
    for (size_t i = 0; i < 6 * sizeof widths / sizeof widths[0]; i++) {
        struct kern_table table = i % 6 == 0 ? table_ref() : table_in_turn(i);
        struct combined c = combined_make(&r, widths[i / 6], i % 2 == 0 ? 0 : 150);
        if (i % 3 == 0) table.team = team;
        memset(c.out, 0xFF, N_TOKENS * c.width * sizeof *c.out);
        for (size_t j = 0; j < 2 * N_TOKENS; j++) c.marks[j] = 7;
        for (size_t j = 0; j < N_TOKENS * (c.width + 1); j++) c.sums[j] = 5;
        struct combine_choices a = combined_choices(&c, false);
        op_combine_choices(&table, &a);
        a = combined_choices(&c, true);
        op_combine_choices(&table, &a);
        CU_ASSERT_EQUAL(combined_wrong(&c), 0);
        combined_free(&c);
    }
    team_destroy(&team);
}

/* Values at and near the grid's limit, of both signs, are taken or counted as the contract says.
 * Half of the weights are 3, which moves limit / 3 to the limit. */
static void combine_at_the_limit(void)
{
    static const float limit = 0x1p19f;
    const float near[] = {limit,
                          nextafterf(limit, 0),
                          nextafterf(limit, INFINITY),
                          limit / 2,
                          nextafterf(limit / 2, 0),
                          limit / 3,
                          NAN,
                          INFINITY,
                          nextafterf(limit / 3, 0)};
    enum { N_NEAR = sizeof near / sizeof near[0] };
    struct rng r = {6};
    for (size_t i = 0; i < 6 * N_NEAR; i++) {
        struct kern_table table = i % 6 == 0 ? table_ref() : table_in_turn(i);
        struct combined c = combined_make(&r, 64, 0);
        for (size_t j = 0; j < N_SLOTS; j++) c.weights[j] = j % 2 == 0 ? 1 : 3;
        for (size_t t = 0; t < c.n_slots; t++)
            c.y[t * c.stride + t % c.width] = t % 4 < 2 ? near[i / 6] : -near[i / 6];
        for (size_t j = 0; j < 2 * N_TOKENS; j++) c.marks[j] = 7;
        for (size_t j = 0; j < N_TOKENS * (c.width + 1); j++) c.sums[j] = 5;
        struct combine_choices a = combined_choices(&c, false);
        op_combine_choices(&table, &a);
        a = combined_choices(&c, true);
        op_combine_choices(&table, &a);
        CU_ASSERT_EQUAL(combined_wrong(&c), 0);
        combined_free(&c);
    }
}

/* Swaps each token's first and last choice. */
static void turn_choices(struct combined *c)
{
    for (size_t t = 0; t < N_TOKENS; t++) {
        const size_t a = t * N_CHOSEN, b = a + N_CHOSEN - 1;
        const int32_t slot = c->slots[a];
        const float weight = c->weights[a];
        c->slots[a] = c->slots[b];
        c->weights[a] = c->weights[b];
        c->slots[b] = slot;
        c->weights[b] = weight;
    }
}

/* slots = the odd slots of `all` if odd is 1, the even ones if it is 0; the others are dropped. */
static void keep_choices(const int32_t *all, int32_t odd, int32_t *slots)
{
    for (size_t i = 0; i < N_SLOTS; i++) slots[i] = all[i] % 2 == odd ? all[i] : -1;
}

/* Any order of a token's choices, and any grouping of them into integer sums, gives the same
 * bits. */
static void combine_has_no_order(void)
{
    struct rng r = {5};
    const struct kern_table table = table_best();
    struct combined c = combined_make(&r, WIDTH, 300);
    float *first = test_floats(N_TOKENS * WIDTH);
    int32_t all[N_SLOTS], bad[N_TOKENS] = {0};
    struct combine_choices a = combined_choices(&c, false);
    op_combine_choices(&table, &a);
    memcpy(first, c.out, N_TOKENS * WIDTH * sizeof *first);
    turn_choices(&c);
    op_combine_choices(&table, &a);
    CU_ASSERT_EQUAL(memcmp(first, c.out, N_TOKENS * WIDTH * sizeof *first), 0);
    memcpy(all, c.slots, sizeof all);
    memset(c.sums, 0, N_TOKENS * (WIDTH + 1) * sizeof *c.sums);
    a = combined_choices(&c, true);
    for (int32_t odd = 0; odd < 2; odd++) {
        keep_choices(all, odd, c.slots);
        op_combine_choices(&table, &a);
    }
    memset(c.out, 0xFF, N_TOKENS * WIDTH * sizeof *c.out);
    op_grid(&table, &(struct grid_args){c.sums, N_TOKENS, WIDTH, 32, false, c.out, bad});
    CU_ASSERT_EQUAL(memcmp(first, c.out, N_TOKENS * WIDTH * sizeof *first), 0);
    for (size_t t = 0; t < N_TOKENS; t++) CU_ASSERT_EQUAL(2 * bad[t], c.marks[2 * t]);
    free(first);
    combined_free(&c);
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
    CU_add_test(suite, "combine adds on the grid", combine_adds_on_the_grid);
    CU_add_test(suite, "combine at the limit of the grid", combine_at_the_limit);
    CU_add_test(suite, "combine has no order", combine_has_no_order);
    CU_add_test(suite, "linears together equal linears alone",
                linears_together_equal_linears_alone);
}
