/* The report of shoal bench: a block of latencies for each case, one table of all cases, and
 * JSON. */
#include "bench/bench_private.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double quantiles[] = {0.50, 0.90, 0.95, 0.99};
enum { N_QUANTILES = sizeof quantiles / sizeof *quantiles };

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

/* A rate over repetitions: mean and standard deviation. */
struct rate {
    double mean, sd;
};

enum rate_kind { RATE_PREFILL, RATE_DECODE, RATE_OUTPUT };

static double rate_of(const struct bench_repetition *r, enum rate_kind kind)
{
    if (kind == RATE_OUTPUT) return ratio((double)r->n_output_tokens, r->wall_s);
    const struct bench_phase *p = &r->phases[kind == RATE_PREFILL ? BENCH_PREFILL : BENCH_DECODE];
    return ratio((double)p->n_tokens, p->s);
}

static struct rate rate_over(const struct bench_result *r, enum rate_kind kind)
{
    struct rate out = {0, 0};
    for (size_t i = 0; i < r->n; i++) out.mean += rate_of(&r->all[i], kind) / (double)r->n;
    for (size_t i = 0; i < r->n; i++) {
        const double d = rate_of(&r->all[i], kind) - out.mean;
        out.sd += r->n > 1 ? d * d / (double)(r->n - 1) : 0;
    }
    out.sd = sqrt(out.sd);
    return out;
}

static struct bench_phase phase_over(const struct bench_result *r, enum bench_phase_kind kind)
{
    struct bench_phase sum = {.s = 0};
    for (size_t i = 0; i < r->n; i++) {
        const struct bench_phase *p = &r->all[i].phases[kind];
        sum.s += p->s;
        sum.cpu_s += p->cpu_s;
        sum.comm_s += p->comm_s;
        sum.comm_wait_s += p->comm_wait_s;
        sum.n_steps += p->n_steps;
        sum.n_tokens += p->n_tokens;
        sum.bytes += p->bytes;
        sum.flops += p->flops;
    }
    return sum;
}

static double phase_gbs(const struct bench_phase *p)
{
    return ratio(p->bytes * 1e-9, p->s);
}

static double phase_gflops(const struct bench_phase *p)
{
    return ratio(p->flops * 1e-9, p->s);
}

static double best_int8(const struct bench_machine *m)
{
    double best = 0;
    for (int k = PEAK_INT8_AVX2; k <= PEAK_INT8_AMX; k++) best = fmax(best, m->gops[k]);
    return best;
}

static double total_wall(const struct bench_result *r)
{
    double s = 0;
    for (size_t i = 0; i < r->n; i++) s += r->all[i].wall_s;
    return s;
}

static uint64_t total_requests(const struct bench_result *r)
{
    uint64_t n = 0;
    for (size_t i = 0; i < r->n; i++) n += r->all[i].n_requests;
    return n;
}

static void bench_report_print_latency(const char *name, const struct latency *l)
{
    if (l->n == 0) return;
    printf("  %-5s %9.2f %9.2f", name, (double)l->min_ns * 1e-6, latency_mean_s(l) * 1e3);
    for (int i = 0; i < N_QUANTILES; i++) {
        printf(" %9.2f", latency_percentile_s(l, quantiles[i]) * 1e3);
    }
    printf(" %9.2f  %llu\n", (double)l->max_ns * 1e-6, (unsigned long long)l->n);
}

/* Prints which fractions of the steps' time the lead spent in the collectives of its stage, and
 * there in waiting for other ranks. */
static void print_comm(const char *name, const struct bench_phase *p)
{
    if (p->s == 0 || p->comm_s == 0) return;
    printf("  %s: collectives %.1f %% of the time, %.1f %% waiting for other ranks\n", name,
           100 * ratio(p->comm_s, p->s), 100 * ratio(p->comm_wait_s, p->s));
}

static void print_ratios(const char *steps, const char *peak, const struct bench_ratios *ratios)
{
    struct bench_median m;
    if (ratios->n == 0) return;
    const struct status st = bench_ratios_median(ratios, &m);
    if (status_failed(&st)) return;
    printf(
        "  %s in turns with %s: %.1f %% of those before and after a step (median of %zu steps, 95 "
        "%%: %.1f .. %.1f %%)\n",
        steps, peak, 100 * m.mid, ratios->n, 100 * m.low, 100 * m.high);
}

