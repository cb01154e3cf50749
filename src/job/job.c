/* The life of a job: phases that all ranks end together, then the step loop. */
#include "job/job.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "job/job_private.h"
#include "job/job_same.h"
#include "job/slurm.h"
#include "kernels/device.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Makes the launcher's first rank the lead, because launchers give stdin to that rank only. */
static void lead_by_first(uint32_t *order, size_t n_ranks)
{
    size_t at = 0;
    while (at < n_ranks && order[at] != 0) at++;
    if (at == n_ranks) return;
    order[at] = order[0];
    order[0] = 0;
}

static uint32_t at_least_one(uint32_t n)
{
    return n > 0 ? n : 1;
}

/* Whether more ranks would make the layout possible; j->layout is overwritten. */
static bool lacks_ranks(struct job *j, const struct layout_flags *f)
{
    const uint32_t asked = at_least_one(f->tp) * at_least_one(f->pp) * at_least_one(f->dp);
    const uint32_t n_ranks = asked > f->ep ? asked : f->ep;
    const struct status st = layout_build(&j->layout_model, n_ranks, f, j->layout);
    return n_ranks > 1 && !status_failed(&st);
}

static struct status choose_layout(struct job *j)
{
    const size_t n_ranks = (size_t)comm_size(j->comm, COMM_WORLD);
    TRY(mem_alloc(&j->layout, 1, sizeof *j->layout, "layout"));
    TRY(mem_alloc(&j->order, n_ranks, sizeof *j->order, "rank order"));
    const struct layout_flags *flags = &j->o->layout;
    bool fits = true;
    /* adapters_load compares the ranks' files later; until then all ranks count the largest */
    comm_max_u64(j->comm, COMM_WORLD, &j->adapters.n_bytes, 1);
    const struct status st = job_fit_layout(j, &fits);
    if (st.code == STATUS_USAGE && n_ranks == 1 && lacks_ranks(j, flags)) {
        return status_make(
            st.code, "%s; start it under mpirun or srun, of the MPI that shoal was built with",
            st.text);
    }
    TRY(st);
    if (!fits) log_line(LOG_WARN, "the layout may not fit in memory: %s", j->layout->why);
    /* also for a server, so that its address is known before the layout */
    const struct flag_list *inputs = &j->o->files.input;
    if (j->o->serves || (inputs->n > 0 && strcmp(inputs->values[0], "-") == 0))
        lead_by_first(j->order, n_ranks);
    return status_ok();
}

static struct status job_start_threads(struct job *j)
{
    const uint32_t launched = j->order[comm_rank(j->comm, COMM_WORLD)];
    j->compute.n_threads = j->o->run.threads > 0  ? j->o->run.threads
                           : j->env.n_threads > 0 ? j->env.n_threads
                                                  : topo_threads(j->topo, launched);
    const struct topo_rank *here = &j->topo->ranks[launched];
    if (j->compute.n_threads > 1 &&
        j->compute.n_threads * here->n_local_ranks > j->topo->nodes[here->host].n_pus) {
        log_line(LOG_WARN, "%u ranks x %u threads share %u processing units", here->n_local_ranks,
                 j->compute.n_threads, j->topo->nodes[here->host].n_pus);
    }
    TRY(team_create(j->compute.n_threads, &j->compute.team));
    if (!j->compute.is_near) topo_bind_threads(j->topo, launched, j->compute.team);
    j->compute.kern.team = j->compute.team;
    comm_use_team(j->comm, j->compute.team);
    return status_ok();
}

static struct status start_engine(struct job *j)
{
    const size_t halves_from = job_halves_from(j);
    const bool saves_hidden = j->hidden.n > 0 && j->o->files.audit == 0;
    const struct engine_options options = {
        .stage = {.model = &j->model,
                  .layout = j->layout,
                  .weights = j->weights,
                  .adapters = j->adapters.loaded,
                  .kern = &j->compute.kern,
                  .comm = j->comm,
                  .rank = (uint32_t)comm_rank(j->comm, COMM_WORLD),
                  .max_rows = (uint32_t)j->o->schedule.step_tokens,
                  .halves_from = halves_from,
                  .n_kv_blocks = j->pools.n_kv_blocks,
                  .n_state_slots = j->pools.n_state_slots,
                  .flags = &j->o->model,
                  .capacity = &j->o->capacity,
                  .hidden = saves_hidden ? &j->hidden : NULL},
        .tier = {.dir = j->o->tier.kv_tier.dir,
                 .n_slots = j->pools.n_tier_slots,
                 .store_dir = j->o->tier.prefix_store.dir,
                 .store_bytes = j->o->tier.prefix_store.n_bytes,
                 .store_sweeps = comm_rank(j->comm, COMM_HOST) == 0,
                 .failpoint = &j->failpoint}};
    return engine_create(&options, &j->engine);
}

