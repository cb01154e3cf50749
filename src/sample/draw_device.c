/* Finds each row's largest logit over all shards, as a key of value and token; gathers each row
 * that needs a random draw, whole, on one rank. */
#include "sample/draw_device.h"

#include "base/mem.h"
#include "collective/device_comm.h"
#include "kernels/body.h"
#include "kernels/device.h"
#include "kernels/ops.h"

enum { N_MAX = VOCAB_ROWS_AT_ONCE };

struct draw_device {
    const struct kern_table *kern;
    const struct shards *shards; /* borrowed */
    uint64_t *keys_device;       /* [N_MAX] */
    int64_t *n_bad_device;       /* [N_MAX] */
    int32_t *tokens_device;      /* [N_MAX] */
    int64_t *totals_device;      /* [N_MAX] */
    uint32_t *bits_device;       /* [N_MAX] */
    float *sent;                 /* [N_MAX, shard] */
    float *received, *whole;     /* [rows owned here, V]; NULL with one shard */
    uint64_t keys[N_MAX], tokens[N_MAX];
    int64_t n_bad[N_MAX], totals[N_MAX];
    uint32_t bits[N_MAX];
    struct logit_change *changes; /* grows */
    size_t n_changes_max;
};

static struct status make_arrays(struct draw_device *d)
{
    const struct kern_table *k = d->kern;
    const size_t width = range_count(d->shards->mine), vocab = d->shards->layout->model.arch->vocab;
    TRY(mem_ops_alloc(k, &d->keys_device, N_MAX, sizeof *d->keys_device, "sampler"));
    TRY(mem_ops_alloc(k, &d->n_bad_device, N_MAX, sizeof *d->n_bad_device, "sampler"));
    TRY(mem_ops_alloc(k, &d->tokens_device, N_MAX, sizeof *d->tokens_device, "sampler"));
    TRY(mem_ops_alloc(k, &d->totals_device, N_MAX, sizeof *d->totals_device, "sampler"));
    TRY(mem_ops_alloc(k, &d->bits_device, N_MAX, sizeof *d->bits_device, "sampler"));
    TRY(mem_ops_alloc(k, &d->sent, N_MAX * width, sizeof *d->sent, "sampler"));
    if (d->shards->n_ranks == 1) return status_ok();
    /* rows are dealt in turn, so a rank owns at most this many */
    const size_t n_own = (N_MAX + d->shards->n_ranks - 1) / d->shards->n_ranks;
    TRY(mem_ops_alloc(k, &d->received, n_own * vocab, sizeof *d->received, "sampler"));
    return mem_ops_alloc(k, &d->whole, n_own * vocab, sizeof *d->whole, "sampler");
}

struct status draw_device_create(const struct kern_table *kern, const struct shards *shards,
                                 struct draw_device **out)
{
    *out = NULL;
    struct draw_device *d = NULL;
    TRY(mem_alloc(&d, 1, sizeof *d, "sampler"));
    d->kern = kern;
    d->shards = shards;
    const struct status st = make_arrays(d);
    if (status_failed(&st)) draw_device_destroy(&d);
    *out = d;
    return st;
}

void draw_device_destroy(struct draw_device **device_draw)
{
    if (*device_draw == NULL) return;
    struct draw_device *d = *device_draw;
    void *arrays[] = {&d->keys_device, &d->n_bad_device, &d->tokens_device, &d->totals_device,
                      &d->bits_device, &d->sent,         &d->received,      &d->whole};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) mem_ops_free(d->kern, arrays[i]);
    mem_free(&d->changes);
    mem_free(device_draw);
}

bool draw_device_serves(const struct vocab_want *wants, size_t n_rows)
{
    for (size_t i = 0; i < n_rows; i++) {
        const bool more = (wants[i].want & (PLAN_LOGPROB | PLAN_LOGITS)) != 0;
        if (more || wants[i].n_top > 0 || wants[i].adjust.allowed != NULL) return false;
    }
    return true;
}

