/* The time left of a job, by the cost model (status_forecast.h). */
#include "cli/status_forecast.h"

#include "base/json.h"
#include "base/mem.h"
#include "cli/plan_model.h"
#include "cost/forecast.h"
#include "parallel/layout/layout_choose.h"
#include "serve/input/input_part.h"
#include "serve/input/line_reader.h"

#include <string.h>

enum { MAX_TOKENS_PRESET = 128 };

/* Sums over the input's first n_done lines ([0], taken as the finished ones) and over the other
 * lines ([1]). */
struct halves {
    double n_done;
    double n[2], bytes[2], max_tokens[2];
};

/* Returns a line's max_tokens or max_completion_tokens, also of an OpenAI batch line; if it has
 * neither, MAX_TOKENS_PRESET. */
static double max_tokens_of(const struct line *line)
{
    struct js_doc *doc = NULL;
    int64_t n = MAX_TOKENS_PRESET;
    const struct status st = js_parse(line->text, line->n, "line", &doc);
    if (!status_failed(&st)) {
        const struct js_node *root = js_root(doc), *body = js_get(root, "body");
        const struct js_node *from = body != NULL ? body : root;
        if (!js_int(js_get(from, "max_tokens"), &n))
            (void)js_int(js_get(from, "max_completion_tokens"), &n);
    }
    js_destroy(&doc);
    return n > 0 ? (double)n : 1;
}

static struct status read_halves(const struct input_files *inputs, struct halves *h)
{
    struct line_reader *r = NULL;
    struct line line = {.kind = LINE_OK};
    double at = 0;
    TRY(line_reader_create_all(inputs, 0, &r));
    struct status st = line_reader_check(r);
    while (!status_failed(&st)) {
        st = line_reader_next(r, true, &line);
        if (status_failed(&st) || line.kind == LINE_END) break;
        if (line.kind != LINE_OK) continue;
        const int half = at++ < h->n_done ? 0 : 1;
        h->n[half]++;
        h->bytes[half] += (double)line.n;
        h->max_tokens[half] += max_tokens_of(&line);
    }
    line_reader_destroy(&r);
    return st;
}

/* A layout of the model on one node of --nodes. Only the ratio of two of its times is used. */
struct one_node {
    struct arch arch;
    struct layout_model model;
    struct node node;
    struct layout layout;
    struct cost_model cost;
    struct topo *topo;
    uint32_t *order;
};

static struct status one_node_init(struct one_node *o, const struct status_forecast_flags *flags)
{
    char spec[64];
    bool fits;
    const struct plan_source source = {.path = flags->model, .dtype = DTYPE_BF16};
    const struct layout_flags any = {0};
    TRY(plan_model_read(&source, &o->arch, &o->model));
    TRY(node_read(flags->nodes, &o->node));
    const uint32_t ranks = (uint32_t)o->node.n_ranks;
    snprintf(spec, sizeof spec, "numa:%u core:%u pu:1", ranks,
             (uint32_t)(o->node.n_threads / o->node.n_ranks));
    TRY(topo_describe(spec, ranks, 0, (uint64_t)o->node.memory_bytes, &o->topo));
    TRY(mem_alloc(&o->order, ranks, sizeof *o->order, "rank order"));
    const struct layout_budget budget = {
        .kv = {2, 0}, .step_tokens = 512, .min_kv_blocks = (o->arch.context + 63) / 64};
    TRY(layout_choose(&o->model, o->topo, &any, &budget, &o->layout, o->order, &fits));
    layout_expect_cuts(o->topo, o->order, &o->layout);
    return cost_model_init(&o->cost, &o->node, &o->layout, o->topo, o->order);
}

static double left_of(const struct one_node *o, const struct halves *h,
                      const struct journal_facts *f, double n_sequences)
{
    const double session_s = (double)(f->last_ns - f->session_ns) * 1e-9;
    const double generated = (double)f->n_generated_tokens;
    const double part = generated > 0 ? (double)f->session_generated / generated : 0;
    if (h->n[1] <= 0) return 0;
    if (part <= 0 || session_s <= 0 || h->bytes[0] <= 0 || h->max_tokens[0] <= 0) return -1;
    const double prompt = (double)f->n_prompt_tokens;
    struct forecast_load done = {.prompt = part * prompt, .answer = part * generated};
    struct forecast_load left = {.prompt = prompt * h->bytes[1] / h->bytes[0],
                                 .answer = generated * h->max_tokens[1] / h->max_tokens[0]};
    done.n_sequences = left.n_sequences = n_sequences;
    done.context = (prompt + generated / 2) / h->n[0];
    left.context = (left.prompt + left.answer / 2) / h->n[1];
    return session_s * forecast_even_s(&o->cost, &left) / forecast_even_s(&o->cost, &done);
}

struct status status_forecast_left(const struct status_forecast_flags *flags,
                                   const struct journal_facts *f, double *left_s)
{
    struct one_node *o = NULL;
    struct halves h = {.n_done = (double)f->n_rows};
    struct input_files inputs;
    struct input_part part;
    size_t at, n;
    if (flags->model == NULL || flags->input.n == 0)
        return status_make(STATUS_USAGE, "--nodes: needs --model FILE.h5 and --input IN.jsonl");
    if (input_part_of_settings(f->settings, &part, &at, &n))
        return status_make(STATUS_USAGE,
                           "--nodes: estimates only jobs over whole inputs, and this one had "
                           "--input-part");
    TRY(input_files_expand(flags->input.values, flags->input.n, &inputs));
    struct status st = mem_alloc(&o, 1, sizeof *o, "a forecast");
    if (!status_failed(&st)) st = one_node_init(o, flags);
    if (!status_failed(&st)) st = read_halves(&inputs, &h);
    if (!status_failed(&st)) *left_s = left_of(o, &h, f, flags->max_batch);
    input_files_fini(&inputs);
    if (o == NULL) return st;
    topo_destroy(&o->topo);
    mem_free(&o->order);
    mem_free(&o);
    return st;
}
