/* The measurements of a job: counts, rates, and latencies in bounded memory. Filled in by the lead
 * and the scheduler; printed at the end, and written by --metrics. Times appear here and on stderr,
 * never in a result line. */
#ifndef SHOAL_SERVE_SCHEDULE_STATS_H
#define SHOAL_SERVE_SCHEDULE_STATS_H

#include "serve/schedule/latency.h"

#include <stdint.h>
#include <stdio.h>

/* KV blocks that went to disk and came back. Each counts once, although every rank of its replica
 * moves its part. */
struct moved_blocks {
    uint64_t n_out, n_in; /* moves ordered: to disk, and back */
    uint64_t n_tokens;    /* rows not computed because they were read */
};

/* The work of a draft model (--draft). */
struct model_drafts {
    uint64_t n, n_right; /* how many of n_drafts and n_right_drafts it proposed */
    uint64_t ns;         /* time that it took */
};

/* Latencies that a server reports. They begin when a call arrives; for requests without a call,
 * when they are submitted to the scheduler. */
struct arrival_latencies {
    struct latency queue; /* to the plan of a request's first step */
    struct latency ttft;  /* to the commit of its first token */
    struct latency e2e;   /* to its end */
};

struct serve_summary {
    uint64_t n_rows; /* result lines written, including error rows */
    uint64_t n_error_rows;
    uint64_t n_resumed_rows;      /* how many of n_rows were taken over from the journal */
    uint64_t n_resumed_tokens;    /* sampled tokens of unfinished requests, also taken over from
                                     the journal */
    uint64_t n_commits;           /* commits of the journal */
    double commit_s;              /* seconds that a slow commit takes (journal_commit_s) */
    uint64_t n_prompt_tokens;     /* prompt tokens of requests that ran, each counted once, cached
                                     or computed */
    uint64_t n_generated_tokens;  /* sampled tokens kept */
    uint64_t n_recomputed_tokens; /* rows recomputed after preemptions */
    uint64_t n_prefix_hits;       /* times that a request continued after cached blocks */
    uint64_t n_prefix_hit_tokens; /* rows not computed because of prefix hits, including after
                                     preemptions */
    uint64_t n_prompt_rows; /* rows of prompts that were computed, including after preemptions */
    uint64_t n_admissions;  /* times that a request began to run, including after preemptions */
    uint64_t n_result_hits; /* answers that came whole from the result cache */
    uint64_t n_result_hit_tokens; /* sampled tokens from the result cache: of whole answers, and
                                     of beginnings that were then continued */
    uint64_t n_drafts;            /* draft tokens that were checked (serve/schedule/drafting.h) */
    uint64_t n_right_drafts;      /* draft tokens equal to the sampled token; each saved a step */
    uint64_t n_guesses;           /* guesses of the prediction layer that were compared */
    uint64_t n_right_guesses;
    struct model_drafts model_drafts;
    uint64_t n_preemptions;
    struct moved_blocks tier;   /* KV blocks on --kv-tier */
    struct moved_blocks store;  /* KV blocks in --prefix-store */
    uint64_t n_tier_failed;     /* reads from either that failed on a rank */
    uint64_t n_peak_batch;      /* the most sequences that ran together in one replica */
    uint64_t n_dropped;         /* expert choices dropped by a capacity factor */
    uint64_t n_steps;           /* plans with at least one sequence */
    uint64_t n_least_step_rows; /* the smallest budget of rows that a bound on a step's time gave
                                   to a step; 0: no such bound held */
    uint64_t n_blocks; /* blocks of all replicas' KV pools; cached blocks without a holder count
                          as free */
    uint64_t n_peak_used_blocks;
    uint64_t sum_used_blocks; /* sum of the used blocks, sampled once per step */
    double wall_s;            /* seconds from lead_start to lead_finish */
    struct latency ttft;      /* time to first token: from the plan of a request's first step to
                                 the commit of its first token */
    struct latency tpot;      /* time per output token after the first, one sample per request with
                                 two or more */
    struct latency itl;       /* between two tokens of a request, one sample per token after the
                                 first */
    struct latency e2e;       /* from the plan of a request's first step to its end */
    struct arrival_latencies since_arrival;
    uint64_t n_scored;  /* score: tokens with a log-probability */
    double sum_logprob; /* score: summed per request, then over requests in input order */
    double perplexity;  /* score: exp(-sum_logprob / n_scored); 0 when nothing was scored */
};

/* Local. Returns n_prefix_hit_tokens / (n_prefix_hit_tokens + n_prompt_rows), 0 to 1. */
double serve_summary_hit_rate(const struct serve_summary *s);

/* Local. Prints the summary as lines of text for people. */
void serve_summary_print(const struct serve_summary *s, FILE *out);

#endif
