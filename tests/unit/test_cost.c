/* Tests the cost model: curves, the node's file, the seconds of a step for given rows, ranks and
 * layout (cost/step_cost.h), and forecasts of jobs. The node's speeds are round numbers. */
#include "cost/step_cost.h"

#include "base/mem.h"
#include "cost/forecast.h"
#include "cost/forecast_table.h"
#include "parallel/layout/layout_choose.h"
#include "util_cost.h"
#include "util_models.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <string.h>

static void expect_near(double found, double wanted)
{
    const bool near = fabs(found - wanted) <= 1e-9 * fabs(wanted);
    if (!near) printf("found %.12g, expected %.12g\n", found, wanted);
    CU_ASSERT_TRUE(near);
}

/* --- curves and files --------------------------------------------------------------------- */

static void curves_are_straight_lines_of_logarithms(void)
{
    struct curve c = {0};
    expect_near(curve_at(&c, 3), 0);
    CU_ASSERT_EQUAL(curve_add(&c, 1, 2).code, STATUS_OK);
    CU_ASSERT_EQUAL(curve_add(&c, 4, 8).code, STATUS_OK);
    CU_ASSERT_EQUAL(curve_add(&c, 16, 8).code, STATUS_OK);
    expect_near(curve_at(&c, 0.5), 2);
    expect_near(curve_at(&c, 2), 4);
    expect_near(curve_at(&c, 8), 8);
    expect_near(curve_at(&c, 64), 8);
    expect_near(curve_time_at(&c, 64), 32);
    CU_ASSERT_EQUAL(curve_add(&c, 16, 9).code, STATUS_INPUT);
    CU_ASSERT_EQUAL(curve_add(&c, 17, 0).code, STATUS_INPUT);
    CU_ASSERT_EQUAL(curve_add(&c, 17, NAN).code, STATUS_INPUT);
    while (c.n < CURVE_POINTS_MAX) CU_ASSERT_EQUAL(curve_add(&c, 100 + c.n, 1).code, STATUS_OK);
    CU_ASSERT_EQUAL(curve_add(&c, 1e6, 1).code, STATUS_INPUT);
}

static void a_file_comes_back(void)
{
    struct node n, back;
    struct strbuf text;
    util_node(&n, 4, 2);
    strbuf_init(&text);
    CU_ASSERT_EQUAL(node_write(&n, &text).code, STATUS_OK);
    const struct status st = node_parse(text.data, text.n, "a.json", &back);
    CU_ASSERT_STRING_EQUAL(st.text, "");
    CU_ASSERT_EQUAL(memcmp(&n, &back, sizeof n), 0);
    strbuf_fini(&text);
}

/* Parses the node's file with `from` replaced by `to`, and expects an error that contains `says`.
 */
static void refuse_changed(const char *from, const char *to, const char *says)
{
    struct node n, back;
    struct strbuf text, changed;
    util_node(&n, 4, 2);
    strbuf_init(&text);
    strbuf_init(&changed);
    CU_ASSERT_EQUAL(node_write(&n, &text).code, STATUS_OK);
    const char *at = strstr(text.data, from);
    CU_ASSERT_PTR_NOT_NULL_FATAL(at);
    strbuf_add(&changed, text.data, (size_t)(at - text.data));
    strbuf_puts(&changed, to);
    strbuf_puts(&changed, at + strlen(from));
    const struct status st = node_parse(changed.data, changed.n, "a.json", &back);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, says));
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "a.json"));
    if (strstr(st.text, says) == NULL) printf("%s\n", st.text);
    strbuf_fini(&text);
    strbuf_fini(&changed);
}

