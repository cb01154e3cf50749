/* Times linears with quantized weights and int8 activations (fp8: f32 activations): one row beside
 * this machine's read bandwidth, many rows beside its int8 (f32) peak, and many small groups
 * (experts). Each time is the fastest of several. The bits of each case are first compared with the
 * reference's. */
#include "bench_quant.h"

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/fp8_plain.h"
#include "kernels/ops.h"
#include "kernels/peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 512, MAX_COPIES = 2048, BIG_BYTES = 192 << 20, MIN_NS = 150000000 };

static void stop_on(struct status st)
{
    if (!status_failed(&st)) return;
    fprintf(stderr, "%s\n", st.text);
    exit(3);
}

static void *memory(size_t n_bytes)
{
    void *p = NULL;
    stop_on(mem_alloc(&p, n_bytes, 1, "a benchmark's array"));
    return p;
}

struct bench {
    const struct kern_table *k;
    struct packed w[MAX_COPIES];
    struct linear_group groups[MAX_COPIES];
    struct quant_rows xq;
    float *x, *y;
    int64_t *sums;
    size_t n_copies, n_rows, n_groups;
};

static struct linear_args args_of(const struct bench *b)
{
    return (struct linear_args){.groups = b->groups,
                                .n_groups = b->n_groups,
                                .x = b->x,
                                .x_stride = b->w[0].n_in,
                                .xq = b->w[0].quant.kind == QUANT_FP8 ? NULL : &b->xq,
                                .y = b->y,
                                .y_stride = b->w[0].n_out,
                                .sums = b->sums};
}

static uint64_t random_state = 1;

static uint32_t random_word(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static void *random_bytes(size_t n)
{
    uint8_t *p = memory(n);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)random_word();
    return p;
}

/* Any codes; of fp8 normal numbers from 2^-4 to 448, since most files have few others. */
static void *random_codes(struct quant_format f, size_t n)
{
    uint8_t *p = random_bytes(n);
    for (size_t i = 0; f.kind == QUANT_FP8 && i < n; i++)
        p[i] = (uint8_t)((p[i] & 0x86) | (3 + random_word() % 13) << 3);
    return p;
}

/* Scales near 0.01 in the format's own type. */
static void *random_scales(struct quant_format f, size_t n_bytes)
{
    uint8_t *p = memory(n_bytes);
    const float scale = 0.01f;
    for (size_t i = 0; f.kind == QUANT_MXFP4 && i < n_bytes; i++) p[i] = 120;
    if (f.kind == QUANT_MXFP4) return p;
    const size_t size = dtype_bytes(f.scale_dtype);
    for (size_t i = 0; i + size <= n_bytes; i += size)
        dtype_from_f32(f.scale_dtype, &scale, 1, p + i);
    return p;
}

static size_t total_bytes(const struct bench *b)
{
    const struct packed_quant_sizes s =
        packed_quant_bytes(b->w[0].quant, b->w[0].n_out, b->w[0].n_in);
    return s.data + s.scales + s.zeros;
}

/* Makes so many copies of the weight that no cache holds them. */
static struct bench *bench_make(const struct kern_table *k, struct quant_format f, size_t n_out,
                                size_t n_in)
{
    struct bench *b = memory(sizeof *b);
    const struct packed_quant_sizes sizes = packed_quant_bytes(f, n_out, n_in);
    const size_t copies = BIG_BYTES / sizes.data + 1, group = quant_kernel_group(f);
    const size_t n_groups = (n_in + group - 1) / group;
    b->k = k;
    b->n_copies = copies < MAX_COPIES ? copies : MAX_COPIES;
    for (size_t i = 0; i < b->n_copies; i++) {
        b->w[i] = (struct packed){.n_out = (uint32_t)n_out,
                                  .n_in = (uint32_t)n_in,
                                  .grid_bits = 32,
                                  .data = memory(sizes.data),
                                  .quant = f,
                                  .scales = random_scales(f, sizes.scales),
                                  .zeros = f.has_zeros ? random_bytes(sizes.zeros) : NULL};
        if (i == 0) b->w[0].data = random_codes(f, sizes.data);
        if (i > 0) memcpy((void *)(uintptr_t)b->w[i].data, b->w[0].data, sizes.data);
        if (i > 0 && f.has_zeros)
            memcpy((void *)(uintptr_t)b->w[i].zeros, b->w[0].zeros, sizes.zeros);
        op_fp8_plain(k, &b->w[i]);
    }
    b->x = memory(MAX_ROWS * n_in * sizeof *b->x);
    for (size_t i = 0; i < MAX_ROWS * n_in; i++) b->x[i] = (float)(int32_t)random_word() * 0x1p-31f;
    b->y = memory(MAX_ROWS * n_out * sizeof *b->y);
    b->sums = memory(MAX_ROWS * (n_out + 1) * sizeof *b->sums);
    b->xq = (struct quant_rows){.group = (uint32_t)group,
                                .n_groups = n_groups,
                                .codes = memory(MAX_ROWS * n_groups * group),
                                .scales = memory(MAX_ROWS * n_groups * sizeof(float)),
                                .sums = memory(MAX_ROWS * n_groups * sizeof(int32_t))};
    op_quantize_rows(k, b->x, n_in, MAX_ROWS, n_in, &b->xq);
    return b;
}

