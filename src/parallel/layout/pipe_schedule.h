/* The pipeline's timetable, a pure function. Sequences are divided into pp microbatch groups; step
 * s works on group s mod pp; stage p runs step s at tick s + p. The plan of step s needs the tokens
 * sampled in step s - pp, which the last stage produces one tick before, so with balanced stages no
 * stage waits. Source: the 1F1B schedule of PipeDream (Narayanan et al., 2019); the sampled tokens
 * that come back take the place of its backward pass. */
#ifndef SHOAL_PARALLEL_LAYOUT_PIPE_SCHEDULE_H
#define SHOAL_PARALLEL_LAYOUT_PIPE_SCHEDULE_H

#include "base/strbuf.h"

#include <stdint.h>

/* Local. Returns the group of a step, and the step whose result the lead must have before it plans
 * `step` (-1: none). */
uint32_t pipe_group(uint64_t step, uint32_t pp);
int64_t pipe_result_due(uint64_t step, uint32_t pp);

/* Local. Returns the step that stage `stage` runs at `tick`, or -1 when it idles (warm-up,
 * cool-down). */
int64_t pipe_step_at(uint32_t stage, uint64_t tick, uint32_t pp, uint64_t n_steps);

/* Local. Prints an ASCII timeline: a line per stage, a column per tick, with the group (0-9, a-z)
 * or '.'. */
void pipe_print(uint32_t pp, uint64_t n_steps, struct strbuf *out);

#endif