static void print_case(const struct bench_report *report, const struct bench_result *r)
{
    const struct bench_machine *m = &report->machine;
    const struct bench_phase d = phase_over(r, BENCH_DECODE), p = phase_over(r, BENCH_PREFILL);
    printf("\nprompt %u, output %u, concurrency %u: %llu requests in %zu repetitions, %.2f "
           "requests/s\n",
           r->c.prompt, r->c.output, r->c.concurrency, (unsigned long long)total_requests(r), r->n,
           ratio((double)total_requests(r), total_wall(r)));
    printf("  %-5s %9s %9s %9s %9s %9s %9s %9s  samples\n", "ms", "min", "mean", "P50", "P90",
           "P95", "P99", "max");
    bench_report_print_latency("TTFT", &r->ttft);
    bench_report_print_latency("TPOT", &r->stats.tpot);
    bench_report_print_latency("ITL", &r->stats.itl);
    bench_report_print_latency("E2E", &r->e2e);
    if (p.s > 0) {
        printf("  prefill: %llu tokens in %llu steps, %.1f GFLOP/s, %.0f %% of the f32 peak, %.0f "
               "%% of the int8 peak\n",
               (unsigned long long)p.n_tokens, (unsigned long long)p.n_steps, phase_gflops(&p),
               100 * ratio(phase_gflops(&p), bench_machine_fma(m)),
               100 * ratio(phase_gflops(&p), best_int8(m)));
    }
    if (d.s > 0) {
        printf("  decode: %llu tokens in %llu steps of %.2f ms, %.3f GB read each, %.1f GB/s, %.0f "
               "%% of the reads\n",
               (unsigned long long)d.n_tokens, (unsigned long long)d.n_steps,
               d.s * 1e3 / (double)d.n_steps, d.bytes * 1e-9 / (double)d.n_steps, phase_gbs(&d),
               100 * ratio(phase_gbs(&d), m->read_gbs));
    }
    print_ratios("prefill", "f32 operations", &r->parts.f32);
    print_ratios("decode", "reads", &r->parts.reads);
    print_comm("prefill", &p);
    print_comm("decode", &d);
    if (r->stats.n_preemptions > 0) {
        printf("  preemptions: %llu, %llu tokens computed again\n",
               (unsigned long long)r->stats.n_preemptions,
               (unsigned long long)r->stats.n_recomputed_tokens);
    }
}

static void print_rate(const struct bench_result *r, enum rate_kind kind, bool is_shown)
{
    const struct rate x = rate_over(r, kind);
    char text[32] = "-";
    if (is_shown) snprintf(text, sizeof text, "%.1f +- %.1f", x.mean, x.sd);
    printf(" %17s |", text);
}

static void print_summary(const struct bench_report *report)
{
    printf(
        "\n| prompt | output | conc. |     prefill tok/s |      decode tok/s |      output tok/s "
        "| TTFT ms | TPOT ms |  E2E ms | reads | f32 peak |\n"
        "|-------:|-------:|------:|------------------:|------------------:|------------------:"
        "|--------:|--------:|--------:|------:|---------:|\n");
    for (size_t i = 0; i < report->n; i++) {
        const struct bench_result *r = &report->results[i];
        const struct bench_phase d = phase_over(r, BENCH_DECODE), p = phase_over(r, BENCH_PREFILL);
        printf("| %6u | %6u | %5u |", r->c.prompt, r->c.output, r->c.concurrency);
        print_rate(r, RATE_PREFILL, p.s > 0);
        print_rate(r, RATE_DECODE, d.s > 0);
        print_rate(r, RATE_OUTPUT, true);
        printf(" %7.1f | %7.2f | %7.0f | %3.0f %% | %6.0f %% |\n",
               latency_percentile_s(&r->ttft, 0.5) * 1e3,
               latency_percentile_s(&r->stats.tpot, 0.5) * 1e3,
               latency_percentile_s(&r->e2e, 0.5) * 1e3,
               100 * ratio(phase_gbs(&d), report->machine.read_gbs),
               100 * ratio(phase_gflops(&p), bench_machine_fma(&report->machine)));
    }
    printf("rates: mean and standard deviation over repetitions, of steps that hold prompts only "
           "or answers only;\nlatencies: medians. reads: bytes of weights and KV that decoding "
           "needs, beside what memory gives; f32 peak: the prompts'\noperations beside the best "
           "of f32. Both peaks were measured after the last repetition.\n");
}

