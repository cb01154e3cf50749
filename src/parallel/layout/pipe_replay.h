/* Simulates a pipeline: the timetable of pipe_schedule with given, unequal times of the stages. A
 * pure function. Label its figures as simulated wherever they are shown. Called by tests and
 * tests/tool_bubble.c. */
#ifndef SHOAL_PARALLEL_LAYOUT_PIPE_REPLAY_H
#define SHOAL_PARALLEL_LAYOUT_PIPE_REPLAY_H

#include "base/status.h"

#include <stdint.h>

struct pipe_replay {
    uint32_t pp;
    uint64_t n_steps;
    const uint64_t *stage_ns; /* [n_steps, pp]: how long each stage computes each step */
    const uint64_t *lead_ns;  /* [n_steps]: the lead's time to commit step s - pp and plan step
                                 s, on stage 0's core before stage 0 computes step s; NULL: 0 */
    uint64_t message_ns;      /* time of a message from a stage to the next, and from the last
                                 stage to the lead */
    uint64_t first_step;      /* earlier steps fill the pipe and are not counted */
};

/* The time of one stage from the end of step first_step - 1 to the end of the last step. */
struct pipe_stage_time {
    uint64_t busy_ns, lead_ns, wait_ns;
};

/* Local. Simulates the steps; out [pp]: the stages' times. Errors: STATUS_USAGE (no stage,
 * first_step beyond the steps), STATUS_MEMORY. */
struct status pipe_replay_run(const struct pipe_replay *r, struct pipe_stage_time *out);

#endif
