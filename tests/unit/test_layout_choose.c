/* The choice of a layout, and the report of `shoal plan`: rules, flags, the order of ranks, and
 * golden reports. SHOAL_GOLDEN_UPDATE=1 writes the reports again. */
#include "parallel/layout/layout_choose.h"

#include "base/file.h"
#include "base/mem.h"
#include "parallel/layout/layout_cost.h"
#include "parallel/layout/plan_report.h"
#include "util_models.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char cpu_node[] = "pack:2 numa:4 core:16 pu:1";

/* A chosen layout and its inputs. */
struct choice {
    struct layout_model model;
    struct layout_budget budget;
    struct topo *t;
    struct layout l;
    uint32_t *order;
    bool fits;
    struct status st;
};

static void choice_init(struct choice *c, enum util_model model, const char *spec, uint32_t n_ranks,
                        struct layout_flags flags)
{
    memset(c, 0, sizeof *c);
    c->model = util_model(model);
    c->budget = (struct layout_budget){
        .kv = {2, 0}, .step_tokens = 512, .min_kv_blocks = (c->model.arch->context + 63) / 64};
    c->st = topo_describe(spec, n_ranks, 0, 0, &c->t);
    CU_ASSERT_STRING_EQUAL_FATAL(c->st.text, "");
    c->st = mem_alloc(&c->order, c->t->n_ranks, sizeof *c->order, "order");
    CU_ASSERT_FATAL(!status_failed(&c->st));
    c->st = layout_choose(&c->model, c->t, &flags, &c->budget, &c->l, c->order, &c->fits);
}

static void choice_fini(struct choice *c)
{
    mem_free(&c->order);
    topo_destroy(&c->t);
}

static void nodes_text(uint32_t n, char out[128])
{
    snprintf(out, 128, "%ux\"%s\"", n, cpu_node);
}

/* --- golden reports ----------------------------------------------------------------------- */

static void expect_golden(const char *name, const struct strbuf *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/golden/plan/%s.txt", TEST_DATA_DIR, name);
    if (getenv("SHOAL_GOLDEN_UPDATE") != NULL) {
        FILE *file = fopen(path, "w");
        CU_ASSERT_PTR_NOT_NULL_FATAL(file);
        fwrite(text->data, 1, text->n, file);
        fclose(file);
    }
    char *want = NULL;
    size_t n = 0;
    const struct status st = file_read(path, 1u << 20, &want, &n);
    CU_ASSERT_STRING_EQUAL_FATAL(st.text, "");
    const bool equal = n == text->n && memcmp(want, text->data, n) == 0;
    if (!equal) fprintf(stderr, "%s differs; the report is now:\n%s", path, text->data);
    CU_ASSERT(equal);
    mem_free(&want);
}

static void report_golden(const char *name, enum util_model model, const char *spec,
                          uint32_t n_ranks, struct layout_flags flags)
{
    struct choice c;
    choice_init(&c, model, spec, n_ranks, flags);
    CU_ASSERT_STRING_EQUAL_FATAL(c.st.text, "");
    struct strbuf text;
    strbuf_init(&text);
    const struct status st = plan_report(&c.l, c.t, c.order, &c.budget, &text);
    CU_ASSERT_STRING_EQUAL(st.text, "");
    expect_golden(name, &text);
    strbuf_fini(&text);
    choice_fini(&c);
}

static void reports_are_golden(void)
{
    static const struct {
        const char *name;
        enum util_model model;
    } models[] = {{"smollm2", MODEL_SMOLLM2}, {"mixtral", MODEL_MIXTRAL}, {"qwen3", MODEL_QWEN3}};
    static const uint32_t n_nodes[] = {1, 4, 16};
    for (size_t m = 0; m < 3; m++) {
        for (size_t i = 0; i < 3; i++) {
            char name[64], spec[128];
            snprintf(name, sizeof name, "%s_%u", models[m].name, n_nodes[i]);
            nodes_text(n_nodes[i], spec);
            report_golden(name, models[m].model, spec, 0, (struct layout_flags){0});
        }
    }
}

