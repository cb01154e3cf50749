/* Compares each step with the machine's peaks at the time of the step: after each decoding step the
 * same threads read memory that no cache holds; after each prompt step they also run multiply-adds.
 * The speed of a machine, above all of a virtual one, may change from one second to the next, so a
 * peak measured once says little about a step that ran at another time. A read empties the caches,
 * which a step whose weights exceed them does anyway. Called by bench_run.c and, for the
 * medians, bench_report.c. */
#include "bench/bench_private.h"

#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PASS_BYTES_MAX = 512 << 20, TRIALS = 7, RATIOS_FIRST = 256 };
/* Least times of an arithmetic pass, and of each pass by which two kinds of arithmetic are
 * compared: long enough for the clock rate to settle. */
enum { PASS_NS = 100000000, TRY_NS = PASS_NS / 10 };

static uint64_t pass_ns(const struct bench_paired *p, int variant)
{
    const uint64_t since = clock_ns();
    (void)peak_read(&p->memory, p->team, variant);
    return clock_ns() - since + 1;
}

/* Returns the variant with the smallest median time, which occasional disturbances do not
 * change. */
static int fastest_pair(const struct bench_paired *p)
{
    uint64_t all[PEAK_READS][TRIALS];
    for (int i = 0; i < TRIALS; i++) {
        for (int v = 0; v < PEAK_READS; v++) {
            const uint64_t ns = pass_ns(p, v);
            int at = i;
            for (; at > 0 && all[v][at - 1] > ns; at--) all[v][at] = all[v][at - 1];
            all[v][at] = ns;
        }
    }
    int best = 0;
    for (int v = 1; v < PEAK_READS; v++) {
        if (all[v][TRIALS / 2] < all[best][TRIALS / 2]) best = v;
    }
    return best;
}

/* Returns operations per second, measured over at least least_ns. */
static double arithmetic_pass(const struct bench_paired *p, enum peak_kind kind, uint64_t least_ns)
{
    const uint64_t since = clock_ns();
    double n = peak_run(p->team, kind);
    uint64_t ns = clock_ns() - since;
    for (; n > 0 && ns < least_ns; ns = clock_ns() - since) n += peak_run(p->team, kind);
    return n * 1e9 / (double)(ns + 1);
}

static enum peak_kind fastest_arithmetic(const struct bench_paired *p)
{
    const double narrow = arithmetic_pass(p, PEAK_FMA_AVX2, TRY_NS);
    return arithmetic_pass(p, PEAK_FMA_AVX512, TRY_NS) > narrow ? PEAK_FMA_AVX512 : PEAK_FMA_AVX2;
}

struct status bench_paired_init(struct bench_paired *p, struct team *team, double step_bytes,
                                size_t least)
{
    *p = (struct bench_paired){.team = team};
    const double n_bytes = fmax(fmin(step_bytes, PASS_BYTES_MAX), (double)least);
    TRY(peak_memory_init(&p->memory, team, (size_t)n_bytes));
    p->n_bytes = peak_read(&p->memory, team, 0);
    p->variant = fastest_pair(p);
    p->arithmetic = fastest_arithmetic(p);
    return status_ok();
}

void bench_paired_fini(struct bench_paired *p)
{
    peak_memory_fini(&p->memory);
}

static void read_again(struct bench_paired *p)
{
    p->reads = p->n_bytes * 1e9 / (double)pass_ns(p, p->variant);
}

static void multiply_again(struct bench_paired *p)
{
    p->flops = arithmetic_pass(p, p->arithmetic, PASS_NS);
}

void bench_paired_begin(struct bench_paired *p)
{
    multiply_again(p);
    read_again(p);
}

static struct status add_ratio(struct bench_ratios *r, double value)
{
    if (r->n == r->cap) {
        const size_t cap = r->cap > 0 ? 2 * r->cap : RATIOS_FIRST;
        TRY(mem_grow(&r->all, r->cap, cap, sizeof *r->all, "steps beside peaks"));
        r->cap = cap;
    }
    r->all[r->n++] = value;
    return status_ok();
}

/* Returns the step's rate divided by the harmonic mean of the rates before and after it. */
static double by_both(double rate, double before, double after)
{
    return rate * (1 / before + 1 / after) / 2;
}

struct status bench_paired_step(struct bench_paired *p, enum bench_phase_kind kind,
                                const struct bench_phase *step, double s, struct bench_parts *out)
{
    const double reads = p->reads, flops = p->flops;
    if (kind != BENCH_DECODE) multiply_again(p);
    read_again(p);
    if (kind == BENCH_DECODE)
        TRY(add_ratio(&out->reads, by_both(step->bytes / s, reads, p->reads)));
    if (kind == BENCH_PREFILL) TRY(add_ratio(&out->f32, by_both(step->flops / s, flops, p->flops)));
    return status_ok();
}

void bench_parts_fini(struct bench_parts *parts)
{
    mem_free(&parts->reads.all);
    mem_free(&parts->f32.all);
}

static int by_size(const void *a_, const void *b_)
{
    const double a = *(const double *)a_, b = *(const double *)b_;
    return (a > b) - (a < b);
}

/* Returns the largest k for which at most k - 1 of n values lie below the median with a probability
 * of at most 0.025; 1 if there is none. */
static size_t rank_below(size_t n)
{
    double below = 0;
    size_t k = 0;
    for (; k < n / 2; k++) {
        const double i = (double)k, all = (double)n;
        below += exp(lgamma(all + 1) - lgamma(i + 1) - lgamma(all - i + 1) - all * log(2));
        if (2 * below > 0.05) break;
    }
    return k > 0 ? k : 1;
}

struct status bench_ratios_median(const struct bench_ratios *ratios, struct bench_median *out)
{
    const size_t n = ratios->n, k = rank_below(n);
    double *v;
    TRY(mem_alloc(&v, n, sizeof *v, "steps beside peaks"));
    memcpy(v, ratios->all, n * sizeof *v);
    qsort(v, n, sizeof *v, by_size);
    *out = (struct bench_median){
        .mid = (v[(n - 1) / 2] + v[n / 2]) / 2, .low = v[k - 1], .high = v[n - k]};
    mem_free(&v);
    return status_ok();
}
