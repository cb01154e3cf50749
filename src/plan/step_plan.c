/* Builds, packs and unpacks plans and results. */
#include "plan/step_plan.h"

#include "base/mem.h"

#include <string.h>

/* Makes room for `want` elements in an array that grows by half. */
static struct status step_plan_reserve(void *array, size_t *capacity, size_t n_now, size_t want,
                                       size_t elem_bytes, const char *what)
{
    if (want <= *capacity) return status_ok();
    size_t grown = *capacity < 16 ? 16 : *capacity + *capacity / 2;
    if (grown < want) grown = want;
    TRY(mem_grow(array, n_now, grown, elem_bytes, what));
    *capacity = grown;
    return status_ok();
}

struct status step_plan_init(struct step_plan *p, int32_t n_replicas)
{
    memset(p, 0, sizeof *p);
    p->n_replicas = n_replicas;
    return mem_alloc(&p->replica_begin, (size_t)n_replicas + 1, sizeof(int32_t), "step plan");
}

void step_plan_fini(struct step_plan *p)
{
    mem_free(&p->replica_begin);
    mem_free(&p->seqs);
    mem_free(&p->tokens);
    mem_free(&p->blocks);
    mem_free(&p->adjusts);
    mem_free(&p->allowed);
    mem_free(&p->moves);
}

void step_plan_clear(struct step_plan *p, enum plan_kind kind, uint64_t step)
{
    p->kind = kind;
    p->predicts = false;
    p->step = step;
    p->n_seqs = p->n_tokens = p->n_blocks = p->n_adjusts = p->n_allowed = p->n_moves = 0;
    memset(p->replica_begin, 0, ((size_t)p->n_replicas + 1) * sizeof(int32_t));
}

/* The lengths of a plan's arrays. */
struct plan_counts {
    size_t n_seqs, n_tokens, n_blocks, n_adjusts, n_allowed, n_moves;
};

static struct status reserve_plan(struct step_plan *p, const struct plan_counts *n)
{
    static const char WHAT[] = "step plan";
    TRY(step_plan_reserve(&p->seqs, &p->seqs_capacity, p->n_seqs, n->n_seqs, sizeof *p->seqs,
                          WHAT));
    TRY(step_plan_reserve(&p->tokens, &p->tokens_capacity, p->n_tokens, n->n_tokens,
                          sizeof *p->tokens, WHAT));
    TRY(step_plan_reserve(&p->adjusts, &p->adjusts_capacity, p->n_adjusts, n->n_adjusts,
                          sizeof *p->adjusts, WHAT));
    TRY(step_plan_reserve(&p->allowed, &p->allowed_capacity, p->n_allowed, n->n_allowed,
                          sizeof *p->allowed, WHAT));
    TRY(step_plan_reserve(&p->moves, &p->moves_capacity, p->n_moves, n->n_moves, sizeof *p->moves,
                          WHAT));
    return step_plan_reserve(&p->blocks, &p->blocks_capacity, p->n_blocks, n->n_blocks,
                             sizeof *p->blocks, WHAT);
}

struct status step_plan_add(struct step_plan *p, int32_t replica, const struct plan_seq *seq,
                            const struct plan_lists *lists)
{
    const size_t n_rows = (size_t)seq->n_rows, n_blocks = (size_t)seq->n_blocks;
    const size_t n_adjusts = (size_t)seq->n_adjusts, n_allowed = (size_t)seq->n_allowed_words;
    const struct plan_counts n = {p->n_seqs + 1,
                                  p->n_tokens + n_rows,
                                  p->n_blocks + n_blocks,
                                  p->n_adjusts + n_adjusts,
                                  p->n_allowed + n_allowed,
                                  0};
    TRY(reserve_plan(p, &n));
    p->seqs[p->n_seqs] = *seq;
    memcpy(p->tokens + p->n_tokens, lists->tokens, n_rows * sizeof *p->tokens);
    memcpy(p->blocks + p->n_blocks, lists->blocks, n_blocks * sizeof *p->blocks);
    if (n_adjusts > 0)
        memcpy(p->adjusts + p->n_adjusts, lists->adjusts, n_adjusts * sizeof *p->adjusts);
    if (n_allowed > 0)
        memcpy(p->allowed + p->n_allowed, lists->allowed, n_allowed * sizeof *p->allowed);
    p->n_seqs = n.n_seqs;
    p->n_tokens = n.n_tokens;
    p->n_blocks = n.n_blocks;
    p->n_adjusts = n.n_adjusts;
    p->n_allowed = n.n_allowed;
    p->replica_begin[replica + 1] = (int32_t)p->n_seqs;
    return status_ok();
}

