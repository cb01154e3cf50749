/* shoal generate --dry-run: a job without weights, which shows its costs and checks its input.
 * Reads, checks, orders, plans, journals and writes as the job would with the given --dp and --pp.
 * A stub replaces the ranks: it makes up tokens, and end tokens only for a watch with a mean
 * answer. One process, no MPI. Called by cmd_job.c and plan_forecast.c. */
#include "job/dry_run.h"

#include "base/clock.h"
#include "base/mem.h"
#include "job/job_private.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { STUB_CONTEXT = 4096, STUB_VOCAB = 1 << 20, DRY_CONTEXTS = 64, REPORT_LINES = 1000000 };

/* The stub that replaces the ranks. As with ranks, the results of a step come when the group's next
 * turn begins. */
struct stub {
    uint32_t n_groups, n_replicas;
    struct step_result *results; /* [pp, dp], owned */
    bool *in_flight;             /* [pp] */
    uint32_t n_in_flight;
    uint64_t n_rows; /* rows of steps that a model would have computed */
    uint64_t n_reported;
    const struct dry_run_watch *watch; /* borrowed; NULL: none */
};

static uint64_t dry_run_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* True if the answer ends with this token: a made-up chance of 1 in watch->mean_answer, so answers
 * have this many tokens on average. */
