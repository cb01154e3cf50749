/* The inside of shoal bench, shared by bench_cost.c (bytes and operations of a step), bench_run.c
 * (repetitions), bench_paired.c (steps in turns with the machine's peaks) and bench_report.c
 * (tables and JSON). */
#ifndef SHOAL_BENCH_BENCH_PRIVATE_H
#define SHOAL_BENCH_BENCH_PRIVATE_H

#include "bench/bench.h"
#include "job/job.h"
#include "plan/step_plan.h"
#include "serve/schedule/stats.h"

/* Bytes and operations of steps, over all ranks. */
struct bench_cost {
    double dense_bytes;     /* weights that every step reads: all but experts and the embedding */
    double expert_bytes;    /* of one expert of one layer */
    double kv_token_bytes;  /* of one position, all layers */
    double row_flops;       /* linears of one row, the chosen experts only; a multiply-add is two */
    double head_flops;      /* of one row whose logits are asked for */
    double attention_flops; /* of one row and one position that it sees */
    uint32_t n_moe_layers, n_experts, n_chosen, window;
    double windowed;     /* fraction of the layers that have the window */
    bool counts_experts; /* one rank sees every choice; else the number of experts that a step reads
                            is that of evenly spread choices */
    uint64_t *load;      /* owned; [layers, E] choices before the step; NULL: not counted */
};

enum bench_phase_kind { BENCH_PREFILL, BENCH_DECODE, BENCH_MIXED, BENCH_PHASE_COUNT };

/* Steps of one kind: all rows of prompts, all rows behind them, or both. */
struct bench_phase {
    double s;     /* from the results before to these results */
    double cpu_s; /* of this process meanwhile, all threads */
    /* of the lead in collectives of its stage, and of that until the others had come */
    double comm_s, comm_wait_s;
    uint64_t n_steps, n_tokens;
    double bytes, flops;
};

/* Rates of steps by those of the passes beside them. */
struct bench_ratios {
    double *all; /* owned [n] */
    size_t n, cap;
};

/* Decoding steps' bytes a second by the reads', prompt steps' operations by those of f32. */
struct bench_parts {
    struct bench_ratios reads, f32;
};

/* Work of the compute threads between steps: read memory that no cache holds, and multiply. */
struct bench_paired {
    struct team *team;
    struct peak_memory memory;
    int variant;               /* the fastest way to read here */
    enum peak_kind arithmetic; /* the fastest in f32 */
    double n_bytes;            /* that a pass reads */
    double reads, flops;       /* a second, of the last passes; 0: none yet */
};

/* A median and the order statistics that hold it with at least 95 % (all values when too few). */
struct bench_median {
    double mid, low, high;
};

struct bench_case {
    uint32_t prompt, output, concurrency;
};

/* One repetition. */
struct bench_repetition {
    struct bench_phase phases[BENCH_PHASE_COUNT];
    double wall_s; /* from the first request to the last token */
    uint64_t n_requests, n_output_tokens;
};

struct bench_result {
    struct bench_case c;
    struct latency ttft, e2e;     /* from a request's submission */
    struct serve_summary stats;   /* its tpot and itl are shown */
    struct bench_repetition *all; /* [n], owned */
    size_t n;
    struct bench_parts parts; /* with --paired-peaks */
};

enum { BENCH_PASS_LEAST = 96 << 20 };

/* Local. Memory for passes of about step_bytes, capped, but of at least `least` bytes, so that no
 * cache keeps it from one pass to the next; finds the fastest way to read it. The team must outlive
 * it. Errors: STATUS_MEMORY. */
struct status bench_paired_init(struct bench_paired *p, struct team *team, double step_bytes,
                                size_t least);
void bench_paired_fini(struct bench_paired *p);

/* Local. Both passes, before a repetition's first step. */
void bench_paired_begin(struct bench_paired *p);

/* Local. Passes after a step of `s` seconds; adds the step's part of what those before and after
 * it reached. A step of prompts and answers counts in neither. Errors: STATUS_MEMORY. */
struct status bench_paired_step(struct bench_paired *p, enum bench_phase_kind kind,
                                const struct bench_phase *step, double s, struct bench_parts *out);

void bench_parts_fini(struct bench_parts *parts);

/* Local. Of at least one ratio. Errors: STATUS_MEMORY. */
struct status bench_ratios_median(const struct bench_ratios *ratios, struct bench_median *out);

/* **Collective (world)** init: fills what the job's model costs. Errors: STATUS_MEMORY. */
struct status bench_cost_init(struct bench_cost *cost, struct job *j);
void bench_cost_fini(struct bench_cost *cost);

/* Local. Bytes of the weights that a step of one row reads. */
double bench_cost_token(const struct bench_cost *cost);

/* Local, lead. Adds a plan's rows, bytes and operations to *step, whose time is left alone, and
 * tells its kind; prompts have n_prompt tokens. Before the plan is submitted, when experts are
 * counted; bench_cost_experts adds their bytes afterwards. */
enum bench_phase_kind bench_cost_step(struct bench_cost *cost, const struct step_plan *plan,
                                      uint32_t n_prompt, const struct job *j,
                                      struct bench_phase *step);
void bench_cost_experts(const struct bench_cost *cost, const struct job *j,
                        struct bench_phase *step);

/* Local. The synthetic token at `position` of request `i`: spread evenly over the vocabulary. */
uint32_t bench_token(uint32_t i, uint32_t position, uint32_t vocab);

/* A report: the results, and the facts shown beside them. */
struct bench_report {
    const struct job *j;
    struct bench_machine machine;
    uint64_t peak_bytes_max, peak_bytes_all; /* resident, of one rank and of all */
    const struct bench_result *results;      /* [n] */
    size_t n;
};

/* Local, lead. The table on stdout. */
void bench_report_print(const struct bench_report *r);
/* Local, lead. */
void bench_report_json(const struct bench_report *r, struct strbuf *s);
/* Local, lead. One repetition as a line of JSON on stdout; parts NULL: without --paired-peaks. */
void bench_report_turn(const struct bench_case *c, const struct bench_repetition *r,
                       const struct bench_parts *parts);

#endif
