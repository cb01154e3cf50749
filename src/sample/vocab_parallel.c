/* Vocab-parallel logits: finds maxima, scores and draws over shards. */
#include "sample/vocab_parallel.h"

#include "base/mem.h"
#include "kernels/act.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "sample/draw_device.h"
#include "sample/shards.h"
#include "sample/top.h"

#include <string.h>

struct vocab_parallel {
    const struct kern_table *kern;
    struct shards shards;
    float logit_cap; /* 0: none */
    const float *head_bias;
    uint32_t n_own_max; /* rows of a batch that one rank may own */
    /* AT_ONCE below is VOCAB_ROWS_AT_ONCE */
    float *logits;   /* [AT_ONCE, shard] */
    float *made;     /* the same in the device's memory; without a device `logits` itself */
    float *sent;     /* [AT_ONCE, shard] rows in the order of their owners */
    float *received; /* [n_own_max, V] shards of the rows owned here, by source */
    float *row;      /* [V] */
    struct pick_scratch scratch;
    void *codes; /* [AT_ONCE, D] quantized, for a quantized head; or NULL */
    /* [AT_ONCE] each; `keys` owns the memory of all three */
    uint64_t *keys;    /* a row's largest logit, as a key (top.h) */
    uint64_t *totals;  /* a row's mass */
    uint64_t *tokens;  /* a row's drawn token */
    int64_t *n_bad;    /* [AT_ONCE] */
    uint32_t *targets; /* [AT_ONCE] bits of the targets' logits */
    float *maxima;     /* [AT_ONCE] largest logits, before they are adjusted */
    uint64_t *tops;    /* [AT_ONCE, tp, n_top]: room for PLAN_TOPS_MAX */
    float *saved;      /* logits before they were adjusted, row after row; grows */
    size_t saved_capacity;
    struct draw_device *device; /* for batches that need only tokens and scores; NULL: no device */
};

struct status vocab_parallel_create(const struct kern_table *kern, struct comm *comm,
                                    const struct layout *layout, bool head_reads_codes,
                                    const float *head_bias, struct vocab_parallel **out)
{
    *out = NULL;
    struct vocab_parallel *v = NULL;
    TRY(mem_alloc(&v, 1, sizeof *v, "sampler"));
    v->kern = kern;
    v->head_bias = head_bias;
    v->logit_cap = layout->model.arch->logit_cap;
    /* all logits go to rank 0, so it may own a whole batch */
    v->n_own_max = VOCAB_ROWS_AT_ONCE;
    const size_t n = VOCAB_ROWS_AT_ONCE, vocab = layout->model.arch->vocab;
    struct status st;
    TRY_GOTO(st, shards_init(&v->shards, comm, layout), fail);
    const size_t width = range_count(v->shards.mine);
    TRY_GOTO(st, mem_alloc(&v->logits, n * width, sizeof(float), "sampler"), fail);
    v->made = v->logits;
    if (kern->device != NULL) {
        v->made = NULL;
        TRY_GOTO(st, mem_ops_alloc(kern, &v->made, n * width, sizeof(float), "sampler"), fail);
        TRY_GOTO(st, draw_device_create(kern, &v->shards, &v->device), fail);
    }
    TRY_GOTO(st, mem_alloc(&v->sent, n * width, sizeof(float), "sampler"), fail);
    TRY_GOTO(st, mem_alloc(&v->received, v->n_own_max * vocab, sizeof(float), "sampler"), fail);
    TRY_GOTO(st, mem_alloc(&v->row, vocab, sizeof(float), "sampler"), fail);
    TRY_GOTO(st, mem_alloc(&v->scratch.mass, vocab, sizeof(uint64_t), "sampler"), fail);
    TRY_GOTO(st, mem_alloc(&v->scratch.keys, vocab, sizeof(uint64_t), "sampler"), fail);
    if (head_reads_codes) {
        TRY_GOTO(st,
                 mem_ops_alloc(kern, &v->codes, act_codes_bytes(n, layout->model.arch->width), 1,
                               "sampler"),
                 fail);
    }
    TRY_GOTO(st, mem_alloc(&v->keys, 3 * n, sizeof(uint64_t), "sampler"), fail);
    TRY_GOTO(st, mem_alloc(&v->n_bad, n, sizeof(int64_t), "sampler"), fail);
    TRY_GOTO(st, mem_alloc(&v->targets, n, sizeof(uint32_t), "sampler"), fail);
    TRY_GOTO(st, mem_alloc(&v->maxima, n, sizeof(float), "sampler"), fail);
    TRY_GOTO(
        st, mem_alloc(&v->tops, n * v->shards.n_ranks * PLAN_TOPS_MAX, sizeof(uint64_t), "sampler"),
        fail);
    v->totals = v->keys + n;
    v->tokens = v->totals + n;
    *out = v;
    return status_ok();
fail:
    vocab_parallel_destroy(&v);
    return st;
}