static void wrong_files_are_refused(void)
{
    struct node n;
    refuse_changed("\"shoal_node\":2", "\"shoal_node\":99", "another version");
    refuse_changed("\"shoal_node\":2", "\"other\":1", "no file of `shoal bench");
    refuse_changed(SHOAL_VERSION, "0.0.1", "was measured by shoal 0.0.1");
    refuse_changed("\"norm_s\":", "\"norm\":", "\"norm_s\"");
    refuse_changed("\"norm_s\":", "\"norm_s\":-", "\"norm_s\"");
    refuse_changed("\"norm_s\":", "\"norm_s\":1e-300,\"x\":", "\"norm_s\"");
    refuse_changed("\"disk_bytes_s\":", "\"disk_bytes_s\":1e300,\"x\":", "\"disk_bytes_s\"");
    refuse_changed("\"disk_bytes_s\":", "\"disk_bytes_s\":-1,\"x\":", "\"disk_bytes_s\"");
    refuse_changed("\"read\":[[", "\"read\":[[1e-300,1],[", "\"read\"");
    refuse_changed("\"n_ranks\":2", "\"n_ranks\":2000", "\"n_ranks\"");
    refuse_changed("\"a CPU\"", "\"a\\u0000CPU\"", "\"cpu\"");
    refuse_changed("\"read\":[[", "\"read\":[[-", "\"read\"");
    refuse_changed("\"int8\":{\"memory\"", "\"int8\":{\"other\"", "int8");
    CU_ASSERT_EQUAL(node_parse("{", 1, "a.json", &n).code, STATUS_INPUT);
}

static void networks_are_parsed(void)
{
    static const char *const wrong[] = {"",  "x",         "-1",     "1e9",      "100,", "100Gbit,",
                                        "0", "100,2usec", "100 ,2", "100Gbits", "nan"};
    static const struct {
        const char *text;
        double gbit_s, latency_s;
    } right[] = {{"100", 100, 0},        {"100Gbit", 100, 0},
                 {"250Mbit", 0.25, 0},   {"100Gbit,2us", 100, 2e-6},
                 {"12.5,3", 12.5, 3e-6}, {"1Gbit,0.5ms", 1, 5e-4}};
    struct layout_network n;
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        CU_ASSERT_TRUE(layout_network_parse(right[i].text, &n));
        CU_ASSERT_DOUBLE_EQUAL(n.gbit_s, right[i].gbit_s, 1e-12);
        CU_ASSERT_DOUBLE_EQUAL(n.latency_s, right[i].latency_s, 1e-15);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CU_ASSERT_FALSE(layout_network_parse(wrong[i], &n));
        if (layout_network_parse(wrong[i], &n)) printf("\"%s\" was taken\n", wrong[i]);
    }
}

static void a_format_that_was_not_measured_is_like_a_similar_one(void)
{
    struct node n;
    util_node(&n, 4, 2);
    CU_ASSERT_PTR_EQUAL(node_linear_of(&n, NODE_INT8), &n.linear[NODE_INT8]);
    n.linear[NODE_INT8].memory.n = 0;
    CU_ASSERT_PTR_EQUAL(node_linear_of(&n, NODE_INT8), &n.linear[NODE_INT8_G32]);
    memset(n.linear, 0, sizeof n.linear);
    CU_ASSERT_PTR_NULL(node_linear_of(&n, NODE_INT8));
}

/* --- a step ------------------------------------------------------------------------------- */

/* A layout of a model on hosts of two ranks, and its cost model. */
struct setup {
    struct node node;
    struct layout_model model;
    struct topo *topo;
    uint32_t *order;
    struct layout l;
    struct cost_model m;
};