/* Expects the table of a plan to say that these ranks are on these hosts. */
static void expect_hosts(const struct strbuf *report, const char *ranks, const char *hosts)
{
    char found_ranks[32] = "", found_hosts[32] = "";
    const char *line = strstr(report->data, "Who holds what");
    while (line != NULL && strcmp(found_ranks, ranks) != 0) {
        line = strchr(line, '\n');
        if (line != NULL && sscanf(++line, "%31s %31s", found_ranks, found_hosts) != 2) break;
    }
    CU_ASSERT_STRING_EQUAL(found_ranks, ranks);
    CU_ASSERT_STRING_EQUAL(found_hosts, hosts);
}

/* A line of the table names its hosts in ascending order, each once, in whatever order the ranks
 * lie on them. */
static void hosts_are_named_once_and_ascend(void)
{
    static const struct {
        uint32_t n_nodes, pp, order[4];
        const char *ranks, *hosts;
    } cases[] = {{4, 2, {3, 0, 1, 2}, "0-2/2", "1-3/2"},
                 {4, 1, {2, 0, 3, 1}, "0-3", "0-3"},
                 {2, 1, {0, 2, 1, 3}, "0-3", "0-1"},
                 {2, 1, {2, 0, 3, 1}, "0-3", "0-1"},
                 {4, 2, {1, 2, 1, 3}, "0-2/2", "1"}};
    const struct layout_model m = util_model(MODEL_SMOLLM2);
    const struct layout_budget budget = {.kv = {2, 0}, .step_tokens = 64, .min_kv_blocks = 16};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct layout_flags flags = {.tp = 1, .pp = cases[i].pp, .dp = 4 / cases[i].pp};
        char spec[64];
        struct topo *t;
        struct layout l;
        struct strbuf text;
        strbuf_init(&text);
        snprintf(spec, sizeof spec, "%u x \"pack:1 core:2 pu:1\"", cases[i].n_nodes);
        CU_ASSERT_EQUAL_FATAL(topo_describe(spec, 4, 0, 0, &t).code, STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(layout_build(&m, 4, &flags, &l).code, STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(plan_report(&l, t, cases[i].order, &budget, &text).code, STATUS_OK);
        expect_hosts(&text, cases[i].ranks, cases[i].hosts);
        strbuf_fini(&text);
        topo_destroy(&t);
    }
}

static void odd_reports_are_golden(void)
{
    report_golden("demo_4_ranks", MODEL_DEMO, "pack:1 core:2 pu:1", 4, (struct layout_flags){0});
    report_golden("demo_tp2_pp2_dp2", MODEL_DEMO, "pack:1 core:2 pu:1", 8,
                  (struct layout_flags){.tp = 2, .pp = 2, .dp = 2});
    report_golden("odd_tp8", MODEL_ODD, "pack:2 core:4 pu:2", 8, (struct layout_flags){.tp = 8});
    report_golden("two_kinds_of_nodes", MODEL_DEMO, TEST_DATA_DIR "/golden/plan/two_nodes", 0,
                  (struct layout_flags){.pp = 3});
    report_golden("gpu_node_6_ranks", MODEL_DEMO, TEST_DATA_DIR "/golden/plan/gpu_nodes", 6,
                  (struct layout_flags){.dp = 6});
    /* a table of this many ranks has counts instead of ranges */
    char spec[128];
    nodes_text(125, spec);
    report_golden("qwen3_1000_ranks", MODEL_QWEN3, spec, 1000,
                  (struct layout_flags){.tp = 8, .pp = 5, .ep = 100});
}

/* --- rules -------------------------------------------------------------------------------- */

static void small_models_are_replicated(void)
{
    for (uint32_t n = 1; n <= 16; n *= 4) {
        char spec[128];
        nodes_text(n, spec);
        struct choice c;
        choice_init(&c, MODEL_SMOLLM2, spec, 0, (struct layout_flags){0});
        CU_ASSERT(c.fits && c.l.dp == 8 * n && c.l.tp == 1 && c.l.pp == 1);
        choice_fini(&c);
    }
}

static void experts_stay_inside_a_host_and_stages_cross(void)
{
    struct choice c;
    char spec[128];
    nodes_text(16, spec);
    choice_init(&c, MODEL_MIXTRAL, spec, 0, (struct layout_flags){0});
    CU_ASSERT(c.fits && c.l.pp == 1 && c.l.ep == 8 && c.l.n_expert_replicas == 16);
    CU_ASSERT(layout_link_of(c.t, c.order, c.l.ep * c.l.etp) != LINK_NET);
    choice_fini(&c);
    nodes_text(4, spec);
    choice_init(&c, MODEL_QWEN3, spec, 0, (struct layout_flags){0});
    CU_ASSERT(c.fits && c.l.pp == 4 && c.l.ep * c.l.etp == 8);
    CU_ASSERT(layout_link_of(c.t, c.order, c.l.tp) != LINK_NET);
    CU_ASSERT(layout_link_of(c.t, c.order, c.l.ep * c.l.etp) != LINK_NET);
    choice_fini(&c);
}

/* One rank per node, each with too little memory for its layers. Only expert parallelism across
 * hosts fits. */
static void groups_cross_hosts_when_nothing_else_fits(void)
{
    struct choice c;
    choice_init(&c, MODEL_MIXTRAL, "8x\"numa:1(memory=24GiB) core:8 pu:1\"", 0,
                (struct layout_flags){.pp = 1});
    CU_ASSERT(c.fits);
    CU_ASSERT_EQUAL(c.l.ep * c.l.etp, 8);
    CU_ASSERT_PTR_NOT_NULL(strstr(c.l.why, "across hosts"));
    choice_fini(&c);
}

/* Returns the rows per second of the chosen layout on CPUs, or on GPUs, which send a row once for
 * each expert that it chose. */
static double rate_of(const struct choice *c, bool on_device)
{
    struct layout l = c->l;
    l.model.on_device = on_device;
    const struct layout_fit fit = layout_fit_of(&l, c->t, &c->budget);
    return layout_rows_s(&l, c->t, c->order, &c->budget, &fit);
}

/* In steps of few rows, reading an expert takes longer than computing its rows, so experts spread
 * over hosts; not if the network is slow, and not in steps of many rows. */
static void small_steps_spread_experts_over_hosts(void)
{
    const struct layout_flags none = {0};
    struct choice c;
    choice_init(&c, MODEL_QWEN3, "4x\"pack:2 numa:1(memory=256GiB) core:32 pu:1\"", 0, none);
    CU_ASSERT(c.fits && c.l.expert_hosts == 1);
    c.budget.step_tokens = 32;
    c.st = layout_choose(&c.model, c.t, &none, &c.budget, &c.l, c.order, &c.fits);
    CU_ASSERT(c.fits && c.l.expert_hosts == 4 && c.l.tp == 1 && c.l.dp == c.l.ep);
    CU_ASSERT_PTR_NOT_NULL(strstr(c.l.why, "a token goes to a host once at 100 Gbit/s"));
    CU_ASSERT(rate_of(&c, true) < rate_of(&c, false));
    c.budget.network_bytes_s = 1e7;
    c.st = layout_choose(&c.model, c.t, &none, &c.budget, &c.l, c.order, &c.fits);
    CU_ASSERT(c.fits && c.l.expert_hosts == 1);
    choice_fini(&c);
}

/* A step in two halves reads the weights twice, so halves pay only in steps of many rows, and with
 * a network that takes a good part of the step's time. */
static void halves_pay_for_many_rows_over_a_slow_link(void)
{
    const struct layout_flags flags = {.tp = 1, .pp = 1, .dp = 4, .ep = 4};
    const struct layout_flags on = {.tp = 1, .pp = 1, .dp = 4, .ep = 4, .overlap = OVERLAP_ON};
    const struct layout_flags off = {.tp = 1, .pp = 1, .dp = 4, .ep = 4, .overlap = OVERLAP_OFF};
    static const double links[] = {1.25e8, 1.25e9, 1.25e12}; /* bytes per second */
    uint32_t from[3];
    struct choice c;
    choice_init(&c, MODEL_QWEN3, "4x\"numa:1(memory=512GiB) core:32 pu:1\"", 0, flags);
    c.budget.step_tokens = 1 << 16;
    for (size_t i = 0; i < 3; i++) {
        c.budget.network_bytes_s = links[i];
        c.st = layout_choose(&c.model, c.t, &flags, &c.budget, &c.l, c.order, &c.fits);
        from[i] = c.l.halves_from;
        CU_ASSERT_EQUAL(strstr(c.l.why, "go in two halves: one is computed") != NULL, from[i] > 0);
    }
    CU_ASSERT(from[0] > 0 && from[0] < from[1]);
    CU_ASSERT_EQUAL(from[2], 0);
    c.st = layout_choose(&c.model, c.t, &on, &c.budget, &c.l, c.order, &c.fits);
    CU_ASSERT_EQUAL(c.l.halves_from, 2);
    CU_ASSERT_PTR_NOT_NULL(
        strstr(c.l.why, "Steps of 2 rows a replica and more go in two halves as asked."));
    c.st = layout_choose(&c.model, c.t, &off, &c.budget, &c.l, c.order, &c.fits);
    CU_ASSERT_EQUAL(c.l.halves_from, 0);
    CU_ASSERT_PTR_NULL(strstr(c.l.why, "halves"));
    c.budget.step_tokens = 1;
    c.st = layout_choose(&c.model, c.t, &on, &c.budget, &c.l, c.order, &c.fits);
    CU_ASSERT_EQUAL(c.l.halves_from, 0);
    choice_fini(&c);
}

static void what_does_not_fit_is_returned_with_its_lack(void)
{
    struct choice c;
    char spec[128];
    nodes_text(1, spec);
    choice_init(&c, MODEL_QWEN3, spec, 0, (struct layout_flags){0});
    CU_ASSERT(!status_failed(&c.st) && !c.fits);
    const struct layout_fit fit = layout_fit_of(&c.l, c.t, &c.budget);
    CU_ASSERT(!fit.fits && fit.needed_bytes > fit.budget_bytes);
    CU_ASSERT_PTR_NOT_NULL(strstr(c.l.why, "DOES NOT FIT: rank 0 (stage 0, tp 0) needs 56.88 GiB "
                                           "and may use 28.80 GiB, 28.08 GiB less."));
    choice_fini(&c);
}

/* The reported fit is that of the rank that needs the most memory. */
static void fit_speaks_for_every_rank(void)
{
    static const struct layout_flags flags[] = {
        {.tp = 6, .pp = 2},
        {.tp = 3, .pp = 2, .ep = 3},
        {.pp = 4, .tp = 1},
        {.tp = 4, .ep = 6},
        {.tp = 1, .dp = 12, .ep = 12, .expert_replan = 9, .expert_copies = 5}};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        struct choice c;
        choice_init(&c, MODEL_QWEN3, "pack:2 core:12 pu:1", 12, flags[i]);
        CU_ASSERT_STRING_EQUAL_FATAL(c.st.text, "");
        const struct layout_fit fit = layout_fit_of(&c.l, c.t, &c.budget);
        uint64_t most = 0;
        for (uint32_t r = 0; r < 12; r++) {
            const struct layout_memory m =
                layout_memory_of(&c.l, layout_place_of(&c.l, r), (struct layout_kv){2, 0}, 512);
            const uint64_t all = layout_fixed_bytes(&m) + c.budget.min_kv_blocks * m.kv_block_bytes;
            if (all > most) most = all;
        }
        CU_ASSERT_EQUAL(fit.needed_bytes, most);
        choice_fini(&c);
    }
}