static struct status open_lead(struct job *j)
{
    if (comm_rank(j->comm, COMM_WORLD) != 0 || j->o->run_instead != NULL) return status_ok();
    return job_open_lead(j);
}

/* Writes finished rows to the journal, and this rank's timeline to its file. The watchdog calls it
 * before this rank leaves because another rank is lost. */
static void job_say_last_words(void *user)
{
    struct job *j = user;
    if (j->lead != NULL) lead_save(j->lead);
    job_trace_save(j);
}

static struct status start_lead(struct job *j)
{
    if (comm_rank(j->comm, COMM_WORLD) != 0 || j->o->run_instead != NULL) return status_ok();
    struct lead_pools pools = {.n_blocks = (int32_t)j->pools.n_kv_blocks,
                               .n_state_slots = (int32_t)j->pools.n_state_slots,
                               .n_tier_slots = (int32_t)j->pools.n_tier_slots};
    if (j->o->tier.prefix_store.n_bytes > 0) {
        pools.store = (struct scheduler_store){
            .has = engine_store_has, .key = engine_store_key, .user = j->engine};
        TRY(job_store_root(j, pools.store.root));
    }
    TRY(job_forecast_start(j));
    TRY(lead_start(j->lead, &pools));
    watchdog_set_last_words(j->watchdog, job_say_last_words, j);
    return j->http != NULL ? http_port_start(j->http, j->compute.team) : status_ok();
}

static struct status drained(const struct job *j, const char *when)
{
    return status_make(STATUS_DRAINED, "drained %s (%s): the same command %s", when,
                       drain_reason(&j->drain), j->o->serves ? "serves again" : "resumes");
}

/* Checks for a signal on this rank, or the time limit, while the job starts. */
static struct status check_drain(struct job *j)
{
    const bool asked = drain_poll(&j->drain, 0) != DRAIN_NOT;
    j->drain.last_ns = 0; /* loading is not a step: its time does not count */
    return asked ? drained(j, "while it was starting") : status_ok();
}

/* Ends a phase: every rank gets the worst status. Use TRY for calls that return the same status on
 * all ranks. */
#define PHASE(expr) TRY(comm_agree(j->comm, (expr)))

/* Returns the bytes that can still be allocated on this host; 0: unknown. */
static uint64_t host_bytes(const struct job *j)
{
    const uint32_t launched = j->order[comm_rank(j->comm, COMM_WORLD)];
    const uint64_t limit = j->topo->nodes[j->topo->ranks[launched].host].memory_bytes;
    const uint64_t available = mem_available_bytes();
    return available < limit ? available : limit;
}

struct weights_source job_weights_source(struct job *j, const struct layout *l)
{
    return (struct weights_source){.model = &j->model,
                                   .layout = l,
                                   .place =
                                       layout_place_of(l, (uint32_t)comm_rank(j->comm, COMM_WORLD)),
                                   .kern = &j->compute.kern,
                                   .ckpt = j->ckpt,
                                   .comm = j->comm,
                                   .cache = j->o->run.file_cache,
                                   .free_bytes = host_bytes(j),
                                   .expert_file = j->experts.path,
                                   .failpoint = &j->failpoint,
                                   .fp8_as_int8 = j->o->model.fp8_activations == ACTIVATIONS_INT8};
}

static struct status load_adapters(struct job *j, const struct weights_source *from)
{
    struct job_adapters *a = &j->adapters;
    if (a->n == 0) return status_ok();
    TRY(adapters_load(from, j->weights, a->files, a->n, &a->loaded));
    log_line(LOG_INFO, "adapters: %zu, rank at most %u, %.1f MiB on this rank", a->n,
             a->loaded->max_rank, (double)a->loaded->n_bytes / (1 << 20));
    return status_ok();
}