void vocab_parallel_destroy(struct vocab_parallel **v)
{
    if (*v == NULL) return;
    struct vocab_parallel *p = *v;
    if (p->made != p->logits) mem_ops_free(p->kern, &p->made);
    draw_device_destroy(&p->device);
    mem_free(&p->logits);
    mem_free(&p->sent);
    mem_free(&p->received);
    mem_free(&p->row);
    mem_ops_free(p->kern, &p->codes);
    mem_free(&p->scratch.mass);
    mem_free(&p->scratch.keys);
    mem_free(&p->keys);
    mem_free(&p->n_bad);
    mem_free(&p->targets);
    mem_free(&p->maxima);
    mem_free(&p->tops);
    mem_free(&p->saved);
    shards_fini(&p->shards);
    mem_free(v);
}

static float *logits_row(struct vocab_parallel *v, size_t i)
{
    return v->logits + i * range_count(v->shards.mine);
}

static float vocab_parallel_row_max(const struct vocab_parallel *v, size_t i)
{
    return kern_from_ordered_bits((uint32_t)(v->keys[i] >> 32));
}

/* Finds the largest logit of each row over all shards, as a key (top.h), and counts the bad logits.
 */
static void vocab_parallel_find_maxima(struct vocab_parallel *v, size_t n_rows,
                                       struct vocab_got *got)
{
    for (size_t i = 0; i < n_rows; i++) {
        uint64_t n_bad = 0;
        v->keys[i] = v->kern->argmax(logits_row(v, i), range_count(v->shards.mine),
                                     v->shards.mine.begin, &n_bad);
        v->n_bad[i] = (int64_t)n_bad;
    }
    comm_max_u64(v->shards.comm, COMM_TP, v->keys, n_rows);
    comm_sum_i64(v->shards.comm, COMM_TP, v->n_bad, n_rows);
    for (size_t i = 0; i < n_rows; i++) {
        got[i] = (struct vocab_got){.token = -1, .n_bad = (int32_t)v->n_bad[i]};
        v->maxima[i] = vocab_parallel_row_max(v, i);
    }
}

/* Returns the bits of a token's logit on the rank that holds it, 0 on the others. */
static uint32_t bits_of(struct vocab_parallel *v, size_t i, int32_t token)
{
    const uint32_t t = (uint32_t)token;
    if (t < v->shards.mine.begin || t >= v->shards.mine.end) return 0;
    return f32_bits(logits_row(v, i)[t - v->shards.mine.begin]);
}

static float logprob_of(const struct vocab_parallel *v, size_t i, float logit)
{
    return pick_logprob(logit, v->maxima[i], v->totals[i]);
}

static bool wants_score(const struct vocab_want *w)
{
    return (w->want & PLAN_SCORE) != 0 && w->target >= 0;
}

static bool wants_draw(const struct vocab_want *w, const struct vocab_got *g)
{
    return (w->want & PLAN_SAMPLE) != 0 && w->pick.temperature > 0 && g->n_bad == 0;
}