/* The ranks of a host without the draft model need nothing for it. In this pipeline the last stage
 * needs the most and stands alone on its host. */
static void other_hosts_hold_no_draft_model(void)
{
    struct choice c;
    choice_init(&c, MODEL_MIXTRAL, "2x\"pack:2 core:12 pu:1\"", 2, (struct layout_flags){.pp = 2});
    CU_ASSERT_STRING_EQUAL_FATAL(c.st.text, "");
    const struct layout_fit alone = layout_fit_of(&c.l, c.t, &c.budget);
    CU_ASSERT_EQUAL_FATAL(alone.worst_rank, 1);
    c.budget.lead_bytes = 1;
    struct layout_fit fit = layout_fit_of(&c.l, c.t, &c.budget);
    CU_ASSERT_EQUAL(fit.needed_bytes, alone.needed_bytes);
    CU_ASSERT_EQUAL(fit.n_kv_blocks, alone.n_kv_blocks);
    c.budget.lead_bytes = alone.needed_bytes;
    fit = layout_fit_of(&c.l, c.t, &c.budget);
    CU_ASSERT(fit.worst_rank == 0 && fit.needed_bytes > alone.needed_bytes &&
              fit.needed_bytes < 2 * alone.needed_bytes);
    choice_fini(&c);
}

