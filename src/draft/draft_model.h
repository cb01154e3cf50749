/* A draft model (--draft): a second checkpoint with the same tokenizer, which one rank computes by
 * itself, with a KV pool of its own, to propose tokens that the model then checks (Leviathan et al.
 * 2023, "Fast Inference from Transformers via Speculative Decoding"). It keeps the KV rows of the
 * sequences that it was asked for last, and compares their tokens before it uses them, so nobody
 * has to tell it which drafts were right, or which sequences have ended. */
#ifndef SHOAL_DRAFT_DRAFT_MODEL_H
#define SHOAL_DRAFT_DRAFT_MODEL_H

#include "checkpoint/load/loader.h"
#include "kernels/kern.h"
#include "model/model_flags.h"
#include "parallel/comm/comm.h"
#include "serve/schedule/draft_source.h"

struct draft_model;

/* The bounds from which the size of a draft model's KV pool follows. */
struct draft_limits {
    uint32_t context; /* the longest context of a sequence of the model */
    enum dtype kv_dtype;
    int32_t max_batch; /* sequences that run at a time in a replica; 0: as many as fit */
};

struct draft_memory {
    uint64_t weights_bytes, workspace_bytes, kv_bytes;
    uint32_t n_blocks; /* of its KV pool */
};

/* Local. Returns the memory of a draft model; m as weights_check or layout_describe gave it.
 * Errors: layout_build's. */
struct status draft_memory_of(const struct layout_model *m, const struct draft_limits *limits,
                              struct draft_memory *out);
uint64_t draft_memory_bytes(const struct draft_memory *m);

/* Local. Called for the draft model and for the model that checks its tokens. Refuses an encoder,
 * which gives no tokens, and a model with recurrent layers or compressed entries, from which wrong
 * drafts could not be removed. Errors: STATUS_USAGE. */
struct status draft_model_check(const struct arch *m);

/* Local. Opens the checkpoint and reads no weights. Errors: STATUS_INPUT, draft_model_check's,
 * weights_check's, layout_build's, STATUS_MEMORY. */
struct status draft_model_open(const char *path, const struct draft_limits *limits,
                               struct draft_model **out);

/* Local. Refuses a draft model whose tokens are not those of the model in checkpoint c with `vocab`
 * ids, and names the first difference. If a tokenizer is missing, compares only the numbers of
 * ids. Errors: STATUS_USAGE, STATUS_INPUT, STATUS_MEMORY. */
struct status draft_model_check_tokens(struct draft_model *d, const struct ckpt *c, uint32_t vocab);

/* Local. Return its checkpoint and its memory; borrowed. */
const struct ckpt *draft_model_ckpt(const struct draft_model *d);
const struct draft_memory *draft_model_memory(const struct draft_model *d);

/* The parts of the job that the draft model uses. All are borrowed and outlive it. */
struct draft_host {
    const struct kern_table *kern;
    const struct comm *comm; /* the job's, after comm_split */
    const struct model_flags *flags;
    enum loader_cache cache;
    uint64_t free_bytes; /* as in weights_source */
    int32_t n_groups;    /* microbatch groups, for which the scheduler asks in turn */
};

/* Local. draft_model_load reads the weights; draft_model_start allocates the rest and measures a
 * step. Errors: weights_load's; engine_create's and draft_propose's. */
struct status draft_model_load(struct draft_model *d, const struct draft_host *host);
struct status draft_model_start(struct draft_model *d);

/* Local. Returns the functions through which the scheduler uses the draft model once
 * draft_model_start has run. */
struct draft_source draft_model_source(struct draft_model *d);

/* Local. Accepts NULL. */
void draft_model_destroy(struct draft_model **d);

#endif