static void setup_init(struct setup *s, enum util_model model, uint32_t n_nodes,
                       struct layout_flags flags)
{
    char spec[64];
    memset(s, 0, sizeof *s);
    util_node(&s->node, 4, 2);
    s->model = util_model(model);
    snprintf(spec, sizeof spec, "%ux\"pack:1 numa:2 core:2 pu:1\"", n_nodes);
    struct status st = topo_describe(spec, 0, 0, (uint64_t)1 << 40, &s->topo);
    CU_ASSERT_STRING_EQUAL_FATAL(st.text, "");
    const struct layout_budget budget = {.kv = {2, 0}, .step_tokens = 512, .min_kv_blocks = 16};
    bool fits;
    st = mem_alloc(&s->order, s->topo->n_ranks, sizeof *s->order, "order");
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    st = layout_choose(&s->model, s->topo, &flags, &budget, &s->l, s->order, &fits);
    CU_ASSERT_STRING_EQUAL_FATAL(st.text, "");
    layout_expect_cuts(s->topo, s->order, &s->l);
    st = cost_model_init(&s->m, &s->node, &s->l, s->topo, s->order);
    CU_ASSERT_STRING_EQUAL_FATAL(st.text, "");
}

static void setup_fini(struct setup *s)
{
    topo_destroy(&s->topo);
    mem_free(&s->order);
}

/* Makes a step of each replica: n sequences of n_rows rows each, all from position pos0. */
static void make_rows(struct cost_rows *rows, uint32_t dp, uint32_t n, double n_rows, double pos0)
{
    for (uint32_t r = 0; r < dp; r++) {
        rows[r] = (struct cost_rows){0};
        for (uint32_t i = 0; i < n; i++) cost_rows_add(&rows[r], pos0, n_rows, 1, 0);
    }
}

static void rows_see_positions(void)
{
    struct cost_rows r = {0};
    cost_rows_add(&r, 0, 10, 1, 4); /* sees 1 + .. + 10; with a window 1 + 2 + 3 + 7 * 4 */
    expect_near(r.many[COST_FULL], 55);
    expect_near(r.many[COST_WINDOWED], 34);
    cost_rows_add(&r, 100, 1, 1, 4);
    expect_near(r.one[COST_FULL], 101);
    expect_near(r.one[COST_WINDOWED], 4);
    expect_near(r.n_one, 1);
    expect_near(r.n_rows, 11);
    expect_near(r.n_sampled, 2);
}

/* One row takes the time to read all weights once; hundreds of rows take that of the arithmetic. */
static void few_rows_read_and_many_multiply(void)
{
    struct setup s;
    struct cost_rows rows[2];
    setup_init(&s, MODEL_SMOLLM2, 1, (struct layout_flags){.tp = 1, .dp = 2});
    double weights = 0;
    for (int f = 0; f < NODE_FORMAT_COUNT; f++) weights += s.m.stages[0].dense[f];
    const struct arch *a = s.model.arch;
    expect_near(weights, (double)arch_token_params(a));
    make_rows(rows, 2, 1, 1, 10);
    struct cost c = cost_stage_of(&s.m, 0, rows);
    CU_ASSERT_EQUAL(cost_bound(&c), COST_WEIGHTS);
    /* two ranks read at 10 GB/s together */
    expect_near(c.s[COST_WEIGHTS], 2 * weights * s.m.weight_bytes[NODE_BF16] / 10e9);
    CU_ASSERT_TRUE(c.s[COST_IMBALANCE] < 1e-12);
    make_rows(rows, 2, 1, 512, 0);
    c = cost_stage_of(&s.m, 0, rows);
    CU_ASSERT_EQUAL(cost_bound(&c), COST_ARITHMETIC);
    expect_near(c.s[COST_WEIGHTS] + c.s[COST_ARITHMETIC],
                2 * weights * curve_time_at(&s.node.linear[NODE_BF16].memory, 512));
    setup_fini(&s);
}

