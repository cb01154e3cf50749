/* Latencies in bounded memory: a log-spaced histogram of nanoseconds with 64 buckets per power of
 * two. A percentile is the middle of a bucket, off by at most 1/128 (0.8 %) of the value; count,
 * minimum, maximum and mean are exact. Takes 30 KiB for any number of samples. Called by the
 * scheduler, by reports of a job and a server, and by the bench. */
#ifndef SHOAL_SERVE_SCHEDULE_LATENCY_H
#define SHOAL_SERVE_SCHEDULE_LATENCY_H

#include <stddef.h>
#include <stdint.h>

enum { LATENCY_SUB_BITS = 6, LATENCY_BUCKETS = (64 - LATENCY_SUB_BITS + 1) << LATENCY_SUB_BITS };

struct latency {
    uint64_t n, min_ns, max_ns;
    double sum_ns;
    uint64_t buckets[LATENCY_BUCKETS];
};

/* The percentiles that reports show. */
enum { LATENCY_QUANTILE_COUNT = 4 };
extern const int latency_quantiles[LATENCY_QUANTILE_COUNT];

/* Local. Adds a sample. A zeroed struct is an empty histogram. */
void latency_add(struct latency *l, uint64_t ns);

/* Local. Returns the value in seconds below which a fraction p of the samples lies (0 <= p <= 1); 0
 * if empty. */
double latency_percentile_s(const struct latency *l, double p);
double latency_mean_s(const struct latency *l);

/* Local. Returns the number of samples below the bucket that holds `seconds`. Samples that are less
 * than 1/64 smaller than `seconds` may be in that bucket, and then do not count. */
uint64_t latency_n_below(const struct latency *l, double seconds);

#endif