/* Rank 0 holds the draft model. Two ranks that share their host's memory evenly both give up half
 * of the model's bytes; with a budget for each rank, rank 0 needs room for all of them. */
static void a_draft_model_needs_room(void)
{
    struct choice c;
    choice_init(&c, MODEL_QWEN3, "pack:2 core:12 pu:1", 2, (struct layout_flags){.tp = 2});
    const uint64_t needed = layout_fit_of(&c.l, c.t, &c.budget).needed_bytes;
    c.budget.lead_bytes = 1001;
    CU_ASSERT_EQUAL(layout_fit_of(&c.l, c.t, &c.budget).needed_bytes, needed + 501);
    c.budget.rank_bytes = needed + 1000;
    const struct layout_fit fit = layout_fit_of(&c.l, c.t, &c.budget);
    CU_ASSERT(!fit.fits && fit.worst_rank == 0 && fit.needed_bytes == needed + 1001);
    choice_fini(&c);
}

/* Adapters for which one stage has no room can be divided among two. */
static void adapters_need_room(void)
{
    const struct layout_flags one = {.pp = 1}, two = {.pp = 2}, none = {0};
    struct choice c;
    choice_init(&c, MODEL_QWEN3, "pack:2 core:12 pu:1", 2, (struct layout_flags){.pp = 1});
    c.budget.rank_bytes = layout_fit_of(&c.l, c.t, &c.budget).needed_bytes;
    c.st = layout_choose(&c.model, c.t, &one, &c.budget, &c.l, c.order, &c.fits);
    CU_ASSERT(c.fits);
    const uint64_t n_layers = c.model.arch->n_layers, n_bytes = 100 * n_layers;
    c.budget.adapter_bytes = n_bytes;
    c.st = layout_choose(&c.model, c.t, &one, &c.budget, &c.l, c.order, &c.fits);
    const struct layout_fit fit = layout_fit_of(&c.l, c.t, &c.budget);
    CU_ASSERT(!c.fits && fit.needed_bytes == c.budget.rank_bytes + n_bytes);
    CU_ASSERT_EQUAL(layout_adapter_bytes(&c.l, 0, &c.budget), n_bytes);
    c.st = layout_choose(&c.model, c.t, &two, &c.budget, &c.l, c.order, &c.fits);
    const uint64_t first = layout_adapter_bytes(&c.l, 0, &c.budget);
    CU_ASSERT(first > 0 && first < n_bytes);
    CU_ASSERT_EQUAL(first + layout_adapter_bytes(&c.l, 1, &c.budget), n_bytes);
    c.st = layout_choose(&c.model, c.t, &none, &c.budget, &c.l, c.order, &c.fits);
    CU_ASSERT(c.fits == (layout_fit_of(&c.l, c.t, &c.budget).needed_bytes <= c.budget.rank_bytes));
    choice_fini(&c);
}

