/* Capacity factors across the ranks of a stage: the choices of the whole microbatch are gathered,
 * every rank applies the same limit (capacity.h) to all of them and keeps its own tokens' part.
 * Called by the exchanges whose ranks route different tokens. */
#include "base/mem.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "moe/moe_private.h"

#include <string.h>

struct status moe_limit_create(struct moe *m)
{
    const size_t n_ranks = (size_t)m->o.layout->dp * m->o.layout->tp;
    TRY(mem_alloc(&m->limit.n_tokens, n_ranks, sizeof *m->limit.n_tokens, "MoE counts"));
    return word_counts_init(&m->limit.words, n_ranks);
}

void moe_limit_destroy(struct moe *m)
{
    word_counts_fini(&m->limit.words);
    mem_free(&m->limit.n_tokens);
}

/* Gathers the words [its tokens, per_token] of each rank of the stage into all [tokens of the
 * microbatch, per_token]. */
static void gather_stage(struct moe *m, const void *mine, size_t per_token, void *all)
{
    const struct word_counts *words = &m->limit.words;
    int at = 0;
    const int n_ranks = comm_size(m->o.comm, COMM_STAGE);
    for (int i = 0; i < n_ranks; i++) {
        words->counts[i] = (int)((size_t)m->limit.n_tokens[i] * per_token);
        words->displs[i] = at;
        at += words->counts[i];
    }
    const int me = comm_rank(m->o.comm, COMM_STAGE);
    memcpy((char *)all + (size_t)words->displs[me] * 4, mine, (size_t)words->counts[me] * 4);
    comm_gather_words(m->o.comm, COMM_STAGE, all, words->counts, words->displs);
}

/* Makes an array of n_bytes readable by the host: the array itself, or a copy of it when it is in
 * the device's memory. */
static struct status to_host(struct moe *m, enum buffer which, const void *array, size_t n_bytes,
                             const void **out)
{
    void *copy;
    *out = array;
    if (m->o.kern->device == NULL) return status_ok();
    TRY(moe_grow(m, which, n_bytes, 1, &copy));
    mem_ops_get(m->o.kern, copy, array, n_bytes);
    *out = copy;
    return device_status(m->o.kern->device);
}

/* Takes this rank's tokens out of the result for the whole microbatch: the choices that were kept,
 * and how many each token lost. `first` is this rank's first token in the microbatch. */
static struct status take_kept(struct moe *m, struct pass *p, const struct capacity_work *work,
                               size_t first)
{
    const size_t n = range_count(p->listed), k = m->o.model->moe.n_chosen;
    int32_t *marks;
    TRY(moe_grow(m, BUF_MARK_LIST, 2 * n, sizeof *marks, &marks));
    memcpy(p->ids, work->kept_ids + first * k, n * k * sizeof *p->ids);
    mem_ops_put(m->o.kern, p->weights, work->kept_weights + first * k, n * k * sizeof *p->weights);
    for (size_t t = 0; t < n; t++) {
        marks[2 * t] = 0;
        marks[2 * t + 1] = work->n_dropped[first + t];
    }
    mem_ops_put(m->o.kern, p->marks + 2 * (size_t)p->listed.begin, marks, 2 * n * sizeof *marks);
    return status_ok();
}

/* Gathers the numbers of tokens of all sources. Returns the number of this rank's first token in
 * the microbatch; *n_all is the number of all tokens. */
static size_t count_tokens(struct moe *m, const struct pass *p, size_t *n_all)
{
    const int32_t n = (int32_t)range_count(p->listed);
    size_t first = 0;
    comm_gather_bytes(m->o.comm, COMM_STAGE, &n, sizeof n, m->limit.n_tokens);
    *n_all = 0;
    for (int i = 0; i < comm_size(m->o.comm, COMM_STAGE); i++) {
        if (i == comm_rank(m->o.comm, COMM_STAGE)) first = *n_all;
        *n_all += (size_t)m->limit.n_tokens[i];
    }
    return first;
}

static struct status grow_work(struct moe *m, struct capacity_work *work)
{
    const size_t n_choices = work->n_tokens * work->n_chosen;
    TRY(moe_grow(m, BUF_KEPT_IDS, n_choices, sizeof(int32_t), &work->kept_ids));
    TRY(moe_grow(m, BUF_KEPT_WEIGHTS, n_choices, sizeof(float), &work->kept_weights));
    TRY(moe_grow(m, BUF_DROPPED, work->n_tokens, sizeof(int32_t), &work->n_dropped));
    return moe_grow(m, BUF_LOAD, work->n_experts, sizeof(uint32_t), &work->load);
}

static struct status limit(struct moe *m, struct pass *p, const float *logits)
{
    size_t n_all;
    const size_t n = range_count(p->listed), k = m->o.model->moe.n_chosen,
                 first = count_tokens(m, p, &n_all);
    float *all_logits, *all_weights;
    int32_t *all_ids;
    struct capacity_work work = {.n_tokens = n_all,
                                 .n_experts = m->o.model->moe.n_experts,
                                 .n_chosen = m->o.model->moe.n_chosen};
    TRY(moe_grow(m, BUF_ALL_LOGITS, n_all * m->o.model->moe.n_experts, sizeof(float), &all_logits));
    TRY(moe_grow(m, BUF_ALL_IDS, n_all * k, sizeof(int32_t), &all_ids));
    TRY(moe_grow(m, BUF_ALL_WEIGHTS, n_all * k, sizeof(float), &all_weights));
    TRY(grow_work(m, &work));
    const void *own;
    TRY(to_host(m, BUF_HOST_LOGITS, logits, n * m->o.model->moe.n_experts * sizeof *logits, &own));
    gather_stage(m, own, m->o.model->moe.n_experts, all_logits);
    gather_stage(m, p->ids, k, all_ids);
    TRY(to_host(m, BUF_HOST_WEIGHTS, p->weights, n * k * sizeof *p->weights, &own));
    gather_stage(m, own, k, all_weights);
    work.logits = all_logits;
    work.ids = all_ids;
    work.weights = all_weights;
    const uint32_t capacity = capacity_of(m->o.capacity->factor, n_all, m->o.model->moe.n_chosen,
                                          m->o.model->moe.n_experts);
    capacity_apply(m->o.capacity->policy, capacity, &work);
    return take_kept(m, p, &work, first);
}

struct status moe_limit(struct moe *m, struct pass *p, const float *logits)
{
    TRY(moe_grow(m, BUF_OUT, p->n_tokens * m->o.model->width, sizeof(float), &p->out));
    TRY(moe_grow(m, BUF_MARKS, p->n_tokens * 2, sizeof(int32_t), &p->marks));
    mem_ops_fill(m->o.kern, p->marks, 0, p->n_tokens * 2 * sizeof *p->marks);
    return m->o.capacity->policy == CAPACITY_DROPLESS ? status_ok() : limit(m, p, logits);
}
