/* Opens, checks and loads a draft model. draft_propose.c runs it. */
#include "draft/draft_model.h"

#include "attention/kv_pool.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "checkpoint/file/ckpt.h"
#include "draft/draft_model_private.h"
#include "moe/capacity_flags.h"
#include "parallel/layout/layout.h"
#include "tensor/dims.h"
#include "text/tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>

/* The pool holds the contexts of at most DRAFT_CONTEXTS sequences, and takes at most
 * DRAFT_KV_BYTES, but always holds one context. */
enum { DRAFT_CONTEXTS = 16, DRAFT_KV_BYTES = 256 << 20 };

/* Returns the bytes of the lists of blocks and of tokens: a slot's lists grow to twice what it
 * needs. */
static uint64_t lists_bytes(uint64_t n_blocks)
{
    return n_blocks * sizeof(int32_t) * (1 + 2 * (1 + KV_BLOCK_TOKENS));
}

uint64_t draft_memory_bytes(const struct draft_memory *m)
{
    return m->weights_bytes + m->workspace_bytes + m->kv_bytes;
}

struct status draft_memory_of(const struct layout_model *m, const struct draft_limits *limits,
                              struct draft_memory *out)
{
    struct layout *l = NULL;
    struct layout_model alone = *m;
    alone.keeps_windows = true; /* so that a sequence has one block table */
    TRY(mem_alloc(&l, 1, sizeof *l, "draft model"));
    const struct status st = layout_build(&alone, 1, &(struct layout_flags){0}, l);
    if (!status_failed(&st)) {
        const struct layout_memory one = layout_memory_of(
            l, layout_place_of(l, 0), kv_layout(limits->kv_dtype), DRAFT_STEP_ROWS);
        const uint32_t context =
            limits->context < m->arch->context ? limits->context : m->arch->context;
        const uint32_t n = limits->max_batch > 0 && limits->max_batch < DRAFT_CONTEXTS
                               ? (uint32_t)limits->max_batch
                               : DRAFT_CONTEXTS;
        uint64_t n_blocks = (uint64_t)n * draft_blocks_for(context);
        if (n_blocks * one.kv_block_bytes > DRAFT_KV_BYTES)
            n_blocks = DRAFT_KV_BYTES / one.kv_block_bytes;
        if (n_blocks < draft_blocks_for(context)) n_blocks = draft_blocks_for(context);
        *out = (struct draft_memory){.weights_bytes = one.weights_bytes,
                                     .workspace_bytes = one.workspace_bytes + one.exchange_bytes +
                                                        lists_bytes(n_blocks),
                                     .kv_bytes = n_blocks * one.kv_block_bytes,
                                     .n_blocks = (uint32_t)n_blocks};
    }
    mem_free(&l);
    return st;
}

struct status draft_model_check(const struct arch *m)
{
    if (m->encoder)
        return status_make(STATUS_USAGE, "%s is an encoder, which gives no tokens",
                           m->family->title);
    if (!arch_has_states(m)) return status_ok();
    return status_make(
        STATUS_USAGE,
        "%s has recurrent layers or compressed entries, in whose states wrong drafts "
        "would stay",
        m->family->title);
}

static struct status read_draft_file(struct draft_model *d, const char *path,
                                     const struct draft_limits *limits)
{
    size_t n;
    TRY(ckpt_open(path, &d->ckpt));
    const char *config = ckpt_config_json(d->ckpt, &n);
    TRY(arch_parse(config, n, "config.json", &d->arch));
    TRY(draft_model_check(&d->arch));
    d->arch.n_predict = 0;
    struct layout_model m;
    TRY(weights_check(&d->arch, d->ckpt, &m));
    m.keeps_windows = true; /* as in draft_memory_of */
    TRY(layout_build(&m, 1, &(struct layout_flags){0}, &d->layout));
    d->context = limits->context < d->arch.context ? limits->context : d->arch.context;
    return draft_memory_of(&m, limits, &d->memory);
}

struct status draft_model_open(const char *path, const struct draft_limits *limits,
                               struct draft_model **out)
{
    struct draft_model *d = NULL;
    *out = NULL;
    TRY(mem_alloc(&d, 1, sizeof *d, "draft model"));
    step_result_init(&d->result);
    const struct status st = read_draft_file(d, path, limits);
    if (status_failed(&st)) draft_model_destroy(&d);
    *out = d;
    return st;
}

/* A token's bytes as a JSON string, or "no such token", for an error message. */
struct shown {
    char text[80];
};

static struct shown show(const char *bytes, size_t n)
{
    struct shown s = {"no such token"};
    struct strbuf json;
    if (n == 0) return s;
    strbuf_init(&json);
    strbuf_json_string(&json, bytes, n);
    const struct status st = strbuf_status(&json);
    if (!status_failed(&st)) snprintf(s.text, sizeof s.text, "%s", json.data);
    strbuf_fini(&json);
    return s;
}