/* For every combination of tp, pp, ep and dp from 0 (not given) to 3, the layout has the values of
 * the flags, or both layout_choose and layout_build refuse them. */
static void flags_are_kept(void)
{
    uint32_t n_kept = 0, n_refused = 0;
    for (uint32_t code = 0; code < 256 * 3; code++) {
        const uint32_t n = code / 256 == 0 ? 4 : code / 256 == 1 ? 6 : 8;
        const struct layout_flags f = {
            .tp = code % 4, .pp = code / 4 % 4, .ep = code / 16 % 4, .dp = code / 64 % 4};
        struct choice c;
        choice_init(&c, MODEL_DEMO, "pack:2 core:4 pu:1", n, f);
        if (status_failed(&c.st)) {
            CU_ASSERT_EQUAL(c.st.code, STATUS_USAGE);
            CU_ASSERT(strlen(c.st.text) > 10);
            n_refused++;
        } else {
            CU_ASSERT(f.tp == 0 || c.l.tp == f.tp);
            CU_ASSERT(f.pp == 0 || c.l.pp == f.pp);
            CU_ASSERT(f.ep == 0 || c.l.ep == f.ep);
            CU_ASSERT(f.dp == 0 || c.l.dp == f.dp);
            CU_ASSERT_EQUAL(c.l.tp * c.l.pp * c.l.dp, n);
            n_kept++;
        }
        struct layout direct;
        const struct status st = layout_build(&c.model, n, &f, &direct);
        if (!status_failed(&st)) CU_ASSERT(!status_failed(&c.st));
        choice_fini(&c);
    }
    CU_ASSERT(n_kept > 100 && n_refused > 100);
}

