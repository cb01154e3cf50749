/* The time of a job from its steps: the lead plans a step, then each pipeline stage runs it when
 * the step is there and the stage is free. The caller gives the plans of a real or a simulated job
 * in order. Adds up times; decides nothing. Used by `shoal plan`, `shoal status` and the report
 * after a run. */
#ifndef SHOAL_COST_FORECAST_H
#define SHOAL_COST_FORECAST_H

#include "cost/step_cost.h"

enum forecast_phase { FORECAST_PREFILL, FORECAST_DECODE, FORECAST_MIXED, FORECAST_PHASE_COUNT };

/* Local. Returns the phase's name for people. */
const char *forecast_phase_title(enum forecast_phase p);

/* Local. Returns the kind of a plan: only rows of prompts, only single rows that are sampled, or
 * both. A prompt's last row alone counts as an answer's, and so does each draft token's. */
enum forecast_phase forecast_phase_of(const struct step_plan *plan);

struct forecast {
    const struct cost_model *m; /* borrowed */
    struct cost_rows *rows;     /* [dp], owned */
    double now_s;               /* the end of the last step so far, from the start of the job */
    double lead_free_s, stage_free_s[COST_STAGES_MAX], group_ready_s[COST_STAGES_MAX];
    struct cost by; /* parts of now_s; they add up to it */
    double phase_s[FORECAST_PHASE_COUNT];
    double n_steps, n_rows, n_sampled;
};

/* Local. The model must outlive *f. Errors: STATUS_MEMORY. */
struct status forecast_init(struct forecast *f, const struct cost_model *m);
void forecast_fini(struct forecast *f);

/* Local. Adds a step of microbatch group `group` < pp. Its previous step was added before. */
void forecast_step(struct forecast *f, uint32_t group, const struct step_plan *plan);

/* The tokens of a job, or of a part of one. */
struct forecast_load {
    double prompt, answer; /* tokens; at least one answer token */
    double n_sequences;    /* that run at a time, in all replicas */
    double context;        /* mean tokens of a prompt and half an answer */
};

/* Local. Returns the seconds of a job whose steps are all alike: each has a row for each running
 * sequence, and prompt rows in the proportion of the tokens. Adds the times of all stages, as if
 * they did not overlap. For comparing parts of a job where no scheduler runs. */
double forecast_even_s(const struct cost_model *m, const struct forecast_load *load);

/* The progress of a simulated job, from which forecast_extend estimates the rest. */
enum { FORECAST_MARKS = 64 };
struct forecast_marks {
    double s[FORECAST_MARKS], part[FORECAST_MARKS]; /* time, and fraction of the rows */
    size_t n;
};

/* When a job ends, in seconds from its start. */
struct forecast_end {
    double s, least_s, most_s; /* expected, and the bounds of an interval around it */
};

/* Local. Estimates when all lines are done, from a simulation of some of them: adds to its time,
 * for each further line, the mean time of a line in the middle half of the simulation, where
 * neither the beginning nor the end leaves slots empty. spread: the standard deviation of a line's
 * length over its mean. The interval adds, as root of the sum of squares, `model_error` (a
 * fraction) and twice the standard error of the sample. */
struct forecast_end forecast_extend(const struct forecast_marks *m, double total_s,
                                    double n_simulated, double n_lines, double spread,
                                    double model_error);

#endif
