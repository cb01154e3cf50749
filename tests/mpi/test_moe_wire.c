/* Tests the bytes that the exchange between hosts sends, each rank on a pretended host of its own:
 * the routings of DeepSeek-V3 and Qwen3 with a sixteenth of their widths, and int8 weights and
 * activations. The outputs must be those of ranks that hold all experts. */
#include "mpi/util_mpi.h"

#include "base/mem.h"
#include "kernels/ops.h"
#include "moe/moe.h"
#include "parallel/wire/wire_bytes.h"

#include <stdlib.h>
#include <string.h>

enum { E = 64, K = 8, F = 32, GROUP = 32, TOKENS = 192, D_MAX = 448, SCALED = 16 };

static const struct quant_format int8 = {
    .kind = QUANT_INT8, .scale_dtype = DTYPE_F32, .group = GROUP};

struct wire_case {
    const char *name;
    uint32_t width;
    struct router_rule router;
    float down; /* scale of the down projections, so small that most sums take 4 bytes */
};

static const struct wire_case cases[] = {
    {"DeepSeek-V3", 448, {ROUTER_SIGMOID_RENORM, 8, 4, 2.5f}, 1e-4f},
    {"Qwen3", 256, {ROUTER_SOFTMAX_RENORM, 0, 0, 0}, 1e-3f},
};

/* All experts' weights, and what the tests free. */
struct experts {
    struct packed gate[E], up[E], down[E], router;
    void *memory[6 * E + 1];
    size_t n;
};

static void *keep(struct experts *x, size_t n_bytes)
{
    void *p = NULL;
    CU_ASSERT_EQUAL_FATAL(mem_alloc(&p, n_bytes, 1, "test weights").code, STATUS_OK);
    return x->memory[x->n++] = p;
}

static struct packed make_int8(struct experts *x, const struct kern_table *k, uint32_t n_out,
                               uint32_t n_in, float scale, uint64_t *state)
{
    static int8_t codes[D_MAX * D_MAX];
    static float scales[D_MAX * D_MAX / GROUP];
    const struct packed_quant_sizes n = packed_quant_bytes(int8, n_out, n_in);
    const size_t n_groups = n_in / GROUP;
    for (size_t i = 0; i < (size_t)n_out * n_in; i++)
        codes[i] = (int8_t)(util_next(state) % 255 - 127);
    for (size_t i = 0; i < n_out * n_groups; i++) scales[i] = scale * (1 + util_uniform(state) / 4);
    const struct packed w = {.n_out = n_out,
                             .n_in = n_in,
                             .leaf = F,
                             .grid_bits = 32,
                             .data = keep(x, n.data),
                             .scales = keep(x, n.scales),
                             .quant = int8};
    op_pack_quant(k, &w, PACKED_CODES, &(struct matrix_rows){codes, n_in, 0, n_out});
    op_pack_quant(k, &w, PACKED_SCALES,
                  &(struct matrix_rows){scales, n_groups * sizeof(float), 0, n_out});
    return w;
}

static void make_experts(struct experts *x, const struct kern_table *k, uint32_t d, float down)
{
    static float router[E * D_MAX];
    uint64_t state = 3;
    x->n = 0;
    for (int e = 0; e < E; e++) {
        x->gate[e] = make_int8(x, k, F, d, 1e-3f, &state);
        x->up[e] = make_int8(x, k, F, d, 1e-3f, &state);
        x->down[e] = make_int8(x, k, d, F, down, &state);
        x->gate[e].leaf = x->up[e].leaf = 0;
    }
    for (size_t i = 0; i < (size_t)E * d; i++) router[i] = util_uniform(&state);
    void *data = keep(x, packed_bytes(DTYPE_F32, E, d));
    packed_put_rows(DTYPE_F32, data, d, &(struct matrix_rows){router, d * sizeof(float), 0, E});
    x->router = (struct packed){.dtype = DTYPE_F32, .n_out = E, .n_in = d, .data = data};
}

