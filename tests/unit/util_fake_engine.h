/* An engine of integers for tests of the scheduler and the lead: it executes plans as the ranks
 * would, with a paged cache, and checks every plan. What it samples is a hash of all that the cache
 * holds for the sequence, so that a stale, lost or foreign block changes the result. */
#ifndef SHOAL_TESTS_UTIL_FAKE_ENGINE_H
#define SHOAL_TESTS_UTIL_FAKE_ENGINE_H

#include "plan/step_plan.h"
#include "serve/request/request.h"

#include <stdint.h>

/* Tokens are bytes (util_serve.h has the tokenizer), and one that ends a text. */
enum { FAKE_VOCAB = 257, FAKE_END_ID = 256 };

/* The engine remembers each sequence between plans, under its id modulo FAKE_SEQS, to check block
 * tables. */
enum { FAKE_SEQS = 1 << 14, FAKE_TABLE = 32 };

struct fake_seq {
    int32_t replica, begin, end, n_blocks, blocks[FAKE_TABLE];
    uint64_t step; /* of its last plan, in which it had the positions [begin, end) */
};

struct fake_engine {
    int32_t n_replicas, n_blocks, step_tokens, max_batch;
    uint64_t *cache;       /* [n_replicas, n_blocks, 64] */
    struct fake_seq *seqs; /* [FAKE_SEQS] */
    int32_t *owner;        /* [n_replicas, n_blocks] id of the sequence of the last plan with it */
    uint64_t n_wrong;      /* broken promises of plans */
    const char *wrong;     /* the first of them */
    int32_t bad_token;     /* at position bad_position it makes a row bad; -1: none */
    int64_t bad_position;  /* 1 unless told */
    bool shares;           /* sequences may share full blocks, begin behind them, and exchange a
                              full block for one with the same content */
    uint64_t n_rows;       /* computed so far */
    bool logits;
};

void fake_engine_init(struct fake_engine *e, int32_t n_replicas, int32_t n_blocks);
void fake_engine_fini(struct fake_engine *e);

/* Executes one plan: results[r] for each replica (initialized by the caller). */
void fake_engine_run(struct fake_engine *e, const struct step_plan *plan,
                     struct step_result *results);

/* The tokens that a request must get: appends them behind the prompt, from tokens[n_prompt] on;
 * returns how many were appended. */
size_t fake_engine_expect(const struct request *r, int32_t max_model_len, int32_t *tokens);

/* A drafter (serve/schedule/scheduler.h) that proposes the tokens that the request will get, and
 * wrong ones from a position on that depends on the request and its tokens; also proposes ends that
 * do not come. */
int32_t fake_engine_draft(void *user, const struct request *r, int32_t n_most, int32_t *drafts);

/* The score of token i of tokens. */
float fake_engine_score(const int32_t *tokens, size_t i);

/* A small xorshift generator for test data. */
uint64_t fake_random(uint64_t *state);
static inline int64_t fake_between(uint64_t *state, int64_t low, int64_t high)
{
    return low + (int64_t)(fake_random(state) % (uint64_t)(high - low + 1));
}

#endif