/* Refuses the first token that the two tokenizers do not share. */
static struct status compare_vocabularies(const struct tokenizer *mine,
                                          const struct tokenizer *others)
{
    const int32_t n = tokenizer_vocab_size(mine), n_others = tokenizer_vocab_size(others);
    for (int32_t id = 0; id < n || id < n_others; id++) {
        size_t n_a, n_b;
        const char *a = tokenizer_token_bytes(mine, id, &n_a);
        const char *b = tokenizer_token_bytes(others, id, &n_b);
        if (n_a == n_b && (n_a == 0 || memcmp(a, b, n_a) == 0)) continue;
        return status_make(STATUS_USAGE, "token %d: expected %s, as in the model, found %s", id,
                           show(b, n_b).text, show(a, n_a).text);
    }
    return status_ok();
}

/* Compares tokenizers whose files differ: they may still have the same tokens. */
static struct status compare_tokenizers(const struct text_bytes *mine,
                                        const struct text_bytes *others)
{
    struct tokenizer *a = NULL, *b = NULL;
    struct status st = tokenizer_create(mine->bytes, mine->n, "tokenizer.json", &a);
    if (!status_failed(&st)) st = tokenizer_create(others->bytes, others->n, "tokenizer.json", &b);
    if (!status_failed(&st)) st = compare_vocabularies(a, b);
    tokenizer_destroy(&b);
    tokenizer_destroy(&a);
    return st;
}

struct status draft_model_check_tokens(struct draft_model *d, const struct ckpt *c, uint32_t vocab)
{
    struct text_bytes mine, others;
    mine.bytes = ckpt_tokenizer_json(d->ckpt, &mine.n);
    others.bytes = ckpt_tokenizer_json(c, &others.n);
    d->vocab = d->arch.vocab < vocab ? d->arch.vocab : vocab;
    if (mine.bytes != NULL && others.bytes != NULL) {
        if (mine.n == others.n && memcmp(mine.bytes, others.bytes, mine.n) == 0) return status_ok();
        return compare_tokenizers(&mine, &others);
    }
    if (d->arch.vocab == vocab) return status_ok();
    return status_make(STATUS_USAGE, "expected a vocabulary of %u ids, as in the model, found %u",
                       vocab, d->arch.vocab);
}

const struct ckpt *draft_model_ckpt(const struct draft_model *d)
{
    return d->ckpt;
}

const struct draft_memory *draft_model_memory(const struct draft_model *d)
{
    return &d->memory;
}

struct status draft_model_load(struct draft_model *d, const struct draft_host *host)
{
    struct loader_stats stats;
    TRY(comm_alone(host->comm, &d->comm));
    d->host = *host;
    const struct weights_source source = {.model = &d->arch,
                                          .layout = &d->layout,
                                          .place = layout_place_of(&d->layout, 0),
                                          .kern = host->kern,
                                          .ckpt = d->ckpt,
                                          .comm = d->comm,
                                          .cache = host->cache,
                                          .free_bytes = host->free_bytes,
                                          .fp8_as_int8 =
                                              host->flags->fp8_activations == ACTIVATIONS_INT8};
    return weights_load(&source, &d->weights, &stats);
}

/* Runs a few steps of one row, so that the scheduler knows what a step costs. */
static struct status measure_step(struct draft_model *d)
{
    enum { STEPS = 8 };
    const int32_t first = 0;
    int32_t drafts[STEPS];
    struct draft_ask ask = {.id = -1,
                            .tokens = &first,
                            .n_tokens = 1,
                            .draw = {.penalties = {.repetition = 1}},
                            .n_most = d->context < STEPS ? (int32_t)d->context : STEPS,
                            .drafts = drafts};
    for (int i = 0; i < 2; i++) { /* the first steps also map memory */
        d->step_ns = 0;
        TRY(draft_propose(d, &ask, 1));
    }
    draft_slots_empty(d);
    log_line(LOG_INFO, "draft model: a step takes %.2f ms", d->step_ns * 1e-6);
    return status_ok();
}

struct status draft_model_start(struct draft_model *d)
{
    static const struct capacity_flags dropless = {.policy = CAPACITY_DROPLESS};
    const struct engine_options options = {.stage = {.model = &d->arch,
                                                     .layout = &d->layout,
                                                     .weights = d->weights,
                                                     .kern = d->host.kern,
                                                     .comm = d->comm,
                                                     .max_rows = DRAFT_STEP_ROWS,
                                                     .n_kv_blocks = d->memory.n_blocks,
                                                     .flags = d->host.flags,
                                                     .capacity = &dropless}};
    TRY(engine_create(&options, &d->engine));
    TRY(step_plan_init(&d->plan, 1));
    TRY(draft_slots_create(d));
    return measure_step(d);
}

void draft_model_destroy(struct draft_model **draft_model)
{
    struct draft_model *d = *draft_model;
    if (d == NULL) return;
    draft_slots_destroy(d);
    step_result_fini(&d->result);
    step_plan_fini(&d->plan);
    engine_destroy(&d->engine);
    weights_destroy(&d->weights);
    if (d->comm != NULL) comm_stop(&d->comm);
    ckpt_close(&d->ckpt);
    mem_free(draft_model);
}
