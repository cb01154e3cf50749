/* Measures how long a pipeline waits. Reads a job's --trace, finds its longest run of steps that
 * only decode, and prints each stage's times in them; then simulates the same steps with a core for
 * each rank (parallel/layout/pipe_replay.h). Run by hand and by e2e tests. usage: tool_bubble
 * FILE.trace [MESSAGE_US] */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "parallel/layout/pipe_replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGES_MAX = 64 };

/* One step of one stage; times in ns. */
struct cell {
    uint64_t begin, end, cpu, rows, seqs;
    uint64_t waiting, lead, lead_cpu; /* from the end of the stage's previous step to the end of
                                         this one */
};

struct bubble {
    struct js_doc *doc;
    uint32_t pp;
    int64_t rank_of[STAGES_MAX]; /* of replica 0 */
    int64_t step0, n_steps;      /* the steps of the trace */
    struct cell *cells;          /* [n_steps, pp]; end 0: not in the trace */
    int64_t first, last;         /* the steps that are evaluated, counted from step0 */
};

static uint64_t ns_of(const struct js_node *node)
{
    double us = 0;
    js_number(node, &us);
    return us > 0 ? (uint64_t)(us * 1000 + 0.5) : 0;
}

static int64_t int_of(const struct js_node *node, int64_t missing)
{
    int64_t value;
    return js_int(node, &value) ? value : missing;
}

static const char *text_of(const struct js_node *node)
{
    size_t n;
    const char *text = js_string(node, &n);
    return text != NULL ? text : "";
}

/* Takes the rank's place from the name of its process ("stage 1, dp 0, tp 0"). */
static void take_name(struct bubble *b, const struct js_node *e)
{
    unsigned stage, dp, tp;
    const char *name = text_of(js_get(js_get(e, "args"), "name"));
    if (strcmp(text_of(js_get(e, "name")), "process_name") != 0) return;
    if (sscanf(name, "stage %u, dp %u, tp %u", &stage, &dp, &tp) != 3) return;
    if (stage >= STAGES_MAX || dp > 0 || tp > 0) return;
    b->rank_of[stage] = int_of(js_get(e, "pid"), -1);
    if (stage + 1 > b->pp) b->pp = stage + 1;
}

static bool is_step(const struct js_node *e)
{
    return strcmp(text_of(js_get(e, "name")), "step") == 0;
}

static struct cell *cell_at(const struct bubble *b, int64_t step, uint32_t stage)
{
    return &b->cells[(size_t)step * b->pp + stage];
}

/* Adds one event of the trace to *since, which collects what a stage did since its last step. If
 * the event is a step, stores *since as its cell. A rank's events are ordered by their ends. */
static void take_span(struct bubble *b, const struct js_node *e, uint32_t stage, struct cell *since)
{
    const struct js_node *args = js_get(e, "args");
    const char *category = text_of(js_get(e, "cat"));
    const uint64_t ns = ns_of(js_get(e, "dur")), cpu = (uint64_t)int_of(js_get(args, "cpu_ns"), 0);
    if (strcmp(category, "waiting") == 0) since->waiting += ns;
    if (strcmp(category, "lead") == 0) since->lead += ns;
    if (strcmp(category, "lead") == 0) since->lead_cpu += cpu;
    if (!is_step(e)) return;
    since->begin = ns_of(js_get(e, "ts"));
    since->end = since->begin + ns;
    since->cpu = cpu;
    since->rows = (uint64_t)int_of(js_get(args, "rows"), 0);
    since->seqs = (uint64_t)int_of(js_get(args, "seqs"), 0);
    *cell_at(b, int_of(js_get(args, "step"), 0) - b->step0, stage) = *since;
    *since = (struct cell){0};
}