/* A plan for a step of TOKENS tokens counts at least the bytes that the call has allocated, and at
 * most three times as many: it plans for twice the rows of a router that chooses evenly. */
static void check_planned(struct moe *moe, const struct layout *l, uint32_t rank)
{
    const uint64_t found = moe_memory_bytes(moe),
                   plan = layout_moe_bytes(l, layout_place_of(l, rank), TOKENS);
    if (rank == 0)
        fprintf(stderr, "\n  %s: %.0f KiB allocated, %.0f KiB planned", moe_exchange_name(moe),
                (double)found / 1024, (double)plan / 1024);
    CU_ASSERT(found > 0 && found <= plan && plan <= 3 * found);
}

/* If rows travel, runs the step again in two halves that take turns. The rows must be those of the
 * whole step, which are in all->h. Then checks the plan of a step in halves. */
static void check_halves(struct moe *moe, struct layout *l, const struct layer *layer,
                         const struct moe_rows *all, size_t d)
{
    enum { HALF = TOKENS / 2 };
    static float h[TOKENS * D_MAX];
    const float *want = all->h;
    struct moe_rows half[MOE_LANES] = {*all, *all};
    if (!moe_travels(moe)) return;
    memset(h, 0, sizeof h);
    for (size_t i = 0; i < MOE_LANES; i++) {
        half[i].n_tokens = HALF;
        half[i].own = (struct range){0, HALF};
        half[i].x += i * HALF * d;
        half[i].h = h + i * HALF * d;
        half[i].bad += i * HALF;
        half[i].dropped += i * HALF;
        CU_ASSERT_EQUAL(moe_start(moe, layer, &half[i], (int)i).code, STATUS_OK);
    }
    for (int i = 0; i < MOE_LANES; i++) CU_ASSERT_EQUAL(moe_run(moe, i).code, STATUS_OK);
    for (int i = 0; i < MOE_LANES; i++) CU_ASSERT_EQUAL(moe_finish(moe, i).code, STATUS_OK);
    CU_ASSERT_EQUAL(memcmp(h, want, TOKENS * d * sizeof *h), 0);
    l->halves_from = 2;
    check_planned(moe, l, util_rank());
}

/* Runs the block over this rank's tokens, with the experts on ep ranks. Writes h [TOKENS, width]
 * and returns what all ranks sent in one call. */
