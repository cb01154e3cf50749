/* The repetitions of shoal bench: runs requests of synthetic tokens through scheduler and engine.
 * Each sampled token is computed and then replaced by a synthetic one, so that answers have the
 * given length and all tokens are the same in every run (and in another program with the same
 * vocabulary). */
#include "bench/bench_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "job/job_paths.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The state that repetitions share; only the lead runs them. */
struct bench {
    struct job *j;
    const struct bench_options *o;
    struct bench_cost cost;
    struct request_rules rules;
    struct step_plan plan;
    struct step_result result;
    struct serve_summary *unwanted; /* statistics of repetitions that are not counted */
    struct in_flight {
        bool active;
        enum bench_phase_kind kind;
        struct bench_phase step;
    } * groups; /* [pp] */
    uint64_t n_steps;
    struct bench_paired paired; /* allocated when first needed */
    uint64_t peak_bytes;        /* resident peak before that allocation; 0: not allocated */
};

/* One repetition. */
struct run {
    struct bench *b;
    const struct bench_case *c;
    struct scheduler *scheduler;
    struct request **requests; /* [n], owned; NULL once submitted */
    uint64_t *submitted_ns;    /* [n] */
    uint32_t *n_sampled;       /* [n] */
    size_t n, n_submitted, n_done;
    uint64_t mark_ns, cpu_ns; /* when the last results came; CPU time of the process then */
    struct comm_stats comm;   /* the lead's statistics at that moment */
    struct bench_repetition *out;
    struct latency *ttft, *e2e; /* NULL: not kept */
    struct bench_parts *parts;  /* NULL: no passes between steps */
    uint64_t paused_ns;         /* time spent in passes between steps */
};

static uint64_t process_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Makes a request from a line of JSON, with the parser that jobs use. */
static struct status bench_run_make_request(struct run *r, size_t i)
{
    struct strbuf line;
    strbuf_init(&line);
    strbuf_printf(&line,
                  "{\"custom_id\":\"%zu\",\"temperature\":0,\"max_tokens\":%u,"
                  "\"prompt_token_ids\":[",
                  i, r->c->output);
    for (uint32_t t = 0; t < r->c->prompt; t++) {
        strbuf_printf(&line, "%s%u", t > 0 ? "," : "",
                      bench_token((uint32_t)i, t, (uint32_t)r->b->rules.vocab_size));
    }
    strbuf_puts(&line, "]}");
    struct status st = strbuf_status(&line);
    if (!status_failed(&st)) {
        st = request_create(&r->b->rules, i + 1, line.data, line.n, &r->requests[i]);
    }
    strbuf_fini(&line);
    TRY(st);
    if (r->requests[i]->error.code != NULL) {
        return status_make(STATUS_USAGE, "prompts of %u tokens, %u answers: %s", r->c->prompt,
                           r->c->output, r->requests[i]->error.message);
    }
    r->requests[i]->index = r->requests[i]->order = i;
    return status_ok();
}

static struct status run_init(struct run *r, struct serve_summary *stats)
{
    struct bench *b = r->b;
    const struct job *j = b->j;
    const uint32_t dp = j->layout->dp;
    struct schedule_flags flags = j->o->schedule;
    flags.max_batch = (int32_t)((r->c->concurrency + dp - 1) / dp);
    flags.step_ns = 0; /* nothing may skip or add rows: every row is computed */
    flags.prefix_cache = false;
    flags.n_drafts = 0;
    const struct scheduler_options so = {.rules = &b->rules,
                                         .n_replicas = (int32_t)dp,
                                         .n_groups = (int32_t)j->layout->pp,
                                         .n_blocks = (int32_t)j->pools.n_kv_blocks,
                                         .n_state_slots = (int32_t)j->pools.n_state_slots,
                                         .tables = job_tables(j),
                                         .flags = flags};
    TRY(mem_alloc(&r->requests, r->n, sizeof *r->requests, "requests"));
    TRY(mem_alloc(&r->submitted_ns, r->n, sizeof *r->submitted_ns, "requests"));
    TRY(mem_alloc(&r->n_sampled, r->n, sizeof *r->n_sampled, "requests"));
    for (size_t i = 0; i < r->n; i++) TRY(bench_run_make_request(r, i));
    return scheduler_create(&so, stats, &r->scheduler);
}

static void bench_run_fini(struct run *r)
{
    for (size_t i = r->n_submitted; r->requests != NULL && i < r->n; i++) {
        request_destroy(&r->requests[i]);
    }
    scheduler_destroy(&r->scheduler);
    mem_free(&r->requests);
    mem_free(&r->submitted_ns);
    mem_free(&r->n_sampled);
}

