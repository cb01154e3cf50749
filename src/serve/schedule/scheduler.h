/* Continuous batching: decides which rows of which requests each replica computes in each step, and
 * which KV blocks hold them. The ranks execute its plans in order. Sampled tokens do not depend on
 * anything decided here. Knows no text, files or ranks. Called by the lead and by `shoal bench`.
 *
 *   scheduler_submit -> waiting -> running (in a replica and group) -> finished -> take_finished
 *                          ^          |  scheduler_plan: rows; scheduler_commit: results
 *                          +----------+  preempted: its blocks are needed by older requests */
#ifndef SHOAL_SERVE_SCHEDULE_SCHEDULER_H
#define SHOAL_SERVE_SCHEDULE_SCHEDULER_H

#include "base/status.h"
#include "plan/step_plan.h"
#include "serve/request/request.h"
#include "serve/schedule/draft_source.h"
#include "serve/schedule/drafting.h"
#include "serve/schedule/schedule_flags.h"
#include "serve/schedule/sequence.h"
#include "serve/schedule/stats.h"

enum {
    SCHEDULER_STEP_LEAST = 64, /* the smallest budget of rows, however long steps take;
                                  step_tokens, if that is smaller */
};

/* Receives rows [row0, row0 + n_rows) of the logits of the request of line `line`: rows [n_rows,
 * vocab] f32, borrowed. After a preemption the same rows may come again, with the same values. */
typedef struct status logits_sink_fn(void *user, uint64_t line, int32_t row0, const float *rows,
                                     int32_t n_rows, int32_t vocab);

/* Stores the hidden rows of a step, n_bytes, borrowed for the call. Sets *at to the place of the
 * first; the others follow it without gaps. */
typedef struct status rows_sink_fn(void *user, const char *rows, size_t n_bytes, uint64_t *at);

/* Writes up to n_most draft tokens that may follow r's, and returns how many. */
typedef int32_t drafter_fn(void *user, const struct request *r, int32_t n_most, int32_t *drafts);

/* KV blocks that other jobs have computed. The key of a block is a hash of all tokens up to the
 * block's end (attention/kv_store.h). */
struct scheduler_store {
    bool (*has)(void *user, const uint64_t *key); /* true when the store has the block of `key`
                                                     [2]; NULL: there is no store */
    void (*key)(const uint64_t *before, const int32_t *tokens, uint64_t *key);
    void *user;
    uint64_t root[2]; /* the key before the first block: a hash of everything on which K and V
                         depend, except tokens */
};

struct scheduler_options {
    const struct request_rules *rules; /* borrowed */
    int32_t n_replicas;
    int32_t n_groups;          /* microbatch groups in flight (pp) */
    int32_t n_blocks;          /* KV blocks of each replica's pool, for all block tables */
    struct plan_tables tables; /* block tables of a sequence; all zeros: one full table */
    int32_t n_state_slots; /* recurrent states that each replica holds, one per running sequence; 0:
                              the model has none. If there are any, the caller must turn
                              prefix_cache and drafts off */
    int32_t n_tier_slots;  /* slots of each replica's files for KV blocks of preempted requests; 0:
                              none. Needs the prefix cache */
    struct scheduler_store store; /* needs the prefix cache, and one full table */
    struct schedule_flags flags;  /* the caller has settled them: step_tokens is 1 or more;
                                     n_drafts is 0 to SEQUENCE_DRAFTS_MAX; prefix_cache is off
                                     and n_drafts 0 if a row depends on the batch */
    uint64_t eased_step_ns;       /* holds instead of flags.step_ns while nobody sees the time of a
                                     single step (scheduler_plan); 0: flags.step_ns always holds */
    struct drafting_cost draft_cost; /* all zeros: all drafts are checked, however improbable */
    bool predicts;   /* the model has a prediction layer, whose guesses are drafts too */
    bool no_repeats; /* all drafts are the prediction layer's guesses or the draft model's tokens;
                        none come from the request's own text */
    struct draft_source draft_model; /* not together with `predicts` */
    drafter_fn *drafter;             /* tests only; NULL: serve/schedule/drafting.h */
    void *drafter_user;
    logits_sink_fn *logits; /* NULL: no logits are wanted */
    void *logits_user;
    rows_sink_fn *store_rows; /* called if the rules want hidden rows */
    void *store_rows_user;
};

