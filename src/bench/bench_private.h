/* Private to shoal bench, shared by bench_cost.c (bytes and operations of a step), bench_run.c
 * (repetitions), bench_paired.c (steps in turns with the machine's peaks), bench_load.c (loading)
 * and bench_report.c (tables and JSON). */
#ifndef SHOAL_BENCH_BENCH_PRIVATE_H
#define SHOAL_BENCH_BENCH_PRIVATE_H

#include "bench/bench.h"
#include "job/job.h"
#include "plan/step_plan.h"
#include "serve/schedule/stats.h"

/* Bytes and operations of steps, over all ranks. */
struct bench_cost {
    double dense_bytes;     /* weights that every step reads: no experts, no untied embedding */
    double expert_bytes;    /* bytes of one expert of one layer */
    double kv_token_bytes;  /* bytes of one position in all layers */
    double row_flops;       /* linears of one row, the chosen experts only; a multiply-add is two */
    double head_flops;      /* of one row whose logits are wanted */
    double attention_flops; /* for one row and one position that it sees */
    uint32_t n_moe_layers, n_experts, n_chosen, window;
    double windowed;     /* fraction of the layers that have the window */
    bool counts_experts; /* one rank sees every choice; otherwise the number of experts that a step
                            reads is estimated from evenly spread choices */
    uint64_t *load;      /* owned; [layers, E] choices before the step; NULL: not counted */
};

enum bench_phase_kind { BENCH_PREFILL, BENCH_DECODE, BENCH_MIXED, BENCH_PHASE_COUNT };

/* The steps of one kind: with rows of prompts only, of answers only, or of both. */
struct bench_phase {
    double s;     /* sum of the times from the results of the previous step to those of a step */
    double cpu_s; /* CPU time of all threads of this process in that time */
    /* time of the lead in collectives of its stage, and the part of it spent waiting for other
     * ranks */
    double comm_s, comm_wait_s;
    uint64_t n_steps, n_tokens;
    double bytes, flops;
};

/* Rates of steps, each divided by the rate of the passes before and after it. */
struct bench_ratios {
    double *all; /* owned [n] */
    size_t n, cap;
};

/* Ratios for decoding steps (bytes per second, divided by those of reads) and for prompt steps
 * (operations per second, divided by those of f32 arithmetic). */
struct bench_parts {
    struct bench_ratios reads, f32;
};

/* The passes between steps: reading memory that no cache holds, and multiplying. */
struct bench_paired {
    struct team *team;
    struct peak_memory memory;
    int variant;               /* the fastest way to read on this machine */
    enum peak_kind arithmetic; /* the fastest in f32 */
    double n_bytes;            /* bytes that a pass reads */
    double reads, flops;       /* rates of the last passes, per second; 0: none yet */
};

/* A median, and the order statistics that bound it with at least 95 % confidence (the extremes when
 * there are too few values). */
struct bench_median {
    double mid, low, high;
};

struct bench_case {
    uint32_t prompt, output, concurrency;
};

/* One repetition. */
struct bench_repetition {
    struct bench_phase phases[BENCH_PHASE_COUNT];
    double wall_s; /* from the first request to the last token, without --paired-peaks' passes */
    uint64_t n_requests, n_output_tokens;
};

struct bench_result {
    struct bench_case c;
    struct latency ttft, e2e;     /* from a request's submission */
    struct serve_summary stats;   /* the report shows its tpot and itl */
    struct bench_repetition *all; /* [n], owned */
    size_t n;
    struct bench_parts parts; /* with --paired-peaks */
};

enum { BENCH_PASS_LEAST = 96 << 20 };

/* Local. Allocates memory for passes of about step_bytes, capped, but at least `least` bytes, so
 * that no cache keeps them between passes, and finds the fastest way to read it and the fastest f32
 * arithmetic. The team must outlive *p. Errors: STATUS_MEMORY. */
struct status bench_paired_init(struct bench_paired *p, struct team *team, double step_bytes,
                                size_t least);
void bench_paired_fini(struct bench_paired *p);

/* Local. Runs both passes; call it before the first step of a repetition. */
void bench_paired_begin(struct bench_paired *p);

/* Local. Runs passes after a step of `s` seconds, and adds to *out the ratio of the step's rate to
 * the rates before and after it; nothing for a step with rows of both prompts and answers. Errors:
 * STATUS_MEMORY. */
struct status bench_paired_step(struct bench_paired *p, enum bench_phase_kind kind,
                                const struct bench_phase *step, double s, struct bench_parts *out);

void bench_parts_fini(struct bench_parts *parts);

/* Local. Computes the median of the ratios, of which there is at least one. Errors:
 * STATUS_MEMORY. */
struct status bench_ratios_median(const struct bench_ratios *ratios, struct bench_median *out);

/* init is **Collective (world)** and computes the costs of the job's model. Errors:
 * STATUS_MEMORY. */
struct status bench_cost_init(struct bench_cost *cost, struct job *j);
void bench_cost_fini(struct bench_cost *cost);

/* Local. Returns the bytes of weights that a step of one row reads. */
double bench_cost_token(const struct bench_cost *cost);

/* Local, lead. Adds one step with the plan's rows, bytes and operations to *step, but no time, and
 * returns its kind; every prompt has n_prompt tokens. Call it before engine_submit. Where the bytes
 * of experts are counted, bench_cost_experts adds them after the submit; else bench_cost_step has
 * added an estimate. */
enum bench_phase_kind bench_cost_step(struct bench_cost *cost, const struct step_plan *plan,
                                      uint32_t n_prompt, const struct job *j,
                                      struct bench_phase *step);
void bench_cost_experts(const struct bench_cost *cost, const struct job *j,
                        struct bench_phase *step);

/* Local. Returns the synthetic token at `position` of request `i`: spread evenly over the
 * vocabulary. */
uint32_t bench_token(uint32_t i, uint32_t position, uint32_t vocab);

/* A report: the results, and the facts shown beside them. */
struct bench_report {
    const struct job *j;
    struct bench_machine machine;
    uint64_t peak_bytes_max, peak_bytes_all; /* resident: the most of any rank, and the sum */
    const struct bench_result *results;      /* [n] */
    size_t n;
};

/* Local, lead. Prints the table on stdout. */
void bench_report_print(const struct bench_report *r);
/* Local, lead. Appends the report as JSON. */
void bench_report_json(const struct bench_report *r, struct strbuf *s);
/* Local, lead. Prints one repetition as a line of JSON on stdout; parts NULL: without
 * --paired-peaks. */
void bench_report_turn(const struct bench_case *c, const struct bench_repetition *r,
                       const struct bench_parts *parts);

#endif