static struct status submit_run(struct run *r)
{
    while (r->n_submitted < r->n && r->n_submitted - r->n_done < r->c->concurrency) {
        r->submitted_ns[r->n_submitted] = clock_ns();
        struct request *q = r->requests[r->n_submitted];
        r->requests[r->n_submitted++] = NULL;
        TRY(scheduler_submit(r->scheduler, q));
    }
    return status_ok();
}

static struct status bench_run_take_finished(struct run *r)
{
    struct status st = status_ok();
    struct request *q;
    while ((q = scheduler_take_finished(r->scheduler)) != NULL) {
        const uint64_t since = r->submitted_ns[q->index];
        r->n_done++;
        r->out->n_output_tokens += q->n_tokens - q->n_prompt;
        if (q->error.code != NULL) {
            st = status_make(STATUS_INPUT, "a synthetic request failed: %s", q->error.message);
        } else if (r->ttft != NULL) {
            latency_add(r->ttft, q->first_token_ns - since);
            latency_add(r->e2e, q->last_token_ns - since);
        }
        request_destroy(&q);
    }
    return st;
}

/* With --paired-peaks: runs the passes after a step of s seconds and excludes their time from all
 * steps. */
static struct status pause_for_peaks(struct run *r, const struct in_flight *f, double s)
{
    const struct status st = bench_paired_step(&r->b->paired, f->kind, &f->step, s, r->parts);
    const uint64_t now = clock_ns();
    r->paused_ns += now - r->mark_ns;
    r->mark_ns = now;
    r->cpu_ns = process_ns();
    return st;
}

/* Replaces sampled tokens with synthetic ones, so that every answer has its full length. */
static void exchange_tokens(struct run *r, struct step_result *result)
{
    for (size_t k = 0; k < result->n_seqs; k++) {
        struct result_seq *s = &result->seqs[k];
        if (s->token < 0) continue;
        const uint32_t position = r->c->prompt + r->n_sampled[s->id]++;
        s->token =
            (int32_t)bench_token((uint32_t)s->id, position, (uint32_t)r->b->rules.vocab_size);
    }
}

/* Adds a step, and the time since the previous one, to the step's phase. Returns that time in
 * seconds. */
static double count_step(struct run *r, const struct in_flight *f)
{
    const uint64_t now = clock_ns(), cpu_now = process_ns();
    const double s = (double)(now - r->mark_ns) * 1e-9;
    struct bench_phase *p = &r->out->phases[f->kind];
    p->s += s;
    p->cpu_s += (double)(cpu_now - r->cpu_ns) * 1e-9;
    const struct comm_stats comm = comm_stats_of_steps(r->b->j->comm);
    p->comm_s += (double)(comm.ns - r->comm.ns) * 1e-9;
    p->comm_wait_s += (double)(comm.wait_ns - r->comm.wait_ns) * 1e-9;
    p->n_steps += f->step.n_steps;
    p->n_tokens += f->step.n_tokens;
    p->bytes += f->step.bytes;
    p->flops += f->step.flops;
    r->mark_ns = now;
    r->cpu_ns = cpu_now;
    r->comm = comm;
    return s;
}

/* Receives the results of a group's step from all replicas. After a failure it discards them, so
 * that no rank waits to send one. */
static struct status bench_run_collect(struct run *r, uint32_t group, struct status st)
{
    struct bench *b = r->b;
    struct in_flight *f = &b->groups[group];
    for (uint32_t i = 0; i < b->j->layout->dp; i++) {
        const struct status got = engine_collect(b->j->engine, (int32_t)i, &b->result);
        if (!status_failed(&st)) st = got;
        if (status_failed(&st)) continue;
        exchange_tokens(r, &b->result);
        st = scheduler_commit(r->scheduler, (int32_t)group, &b->result);
    }
    f->active = false;
    const double s = count_step(r, f);
    if (r->parts != NULL && !status_failed(&st)) st = pause_for_peaks(r, f, s);
    return status_failed(&st) ? st : bench_run_take_finished(r);
}

/* Ends the job: the other ranks are inside a step and cannot be called back. */
static void bench_run_lose(struct bench *b, const struct status *st)
{
    log_line(LOG_ERROR, "step: %s", st->text);
    comm_abort(b->j->comm, status_exit(STATUS_LOST));
}