static struct status job_start(struct job *j)
{
    PHASE(job_check_options(j));
    PHASE(kern_select(j->env.kernels, &j->compute.kern));
    PHASE(job_read_model(j));
    PHASE(job_check_tier(j));
    PHASE(loader_check_same(j->ckpt, comm_handle(j->comm, COMM_WORLD)));
    if (j->draft != NULL)
        PHASE(loader_check_same(draft_model_ckpt(j->draft), comm_handle(j->comm, COMM_WORLD)));
    PHASE(check_drain(j));
    TRY(comm_gather_topo(j->comm, &j->topo));
    job_measure_program(j);
    TRY(job_measure_devices(j));
    TRY(job_forecast_read(j));
    PHASE(choose_layout(j));
    PHASE(comm_split(j->comm, j->layout, j->order));
    if (j->o->layout.plain_exchange) comm_use_memory(j->comm, COMM_EP, false);
    j->is_ordered = true;
    log_init(comm_rank(j->comm, COMM_WORLD), j->o->run.log_level, j->o->run.log_json);
    if (j->o->serves) comm_wait_asleep(j->comm);
    /* before the compute threads are bound, so that the watchdog's thread may use all cores of this
     * rank */
    TRY(watchdog_start(j->comm, j->o->run.watchdog_s, &j->watchdog));
    PHASE(job_read_expert_load(j));
    PHASE(job_place_experts(j));
    PHASE(job_place_by_device(j));
    PHASE(job_start_threads(j));
    PHASE(job_open_device(j));
    PHASE(job_open_device_comm(j));
    PHASE(open_lead(j));
    uint64_t is_complete = j->lead != NULL && lead_is_complete(j->lead);
    comm_max_u64(j->comm, COMM_WORLD, &is_complete, 1);
    j->is_complete = is_complete != 0;
    if (j->is_complete) return status_ok();
    PHASE(check_drain(j));
    stage_choose_cuts(&j->compute.kern, j->comm, j->o->capacity.policy, j->layout);
    (void)failpoint_pass(&j->failpoint, FAILPOINT_LOAD);
    TRY(job_pack_experts(j));
    const struct weights_source source = job_weights_source(j, j->layout);
    TRY(weights_load(&source, &j->weights, &j->loaded));
    TRY(load_adapters(j, &source));
    PHASE(job_devices_same(j));
    PHASE(job_draft_load(j));
    PHASE(check_drain(j));
    PHASE(job_size_memory(j));
    PHASE(start_engine(j));
    PHASE(job_draft_start(j));
    PHASE(start_lead(j));
    PHASE(check_drain(j));
    return status_ok();
}

/* The lead's state between steps. */
struct lead_loop {
    struct step_plan plan;
    struct step_result result;
    bool *in_flight; /* [pp] */
    uint32_t n_in_flight;
    uint64_t n_steps; /* submitted */
    bool is_asked;    /* to drain */
    bool drains;      /* the run ends early: nothing more is planned */
};

/* Ends the job: the other ranks are inside a step, or wait for a plan that will never come. */
static void job_lose(struct job *j, const char *what, const struct status *st)
{
    log_line(LOG_ERROR, "%s: %s", what, st->text);
    job_trace_save(j);
    comm_abort(j->comm, status_exit(STATUS_LOST));
}

/* Receives the results of a group's last step from all replicas. After a failure it discards them,
 * so that no rank waits to send one. */
static struct status job_collect(struct job *j, struct lead_loop *l, uint32_t group,
                                 struct status st)
{
    for (uint32_t r = 0; r < j->layout->dp; r++) {
        const struct status got = engine_collect(j->engine, (int32_t)r, &l->result);
        /* otherwise the messages with hidden rows would never be received */
        if (status_failed(&got) && j->hidden.n > 0) job_lose(j, "rows of --save-hidden", &got);
        if (status_failed(&st)) continue;
        const struct lead_span span = job_span_begin(j);
        st = got;
        if (!status_failed(&st)) st = lead_commit(j->lead, (int32_t)group, &l->result);
        job_span_commit(j, span, l->result.step, r);
    }
    l->in_flight[group] = false;
    l->n_in_flight--;
    return st;
}

