/* Fills the buckets of the histogram, and computes percentiles from them. */
#include "serve/schedule/latency.h"

const int latency_quantiles[LATENCY_QUANTILE_COUNT] = {50, 90, 95, 99};

/* Returns the bucket of a value: its power of two, and its next LATENCY_SUB_BITS bits. */
static size_t latency_bucket_of(uint64_t ns)
{
    const uint64_t n_sub = (uint64_t)1 << LATENCY_SUB_BITS;
    if (ns < n_sub) return (size_t)ns;
    const int shift = 63 - __builtin_clzll(ns) - LATENCY_SUB_BITS;
    return ((size_t)(shift + 1) << LATENCY_SUB_BITS) + (size_t)((ns >> shift) - n_sub);
}

/* Returns the middle of a bucket. */
static double bucket_ns(size_t bucket)
{
    const size_t n_sub = (size_t)1 << LATENCY_SUB_BITS;
    if (bucket < n_sub) return (double)bucket;
    const int shift = (int)(bucket >> LATENCY_SUB_BITS) - 1;
    const double low = (double)((uint64_t)((bucket & (n_sub - 1)) + n_sub) << shift);
    return low + 0.5 * (double)(((uint64_t)1 << shift) - 1);
}

void latency_add(struct latency *l, uint64_t ns)
{
    if (l->n == 0 || ns < l->min_ns) l->min_ns = ns;
    if (ns > l->max_ns) l->max_ns = ns;
    l->n++;
    l->sum_ns += (double)ns;
    l->buckets[latency_bucket_of(ns)]++;
}

double latency_percentile_s(const struct latency *l, double p)
{
    if (l->n == 0) return 0;
    uint64_t rank = (uint64_t)(p * (double)l->n);
    if (rank >= l->n) rank = l->n - 1;
    uint64_t n_below = 0;
    size_t b = 0;
    while (n_below + l->buckets[b] <= rank) n_below += l->buckets[b++];
    double ns = bucket_ns(b);
    if (ns < (double)l->min_ns) ns = (double)l->min_ns;
    if (ns > (double)l->max_ns) ns = (double)l->max_ns;
    return ns * 1e-9;
}

double latency_mean_s(const struct latency *l)
{
    return l->n == 0 ? 0 : l->sum_ns * 1e-9 / (double)l->n;
}

uint64_t latency_n_below(const struct latency *l, double seconds)
{
    const size_t last = latency_bucket_of((uint64_t)(seconds * 1e9));
    uint64_t n = 0;
    for (size_t b = 0; b < last; b++) n += l->buckets[b];
    return n;
}