static struct status plan_and_run(struct run *r, uint32_t group)
{
    struct bench *b = r->b;
    struct in_flight *f = &b->groups[group];
    TRY(scheduler_plan(r->scheduler, (int32_t)group, b->n_steps, &b->plan));
    if (b->plan.n_seqs == 0) return status_ok();
    f->step = (struct bench_phase){.n_steps = 0};
    f->kind = bench_cost_step(&b->cost, &b->plan, r->c->prompt, b->j, &f->step);
    const struct status st = engine_submit(b->j->engine, &b->plan);
    if (status_failed(&st)) bench_run_lose(b, &st);
    bench_cost_experts(&b->cost, b->j, &f->step);
    f->active = true;
    return status_ok();
}

static struct status bench_run_steps(struct run *r)
{
    struct bench *b = r->b;
    const uint32_t pp = b->j->layout->pp;
    struct status st = status_ok();
    uint32_t n_idle = 0; /* consecutive groups with nothing to do */
    r->mark_ns = clock_ns();
    r->cpu_ns = process_ns();
    r->comm = comm_stats_of_steps(b->j->comm);
    const uint64_t since = r->mark_ns;
    for (; n_idle < pp || (r->n_done < r->n && !status_failed(&st)); b->n_steps++) {
        const uint32_t group = (uint32_t)(b->n_steps % pp);
        if (b->groups[group].active) st = bench_run_collect(r, group, st);
        if (!status_failed(&st) && drain_poll(&b->j->drain, 0) != DRAIN_NOT) {
            st = status_make(STATUS_DRAINED, "stopped (%s)", drain_reason(&b->j->drain));
        }
        if (!status_failed(&st)) st = submit_run(r);
        if (!status_failed(&st) && r->n_done < r->n) st = plan_and_run(r, group);
        n_idle = b->groups[group].active ? 0 : n_idle + 1;
    }
    r->out->wall_s = (double)(r->mark_ns - since - r->paused_ns) * 1e-9;
    r->out->n_requests = r->n_done;
    return st;
}

/* Runs one repetition into *out and adds its latencies to `into` (NULL: they are not kept). parts:
 * gets the steps' ratios to the peaks measured between them (NULL: none are measured). */
static struct status bench_run_repeat(struct bench *b, const struct bench_case *c,
                                      struct bench_repetition *out, struct bench_result *into,
                                      struct bench_parts *parts)
{
    uint32_t n = c->concurrency;
    if (b->o->flags.mode == BENCH_THROUGHPUT)
        n = b->o->flags.n_requests > 0 ? b->o->flags.n_requests : 4 * c->concurrency;
    struct run r = {.b = b,
                    .c = c,
                    .n = n,
                    .out = out,
                    .parts = parts,
                    .ttft = into != NULL ? &into->ttft : NULL,
                    .e2e = into != NULL ? &into->e2e : NULL};
    memset(out, 0, sizeof *out);
    struct status st = run_init(&r, into != NULL ? &into->stats : b->unwanted);
    if (!status_failed(&st)) st = bench_run_steps(&r);
    bench_run_fini(&r);
    return st;
}

static void bench_run_say(const struct bench *b, const struct bench_case *c, const char *what,
                          uint32_t i, const struct bench_repetition *r)
{
    if (b->o->job.lead.quiet) return;
    const struct bench_phase *d = &r->phases[BENCH_DECODE], *p = &r->phases[BENCH_PREFILL];
    log_line(LOG_INFO,
             "prompt %u, output %u, concurrency %u, %s %u: prefill %.1f tok/s, decode %.1f tok/s, "
             "%.2f s",
             c->prompt, c->output, c->concurrency, what, i + 1,
             p->s > 0 ? (double)p->n_tokens / p->s : 0, d->s > 0 ? (double)d->n_tokens / d->s : 0,
             r->wall_s);
}

static struct status run_case(struct bench *b, struct bench_result *out)
{
    const struct bench_options *o = b->o;
    out->n = o->flags.n_repetitions;
    TRY(mem_alloc(&out->all, out->n, sizeof *out->all, "repetitions"));
    for (uint32_t i = 0; i < o->flags.n_warmup; i++) {
        TRY(bench_run_repeat(b, &out->c, &out->all[0], NULL, NULL));
        bench_run_say(b, &out->c, "warm-up", i, &out->all[0]);
    }
    for (uint32_t i = 0; i < o->flags.n_repetitions; i++) {
        TRY(bench_run_repeat(b, &out->c, &out->all[i], out, NULL));
        bench_run_say(b, &out->c, "repetition", i, &out->all[i]);
    }
    return status_ok();
}

