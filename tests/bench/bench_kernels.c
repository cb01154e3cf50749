/* Times the kernels and prints the times in tables beside this machine's limits: the read bandwidth
 * of a large array, and the peak of independent fma chains (kernels/peak.h). Each kernel's bits are
 * compared with the reference's before it is timed. No test: nothing fails for speed.
 *
 * usage: bench_kernels [linear] [law] [attention] [quant] [sgemm=LIBRARY]
 * Without arguments it runs all but the last, which alternates with cblas_sgemm of a BLAS library.
 */
#include "bench_attention.h"
#include "bench_quant.h"

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/ops.h"
#include "kernels/peak.h"

#include <dlfcn.h>
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BIG_BYTES = 1 << 27, MAX_ROWS = 256 };

/* Measures the machine's peaks: the fastest of many passes over memory, and of many rounds of fma
 * chains, in AVX2 if k is of that set, else in AVX-512. */
static struct bench_machine measure(const struct kern_table *k)
{
    const enum peak_kind kind = strcmp(k->name, "avx2") == 0 ? PEAK_FMA_AVX2 : PEAK_FMA_AVX512;
    struct bench_machine m = {0, 0};
    struct peak_memory big;
    const struct status st = peak_memory_init(&big, k->team, BIG_BYTES);
    if (status_failed(&st)) {
        fprintf(stderr, "%s\n", st.text);
        exit(3);
    }
    for (int i = 0; i < 15 * PEAK_READS; i++) {
        uint64_t start = clock_ns();
        const double n_bytes = peak_read(&big, k->team, i % PEAK_READS);
        const double gbs = n_bytes / (double)(clock_ns() - start);
        start = clock_ns();
        const double gflops = peak_run(k->team, kind) / (double)(clock_ns() - start);
        m.read_gbs = gbs > m.read_gbs ? gbs : m.read_gbs;
        m.gflops = gflops > m.gflops ? gflops : m.gflops;
    }
    peak_memory_fini(&big);
    printf("\n%u thread(s), %s: reads %.1f GB/s, fma %.1f GFLOP/s\n", team_size(k->team), k->name,
           m.read_gbs, m.gflops);
    return m;
}

/* One linear with several copies of its weight, so that no copy is in a cache. */
struct linear_bench {
    const struct kern_table *k;
    struct packed w[512];
    size_t n_copies, n_rows;
    float *x, *y;
    int64_t *sums;
};

static struct linear_args linear_args_of(const struct linear_bench *b,
                                         const struct linear_group *group)
{
    return (struct linear_args){.groups = group,
                                .n_groups = 1,
                                .x = b->x,
                                .x_stride = b->w[0].n_in,
                                .y = b->y,
                                .y_stride = b->w[0].n_out,
                                .sums = b->sums};
}

static void linear_run(const void *job)
{
    const struct linear_bench *b = job;
    for (size_t i = 0; i < b->n_copies; i++) {
        const struct linear_group group = {&b->w[i], 0, b->n_rows};
        const struct linear_args a = linear_args_of(b, &group);
        (b->w[i].leaf > 0 ? op_linear_leaf : op_linear)(b->k, &a);
    }
}

static void linear_init(struct linear_bench *b, const struct kern_table *k, enum dtype t,
                        size_t n_out, size_t n_in)
{
    const size_t n = packed_bytes(t, n_out, n_in), copies = ((size_t)96 << 20) / n + 1;
    b->k = k;
    b->n_copies = copies < 512 ? copies : 512;
    b->x = bench_random_floats(MAX_ROWS * n_in);
    b->y = bench_memory(MAX_ROWS * n_out * sizeof(float));
    b->sums = bench_memory(MAX_ROWS * (n_out + 1) * sizeof(int64_t));
    float *row = bench_random_floats(n_in + n_out);
    char *rounded = bench_memory((n_in + n_out) * dtype_bytes(t));
    dtype_from_f32(t, row, n_in + n_out, rounded);
    for (size_t i = 0; i < b->n_copies; i++) {
        void *data = bench_memory(n);
        for (size_t o = 0; i == 0 && o < n_out; o++)
            packed_put_rows(t, data, n_in,
                            &(struct matrix_rows){rounded + o * dtype_bytes(t), 0, o, 1});
        if (i > 0) memcpy(data, b->w[0].data, n);
        b->w[i] = (struct packed){.dtype = t,
                                  .n_out = (uint32_t)n_out,
                                  .n_in = (uint32_t)n_in,
                                  .leaf = 0,
                                  .grid_bits = 32,
                                  .data = data};
    }
    mem_free(&row);
    mem_free(&rounded);
}

