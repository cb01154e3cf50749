/* Latency histograms and the summary's text. */
#include "serve/stats.h"

/* Bucket of a value: its power of two, and its next LATENCY_SUB_BITS bits. */
static size_t bucket_of(uint64_t ns)
{
    const uint64_t n_sub = (uint64_t)1 << LATENCY_SUB_BITS;
    if (ns < n_sub) return (size_t)ns;
    const int shift = 63 - __builtin_clzll(ns) - LATENCY_SUB_BITS;
    return ((size_t)(shift + 1) << LATENCY_SUB_BITS) + (size_t)((ns >> shift) - n_sub);
}

/* The middle of a bucket. */
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
    l->buckets[bucket_of(ns)]++;
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

static void print_latency(const struct latency *l, const char *name, const char *what, FILE *out)
{
    if (l->n == 0) return;
    fprintf(
        out,
        "%s (ms): min %.2f  mean %.2f  P50 %.2f  P90 %.2f  P99 %.2f  max %.2f  (%s; percentiles "
        "within 1.6 %%)\n",
        name, (double)l->min_ns * 1e-6, latency_mean_s(l) * 1e3,
        latency_percentile_s(l, 0.50) * 1e3, latency_percentile_s(l, 0.90) * 1e3,
        latency_percentile_s(l, 0.99) * 1e3, (double)l->max_ns * 1e-6, what);
}

void serve_summary_print(const struct serve_summary *s, FILE *out)
{
    const double wall_s = s->wall_s > 0 ? s->wall_s : 1e-9;
    fprintf(out, "rows: %llu, error rows: %llu, steps: %llu, preemptions: %llu\n",
            (unsigned long long)s->n_rows, (unsigned long long)s->n_error_rows,
            (unsigned long long)s->n_steps, (unsigned long long)s->n_preemptions);
    fprintf(
        out,
        "tokens: %llu prompt (%.1f/s), %llu generated (%.1f/s), %llu computed again, in %.2f s\n",
        (unsigned long long)s->n_prompt_tokens, (double)s->n_prompt_tokens / wall_s,
        (unsigned long long)s->n_generated_tokens, (double)s->n_generated_tokens / wall_s,
        (unsigned long long)s->n_recomputed_tokens, s->wall_s);
    if (s->n_prefix_hits > 0) {
        fprintf(out, "prefix cache: %llu tokens not computed again, in %llu hits\n",
                (unsigned long long)s->n_prefix_hit_tokens, (unsigned long long)s->n_prefix_hits);
    }
    if (s->n_resumed_rows + s->n_resumed_tokens > 0) {
        fprintf(out, "from earlier runs: %llu rows, %llu tokens of unfinished rows\n",
                (unsigned long long)s->n_resumed_rows, (unsigned long long)s->n_resumed_tokens);
    }
    if (s->n_dropped > 0) {
        fprintf(out, "expert choices dropped by the capacity factor: %llu\n",
                (unsigned long long)s->n_dropped);
    }
    print_latency(&s->ttft, "TTFT", "from a request's first step", out);
    print_latency(&s->tpot, "TPOT", "per token behind the first", out);
    if (s->n_scored > 0) {
        fprintf(out, "perplexity: %.6g over %llu tokens (sum of log-probabilities %.9g)\n",
                s->perplexity, (unsigned long long)s->n_scored, s->sum_logprob);
    }
}
