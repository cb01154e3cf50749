/* Computes the pipeline's timetable from steps, stages and ticks. */
#include "parallel/layout/pipe_schedule.h"

uint32_t pipe_group(uint64_t step, uint32_t pp)
{
    return (uint32_t)(step % pp);
}

int64_t pipe_result_due(uint64_t step, uint32_t pp)
{
    return step < pp ? -1 : (int64_t)(step - pp);
}

int64_t pipe_step_at(uint32_t stage, uint64_t tick, uint32_t pp, uint64_t n_steps)
{
    if (stage >= pp || tick < stage || tick - stage >= n_steps) return -1;
    return (int64_t)(tick - stage);
}

static char group_digit(uint32_t group)
{
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    return digits[group % (sizeof digits - 1)];
}

void pipe_print(uint32_t pp, uint64_t n_steps, struct strbuf *out)
{
    const uint64_t n_ticks = n_steps == 0 ? 0 : n_steps + pp - 1;
    for (uint32_t stage = 0; stage < pp; stage++) {
        strbuf_printf(out, "stage %-3u ", stage);
        for (uint64_t tick = 0; tick < n_ticks; tick++) {
            const int64_t step = pipe_step_at(stage, tick, pp, n_steps);
            const char c = step < 0 ? '.' : group_digit(pipe_group((uint64_t)step, pp));
            strbuf_add(out, &c, 1);
        }
        strbuf_puts(out, "\n");
    }
}
