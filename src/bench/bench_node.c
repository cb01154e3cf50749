/* The curves of a node: linears by format and rows, attention by positions, row ops, sampling,
 * collectives. Weights are constant bytes, because the time of a kernel does not depend on them. */
#include "bench/bench_node.h"

#include "attention/kv_pool.h"
#include "base/clock.h"
#include "base/mem.h"
#include "kernels/act.h"
#include "kernels/ops.h"
#include "kernels/peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 2048, /* inputs of the linears */
    MOST_ROWS = 1024,
    MANY_ROWS = 64,
    /* outputs of a linear for fewer rows than MANY_ROWS, and for as many or more: a call then takes
     * about a millisecond, so other work seldom interrupts it; many threads get more outputs */
    FEW_ROWS_OUTPUTS = 2048,
    MANY_ROWS_OUTPUTS = 256,
    THREAD_OUTPUTS = 32,
    TIMES_MAX = 64,
    TIMES_MIN = 5,
    TIME_NS = 100000000,
    LATE_NS = 700000000, /* after this no further call for a point begins, so that a node takes
                            about two minutes at most */
    COLD_TIMES = 2,      /* weights in memory have this many times the bytes of the caches */
    BYTE = 0x3c,         /* as f16 about 1, as bf16 and f32 about 0.01, as a code 60 */
    HEADS = 8,
    KV_HEADS = 2,
    HEAD_DIM = 128,
    CONTEXT_MOST = 4096,
    CHUNK = 64,
    LOGITS = 32768,
    ROW_OPS_ROWS = 256,
};
static const size_t cold_least = (size_t)96 << 20, cold_most = (size_t)1 << 30;

/* --- time --------------------------------------------------------------------------------- */

static int compare_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

double bench_node_time(struct comm *c, void (*run)(void *user), void *user)
{
    uint64_t times[TIMES_MAX], total = 0;
    size_t n = 0;
    run(user); /* loads the code and the caches */
    const uint64_t begin = clock_ns();
    bool is_late = false; /* LATE_NS are over: beside other work, ranks wait long for each other */
    while (n < TIMES_MAX && (n < TIMES_MIN || total < TIME_NS) && !(is_late && n > 0)) {
        comm_barrier(c, COMM_HOST);
        const uint64_t since = clock_ns();
        run(user);
        const uint64_t now = clock_ns();
        uint64_t took[2] = {now - since, now - begin};
        comm_max_u64(c, COMM_HOST, took, 2); /* so that all ranks end together */
        times[n++] = took[0];
        total += took[0] + 1;
        is_late = took[1] > LATE_NS;
    }
    qsort(times, n, sizeof *times, compare_u64);
    return (double)times[n / 4] * 1e-9;
}

/* Returns the outputs of a linear that a rank measures. */
static uint32_t outputs_of(const struct bench_node *b, size_t n_rows)
{
    const uint32_t by_threads = team_size(b->team) * THREAD_OUTPUTS;
    const uint32_t times = n_rows < MANY_ROWS ? FEW_ROWS_OUTPUTS / MANY_ROWS_OUTPUTS : 1;
    const uint32_t n = by_threads > MANY_ROWS_OUTPUTS ? by_threads : MANY_ROWS_OUTPUTS;
    return n * times;
}

/* --- linears ------------------------------------------------------------------------------ */

struct linears {
    const struct kern_table *kern;
    const void *bytes; /* constant, of all weights and scales */
    struct packed w;
    size_t stride;       /* bytes from one weight to the next */
    size_t n_copies, at; /* number of weights; the one to use next */
    const float *x;
    float *y;
    struct quant_rows xq;
    size_t n_rows;
};

/* Multiplies with the next weight. */
static void time_linear(void *user)
{
    struct linears *l = user;
    l->w.data = (const char *)l->bytes + l->at * l->stride;
    l->at = (l->at + 1) % l->n_copies;
    const struct linear_group group = {&l->w, 0, l->n_rows};
    const bool is_int = act_codes_alike(&l->w, &l->w);
    op_linear(l->kern, &(struct linear_args){.groups = &group,
                                             .n_groups = 1,
                                             .x = l->x,
                                             .x_stride = WIDTH,
                                             .xq = is_int ? &l->xq : NULL,
                                             .y = l->y,
                                             .y_stride = l->w.n_out});
}