void bench_report_print(const struct bench_report *r)
{
    const struct job *j = r->j;
    const struct layout *l = j->layout;
    printf("%s, %.3f GB of weights here, %u ranks = dp %u x pp %u x tp %u, kernels %s, %u threads "
           "a rank, KV %s\n",
           j->layout_model.name, (double)j->weights->n_bytes * 1e-9, l->n_ranks, l->dp, l->pp,
           l->tp, j->compute.kern.name, j->compute.n_threads, kv_dtype_name(j->o->model.kv_dtype));
    printf("all ranks together: reads %.1f GB/s, f32 %.1f GFLOP/s, int8 %.1f GOP/s; peak memory "
           "%.0f MiB a rank, %.0f MiB in all\n",
           r->machine.read_gbs, bench_machine_fma(&r->machine), best_int8(&r->machine),
           (double)r->peak_bytes_max / (1 << 20), (double)r->peak_bytes_all / (1 << 20));
    for (size_t i = 0; i < r->n; i++) print_case(r, &r->results[i]);
    print_summary(r);
}

static void json_latency(const char *name, const struct latency *l, struct strbuf *s)
{
    strbuf_printf(s, "\"%s\":{\"n\":%llu,\"min\":%.9f,\"mean\":%.9f", name,
                  (unsigned long long)l->n, (double)l->min_ns * 1e-9, latency_mean_s(l));
    for (int i = 0; i < N_QUANTILES; i++) {
        strbuf_printf(s, ",\"p%.0f\":%.9f", 100 * quantiles[i],
                      latency_percentile_s(l, quantiles[i]));
    }
    strbuf_printf(s, ",\"max\":%.9f}", (double)l->max_ns * 1e-9);
}

static void json_phase(const char *name, const struct bench_phase *p, struct strbuf *s)
{
    strbuf_printf(s,
                  "\"%s\":{\"seconds\":%.9f,\"cpu_seconds\":%.9f,\"comm_seconds\":%.9f,"
                  "\"comm_wait_seconds\":%.9f,\"steps\":%llu,\"tokens\":%llu,"
                  "\"bytes\":%.0f,"
                  "\"flops\":%.0f}",
                  name, p->s, p->cpu_s, p->comm_s, p->comm_wait_s, (unsigned long long)p->n_steps,
                  (unsigned long long)p->n_tokens, p->bytes, p->flops);
}

static void json_repetition(const struct bench_repetition *r, struct strbuf *s)
{
    strbuf_printf(s, "{\"wall_s\":%.9f,\"requests\":%llu,\"output_tokens\":%llu,", r->wall_s,
                  (unsigned long long)r->n_requests, (unsigned long long)r->n_output_tokens);
    json_phase("prefill", &r->phases[BENCH_PREFILL], s);
    strbuf_puts(s, ",");
    json_phase("decode", &r->phases[BENCH_DECODE], s);
    strbuf_puts(s, ",");
    json_phase("mixed", &r->phases[BENCH_MIXED], s);
    strbuf_puts(s, "}");
}

static void json_ratios(const char *name, const struct bench_ratios *ratios, struct strbuf *s)
{
    struct bench_median m;
    if (ratios->n == 0) return;
    const struct status st = bench_ratios_median(ratios, &m);
    if (status_failed(&st)) return;
    strbuf_printf(s, ",\"%s\":{\"median\":%.5f,\"low\":%.5f,\"high\":%.5f,\"parts\":[", name, m.mid,
                  m.low, m.high);
    for (size_t i = 0; i < ratios->n; i++)
        strbuf_printf(s, "%s%.5f", i > 0 ? "," : "", ratios->all[i]);
    strbuf_puts(s, "]}");
}

static void json_parts(const struct bench_parts *parts, struct strbuf *s)
{
    if (parts == NULL) return;
    json_ratios("paired_reads", &parts->reads, s);
    json_ratios("paired_f32", &parts->f32, s);
}