static struct status take_spans(struct bubble *b, const struct js_node *events)
{
    int64_t last = -1;
    b->step0 = INT64_MAX;
    for (size_t i = 0; i < js_count(events); i++) {
        const struct js_node *e = js_at(events, i);
        if (!is_step(e)) continue;
        const int64_t step = int_of(js_get(js_get(e, "args"), "step"), 0);
        if (step > last) last = step;
        if (step < b->step0) b->step0 = step;
    }
    if (last < 0) return status_make(STATUS_INPUT, "no step is in the trace");
    b->n_steps = last + 1 - b->step0;
    TRY(mem_alloc(&b->cells, (size_t)b->n_steps * b->pp, sizeof *b->cells, "steps"));
    struct cell since[STAGES_MAX] = {{0}};
    for (size_t i = 0; i < js_count(events); i++) {
        const struct js_node *e = js_at(events, i);
        if (strcmp(text_of(js_get(e, "ph")), "X") != 0) continue;
        for (uint32_t p = 0; p < b->pp; p++) {
            if (int_of(js_get(e, "pid"), -1) == b->rank_of[p]) take_span(b, e, p, &since[p]);
        }
    }
    return status_ok();
}

static struct status read_trace(struct bubble *b, const char *path)
{
    char *text = NULL;
    size_t n = 0;
    TRY(file_read(path, (size_t)1 << 29, &text, &n));
    struct status st = js_parse(text, n, path, &b->doc);
    mem_free(&text);
    TRY(st);
    const struct js_node *events = js_get(js_root(b->doc), "traceEvents");
    for (size_t i = 0; i < js_count(events); i++) {
        const struct js_node *e = js_at(events, i);
        if (strcmp(text_of(js_get(e, "ph")), "M") == 0) take_name(b, e);
    }
    if (b->pp == 0) return status_make(STATUS_INPUT, "%s: no rank is named in it", path);
    return take_spans(b, events);
}

/* Whether every stage ran the step, with one row per sequence and at least `least` of them. */
static bool decodes(const struct bubble *b, int64_t step, uint64_t least)
{
    for (uint32_t p = 0; p < b->pp; p++) {
        const struct cell *c = cell_at(b, step, p);
        if (c->end == 0 || c->rows != c->seqs || c->seqs < least) return false;
    }
    return true;
}

/* Finds the longest run of decoding steps that have at least half as many sequences as the fullest.
 * Leaves out its first steps: prompts are then still in later stages. */
static struct status find_decode(struct bubble *b)
{
    uint64_t most = 0;
    for (int64_t s = 0; s < b->n_steps; s++) {
        if (decodes(b, s, 1) && cell_at(b, s, 0)->seqs > most) most = cell_at(b, s, 0)->seqs;
    }
    int64_t begin = 0;
    for (int64_t s = 0; s < b->n_steps; s++) {
        if (!decodes(b, s, (most + 1) / 2)) begin = s + 1;
        if (s + 1 - begin <= b->last - b->first) continue;
        b->first = begin;
        b->last = s + 1;
    }
    b->first += 2 * (int64_t)b->pp;
    if (b->last - b->first >= 4 * (int64_t)b->pp) return status_ok();
    return status_make(STATUS_INPUT, "fewer than %u steps in a row that only decode", 6 * b->pp);
}

/* Whether the ranks kept their cores: in this step and the pp steps before it, no stage computed
 * for more than 1.05 times its processor time. */
static bool is_undisturbed(const struct bubble *b, int64_t step)
{
    for (int64_t s = step - (int64_t)b->pp; s <= step; s++) {
        for (uint32_t p = 0; p < b->pp; p++) {
            const struct cell *c = cell_at(b, s, p);
            if (c->end - c->begin > c->cpu + c->cpu / 20) return false;
        }
    }
    return true;
}