/* Describes a weight [n_out, WIDTH] of a format. */
static void linears_set(struct linears *l, enum node_format f, uint32_t n_out)
{
    static const struct quant_format quants[NODE_FORMAT_COUNT] = {
        [NODE_INT8] = {.kind = QUANT_INT8, .scale_dtype = DTYPE_F16},
        [NODE_INT8_G32] = {.kind = QUANT_INT8, .scale_dtype = DTYPE_F16, .group = 32},
        [NODE_INT4] = {.kind = QUANT_INT4, .scale_dtype = DTYPE_F16, .group = 32},
        [NODE_INT4_G128] = {.kind = QUANT_INT4, .scale_dtype = DTYPE_F16, .group = 128},
        [NODE_FP8] = {.kind = QUANT_FP8, .scale_dtype = DTYPE_F32, .group = 128},
        [NODE_MXFP4] = {.kind = QUANT_MXFP4, .group = 32}};
    l->w = (struct packed){.n_out = n_out, .n_in = WIDTH, .scales = l->bytes, .quant = quants[f]};
    l->w.dtype = f == NODE_F16 ? DTYPE_F16 : f == NODE_BF16 ? DTYPE_BF16 : DTYPE_F32;
    l->stride = l->w.quant.kind != QUANT_NONE ? packed_quant_bytes(l->w.quant, n_out, WIDTH).data
                                              : packed_bytes(l->w.dtype, n_out, WIDTH);
}

/* Quantizes the rows for the weight's groups. */
static void quantize(struct linears *l)
{
    if (l->w.quant.kind == QUANT_NONE) return;
    l->xq.group = quant_kernel_group(l->w.quant);
    l->xq.n_groups = WIDTH / l->xq.group;
    op_quantize_rows(l->kern, l->x, WIDTH, MOST_ROWS, WIDTH, &l->xq);
}

/* Corrects times that only other work on the host explains: a weight takes no longer for n rows
 * than for 4 n, for 4 n rows at most four times as long as for n, and from a cache no longer than
 * from memory. */
static void smooth(struct node_linear *y)
{
    struct curve *curves[] = {&y->memory, &y->cached};
    for (int k = 0; k < 2; k++) {
        struct curve *c = curves[k];
        for (uint32_t i = c->n - 1; i > 0; i--)
            if (c->y[i - 1] > c->y[i]) c->y[i - 1] = c->y[i];
        for (uint32_t i = 1; i < c->n; i++)
            if (c->y[i] > 4 * c->y[i - 1]) c->y[i] = 4 * c->y[i - 1];
    }
    for (uint32_t i = 0; i < y->cached.n; i++)
        if (y->cached.y[i] > y->memory.y[i]) y->cached.y[i] = y->memory.y[i];
}

/* Measures one format, with weights in memory and in a cache. From 256 rows on both take the same
 * time, and the cached time stands for both. */
static struct status measure_format(const struct bench_node *b, struct linears *l,
                                    enum node_format f, size_t n_bytes, struct node_linear *out)
{
    const double n_ranks = comm_size(b->comm, COMM_HOST);
    for (size_t rows = 1; rows <= MOST_ROWS; rows *= 4) {
        linears_set(l, f, outputs_of(b, rows));
        if (rows == 1) quantize(l);
        l->n_rows = rows;
        l->at = 0;
        l->n_copies = 1;
        const double cached = bench_node_time(b->comm, time_linear, l);
        double memory = cached;
        l->n_copies = n_bytes > l->stride ? n_bytes / l->stride : 1;
        if (rows < 256) memory = bench_node_time(b->comm, time_linear, l);
        const double weights = (double)l->w.n_out * WIDTH * n_ranks;
        TRY(curve_add(&out->cached, (double)rows, cached / weights));
        TRY(curve_add(&out->memory, (double)rows, memory / weights));
    }
    smooth(out);
    return status_ok();
}

static struct status alloc_linears(const struct bench_node *b, struct linears *l, size_t n_bytes)
{
    const size_t rows = (size_t)MOST_ROWS * WIDTH;
    const size_t n_out = (size_t)MOST_ROWS * outputs_of(b, 1);
    void *bytes = NULL;
    TRY(mem_map(&bytes, n_bytes, "measuring linears"));
    memset(bytes, BYTE, n_bytes);
    l->bytes = bytes;
    float *x = NULL;
    TRY(mem_alloc(&x, rows, sizeof *x, "measuring linears"));
    for (size_t i = 0; i < rows; i++) x[i] = (float)(i % 17) - 8;
    l->x = x;
    TRY(mem_alloc(&l->y, n_out, sizeof *l->y, "measuring linears"));
    TRY(mem_alloc(&l->xq.codes, rows, 1, "measuring linears"));
    TRY(mem_alloc(&l->xq.scales, rows / QUANT_CODE_ALIGN, sizeof(float), "measuring linears"));
    return mem_alloc(&l->xq.sums, rows / QUANT_CODE_ALIGN, sizeof(int32_t), "measuring linears");
}

