/* Times the lead's part of a step: plans and commits steps of 1 and of 64 sequences, whose tokens
 * are made up instead of computed. */
#include "bench/bench_node.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "serve/request/request.h"
#include "serve/schedule/scheduler.h"

enum { MANY = 64, ANSWER = 256, VOCAB = 32000, CONTEXT = 1024, LEAD_WARMUP = 32, LEAD_RUNS = 5 };

static struct status submit_one(const struct request_rules *rules, struct scheduler *s, uint64_t i)
{
    struct strbuf line;
    struct request *r = NULL;
    strbuf_init(&line);
    strbuf_printf(&line,
                  "{\"custom_id\":\"%llu\",\"temperature\":0,\"max_tokens\":%d,"
                  "\"prompt_token_ids\":[%llu,2,3,4]}",
                  (unsigned long long)i, (int)ANSWER, (unsigned long long)i + 1);
    struct status st = strbuf_status(&line);
    if (!status_failed(&st)) st = request_create(rules, i + 1, line.data, line.n, &r);
    strbuf_fini(&line);
    TRY(st);
    r->index = r->order = i;
    return scheduler_submit(s, r);
}

static struct status answer(const struct step_plan *plan, struct step_result *result)
{
    step_result_clear(result, plan->step, 0, VOCAB);
    for (size_t i = 0; i < plan->n_seqs; i++) {
        const struct result_seq out = {.id = plan->seqs[i].id, .token = 7, .draft = -1};
        TRY(step_result_add(result, &out));
    }
    return status_ok();
}

/* Runs the sequences to their end. *seconds: the mean time of a step, without the first LEAD_WARMUP
 * steps. */
static struct status run_steps(struct scheduler *s, struct step_plan *plan,
                               struct step_result *result, double *seconds)
{
    uint64_t since = 0, step = 0;
    for (; step < ANSWER; step++) {
        if (step == LEAD_WARMUP) since = clock_ns();
        TRY(scheduler_plan(s, 0, step, plan));
        TRY(answer(plan, result));
        TRY(scheduler_commit(s, 0, result));
    }
    *seconds = (double)(clock_ns() - since) * 1e-9 / (ANSWER - LEAD_WARMUP);
    for (struct request *r; (r = scheduler_take_finished(s)) != NULL;) request_destroy(&r);
    return status_ok();
}

static struct status time_steps(uint64_t n_sequences, double *seconds)
{
    struct request_rules rules = {.vocab_size = VOCAB, .max_model_len = CONTEXT};
    struct scheduler_options o = {.rules = &rules,
                                  .n_replicas = 1,
                                  .n_groups = 1,
                                  .n_blocks = 2 * MANY * CONTEXT / 64,
                                  .flags = {.step_tokens = 512}};
    struct serve_summary *stats = NULL;
    struct scheduler *s = NULL;
    struct step_plan plan = {0};
    struct step_result result;
    struct status st;
    request_defaults_init(&rules.defaults);
    step_result_init(&result);
    TRY_GOTO(st, mem_alloc(&stats, 1, sizeof *stats, "measuring the lead"), done);
    TRY_GOTO(st, step_plan_init(&plan, 1), done);
    TRY_GOTO(st, scheduler_create(&o, stats, &s), done);
    for (uint64_t i = 0; i < n_sequences; i++) TRY_GOTO(st, submit_one(&rules, s, i), done);
    st = run_steps(s, &plan, &result, seconds);
done:
    scheduler_destroy(&s);
    step_plan_fini(&plan);
    step_result_fini(&result);
    mem_free(&stats);
    return st;
}

/* Sets *seconds to the shortest of a few runs, because other work on the host only lengthens a
 * run. */
static struct status time_least(uint64_t n_sequences, double *seconds)
{
    *seconds = 1e9;
    for (int i = 0; i < LEAD_RUNS; i++) {
        double s = 0;
        TRY(time_steps(n_sequences, &s));
        if (s < *seconds) *seconds = s;
    }
    return status_ok();
}

struct status bench_node_lead(const struct bench_node *b, struct node *out)
{
    double one = 0, many = 0;
    struct status st = time_least(1, &one);
    if (!status_failed(&st)) st = time_least(MANY, &many);
    TRY(comm_agree(b->comm, st));
    const double each = (many - one) / (MANY - 1);
    out->sequence_s =
        each > 1e-9 ? each : 1e-9; /* by chance MANY sequences may take no longer than one */
    out->step_s = one > out->sequence_s ? one - out->sequence_s : one;
    return status_ok();
}