/* Leaves after a second signal, without waiting for the steps in flight. */
static void leave_now(struct job *j)
{
    const struct status st = lead_finish(j->lead, j->summary);
    if (status_failed(&st)) log_line(LOG_ERROR, "%s", st.text);
    log_line(LOG_WARN, "a second signal: leaving at once; the same command resumes");
    comm_abort(j->comm, status_exit(STATUS_DRAINED));
}

static void heed_drain(struct job *j, struct lead_loop *l)
{
    const enum drain_ask ask = drain_poll(&j->drain, lead_end_s(j->lead));
    if (ask == DRAIN_NOW) leave_now(j);
    if (ask == DRAIN_NOT || l->drains) return;
    if (!l->is_asked) log_line(LOG_WARN, "%s: draining", drain_reason(&j->drain));
    l->is_asked = true;
    l->drains = lead_may_stop(j->lead);
}

static struct status plan_step(struct job *j, struct lead_loop *l, uint64_t step, bool *done)
{
    job_metrics_update(j);
    const struct lead_span span = job_span_begin(j);
    TRY(lead_next(j->lead, (int32_t)(step % j->layout->pp), step, &l->plan, done));
    job_span_plan(j, span, &l->plan);
    return status_ok();
}

/* Counts the experts' load if it is time, and moves experts for --expert-replan. First waits for
 * the steps in flight: those of group step % pp and the following ones, the oldest first. */
static struct status count_experts(struct job *j, struct lead_loop *l, uint64_t step,
                                   struct status st)
{
    if (status_failed(&st) || !job_count_is_due(j, l->n_steps)) return st;
    for (uint64_t i = 0; i < j->layout->pp; i++) {
        const uint32_t group = (uint32_t)((step + i) % j->layout->pp);
        if (l->in_flight[group]) st = job_collect(j, l, group, st);
    }
    if (status_failed(&st)) return st;
    step_plan_clear(&l->plan, PLAN_MOVE_EXPERTS, step);
    st = engine_submit(j->engine, &l->plan);
    if (!status_failed(&st)) st = job_count_experts(j);
    if (status_failed(&st))
        job_lose(j, j->o->layout.expert_replan > 0 ? "--expert-replan" : "counts of experts", &st);
    return st;
}

static struct status job_run_steps(struct job *j, struct lead_loop *l)
{
    struct status st = status_ok();
    bool done = false;
    for (uint64_t step = 0;; step++) {
        const uint32_t group = (uint32_t)(step % j->layout->pp);
        if (l->in_flight[group]) st = job_collect(j, l, group, st);
        heed_drain(j, l);
        if (!done && !l->is_asked) st = count_experts(j, l, step, st);
        if (!done && !l->drains && !status_failed(&st)) {
            st = plan_step(j, l, step, &done);
        }
        if (done || l->drains || status_failed(&st)) {
            if (l->n_in_flight > 0) continue;
            l->drains = l->drains && !done && !status_failed(&st);
            return l->drains ? lead_drain(j->lead) : st;
        }
        if (l->plan.n_seqs == 0 && l->plan.n_moves == 0) continue;
        (void)failpoint_pass(&j->failpoint, FAILPOINT_STEP);
        job_forecast_step(j, &l->plan);
        st = engine_submit(j->engine, &l->plan);
        if (status_failed(&st)) job_lose(j, "step", &st);
        l->in_flight[group] = true;
        l->n_in_flight++;
        l->n_steps++;
    }
}

static struct status lead_loop(struct job *j)
{
    struct lead_loop l = {0};
    step_result_init(&l.result);
    struct status st = step_plan_init(&l.plan, (int32_t)j->layout->dp);
    if (status_failed(&st)) job_lose(j, "lead loop", &st);
    st = mem_alloc(&l.in_flight, j->layout->pp, sizeof *l.in_flight, "lead loop");
    if (!status_failed(&st)) st = job_run_steps(j, &l);
    step_plan_clear(&l.plan, PLAN_STOP, 0);
    const struct status stopped = engine_submit(j->engine, &l.plan);
    if (status_failed(&stopped)) job_lose(j, "the last plan", &stopped);
    const struct status finished = lead_finish(j->lead, j->summary);
    if (!status_failed(&st)) st = finished;
    if (!status_failed(&st) && l.drains) {
        char when[64];
        snprintf(when, sizeof when, "after %llu %s", (unsigned long long)j->summary->n_rows,
                 j->o->serves ? "answers" : "rows");
        st = drained(j, when);
    }
    step_plan_fini(&l.plan);
    step_result_fini(&l.result);
    mem_free(&l.in_flight);
    return st;
}