struct status step_plan_add_move(struct step_plan *p, const struct plan_move *move)
{
    TRY(step_plan_reserve(&p->moves, &p->moves_capacity, p->n_moves, p->n_moves + 1, sizeof *move,
                          "step plan"));
    p->moves[p->n_moves++] = *move;
    return status_ok();
}

void step_plan_end_replica(struct step_plan *p, int32_t replica)
{
    p->replica_begin[replica + 1] = (int32_t)p->n_seqs;
}

void step_result_init(struct step_result *r)
{
    memset(r, 0, sizeof *r);
}

void step_result_fini(struct step_result *r)
{
    mem_free(&r->seqs);
    mem_free(&r->scores);
    mem_free(&r->logits);
    mem_free(&r->tops);
    mem_free(&r->pools);
    mem_free(&r->moved);
    mem_free(&r->hidden);
}

void step_result_clear(struct step_result *r, uint64_t step, int32_t replica, int32_t vocab)
{
    r->step = step;
    r->replica = replica;
    r->vocab = vocab;
    r->width = 0;
    r->n_seqs = r->n_scores = r->n_logit_rows = r->n_tops = r->n_pools = r->n_moved = 0;
    r->n_hidden_rows = 0;
}

struct status step_result_add(struct step_result *r, const struct result_seq *seq)
{
    TRY(step_plan_reserve(&r->seqs, &r->seqs_capacity, r->n_seqs, r->n_seqs + 1, sizeof *seq,
                          "step result"));
    r->seqs[r->n_seqs++] = *seq;
    return status_ok();
}

struct status step_result_add_scores(struct step_result *r, const float *scores, size_t n)
{
    if (n == 0) return status_ok(); /* the array may not be allocated yet */
    TRY(step_plan_reserve(&r->scores, &r->scores_capacity, r->n_scores, r->n_scores + n,
                          sizeof *scores, "step result"));
    memcpy(r->scores + r->n_scores, scores, n * sizeof *scores);
    r->n_scores += n;
    return status_ok();
}

struct status step_result_add_tops(struct step_result *r, const struct plan_top *tops, size_t n)
{
    if (n == 0) return status_ok();
    TRY(step_plan_reserve(&r->tops, &r->tops_capacity, r->n_tops, r->n_tops + n, sizeof *tops,
                          "step result"));
    memcpy(r->tops + r->n_tops, tops, n * sizeof *tops);
    r->n_tops += n;
    return status_ok();
}

struct status step_result_add_logits(struct step_result *r, const float *rows, size_t n_rows)
{
    const size_t width = (size_t)r->vocab;
    const size_t used = r->n_logit_rows * width;
    TRY(step_plan_reserve(&r->logits, &r->logits_capacity, used, used + n_rows * width,
                          sizeof *rows, "step result"));
    memcpy(r->logits + used, rows, n_rows * width * sizeof *rows);
    r->n_logit_rows += n_rows;
    return status_ok();
}

struct status step_result_add_pool(struct step_result *r, int64_t **row)
{
    const size_t width = (size_t)r->width, used = r->n_pools * width;
    TRY(step_plan_reserve(&r->pools, &r->pools_capacity, used, used + width, sizeof *r->pools,
                          "step result"));
    *row = r->pools + used;
    memset(*row, 0, width * sizeof **row);
    r->n_pools++;
    return status_ok();
}

