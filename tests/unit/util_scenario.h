/* Random runs of the scheduler with a fake engine, for its tests: layout, limits, pool and requests
 * follow from a seed. */
#ifndef SHOAL_TESTS_UTIL_SCENARIO_H
#define SHOAL_TESTS_UTIL_SCENARIO_H

#include "serve/schedule/scheduler.h"

#include "util_fake_engine.h"

enum { GROUPS_MAX = 4, REPLICAS_MAX = 3, REQUESTS_MAX = 40, CONTEXT_MAX = 2048 };

static const int32_t end_ids[] = {FAKE_END_ID};

/* One random run. */
struct scenario {
    struct request_rules rules;
    struct scheduler_options o;
    int32_t n_requests;
    bool late;         /* one request is added every three steps, not all at once */
    int32_t n_headers; /* prompts begin with one of this many headers (common beginnings); 0:
                          without headers */
    int32_t header_tokens, tail_tokens; /* 0: random lengths */
    int32_t max_tokens;                 /* 0: random */
    int32_t bad_token; /* the engine fails at this token at position 70 of a sequence; 0: never */
    int32_t cancels;   /* on average, a request is cancelled in one of this many steps; 0: never */
    uint64_t n_reads;  /* how many reads of blocks on disk each replica seems to have ended before
                          the run */
    uint64_t seed;
};

struct outcome {
    uint64_t n_finished, n_different, n_wrong, n_preemptions, n_recomputed, n_unordered, n_misheld,
        n_unvisited;
    uint64_t n_errors, n_cancelled, n_ended_cancelled, n_rows, n_steps, n_prompt_tokens,
        n_hit_tokens, n_drafts, n_right_drafts;
    uint64_t n_back, n_reads_failed;
    bool stuck, leaked;
    const char *wrong;
};

/* A random run; if `score`, of a score job. */
struct scenario scenario_random(uint64_t seed, bool score);

/* A random run in which prompts begin alike, with the cache on or off. */
struct scenario scenario_sharing(uint64_t seed, bool prefix_cache);

/* Request i of a scenario. */
struct request *scenario_request(const struct scenario *c, int32_t i);

/* Runs the scenario with n_groups plans in flight, which are executed in order. */
struct outcome scenario_run(struct scenario *c);

/* Whether every request that was not cancelled got the result that it gets alone, the order of
 * requests was kept, and no block was lost. If not, prints what was wrong. */
bool scenario_went_well(const struct scenario *c, const struct outcome *o);

#endif
