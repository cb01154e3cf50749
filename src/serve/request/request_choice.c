/* Copies of a request, short of what only one of them may have. */
#include "serve/request/request_choice.h"

#include "base/mem.h"

#include <string.h>

static struct status copy_prompt(const struct request *r, struct request *c)
{
    TRY(mem_alloc(&c->tokens, r->n_prompt, sizeof *c->tokens, "request tokens"));
    memcpy(c->tokens, r->tokens, r->n_prompt * sizeof *c->tokens);
    c->tokens_capacity = c->n_tokens = c->n_prompt = r->n_prompt;
    if (c->n_prompt_logprobs < 0) return status_ok();
    TRY(mem_alloc(&c->scores, r->n_prompt, sizeof *c->scores, "request scores"));
    if (c->n_prompt_logprobs == 0) return status_ok();
    const size_t n_tops = r->n_prompt * (size_t)c->n_prompt_logprobs;
    return mem_alloc(&c->prompt_tops, n_tops, sizeof *c->prompt_tops, "request scores");
}

struct status request_create_choice(struct request *r, uint32_t choice, struct request **out)
{
    *out = NULL;
    struct request *c = NULL;
    TRY(mem_alloc(&c, 1, sizeof *c, "request"));
    *c = (struct request){
        .line = r->line,
        .index = r->index,
        .order = r->order,
        .priority = r->priority,
        .format = r->format,
        .line_digest = {r->line_digest[0], r->line_digest[1]},
        .max_tokens = r->max_tokens,
        .top_k = r->top_k,
        .temperature = r->temperature,
        .top_p = r->top_p,
        .min_p = r->min_p,
        .key = {r->key[0], r->key[1]},
        .is_seeded = r->is_seeded,
        .penalties = r->penalties,
        .min_tokens = r->min_tokens,
        .ignore_eos = r->ignore_eos,
        .stop_ids = r->stop_ids,
        .n_stop_ids = r->n_stop_ids,
        .biases = r->biases,
        .n_biases = r->n_biases,
        .words = r->words,
        .guide = guide_share(r->guide),
        .guide_state = r->guide_state,
        .n_logprobs = r->n_logprobs,
        .n_prompt_logprobs = choice == 0 ? r->n_prompt_logprobs : -1,
        .n_choices = 1,
        .choice = choice,
        .parent = r,
    };
    strbuf_init(&c->text);
    detokenizer_init(&c->detokenizer, true);
    struct status st = copy_prompt(r, c);
    if (!status_failed(&st) && r->stop != NULL) st = stop_copy(r->stop, &c->stop);
    if (status_failed(&st)) request_destroy(&c);
    *out = c;
    return st;
}