/* Ends a job that an earlier run has finished: its lines, rows and files have been compared, and
 * nothing is run. */
static struct status end_complete(struct job *j)
{
    if (comm_rank(j->comm, COMM_WORLD) != 0) return status_ok();
    TRY(lead_finish(j->lead, j->summary));
    log_line(LOG_INFO,
             "%s: complete since an earlier run, %llu rows (%llu error rows) as the journal has "
             "them; nothing to do",
             j->o->files.output, (unsigned long long)j->summary->n_rows,
             (unsigned long long)j->summary->n_error_rows);
    return status_ok();
}

/* Runs the step loop of a rank that is not the lead. */
static struct status follow(struct job *j)
{
    enum plan_kind end;
    for (;;) {
        TRY(engine_follow(j->engine, &end));
        if (end == PLAN_STOP) return status_ok();
        TRY(job_count_experts(j));
    }
}

static struct status run_loaded(struct job *j)
{
    TRY(job_trace_start(j));
    if (j->trace != NULL) watchdog_set_last_words(j->watchdog, job_say_last_words, j);
    j->times.ready_ns = clock_ns();
    const bool is_lead = comm_rank(j->comm, COMM_WORLD) == 0;
    if (is_lead) job_report_start(j);
    if (j->o->run_instead != NULL) return j->o->run_instead(j);
    struct status st = is_lead ? lead_loop(j) : follow(j);
    j->times.elapsed_ns = clock_ns() - j->times.ready_ns;
    if (status_failed(&st) && !is_lead) {
        log_line(LOG_ERROR, "%s", st.text);
        job_trace_save(j);
        comm_abort(j->comm, status_exit(STATUS_LOST));
    }
    st = comm_agree(j->comm, st);
    j->is_drained = st.code == STATUS_DRAINED;
    if (status_failed(&st) && !j->is_drained) return st;
    PHASE(logits_file_close(&j->files.logits));
    TRY(job_report_end(j));
    TRY(job_trace_end(j));
    return st;
}

/* Prints the verdict on stdout, since the user asked for it. */
static struct status end_audit(const struct job *j)
{
    if (j->audit == NULL) return status_ok();
    const struct audit_result r = audit_result(j->audit);
    printf("audit: %llu of %llu rows of %s computed again, %llu differ\n",
           (unsigned long long)r.n_compared, (unsigned long long)r.n_rows, j->o->files.output,
           (unsigned long long)r.n_different);
    if (r.n_different == 0) return status_ok();
    return status_make(STATUS_ROWS,
                       "output %s: %llu of %llu rows are not what this checkpoint and these flags "
                       "give",
                       j->o->files.output, (unsigned long long)r.n_different,
                       (unsigned long long)r.n_compared);
}

static struct status run_lines(struct job *j)
{
    TRY(job_start(j));
    TRY(j->is_complete ? comm_agree(j->comm, end_complete(j)) : run_loaded(j));
    if (j->o->files.audit > 0) TRY(comm_agree(j->comm, end_audit(j)));
    if (j->o->files.vectors != NULL) {
        const bool is_lead = comm_rank(j->comm, COMM_WORLD) == 0;
        TRY(comm_agree(j->comm, is_lead ? job_vectors_write(j) : status_ok()));
    }
    uint64_t n_errors = j->summary != NULL ? j->summary->n_error_rows : 0;
    comm_max_u64(j->comm, COMM_WORLD, &n_errors, 1);
    if (n_errors == 0 || !j->o->run.strict) return status_ok();
    return status_make(STATUS_ROWS, "%llu rows are error rows", (unsigned long long)n_errors);
}