/* Finds keys [n_rows], the largest over all shards, and n_bad [n_rows] of this shard. */
static void draw_device_find_maxima(struct draw_device *d, const float *logits, size_t n_rows)
{
    const struct argmax_args a = {.logits = logits,
                                  .n_rows = n_rows,
                                  .n = range_count(d->shards->mine),
                                  .id0 = d->shards->mine.begin,
                                  .keys = d->keys_device,
                                  .n_bad = d->n_bad_device};
    op_argmax_rows(d->kern, &a);
    mem_ops_get_later(d->kern, d->keys, d->keys_device, n_rows * sizeof *d->keys);
    mem_ops_get(d->kern, d->n_bad, d->n_bad_device, n_rows * sizeof *d->n_bad);
    comm_max_u64(d->shards->comm, COMM_TP, d->keys, n_rows);
}

static bool samples(const struct vocab_want *w, const struct vocab_got *g)
{
    return (w->want & PLAN_SAMPLE) != 0 && g->n_bad == 0;
}

static bool draw_device_scores(const struct vocab_want *w, const struct vocab_got *g)
{
    return (w->want & PLAN_SCORE) != 0 && w->target >= 0 && g->n_bad == 0;
}

static float draw_device_row_max(const struct draw_device *d, size_t i)
{
    return kern_from_ordered_bits((uint32_t)(d->keys[i] >> 32));
}

/* Computes the log-probabilities of the targets. Also computes the masses of rows without a target,
 * which costs less than listing the rows that have one. */
static void draw_device_score(struct draw_device *d, const float *logits,
                              const struct vocab_want *wants, size_t n_rows, struct vocab_got *got)
{
    float maxima[N_MAX];
    int32_t targets[N_MAX];
    bool any = false;
    for (size_t i = 0; i < n_rows; i++) {
        const bool is_scored = draw_device_scores(&wants[i], &got[i]);
        any = any || is_scored;
        maxima[i] = draw_device_row_max(d, i);
        targets[i] = is_scored ? wants[i].target - (int32_t)d->shards->mine.begin : -1;
    }
    if (!any) return;
    const struct score_args a = {.logits = logits,
                                 .n_rows = n_rows,
                                 .n = range_count(d->shards->mine),
                                 .maxima = maxima,
                                 .targets = targets,
                                 .totals = d->totals_device,
                                 .bits = d->bits_device};
    op_score_rows(d->kern, &a);
    mem_ops_get_later(d->kern, d->totals, d->totals_device, n_rows * sizeof *d->totals);
    mem_ops_get(d->kern, d->bits, d->bits_device, n_rows * sizeof *d->bits);
    comm_sum_i64(d->shards->comm, COMM_TP, d->totals, n_rows);
    comm_or_u32(d->shards->comm, COMM_TP, d->bits, n_rows);
    for (size_t i = 0; i < n_rows; i++) {
        if (draw_device_scores(&wants[i], &got[i]))
            got[i].logprob =
                pick_logprob(f32_from_bits(d->bits[i]), maxima[i], (uint64_t)d->totals[i]);
    }
}

/* Applies bias and penalties, and finds the new maxima. */
static struct status draw_device_adjust(struct draw_device *d, float *logits,
                                        const struct vocab_want *wants, size_t n_rows,
                                        const struct vocab_got *got)
{
    size_t n_most = 0, n = 0;
    for (size_t i = 0; i < n_rows; i++)
        if (samples(&wants[i], &got[i])) n_most += wants[i].adjust.n;
    if (n_most == 0) return status_ok();
    if (n_most > d->n_changes_max) {
        TRY(mem_grow(&d->changes, 0, 2 * n_most, sizeof *d->changes, "sampler"));
        d->n_changes_max = 2 * n_most;
    }
    for (size_t i = 0; i < n_rows; i++) {
        if (samples(&wants[i], &got[i]))
            n += adjust_list(&wants[i].adjust, d->shards->mine.begin, range_count(d->shards->mine),
                             (uint32_t)i, d->changes + n);
    }
    const struct change_logits_args a = {logits, range_count(d->shards->mine), d->changes, n};
    op_change_logits(d->kern, &a);
    draw_device_find_maxima(d, logits, n_rows);
    return status_ok();
}

/* Gathers whole rows: of rows [n], tp rank j mod n_ranks owns the j-th. Returns the *n_own rows of
 * this rank, [*n_own, V]. */
