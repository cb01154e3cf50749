/* Target: a node's file (NODE.json). A node that is accepted is the same after writing and parsing
 * it again, and the forecasts made from it are finite and positive. */
#include "cost/forecast.h"
#include "fuzz/fuzz.h"

#include "base/mem.h"
#include "parallel/layout/layout_choose.h"
#include "util_models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const words[] = {
    "\"shoal_node\":2", "\"linear\":", "\"int8\":", "\"memory\":",    "[1,1e-9]", "[[",
    "1e-300",           "1e300",       "\\u0000",   "\"network_s\":", "0",        NULL};

/* Two hosts that run an MoE model: with two ranks each, which divide a layer; with one rank each,
 * which are stages and stream their experts. */
enum { N_LAYOUTS = 2 };
static struct placed {
    struct layout_model model;
    struct topo *topo;
    uint32_t *order;
    struct layout l;
} layouts[N_LAYOUTS];

static void place(struct placed *p, const char *spec, struct layout_flags flags)
{
    const struct layout_budget budget = {.kv = {2, 0}, .step_tokens = 512, .min_kv_blocks = 16};
    bool fits;
    p->model = util_model(MODEL_QWEN3);
    struct status st = topo_describe(spec, 0, 0, (uint64_t)1 << 40, &p->topo);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    st = mem_alloc(&p->order, p->topo->n_ranks, sizeof *p->order, "order");
    if (!status_failed(&st))
        st = layout_choose(&p->model, p->topo, &flags, &budget, &p->l, p->order, &fits);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    layout_expect_cuts(p->topo, p->order, &p->l);
}

static void add_points(struct curve *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        FUZZ_CHECK(curve_add(c, 1u << 2 * i, 1e-9 * (i + 1)).code == STATUS_OK, "a point");
}

static void begin(struct fuzz_seeds *seeds)
{
    static const struct node plain = {.host = "host",
                                      .cpu = "CPU",
                                      .kernels = "avx2",
                                      .shoal = SHOAL_VERSION,
                                      .n_cores = 4,
                                      .n_threads = 4,
                                      .n_ranks = 2,
                                      .memory_bytes = 1e12,
                                      .norm_s = 1e-11,
                                      .gate_s = 1e-11,
                                      .rope_s = 1e-11,
                                      .logit_s = 1e-11,
                                      .op_s = 1e-6,
                                      .step_s = 1e-5,
                                      .sequence_s = 1e-6,
                                      .barrier_s = 1e-6,
                                      .cache_bytes = 1e7};
    struct node n = plain;
    struct strbuf text;
    add_points(&n.read, 2);
    add_points(&n.flops, 2);
    add_points(&n.attention_one, 3);
    add_points(&n.attention_many, 3);
    for (int f = NODE_BF16; f <= NODE_INT4; f++) {
        add_points(&n.linear[f].memory, 3);
        add_points(&n.linear[f].cached, 3);
    }
    strbuf_init(&text);
    FUZZ_CHECK(node_write(&n, &text).code == STATUS_OK, "a seed");
    fuzz_seed_add(seeds, text.data, text.n);
    strbuf_clear(&text);
    add_points(&n.sum, 2); /* and the other members that a file may lack */
    n.network_bytes_s = 1e10;
    n.network_s = 2e-6;
    n.disk_bytes_s = 2e9;
    FUZZ_CHECK(node_write(&n, &text).code == STATUS_OK, "a seed");
    fuzz_seed_add(seeds, text.data, text.n);
    strbuf_clear(&text);
    /* as slow as a file may say */
    n.norm_s = n.gate_s = n.rope_s = n.logit_s = n.op_s = n.step_s = CURVE_MOST;
    n.network_s = n.barrier_s = n.sequence_s = CURVE_MOST;
    n.network_bytes_s = n.disk_bytes_s = CURVE_LEAST;
    for (uint32_t i = 0; i < 2; i++) n.read.y[i] = n.flops.y[i] = i > 0 ? CURVE_LEAST : CURVE_MOST;
    for (uint32_t i = 0; i < 3; i++)
        n.attention_one.y[i] = n.linear[NODE_BF16].memory.y[i] = CURVE_MOST;
    FUZZ_CHECK(node_write(&n, &text).code == STATUS_OK, "a seed");
    fuzz_seed_add(seeds, text.data, text.n);
    strbuf_fini(&text);
    place(&layouts[0], "2x\"pack:1 numa:2 core:2 pu:1\"", (struct layout_flags){.tp = 2, .pp = 1});
    place(&layouts[1], "2x\"pack:1 numa:1 core:4 pu:1\"", (struct layout_flags){.tp = 1, .pp = 2});
    layouts[1].l.model.streams_experts = true;
}

static void check_again(const struct node *n)
{
    struct strbuf text;
    struct node *again = malloc(sizeof *again);
    strbuf_init(&text);
    FUZZ_CHECK(node_write(n, &text).code == STATUS_OK, "writing");
    const struct status st = node_parse(text.data, text.n, "again", again);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    FUZZ_CHECK(memcmp(again, n, sizeof *n) == 0, "another node");
    strbuf_fini(&text);
    free(again);
}

static void check_forecast(const struct node *n, const struct placed *p)
{
    static const struct forecast_load load = {
        .prompt = 500, .answer = 100, .n_sequences = 64, .context = 550};
    struct cost_model *m = malloc(sizeof *m);
    const struct status st = cost_model_init(m, n, &p->l, p->topo, p->order);
    const bool lacks_disk = p->l.model.streams_experts && n->disk_bytes_s == 0;
    FUZZ_CHECK(status_failed(&st) == lacks_disk, "%s", st.text);
    if (lacks_disk) {
        free(m);
        return;
    }
    const double s = forecast_even_s(m, &load);
    FUZZ_CHECK(isfinite(s) && s > 0, "%g seconds", s);
    const double reference_s = cost_reference_s((void *)(uintptr_t)n, &p->l, p->topo, p->order, 64);
    FUZZ_CHECK(isfinite(reference_s) && reference_s > 0, "%g seconds", reference_s);
    free(m);
}

static bool run(const char *bytes, size_t n)
{
    struct node *node = malloc(sizeof *node);
    const struct status st = node_parse(bytes, n, "case", node);
    if (!status_failed(&st)) {
        check_again(node);
        for (int i = 0; i < N_LAYOUTS; i++) check_forecast(node, &layouts[i]);
    }
    free(node);
    return status_failed(&st) ? fuzz_refused(&st) : true;
}

extern const struct fuzz_target fuzz_node;
const struct fuzz_target fuzz_node = {"node", words, begin, run};