/* A step takes as long as the disk or as all else, whichever is longer. */
static void the_disk_hides_behind_rows(void)
{
    enum { SLOW = 1000000 };
    enum { EXPERTS = 8, CHOSEN = 2 }; /* of Mixtral */
    struct setup s;
    struct cost_rows rows[2];
    setup_init(&s, MODEL_MIXTRAL, 1, (struct layout_flags){.tp = 1, .dp = 2});
    double n_bytes = 0;
    for (int f = 0; f < NODE_FORMAT_COUNT; f++)
        n_bytes += s.m.stages[0].expert[f] * s.m.weight_bytes[f];
    make_rows(rows, 2, 1, 512, 0);
    const struct cost all = cost_stage_of(&s.m, 0, rows);
    CU_ASSERT_EQUAL(all.s[COST_DISK], 0);
    s.m.streamed = 0.5; /* two ranks read half of their experts each */
    s.node.disk_bytes_s = SLOW;
    struct cost c = cost_stage_of(&s.m, 0, rows);
    expect_near(cost_total(&c), 2 * 0.5 * n_bytes / SLOW);
    CU_ASSERT_EQUAL(cost_bound(&c), COST_DISK);
    s.node.disk_bytes_s = 1e15;
    c = cost_stage_of(&s.m, 0, rows);
    expect_near(cost_total(&c), cost_total(&all));
    make_rows(rows, 2, 1, 1, 10); /* one row in each replica; the replicas share the experts */
    s.node.disk_bytes_s = SLOW;
    c = cost_stage_of(&s.m, 0, rows);
    const double touched = 1 - pow(1 - (double)CHOSEN / EXPERTS, s.m.n_batches);
    expect_near(cost_total(&c), 2 * 0.5 * n_bytes * touched / SLOW);
    s.l.model.streams_experts = true;
    CU_ASSERT_EQUAL(cost_model_init(&s.m, &s.node, &s.l, s.topo, s.order).code, STATUS_OK);
    CU_ASSERT_EQUAL(s.m.streamed, 1);
    s.node.disk_bytes_s = 0;
    CU_ASSERT_EQUAL(cost_model_init(&s.m, &s.node, &s.l, s.topo, s.order).code, STATUS_INPUT);
    setup_fini(&s);
}

static void replicas_wait_for_the_fullest(void)
{
    struct setup s;
    struct cost_rows rows[2], even[2];
    setup_init(&s, MODEL_SMOLLM2, 1, (struct layout_flags){.tp = 1, .dp = 2});
    make_rows(rows, 2, 1, 64, 0);
    make_rows(even, 2, 1, 64, 0);
    rows[1] = (struct cost_rows){0};
    const struct cost c = cost_stage_of(&s.m, 0, rows), full = cost_stage_of(&s.m, 0, even);
    expect_near(cost_total(&c), cost_total(&full));
    expect_near(c.s[COST_IMBALANCE], cost_total(&full) / 2);
    setup_fini(&s);
}

/* With tp 2 each rank reads fewer bytes of weights, but the ranks add sums; between hosts sums cost
 * more. */
static void tp_halves_weights_and_adds_sums(void)
{
    struct setup one, two, far;
    struct cost_rows rows[4];
    make_rows(rows, 4, 1, 32, 0);
    setup_init(&one, MODEL_SMOLLM2, 1, (struct layout_flags){.tp = 1, .dp = 2});
    setup_init(&two, MODEL_SMOLLM2, 1, (struct layout_flags){.tp = 2, .dp = 1});
    setup_init(&far, MODEL_SMOLLM2, 2, (struct layout_flags){.tp = 4, .dp = 1});
    const struct cost a = cost_stage_of(&one.m, 0, rows), b = cost_stage_of(&two.m, 0, rows),
                      c = cost_stage_of(&far.m, 0, rows);
    CU_ASSERT_TRUE(b.s[COST_WEIGHTS] < 0.7 * a.s[COST_WEIGHTS]);
    CU_ASSERT_TRUE(a.s[COST_SUMS] == 0 && b.s[COST_SUMS] > 0);
    CU_ASSERT_TRUE(c.s[COST_SUMS] > b.s[COST_SUMS]);
    setup_fini(&one);
    setup_fini(&two);
    setup_fini(&far);
}