static void ep_alone_is_tp(void)
{
    struct choice c;
    choice_init(&c, MODEL_DEMO, "pack:2 core:4 pu:1", 4, (struct layout_flags){.ep = 2});
    CU_ASSERT(c.l.tp == 2 && c.l.ep == 2);
    choice_fini(&c);
}

static void a_full_product_spreads_experts_over_the_stage(void)
{
    struct choice c;
    choice_init(&c, MODEL_DEMO, "4x\"core:2 pu:1\"", 8,
                (struct layout_flags){.tp = 2, .pp = 1, .dp = 4});
    CU_ASSERT_EQUAL(c.l.ep,
                    8); /* with tp, pp and dp given, ep is dp x tp, although this crosses hosts */
    choice_fini(&c);
}

static void refusals_keep_their_sentences(void)
{
    struct choice c;
    choice_init(&c, MODEL_SMOLLM2, "pack:1 core:16 pu:1", 16, (struct layout_flags){.tp = 16});
    CU_ASSERT_STRING_EQUAL(c.st.text,
                           "--tp 16: SmolLM2-135M has 9 query heads; tp may be at most 9");
    choice_fini(&c);
    choice_init(&c, MODEL_SMOLLM2, "pack:1 core:4 pu:1", 4, (struct layout_flags){.ep = 2});
    CU_ASSERT_STRING_EQUAL(c.st.text,
                           "--ep 2: SmolLM2-135M is dense, it has no experts; ep may only be 1");
    choice_fini(&c);
}

/* --- the order of ranks ------------------------------------------------------------------- */

/* If a launcher places ranks on hosts and sockets in turn, they are still ordered by host, socket
 * and unit. */
static void ranks_are_sorted_by_place(void)
{
    struct topo_self selves[16];
    memset(selves, 0, sizeof selves);
    for (uint32_t r = 0; r < 16; r++) {
        /* hosts alternate, on each host the sockets alternate, and higher units come first */
        snprintf(selves[r].node.name, sizeof selves[r].node.name, "host%u", 7 - r % 2);
        selves[r].node.memory_bytes = 64ull << 30;
        selves[r].node.n_cores = 8;
        const int32_t local = (int32_t)(r / 2);
        selves[r].rank = (struct topo_rank){.package = local % 2,
                                            .numa = local % 2,
                                            .l3 = -1,
                                            .first_pu = local % 2 * 4 + 3 - local / 2,
                                            .n_pus = 1,
                                            .n_cores = 1,
                                            .cpuset_hash = r};
    }
    struct topo *t;
    CU_ASSERT_EQUAL_FATAL(topo_join(selves, 16, &t).code, STATUS_OK);
    const struct layout_model m = util_model(MODEL_DEMO);
    const struct layout_budget budget = {.kv = {2, 0}, .step_tokens = 64, .min_kv_blocks = 16};
    const struct layout_flags flags = {.tp = 4, .pp = 2, .dp = 2};
    struct layout l;
    uint32_t order[16];
    bool fits;
    const struct status st = layout_choose(&m, t, &flags, &budget, &l, order, &fits);
    CU_ASSERT_STRING_EQUAL(st.text, "");
    const uint32_t want[] = {12, 8, 4, 0, 14, 10, 6, 2, 13, 9, 5, 1, 15, 11, 7, 3};
    for (uint32_t r = 0; r < 16; r++) CU_ASSERT_EQUAL(order[r], want[r]);
    CU_ASSERT_EQUAL(layout_link_of(t, order, 4), LINK_NUMA);
    CU_ASSERT_EQUAL(layout_link_of(t, order, 8), LINK_HOST);
    CU_ASSERT_EQUAL(layout_link_of(t, order, 16), LINK_NET);
    topo_destroy(&t);
}