static struct moe_traffic run(const struct wire_case *w, struct experts *x,
                              const struct kern_table *kern, uint32_t ep, float *h)
{
    static float tokens[TOKENS * D_MAX];
    static struct arch arch;
    const struct util_shape shape = {w->width, E, K, F, F, 64};
    struct layout_model model = util_layout_model(&shape, &arch);
    const uint32_t n = util_n_ranks(), rank = util_rank();
    const struct layout_flags flags = {.tp = 1, .pp = 1, .dp = n, .ep = ep};
    struct layout *l = malloc(sizeof *l);
    arch.moe.router = w->router;
    arch.scale.residual = 1;
    model.expert_code_group = GROUP;
    model.weights[CLASS_EXPERTS] =
        (struct layout_weight){.group = GROUP, .group_bytes = GROUP + sizeof(float)};
    CU_ASSERT_EQUAL_FATAL(layout_build(&model, n, &flags, l).code, STATUS_OK);
    l->expert_hosts = ep;
    struct comm *c = util_comm_on_host(l, 0, (int)rank);
    const struct range held = layout_experts(l, layout_place_of(l, rank).ep);
    struct layer layer = {.is_moe = true};
    layer.moe = (struct moe_weights){.router = x->router,
                                     .n_experts = range_count(held),
                                     .grid_bits = 32,
                                     .reads = {.quant = int8},
                                     .gate = x->gate + held.begin,
                                     .up = x->up + held.begin,
                                     .down = x->down + held.begin};
    uint64_t state = 11 + rank, load[E] = {0};
    for (size_t i = 0; i < (size_t)TOKENS * w->width; i++) tokens[i] = util_uniform(&state);
    memset(h, 0, (size_t)TOKENS * w->width * sizeof *h);
    int32_t bad[TOKENS] = {0}, dropped[TOKENS] = {0};
    const struct capacity_flags dropless = {0, CAPACITY_DROPLESS};
    const struct moe_options o = {
        .model = &arch, .layout = l, .kern = kern, .comm = c, .rank = rank, .capacity = &dropless};
    const struct moe_rows rows = {.n_tokens = TOKENS,
                                  .own = {0, TOKENS},
                                  .x = tokens,
                                  .h = h,
                                  .bad = bad,
                                  .dropped = dropped,
                                  .load = load};
    struct moe *moe = NULL;
    CU_ASSERT_EQUAL_FATAL(moe_create(&o, &moe).code, STATUS_OK);
    CU_ASSERT_EQUAL(moe_forward(moe, &layer, &rows).code, STATUS_OK);
    check_planned(moe, l, rank);
    const struct moe_traffic t = moe_traffic_of(moe);
    check_halves(moe, l, &layer, &rows, w->width);
    int64_t all[3] = {(int64_t)t.n_tokens, (int64_t)t.dispatch_bytes, (int64_t)t.combine_bytes};
    comm_sum_i64(c, COMM_STAGE, all, 3);
    moe_destroy(&moe);
    comm_stop(&c);
    free(l);
    return (struct moe_traffic){.n_tokens = (uint64_t)all[0],
                                .dispatch_bytes = (uint64_t)all[1],
                                .combine_bytes = (uint64_t)all[2]};
}

static bool near(double a, double b)
{
    return a > 0.88 * b && a < 1.12 * b; /* this router's choices are not quite random */
}

static void tokens_travel_once(void)
{
    static struct experts x;
    static float alone[TOKENS * D_MAX], h[TOKENS * D_MAX];
    const uint32_t n = util_n_ranks();
    struct kern_table kern;
    CU_ASSERT_EQUAL_FATAL(kern_select(NULL, &kern).code, STATUS_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0] && n > 1; i++) {
        const struct wire_case *w = &cases[i];
        make_experts(&x, &kern, w->width, w->down);
        const struct moe_traffic none = run(w, &x, &kern, 1, alone);
        const struct moe_traffic t = run(w, &x, &kern, n, h);
        CU_ASSERT(none.n_tokens == 0 && none.dispatch_bytes == 0 && none.combine_bytes == 0);
        CU_ASSERT_EQUAL(memcmp(alone, h, (size_t)TOKENS * w->width * sizeof *h), 0);
        const struct wire_shape shape = {{w->width, GROUP, false}, E, K, w->router, n};
        const struct wire_bytes random = wire_bytes_of(&shape);
        const double there = (double)t.dispatch_bytes / (double)t.n_tokens,
                     back = (double)t.combine_bytes / (double)t.n_tokens;
        if (util_rank() == 0)
            fprintf(stderr,
                    "\n  %s on %u hosts: %.0f bytes there and %.0f back for a token; at random "
                    "%.0f and %.0f, "
                    "as rows of floats %.0f\n",
                    w->name, n, there, back, random.dispatch, random.combine, random.rows);
        CU_ASSERT_EQUAL(t.n_tokens, (uint64_t)TOKENS * n);
        CU_ASSERT(near(there, random.dispatch) && near(back, random.combine));
        if (i == 0) CU_ASSERT(there <= 31000.0 / SCALED && back <= 116000.0 / SCALED);
        for (size_t k = 0; k < x.n; k++) mem_free(&x.memory[k]);
    }
}

void suite_moe_wire(CU_pSuite suite);
void suite_moe_wire(CU_pSuite suite)
{
    CU_add_test(suite, "tokens travel once", tokens_travel_once);
}
