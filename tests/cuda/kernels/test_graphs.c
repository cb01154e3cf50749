/* Tests steps that are replayed as graphs, and copies beside them: the bytes must be those of
 * launches one by one, for arguments that stay, change a little or alternate, for more shapes than
 * are kept, and for uploads and rows of steps that nobody waits for. On the emulated driver also
 * with SHOAL_EMULATED=copies=1 and 2. */
#include "util_device.h"

#include "kernels/cuda/device_state.h"
#include "kernels/cuda/graphs.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

enum { N = 300, WORKS = 8, ARRAYS = 3 };

static struct graphs_count close_counted(struct both *b)
{
    const struct graphs_count n = graphs_counted(b->gpu.device);
    both_close(b);
    return n;
}

static void begin_step(const struct kern_table *k, size_t n_rows, size_t pos0)
{
    const int32_t blocks[64] = {0};
    const struct seq_rows seq = {0, n_rows, pos0, blocks, 0};
    op_step_begin(k, &seq, 1, n_rows);
}

/* Runs a step of WORKS launches, the last of which has its own argument w. */
static void run_step(const struct kern_table *k, float *h, const float *x, float w)
{
    begin_step(k, 1, 0);
    for (int i = 0; i < WORKS - 2; i++) op_add(k, h, x, N);
    op_scale(k, h, 0.5f, N);
    op_axpy(k, w, x, N, h);
}

/* Runs n steps whose argument changes every `every` steps. Returns how many results were right. */
static size_t run_steps(struct both *b, size_t n, size_t every)
{
    struct twin h = twin_floats(b, N, 3.0f, 0), x = twin_floats(b, N, 1.0f, 0);
    float found[N];
    size_t n_right = 0;
    for (size_t i = 0; i < n; i++) {
        const float w = (float)(i / every) + 0.25f;
        run_step(&b->cpu, h.host, x.host, w);
        run_step(&b->gpu, h.device, x.device, w);
        mem_ops_get(&b->gpu, found, h.device, sizeof found);
        n_right += memcmp(found, h.host, sizeof found) == 0;
    }
    twin_free(b, &h);
    twin_free(b, &x);
    return n_right;
}

static void steps_are_replayed(void)
{
    struct both b = both_open(51);
    CU_ASSERT_EQUAL(run_steps(&b, 20, 100), 20);
    const struct graphs_count n = close_counted(&b);
    CU_ASSERT_EQUAL(n.n_replayed, 19); /* the first step is launched without a graph */
    CU_ASSERT_EQUAL(n.n_changed, 0);
    CU_ASSERT_EQUAL(n.n_made, 1);
}

static void arguments_change(void)
{
    struct both b = both_open(52);
    CU_ASSERT_EQUAL(run_steps(&b, 20, 4), 20);
    const struct graphs_count n = close_counted(&b);
    CU_ASSERT_EQUAL(n.n_replayed, 19);
    CU_ASSERT_EQUAL(n.n_changed, 4);
    CU_ASSERT_EQUAL(n.n_made, 1);
}

static void arrays_come_in_turn(void)
{
    struct both b = both_open(53);
    struct twin h[ARRAYS], x = twin_floats(&b, N, 1.0f, 0);
    for (int i = 0; i < ARRAYS; i++) h[i] = twin_floats(&b, N, 2.0f, 0);
    for (int i = 0; i < 8 * ARRAYS; i++) {
        run_step(&b.cpu, h[i % ARRAYS].host, x.host, 0.5f);
        run_step(&b.gpu, h[i % ARRAYS].device, x.device, 0.5f);
        (void)device_compute(b.gpu.device);
    }
    for (int i = 0; i < ARRAYS; i++) {
        twin_same_floats(&b, &h[i], "arrays in turn");
        twin_free(&b, &h[i]);
    }
    twin_free(&b, &x);
    const struct graphs_count n = close_counted(&b);
    CU_ASSERT_EQUAL(n.n_changed, 0);
    CU_ASSERT_EQUAL(n.n_made, ARRAYS);
    CU_ASSERT_TRUE(n.n_replayed >= 8 * ARRAYS - 2);
}

/* Runs steps of so many shapes that their graphs would have twice the nodes that are kept, without
 * waiting; then an old shape comes back. */
static void old_graphs_go(void)
{
    enum { LONG = 1024, SHAPES = 2 * GRAPH_NODES_MAX / LONG };
    struct both b = both_open(54);
    struct twin h = twin_floats(&b, 4, 1.0f, 0), x = twin_floats(&b, 4, 1.0f, 0);
    for (size_t i = 0; i <= SHAPES; i++) {
        for (int again = 0; again < 2; again++) {
            begin_step(&b.gpu, i % SHAPES + 1, 0);
            for (int j = 0; j < LONG; j++) {
                op_add(&b.cpu, h.host, x.host, 4);
                op_add(&b.gpu, h.device, x.device, 4);
            }
            (void)device_compute(b.gpu.device);
        }
    }
    twin_same_floats(&b, &h, "many shapes");
    twin_free(&b, &h);
    twin_free(&b, &x);
    const struct graphs_count n = close_counted(&b);
    CU_ASSERT_EQUAL(n.n_made, SHAPES + 1);
    CU_ASSERT_EQUAL(n.n_replayed, SHAPES + 1);
    CU_ASSERT_EQUAL(n.n_in_graphs, (SHAPES + 1) * LONG);
}

