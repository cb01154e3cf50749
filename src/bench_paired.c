/* Decoding beside what memory gives at that very time: a pass over memory that no cache holds after
 * each step, by the same threads. How fast a machine reads may change from one second to the next,
 * above all that of a virtual one, so a peak measured once says little of a step that ran at
 * another time. A pass empties the caches, which a step whose weights exceed them does by itself.
 * Called by bench_run.c. */
#include "bench_state.h"

#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PASS_BYTES_MAX = 512 << 20, TRIALS = 7, PARTS_FIRST = 256 };

static uint64_t pass_ns(const struct bench_paired *p, int variant)
{
    const uint64_t since = clock_ns();
    (void)peak_read(&p->memory, p->team, variant);
    return clock_ns() - since + 1;
}

/* The variant of the smallest median: what others take once in a while does not choose. */
static int fastest(const struct bench_paired *p)
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

struct status bench_paired_init(struct bench_paired *p, struct team *team, double step_bytes,
                                size_t least)
{
    *p = (struct bench_paired){.team = team};
    const double n_bytes = fmax(fmin(step_bytes, PASS_BYTES_MAX), (double)least);
    TRY(peak_memory_init(&p->memory, team, (size_t)n_bytes));
    p->n_bytes = peak_read(&p->memory, team, 0);
    p->variant = fastest(p);
    return status_ok();
}

void bench_paired_fini(struct bench_paired *p)
{
    peak_memory_fini(&p->memory);
}

void bench_paired_pass(struct bench_paired *p)
{
    p->last_ns = pass_ns(p, p->variant);
}

struct status bench_paired_step(struct bench_paired *p, double bytes, double s,
                                struct bench_parts *out)
{
    if (out->n == out->cap) {
        const size_t cap = out->cap > 0 ? 2 * out->cap : PARTS_FIRST;
        TRY(mem_grow(&out->all, out->cap, cap, sizeof *out->all, "parts of the reads"));
        out->cap = cap;
    }
    const uint64_t before = p->last_ns;
    bench_paired_pass(p);
    const double reads = 2 * p->n_bytes / ((double)(before + p->last_ns) * 1e-9);
    out->all[out->n++] = bytes / s / reads;
    return status_ok();
}

static int by_size(const void *a_, const void *b_)
{
    const double a = *(const double *)a_, b = *(const double *)b_;
    return (a > b) - (a < b);
}

/* The largest k for which at most k - 1 of n values lie below the median with a probability of at
 * most 0.025; 1 when there is none. */
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

struct status bench_parts_median(const struct bench_parts *parts, struct bench_median *out)
{
    const size_t n = parts->n, k = rank_below(n);
    double *v;
    TRY(mem_alloc(&v, n, sizeof *v, "parts of the reads"));
    memcpy(v, parts->all, n * sizeof *v);
    qsort(v, n, sizeof *v, by_size);
    *out = (struct bench_median){
        .mid = (v[(n - 1) / 2] + v[n / 2]) / 2, .low = v[k - 1], .high = v[n - k]};
    mem_free(&v);
    return status_ok();
}
