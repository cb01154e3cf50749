/* Each stage runs the steps in order, as soon as the stage before has sent the rows. */
#include "parallel/layout/pipe_replay.h"

#include "base/mem.h"
#include "parallel/layout/pipe_schedule.h"

#include <string.h>

static uint64_t later_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Simulates one step. done [pp]: when each stage finished the step before. results [pp]: when the
 * lead had the results of the last pp steps. */
static void pipe_replay_run_step(const struct pipe_replay *r, uint64_t step, uint64_t *done,
                                 uint64_t *results, struct pipe_stage_time *out)
{
    const bool counts = step >= r->first_step;
    const int64_t due = pipe_result_due(step, r->pp);
    const uint64_t lead_ns = r->lead_ns != NULL ? r->lead_ns[step] : 0;
    uint64_t ready = due < 0 ? 0 : results[(uint64_t)due % r->pp];
    for (uint32_t p = 0; p < r->pp; p++) {
        const uint64_t busy_ns = r->stage_ns[step * r->pp + p];
        const uint64_t begin = later_of(done[p], ready);
        if (counts) {
            out[p].wait_ns += begin - done[p];
            out[p].busy_ns += busy_ns;
            out[p].lead_ns += p == 0 ? lead_ns : 0;
        }
        done[p] = begin + (p == 0 ? lead_ns : 0) + busy_ns;
        ready = done[p] + r->message_ns;
    }
    results[step % r->pp] = ready;
}

struct status pipe_replay_run(const struct pipe_replay *r, struct pipe_stage_time *out)
{
    if (r->pp == 0 || r->first_step >= r->n_steps) {
        return status_make(STATUS_USAGE,
                           "replay: %u stages, %llu steps from step %llu on, expected some", r->pp,
                           (unsigned long long)r->n_steps, (unsigned long long)r->first_step);
    }
    uint64_t *times = NULL; /* done, results */
    TRY(mem_alloc(&times, 2 * (size_t)r->pp, sizeof *times, "replay"));
    memset(out, 0, r->pp * sizeof *out);
    for (uint64_t step = 0; step < r->n_steps; step++) {
        pipe_replay_run_step(r, step, times, times + r->pp, out);
    }
    mem_free(&times);
    return status_ok();
}