static void free_linears(struct linears *l, size_t n_bytes)
{
    void *bytes = (void *)(uintptr_t)l->bytes, *x = (void *)(uintptr_t)l->x;
    if (bytes != NULL) mem_unmap(&bytes, n_bytes);
    mem_free(&x);
    mem_free(&l->y);
    mem_free(&l->xq.codes);
    mem_free(&l->xq.scales);
    mem_free(&l->xq.sums);
}

static struct status measure_linears(const struct bench_node *b, struct node *out)
{
    struct linears l = {.kern = &b->kern};
    size_t n_bytes = COLD_TIMES * b->n_cache_bytes;
    if (n_bytes < cold_least) n_bytes = cold_least;
    if (n_bytes > cold_most) n_bytes = cold_most;
    const size_t least = packed_bytes(DTYPE_F32, outputs_of(b, 1), WIDTH);
    if (n_bytes < 2 * least) n_bytes = 2 * least;
    struct status st = comm_agree(b->comm, alloc_linears(b, &l, n_bytes));
    for (int f = 0; f < NODE_FORMAT_COUNT && !status_failed(&st); f++) {
        const enum node_format format = (enum node_format)f;
        st = comm_agree(b->comm, measure_format(b, &l, format, n_bytes, &out->linear[f]));
    }
    free_linears(&l, n_bytes);
    return st;
}

/* --- attention and row ops ---------------------------------------------------------------- */

struct rows {
    const struct kern_table *kern;
    float *q, *k, *out; /* [rows, HEADS * HEAD_DIM] each; k is used as [rows, KV_HEADS, HEAD_DIM],
                           q and out also as rows of WIDTH / 2 */
    float *weight;      /* [WIDTH] */
    void *cache;
    int32_t *blocks;       /* [n_blocks] */
    struct seq_rows *seqs; /* [n_blocks] */
    size_t n_blocks;       /* that all sequences have together */
    size_t n_seqs, n_rows;
    struct quant_rows xq;
    struct comm *comm;
    int64_t *sums;
    size_t n_sums;
};

static struct kv_view view_of(const struct rows *r)
{
    return (struct kv_view){
        .base = r->cache, .dtype = DTYPE_F16, .n_kv_heads = KV_HEADS, .head_dim = HEAD_DIM};
}

static void run_attention(void *user)
{
    struct rows *r = user;
    static const uint8_t kv_of_head[HEADS] = {0, 0, 0, 0, 1, 1, 1, 1};
    op_attention(r->kern, &(struct attn_args){.q = r->q,
                                              .out = r->out,
                                              .kv = view_of(r),
                                              .kv_of_head = kv_of_head,
                                              .n_heads = HEADS,
                                              .scale = 0.1f,
                                              .seqs = r->seqs,
                                              .n_seqs = r->n_seqs});
}

static void run_rope(void *user)
{
    struct rows *r = user;
    op_rope_kv(r->kern, &(struct rope_kv_args){.q = r->q,
                                               .k = r->k,
                                               .v = r->k,
                                               .cos = r->out,
                                               .sin = r->out,
                                               .n_rows = r->n_rows,
                                               .n_heads = HEADS,
                                               .rot = HEAD_DIM,
                                               .kv = view_of(r),
                                               .seqs = r->seqs,
                                               .n_seqs = r->n_seqs});
}

static void run_norm(void *user)
{
    struct rows *r = user;
    op_rmsnorm(r->kern, &(struct norm_args){.x = r->q,
                                            .w = r->weight,
                                            .n_rows = ROW_OPS_ROWS,
                                            .n = WIDTH / 2,
                                            .eps = 1e-5f,
                                            .y = r->out,
                                            .codes = &r->xq});
    op_add(r->kern, r->q, r->out, (size_t)ROW_OPS_ROWS * WIDTH / 2);
}

static void run_gate(void *user)
{
    struct rows *r = user;
    op_swiglu(r->kern, &(struct swiglu_args){.gate = r->q,
                                             .up = r->q,
                                             .stride = WIDTH / 2,
                                             .n_rows = ROW_OPS_ROWS,
                                             .n = WIDTH / 2,
                                             .y = r->out,
                                             .y_stride = WIDTH / 2});
    op_quantize_rows(r->kern, r->out, WIDTH / 2, ROW_OPS_ROWS, WIDTH / 2, &r->xq);
}