/* Of Mixtral's 8 experts one row touches 2, and many rows touch almost all. */
static void experts_are_touched(void)
{
    struct setup s;
    struct cost_rows rows[1];
    setup_init(&s, MODEL_MIXTRAL, 1, (struct layout_flags){.tp = 2, .dp = 1});
    make_rows(rows, 1, 1, 1, 10);
    const struct cost one = cost_stage_of(&s.m, 0, rows);
    make_rows(rows, 1, 16, 1, 10);
    const struct cost many = cost_stage_of(&s.m, 0, rows);
    double experts = 0;
    for (int f = 0; f < NODE_FORMAT_COUNT; f++)
        experts += s.m.stages[0].expert[f] * s.m.weight_bytes[f];
    const double grown = many.s[COST_WEIGHTS] - one.s[COST_WEIGHTS];
    const double wanted = 2 * experts / 10e9 * (pow(0.75, 1) - pow(0.75, 16));
    CU_ASSERT_TRUE(fabs(grown - wanted) < 1e-6 * wanted);
    CU_ASSERT_TRUE(one.s[COST_EXCHANGE] > 0);
    setup_fini(&s);
}

/* Returns the number of hosts over which the layout chosen for this network spreads the experts. */
static uint32_t hosts_of_experts(double network_bytes_s)
{
    struct setup s;
    struct layout l;
    bool fits = false;
    setup_init(&s, MODEL_QWEN3, 4, (struct layout_flags){0});
    s.node.network_bytes_s = network_bytes_s;
    const struct layout_estimate by_node = {.step_s = cost_reference_s, .user = &s.node};
    const struct layout_budget budget = {
        .kv = {2, 0}, .step_tokens = 32, .min_kv_blocks = 16, .estimate = &by_node};
    const struct layout_flags any = {0};
    const struct status st = layout_choose(&s.model, s.topo, &any, &budget, &l, s.order, &fits);
    CU_ASSERT_STRING_EQUAL(st.text, "");
    CU_ASSERT_TRUE(fits);
    setup_fini(&s);
    return l.expert_hosts;
}

/* Layers of compressed attention see a window. A layer with an index also sees the entries that the
 * index chooses, and the index scores one entry for each `sparse_rate` positions. A layer that sees
 * all entries has one for each `full_rate` positions. */
static void compressed_attention_sees_entries(void)
{
    struct setup s;
    setup_init(&s, MODEL_SMOLLM2, 1, (struct layout_flags){.tp = 1, .dp = 2});
    struct arch m = *s.model.arch;
    const double one = s.m.stages[0].attention[COST_FULL] / m.n_layers;
    m.index = (struct arch_index){.n_heads = 4, .dim = 64, .n_chosen = 256};
    m.compression = (struct arch_compression){.o_groups = 1, .sparse_rate = 4, .full_rate = 128};
    m.attn.window = 128;
    m.layer.compression[0] = COMPRESSION_SPARSE;
    m.layer.compression[1] = COMPRESSION_FULL;
    s.l.model.arch = &m;
    CU_ASSERT_EQUAL(cost_model_init(&s.m, &s.node, &s.l, s.topo, s.order).code, STATUS_OK);
    expect_near(cost_window(&m), 128);
    expect_near(s.m.stages[0].attention[COST_WINDOWED], one * (m.n_layers + 2));
    expect_near(s.m.stages[0].attention[COST_FULL], 4 * 64 / 2 / 4 + one / 128);
    setup_fini(&s);
}

/* Experts that are spread over hosts are read once for the rows of all hosts, but these rows must
 * travel. */
static void layouts_are_chosen_by_measured_speeds(void)
{
    CU_ASSERT_TRUE(hosts_of_experts(1e12) > 1);
    CU_ASSERT_EQUAL(hosts_of_experts(1e7), 1);
}

/* A layer attends to the positions that its own index, or one that it shares, chooses. A layer's
 * own index scores all positions. A layer without attention costs neither. */
