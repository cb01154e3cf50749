/* What a job measured: counts, rates, and latencies in bounded memory. Fed by the lead; printed at
 * the end. Timing stands here and on stderr, never in a result line. */
#ifndef SHOAL_SERVE_STATS_H
#define SHOAL_SERVE_STATS_H

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>

/* A log-spaced histogram of nanoseconds: 32 buckets per power of two, so that a percentile is off
 * by at most 1.6 %; minimum, maximum and mean are exact. Constant memory (15 KiB). */
enum { LATENCY_SUB_BITS = 5, LATENCY_BUCKETS = (64 - LATENCY_SUB_BITS + 1) << LATENCY_SUB_BITS };

struct latency {
    uint64_t n, min_ns, max_ns;
    double sum_ns;
    uint64_t buckets[LATENCY_BUCKETS];
};

/* Local. A zeroed struct is an empty histogram. */
void latency_add(struct latency *l, uint64_t ns);

/* Local. The value in seconds below which a share p of the samples lies (0 <= p <= 1); 0 if empty.
 */
double latency_percentile_s(const struct latency *l, double p);
double latency_mean_s(const struct latency *l);

struct serve_summary {
    uint64_t n_rows; /* result lines written, error rows included */
    uint64_t n_error_rows;
    uint64_t n_resumed_rows;      /* of n_rows: taken over from the journal */
    uint64_t n_resumed_tokens;    /* sampled tokens of unfinished requests taken over from it */
    uint64_t n_commits;           /* of the journal */
    double commit_s;              /* its longest of late */
    uint64_t n_prompt_tokens;     /* of requests that ran; each counted once, cached or computed */
    uint64_t n_generated_tokens;  /* sampled tokens kept */
    uint64_t n_recomputed_tokens; /* rows computed again after preemptions */
    uint64_t n_prefix_hits;       /* times that a request went on behind cached blocks */
    uint64_t n_prefix_hit_tokens; /* rows not computed for that reason, after preemptions too */
    uint64_t n_preemptions;
    uint64_t n_peak_batch; /* most sequences that ran together in one replica */
    uint64_t n_dropped;    /* expert choices dropped by a capacity factor */
    uint64_t n_steps;      /* plans with at least one sequence */
    double wall_s;         /* from create to finish */
    struct latency ttft;   /* time to first token: from a request's first step being planned to its
                              first token being committed */
    struct latency tpot;   /* time per output token behind the first, one sample per request */
    uint64_t n_scored;     /* score: tokens with a log-probability */
    double sum_logprob;    /* score: per request by position, then requests in input order */
    double perplexity;     /* score: exp(-sum_logprob / n_scored); 0 when nothing was scored */
};

/* Local. The summary as lines of text for people. */
void serve_summary_print(const struct serve_summary *s, FILE *out);

#endif