static void unbound_ranks_keep_the_launchers_order(void)
{
    struct topo_self selves[6];
    memset(selves, 0, sizeof selves);
    for (uint32_t r = 0; r < 6; r++) {
        selves[r].node.memory_bytes = 1ull << 30;
        selves[r].node.n_cores = 2;
        selves[r].rank = (struct topo_rank){.package = -1, .numa = -1, .l3 = -1, .n_cores = 2};
    }
    struct topo *t;
    CU_ASSERT_EQUAL_FATAL(topo_join(selves, 6, &t).code, STATUS_OK);
    const struct layout_model m = util_model(MODEL_DEMO);
    const struct layout_budget budget = {.kv = {2, 0}, .step_tokens = 64, .min_kv_blocks = 16};
    struct layout l;
    uint32_t order[6];
    bool fits;
    CU_ASSERT_EQUAL(layout_choose(&m, t, &(struct layout_flags){0}, &budget, &l, order, &fits).code,
                    STATUS_OK);
    for (uint32_t r = 0; r < 6; r++) CU_ASSERT_EQUAL(order[r], r);
    topo_destroy(&t);
}

/* --- failures ----------------------------------------------------------------------------- */

/* Nine query heads in leaves of two, and FFNs of seven leaves: two ranks get unequal parts, unless
 * they cut outputs (layout.cuts_outputs). */
static struct layout_model uneven_model(struct arch *a)
{
    struct layout_model m = util_model(MODEL_SMOLLM2);
    *a = *m.arch;
    m.arch = a;
    m.o_leaf = 2 * a->attn.head_dim;
    a->ffn = a->moe.shared_ffn = a->moe.ffn = 7 * 512;
    m.ffn_leaf = m.shared_leaf = m.expert_leaf = 512;
    m.inner_unit = 32;
    a->moe.n_experts = 8;
    a->moe.n_chosen = 2;
    for (uint32_t i = 0; i < a->n_layers; i++) a->layer.is_moe[i] = i % 2 == 1;
    return m;
}

static void cuts_of_outputs_cut_inputs_in_groups(void)
{
    struct arch arch;
    const struct layout_model m = uneven_model(&arch);
    struct layout l;
    const struct status st = layout_build(&m, 2, &(struct layout_flags){.tp = 2, .ep = 1}, &l);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    CU_ASSERT_EQUAL(layout_heads(&l, 0).end, 6);
    CU_ASSERT_EQUAL(layout_ffn(&l, 0).end, 4 * 512);
    CU_ASSERT_EQUAL(layout_expert_ffn(&l, 0).end, 4 * 512);
    l.cuts_outputs = true;
    CU_ASSERT_EQUAL(layout_heads(&l, 0).end, 5);
    CU_ASSERT_EQUAL(layout_kv_heads(&l, 0).end, 2);
    CU_ASSERT_EQUAL(layout_kv_heads(&l, 1).begin, 1);
    CU_ASSERT_EQUAL(layout_ffn(&l, 0).end, 7 * 256);
    CU_ASSERT_EQUAL(layout_shared_ffn(&l, 1).begin, 7 * 256);
    CU_ASSERT_EQUAL(layout_expert_ffn(&l, 0).end, 4 * 512);
    l.cuts_expert_outputs = true;
    CU_ASSERT_EQUAL(layout_expert_ffn(&l, 0).end, 7 * 256);
    l.model.inner_unit = 128; /* a group of 128 inputs has two heads */
    CU_ASSERT_EQUAL(layout_heads(&l, 0).end, 6);
}

/* 25 query heads and 5 kv heads over 3 ranks: with 9, 8 and 8 query heads the second rank would
 * need a third kv head. */
static void finer_heads_cost_no_kv_heads(void)
{
    struct layout_model m = util_model(MODEL_SMOLLM2);
    struct arch arch = *m.arch;
    arch.attn.n_heads = 25;
    arch.attn.n_kv_heads = 5;
    m.arch = &arch;
    m.o_leaf = arch.attn.head_dim;
    struct layout l;
    const struct status st = layout_build(&m, 3, &(struct layout_flags){.tp = 3}, &l);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    CU_ASSERT_EQUAL(layout_heads(&l, 0).end, 10);
    CU_ASSERT_EQUAL(layout_heads(&l, 1).end, 20);
    CU_ASSERT_EQUAL(range_count(layout_kv_heads(&l, 1)), 2);
}