static void sparse_attention_sees_what_its_index_chooses(void)
{
    struct setup s;
    setup_init(&s, MODEL_SMOLLM2, 1, (struct layout_flags){.tp = 1, .dp = 2});
    struct arch sparse = *s.model.arch;
    const double whole = s.m.stages[0].attention[COST_FULL];
    CU_ASSERT_TRUE(cost_window(&sparse) == 0 && whole > 0);
    sparse.index = (struct arch_index){.n_heads = 4, .dim = 64, .n_chosen = 128};
    sparse.layer.shares_index[1] = true;
    sparse.layer.lacks_mixer[2] = true;
    s.l.model.arch = &sparse;
    CU_ASSERT_EQUAL(cost_model_init(&s.m, &s.node, &s.l, s.topo, s.order).code, STATUS_OK);
    const double layers = sparse.n_layers;
    expect_near(s.m.stages[0].attention[COST_WINDOWED], whole * (layers - 1) / layers);
    expect_near(s.m.stages[0].attention[COST_FULL], (layers - 2) * 4 * 64 / 2);
    expect_near(cost_window(&sparse), 128);
    setup_fini(&s);
}

/* --- jobs --------------------------------------------------------------------------------- */

static void add_decode(struct step_plan *plan, int32_t pos0)
{
    const struct plan_seq seq = {.n_rows = 1, .pos0 = pos0, .want = PLAN_SAMPLE, .n_blocks = 1};
    const int32_t token = 1, block = 0;
    const struct plan_lists lists = {.tokens = &token, .blocks = &block};
    step_plan_clear(plan, PLAN_RUN, 0);
    CU_ASSERT_EQUAL(step_plan_add(plan, 0, &seq, &lists).code, STATUS_OK);
    step_plan_end_replica(plan, 0);
}

/* With one group the times of both stages add up; two groups keep both stages busy. */
static void stages_overlap(void)
{
    struct setup s;
    struct forecast f;
    struct step_plan plan = {0};
    setup_init(&s, MODEL_SMOLLM2, 1, (struct layout_flags){.tp = 1, .pp = 2, .dp = 1});
    CU_ASSERT_EQUAL_FATAL(step_plan_init(&plan, 1).code, STATUS_OK);
    double ends[2];
    for (uint32_t groups = 1; groups <= 2; groups++) {
        CU_ASSERT_EQUAL_FATAL(forecast_init(&f, &s.m).code, STATUS_OK);
        for (uint32_t i = 0; i < 20; i++) {
            add_decode(&plan, (int32_t)i);
            forecast_step(&f, i % groups, &plan);
        }
        ends[groups - 1] = f.now_s;
        expect_near(cost_total(&f.by), f.now_s);
        expect_near(f.phase_s[FORECAST_DECODE], f.now_s);
        expect_near(f.n_rows, 20);
        forecast_fini(&f);
    }
    CU_ASSERT_TRUE(ends[1] < 0.65 * ends[0]);
    step_plan_fini(&plan);
    setup_fini(&s);
}

/* Twice the tokens take twice as long; answers take longer than as many prompt tokens, which share
 * a read of the weights. */
static void even_jobs_are_compared(void)
{
    struct setup s;
    setup_init(&s, MODEL_SMOLLM2, 1, (struct layout_flags){.tp = 1, .dp = 2});
    const struct forecast_load load = {1000, 1000, 16, 100}, twice = {2000, 2000, 16, 100},
                               prompts = {2000, 1000, 16, 100}, answers = {1000, 2000, 16, 100};
    const double one = forecast_even_s(&s.m, &load);
    expect_near(forecast_even_s(&s.m, &twice), 2 * one);
    CU_ASSERT_TRUE(forecast_even_s(&s.m, &prompts) > one);
    CU_ASSERT_TRUE(forecast_even_s(&s.m, &answers) > 1.1 * forecast_even_s(&s.m, &prompts));
    setup_fini(&s);
}