static double share(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

static void print_recorded(const struct bubble *b, bool undisturbed)
{
    for (uint32_t p = 0; p < b->pp; p++) {
        struct cell sum = {0};
        uint64_t whole = 0, n = 0;
        for (int64_t s = b->first; s < b->last; s++) {
            const struct cell *c = cell_at(b, s, p);
            if (undisturbed && !is_undisturbed(b, s)) continue;
            n++;
            whole += c->end - cell_at(b, s - 1, p)->end;
            sum.end += c->end - c->begin;
            sum.cpu += c->cpu;
            sum.waiting += c->waiting;
            sum.lead += c->lead;
        }
        const double ms = n > 0 ? 1e-6 / (double)n : 0;
        if (undisturbed && n == 0) {
            printf("RECORDED: no step while nobody else used the cores\n");
            return;
        }
        if (p == 0) {
            printf("RECORDED in steady decode, steps %lld to %lld, %llu %s:\n",
                   (long long)(b->step0 + b->first), (long long)(b->step0 + b->last - 1),
                   (unsigned long long)n,
                   undisturbed ? "of them while nobody else used the cores" : "in all");
        }
        printf("stage %u: %.3f ms a step, computing %.3f ms (%.3f ms of processor time), waiting "
               "%.2f %%, planning %.2f %%\n",
               p, (double)whole * ms, (double)sum.end * ms, (double)sum.cpu * ms,
               share(sum.waiting, whole), share(sum.lead, whole));
    }
}

/* Processor times: stage_ns [steps, pp] and lead_ns [steps]. */
static void take_cpu(const struct bubble *b, uint64_t *stage_ns, uint64_t *lead_ns)
{
    for (int64_t s = b->first; s < b->last; s++) {
        const size_t at = (size_t)(s - b->first);
        lead_ns[at] = cell_at(b, s, 0)->lead_cpu;
        for (uint32_t p = 0; p < b->pp; p++) stage_ns[at * b->pp + p] = cell_at(b, s, p)->cpu;
    }
}

static void print_replay(const struct pipe_replay *r)
{
    struct pipe_stage_time times[STAGES_MAX];
    const struct status st = pipe_replay_run(r, times);
    if (status_failed(&st)) printf("%s\n", st.text);
    for (uint32_t p = 0; p < r->pp && !status_failed(&st); p++) {
        const struct pipe_stage_time *t = &times[p];
        const uint64_t all = t->busy_ns + t->lead_ns + t->wait_ns;
        const double ms = 1e-6 / (double)(r->n_steps - r->first_step);
        printf("stage %u: %.3f ms a step, computing %.3f ms, waiting %.2f %%, planning %.2f %%\n",
               p, (double)all * ms, (double)t->busy_ns * ms, share(t->wait_ns, all),
               share(t->lead_ns, all));
    }
}

/* Gives every step its stage's mean time. */
static void smooth(const struct pipe_replay *r, uint64_t *stage_ns)
{
    for (uint32_t p = 0; p < r->pp; p++) {
        uint64_t sum = 0;
        for (uint64_t s = 0; s < r->n_steps; s++) sum += stage_ns[s * r->pp + p];
        for (uint64_t s = 0; s < r->n_steps; s++) stage_ns[s * r->pp + p] = sum / r->n_steps;
    }
}

static struct status print_simulated(const struct bubble *b, double message_us)
{
    const size_t n = (size_t)(b->last - b->first);
    uint64_t *stage_ns = NULL, *lead_ns = NULL;
    struct status st;
    TRY_GOTO(st, mem_alloc(&stage_ns, n * b->pp, sizeof *stage_ns, "replay"), done);
    TRY_GOTO(st, mem_alloc(&lead_ns, n, sizeof *lead_ns, "replay"), free_stage);
    take_cpu(b, stage_ns, lead_ns);
    const struct pipe_replay r = {.pp = b->pp,
                                  .n_steps = n,
                                  .stage_ns = stage_ns,
                                  .lead_ns = lead_ns,
                                  .message_ns = (uint64_t)(message_us * 1000),
                                  .first_step = 2 * b->pp};
    printf("SIMULATED from these processor times, a core for each rank, %.0f us a message:\n",
           message_us);
    print_replay(&r);
    smooth(&r, stage_ns);
    printf("SIMULATED likewise, each step taking its stage's mean:\n");
    print_replay(&r);
    mem_free(&lead_ns);
free_stage:
    mem_free(&stage_ns);
done:
    return st;
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: tool_bubble FILE.trace [MESSAGE_US]\n");
        return status_exit(STATUS_USAGE);
    }
    struct bubble b = {0};
    struct status st = read_trace(&b, argv[1]);
    if (!status_failed(&st)) st = find_decode(&b);
    if (!status_failed(&st)) print_recorded(&b, false);
    if (!status_failed(&st)) print_recorded(&b, true);
    if (!status_failed(&st)) st = print_simulated(&b, argc > 2 ? atof(argv[2]) : 20);
    if (status_failed(&st)) fprintf(stderr, "tool_bubble: %s\n", st.text);
    mem_free(&b.cells);
    js_destroy(&b.doc);
    return status_failed(&st) ? status_exit(st.code) : 0;
}