/* Fills the ring of arguments several times without waiting. */
static void calls_come_round(void)
{
    enum { ROWS = 100000, CALLS = 24 };
    struct both b = both_open(56);
    struct twin x = twin_floats(&b, ROWS, 1.0f, 0), to[CALLS];
    int32_t *rows = malloc(ROWS * sizeof *rows);
    for (size_t i = 0; i < CALLS; i++) to[i] = twin_zeros(&b, ROWS * sizeof(float));
    device_wait(b.gpu.device); /* the only wait */
    for (size_t i = 0; i < CALLS; i++) {
        for (size_t r = 0; r < ROWS; r++) rows[r] = (int32_t)((r * (2 * i + 3) + i) % ROWS);
        struct gather_args a = {x.host, rows, ROWS, 1, to[i].host};
        op_gather_rows(&b.cpu, &a);
        a.from = x.device;
        a.to = to[i].device;
        op_gather_rows(&b.gpu, &a);
    }
    for (size_t i = 0; i < CALLS; i++) {
        twin_same_floats(&b, &to[i], "calls");
        twin_free(&b, &to[i]);
    }
    free(rows);
    twin_free(&b, &x);
    (void)close_counted(&b);
}

/* Steps that begin while earlier steps still compute: each has its own positions. */
static void steps_overlap(void)
{
    enum { STEPS = 9, ROWS = 5, HALF = 4 };
    struct both b = both_open(57);
    struct twin inv = twin_floats(&b, HALF, 1.0f, 0), c[STEPS], s[STEPS];
    for (size_t i = 0; i < STEPS; i++) {
        c[i] = twin_zeros(&b, ROWS * HALF * sizeof(float));
        s[i] = twin_zeros(&b, ROWS * HALF * sizeof(float));
    }
    device_wait(b.gpu.device);
    for (size_t i = 0; i < STEPS; i++) {
        int32_t positions[ROWS];
        const size_t pos0 = 100 * i + (i == 6 ? 2048 : 0); /* more blocks than the memory had
                                                              room for */
        for (size_t r = 0; r < ROWS; r++) positions[r] = (int32_t)(pos0 + r);
        begin_step(&b.gpu, ROWS, pos0);
        op_rope_table(&b.cpu, &(struct rope_table_args){.positions = positions,
                                                        .n_rows = ROWS,
                                                        .inv_freq = inv.host,
                                                        .rot = 2 * HALF,
                                                        .scale = 1.0f,
                                                        .cos = c[i].host,
                                                        .sin = s[i].host});
        op_rope_table(&b.gpu, &(struct rope_table_args){.positions = positions,
                                                        .n_rows = ROWS,
                                                        .inv_freq = inv.device,
                                                        .rot = 2 * HALF,
                                                        .scale = 1.0f,
                                                        .cos = c[i].device,
                                                        .sin = s[i].device});
    }
    for (size_t i = 0; i < STEPS; i++) {
        twin_same_floats(&b, &c[i], "cos of a step");
        twin_same_floats(&b, &s[i], "sin of a step");
        twin_free(&b, &c[i]);
        twin_free(&b, &s[i]);
    }
    twin_free(&b, &inv);
    (void)close_counted(&b);
}

static void results_arrive_together(void)
{
    enum { RESULTS = DEVICE_GETS + 3 };
    struct both b = both_open(58);
    struct twin x[RESULTS];
    float found[RESULTS][N];
    for (size_t i = 0; i < RESULTS; i++) {
        x[i] = twin_floats(&b, N, 1.0f, 0);
        op_scale(&b.cpu, x[i].host, 3.0f, N);
        op_scale(&b.gpu, x[i].device, 3.0f, N);
        mem_ops_get_later(&b.gpu, found[i], x[i].device, sizeof found[i]);
    }
    mem_ops_arrive(&b.gpu);
    for (size_t i = 0; i < RESULTS; i++) {
        CU_ASSERT_EQUAL(memcmp(found[i], x[i].host, sizeof found[i]), 0);
        twin_free(&b, &x[i]);
    }
    (void)close_counted(&b);
}

void suite_graphs(CU_pSuite suite);
void suite_graphs(CU_pSuite suite)
{
    CU_ADD_TEST(suite, steps_are_replayed);
    CU_ADD_TEST(suite, arguments_change);
    CU_ADD_TEST(suite, arrays_come_in_turn);
    CU_ADD_TEST(suite, old_graphs_go);
    CU_ADD_TEST(suite, calls_come_round);
    CU_ADD_TEST(suite, steps_overlap);
    CU_ADD_TEST(suite, results_arrive_together);
}
