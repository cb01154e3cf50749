/* Runs steps on one rank: takes a plan, receives the hidden rows from the previous stage, runs its
 * own stage and sends the rows on; the last stage samples and sends the result to the lead. Knows
 * plans and stages, never requests. With pp stages, up to pp steps are in flight
 * (parallel/layout/pipe_schedule.h). */
#ifndef SHOAL_ENGINE_ENGINE_H
#define SHOAL_ENGINE_ENGINE_H

#include "attention/kv_tier.h"
#include "model/stage.h"
#include "plan/step_plan.h"

struct engine;

/* The places outside memory to which this rank copies KV blocks: a file for preempted sequences
 * (attention/kv_tier.h), and the folder of the prefix store (attention/kv_store.h). */
struct engine_tier {
    const char *dir;
    uint32_t n_slots;      /* of the file, the same on all ranks; 0: no file */
    const char *store_dir; /* the prefix store's folder */
    uint64_t store_bytes;  /* 0: none */
    bool store_sweeps;     /* this rank removes files beyond store_bytes at the start */
    struct failpoint *failpoint;
};

struct engine_options {
    struct stage_options stage; /* borrowed parts outlive the engine */
    struct engine_tier tier;
};

/* The work and the time of one rank; times in nanoseconds. Compute time is busy_ns - comm_ns; the
 * time that a rank waits for other ranks inside a collective is part of comm_ns. */
struct engine_stats {
    uint64_t n_steps;
    uint64_t busy_ns; /* inside steps and plan broadcasts, waiting excluded */
    uint64_t comm_ns; /* the part of busy_ns inside collectives */
    uint64_t wait_ns; /* waiting for plans, hidden rows, results and sends: the pipeline's bubble */
    uint64_t plan_ns; /* on the lead's rank: reading, planning, committing; set by the job */
    uint64_t elapsed_ns; /* from the end of start-up to the end of the last step; set by the job */
    uint64_t lead_ns;    /* on the lead's rank: packing and sending plans, receiving results */
    uint64_t n_rows;
    uint64_t n_sent;        /* messages to one rank: plans, hidden rows, results and reports */
    uint64_t n_collectives; /* calls of collectives over the stage and its axes */
    uint64_t peak_bytes;    /* most resident memory */
    struct expert_stream_stats experts; /* of streamed experts */
    struct moe_traffic moe;
    struct kv_tier_stats tier;
};

/* Local. Errors: STATUS_MEMORY, stage_create's, kv_tier_create's and kv_store_create's. destroy
 * accepts NULL. */
struct status engine_create(const struct engine_options *options, struct engine **out);
void engine_destroy(struct engine **e);

/* A step is **Collective (world)**: the lead submits, all other ranks follow. An error of submit or
 * follow leaves the others inside a step, so the caller ends the job (comm_abort). Errors:
 * STATUS_BUG for a plan or message that does not fit, STATUS_MEMORY, and the stage's. */

/* Lead only. Sends a plan to all stages and runs this rank's part of it (nothing for PLAN_STOP and
 * PLAN_MOVE_EXPERTS). The result of a step must be collected, in step order, before step + pp is
 * submitted, and all results before PLAN_MOVE_EXPERTS. */
struct status engine_submit(struct engine *e, const struct step_plan *plan);

/* Lead only. Receives replica `replica`'s result of the oldest step not yet collected for it, into
 * *out (initialized by the caller). Errors: STATUS_BUG, STATUS_MEMORY. */
struct status engine_collect(struct engine *e, int32_t replica, struct step_result *out);

/* All ranks but the lead: runs steps until a plan of another kind comes, and sets *end to its kind.
 * After PLAN_MOVE_EXPERTS the caller moves the experts and calls it again. */
struct status engine_follow(struct engine *e, enum plan_kind *end);

/* Local, between steps. Takes note that the places of the layout's experts have changed. Errors:
 * STATUS_MEMORY. */
struct status engine_take_places(struct engine *e);

/* Local. Returns the counts of this rank so far, without plan_ns and elapsed_ns. */
struct engine_stats engine_stats_of(const struct engine *e);
/* **Collective (EP)**, between steps or after the last one; before engine_stats_of, which then has
 * the rows of the busiest ranks. */
void engine_count_busiest(struct engine *e);

/* Local. The prefix store, for the scheduler (serve/schedule/scheduler.h). engine_store_has
 * returns whether it holds the block of key [2]. engine_store_key sets key [2] to that of the 64
 * tokens after those of key `before` [2]. */
bool engine_store_has(void *engine, const uint64_t *key);
void engine_store_key(const uint64_t *before, const int32_t *tokens, uint64_t *key);

/* Local. Returns the stage, for its expert load and sizes. */
const struct stage *engine_stage(const struct engine *e);

#endif