static bool stub_ends(const struct job *j, const struct stub *stub, const struct plan_seq *s)
{
    const double mean = stub->watch != NULL ? stub->watch->mean_answer : 0;
    if (mean <= 0 || j->text.n_end_ids == 0) return false;
    const uint64_t place = (uint64_t)s->id << 32 | (uint32_t)(s->pos0 + s->n_rows);
    return (double)(dry_run_mix(place * 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53 * mean < 1;
}

/* Makes up a token: an end token where stub_ends says so; otherwise one that follows from its
 * position and, unless the sequence is greedy, the sequence's key. So rows are the same in every
 * run. */
static int32_t stub_token(const struct job *j, const struct stub *stub, const struct plan_seq *s)
{
    if (stub_ends(j, stub, s)) return j->text.end_ids[0];
    uint64_t h = (uint64_t)(s->pos0 + s->n_rows);
    if (s->temperature > 0) h ^= dry_run_mix(((uint64_t)s->key[1] << 32 | s->key[0]) + 1);
    int32_t token = (int32_t)(dry_run_mix(h + 0x9E3779B97F4A7C15u) % j->model.vocab);
    for (size_t i = 0; i < j->text.n_end_ids; i++) {
        if (token != j->text.end_ids[i]) continue;
        token = (int32_t)(((uint64_t)token + 1) % j->model.vocab);
        i = SIZE_MAX; /* compare with all end ids again */
    }
    return token;
}

/* Makes up the log-probabilities that a plan asks for: all are ln 0.5. */
static struct status stub_logprobs(const struct plan_seq *seq, struct step_result *result,
                                   struct result_seq *out)
{
    enum { MADE_UP_IDS = 64 };
    const float half = -0.693147182f;
    if ((seq->want & PLAN_SCORE) != 0) out->n_scores = seq->n_rows - (seq->next_token < 0);
    for (int32_t i = 0; i < out->n_scores; i++) TRY(step_result_add_scores(result, &half, 1));
    out->logprob = half;
    out->n_tops = out->n_scores * seq->n_prompt_logprobs;
    if ((seq->want & PLAN_LOGPROB) != 0) out->n_tops += seq->n_logprobs;
    for (int32_t i = 0; i < out->n_tops; i++) {
        const struct plan_top top = {.id = i % MADE_UP_IDS, .logprob = half};
        TRY(step_result_add_tops(result, &top, 1));
    }
    return status_ok();
}

static struct status stub_submit(struct stub *s, const struct job *j, uint32_t group,
                                 const struct step_plan *plan)
{
    for (uint32_t r = 0; r < s->n_replicas; r++) {
        struct step_result *result = &s->results[group * s->n_replicas + r];
        step_result_clear(result, plan->step, (int32_t)r, (int32_t)j->model.vocab);
        for (int32_t i = plan->replica_begin[r]; i < plan->replica_begin[r + 1]; i++) {
            const struct plan_seq *seq = &plan->seqs[i];
            struct result_seq out = {.id = seq->id, .token = -1};
            if ((seq->want & PLAN_SAMPLE) != 0) out.token = stub_token(j, s, seq);
            TRY(stub_logprobs(seq, result, &out));
            s->n_rows += (uint64_t)seq->n_rows;
            TRY(step_result_add(result, &out));
        }
    }
    if (s->watch != NULL) s->watch->step(s->watch->user, group, plan);
    s->in_flight[group] = true;
    s->n_in_flight++;
    return status_ok();
}

static struct status stub_collect(struct stub *s, struct job *j, uint32_t group)
{
    if (!s->in_flight[group]) return status_ok();
    s->in_flight[group] = false;
    s->n_in_flight--;
    for (uint32_t r = 0; r < s->n_replicas; r++) {
        TRY(lead_commit(j->lead, (int32_t)group, &s->results[group * s->n_replicas + r]));
    }
    return status_ok();
}

/* Logs the memory every million rows, to show that it does not grow. */
static void report_memory(struct stub *s, const struct job *j)
{
    struct serve_summary *now = j->summary;
    lead_summary(j->lead, now);
    if (now->n_rows < s->n_reported + REPORT_LINES) return;
    s->n_reported = now->n_rows;
    log_line(LOG_INFO, "dry run: %llu rows, peak memory %.1f MiB", (unsigned long long)now->n_rows,
             (double)mem_peak_bytes() / (1 << 20));
}

static struct status dry_run_steps(struct job *j, struct stub *s, struct step_plan *plan)
{
    bool done = false, drains = false;
    for (uint64_t step = 0;; step++) {
        const uint32_t group = (uint32_t)(step % s->n_groups);
        TRY(stub_collect(s, j, group));
        drains = drains || drain_poll(&j->drain, lead_end_s(j->lead)) != DRAIN_NOT;
        if (!done && !drains) TRY(lead_next(j->lead, (int32_t)group, step, plan, &done));
        if ((done || drains) && s->n_in_flight > 0) continue;
        if (drains && !done) {
            TRY(lead_drain(j->lead));
            return status_make(STATUS_DRAINED, "drained (%s): the same command resumes",
                               drain_reason(&j->drain));
        }
        if (done) return status_ok();
        if (plan->n_seqs == 0) continue;
        (void)failpoint_pass(&j->failpoint, FAILPOINT_STEP);
        TRY(stub_submit(s, j, group, plan));
        if (step % 1024 == 0 && !j->o->lead.quiet) report_memory(s, j);
    }
}

static struct status run_stub(struct job *j, struct stub *s)
{
    struct step_plan plan = {0};
    const size_t n_results = (size_t)s->n_groups * s->n_replicas;
    struct status st;
    TRY_GOTO(st, mem_alloc(&s->results, n_results, sizeof *s->results, "dry run"), done);
    for (size_t i = 0; i < n_results; i++) step_result_init(&s->results[i]);
    TRY_GOTO(st, mem_alloc(&s->in_flight, s->n_groups, sizeof *s->in_flight, "dry run"), done);
    TRY_GOTO(st, step_plan_init(&plan, (int32_t)s->n_replicas), done);
    st = dry_run_steps(j, s, &plan);
done:
    step_plan_fini(&plan);
    for (size_t i = 0; s->results != NULL && i < n_results; i++) step_result_fini(&s->results[i]);
    mem_free(&s->results);
    mem_free(&s->in_flight);
    return st;
}

/* Reads the checkpoint's config.json and checks its list of tensors, but reads no weights. Without
 * a checkpoint there is no model, and prompts must be token ids. */
static struct status dry_run_read_model(struct job *j)
{
    if (j->o->files.model != NULL) return job_read_model(j);
    j->model.vocab = STUB_VOCAB;
    j->model.context = j->o->model.max_model_len > 0 ? j->o->model.max_model_len : STUB_CONTEXT;
    j->layout_model.arch = &j->model;
    snprintf(j->layout_model.name, sizeof j->layout_model.name, "no model");
    return job_read_limits(j);
}

static struct status dry_run_prepare(struct job *j)
{
    const struct job_options *o = j->o;
    if (o->layout.tp > 1 || o->layout.ep > 1) {
        log_line(LOG_INFO, "dry run: --tp and --ep change nothing that is planned");
    }
    TRY(job_check_options(j));
    TRY(dry_run_read_model(j));
    TRY(mem_alloc(&j->layout, 1, sizeof *j->layout, "layout"));
    j->layout->tp = o->layout.tp > 0 ? o->layout.tp : 1;
    j->layout->dp = o->layout.dp > 0 ? o->layout.dp : 1;
    j->layout->pp = o->layout.pp > 0 ? o->layout.pp : 1;
    j->layout->n_ranks = 1;
    const uint32_t per_context =
        (j->o->model.max_model_len + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    j->pools.n_kv_blocks = o->run.kv_blocks > 0 ? o->run.kv_blocks : per_context * DRY_CONTEXTS;
    TRY(job_open_lead(j));
    j->pools.n_state_slots = layout_slots_wanted(&j->model, o->schedule.max_batch);
    if (lead_is_complete(j->lead)) return status_ok();
    return lead_start(j->lead,
                      &(struct lead_pools){.n_blocks = (int32_t)j->pools.n_kv_blocks,
                                           .n_state_slots = (int32_t)j->pools.n_state_slots});
}

static void print_end(const struct job *j, const struct stub *s, double seconds)
{
    const struct serve_summary *m = j->summary;
    if (j->o->lead.quiet) return;
    serve_summary_print(m, stderr);
    if (j->o->files.draft != NULL)
        log_line(LOG_INFO, "dry run: the draft model (--draft) is left out: of made-up tokens no "
                           "draft would be right");
    log_line(LOG_INFO,
             "dry run: %llu rows, %llu of them error rows, in %.1f s (%.0f a second); %llu steps "
             "of %.1f rows for dp %u x pp %u; peak memory %.1f MiB",
             (unsigned long long)m->n_rows, (unsigned long long)m->n_error_rows, seconds,
             (double)m->n_rows / seconds, (unsigned long long)m->n_steps,
             m->n_steps > 0 ? (double)s->n_rows / (double)m->n_steps : 0, j->layout->dp,
             j->layout->pp, (double)mem_peak_bytes() / (1 << 20));
}

static struct status dry_run_run(struct job *j, const struct dry_run_watch *watch)
{
    struct stub s = {.watch = watch};
    TRY(dry_run_prepare(j));
    s.n_groups = j->layout->pp;
    s.n_replicas = j->layout->dp;
    const uint64_t since_ns = clock_ns();
    struct status st = lead_is_complete(j->lead) ? status_ok() : run_stub(j, &s);
    const struct status finished = lead_finish(j->lead, j->summary);
    if (!status_failed(&st)) st = finished;
    print_end(j, &s, (double)(clock_ns() - since_ns) * 1e-9);
    if (status_failed(&st) || j->summary->n_error_rows == 0 || !j->o->run.strict) return st;
    return status_make(STATUS_ROWS, "%llu rows are error rows",
                       (unsigned long long)j->summary->n_error_rows);
}

int dry_run(const struct job_options *options, struct config env)
{
    if (env.launcher_rank != 0) return 0; /* only the first process runs it */
    struct job j;
    job_init(&j, options, env);
    signal(SIGPIPE, SIG_IGN);
    drain_init(&j.drain, env.is_launched);
    log_init(0, j.o->run.log_level, j.o->run.log_json);
    const struct status st = dry_run_run(&j, NULL);
    if (status_failed(&st)) {
        log_line(st.code == STATUS_DRAINED ? LOG_WARN : LOG_ERROR, "%s", st.text);
    }
    job_close(&j);
    return status_exit(st.code);
}

struct status dry_run_simulate(const struct job_options *options, struct config env,
                               const struct dry_run_watch *watch, struct serve_summary *out)
{
    struct job j;
    job_init(&j, options, env);
    drain_init(&j.drain, env.is_launched);
    struct status st = dry_run_run(&j, watch);
    if (!status_failed(&st)) *out = *j.summary;
    job_close(&j);
    return st;
}
