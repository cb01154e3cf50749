/* Requests that have a copy of a line's prompt and share its lists. */
#include "serve/request/request_choice.h"

#include "base/mem.h"

#include <string.h>

static struct status copy_prompt(const struct request *r, struct request *c)
{
    const int32_t n_logprobs = c->ask->n_prompt_logprobs;
    TRY(mem_alloc(&c->tokens, r->n_prompt, sizeof *c->tokens, "request tokens"));
    memcpy(c->tokens, r->tokens, r->n_prompt * sizeof *c->tokens);
    c->tokens_capacity = c->n_tokens = c->n_prompt = r->n_prompt;
    if (n_logprobs < 0) return status_ok();
    TRY(mem_alloc(&c->scores, r->n_prompt, sizeof *c->scores, "request scores"));
    if (n_logprobs == 0) return status_ok();
    const size_t n_tops = r->n_prompt * (size_t)n_logprobs;
    return mem_alloc(&c->prompt_tops, n_tops, sizeof *c->prompt_tops, "request scores");
}

struct status request_create_variant(struct request *r, uint32_t choice,
                                     const struct request_ask *ask, struct request **out)
{
    struct request *c = NULL;
    struct request_ask *own = NULL;
    *out = NULL;
    TRY(mem_alloc(&c, 1, sizeof *c, "request"));
    *c = (struct request){
        .line = r->line,
        .index = r->index,
        .order = r->order,
        .line_digest = {r->line_digest[0], r->line_digest[1]},
        .parent = r,
        .choice = choice,
        .guide_state = r->guide_state,
    };
    strbuf_init(&c->text);
    detokenizer_init(&c->detokenizer, true);
    struct status st = mem_alloc(&own, 1, sizeof *own, "request");
    if (!status_failed(&st)) {
        *own = *ask;
        own->guide = guide_share(ask->guide);
        c->ask = own;
        st = copy_prompt(r, c);
    }
    if (!status_failed(&st) && r->stop != NULL) st = stop_copy(r->stop, &c->stop);
    if (status_failed(&st)) request_destroy(&c);
    *out = c;
    return st;
}

struct status request_create_choice(struct request *r, uint32_t choice, struct request **out)
{
    struct request_ask ask = *r->ask;
    ask.n_choices = 1;
    ask.beam = (struct request_beam){.width = 0};
    if (choice > 0) ask.n_prompt_logprobs = -1;
    return request_create_variant(r, choice, &ask, out);
}