/* Plans cut outputs among the ranks of one host, but not among those of two. */
static void plans_expect_cuts_inside_hosts(void)
{
    struct arch arch;
    const struct layout_model m = uneven_model(&arch);
    const char *const machines[] = {"1x\"pack:1 core:2 pu:1\"", "2x\"pack:1 core:2 pu:1\""};
    for (uint32_t i = 0; i < 2; i++) {
        struct topo *t = NULL;
        struct layout l;
        uint32_t order[2];
        bool fits;
        const struct layout_budget budget = {.kv = {2, 0}, .step_tokens = 512, .min_kv_blocks = 1};
        CU_ASSERT_EQUAL_FATAL(topo_describe(machines[i], 2, 0, 0, &t).code, STATUS_OK);
        const struct status st = layout_choose(&m, t, &(struct layout_flags){.tp = 2, .ep = 1},
                                               &budget, &l, order, &fits);
        CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
        CU_ASSERT_FALSE(l.cuts_outputs || l.cuts_expert_outputs);
        layout_expect_cuts(t, order, &l);
        CU_ASSERT_EQUAL(l.cuts_outputs, i == 0);
        CU_ASSERT_EQUAL(l.cuts_expert_outputs, i == 0);
        topo_destroy(&t);
    }
}

static void allocation_failures_are_statuses(void)
{
    struct choice c;
    choice_init(&c, MODEL_DEMO, "2x\"core:2 pu:1\"", 4, (struct layout_flags){0});
    const struct layout chosen = c.l;
    uint64_t n = 1;
    for (bool failed = true; failed; n++) {
        struct strbuf text;
        strbuf_init(&text);
        mem_fail_after(n);
        struct status st = layout_choose(&c.model, c.t, &(struct layout_flags){0}, &c.budget, &c.l,
                                         c.order, &c.fits);
        if (!status_failed(&st)) st = plan_report(&c.l, c.t, c.order, &c.budget, &text);
        mem_fail_after(0);
        failed = status_failed(&st);
        CU_ASSERT_EQUAL(st.code, failed ? STATUS_MEMORY : STATUS_OK);
        strbuf_fini(&text);
    }
    CU_ASSERT(n > 20);
    CU_ASSERT(c.l.tp == chosen.tp && c.l.ep == chosen.ep && c.l.dp == chosen.dp);
    choice_fini(&c);
}

void suite_layout_choose(CU_pSuite suite);
void suite_layout_choose(CU_pSuite suite)
{
    CU_add_test(suite, "reports are golden", reports_are_golden);
    CU_add_test(suite, "odd reports are golden", odd_reports_are_golden);
    CU_add_test(suite, "hosts are named once and ascend", hosts_are_named_once_and_ascend);
    CU_add_test(suite, "small models are replicated", small_models_are_replicated);
    CU_add_test(suite, "experts inside a host, stages across",
                experts_stay_inside_a_host_and_stages_cross);
    CU_add_test(suite, "groups cross hosts when nothing else fits",
                groups_cross_hosts_when_nothing_else_fits);
    CU_add_test(suite, "small steps spread experts over hosts",
                small_steps_spread_experts_over_hosts);
    CU_add_test(suite, "halves pay for many rows over a slow link",
                halves_pay_for_many_rows_over_a_slow_link);
    CU_add_test(suite, "what does not fit", what_does_not_fit_is_returned_with_its_lack);
    CU_add_test(suite, "fit speaks for every rank", fit_speaks_for_every_rank);
    CU_add_test(suite, "a draft model needs room", a_draft_model_needs_room);
    CU_add_test(suite, "other hosts hold no draft model", other_hosts_hold_no_draft_model);
    CU_add_test(suite, "adapters need room", adapters_need_room);
    CU_add_test(suite, "flags are kept", flags_are_kept);
    CU_add_test(suite, "--ep alone is --tp", ep_alone_is_tp);
    CU_add_test(suite, "a full product spreads experts",
                a_full_product_spreads_experts_over_the_stage);
    CU_add_test(suite, "refusals keep their sentences", refusals_keep_their_sentences);
    CU_add_test(suite, "ranks are sorted by place", ranks_are_sorted_by_place);
    CU_add_test(suite, "unbound ranks keep their order", unbound_ranks_keep_the_launchers_order);
    CU_add_test(suite, "cuts of outputs cut inputs in groups",
                cuts_of_outputs_cut_inputs_in_groups);
    CU_add_test(suite, "finer heads cost no kv heads", finer_heads_cost_no_kv_heads);
    CU_add_test(suite, "plans expect cuts inside hosts", plans_expect_cuts_inside_hosts);
    CU_add_test(suite, "allocation failures", allocation_failures_are_statuses);
}