struct status step_result_take_moved(struct step_result *r, const uint64_t *moved, size_t n)
{
    const bool is_first = r->n_moved == 0;
    if (is_first) {
        TRY(step_plan_reserve(&r->moved, &r->moved_capacity, 0, n, sizeof *moved, "step result"));
        r->n_moved = n;
    }
    for (size_t i = 0; i < n; i++)
        if (is_first || moved[i] < r->moved[i]) r->moved[i] = moved[i];
    return status_ok();
}

struct status step_result_place_hidden(struct step_result *r, size_t n_rows, size_t row_bytes)
{
    TRY(step_plan_reserve(&r->hidden, &r->hidden_capacity, 0, n_rows * row_bytes, 1,
                          "step result"));
    r->n_hidden_rows = n_rows;
    r->hidden_row_bytes = row_bytes;
    return status_ok();
}

void plan_message_fini(struct plan_message *m)
{
    mem_free(&m->words);
    memset(m, 0, sizeof *m);
}

struct status plan_message_reserve(struct plan_message *m, size_t n_words)
{
    return step_plan_reserve(&m->words, &m->capacity, m->n_words, n_words, sizeof *m->words,
                             "plan message");
}

/* A position in an array of words, for writing and for reading. short_read stays set once a read
 * has gone past the end. */
struct cursor {
    int32_t *at;
    size_t left; /* words */
    bool short_read;
};

static size_t step_plan_words_of(size_t n_bytes)
{
    return (n_bytes + sizeof(int32_t) - 1) / sizeof(int32_t);
}

static void step_plan_put(struct cursor *c, const void *from, size_t n_bytes)
{
    if (n_bytes > 0) memcpy(c->at, from, n_bytes);
    c->at += step_plan_words_of(n_bytes);
}

static void get(struct cursor *c, void *to, size_t n_bytes)
{
    const size_t n = step_plan_words_of(n_bytes);
    if (n > c->left || c->short_read) {
        c->short_read = true;
        if (n_bytes > 0) memset(to, 0, n_bytes);
        return;
    }
    if (n_bytes > 0) memcpy(to, c->at, n_bytes);
    c->at += n;
    c->left -= n;
}

/* The counts before the arrays; uint64 each, so that both sides agree on the layout. */
struct plan_header {
    uint64_t kind, step, n_replicas, n_seqs, n_tokens, n_blocks, n_adjusts, n_allowed, n_moves,
        predicts;
};

struct result_header {
    uint64_t step, replica, vocab, width, n_seqs, n_scores, n_logit_rows, n_tops, n_pools;
};

struct status step_plan_pack(const struct step_plan *p, struct plan_message *m)
{
    const struct plan_header h = {p->kind,      p->step,      (uint64_t)p->n_replicas,
                                  p->n_seqs,    p->n_tokens,  p->n_blocks,
                                  p->n_adjusts, p->n_allowed, p->n_moves,
                                  p->predicts};
    const size_t n_replica_bytes = ((size_t)p->n_replicas + 1) * sizeof(int32_t);
    const size_t n_seq_bytes = p->n_seqs * sizeof *p->seqs;
    const size_t n_adjust_bytes = p->n_adjusts * sizeof *p->adjusts;
    const size_t n_move_bytes = p->n_moves * sizeof *p->moves;
    m->n_words = 0;
    const size_t n_words = step_plan_words_of(sizeof h) + step_plan_words_of(n_replica_bytes) +
                           step_plan_words_of(n_seq_bytes) + p->n_tokens + p->n_blocks +
                           step_plan_words_of(n_adjust_bytes) + p->n_allowed +
                           step_plan_words_of(n_move_bytes);
    TRY(plan_message_reserve(m, n_words));
    struct cursor c = {.at = m->words};
    step_plan_put(&c, &h, sizeof h);
    step_plan_put(&c, p->replica_begin, n_replica_bytes);
    step_plan_put(&c, p->seqs, n_seq_bytes);
    step_plan_put(&c, p->tokens, p->n_tokens * sizeof *p->tokens);
    step_plan_put(&c, p->blocks, p->n_blocks * sizeof *p->blocks);
    step_plan_put(&c, p->adjusts, n_adjust_bytes);
    step_plan_put(&c, p->allowed, p->n_allowed * sizeof *p->allowed);
    step_plan_put(&c, p->moves, n_move_bytes);
    m->n_words = n_words;
    return status_ok();
}

