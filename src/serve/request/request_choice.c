/* Makes requests that copy a line's prompt and borrow the lists of its ask (biases, stop ids). */
#include "serve/request/request_choice.h"

#include "base/mem.h"

#include <string.h>

/* Copies r's prompt (if r has several, the one to which c is an answer), and makes room for its
 * scores. */
static struct status copy_prompt(const struct request *r, struct request *c)
{
    const int32_t n_tops = c->ask->n_prompt_tops;
    const struct request_prompt only = {.end = r->n_prompt, .score_from = r->logprobs.score_from};
    const struct request_prompt *p = &only;
    size_t begin = 0;
    if (r->prompts != NULL) {
        p = request_prompt_of(r, c->choice);
        begin = p > r->prompts ? p[-1].end : 0;
    }
    const size_t n = p->end - begin;
    TRY(mem_alloc(&c->tokens, n, sizeof *c->tokens, "request tokens"));
    memcpy(c->tokens, r->tokens + begin, n * sizeof *c->tokens);
    c->tokens_capacity = c->n_tokens = c->n_prompt = n;
    c->second_from = p->second_from;
    if (n_tops < 0) return status_ok();
    c->logprobs.score_from = p->score_from;
    TRY(mem_alloc(&c->logprobs.scores, n, sizeof *c->logprobs.scores, "request scores"));
    if (n_tops == 0) return status_ok();
    return mem_alloc(&c->logprobs.prompt_tops, n * (size_t)n_tops, sizeof *c->logprobs.prompt_tops,
                     "request scores");
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
    if (choice % (uint32_t)request_n_each(r) > 0) ask.n_prompt_logprobs = ask.n_prompt_tops = -1;
    TRY(request_create_variant(r, choice, &ask, out));
    (*out)->arrived_ns = r->arrived_ns;
    return status_ok();
}

struct request_span request_hidden_span(const struct request *r, const struct request_rules *rules)
{
    const bool is_first = r->parent == NULL || r->choice % (uint32_t)request_n_each(r->parent) == 0;
    struct request_span span = {0, SIZE_MAX};
    if (!rules->saves_hidden) return (struct request_span){0, 0};
    if (!is_first || rules->hidden_span == HIDDEN_ANSWERS) span.begin = r->n_prompt - 1;
    if (rules->hidden_span == HIDDEN_GIVEN) span.end = is_first ? r->n_prompt : span.begin;
    return span;
}
