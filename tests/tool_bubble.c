/* How much of a pipeline's time is waiting: reads a job's --trace, finds its longest run of steps
 * that only decode, and prints each stage's times in them; then what the same steps would give on
 * cores of their own, by simulation (parallel/pipe_replay.h). Run by hand and by e2e tests.
 *
 * usage: tool_bubble FILE.trace [MESSAGE_US] */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "parallel/pipe_replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGES_MAX = 64 };

/* A span; times in ns. */
struct span {
    const char *name, *category;
    int64_t pid, step;
    uint64_t begin, end, rows, seqs, cpu;
};

struct bubble {
    struct js_doc *doc;
    struct span *spans; /* [n] */
    size_t n;
    uint32_t pp;
    int64_t rank_of[STAGES_MAX]; /* of replica 0 */
    int64_t first, last;         /* the steps that are looked at */
    uint64_t rows;
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

/* "stage 1, dp 0, tp 0" names a rank. */
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

static void take_span(struct bubble *b, const struct js_node *e)
{
    const struct js_node *args = js_get(e, "args");
    const uint64_t begin = ns_of(js_get(e, "ts"));
    b->spans[b->n++] = (struct span){.name = text_of(js_get(e, "name")),
                                     .category = text_of(js_get(e, "cat")),
                                     .pid = int_of(js_get(e, "pid"), -1),
                                     .step = int_of(js_get(args, "step"), -1),
                                     .begin = begin,
                                     .end = begin + ns_of(js_get(e, "dur")),
                                     .rows = (uint64_t)int_of(js_get(args, "rows"), 0),
                                     .seqs = (uint64_t)int_of(js_get(args, "seqs"), 0),
                                     .cpu = (uint64_t)int_of(js_get(args, "cpu_ns"), 0)};
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
    TRY(mem_alloc(&b->spans, js_count(events), sizeof *b->spans, "spans"));
    for (size_t i = 0; i < js_count(events); i++) {
        const struct js_node *e = js_at(events, i);
        const char *phase = text_of(js_get(e, "ph"));
        if (strcmp(phase, "M") == 0) take_name(b, e);
        if (strcmp(phase, "X") == 0) take_span(b, e);
    }
    return b->pp > 0 ? st : status_make(STATUS_INPUT, "%s: no rank is named in it", path);
}

static bool is_step_of(const struct span *s, int64_t pid)
{
    return s->pid == pid && strcmp(s->name, "step") == 0;
}

/* The longest run of stage 0's steps with one row a sequence, and at least half as many sequences
 * as any of them; without its first steps, which still meet prompts in later stages. */
static struct status find_decode(struct bubble *b)
{
    uint64_t most = 0;
    int64_t begin = -1, end = -1, last = -2;
    for (size_t i = 0; i < b->n; i++) {
        const struct span *s = &b->spans[i];
        if (is_step_of(s, b->rank_of[0]) && s->rows == s->seqs && s->seqs > most) most = s->seqs;
    }
    b->first = b->last = 0;
    for (size_t i = 0; i < b->n; i++) {
        const struct span *s = &b->spans[i];
        if (!is_step_of(s, b->rank_of[0])) continue;
        const bool decodes = s->rows == s->seqs && s->seqs * 2 >= most;
        if (!decodes || s->step != last + 1) begin = s->step;
        last = s->step;
        end = decodes ? s->step + 1 : begin;
        if (end - begin > b->last - b->first) {
            b->first = begin;
            b->last = end;
        }
    }
    b->first += 2 * (int64_t)b->pp;
    b->rows = most;
    if (b->last - b->first >= 4 * (int64_t)b->pp) return status_ok();
    return status_make(STATUS_INPUT, "fewer than %u steps in a row that only decode", 6 * b->pp);
}

/* Times of one rank between its first step and the end of its last one. */
struct rank_time {
    uint64_t window, step, cpu, waiting, lead;
};

static struct rank_time rank_time_of(const struct bubble *b, int64_t pid)
{
    uint64_t begin = 0, end = 0;
    struct rank_time t = {0};
    for (size_t i = 0; i < b->n; i++) {
        const struct span *s = &b->spans[i];
        if (!is_step_of(s, pid)) continue;
        if (s->step == b->first - 1) begin = s->end;
        if (s->step == b->last - 1) end = s->end;
    }
    for (size_t i = 0; i < b->n; i++) {
        const struct span *s = &b->spans[i];
        if (s->pid != pid || s->begin < begin || s->end > end) continue;
        if (is_step_of(s, pid)) t.step += s->end - s->begin;
        if (is_step_of(s, pid)) t.cpu += s->cpu;
        if (strcmp(s->category, "waiting") == 0) t.waiting += s->end - s->begin;
        if (strcmp(s->category, "lead") == 0) t.lead += s->end - s->begin;
    }
    t.window = end - begin;
    return t;
}

static double share(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

static void print_recorded(const struct bubble *b)
{
    const double n = (double)(b->last - b->first);
    printf("steps %lld to %lld, up to %llu rows, recorded:\n", (long long)b->first,
           (long long)b->last - 1, (unsigned long long)b->rows);
    for (uint32_t p = 0; p < b->pp; p++) {
        const struct rank_time t = rank_time_of(b, b->rank_of[p]);
        printf("stage %u: %.3f ms a step, computing %.3f ms (%.3f ms of processor time), waiting "
               "%.2f %%, planning %.2f %%\n",
               p, (double)t.window / n * 1e-6, (double)t.step / n * 1e-6, (double)t.cpu / n * 1e-6,
               share(t.waiting, t.window), share(t.lead, t.window));
    }
}

/* stage_ns [steps, pp] and lead_ns [steps] from processor times: the commit of step - pp goes with
 * the plan of step. */
static void take_cpu(const struct bubble *b, uint64_t *stage_ns, uint64_t *lead_ns)
{
    const uint64_t n = (uint64_t)(b->last - b->first);
    for (size_t i = 0; i < b->n; i++) {
        const struct span *s = &b->spans[i];
        const bool commits = strcmp(s->name, "commit") == 0;
        const int64_t at = s->step - b->first + (commits ? (int64_t)b->pp : 0);
        if (at < 0 || (uint64_t)at >= n) continue;
        if (commits || strcmp(s->name, "plan") == 0) lead_ns[at] += s->cpu;
        for (uint32_t p = 0; p < b->pp; p++) {
            if (is_step_of(s, b->rank_of[p])) stage_ns[(size_t)at * b->pp + p] = s->cpu;
        }
    }
}

static struct status print_simulated(const struct bubble *b, double message_us)
{
    const uint64_t n = (uint64_t)(b->last - b->first);
    uint64_t *stage_ns = NULL, *lead_ns = NULL;
    struct pipe_stage_time times[STAGES_MAX];
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
    TRY_GOTO(st, pipe_replay_run(&r, times), free_lead);
    printf("SIMULATED from these processor times, a core for each rank, %.0f us a message:\n",
           message_us);
    for (uint32_t p = 0; p < b->pp; p++) {
        const struct pipe_stage_time *t = &times[p];
        const uint64_t all = t->busy_ns + t->lead_ns + t->wait_ns;
        printf("stage %u: %.3f ms a step, computing %.3f ms, waiting %.2f %%, planning %.2f %%\n",
               p, (double)all / (double)(n - 2 * b->pp) * 1e-6,
               (double)t->busy_ns / (double)(n - 2 * b->pp) * 1e-6, share(t->wait_ns, all),
               share(t->lead_ns, all));
    }
free_lead:
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
    if (!status_failed(&st)) print_recorded(&b);
    if (!status_failed(&st)) st = print_simulated(&b, argc > 2 ? atof(argv[2]) : 20);
    if (status_failed(&st)) fprintf(stderr, "tool_bubble: %s\n", st.text);
    mem_free(&b.spans);
    js_destroy(&b.doc);
    return status_failed(&st) ? status_exit(st.code) : 0;
}