void job_close(struct job *j)
{
    watchdog_set_last_words(j->watchdog, NULL, NULL);
    lead_destroy(&j->lead);
    http_port_destroy(&j->http);
    audit_destroy(&j->audit);
    mem_free(&j->files.journal_path);
    input_files_fini(&j->files.inputs);
    mem_free(&j->experts.path);
    strbuf_fini(&j->files.settings);
    strbuf_fini(&j->files.session);
    const struct status ignored = logits_file_close(&j->files.logits);
    (void)ignored;
    file_claims_destroy(&j->files.claims); /* after everything that writes */
    /* removes the folder only if it is empty, as after a job that was refused */
    if (j->files.journal_folder_is_new) (void)rmdir(j->o->files.journal);
    job_embed_fini(&j->embed);
    job_text_fini(&j->text);
    draft_model_destroy(&j->draft);
    engine_destroy(&j->engine);
    job_adapters_fini(&j->adapters);
    weights_destroy(&j->weights);
    job_forecast_destroy(j);
    expert_places_destroy(&j->experts.places);
    mem_free(&j->experts.load);
    mem_free(&j->experts.earlier);
    mem_free(&j->experts.counted);
    replan_ledger_fini(&j->experts.replans.ledger);
    mem_free(&j->experts.counts_path);
    device_close(&j->compute.device);
    ckpt_close(&j->ckpt);
    topo_destroy(&j->topo);
    mem_free(&j->order);
    mem_free(&j->layout);
    mem_free(&j->summary);
    if (j->comm != NULL) comm_trace_in(j->comm, NULL);
    if (j->comm != NULL) comm_use_team(j->comm, NULL);
    team_destroy(&j->compute.team);
    trace_destroy(&j->trace);
}

void job_init(struct job *j, const struct job_options *options, struct config env)
{
    *j = (struct job){.options = *options, .env = env, .times.start_ns = clock_ns()};
    j->o = &j->options;
    if (options->lead.quiet && !flags_is_given(&options->given, "log-level"))
        j->options.run.log_level = LOG_WARN;
}

/* **Collective (world)**. Gives all ranks the time limit that the launcher's first process
 * found. */
static void share_limit(struct job *j, uint64_t since_ns, uint64_t seconds)
{
    comm_max_u64(j->comm, COMM_WORLD, &seconds, 1);
    if (seconds > 0) drain_limit(&j->drain, since_ns, seconds);
}

/* **Collective (world)**. Does the first communication of the ranks: compares their programs and
 * flags, and agrees on `flags`, the status of this rank's flags. */
static struct status meet_ranks(struct comm *c, int argc, char **argv, struct status flags)
{
    TRY(job_same(c, argc, argv));
    return comm_agree(c, flags);
}

int job_run(const struct job_options *options, struct config env, int *argc, char ***argv)
{
    struct job j;
    job_init(&j, options, env);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe becomes a write error */
    drain_init(&j.drain, env.is_launched);
    uint64_t slurm_s = 0;
    if (env.launcher_rank == 0 && !slurm_time_left(env.slurm_job, &slurm_s)) slurm_s = 0;
    const uint64_t asked_ns = clock_ns();
    struct status st = comm_start(argc, argv, &j.comm);
    if (j.comm != NULL)
        log_init(comm_rank(j.comm, COMM_WORLD), j.o->run.log_level, j.o->run.log_json);
    if (!status_failed(&st)) st = meet_ranks(j.comm, *argc, *argv, st);
    if (!status_failed(&st)) share_limit(&j, asked_ns, slurm_s);
    if (!status_failed(&st)) st = run_lines(&j);
    /* all ranks agreed on this status, so one rank reports it */
    if (status_failed(&st) && (j.comm == NULL || comm_rank(j.comm, COMM_WORLD) == 0)) {
        log_line(st.code == STATUS_DRAINED ? LOG_WARN : LOG_ERROR, "%s", st.text);
    }
    job_close(&j);
    comm_stop(&j.comm);
    watchdog_stop(&j.watchdog);
    return status_exit(st.code);
}

int job_refuse(struct status flags, struct config env, int *argc, char ***argv)
{
    const char *command = (*argv)[0];
    struct comm *comm = NULL;
    if (!env.is_launched || env.launcher_size == 1)
        return flags_refuse(command, env.launcher_rank, &flags);
    struct status st = comm_start(argc, argv, &comm);
    st = status_failed(&st) ? flags : meet_ranks(comm, *argc, *argv, flags);
    if (comm == NULL || comm_rank(comm, COMM_WORLD) == 0) (void)flags_refuse(command, 0, &st);
    comm_stop(&comm);
    return status_exit(st.code);
}