static void linear_fini(struct linear_bench *b)
{
    for (size_t i = 0; i < b->n_copies; i++) {
        void *data = (void *)(uintptr_t)b->w[i].data;
        mem_free(&data);
    }
    mem_free(&b->x);
    mem_free(&b->y);
    mem_free(&b->sums);
}

/* Compares the first panels of all rows with the reference's bits. */
static void linear_check(const struct linear_bench *b)
{
    struct kern_table ref;
    kern_fill_ref(&ref);
    const size_t n = (size_t)b->w[0].n_out, n_seen = n < 64 ? n : 64;
    const struct linear_group group = {&b->w[0], 0, b->n_rows};
    struct linear_args a = linear_args_of(b, &group);
    float *y = bench_memory(b->n_rows * n * sizeof(float));
    int64_t *sums = bench_memory(b->n_rows * (n + 1) * sizeof(int64_t));
    const bool leafy = b->w[0].leaf > 0;
    linear_run(b);
    a.y = y;
    a.sums = sums;
    const struct linear_slice seen = {.panel1 = n_seen / 16, .row1 = b->n_rows};
    (leafy ? ref.linear_leaf : ref.linear)[b->w[0].dtype](&a, &seen);
    for (size_t r = 0; r < b->n_rows; r++) {
        const int bad = leafy ? memcmp(sums + r * (n + 1), b->sums + r * (n + 1), n_seen * 8)
                              : memcmp(y + r * n, b->y + r * n, n_seen * 4);
        if (bad == 0) continue;
        fprintf(stderr, "row %zu differs from the reference\n", r);
        exit(70);
    }
    mem_free(&y);
    mem_free(&sums);
}

/* The time of one call, in microseconds. */
static double linear_time(struct linear_bench *b, size_t n_rows, uint32_t leaf)
{
    const size_t all = b->n_copies;
    b->n_rows = n_rows;
    for (size_t i = 0; i < all; i++) b->w[i].leaf = leaf;
    b->n_copies = 1;
    linear_check(b);
    b->n_copies = n_rows < 16 ? all : (all + n_rows - 1) / n_rows;
    const double us = bench_best_seconds(linear_run, b) * 1e6 / (double)b->n_copies;
    b->n_copies = all;
    return us;
}

static const struct {
    const char *name;
    size_t n_out, n_in;
} shapes[] = {
    {"SmolLM2 up", 1536, 576},    {"SmolLM2 down", 576, 1536},    {"SmolLM2 head", 49152, 576},
    {"TinyLlama up", 5632, 2048}, {"TinyLlama down", 2048, 5632},
};

static void bench_linear(const struct kern_table *k, struct bench_machine m)
{
    static const size_t rows[] = {1, 4, 16, 64, 256};
    printf("%-15s %-4s %5s %5s %10s %8s %6s %8s %6s\n", "linear", "type", "leaf", "rows", "us",
           "GB/s", "%read", "GFLOP/s", "%fma");
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int t = 0; t < DTYPE_COUNT; t++) {
            struct linear_bench b;
            linear_init(&b, k, (enum dtype)t, shapes[s].n_out, shapes[s].n_in);
            for (size_t i = 0; i < 10; i++) {
                const uint32_t leaf = i < 5 ? 0 : 256;
                const double us = linear_time(&b, rows[i % 5], leaf);
                const double bytes = (double)packed_bytes((enum dtype)t, b.w->n_out, b.w->n_in);
                const double gbs = bytes * 1e-3 / us;
                const double gflops = 2e-3 * (double)shapes[s].n_out * (double)shapes[s].n_in *
                                      (double)rows[i % 5] / us;
                printf("%-15s %-4s %5u %5zu %10.1f %8.1f %6.0f %8.1f %6.0f\n", shapes[s].name,
                       dtype_name((enum dtype)t), leaf, rows[i % 5], us, gbs,
                       100 * gbs / m.read_gbs, gflops, 100 * gflops / m.gflops);
            }
            linear_fini(&b);
        }
    }
}

/* One row of a linear that adds in any order: weights row by row, four times eight partial sums per
 * output, reduced at the end. Shows the most that the numerics law can cost in decoding. */
struct any_order {
    const struct linear_bench *b;
};

__attribute__((target("avx2,fma,f16c"))) static void
any_order_rows(const uint16_t *w, const float *x, size_t n0, size_t n1, size_t n_in, float *y)
{
    for (size_t n = n0; n < n1; n++) {
        __m256 c[4];
        float out[8];
        for (int i = 0; i < 4; i++) c[i] = _mm256_setzero_ps();
        for (size_t k = 0; k + 32 <= n_in; k += 32) {
#pragma GCC unroll 4
            for (size_t i = 0; i < 4; i++) {
                const uint16_t *from = w + n * n_in + k + 8 * i;
                const __m256 wk = _mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
                c[i] = _mm256_fmadd_ps(wk, _mm256_loadu_ps(x + k + 8 * i), c[i]);
            }
        }
        c[0] = _mm256_add_ps(_mm256_add_ps(c[0], c[1]), _mm256_add_ps(c[2], c[3]));
        _mm256_storeu_ps(out, c[0]);
        y[n] = ((out[0] + out[1]) + (out[2] + out[3])) + ((out[4] + out[5]) + (out[6] + out[7]));
    }
}

