/* The rules of advice. To add one: a function, its row in rules[], the run that provokes it in
 * tests/unit/test_advice.c, and a row in docs/forecast.md. */
#include "cost/advice.h"

#include <stdarg.h>
#include <stdio.h>

static const double gain_least = 1.05;

static void say(struct advice *a, double gain, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void say(struct advice *a, double gain, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(a->text, sizeof a->text, format, args);
    va_end(args);
    a->gain = gain;
}

/* Returns a part's fraction of the predicted time. */
static double time_part_of(const struct advice_facts *f, enum cost_part part)
{
    const double total = cost_total(&f->predicted);
    return total > 0 ? f->predicted.s[part] / total : 0;
}

/* Returns the speedup of a run that saves this fraction of its time; at most 20. */
static double without(double part)
{
    return part < 0.95 ? 1 / (1 - part) : 20;
}

/* Advises --ep inside a host: where experts are spread over hosts, their exchange is part of the
 * measured communication. */
static void exchange(const struct advice_facts *f, struct advice *a)
{
    const double part = f->communication;
    if (!f->experts_cross_hosts || part < 0.25 || f->ranks_of_host >= f->ep) return;
    say(a, without(part * (1 - (double)f->ranks_of_host / f->ep)),
        "%.0f %% of a step is communication, and experts are spread over hosts: --ep %u, inside a "
        "host, if the memory holds it, would give about %.2f times the speed",
        100 * part, f->ranks_of_host, without(part * (1 - (double)f->ranks_of_host / f->ep)));
}

static void sums(const struct advice_facts *f, struct advice *a)
{
    const double part = f->communication;
    if (f->tp < 2 || f->experts_cross_hosts || part < 0.2) return;
    uint32_t cut = 2; /* the smallest factor of tp, so that no rank is left over */
    while (f->tp % cut != 0) cut++;
    const double gain = without(part * (1 - 1.0 / cut));
    say(a, gain,
        "%.0f %% of a step is communication, mostly sums over %u tp ranks: --tp %u with %u times "
        "the --dp, if the memory holds it, would give about %.2f times the speed",
        100 * part, f->tp, f->tp / cut, cut, gain);
}

/* Advises a larger --max-batch: few rows share each read of the weights, so more rows cost
 * little. */
static void advise_few_rows(const struct advice_facts *f, struct advice *a)
{
    const double part = time_part_of(f, COST_WEIGHTS);
    if (part < 0.5 || f->max_batch <= 0 || f->rows_of_step > 1.5 * f->max_batch) return;
    const double gain = 2 / (1 + (1 - part));
    say(a, gain,
        "%.0f %% of a step reads weights, for %.1f rows on average, as --max-batch %.0f allows: "
        "twice the --max-batch would give about %.2f times the speed",
        100 * part, f->rows_of_step, f->max_batch, gain);
}

static void wide_weights(const struct advice_facts *f, struct advice *a)
{
    const double part = time_part_of(f, COST_WEIGHTS);
    if (part < 0.4 || f->weight_bytes < 1.5) return;
    const double gain = without(part * (1 - 1.06 / f->weight_bytes));
    say(a, gain,
        "%.0f %% of a step reads weights of %.2g bytes each: `shoal quantize --format int8` would "
        "give about %.2f times the speed (and other results)",
        100 * part, f->weight_bytes, gain);
}

static void small_pool(const struct advice_facts *f, struct advice *a)
{
    if (f->preempted < 0.02 || f->recomputed < 0.03) return;
    say(a, without(f->recomputed),
        "the KV pool is too small: %.0f %% of all rows were computed again after %.0f preemptions "
        "of 100 starts: --kv-tier DIR:SIZE, --kv-dtype int8 or more memory would give about %.2f "
        "times the speed",
        100 * f->recomputed, 100 * f->preempted, without(f->recomputed));
}

static void skewed_experts(const struct advice_facts *f, struct advice *a)
{
    const double moe = time_part_of(f, COST_WEIGHTS) + time_part_of(f, COST_ARITHMETIC);
    const double lost = moe * (1 - 1 / f->expert_evenness);
    if (f->ep < 2 || f->expert_evenness < 1.15 || f->placed_by_load) return;
    say(a, without(lost),
        "experts are uneven: the busiest rank had %.2f times the mean of rows: --expert-load with "
        "this run's --metrics file would give up to %.2f times the speed",
        f->expert_evenness, without(lost));
}

static void idle_pipeline(const struct advice_facts *f, struct advice *a)
{
    if (f->pp < 2 || f->waiting < 0.2) return;
    say(a, without(f->waiting / 2),
        "stages wait for each other for %.0f %% of the time: --pp %u, if the memory holds it, or "
        "more sequences at a time would give about %.2f times the speed",
        100 * f->waiting, f->pp / 2, without(f->waiting / 2));
}

static void uneven_replicas(const struct advice_facts *f, struct advice *a)
{
    const double part = time_part_of(f, COST_IMBALANCE);
    if (f->dp < 2 || part < 0.1) return;
    say(a, without(part),
        "replicas wait for the fullest one for %.0f %% of the time: half the --dp with twice the "
        "--tp would give up to %.2f times the speed",
        100 * part, without(part));
}

static void slow_lead(const struct advice_facts *f, struct advice *a)
{
    if (f->pp > 1 || f->planning < 0.1) return;
    say(a, without(f->planning),
        "the lead plans and writes for %.0f %% of the time, while all ranks wait: several jobs on "
        "parts of the input (--input-part K/N) on fewer ranks each would give about %.2f times "
        "the speed",
        100 * f->planning, without(f->planning));
}

static void slow_draft_model(const struct advice_facts *f, struct advice *a)
{
    if (f->pp > 1 || f->drafting < 0.2) return;
    say(a, without(f->drafting / 2),
        "the draft model (--draft) computes for %.0f %% of the time, while all ranks wait: one "
        "that takes half as long (smaller, or of `shoal quantize`) and is as often right would "
        "give about %.2f times the speed",
        100 * f->drafting, without(f->drafting / 2));
}

static void slow_machine(const struct advice_facts *f, struct advice *a)
{
    const double measured_s = f->measured_s * (1 - f->drafting); /* of the predicted parts */
    if (f->predicted_s <= 0 || measured_s < 1.25 * f->predicted_s) return;
    const double gain = measured_s / f->predicted_s;
    say(a, gain,
        "the run took %.2f times as long as the node's file says: other work on the hosts, binding "
        "or a slow link; `shoal diagnose` on the same hosts names it, and without it the job would "
        "be about %.2f times as fast",
        gain, gain);
}

static const struct {
    const char *name;
    void (*see)(const struct advice_facts *f, struct advice *a);
} rules[] = {{"exchange", exchange},           {"sums", sums},
             {"few rows", advise_few_rows},    {"wide weights", wide_weights},
             {"small pool", small_pool},       {"skewed experts", skewed_experts},
             {"idle pipeline", idle_pipeline}, {"uneven replicas", uneven_replicas},
             {"slow lead", slow_lead},         {"slow draft model", slow_draft_model},
             {"slow machine", slow_machine}};
_Static_assert(sizeof rules / sizeof rules[0] <= ADVICE_MAX, "every rule may speak");

size_t advice_of(const struct advice_facts *f, struct advice out[ADVICE_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        struct advice a = {.rule = rules[i].name};
        rules[i].see(f, &a);
        if (a.gain < gain_least) continue;
        size_t at = n++;
        for (; at > 0 && out[at - 1].gain < a.gain; at--) out[at] = out[at - 1];
        out[at] = a;
    }
    return n;
}