static void run_logits(void *user)
{
    struct rows *r = user;
    uint64_t n_bad = 0;
    volatile uint64_t key = r->kern->argmax(r->q, LOGITS, 0, &n_bad);
    (void)key;
}

static void do_nothing(void *job, uint32_t part)
{
    (void)job;
    (void)part;
}

enum { REPEATS = 100 /* of calls too short to be timed alone */ };

static void run_empty(void *user)
{
    struct rows *r = user;
    for (int i = 0; i < REPEATS; i++) team_run(r->kern->team, 1, do_nothing, NULL);
}

static void run_barrier(void *user)
{
    struct rows *r = user;
    for (int i = 0; i < REPEATS; i++) comm_barrier(r->comm, COMM_HOST);
}

static void run_sum(void *user)
{
    struct rows *r = user;
    comm_sum_i64(r->comm, COMM_HOST, r->sums, r->n_sums);
}

/* Makes sequences of `context` cached positions each, whose last n_rows rows are in the step. */
static void make_seqs(struct rows *r, size_t context, size_t n_rows)
{
    const size_t n_blocks = context / KV_BLOCK_TOKENS;
    r->n_seqs = n_rows > 1 ? 1 : r->n_blocks / n_blocks;
    r->n_rows = r->n_seqs * n_rows;
    for (size_t i = 0; i < r->n_seqs; i++)
        r->seqs[i] = (struct seq_rows){.row0 = i * n_rows,
                                       .n_rows = n_rows,
                                       .pos0 = context - n_rows,
                                       .blocks = r->blocks + i * n_blocks};
}

static struct status measure_attention(const struct bench_node *b, struct rows *r, struct node *out)
{
    const double each = (double)HEADS * HEAD_DIM * comm_size(b->comm, COMM_HOST);
    for (size_t context = KV_BLOCK_TOKENS; context <= CONTEXT_MOST; context *= 4) {
        make_seqs(r, context, 1);
        const double s = bench_node_time(b->comm, run_attention, r);
        const double positions = (double)(r->n_seqs * context);
        TRY(curve_add(&out->attention_one, (double)context, s / (positions * each)));
    }
    for (size_t context = CHUNK; context <= CONTEXT_MOST; context *= 4) {
        make_seqs(r, context, CHUNK);
        const double seen = (double)context - CHUNK / 2.0;
        const double s = bench_node_time(b->comm, run_attention, r);
        TRY(curve_add(&out->attention_many, seen, s / (CHUNK * seen * each)));
    }
    return status_ok();
}

static struct status alloc_rows(struct rows *r)
{
    const size_t n_threads = team_size(r->kern->team), n_seqs = n_threads > 2 ? n_threads : 2;
    const size_t n_blocks = n_seqs * CONTEXT_MOST / KV_BLOCK_TOKENS;
    const size_t rows = n_blocks > ROW_OPS_ROWS ? n_blocks : ROW_OPS_ROWS;
    const size_t n = rows * HEADS * HEAD_DIM;
    r->n_blocks = n_blocks;
    TRY(mem_alloc(&r->seqs, n_blocks, sizeof *r->seqs, "measuring rows"));
    TRY(mem_alloc(&r->q, n, sizeof *r->q, "measuring rows"));
    TRY(mem_alloc(&r->k, n, sizeof *r->k, "measuring rows"));
    TRY(mem_alloc(&r->out, n, sizeof *r->out, "measuring rows"));
    TRY(mem_alloc(&r->weight, WIDTH, sizeof *r->weight, "measuring rows"));
    TRY(mem_alloc(&r->blocks, n_blocks, sizeof *r->blocks, "measuring rows"));
    const size_t block = 2 * KV_HEADS * kv_half_bytes(DTYPE_F16, HEAD_DIM);
    TRY(mem_alloc(&r->cache, n_blocks, block, "measuring rows"));
    TRY(mem_alloc(&r->xq.codes, n, 1, "measuring rows"));
    TRY(mem_alloc(&r->xq.scales, n / 128, sizeof(float), "measuring rows"));
    TRY(mem_alloc(&r->xq.sums, n / 128, sizeof(int32_t), "measuring rows"));
    r->xq.group = 128;
    r->xq.n_groups = WIDTH / 2 / 128;
    for (size_t i = 0; i < n; i++) r->q[i] = r->k[i] = (float)(i % 13) * 0.1f - 0.6f;
    for (size_t i = 0; i < n_blocks; i++) r->blocks[i] = (int32_t)i;
    memset(r->cache, BYTE, n_blocks * block);
    return mem_alloc(&r->sums, (size_t)1 << 19, sizeof *r->sums, "measuring sums");
}