static void bench_free(struct bench *b)
{
    for (size_t i = 0; i < b->n_copies; i++) {
        void *parts[3] = {(void *)(uintptr_t)b->w[i].data, (void *)(uintptr_t)b->w[i].scales,
                          (void *)(uintptr_t)b->w[i].zeros};
        for (int j = 0; j < 3; j++) mem_free(&parts[j]);
    }
    mem_free(&b->x);
    mem_free(&b->y);
    mem_free(&b->sums);
    mem_free(&b->xq.codes);
    mem_free(&b->xq.scales);
    mem_free(&b->xq.sums);
    mem_free(&b);
}

static void run(const struct bench *b)
{
    const struct linear_args a = args_of(b);
    (b->w[0].leaf > 0 ? op_linear_leaf : op_linear)(b->k, &a);
}

/* Compares the first panels of the first group with the reference. */
static void check(struct bench *b)
{
    struct kern_table ref;
    kern_fill_ref(&ref);
    struct linear_args a = args_of(b);
    const struct packed *w = &b->w[0];
    const bool leafy = w->leaf > 0;
    const size_t n = w->n_out, n_seen = n < 64 ? n : 64;
    const size_t n_rows = b->groups[0].n_rows < 32 ? b->groups[0].n_rows : 32;
    run(b);
    a.y = memory(n_rows * n * sizeof *a.y);
    a.sums = memory(n_rows * (n + 1) * sizeof *a.sums);
    const struct linear_slice seen = {.panel1 = n_seen / 16, .row1 = n_rows};
    (leafy ? ref.linear_quant_leaf : ref.linear_quant)[w->quant.kind](&a, &seen);
    for (size_t r = 0; r < n_rows; r++) {
        const int bad =
            leafy ? memcmp(a.sums + r * (n + 1), b->sums + r * (n + 1), n_seen * sizeof *a.sums)
                  : memcmp(a.y + r * n, b->y + r * n, n_seen * sizeof *a.y);
        if (bad == 0) continue;
        fprintf(stderr, "row %zu differs from the reference\n", r);
        exit(70);
    }
    mem_free(&a.y);
    mem_free(&a.sums);
}

/* Returns the seconds of one linear with n_rows rows, in the fastest of several runs over n_copies
 * copies of the weight. */
static double time_copies(struct bench *b, size_t n_rows, size_t n_copies)
{
    uint64_t best = UINT64_MAX, total = 0;
    b->n_groups = 1;
    for (int i = 0; i < 200 && (i < 3 || total < MIN_NS); i++) {
        const uint64_t start = clock_ns();
        for (size_t c = 0; c < n_copies; c++) {
            b->groups[0] = (struct linear_group){&b->w[c], 0, n_rows};
            run(b);
        }
        const uint64_t ns = clock_ns() - start;
        total += ns;
        best = ns < best ? ns : best;
    }
    return (double)best * 1e-9 / (double)n_copies;
}

struct peaks {
    double read_gbs, int8_gops, fma_gflops;
};

/* Measures the kind's loop once, and raises *peak to its rate if that is higher. */
static void measure_arithmetic(const struct kern_table *k, enum peak_kind kind, double *peak)
{
    const uint64_t start = clock_ns();
    const double gops = peak_run(k->team, kind) / (double)(clock_ns() - start);
    *peak = gops > *peak ? gops : *peak;
}

static struct peaks measure(const struct kern_table *k)
{
    struct peak_memory m;
    struct peaks p = {0, 0, 0};
    const enum peak_kind kind = strcmp(k->name, "amx") == 0      ? PEAK_INT8_AMX
                                : strcmp(k->name, "avx512") == 0 ? PEAK_INT8_VNNI
                                                                 : PEAK_INT8_AVX2;
    const enum peak_kind fma = kind == PEAK_INT8_AVX2 ? PEAK_FMA_AVX2 : PEAK_FMA_AVX512;
    stop_on(peak_memory_init(&m, k->team, BIG_BYTES));
    for (int i = 0; i < 45; i++) {
        const uint64_t start = clock_ns();
        const double n_bytes = peak_read(&m, k->team, i % PEAK_READS);
        const double gbs = n_bytes / (double)(clock_ns() - start);
        p.read_gbs = gbs > p.read_gbs ? gbs : p.read_gbs;
        measure_arithmetic(k, kind, &p.int8_gops);
        measure_arithmetic(k, fma, &p.fma_gflops);
    }
    peak_memory_fini(&m);
    printf("\n%u thread(s), %s: reads %.1f GB/s, %s %.0f GOP/s, %s %.0f GFLOP/s\n",
           team_size(k->team), k->name, p.read_gbs, peak_title(kind), p.int8_gops, peak_title(fma),
           p.fma_gflops);
    return p;
}