static bool wants_logprob(const struct vocab_want *w)
{
    return (w->want & PLAN_LOGPROB) != 0 || w->n_top > 0 || wants_score(w);
}

/* Computes the masses of all rows that need log-probabilities, and the scores. */
static void vocab_parallel_score(struct vocab_parallel *v, const struct vocab_want *wants,
                                 size_t n_rows, struct vocab_got *got)
{
    bool any = false;
    for (size_t i = 0; i < n_rows; i++) {
        v->totals[i] = 0;
        v->targets[i] = 0;
        if (!wants_logprob(&wants[i]) || got[i].n_bad > 0) continue;
        any = true;
        v->totals[i] =
            v->kern->mass(logits_row(v, i), range_count(v->shards.mine), v->maxima[i], 1.0f, NULL);
        if (wants_score(&wants[i])) v->targets[i] = bits_of(v, i, wants[i].target);
    }
    if (!any) return;
    comm_sum_i64(v->shards.comm, COMM_TP, (int64_t *)v->totals, n_rows);
    comm_or_u32(v->shards.comm, COMM_TP, v->targets, n_rows);
    for (size_t i = 0; i < n_rows; i++) {
        if (!wants_score(&wants[i]) || got[i].n_bad > 0) continue;
        got[i].logprob = logprob_of(v, i, f32_from_bits(v->targets[i]));
    }
}

/* Lists the most likely tokens of the rows that want them. */
static void list_tops(struct vocab_parallel *v, const struct vocab_want *wants, size_t n_rows,
                      const struct vocab_got *got)
{
    size_t n_most = 0;
    for (size_t i = 0; i < n_rows; i++) {
        if ((size_t)wants[i].n_top > n_most) n_most = (size_t)wants[i].n_top;
    }
    if (n_most == 0) return;
    const size_t row_keys = v->shards.n_ranks * n_most;
    memset(v->tops, 0, n_rows * row_keys * sizeof *v->tops);
    for (size_t i = 0; i < n_rows; i++) {
        if (wants[i].n_top == 0 || got[i].n_bad > 0) continue;
        top_of_shard(logits_row(v, i), range_count(v->shards.mine), v->shards.mine.begin,
                     (size_t)wants[i].n_top, v->tops + i * row_keys + v->shards.rank * n_most);
    }
    comm_max_u64(v->shards.comm, COMM_TP, v->tops, n_rows * row_keys);
    for (size_t i = 0; i < n_rows && v->shards.rank == 0; i++) {
        uint64_t keys[PLAN_TOPS_MAX];
        const size_t n = (size_t)wants[i].n_top;
        top_merge(v->tops + i * row_keys, v->shards.n_ranks, n_most, n, keys);
        for (size_t k = 0; k < n; k++) {
            wants[i].tops[k] = (struct plan_top){.id = -1};
            if (keys[k] == 0) continue;
            wants[i].tops[k] = (struct plan_top){.id = top_id(keys[k]),
                                                 .logprob = logprob_of(v, i, top_logit(keys[k]))};
        }
    }
}

static bool is_adjusted(const struct vocab_want *w, const struct vocab_got *g)
{
    return (w->want & PLAN_SAMPLE) != 0 && adjust_is_any(&w->adjust) && g->n_bad == 0;
}

/* Applies bias, penalties and constraints, and finds the new maxima. */
static struct status vocab_parallel_adjust(struct vocab_parallel *v, const struct vocab_want *wants,
                                           size_t n_rows, const struct vocab_got *got)
{
    const size_t width = range_count(v->shards.mine);
    size_t n_entries = 0, at = 0;
    bool any = false;
    for (size_t i = 0; i < n_rows; i++) {
        if (!is_adjusted(&wants[i], &got[i])) continue;
        any = true;
        n_entries += adjust_n_saved(&wants[i].adjust, width);
    }
    if (!any) return status_ok();
    if (n_entries > v->saved_capacity) {
        TRY(mem_grow(&v->saved, 0, 2 * n_entries, sizeof *v->saved, "sampler"));
        v->saved_capacity = 2 * n_entries;
    }
    for (size_t i = 0; i < n_rows; i++) {
        if (!is_adjusted(&wants[i], &got[i])) continue;
        float *row = logits_row(v, i);
        uint64_t n_bad = 0;
        at += adjust_row(&wants[i].adjust, v->shards.mine.begin, width, row, v->saved + at);
        v->keys[i] = v->kern->argmax(row, width, v->shards.mine.begin, &n_bad);
    }
    comm_max_u64(v->shards.comm, COMM_TP, v->keys, n_rows);
    return status_ok();
}

