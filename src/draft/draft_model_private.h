/* The state of a draft model, shared by draft_model.c and draft_propose.c. */
#ifndef SHOAL_DRAFT_DRAFT_MODEL_PRIVATE_H
#define SHOAL_DRAFT_DRAFT_MODEL_PRIVATE_H

#include "arch/arch.h"
#include "draft/draft_model.h"
#include "engine/engine.h"
#include "parallel/layout/layout.h"
#include "plan/step_plan.h"
#include "weights/weights.h"

enum {
    DRAFT_STEP_ROWS = 256, /* rows of its largest step: it computes a prompt in such chunks */
    DRAFT_SLOTS = 64,      /* the most sequences whose KV rows it keeps */
};

/* The KV rows of one sequence. */
struct draft_slot {
    int32_t id;
    int32_t *tokens; /* [n_tokens] of blocks_capacity * B, owned: those whose rows are in the
                        blocks */
    size_t n_tokens;
    int32_t *blocks; /* [n_blocks] of blocks_capacity, owned memory */
    size_t n_blocks, blocks_capacity;
    uint64_t used; /* the number of the call that used it last; 0: never */
    size_t n_late; /* rows that this call may still compute of an ask that is late
                      (draft_ask.is_late); 0: none, or the ask is not late */
};

struct draft_model {
    struct ckpt *ckpt;
    struct arch arch;
    struct layout layout; /* of one rank */
    struct draft_memory memory;
    uint32_t context; /* positions that its KV rows may have */
    uint32_t vocab;   /* ids below this one are tokens of both models */
    struct draft_host host;
    struct comm *comm; /* this rank alone */
    struct weights *weights;
    struct engine *engine;
    struct step_plan plan;
    struct step_result result;
    struct draft_slot slots[DRAFT_SLOTS];
    int32_t *free_blocks; /* [n_free] of memory.n_blocks, owned */
    size_t n_free;
    struct draft_slot **of; /* [of_capacity] the slot of each ask; NULL: it gets no more drafts */
    size_t of_capacity;
    uint64_t n_calls, n_steps;
    double step_ns; /* recent time of a step of one row; 0: not measured */
};

static inline size_t draft_blocks_for(size_t n_tokens)
{
    return (n_tokens + PLAN_BLOCK_TOKENS - 1) / PLAN_BLOCK_TOKENS;
}

/* draft_propose.c; all Local. draft_slots_empty forgets all sequences; draft_slots_destroy accepts
 * a model that has none. Errors: STATUS_MEMORY. */
struct status draft_slots_create(struct draft_model *d);
void draft_slots_empty(struct draft_model *d);
void draft_slots_destroy(struct draft_model *d);

/* draft_propose.c; Local. In call d->n_calls, sets *out to the slot of the ask, with blocks for its
 * rows and those of its drafts; NULL: it gets no drafts. Errors: STATUS_MEMORY. */
struct status draft_slots_open(struct draft_model *d, struct draft_ask *ask,
                               struct draft_slot **out);

/* As struct draft_source says. Errors: STATUS_MEMORY, the engine's. */
struct status draft_propose(void *draft_model, struct draft_ask *asks, size_t n);
size_t draft_n_known(void *draft_model, const struct draft_ask *ask);

#endif