static struct status malformed(const char *what, size_t n_words)
{
    return status_make(STATUS_BUG, "%s: a message of %zu words does not parse", what, n_words);
}

/* True when the sequences account for exactly the tokens, blocks, adjusts and allowed words that
 * came with them, and their numbers are in range. */
static bool plan_is_consistent(const struct step_plan *p)
{
    size_t n_tokens = 0, n_blocks = 0, n_adjusts = 0, n_allowed = 0;
    for (size_t i = 0; i < p->n_seqs; i++) {
        const struct plan_seq *s = &p->seqs[i];
        if (s->n_rows < 0 || s->n_blocks < 0 || s->n_adjusts < 0) return false;
        if (s->n_allowed_words < 0) return false;
        if (s->n_logprobs < 0 || s->n_logprobs > PLAN_TOPS_MAX) return false;
        if (s->n_prompt_logprobs < 0 || s->n_prompt_logprobs > PLAN_TOPS_MAX) return false;
        if ((s->want & PLAN_POOL) != 0 && (s->pool_from < 0 || s->n_pool < 1)) return false;
        if ((s->want & PLAN_POOL) != 0 && s->n_pool > s->n_rows - s->pool_from) return false;
        if (s->hidden_from < 0 || s->n_hidden < 0) return false;
        if (s->n_hidden > s->n_rows - s->hidden_from) return false;
        if (s->n_hidden > 0 && (s->want & PLAN_HIDDEN) == 0) return false;
        n_tokens += (size_t)s->n_rows;
        n_blocks += (size_t)s->n_blocks;
        n_adjusts += (size_t)s->n_adjusts;
        n_allowed += (size_t)s->n_allowed_words;
    }
    for (int32_t r = 0; r < p->n_replicas; r++) {
        if (p->replica_begin[r] > p->replica_begin[r + 1] || p->replica_begin[r] < 0) return false;
    }
    return n_tokens == p->n_tokens && n_blocks == p->n_blocks && n_adjusts == p->n_adjusts &&
           n_allowed == p->n_allowed && (size_t)p->replica_begin[p->n_replicas] == p->n_seqs;
}

struct status step_plan_unpack(const int32_t *words, size_t n_words, struct step_plan *p)
{
    struct plan_header h;
    struct cursor c = {.at = (int32_t *)words, .left = n_words};
    get(&c, &h, sizeof h);
    if (c.short_read || h.n_replicas != (uint64_t)p->n_replicas || h.n_seqs > n_words ||
        h.n_tokens > n_words || h.n_blocks > n_words || h.n_adjusts > n_words ||
        h.n_allowed > n_words || h.n_moves > n_words || h.kind > PLAN_MOVE_EXPERTS ||
        h.predicts > 1) {
        return malformed("step plan", n_words);
    }
    step_plan_clear(p, (enum plan_kind)h.kind, h.step);
    p->predicts = h.predicts == 1;
    const struct plan_counts n = {h.n_seqs,    h.n_tokens,  h.n_blocks,
                                  h.n_adjusts, h.n_allowed, h.n_moves};
    TRY(reserve_plan(p, &n));
    p->n_seqs = h.n_seqs;
    p->n_tokens = h.n_tokens;
    p->n_blocks = h.n_blocks;
    p->n_adjusts = h.n_adjusts;
    p->n_allowed = h.n_allowed;
    p->n_moves = h.n_moves;
    get(&c, p->replica_begin, ((size_t)p->n_replicas + 1) * sizeof(int32_t));
    get(&c, p->seqs, p->n_seqs * sizeof *p->seqs);
    get(&c, p->tokens, p->n_tokens * sizeof *p->tokens);
    get(&c, p->blocks, p->n_blocks * sizeof *p->blocks);
    get(&c, p->adjusts, p->n_adjusts * sizeof *p->adjusts);
    get(&c, p->allowed, p->n_allowed * sizeof *p->allowed);
    get(&c, p->moves, p->n_moves * sizeof *p->moves);
    if (c.short_read || c.left != 0 || !plan_is_consistent(p))
        return malformed("step plan", n_words);
    return status_ok();
}