/* Restores the model's own logits. */
static void undo_adjust(struct vocab_parallel *v, const struct vocab_want *wants, size_t n_rows,
                        const struct vocab_got *got)
{
    size_t at = 0;
    for (size_t i = 0; i < n_rows; i++) {
        if (!is_adjusted(&wants[i], &got[i])) continue;
        at += adjust_undo(&wants[i].adjust, v->shards.mine.begin, range_count(v->shards.mine),
                          logits_row(v, i), v->saved + at);
    }
}

static void score_tokens(struct vocab_parallel *v, const struct vocab_want *wants, size_t n_rows,
                         struct vocab_got *got)
{
    bool any = false;
    for (size_t i = 0; i < n_rows; i++) {
        v->targets[i] = 0;
        if ((wants[i].want & PLAN_LOGPROB) == 0 || got[i].token < 0) continue;
        any = true;
        v->targets[i] = bits_of(v, i, got[i].token);
    }
    if (!any) return;
    comm_or_u32(v->shards.comm, COMM_TP, v->targets, n_rows);
    for (size_t i = 0; i < n_rows; i++) {
        if ((wants[i].want & PLAN_LOGPROB) == 0 || got[i].token < 0) continue;
        got[i].token_logprob = logprob_of(v, i, f32_from_bits(v->targets[i]));
    }
}

/* Sends the parts of rows [n] to their owners: tp rank j mod n_owners owns the j-th. Returns how
 * many rows this rank owns; their parts are in v->received, as shards_plan describes. */
static size_t vocab_parallel_move_rows(struct vocab_parallel *v, const size_t *rows, size_t n,
                                       uint32_t n_owners)
{
    const size_t width = range_count(v->shards.mine);
    size_t order[VOCAB_ROWS_AT_ONCE];
    struct comm_exchange x;
    const size_t n_own = shards_plan(&v->shards, n, n_owners, order, &x);
    for (size_t i = 0; i < n; i++)
        memcpy(v->sent + i * width, logits_row(v, rows[order[i]]), width * sizeof(float));
    x.send = v->sent;
    x.recv = v->received;
    comm_exchange_rows(v->shards.comm, COMM_TP, &x);
    return n_own;
}

/* Joins the parts of this rank's k-th own row in v->row. */
static void join_row(struct vocab_parallel *v, size_t k, size_t n_own)
{
    size_t at = 0;
    for (uint32_t s = 0; s < v->shards.n_ranks; s++) {
        const struct range shard = layout_vocab(v->shards.layout, s);
        const size_t width = range_count(shard);
        memcpy(v->row + shard.begin, v->received + at + k * width, width * sizeof(float));
        at += n_own * width;
    }
}

static void vocab_parallel_draw(struct vocab_parallel *v, const struct vocab_want *wants,
                                size_t n_rows, struct vocab_got *got)
{
    size_t rows[VOCAB_ROWS_AT_ONCE];
    size_t n = 0;
    for (size_t i = 0; i < n_rows; i++) {
        if (wants_draw(&wants[i], &got[i])) rows[n++] = i;
    }
    if (n == 0) return;
    const size_t n_own = vocab_parallel_move_rows(v, rows, n, v->shards.n_ranks);
    memset(v->tokens, 0, n * sizeof *v->tokens);
    for (size_t k = 0; k < n_own; k++) {
        const size_t j = v->shards.rank + k * v->shards.n_ranks;
        join_row(v, k, n_own);
        v->tokens[j] = (uint64_t)pick_token(v->kern, &wants[rows[j]].pick, v->row,
                                            v->shards.layout->model.arch->vocab,
                                            vocab_parallel_row_max(v, rows[j]), &v->scratch);
    }
    comm_max_u64(v->shards.comm, COMM_TP, v->tokens, n);
    for (size_t j = 0; j < n; j++) got[rows[j]].token = (int32_t)v->tokens[j];
}