static void a_sample_is_continued(void)
{
    struct forecast_marks m = {.n = 4, .s = {2, 3, 5, 8}, .part = {0.25, 0.5, 0.75, 1}};
    const struct forecast_end all = forecast_extend(&m, 8, 100, 100, 1, 0.1);
    expect_near(all.s, 8);
    expect_near(all.least_s, 7.2);
    expect_near(all.most_s, 8.8);
    const struct forecast_end more = forecast_extend(&m, 8, 100, 1100, 1, 0.1);
    expect_near(more.s, 8 + 1000 * 3 / 50.0); /* the middle half took 3 s for 50 lines */
    CU_ASSERT_TRUE(more.most_s > more.s * 1.2);
    const struct forecast_marks few = {.n = 2, .s = {4, 8}, .part = {0.5, 1}}; /* 8 s, evenly */
    expect_near(forecast_extend(&few, 8, 100, 200, 0, 0.1).s, 16);
}

static void choices_are_the_fewest(void)
{
    const struct forecast_row rows[] = {
        {.n_nodes = 1, .end = {.s = 1000}, .tokens_s = 10, .by = {{1}}},
        {.n_nodes = 2, .end = {.s = 480}, .tokens_s = 20, .by = {{1}}},
        {.n_nodes = 4, .end = {.s = 300}, .tokens_s = 30, .by = {{1}}},
        {.n_nodes = 8, .end = {.s = 299}, .tokens_s = 30, .by = {{1}}}};
    CU_ASSERT_EQUAL(forecast_soonest(rows, 4), 2); /* 8 nodes save less than a hundredth */
    CU_ASSERT_EQUAL(forecast_cheapest(rows, 4), 1);
    struct strbuf s;
    strbuf_init(&s);
    CU_ASSERT_EQUAL(forecast_slurm(
                        &(struct forecast_row){
                            .n_nodes = 2, .n_ranks = 8, .n_cores = 16, .end = {.most_s = 4000}},
                        &s)
                        .code,
                    STATUS_OK);
    CU_ASSERT_STRING_EQUAL(s.data, "#SBATCH --nodes=2\n#SBATCH --ntasks=8\n"
                                   "#SBATCH --cpus-per-task=16\n#SBATCH --time=1:14:00\n");
    strbuf_fini(&s);
}

void suite_cost(CU_pSuite suite);
void suite_cost(CU_pSuite suite)
{
    CU_add_test(suite, "curves", curves_are_straight_lines_of_logarithms);
    CU_add_test(suite, "a node's file comes back", a_file_comes_back);
    CU_add_test(suite, "wrong files are refused", wrong_files_are_refused);
    CU_add_test(suite, "networks are parsed", networks_are_parsed);
    CU_add_test(suite, "formats that were not measured",
                a_format_that_was_not_measured_is_like_a_similar_one);
    CU_add_test(suite, "rows see positions", rows_see_positions);
    CU_add_test(suite, "few rows read, many multiply", few_rows_read_and_many_multiply);
    CU_add_test(suite, "the disk hides behind rows", the_disk_hides_behind_rows);
    CU_add_test(suite, "replicas wait for the fullest", replicas_wait_for_the_fullest);
    CU_add_test(suite, "tp halves weights and adds sums", tp_halves_weights_and_adds_sums);
    CU_add_test(suite, "experts are touched", experts_are_touched);
    CU_add_test(suite, "layouts by measured speeds", layouts_are_chosen_by_measured_speeds);
    CU_add_test(suite, "sparse attention", sparse_attention_sees_what_its_index_chooses);
    CU_add_test(suite, "compressed attention sees entries", compressed_attention_sees_entries);
    CU_add_test(suite, "stages overlap", stages_overlap);
    CU_add_test(suite, "even jobs", even_jobs_are_compared);
    CU_add_test(suite, "a sample is continued", a_sample_is_continued);
    CU_add_test(suite, "the soonest and the cheapest", choices_are_the_fewest);
}