struct status step_result_pack(const struct step_result *r, struct plan_message *m)
{
    const struct result_header h = {
        r->step,     (uint64_t)r->replica, (uint64_t)r->vocab, (uint64_t)r->width, r->n_seqs,
        r->n_scores, r->n_logit_rows,      r->n_tops,          r->n_pools};
    const size_t n_seq_bytes = r->n_seqs * sizeof *r->seqs;
    const size_t n_logits = r->n_logit_rows * (size_t)r->vocab;
    const size_t n_pool_bytes = r->n_pools * (size_t)r->width * sizeof *r->pools;
    const size_t n_top_bytes = r->n_tops * sizeof *r->tops;
    const size_t n_words = step_plan_words_of(sizeof h) + step_plan_words_of(n_seq_bytes) +
                           r->n_scores + n_logits + step_plan_words_of(n_top_bytes) +
                           step_plan_words_of(n_pool_bytes);
    m->n_words = 0;
    TRY(plan_message_reserve(m, n_words));
    struct cursor c = {.at = m->words};
    step_plan_put(&c, &h, sizeof h);
    step_plan_put(&c, r->seqs, n_seq_bytes);
    step_plan_put(&c, r->scores, r->n_scores * sizeof *r->scores);
    step_plan_put(&c, r->logits, n_logits * sizeof *r->logits);
    step_plan_put(&c, r->tops, n_top_bytes);
    step_plan_put(&c, r->pools, n_pool_bytes);
    m->n_words = n_words;
    return status_ok();
}

struct status step_result_unpack(const int32_t *words, size_t n_words, struct step_result *r)
{
    struct result_header h;
    struct cursor c = {.at = (int32_t *)words, .left = n_words};
    get(&c, &h, sizeof h);
    if (c.short_read || h.n_seqs > n_words || h.n_scores > n_words || h.n_logit_rows > n_words ||
        h.n_tops > n_words || h.n_pools > n_words || h.vocab > INT32_MAX || h.width > INT32_MAX) {
        return malformed("step result", n_words);
    }
    step_result_clear(r, h.step, (int32_t)h.replica, (int32_t)h.vocab);
    r->width = (int32_t)h.width;
    const size_t n_logits = h.n_logit_rows * h.vocab, n_pooled = h.n_pools * h.width;
    if (n_logits > n_words || n_pooled > n_words) return malformed("step result", n_words);
    TRY(step_plan_reserve(&r->seqs, &r->seqs_capacity, 0, h.n_seqs, sizeof *r->seqs,
                          "step result"));
    TRY(step_plan_reserve(&r->scores, &r->scores_capacity, 0, h.n_scores, sizeof *r->scores,
                          "step result"));
    TRY(step_plan_reserve(&r->logits, &r->logits_capacity, 0, n_logits, sizeof *r->logits,
                          "step result"));
    TRY(step_plan_reserve(&r->tops, &r->tops_capacity, 0, h.n_tops, sizeof *r->tops,
                          "step result"));
    TRY(step_plan_reserve(&r->pools, &r->pools_capacity, 0, n_pooled, sizeof *r->pools,
                          "step result"));
    r->n_seqs = h.n_seqs;
    r->n_tops = h.n_tops;
    r->n_scores = h.n_scores;
    r->n_logit_rows = h.n_logit_rows;
    r->n_pools = h.n_pools;
    get(&c, r->seqs, r->n_seqs * sizeof *r->seqs);
    get(&c, r->scores, r->n_scores * sizeof *r->scores);
    get(&c, r->logits, n_logits * sizeof *r->logits);
    get(&c, r->tops, r->n_tops * sizeof *r->tops);
    get(&c, r->pools, n_pooled * sizeof *r->pools);
    if (c.short_read || c.left != 0) return malformed("step result", n_words);
    return status_ok();
}
