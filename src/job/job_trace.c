/* The timeline of a job: starts and ends it, and adds the lead's planning and commits. */
#include "base/clock.h"
#include "base/log.h"
#include "job/job_private.h"

struct status job_trace_start(struct job *j)
{
    if (j->o->files.trace == NULL) return status_ok();
    struct trace *t = NULL;
    TRY(comm_agree(j->comm, trace_create(j->layout->n_ranks, &t)));
    j->clock = trace_clock_measure(j->comm);
    j->times.trace_origin_ns = comm_rank(j->comm, COMM_WORLD) == 0 ? j->times.start_ns : 0;
    comm_max_u64(j->comm, COMM_WORLD, &j->times.trace_origin_ns, 1);
    j->trace = t;
    comm_trace_in(j->comm, t);
    return status_ok();
}

void job_trace_save(struct job *j)
{
    if (j->trace == NULL || j->o->files.trace == NULL) return;
    const struct trace_alone a = {.trace = j->trace,
                                  .layout = j->layout,
                                  .rank = (uint32_t)comm_rank(j->comm, COMM_WORLD),
                                  .start = j->clock,
                                  .origin_ns = j->times.trace_origin_ns,
                                  .path = j->o->files.trace};
    const struct status st = trace_file_write_alone(&a);
    if (status_failed(&st)) log_line(LOG_ERROR, "%s", st.text);
}

struct status job_trace_end(struct job *j)
{
    if (j->o->files.trace == NULL) return status_ok();
    comm_trace_in(j->comm, NULL);
    return trace_file_write(j->comm, j->layout, j->trace, j->clock, j->times.trace_origin_ns,
                            j->o->files.trace);
}

struct lead_span job_span_begin(const struct job *j)
{
    return (struct lead_span){.begin_ns = clock_ns(),
                              .cpu_ns = trace_cpu_ns(j->trace),
                              .n_admissions = lead_stats(j->lead)->n_admissions};
}

/* Ends a span of the lead and adds its event. */
static void add_span(struct job *j, const struct lead_span *span, struct trace_event e)
{
    e.begin_ns = span->begin_ns;
    e.end_ns = clock_ns();
    e.counts[2] = trace_cpu_ns(j->trace) - span->cpu_ns;
    j->times.plan_ns += e.end_ns - e.begin_ns;
    trace_add(j->trace, &e);
}

void job_span_plan(struct job *j, struct lead_span span, const struct step_plan *plan)
{
    const uint64_t n_admitted = lead_stats(j->lead)->n_admissions - span.n_admissions;
    add_span(j, &span,
             (struct trace_event){.kind = TRACE_PLAN,
                                  .step = plan->step,
                                  .counts = {plan->n_tokens, plan->n_seqs, 0, n_admitted}});
    if (j->trace == NULL || plan->n_seqs == 0) return;
    const struct scheduler_load load = lead_load(j->lead);
    struct trace_event e = {
        .begin_ns = clock_ns(), .kind = TRACE_LOAD, .counts = {load.n_running, load.n_waiting}};
    trace_add(j->trace, &e);
    e.kind = TRACE_BLOCKS;
    e.counts[0] = (uint64_t)(load.n_blocks - load.n_free_blocks);
    e.counts[1] = (uint64_t)load.n_free_blocks;
    trace_add(j->trace, &e);
}

void job_span_commit(struct job *j, struct lead_span span, uint64_t step, uint32_t replica)
{
    add_span(
        j, &span,
        (struct trace_event){.kind = TRACE_COMMIT, .step = step, .counts = {replica, 0, 0, 0}});
}
