/* An engine that computes with integers, for tests of the scheduler and the lead. It executes plans
 * as the ranks would, with a paged cache, and checks every plan. A sampled token is a hash of all
 * that the cache holds for the sequence, so a stale, lost or foreign block changes the result. */
#ifndef SHOAL_TESTS_UTIL_FAKE_ENGINE_H
#define SHOAL_TESTS_UTIL_FAKE_ENGINE_H

#include "plan/step_plan.h"
#include "serve/request/request.h"
#include "serve/schedule/schedule_flags.h"

#include <stdint.h>

/* Tokens 0 to 255 are bytes, as in the tokenizer of util_serve.h; one more token ends a text. */
enum { FAKE_VOCAB = 257, FAKE_END_ID = 256 };

/* To check block tables, the engine remembers each sequence from plan to plan, at its id modulo
 * FAKE_SEQS. */
enum { FAKE_SEQS = 1 << 14, FAKE_TABLE = 32 };

struct fake_seq {
    int32_t replica, begin, end, n_blocks, blocks[FAKE_TABLE];
    uint64_t step; /* the step of its last plan, which had the positions [begin, end) */
};

enum { FAKE_READS = 1 << 14 };

struct fake_read {
    int32_t block, slot;
    bool is_good;
};

struct fake_engine {
    int32_t n_replicas, n_blocks, step_tokens, max_batch;
    uint64_t *cache;       /* [n_replicas, n_blocks, 64] */
    struct fake_seq *seqs; /* [FAKE_SEQS]; an entry without is_known is undefined */
    bool *is_known;        /* [FAKE_SEQS] */
    int32_t *owner;        /* [n_replicas, n_blocks] the sequence whose plan last had the block */
    uint8_t *used;         /* [n_blocks] while a replica's plan runs: how each block is used */
    uint64_t n_wrong;      /* how many times a plan was wrong */
    const char *wrong;     /* what was wrong the first time */
    int32_t bad_token;     /* this token at position bad_position makes a row bad; -1: none */
    int64_t bad_position;  /* initially 1 */
    bool shares;   /* sequences may share full blocks, begin after shared blocks, and replace a full
                      block by another with the same content */
    bool predicts; /* the plan that is being run has `predicts`: results have guesses */
    /* blocks on disk: a read ends at some later step, and sometimes fails */
    int32_t n_tier_slots;
    uint64_t *disk;          /* [n_replicas, n_tier_slots, 64] */
    struct fake_read *reads; /* [n_replicas, FAKE_READS] a ring */
    uint64_t n_reads[3], n_reads_ended[3], chance;
    uint64_t n_out, n_failed;
    struct plan_tables tables; /* the block tables of a sequence, at least one of them full;
                                  initially one full table alone */
    uint64_t n_rows;           /* computed so far */
    bool logits;
};

void fake_engine_init(struct fake_engine *e, int32_t n_replicas, int32_t n_blocks);
void fake_engine_fini(struct fake_engine *e);

/* A disk of n_slots for each replica. */
void fake_engine_add_tier(struct fake_engine *e, int32_t n_slots);

/* The presets of the scheduler's flags, but steps of FAKE_STEP_TOKENS rows, and neither drafts nor
 * the prefix cache; tests turn these two on. */
enum { FAKE_STEP_TOKENS = 2048 };
struct schedule_flags fake_schedule_flags(void);

/* Executes one plan and writes results[r] for each replica r; the caller has initialized them. */
void fake_engine_run(struct fake_engine *e, const struct step_plan *plan,
                     struct step_result *results);

/* Writes the request's prompt to `tokens`, and after it the tokens that the request must get.
 * Returns the number of the latter. */
size_t fake_engine_expect(const struct request *r, int32_t max_model_len, int32_t *tokens);

/* A drafter (serve/schedule/scheduler.h). It proposes up to n_most of the tokens that the request
 * will get, in most calls with other tokens from some position on. The position depends on the
 * request and its tokens. Some of the other tokens are end tokens. */
int32_t fake_engine_draft(void *user, const struct request *r, int32_t n_most, int32_t *drafts);

/* Sets scores[i] to the score that token i gets after tokens [0, i). adapter: as in plan_seq. */
void fake_engine_scores(uint32_t adapter, const int32_t *tokens, size_t n, float *scores);

/* A small xorshift generator for test data. */
uint64_t fake_random(uint64_t *state);
static inline int64_t fake_between(uint64_t *state, int64_t low, int64_t high)
{
    return low + (int64_t)(fake_random(state) % (uint64_t)(high - low + 1));
}

#endif