static void free_rows(struct rows *r)
{
    mem_free(&r->q);
    mem_free(&r->k);
    mem_free(&r->out);
    mem_free(&r->weight);
    mem_free(&r->blocks);
    mem_free(&r->seqs);
    mem_free(&r->cache);
    mem_free(&r->xq.codes);
    mem_free(&r->xq.scales);
    mem_free(&r->xq.sums);
    mem_free(&r->sums);
}

/* --- between ranks ------------------------------------------------------------------------ */

static struct status measure_host(const struct bench_node *b, struct rows *r, struct node *out)
{
    if (comm_size(b->comm, COMM_HOST) == 1) return status_ok();
    out->barrier_s = bench_node_time(b->comm, run_barrier, r) / REPEATS;
    for (size_t n = 512; n <= (size_t)1 << 19; n *= 4) {
        r->n_sums = n;
        TRY(curve_add(&out->sum, (double)(n * sizeof(int64_t)),
                      bench_node_time(b->comm, run_sum, r)));
    }
    return status_ok();
}

static struct status measure_rows(const struct bench_node *b, struct node *out)
{
    struct rows *r = NULL;
    struct status st = comm_agree(b->comm, mem_alloc(&r, 1, sizeof *r, "measuring rows"));
    if (status_failed(&st)) return st;
    r->kern = &b->kern;
    r->comm = b->comm;
    const double n_ranks = comm_size(b->comm, COMM_HOST);
    const double elements = (double)ROW_OPS_ROWS * WIDTH / 2 * n_ranks;
    TRY_GOTO(st, comm_agree(b->comm, alloc_rows(r)), done);
    TRY_GOTO(st, comm_agree(b->comm, measure_attention(b, r, out)), done);
    make_seqs(r, CONTEXT_MOST, CHUNK);
    out->rope_s = bench_node_time(b->comm, run_rope, r) /
                  (CHUNK * (double)(HEADS + 2 * KV_HEADS) * HEAD_DIM * n_ranks);
    out->norm_s = bench_node_time(b->comm, run_norm, r) / elements;
    out->gate_s = bench_node_time(b->comm, run_gate, r) / elements;
    out->op_s = bench_node_time(b->comm, run_empty, r) / REPEATS;
    out->logit_s = bench_node_time(b->comm, run_logits, r) / (LOGITS * n_ranks);
    st = comm_agree(b->comm, measure_host(b, r, out));
done:
    free_rows(r);
    mem_free(&r);
    return st;
}

static void name_node(const struct bench_node *b, struct node *out)
{
    const struct topo_node *here = &b->topo->nodes[0];
    const int n_ranks = comm_size(b->comm, COMM_HOST);
    snprintf(out->host, sizeof out->host, "%.*s", (int)sizeof out->host - 1, here->name);
    peak_cpu_name(out->cpu);
    snprintf(out->kernels, sizeof out->kernels, "%s", b->kern.name);
    snprintf(out->shoal, sizeof out->shoal, "%s", SHOAL_VERSION);
    out->n_cores = here->n_cores;
    out->n_ranks = n_ranks;
    out->n_threads = (double)team_size(b->team) * n_ranks;
    out->memory_bytes = (double)here->memory_bytes;
    out->cache_bytes = (double)b->n_cache_bytes;
}

struct status bench_node_measure(const struct bench_node *b, struct node *out)
{
    memset(out, 0, sizeof *out);
    name_node(b, out);
    TRY(measure_linears(b, out));
    TRY(measure_rows(b, out));
    TRY(bench_node_link(b, out));
    return bench_node_lead(b, out);
}

void bench_node_see_reads(struct node *n)
{
    static const double bytes[NODE_FORMAT_COUNT] = {
        [NODE_F32] = 4, [NODE_F16] = 2, [NODE_BF16] = 2, [NODE_INT8] = 1};
    double best = 0;
    for (int f = 0; f < NODE_FORMAT_COUNT; f++) {
        const double one = curve_at(&n->linear[f].memory, 1);
        if (one > 0 && bytes[f] / one > best) best = bytes[f] / one;
    }
    const double found = curve_at(&n->read, n->n_threads);
    for (uint32_t i = 0; i < n->read.n && best > found; i++) n->read.y[i] *= best / found;
}
