/* Times the MoE block on one rank with one thread, for several numbers of rows per expert: a few
 * experts of a published width, whose random int4 weights exceed the caches. The times go into the
 * simulated cluster (tests/simulate/scaling.py). usage: bench_moe [PASSES]. Prints JSON; each time
 * is that of one expert, the least of the passes, in CPU seconds, which other processes disturb
 * less.
 */
#include "base/mem.h"
#include "kernels/ops.h"
#include "moe/moe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* DeepSeek-V3's width and expert size; each token chooses all E experts. */
enum { D = 7168, F = 2048, E = 8, SIZES = 10, ROWS_MAX = 1 << (SIZES - 1), LEAF = 256, GROUP = 32 };

static const struct quant_format int4 = {
    .kind = QUANT_INT4, .scale_dtype = DTYPE_F16, .group = GROUP};

struct block {
    struct kern_table kern;
    struct arch arch;
    struct layout layout;
    struct comm *comm;
    struct moe *moe;
    struct layer layer;
    struct packed gate[E], up[E], down[E];
    float *x, *h;
    int32_t bad[ROWS_MAX], dropped[ROWS_MAX];
    uint64_t load[E];
};

static void must(struct status st)
{
    if (!status_failed(&st)) return;
    fprintf(stderr, "bench_moe: %s\n", st.text);
    exit(1);
}

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static struct packed make_int4(const struct kern_table *k, uint32_t n_out, uint32_t n_in,
                               uint32_t leaf, uint32_t *state)
{
    const struct packed_quant_sizes n = packed_quant_bytes(int4, n_out, n_in);
    const size_t n_groups = n_in / GROUP;
    struct packed w = {.n_out = n_out, .n_in = n_in, .leaf = leaf, .grid_bits = 32, .quant = int4};
    uint8_t *codes = NULL;
    uint16_t *scales = NULL;
    must(mem_map(&w.data, n.data, "weights"));
    must(mem_map(&w.scales, n.scales, "weights"));
    must(mem_alloc(&codes, (size_t)n_out * n_in / 2, 1, "weights"));
    must(mem_alloc(&scales, n_out * n_groups, sizeof *scales, "weights"));
    for (size_t i = 0; i < (size_t)n_out * n_in / 2; i++) codes[i] = (uint8_t)next(state);
    for (size_t i = 0; i < n_out * n_groups; i++) scales[i] = 0x0C00; /* 2^-12 */
    op_pack_quant(k, &w, PACKED_CODES, &(struct matrix_rows){codes, n_in / 2, 0, n_out});
    op_pack_quant(k, &w, PACKED_SCALES,
                  &(struct matrix_rows){scales, n_groups * sizeof *scales, 0, n_out});
    mem_free(&codes);
    mem_free(&scales);
    return w;
}

static void make_weights(struct block *b)
{
    uint32_t state = 1;
    void *router = NULL;
    float *rows = NULL;
    for (int e = 0; e < E; e++) {
        b->gate[e] = make_int4(&b->kern, F, D, 0, &state);
        b->up[e] = make_int4(&b->kern, F, D, 0, &state);
        b->down[e] = make_int4(&b->kern, D, F, LEAF, &state);
    }
    must(mem_alloc(&rows, (size_t)E * D, sizeof *rows, "router"));
    must(mem_alloc(&router, packed_bytes(DTYPE_F32, E, D), 1, "router"));
    packed_put_rows(DTYPE_F32, router, D, &(struct matrix_rows){rows, D * sizeof(float), 0, E});
    mem_free(&rows);
    b->layer.is_moe = true;
    b->layer.moe =
        (struct moe_weights){.router = {.dtype = DTYPE_F32, .n_out = E, .n_in = D, .data = router},
                             .n_experts = E,
                             .grid_bits = 32,
                             .reads = {.quant = int4},
                             .gate = b->gate,
                             .up = b->up,
                             .down = b->down};
}

static void make_block(struct block *b)
{
    static const struct capacity_flags dropless = {0, CAPACITY_DROPLESS};
    struct topo *topo = NULL;
    uint32_t order = 0, state = 5;
    must(kern_select(NULL, &b->kern));
    b->arch = (struct arch){.family = arch_family_at(0),
                            .n_layers = 1,
                            .width = D,
                            .attn.n_heads = 8,
                            .attn.n_kv_heads = 8,
                            .attn.head_dim = 64,
                            .attn.query_dim = 64,
                            .attn.value_dim = 64,
                            .moe.n_experts = E,
                            .moe.n_chosen = E,
                            .moe.ffn = F,
                            .vocab = 64,
                            .context = 64,
                            .scale = {.residual = 1},
                            .layer.is_moe = {true},
                            .moe.router = {.kind = ROUTER_SOFTMAX_RENORM}};
    const struct layout_model model = {
        .name = "layer", .arch = &b->arch, .o_leaf = 64, .expert_leaf = LEAF, .weight_bytes = 4};
    must(layout_build(&model, 1, &(struct layout_flags){.tp = 1}, &b->layout));
    must(comm_start(NULL, NULL, &b->comm));
    must(comm_gather_topo(b->comm, &topo));
    must(comm_split(b->comm, &b->layout, &order));
    topo_destroy(&topo);
    make_weights(b);
    must(mem_alloc(&b->x, (size_t)ROWS_MAX * D, sizeof *b->x, "rows"));
    must(mem_alloc(&b->h, (size_t)ROWS_MAX * D, sizeof *b->h, "rows"));
    for (size_t i = 0; i < (size_t)ROWS_MAX * D; i++)
        b->x[i] = (float)(next(&state) % 2001) / 1000 - 1;
    const struct moe_options o = {.model = &b->arch,
                                  .layout = &b->layout,
                                  .kern = &b->kern,
                                  .comm = b->comm,
                                  .capacity = &dropless};
    must(moe_create(&o, &b->moe));
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* CPU seconds of one call in which each expert has n rows. */
static double pass(struct block *b, uint32_t n)
{
    const struct moe_rows rows = {.n_tokens = n,
                                  .own = {0, n},
                                  .x = b->x,
                                  .h = b->h,
                                  .bad = b->bad,
                                  .dropped = b->dropped,
                                  .load = b->load};
    const double since = cpu_s();
    must(moe_forward(b->moe, &b->layer, &rows));
    return cpu_s() - since;
}

int main(int argc, char **argv)
{
    static struct block b;
    const int n_passes = argc > 1 ? atoi(argv[1]) : 5;
    make_block(&b);
    printf("{\"width\": %d, \"expert_ffn\": %d, \"format\": \"int4-g32\", \"threads\": 1, "
           "\"kernels\": \"%s\", \"passes\": %d,\n \"expert_s\": {",
           D, F, b.kern.name, n_passes);
    double least[SIZES];
    (void)pass(&b, ROWS_MAX);            /* buffers grow to their size */
    for (int i = 0; i < n_passes; i++) { /* all sizes in turn, so that each meets quiet moments */
        for (int k = 0; k < SIZES; k++) {
            const double s = pass(&b, 1u << k);
            if (i == 0 || s < least[k]) least[k] = s;
        }
    }
    for (int k = 0; k < SIZES; k++)
        printf("%s\"%u\": %.6g", k > 0 ? ", " : "", 1u << k, least[k] / E);
    printf("}}\n");
    moe_destroy(&b.moe);
    comm_stop(&b.comm);
    return 0;
}
