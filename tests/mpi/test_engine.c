/* Tests steps through real stages: tiny random models over every layout of these ranks, with idle
 * replicas, empty plans and pp steps in flight. Greedy tokens must be those of the committed
 * goldens. Scores must have the same bits in every layout; the callers of try_model state their
 * hash. */
#include "mpi/util_engine_lead.h"
#include "mpi/util_mpi.h"

#include "base/mem.h"
#include "checkpoint/convert/convert.h"
#include "engine/engine.h"
#include "kernels/fp8_plain.h"
#include "parallel/layout/expert_places.h"
#include "parallel/layout/kv_groups.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static const struct capacity_flags dropless = {.policy = CAPACITY_DROPLESS};

struct model {
    struct ckpt *ckpt;
    struct arch config;
    struct layout_model layout_model;
    struct golden_seqs golden;
    uint64_t hash;   /* of the scores or the counts; 0: not known yet */
    float last_norm; /* factor on the input of the last layer's FFN; 1: unchanged */
    size_t n_layouts, n_dp_layouts, n_cut_by_outputs, n_experts_cut_by_outputs;
    const struct refusal *refusal; /* NULL: no shared memory is refused */
    size_t n_lent, n_kept;         /* layers of experts, over all runs of this rank */
};

/* Rank 0 converts the model and all ranks open it; the file is deleted afterwards. */
static void open_model(struct model *m, const char *name)
{
    char dir[400], source[480], path[64];
    memset(m, 0, sizeof *m);
    util_shared_path("engine", path, sizeof path);
    snprintf(dir, sizeof dir, "%s/golden/models/%s", TEST_DATA_DIR, name);
    snprintf(source, sizeof source, "%s/hf", dir);
    const struct convert_options o = {
        .source = source, .path = path, .keep_dtype = true, .keep_codes = true};
    if (util_rank() == 0) CU_ASSERT_EQUAL_FATAL(convert_run(&o, NULL, NULL).code, STATUS_OK);
    MPI_Barrier(MPI_COMM_WORLD);
    CU_ASSERT_EQUAL_FATAL(ckpt_open(path, &m->ckpt).code, STATUS_OK);
    MPI_Barrier(MPI_COMM_WORLD);
    if (util_rank() == 0) unlink(path);
    size_t n;
    const char *config = ckpt_config_json(m->ckpt, &n);
    CU_ASSERT_EQUAL_FATAL(arch_parse(config, n, "config.json", &m->config).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(weights_check(&m->config, m->ckpt, &m->layout_model).code, STATUS_OK);
    util_golden_read(&m->golden, dir);
}

static void close_model(struct model *m)
{
    ckpt_close(&m->ckpt);
}

/* --- a system that refuses ------------------------------------------------------------------ */

/* Resources for lent experts that the system refuses to some ranks. */
struct refusal {
    bool huge_pages; /* huge pages for shared memory are refused */
    uint64_t room;   /* bytes of experts that find room in shared memory */
    int rank;        /* the rank, or EVERY_RANK */
};
enum { EVERY_RANK = -1 };

static uint64_t room = UINT64_MAX; /* bytes left for the shared segment of experts; UINT64_MAX: no
                                      limit */
static off_t lane_of_experts;      /* where that segment begins in the file of shared memory */
static off_t last_backed;          /* where the file last got memory */
enum { LANE_LEAST = 1 << 30 };     /* how much of the segment posix_fallocate limits */

/* Replaces the C library's function, by which comm gives its shared segments memory. */
int posix_fallocate(int fd, off_t at, off_t n_bytes)
{
    const bool counts =
        room != UINT64_MAX && at >= lane_of_experts && at - lane_of_experts < LANE_LEAST;
    last_backed = at;
    if (counts && (uint64_t)n_bytes > room) return ENOSPC;
    if (counts) room -= (uint64_t)n_bytes;
    return fallocate(fd, 0, at, n_bytes) == 0 ? 0 : errno;
}

/* From now on this rank's experts find room for n_bytes. */
static void leave_room(struct comm *c, uint64_t n_bytes)
{
    comm_release_lane(c, COMM_EP, COMM_LANE_EXPERTS);
    CU_ASSERT_PTR_NOT_NULL_FATAL(comm_lane(c, COMM_EP, COMM_LANE_EXPERTS, 1));
    lane_of_experts = last_backed;
    comm_release_lane(c, COMM_EP, COMM_LANE_EXPERTS);
    room = n_bytes;
}

static bool is_refused(const struct model *m, uint32_t rank)
{
    const struct refusal *r = m->refusal;
    return r != NULL && (r->rank == EVERY_RANK || r->rank == (int)rank);
}

/* Calls stage_choose_cuts on this rank, without the resources that the test refuses to it. */
static void choose_cuts(const struct model *m, const struct kern_table *kern, struct comm *c,
                        uint32_t rank, struct layout *l)
{
    const bool no_huge_pages = is_refused(m, rank) && m->refusal->huge_pages;
    if (no_huge_pages) CU_ASSERT_EQUAL(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    stage_choose_cuts(kern, c, CAPACITY_DROPLESS, l);
    if (no_huge_pages) CU_ASSERT_EQUAL(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0), 0);
    if (m->refusal != NULL && m->refusal->huge_pages) CU_ASSERT_FALSE(l->lends_experts);
    if (l->lends_experts && is_refused(m, rank)) leave_room(c, m->refusal->room);
}

static void count_lent(struct model *m, const struct weights *w)
{
    for (uint32_t i = 0; i < range_count(w->layers); i++) {
        m->n_lent += w->stage_layers[i].is_moe && w->stage_layers[i].moe.has_others;
        m->n_kept += w->stage_layers[i].is_moe && !w->stage_layers[i].moe.has_others;
    }
}

/* --- a layout ----------------------------------------------------------------------------- */

static void scale_last_norm(const struct model *m, const struct layout *l, struct weights *w)
{
    const uint32_t last = m->config.n_layers - 1;
    const struct range here = layout_layers(l, w->place.pp);
    if (last < here.begin || last >= here.end) return;
    float *norm = w->stage_layers[last - here.begin].ffn_norm;
    for (uint32_t i = 0; i < m->config.width; i++) norm[i] *= m->last_norm;
}

/* Runs the model on one layout, with linears with leaves cut by inputs. in_memory: through the
 * host's shared memory they are cut by outputs and experts are lent, as far as the layout allows;
 * if it allows neither, there is no run. */
static void run_cut(const struct layout *whole, struct model *m, struct layout *l, bool in_memory)
{
    struct comm *c = util_comm(whole, 1); /* ranks in another order than the launcher's */
    struct weights *weights = NULL;
    struct engine *engine = NULL;
    struct kern_table kern;
    struct loader_stats stats;
    const uint32_t rank = (uint32_t)comm_rank(c, COMM_WORLD);
    CU_ASSERT_EQUAL_FATAL(kern_select(NULL, &kern).code, STATUS_OK);
    *l = *whole;
    if (in_memory) choose_cuts(m, &kern, c, rank, l);
    if (in_memory && !l->cuts_outputs && !l->cuts_expert_outputs && !l->lends_experts) {
        comm_stop(&c);
        return;
    }
    m->n_cut_by_outputs += l->cuts_outputs;
    m->n_experts_cut_by_outputs += l->cuts_expert_outputs;
    const struct weights_source source = {.model = &m->config,
                                          .layout = l,
                                          .place = layout_place_of(l, rank),
                                          .kern = &kern,
                                          .ckpt = m->ckpt,
                                          .comm = c};
    CU_ASSERT_EQUAL_FATAL(weights_load(&source, &weights, &stats).code, STATUS_OK);
    room = UINT64_MAX;
    if (in_memory) count_lent(m, weights);
    scale_last_norm(m, l, weights);
    const struct engine_options o = {
        .stage = {.model = &m->config,
                  .layout = l,
                  .weights = weights,
                  .kern = &kern,
                  .comm = c,
                  .rank = rank,
                  .max_rows = N_SEQS * CHUNK,
                  .n_kv_blocks = KV_GROUPS_MAX * N_SEQS * BLOCKS,
                  .flags = &(struct model_flags){.kv_dtype = DTYPE_F32},
                  .capacity = &dropless}};
    CU_ASSERT_EQUAL_FATAL(engine_create(&o, &engine).code, STATUS_OK);
    uint64_t hash = 0;
    if (rank == 0) {
        hash = util_engine_lead(engine, l, &m->golden, m->last_norm != 1);
    } else {
        enum plan_kind end = PLAN_RUN;
        CU_ASSERT_EQUAL(engine_follow(engine, &end).code, STATUS_OK);
        CU_ASSERT_EQUAL(end, PLAN_STOP);
    }
    comm_broadcast(c, COMM_WORLD, 0, &hash, sizeof hash);
    if (m->hash == 0) m->hash = hash;
    CU_ASSERT_EQUAL(hash, m->hash);
    CU_ASSERT(engine_stats_of(engine).n_steps > 20);
    engine_destroy(&engine);
    weights_destroy(&weights);
    comm_stop(&c);
}

static void run_layout(const struct layout *l, void *ctx)
{
    struct model *m = ctx;
    struct layout *copy = malloc(sizeof *copy);
    run_cut(l, m, copy, false);
    run_cut(l, m, copy, true);
    free(copy);
    m->n_layouts++;
    m->n_dp_layouts += l->dp > 1;
}

static void try_model(const char *name, float last_norm, uint64_t hash)
{
    struct model *m = malloc(sizeof *m);
    open_model(m, name);
    m->last_norm = last_norm;
    util_each_layout(&m->layout_model, run_layout, m);
    CU_ASSERT(m->n_layouts >= util_n_ranks() - (util_n_ranks() == 4));
    CU_ASSERT_EQUAL(m->hash, hash);
    CU_ASSERT(util_n_ranks() != 2 || m->n_cut_by_outputs > 0);
    const bool cuts_experts = m->config.moe.n_experts > 0 && !m->config.moe.bias;
    CU_ASSERT(util_n_ranks() != 2 || cuts_experts == (m->n_experts_cut_by_outputs > 0));
    if (m->hash != hash) fprintf(stderr, "\n  %s: 0x%016llx\n", name, (unsigned long long)m->hash);
    close_model(m);
    free(m);
}

static void a_dense_model_runs_in_every_layout(void)
{
    try_model("llama-gqa", 1, 0x5cef77b1ebb2e8ff);
}

static void a_model_of_experts_runs_in_every_layout(void)
{
    try_model("qwen3-moe-mixed", 1, 0x7600e8188a3089e3);
}

static void run_refused(const struct layout *l, void *ctx)
{
    struct model *m = ctx;
    struct layout *copy = malloc(sizeof *copy);
    if (l->ep > 1) run_cut(l, m, copy, true);
    free(copy);
}

/* Counts, over all ranks, the layers whose experts are lent (n[0]) and stay with their rank (n[1]).
 */
static void try_refusal(struct model *m, const struct refusal *r, uint64_t n[2])
{
    m->refusal = r;
    m->n_lent = m->n_kept = 0;
    util_each_layout(&m->layout_model, run_refused, m);
    n[0] = m->n_lent;
    n[1] = m->n_kept;
    MPI_Allreduce(MPI_IN_PLACE, n, 2, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
}

/* If shared memory has no room for a rank's experts, they stay with their rank, and no bit changes.
 * If a rank gets no huge pages for shared memory, the experts of all ranks stay. */
static void experts_that_cannot_be_lent_stay(void)
{
    const int last = (int)util_n_ranks() - 1;
    struct model *m = malloc(sizeof *m);
    uint64_t n[2], n_some = 0, n_all;
    if (last == 0) {
        free(m);
        return;
    }
    open_model(m, "qwen3-moe-mixed");
    m->last_norm = 1;
    m->hash = 0x7600e8188a3089e3;
    try_refusal(m, NULL, n);
    n_all = n[0];
    for (int rank = EVERY_RANK; rank <= last; rank += last + 1) {
        try_refusal(m, &(struct refusal){.huge_pages = true, .rank = rank}, n);
        CU_ASSERT(n[0] == 0 && n[1] > 0);
        for (uint64_t k = 0; k < 4; k++) {
            try_refusal(m, &(struct refusal){.room = k << 16, .rank = rank}, n);
            CU_ASSERT(k > 0 || rank >= 0 || n[0] == 0);
            CU_ASSERT(k > 0 || n[1] > 0);
            n_some += rank == EVERY_RANK && n[0] > 0 && n[1] > 0;
        }
    }
    CU_ASSERT(n_all == 0 || n_some > 0);
    close_model(m);
    free(m);
}

/* --- experts that are lent and move --------------------------------------------------------- */

/* Calls use for each matrix of the experts of other ranks. */
static void each_lent(const struct layout *l, const struct weights *w,
                      void (*use)(const struct kern_table *k, struct packed *p))
{
    for (uint32_t i = 0; i < range_count(w->layers); i++) {
        const struct moe_weights *moe = &w->stage_layers[i].moe;
        struct packed *arrays[] = {moe->gate, moe->up, moe->down};
        for (size_t a = 0; a < 3 && moe->has_others; a++) {
            for (uint32_t place = 0; place < layout_n_places(l); place++) {
                if (place >= w->experts.begin && place < w->experts.end) continue;
                use(w->kern, arrays[a] + ((ptrdiff_t)place - (ptrdiff_t)w->experts.begin));
            }
        }
    }
}

/* Sets fp8_plain to the wrong value, as if another expert had been at this place before. */
static void make_stale(const struct kern_table *k, struct packed *p)
{
    CU_ASSERT_EQUAL(p->quant.kind, QUANT_FP8);
    op_fp8_plain(k, p);
    p->fp8_plain = !p->fp8_plain;
}

static void check_fresh(const struct kern_table *k, struct packed *p)
{
    struct packed fresh = *p;
    op_fp8_plain(k, &fresh);
    CU_ASSERT_EQUAL(p->fp8_plain, fresh.fp8_plain);
}

/* Places the experts by a load that grows with their ids; if `falls`, it falls with the ids of
 * every second expert. */
static struct expert_places *places_by(const struct layout *l, bool falls)
{
    const uint32_t n = l->model.arch->moe.n_experts, n_layers = l->model.arch->n_layers;
    struct expert_places *p = NULL;
    int64_t *load = calloc((size_t)n_layers * n, sizeof *load);
    for (uint32_t i = 0; i < n_layers * n; i++)
        load[i] = falls && i % n % 2 == 0 ? n - i % n : 1 + i % n;
    CU_ASSERT_EQUAL_FATAL(expert_places_create(l, load, NULL, &p).code, STATUS_OK);
    free(load);
    return p;
}

static void move_lent(const struct layout *whole, void *ctx)
{
    struct model *m = ctx;
    if (whole->ep == 1) return;
    struct layout *l = malloc(sizeof *l);
    struct weights *w = NULL;
    struct kern_table kern;
    struct loader_stats stats;
    struct comm *c = util_comm(whole, 1);
    const uint32_t rank = (uint32_t)comm_rank(c, COMM_WORLD);
    CU_ASSERT_EQUAL_FATAL(kern_select(NULL, &kern).code, STATUS_OK);
    *l = *whole;
    choose_cuts(m, &kern, c, rank, l);
    struct expert_places *places[] = {places_by(l, false), places_by(l, true)};
    l->expert_places = places[0];
    const struct weights_source source = {.model = &m->config,
                                          .layout = l,
                                          .place = layout_place_of(l, rank),
                                          .kern = &kern,
                                          .ckpt = m->ckpt,
                                          .comm = c};
    CU_ASSERT_EQUAL_FATAL(weights_load(&source, &w, &stats).code, STATUS_OK);
    count_lent(m, w);
    m->n_layouts += l->lends_experts;
    each_lent(l, w, make_stale);
    CU_ASSERT_EQUAL(weights_move_experts(&source, w, places[1], &stats).code, STATUS_OK);
    CU_ASSERT(stats.n_bytes_host > 0); /* experts moved */
    each_lent(l, w, check_fresh);
    MPI_Barrier(MPI_COMM_WORLD); /* other ranks have read this rank's experts */
    weights_destroy(&w);
    for (int i = 0; i < 2; i++) expert_places_destroy(&places[i]);
    comm_stop(&c);
    free(l);
}

/* After a move, each rank knows which of the other ranks' new experts have NaN. */
static void lent_experts_follow_a_move(void)
{
    struct model *m = malloc(sizeof *m);
    open_model(m, "deepseek-v3-fp8");
    util_each_layout(&m->layout_model, move_lent, m);
    uint64_t n_lent = m->n_lent;
    MPI_Allreduce(MPI_IN_PLACE, &n_lent, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    CU_ASSERT_EQUAL(n_lent > 0, m->n_layouts > 0);
    close_model(m);
    free(m);
}

static void biased_experts_run_in_every_layout(void)
{
    try_model("gpt-oss", 1, 0xf7647f084b3e060f);
}

static void what_leaves_the_grid_is_counted_alike_in_every_layout(void)
{
    try_model("llama-gqa", 1e12f, 0x86f28c275477a73d);
    try_model("qwen3-moe-mixed", 1e12f, 0xfd73caeef225813d);
}

/* Engines that never run a step, as after a start-up that failed elsewhere. */
static void an_engine_may_end_before_its_first_step(void)
{
    struct model *m = malloc(sizeof *m);
    open_model(m, "llama-gqa");
    struct layout *l = malloc(sizeof *l);
    const uint32_t n = util_n_ranks();
    const struct layout_flags flags = {.tp = 1, .pp = n, .dp = 1};
    CU_ASSERT_EQUAL_FATAL(layout_build(&m->layout_model, n, &flags, l).code, STATUS_OK);
    struct comm *c = util_comm(l, 0);
    struct weights *weights = NULL;
    struct engine *engine = NULL;
    struct kern_table kern;
    struct loader_stats stats;
    const uint32_t rank = (uint32_t)comm_rank(c, COMM_WORLD);
    CU_ASSERT_EQUAL_FATAL(kern_select(NULL, &kern).code, STATUS_OK);
    const struct weights_source source = {.model = &m->config,
                                          .layout = l,
                                          .place = layout_place_of(l, rank),
                                          .kern = &kern,
                                          .ckpt = m->ckpt,
                                          .comm = c};
    CU_ASSERT_EQUAL_FATAL(weights_load(&source, &weights, &stats).code, STATUS_OK);
    struct engine_options o = {.stage = {.model = &m->config,
                                         .layout = l,
                                         .weights = weights,
                                         .kern = &kern,
                                         .comm = c,
                                         .rank = rank,
                                         .max_rows = 4,
                                         .n_kv_blocks = 2,
                                         .flags = &(struct model_flags){.kv_dtype = DTYPE_F16},
                                         .capacity = &dropless}};
    CU_ASSERT_EQUAL(engine_create(&o, &engine).code, STATUS_OK);
    engine_destroy(&engine);
    CU_ASSERT_PTR_NULL(engine);
    /* any allocation may fail, and everything is released */
    uint64_t n_failed = 0;
    for (uint64_t at = 1; at < 1000; at++) {
        mem_fail_after(at);
        const struct status st = engine_create(&o, &engine);
        mem_fail_after(0);
        if (!status_failed(&st)) break;
        CU_ASSERT_EQUAL(st.code, STATUS_MEMORY);
        CU_ASSERT_PTR_NULL(engine);
        n_failed++;
    }
    CU_ASSERT(n_failed > 10 && engine != NULL);
    engine_destroy(&engine);
    weights_destroy(&weights);
    comm_stop(&c);
    free(l);
    close_model(m);
    free(m);
}

void suite_engine(CU_pSuite suite);
void suite_engine(CU_pSuite suite)
{
    CU_add_test(suite, "a dense model runs in every layout", a_dense_model_runs_in_every_layout);
    CU_add_test(suite, "a model of experts runs in every layout",
                a_model_of_experts_runs_in_every_layout);
    CU_add_test(suite, "biased experts run in every layout", biased_experts_run_in_every_layout);
    CU_add_test(suite, "experts that cannot be lent stay", experts_that_cannot_be_lent_stay);
    CU_add_test(suite, "lent experts follow a move", lent_experts_follow_a_move);
    CU_add_test(suite, "what leaves the grid is counted alike in every layout",
                what_leaves_the_grid_is_counted_alike_in_every_layout);
    CU_add_test(suite, "an engine may end before its first step",
                an_engine_may_end_before_its_first_step);
}
