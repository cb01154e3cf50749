/* Writes the measurements in Prometheus' text format, version 0.0.4. */
#include "serve/http/http_text.h"

#include <inttypes.h>
#include <stdio.h>

/* The text to which samples are appended. Each sample's first label is model_name. */
struct samples {
    struct strbuf *out;
    const char *model_name;
};

/* Appends a label's value with backslashes, quotes and line ends escaped. */
static void add_label_value(struct strbuf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\\' || *text == '"') strbuf_puts(out, "\\");
        if (*text == '\n')
            strbuf_puts(out, "\\n");
        else
            strbuf_add(out, text, 1);
    }
}

static void begin(const struct samples *s, const char *name, const char *type, const char *help)
{
    strbuf_printf(s->out, "# HELP shoal:%s %s\n# TYPE shoal:%s %s\n", name, help, name, type);
}

static void add_sample(const struct samples *s, const char *name, const char *suffix,
                       const char *more, double value)
{
    strbuf_printf(s->out, "shoal:%s%s{model_name=\"", name, suffix);
    add_label_value(s->out, s->model_name);
    strbuf_printf(s->out, "\"%s} %.15g\n", more, value);
}

static void add_one(const struct samples *s, const char *name, const char *type, const char *help,
                    double value)
{
    begin(s, name, type, help);
    add_sample(s, name, "", "", value);
}

static void add_histogram(const struct samples *s, const char *name, const char *help,
                          const struct latency *l)
{
    static const double bounds_s[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                      0.5,   1,      2.5,   5,    10,    30,   60,  120};
    char more[64];
    begin(s, name, "histogram", help);
    for (size_t i = 0; i < sizeof bounds_s / sizeof bounds_s[0]; i++) {
        snprintf(more, sizeof more, ",le=\"%g\"", bounds_s[i]);
        add_sample(s, name, "_bucket", more, (double)latency_n_below(l, bounds_s[i]));
    }
    add_sample(s, name, "_bucket", ",le=\"+Inf\"", (double)l->n);
    add_sample(s, name, "_sum", "", l->sum_ns * 1e-9);
    add_sample(s, name, "_count", "", (double)l->n);
}

static void add_ends(const struct samples *s, const struct http_ends *e)
{
    const char *name = "request_success_total";
    begin(s, name, "counter", "Requests that ended, by the reason.");
    add_sample(s, name, "", ",finished_reason=\"stop\"", (double)e->n_stop);
    add_sample(s, name, "", ",finished_reason=\"length\"", (double)e->n_length);
    add_sample(s, name, "", ",finished_reason=\"abort\"", (double)e->n_gone);
    add_sample(s, name, "", ",finished_reason=\"error\"", (double)e->n_error);
}

static void add_times(const struct samples *s, const struct serve_summary *m)
{
    const struct arrival_latencies *a = &m->since_arrival;
    add_histogram(s, "request_queue_time_seconds",
                  "From the arrival of a request to the plan of its first step.", &a->queue);
    add_histogram(s, "request_prefill_time_seconds",
                  "From the plan of a request's first step to its first token.", &m->ttft);
    add_histogram(s, "request_inference_time_seconds",
                  "From the plan of a request's first step to its end.", &m->e2e);
    add_histogram(s, "time_to_first_token_seconds",
                  "From the arrival of a request to its first token.", &a->ttft);
    add_histogram(s, "inter_token_latency_seconds", "Between two tokens of a request.", &m->itl);
    add_histogram(s, "request_time_per_output_token_seconds",
                  "Mean time of a request's tokens after the first.", &m->tpot);
    add_histogram(s, "e2e_request_latency_seconds", "From the arrival of a request to its end.",
                  &a->e2e);
}

void http_metrics(const struct serve_summary *m, const struct scheduler_load *load,
                  const struct http_ends *ends, const char *model_name, struct strbuf *out)
{
    const struct samples s = {out, model_name};
    const int64_t n_blocks = load->n_blocks > 0 ? load->n_blocks : 1;
    add_one(&s, "num_requests_running", "gauge", "Sequences that run.", (double)load->n_running);
    add_one(&s, "num_requests_waiting", "gauge", "Sequences that wait.", (double)load->n_waiting);
    add_one(&s, "kv_cache_usage_perc", "gauge", "Used part of the KV blocks, 0 to 1.",
            1 - (double)load->n_free_blocks / (double)n_blocks);
    add_one(&s, "prompt_tokens_total", "counter", "Tokens of prompts.", (double)m->n_prompt_tokens);
    add_one(&s, "generation_tokens_total", "counter", "Generated tokens.",
            (double)m->n_generated_tokens);
    add_one(&s, "num_preemptions_total", "counter", "Preempted sequences.",
            (double)m->n_preemptions);
    add_one(&s, "prefix_cache_queries_total", "counter", "Tokens looked up in the prefix cache.",
            (double)(m->n_prompt_rows + m->n_prefix_hit_tokens));
    add_one(&s, "prefix_cache_hits_total", "counter", "Tokens found in the prefix cache.",
            (double)m->n_prefix_hit_tokens);
    add_one(&s, "result_cache_hits_total", "counter",
            "Requests answered with the tokens of an equal request.", (double)m->n_result_hits);
    add_ends(&s, ends);
    add_times(&s, m);
}