struct any_order_part {
    const struct linear_bench *b;
    const uint16_t *w;
    size_t n_threads;
};

static void any_order_thread(void *job, uint32_t t)
{
    const struct any_order_part *p = job;
    const size_t n_out = p->b->w[0].n_out;
    any_order_rows(p->w, p->b->x, n_out * t / p->n_threads, n_out * (t + 1) / p->n_threads,
                   p->b->w[0].n_in, p->b->y);
}

static void any_order_run(const void *job)
{
    const struct linear_bench *b = ((const struct any_order *)job)->b;
    for (size_t i = 0; i < b->n_copies; i++) {
        const uint16_t *w = b->w[i].data; /* read as if row-major: only the speed matters */
        struct any_order_part part = {b, w, team_size(b->k->team)};
        team_run_each(b->k->team, any_order_thread, &part);
    }
}

/* Row-parallel weights: leaves (K-blocks) of several sizes beside one chain over all inputs. */
static void bench_law(const struct kern_table *k)
{
    static const size_t rows[] = {1, 4, 16, 64, 256};
    static const uint32_t leaves[] = {0, 96, 128, 256, 512};
    printf("%-15s %5s %12s  time against one chain: leaf 96    128    256    512  any order\n",
           "law, f16", "rows", "one chain us");
    for (size_t s = 1; s < sizeof shapes / sizeof *shapes; s += 3) {
        struct linear_bench b;
        linear_init(&b, k, DTYPE_F16, shapes[s].n_out, shapes[s].n_in);
        for (size_t i = 0; i < 5; i++) {
            double us[5] = {0};
            for (int again = 0; again < 5; again++) { /* alternately, so that noise affects all
                                                         sizes alike */
                for (size_t l = 0; l < 5; l++) {
                    const double t = linear_time(&b, rows[i], leaves[l]);
                    us[l] = again == 0 || t < us[l] ? t : us[l];
                }
            }
            printf("%-15s %5zu %12.1f %32.3f  %.3f  %.3f  %.3f", shapes[s].name, rows[i], us[0],
                   us[1] / us[0], us[2] / us[0], us[3] / us[0], us[4] / us[0]);
            const struct any_order any = {&b};
            if (rows[i] == 1)
                printf("  %.3f",
                       bench_best_seconds(any_order_run, &any) * 1e6 / (double)b.n_copies / us[0]);
            printf("\n");
        }
        linear_fini(&b);
    }
}

/* --- beside a BLAS library ------------------------------------------------------------------ */

typedef void sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                      const float *a, int lda, const float *b, int ldb, float beta, float *c,
                      int ldc);
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* constants of CBLAS */

/* The same product by a BLAS library: f32 weights as PyTorch keeps them, [n_out, n_in]. */
struct sgemm_bench {
    sgemm_fn *run;
    const struct linear_bench *l;
    float *w; /* [n_copies, n_out, n_in] */
    size_t n_copies;
};

/* Loads a BLAS library; OpenBLAS and MKL are told to use as many threads as the team has. Exits if
 * it cannot be loaded. */