static struct status send_logits(struct vocab_parallel *v, const struct vocab_want *wants,
                                 size_t n_rows, struct step_result *out)
{
    size_t rows[VOCAB_ROWS_AT_ONCE];
    size_t n = 0;
    for (size_t i = 0; i < n_rows; i++) {
        if ((wants[i].want & PLAN_LOGITS) != 0) rows[n++] = i;
    }
    if (n == 0) return status_ok();
    const size_t n_own = vocab_parallel_move_rows(v, rows, n, 1);
    for (size_t k = 0; k < n_own; k++) {
        join_row(v, k, n_own);
        TRY(step_result_add_logits(out, v->row, 1));
    }
    return status_ok();
}

static struct status run_batch(struct vocab_parallel *v, const struct packed *head, const float *x,
                               const struct vocab_want *wants, size_t n_rows, struct vocab_got *got,
                               struct step_result *out)
{
    const size_t width = range_count(v->shards.mine);
    if (width > 0) {
        const struct linear_group group = {.w = head, .row0 = 0, .n_rows = n_rows};
        struct act_rows in = {
            .x = x, .stride = head->n_in, .n_rows = n_rows, .n = head->n_in, .memory = v->codes};
        const struct linear_args args = {.groups = &group,
                                         .n_groups = 1,
                                         .x = x,
                                         .x_stride = head->n_in,
                                         .xq = act_codes(v->kern, &in, head),
                                         .y = v->made,
                                         .y_stride = width};
        op_linear(v->kern, &args);
        if (v->head_bias != NULL) op_add_bias(v->kern, v->made, v->head_bias, n_rows, width);
        if (v->logit_cap > 0) op_softcap(v->kern, v->made, v->logit_cap, n_rows * width);
    }
    if (v->device != NULL && draw_device_serves(wants, n_rows))
        return draw_device_run(v->device, v->made, wants, n_rows, got);
    mem_ops_get(v->kern, v->logits, v->made, n_rows * width * sizeof *v->logits);
    vocab_parallel_find_maxima(v, n_rows, got);
    vocab_parallel_score(v, wants, n_rows, got);
    list_tops(v, wants, n_rows, got);
    TRY(vocab_parallel_adjust(v, wants, n_rows, got));
    for (size_t i = 0; i < n_rows; i++) {
        const bool greedy = (wants[i].want & PLAN_SAMPLE) != 0 && wants[i].pick.temperature <= 0;
        if (greedy && got[i].n_bad == 0) got[i].token = (int32_t) ~(uint32_t)v->keys[i];
    }
    vocab_parallel_draw(v, wants, n_rows, got);
    undo_adjust(v, wants, n_rows, got);
    score_tokens(v, wants, n_rows, got);
    return send_logits(v, wants, n_rows, out);
}

struct status vocab_parallel_run(struct vocab_parallel *v, const struct packed *head,
                                 const float *x, const struct vocab_want *wants, size_t n_rows,
                                 struct vocab_got *got, struct step_result *out)
{
    for (size_t i = 0; i < n_rows; i += VOCAB_ROWS_AT_ONCE) {
        const size_t n = n_rows - i < VOCAB_ROWS_AT_ONCE ? n_rows - i : VOCAB_ROWS_AT_ONCE;
        TRY(run_batch(v, head, x + i * v->shards.layout->model.arch->width, wants + i, n, got + i,
                      out));
    }
    return device_status(v->kern->device);
}