static void bench_rows(struct bench *b, struct peaks m, const char *name)
{
    static const size_t rows[] = {1, 2, 4, 8, 16, 32, 128, 512};
    const double peak = b->w[0].quant.kind == QUANT_FP8 ? m.fma_gflops : m.int8_gops;
    for (size_t i = 0; i < 8; i++) {
        const size_t n_rows = rows[i], all = b->n_copies;
        b->n_groups = 1;
        b->groups[0] = (struct linear_group){&b->w[0], 0, n_rows};
        check(b);
        const double s = time_copies(b, n_rows, n_rows < 16 ? all : (all + n_rows - 1) / n_rows);
        const double gbs = (double)total_bytes(b) * 1e-9 / s;
        const double gops = 2e-9 * b->w[0].n_out * b->w[0].n_in * (double)n_rows / s;
        printf("%-16s [%5u,%5u] leaf %4u rows %4zu %10.1f us %7.1f GB/s %4.0f %% %8.1f GOP/s %4.0f "
               "%%\n",
               name, b->w[0].n_out, b->w[0].n_in, b->w[0].leaf, n_rows, s * 1e6, gbs,
               100 * gbs / m.read_gbs, gops, 100 * gops / peak);
    }
}

/* 64 experts, 8 per token, used unevenly: while rows are left, expert e gets one plus a share
 * proportional to 1 / (e + 4). The last expert gets the rest. */
static void bench_experts(const struct kern_table *k, struct peaks m, const char *name,
                          struct quant_format f)
{
    static const size_t tokens[] = {1, 8, 32, 64};
    enum { EXPERTS = 64 };
    struct bench *b = bench_make(k, f, 384, 1024);
    for (size_t i = 0; i < 4; i++) {
        size_t n_rows = tokens[i] * 8, row = 0, n_used = 0;
        b->n_groups = EXPERTS;
        for (size_t e = 0; e < EXPERTS; e++) {
            const size_t left = n_rows - row, share = (n_rows * 12 / 32) / (e + 4) + 1;
            const size_t n = e == EXPERTS - 1 || left < share ? left : share;
            b->groups[e] = (struct linear_group){&b->w[e], row, n};
            n_used += n > 0;
            row += n;
        }
        check(b);
        uint64_t best = UINT64_MAX;
        for (int t = 0; t < 60; t++) {
            for (size_t e = 0; e < EXPERTS; e++) /* so many weights that no cache holds them */
                b->groups[e].w = &b->w[((size_t)t * EXPERTS + e) % b->n_copies];
            const uint64_t start = clock_ns();
            run(b);
            const uint64_t ns = clock_ns() - start;
            best = ns < best ? ns : best;
        }
        const double gops = 2.0 * 384 * 1024 * (double)n_rows / (double)best;
        const double gbs = (double)(total_bytes(b) * n_used) / (double)best;
        printf("%-16s experts [384, 1024]  tokens %4zu %10.1f us %7.1f GB/s %4.0f %% %8.1f GOP/s "
               "%4.0f %%\n",
               name, tokens[i], (double)best * 1e-3, gbs, 100 * gbs / m.read_gbs, gops,
               100 * gops / m.int8_gops);
    }
    bench_free(b);
}

struct shape {
    uint32_t n_out, n_in, leaf;
};

static void bench_shapes(const struct kern_table *k, struct peaks m, const char *name,
                         const struct shape *shapes, size_t n)
{
    struct quant_format f;
    if (!quant_format_parse(name, &f)) return;
    for (size_t s = 0; s < n; s++) {
        struct bench *b = bench_make(k, f, shapes[s].n_out, shapes[s].n_in);
        for (size_t c = 0; c < b->n_copies; c++) b->w[c].leaf = shapes[s].leaf;
        bench_rows(b, m, name);
        bench_free(b);
    }
    if (n > 3) bench_experts(k, m, name, f);
}

void bench_quant(const struct kern_table *k)
{
    static const struct shape all[] = {{5632, 2048, 0},  {1536, 576, 0},  {1024, 1024, 0},
                                       {576, 1536, 384}, {3584, 1024, 0}, {1024, 3584, 512},
                                       {2048, 5632, 512}},
                              wide[] = {{5632, 2048, 0}, {2048, 7168, 0}, {7168, 2048, 512}};
    const struct peaks m = measure(k);
    bench_shapes(k, m, "int8-g32", all, 7);
    bench_shapes(k, m, "int8", all, 1);
    bench_shapes(k, m, "int4", all, 7);
    bench_shapes(k, m, "int4-asym-g64", all, 1);
    bench_shapes(k, m, "int4-g128", all, 1);
    bench_shapes(k, m, "mxfp4", wide, 3);
    bench_shapes(k, m, "fp8-g128", wide, 3);
}