static const float *draw_device_move_rows(struct draw_device *d, const float *logits,
                                          const int32_t *rows, size_t n, size_t *n_own)
{
    const size_t width = range_count(d->shards->mine), vocab = d->shards->layout->model.arch->vocab;
    size_t order[N_MAX];
    int32_t in_order[N_MAX];
    struct comm_exchange x;
    *n_own = shards_plan(d->shards, n, d->shards->n_ranks, order, &x);
    for (size_t i = 0; i < n; i++) in_order[i] = rows[order[i]];
    const struct gather_args gather = {logits, in_order, n, width, d->sent};
    op_gather_rows(d->kern, &gather);
    if (d->shards->n_ranks == 1) return d->sent;
    x.send = d->sent;
    x.recv = d->received;
    device_exchange_rows(d->kern, d->shards->comm, COMM_TP, &x);
    for (uint32_t s = 0; s < d->shards->n_ranks; s++) {
        const struct range shard = layout_vocab(d->shards->layout, s);
        const struct place_args place = {.from = d->received + x.recv_displs[s],
                                         .n_rows = *n_own,
                                         .width = range_count(shard),
                                         .to_stride = vocab,
                                         .to = d->whole + shard.begin};
        op_place_rows(d->kern, &place);
    }
    return d->whole;
}

static int32_t draw_device_best_of(const struct draw_device *d, size_t i)
{
    return (int32_t) ~(uint32_t)d->keys[i];
}

/* Draws the tokens of rows [n]. */
static void device_draw(struct draw_device *d, const float *logits, const int32_t *rows, size_t n,
                        const struct vocab_want *wants, struct vocab_got *got)
{
    struct pick_row picks[N_MAX];
    int32_t tokens[N_MAX] = {0}; /* stay 0 if the device fails */
    size_t n_own;
    const float *whole = draw_device_move_rows(d, logits, rows, n, &n_own);
    for (size_t k = 0; k < n_own; k++) {
        const size_t i = (size_t)rows[d->shards->rank + k * d->shards->n_ranks];
        const struct pick_options *o = &wants[i].pick;
        picks[k] = (struct pick_row){.max = draw_device_row_max(d, i),
                                     .inv_t = 1.0f / o->temperature,
                                     .top_p = o->top_p,
                                     .min_p = o->min_p,
                                     .top_k = o->top_k,
                                     .best = draw_device_best_of(d, i),
                                     .random = pick_random(o)};
    }
    const struct pick_args a = {whole, picks, n_own, d->shards->layout->model.arch->vocab,
                                d->tokens_device};
    op_pick_rows(d->kern, &a);
    mem_ops_get(d->kern, tokens, d->tokens_device, n_own * sizeof *tokens);
    for (size_t j = 0; j < n; j++) d->tokens[j] = 0;
    for (size_t k = 0; k < n_own; k++)
        d->tokens[d->shards->rank + k * d->shards->n_ranks] = (uint64_t)tokens[k];
    comm_max_u64(d->shards->comm, COMM_TP, d->tokens, n);
    for (size_t j = 0; j < n; j++) got[rows[j]].token = (int32_t)d->tokens[j];
}

struct status draw_device_run(struct draw_device *d, float *logits, const struct vocab_want *wants,
                              size_t n_rows, struct vocab_got *got)
{
    int32_t rows[N_MAX];
    size_t n = 0;
    draw_device_find_maxima(d, logits, n_rows);
    comm_sum_i64(d->shards->comm, COMM_TP, d->n_bad, n_rows);
    for (size_t i = 0; i < n_rows; i++)
        got[i] = (struct vocab_got){.token = -1, .n_bad = (int32_t)d->n_bad[i]};
    draw_device_score(d, logits, wants, n_rows, got);
    TRY(draw_device_adjust(d, logits, wants, n_rows, got));
    for (size_t i = 0; i < n_rows; i++) {
        if (!samples(&wants[i], &got[i])) continue;
        if (wants[i].pick.temperature > 0)
            rows[n++] = (int32_t)i;
        else
            got[i].token = draw_device_best_of(d, i);
    }
    if (n > 0) device_draw(d, logits, rows, n, wants, got);
    return device_status(d->kern->device);
}
