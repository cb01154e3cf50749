/* Prints the summary of a run (struct serve_summary) at its end. */
#include "serve/schedule/stats.h"

static void stats_print_latency(const struct latency *l, const char *name, const char *what,
                                FILE *out)
{
    if (l->n == 0) return;
    fprintf(out, "%s (ms): min %.2f  mean %.2f", name, (double)l->min_ns * 1e-6,
            latency_mean_s(l) * 1e3);
    for (size_t i = 0; i < LATENCY_QUANTILE_COUNT; i++) {
        fprintf(out, "  P%d %.2f", latency_quantiles[i],
                latency_percentile_s(l, latency_quantiles[i] / 100.0) * 1e3);
    }
    fprintf(out, "  max %.2f  (%s)\n", (double)l->max_ns * 1e-6, what);
}

double serve_summary_hit_rate(const struct serve_summary *s)
{
    const uint64_t n = s->n_prefix_hit_tokens + s->n_prompt_rows;
    return n == 0 ? 0 : (double)s->n_prefix_hit_tokens / (double)n;
}

static void print_blocks(const struct serve_summary *s, FILE *out)
{
    if (s->n_blocks == 0 || s->n_steps == 0) return;
    const double n = (double)s->n_blocks;
    const double mean = (double)s->sum_used_blocks / (double)s->n_steps;
    fprintf(out, "KV blocks in use: peak %llu (%.0f %%), mean %.0f (%.0f %%) of %llu\n",
            (unsigned long long)s->n_peak_used_blocks, 100 * (double)s->n_peak_used_blocks / n,
            mean, 100 * mean / n, (unsigned long long)s->n_blocks);
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
    if (s->n_result_hits > 0) {
        fprintf(out, "result cache: %llu rows, %llu tokens of them and of continued ones\n",
                (unsigned long long)s->n_result_hits, (unsigned long long)s->n_result_hit_tokens);
    }
    if (s->n_prefix_hits > 0) {
        fprintf(out,
                "prefix cache: %llu tokens not computed again, in %llu hits; hit rate %.1f %%\n",
                (unsigned long long)s->n_prefix_hit_tokens, (unsigned long long)s->n_prefix_hits,
                100 * serve_summary_hit_rate(s));
    }
    if (s->n_drafts > 0) {
        fprintf(out, "drafts: %llu of %llu tokens right (%.1f %%)\n",
                (unsigned long long)s->n_right_drafts, (unsigned long long)s->n_drafts,
                100 * (double)s->n_right_drafts / (double)s->n_drafts);
    }
    if (s->n_guesses > 0) {
        fprintf(out, "prediction layer: %llu of %llu guesses right (%.1f %%)\n",
                (unsigned long long)s->n_right_guesses, (unsigned long long)s->n_guesses,
                100 * (double)s->n_right_guesses / (double)s->n_guesses);
    }
    if (s->model_drafts.n > 0) {
        fprintf(out, "draft model: %llu of %llu tokens right (%.1f %%), in %.2f s\n",
                (unsigned long long)s->model_drafts.n_right, (unsigned long long)s->model_drafts.n,
                100 * (double)s->model_drafts.n_right / (double)s->model_drafts.n,
                (double)s->model_drafts.ns * 1e-9);
    }
    print_blocks(s, out);
    if (s->n_resumed_rows + s->n_resumed_tokens > 0) {
        fprintf(out, "from earlier runs: %llu rows, %llu tokens of unfinished rows\n",
                (unsigned long long)s->n_resumed_rows, (unsigned long long)s->n_resumed_tokens);
    }
    if (s->n_dropped > 0) {
        fprintf(out, "expert choices dropped by the capacity factor: %llu\n",
                (unsigned long long)s->n_dropped);
    }
    stats_print_latency(&s->ttft, "TTFT", "from a request's first step", out);
    stats_print_latency(&s->tpot, "TPOT", "a request's mean per token after the first", out);
    stats_print_latency(&s->itl, "ITL", "between two tokens of a request", out);
    stats_print_latency(&s->e2e, "end to end", "from a request's first step to its end", out);
    if (s->n_scored > 0) {
        fprintf(out, "perplexity: %.6g over %llu tokens (sum of log-probabilities %.9g)\n",
                s->perplexity, (unsigned long long)s->n_scored, s->sum_logprob);
    }
}