static size_t count_cases(const struct bench_options *o)
{
    return o->flags.prompts.n * o->flags.outputs.n * o->flags.concurrency.n;
}

static struct bench_case case_of(const struct bench_options *o, size_t i)
{
    const size_t c = i % o->flags.concurrency.n, rest = i / o->flags.concurrency.n;
    return (struct bench_case){.prompt = o->flags.prompts.values[rest / o->flags.outputs.n],
                               .output = o->flags.outputs.values[rest % o->flags.outputs.n],
                               .concurrency = o->flags.concurrency.values[c]};
}

/* Runs one repetition whose steps take turns with passes. Its latencies include the passes, so they
 * are not kept. */
static struct status repeat_paired(struct bench *b, const struct bench_case *c,
                                   struct bench_repetition *out, struct bench_parts *parts)
{
    if (b->paired.memory.base == NULL) {
        b->peak_bytes = engine_stats_of(b->j->engine).peak_bytes;
        const size_t least = bench_read_bytes(b->j->topo, BENCH_PASS_LEAST);
        TRY(bench_paired_init(&b->paired, b->j->compute.team, bench_cost_token(&b->cost), least));
    }
    bench_paired_begin(&b->paired);
    return bench_run_repeat(b, c, out, NULL, parts);
}

/* Runs repetitions that take turns with passes. Called after all counted repetitions, which the
 * passes would disturb. */
static struct status run_paired(struct bench *b, struct bench_result *out)
{
    struct bench_repetition r;
    if (out->c.concurrency > 1) return status_ok();
    for (uint32_t i = 0; i < b->o->flags.n_repetitions; i++)
        TRY(repeat_paired(b, &out->c, &r, &out->parts));
    bench_run_say(b, &out->c, "beside peaks", b->o->flags.n_repetitions - 1, &r);
    return status_ok();
}

static struct status run_cases(struct bench *b, struct bench_result *results)
{
    const size_t n = count_cases(b->o);
    for (size_t i = 0; i < n; i++) {
        results[i].c = case_of(b->o, i);
        TRY(run_case(b, &results[i]));
    }
    for (size_t i = 0; b->o->flags.paired_peaks && i < n; i++) TRY(run_paired(b, &results[i]));
    return status_ok();
}

/* KV blocks were counted for --concurrency sequences. With more of them, some may wait until others
 * end, and steps have fewer rows than the turn seems to have. */
static void warn_of_waiting(const struct bench *b, const struct bench_case *c)
{
    const uint32_t room = (uint32_t)b->j->o->schedule.max_batch * b->j->layout->dp;
    if (c->concurrency > room && b->j->o->run.kv_blocks == 0)
        log_line(LOG_WARN,
                 "turns: %u sequences, but KV blocks for %u full contexts; with --concurrency %u "
                 "none waits",
                 c->concurrency, room, c->concurrency);
}

static struct status run_turn(struct bench *b, const struct bench_case *c)
{
    struct bench_repetition r;
    struct bench_parts parts = {.reads = {.n = 0}};
    const bool paired = b->o->flags.paired_peaks && c->concurrency == 1;
    struct status st =
        paired ? repeat_paired(b, c, &r, &parts) : bench_run_repeat(b, c, &r, NULL, NULL);
    if (!status_failed(&st)) bench_report_turn(c, &r, paired ? &parts : NULL);
    bench_parts_fini(&parts);
    return st;
}

/* Runs one repetition for each line of stdin, so that other programs can take turns with this
 * one. */
static struct status run_turns(struct bench *b)
{
    char line[128];
    for (unsigned n = 1; fgets(line, sizeof line, stdin) != NULL; n++) {
        struct bench_case c;
        char rest;
        if (sscanf(line, "%" SCNu32 " %" SCNu32 " %" SCNu32 " %c", &c.prompt, &c.output,
                   &c.concurrency, &rest) != 3 ||
            c.prompt < 1 || c.output < 1 || c.concurrency < 1 || c.concurrency > 1 << 20) {
            return status_make(STATUS_INPUT,
                               "stdin, line %u: expected PROMPT OUTPUT CONCURRENCY, found \"%.*s\"",
                               n, (int)strcspn(line, "\n"), line);
        }
        warn_of_waiting(b, &c);
        TRY(run_turn(b, &c));
    }
    return status_ok();
}