static sgemm_fn *sgemm_open(const char *library, uint32_t n_threads)
{
    static const char *const setters[] = {"openblas_set_num_threads", "MKL_Set_Num_Threads"};
    void *lib = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
    sgemm_fn *run = lib != NULL ? (sgemm_fn *)dlsym(lib, "cblas_sgemm") : NULL;
    if (run == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    for (size_t i = 0; i < sizeof setters / sizeof *setters; i++) {
        void (*set)(int) = (void (*)(int))dlsym(lib, setters[i]);
        if (set != NULL) set((int)n_threads);
    }
    return run;
}

static void sgemm_run(const struct sgemm_bench *b, size_t i)
{
    const int m = (int)b->l->n_rows, n = (int)b->l->w[0].n_out, k = (int)b->l->w[0].n_in;
    const float *w = b->w + i % b->n_copies * (size_t)n * (size_t)k;
    b->run(ROW_MAJOR, NO_TRANS, TRANS, m, n, k, 1.0f, b->l->x, k, w, k, 0.0f, b->l->y, n);
}

enum contender { CONTENDER_FMA, CONTENDER_SGEMM, CONTENDER_SHOAL, CONTENDERS };

/* The GFLOP/s of one contender over half a second, in which clock frequencies settle. */
static double contend(enum contender c, const struct sgemm_bench *b)
{
    const struct linear_bench *l = b->l;
    int32_t bad[MAX_ROWS] = {0};
    const double n_ops = 2.0 * (double)l->n_rows * (double)l->w[0].n_out * (double)l->w[0].n_in;
    const uint64_t since = clock_ns();
    uint64_t ns = 0;
    double n = 0;
    for (size_t i = 0; ns < 5 * BENCH_MIN_NS; i++, ns = clock_ns() - since) {
        const struct linear_group group = {&l->w[i % l->n_copies], 0, l->n_rows};
        struct linear_args a = linear_args_of(l, &group);
        a.sums = NULL;
        a.bad = bad;
        if (c == CONTENDER_SGEMM) sgemm_run(b, i);
        if (c == CONTENDER_SHOAL) op_linear_leaf(l->k, &a);
        n += c == CONTENDER_FMA ? peak_run(l->k->team, PEAK_FMA_AVX512) : n_ops;
    }
    return n / (double)ns;
}

static int by_value(const void *a_, const void *b_)
{
    const double a = *(const double *)a_, b = *(const double *)b_;
    return (a > b) - (a < b);
}

static void sgemm_turns(const struct sgemm_bench *b)
{
    enum { TURNS = 7 };
    double rates[CONTENDERS][TURNS], ratios[TURNS];
    for (int i = 0; i < TURNS; i++) {
        for (int c = 0; c < CONTENDERS; c++) rates[c][i] = contend((enum contender)c, b);
        ratios[i] = rates[CONTENDER_SHOAL][i] / rates[CONTENDER_SGEMM][i];
    }
    for (int c = 0; c < CONTENDERS; c++) {
        qsort(rates[c], TURNS, sizeof *rates[c], by_value);
        printf(" %8.1f", rates[c][TURNS / 2]);
    }
    qsort(ratios, TURNS, sizeof *ratios, by_value);
    printf(" %7.2f (%.2f .. %.2f)\n", ratios[TURNS / 2], ratios[0], ratios[TURNS - 1]);
}

/* bf16 with exact sums of leaves of 256, beside f32 added in any order, both read from memory. */
static void bench_sgemm(const struct kern_table *k, const char *library)
{
    static const struct {
        const char *name;
        size_t n_rows, n_out, n_in;
    } cases[] = {{"TinyLlama up", 256, 5632, 2048},
                 {"TinyLlama down", 256, 2048, 5632},
                 {"64 rows' up", 64, 768, 1024},
                 {"64 rows' down", 64, 1024, 384}};
    printf("%-15s %5s %8s %8s %8s  shoal by sgemm\n", "bf16, GFLOP/s", "rows", "fma", "sgemm",
           "shoal");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct linear_bench l;
        const size_t n = cases[i].n_out * cases[i].n_in;
        linear_init(&l, k, DTYPE_BF16, cases[i].n_out, cases[i].n_in);
        l.n_rows = cases[i].n_rows;
        for (size_t c = 0; c < l.n_copies; c++) l.w[c].leaf = 256;
        linear_check(&l);
        struct sgemm_bench b = {sgemm_open(library, team_size(k->team)), &l, NULL, l.n_copies};
        b.w = bench_random_floats(b.n_copies * n);
        printf("%-15s %5zu", cases[i].name, l.n_rows);
        sgemm_turns(&b);
        mem_free(&b.w);
        linear_fini(&l);
    }
}

static bool wanted(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0) return true;
    return argc == 1;
}

int main(int argc, char **argv)
{
    struct kern_table k;
    struct status st = kern_select(NULL, &k);
    if (status_failed(&st)) {
        fprintf(stderr, "%s\n", st.text);
        return status_exit(st.code);
    }
    struct team *team;
    st = team_create(2, &team);
    if (status_failed(&st)) return status_exit(st.code);
    k.team = team;
    for (uint32_t n = 1; n <= 2; n++) {
        team_use(team, n);
        const struct bench_machine m = measure(&k);
        if (wanted(argc, argv, "linear")) bench_linear(&k, m);
        if (wanted(argc, argv, "law")) bench_law(&k);
        if (wanted(argc, argv, "attention")) bench_attention(&k, m);
        if (wanted(argc, argv, "quant")) bench_quant(&k);
        for (int i = 1; i < argc; i++) {
            if (strncmp(argv[i], "sgemm=", 6) == 0) bench_sgemm(&k, argv[i] + 6);
        }
    }
    team_destroy(&team);
    return 0;
}