struct scheduler;

/* Counts that the progress display and reports show. */
struct scheduler_load {
    size_t n_waiting, n_running;
    int64_t n_free_blocks, n_blocks; /* of all replicas; cached blocks without a holder count as
                                        free */
};

/* Local. Makes a scheduler that adds counts and latencies to *stats (borrowed). Errors:
 * STATUS_USAGE (a size out of range; a pool that cannot hold one full context, because a request
 * might never advance), STATUS_MEMORY. */
struct status scheduler_create(const struct scheduler_options *options, struct serve_summary *stats,
                               struct scheduler **out);

/* Local. Destroys the scheduler and the requests that it still holds. */
void scheduler_destroy(struct scheduler **s);

/* Local. Takes ownership of r, which has passed the checks of its line, until
 * scheduler_take_finished gives it back. No two requests may have the same order number. Errors:
 * STATUS_MEMORY; r is then destroyed. */
struct status scheduler_submit(struct scheduler *s, struct request *r);

/* Local. True while the requests that wait are fewer than those that run plus 64: enough for the
 * next steps. */
bool scheduler_wants_more(const struct scheduler *s);

/* Local. True when no request waits, runs or is in flight. */
bool scheduler_is_idle(const struct scheduler *s);

/* Local. Returns the counts now. */
struct scheduler_load scheduler_load(const struct scheduler *s);

/* Local. Plans step `step` of `group` into *plan, which is cleared first. Rows are given out in
 * this order:
 *   1. the next token of each running sequence; when blocks run out, the youngest sequences of the
 *      replica are preempted: they wait again, and recompute the tokens whose blocks are lost;
 *   2. prefill chunks, within the budget of rows;
 *   3. new requests for which blocks are free;
 *   4. draft tokens, while the step has few rows.
 * After a preemption a replica keeps more blocks free when it admits requests; after steps without
 * preemptions it keeps fewer again. The budget shrinks while steps take longer than flags.step_ns,
 * and grows when full steps take less than half of that. If eased_step_ns is set, flags.step_ns
 * holds only while an answer is streamed, or while requests that run last (request_runs_last) are
 * here and another request is here too or came less than a minute ago. At other times whole answers
 * are wanted: longer steps make all of them together faster, but an answer gets only one token in
 * each, so one that is nearly complete ends later while long prompts are read. Errors: STATUS_BUG
 * when the group's last plan has not been committed, STATUS_MEMORY, and the draft model's. */
struct status scheduler_plan(struct scheduler *s, int32_t group, uint64_t step,
                             struct step_plan *plan);

/* Local. Takes one replica's result of the group's last plan. Errors: STATUS_BUG when it does not
 * answer that plan, STATUS_MEMORY, and the sinks'. */
struct status scheduler_commit(struct scheduler *s, int32_t group,
                               const struct step_result *result);

/* Local. Calls visit for each running request of `group` and each that waits after a preemption;
 * with group -1, for all that run or wait. Stops at visit's first error and returns it. */
struct status scheduler_visit(struct scheduler *s, int32_t group,
                              struct status (*visit)(void *user, struct request *r), void *user);

/* Local. Ends r and all answers to r that run or wait here, as error rows with this code (a
 * constant) and message. They finish at once or, if a step with them is in flight, with its result.
 * Errors: STATUS_MEMORY. */
struct status scheduler_cancel(struct scheduler *s, const struct request *r, const char *code,
                               const char *message);

/* Local. Returns a finished request (perhaps an error row), which the caller then owns, or NULL if
 * there is none. */
struct request *scheduler_take_finished(struct scheduler *s);

#endif