static struct status bench_init(struct bench *b)
{
    struct job *j = b->j;
    step_result_init(&b->result);
    request_defaults_init(&b->rules.defaults);
    b->rules.vocab_size = (int32_t)j->model.vocab;
    b->rules.max_model_len = (int32_t)j->o->model.max_model_len;
    TRY(mem_alloc(&b->groups, j->layout->pp, sizeof *b->groups, "bench"));
    TRY(mem_alloc(&b->unwanted, 1, sizeof *b->unwanted, "bench"));
    return step_plan_init(&b->plan, (int32_t)j->layout->dp);
}

static void bench_fini(struct bench *b)
{
    bench_paired_fini(&b->paired);
    step_plan_fini(&b->plan);
    step_result_fini(&b->result);
    bench_cost_fini(&b->cost);
    mem_free(&b->unwanted);
    mem_free(&b->groups);
}

/* Does the lead's part. At the end tells the other ranks to stop, also after an error. */
static struct status lead(struct bench *b, struct bench_result *results)
{
    struct status st = bench_init(b);
    if (!status_failed(&st)) st = b->o->flags.turns ? run_turns(b) : run_cases(b, results);
    step_plan_clear(&b->plan, PLAN_STOP, 0);
    const struct status stopped = engine_submit(b->j->engine, &b->plan);
    if (status_failed(&stopped)) bench_run_lose(b, &stopped);
    return st;
}

/* **Collective (world)**. Gathers the ranks' peak memory. Call it before measuring the machine's
 * peaks, which allocates memory. */
static void gather_peak_bytes(const struct bench *b, struct bench_report *r)
{
    uint64_t most = b->peak_bytes;
    if (most == 0) most = engine_stats_of(r->j->engine).peak_bytes;
    int64_t all = (int64_t)most;
    comm_max_u64(r->j->comm, COMM_WORLD, &most, 1);
    comm_sum_i64(r->j->comm, COMM_WORLD, &all, 1);
    r->peak_bytes_max = most;
    r->peak_bytes_all = (uint64_t)all;
}

static struct status bench_run_report(struct bench_report *r, const char *json)
{
    if (comm_rank(r->j->comm, COMM_WORLD) != 0) return status_ok();
    if (json == NULL || strcmp(json, "-") != 0) bench_report_print(r);
    if (json == NULL) return status_ok();
    struct strbuf s;
    strbuf_init(&s);
    bench_report_json(r, &s);
    const struct status st = bench_write_json("json", json, &s);
    strbuf_fini(&s);
    return st;
}

static struct status bench_run_measure(struct bench *b, struct bench_result *results)
{
    struct job *j = b->j;
    if (b->o->flags.paired_peaks && (j->layout->n_ranks > 1 || j->compute.kern.device != NULL)) {
        return status_make(STATUS_USAGE, "--paired-peaks: for one rank on a CPU, found %u ranks%s",
                           j->layout->n_ranks, j->compute.kern.device != NULL ? " on devices" : "");
    }
    const bool is_lead = comm_rank(j->comm, COMM_WORLD) == 0;
    const char *json = is_lead ? b->o->flags.json : NULL;
    TRY(comm_agree(j->comm, job_paths_check_more(j->o, "json", json)));
    TRY(comm_agree(j->comm, bench_cost_init(&b->cost, j)));
    enum plan_kind end;
    const struct status st = is_lead ? lead(b, results) : engine_follow(j->engine, &end);
    if (status_failed(&st) && !is_lead) bench_run_lose(b, &st);
    TRY(comm_agree(j->comm, st));
    if (b->o->flags.turns) return status_ok();
    struct bench_report r = {.j = j, .results = results, .n = count_cases(b->o)};
    gather_peak_bytes(b, &r);
    TRY(bench_machine_measure(j->comm, j->topo, j->compute.team, true, &r.machine));
    return comm_agree(j->comm, bench_run_report(&r, b->o->flags.json));
}

struct status bench_run(struct job *j)
{
    if (j->o->bench->flags.load) return bench_load_run(j);
    struct bench b = {.j = j, .o = j->o->bench};
    struct bench_result *results = NULL;
    const size_t n = count_cases(b.o);
    struct status st = comm_agree(j->comm, mem_alloc(&results, n, sizeof *results, "results"));
    if (!status_failed(&st)) st = bench_run_measure(&b, results);
    for (size_t i = 0; results != NULL && i < n; i++) {
        mem_free(&results[i].all);
        bench_parts_fini(&results[i].parts);
    }
    mem_free(&results);
    bench_fini(&b);
    return st;
}