static void json_case(const struct bench_report *report, const struct bench_result *r,
                      struct strbuf *s)
{
    const struct bench_phase d = phase_over(r, BENCH_DECODE), p = phase_over(r, BENCH_PREFILL);
    strbuf_printf(s, "{\"prompt\":%u,\"output\":%u,\"concurrency\":%u,", r->c.prompt, r->c.output,
                  r->c.concurrency);
    json_latency("ttft_s", &r->ttft, s);
    strbuf_puts(s, ",");
    json_latency("tpot_s", &r->stats.tpot, s);
    strbuf_puts(s, ",");
    json_latency("itl_s", &r->stats.itl, s);
    strbuf_puts(s, ",");
    json_latency("e2e_s", &r->e2e, s);
    strbuf_printf(s,
                  ",\"prefill_tokens_per_s\":%.3f,\"decode_tokens_per_s\":%.3f,"
                  "\"output_tokens_per_s\":%.3f,\"requests_per_s\":%.4f,"
                  "\"decode_read_fraction\":%.5f,\"prefill_f32_fraction\":%.5f,"
                  "\"prefill_int8_fraction\":%.5f,\"preemptions\":%llu,\"repetitions\":[",
                  rate_over(r, RATE_PREFILL).mean, rate_over(r, RATE_DECODE).mean,
                  rate_over(r, RATE_OUTPUT).mean, ratio((double)total_requests(r), total_wall(r)),
                  ratio(phase_gbs(&d), report->machine.read_gbs),
                  ratio(phase_gflops(&p), bench_machine_fma(&report->machine)),
                  ratio(phase_gflops(&p), best_int8(&report->machine)),
                  (unsigned long long)r->stats.n_preemptions);
    for (size_t i = 0; i < r->n; i++) {
        strbuf_puts(s, i > 0 ? "," : "");
        json_repetition(&r->all[i], s);
    }
    strbuf_puts(s, "]");
    json_parts(&r->parts, s);
    strbuf_puts(s, "}");
}

void bench_report_json(const struct bench_report *r, struct strbuf *s)
{
    const struct job *j = r->j;
    const struct layout *l = j->layout;
    char cpu[PEAK_CPU_NAME_BYTES];
    peak_cpu_name(cpu);
    strbuf_printf(s, "{\"shoal\":\"%s\",\"cpu\":", SHOAL_VERSION);
    strbuf_json_string(s, cpu, strlen(cpu));
    strbuf_puts(s, ",\"model\":");
    strbuf_json_string(s, j->layout_model.name, strlen(j->layout_model.name));
    strbuf_puts(s, ",\"file\":");
    strbuf_json_string(s, j->o->files.model, strlen(j->o->files.model));
    strbuf_printf(s,
                  ",\"layout\":{\"ranks\":%u,\"tp\":%u,\"pp\":%u,\"dp\":%u,\"ep\":%u,\"etp\":%u},"
                  "\"kernels\":\"%s\",\"threads\":%u,\"kv_dtype\":\"%s\",\"step_tokens\":%u,"
                  "\"chunk\":%u,\"mode\":\"%s\",\"warmup\":%u,\"experts_counted\":%s,"
                  "\"peak_bytes_a_rank\":%llu,\"peak_bytes\":%llu,\"machine\":",
                  l->n_ranks, l->tp, l->pp, l->dp, l->ep, l->etp, j->compute.kern.name,
                  j->compute.n_threads, kv_dtype_name(j->o->model.kv_dtype),
                  (uint32_t)j->o->schedule.step_tokens, (uint32_t)j->o->schedule.chunk_tokens,
                  flag_word_of(FLAG_WORDS(BENCH_MODE_WORDS), (int32_t)j->o->bench->flags.mode),
                  j->o->bench->flags.n_warmup, l->n_ranks == 1 ? "true" : "false",
                  (unsigned long long)r->peak_bytes_max, (unsigned long long)r->peak_bytes_all);
    bench_machine_json(&r->machine, s);
    strbuf_puts(s, ",\"cases\":[");
    for (size_t i = 0; i < r->n; i++) {
        strbuf_puts(s, i > 0 ? "," : "");
        json_case(r, &r->results[i], s);
    }
    strbuf_puts(s, "]}\n");
}

void bench_report_turn(const struct bench_case *c, const struct bench_repetition *r,
                       const struct bench_parts *parts)
{
    struct strbuf s;
    strbuf_init(&s);
    strbuf_printf(&s, "{\"prompt\":%u,\"output\":%u,\"concurrency\":%u,\"repetition\":", c->prompt,
                  c->output, c->concurrency);
    json_repetition(r, &s);
    json_parts(parts, &s);
    strbuf_puts(&s, "}\n");
    fwrite(s.data, 1, s.n, stdout);
    fflush(stdout);
    strbuf_fini(&s);
}
