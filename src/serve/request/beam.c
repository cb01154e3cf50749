/* Keeps each hypothesis as a list of tokens. Copying the lists at each step costs little compared
 * with the model. */
#include "serve/request/beam.h"

#include "base/mem.h"
#include "serve/request/request_choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct hypothesis {
    int32_t *tokens; /* [n] sampled tokens; owned */
    size_t n;
    double score; /* running: the sum of log-probabilities; ended: that sum over length^penalty */
};

struct beam_search {
    struct request *r;
    const struct request_rules *rules;
    size_t n_most;              /* the most sampled tokens that an answer may have */
    struct hypothesis *running; /* [n_running of width], the best first */
    struct hypothesis *ended;   /* [n_ended of width], the best first */
    struct hypothesis *next;    /* [width], scratch of a step */
    int32_t n_running, n_ended;
    struct candidate *candidates; /* [width, n_tops] */
};

/* Hypothesis `from`, extended by one token. */
struct candidate {
    double score;
    int32_t token, from;
};

int64_t beam_n_tops(const struct request *r, const struct request_rules *rules)
{
    const int64_t n =
        (int64_t)r->ask->beam.width + (int64_t)rules->n_end_ids + (int64_t)r->ask->n_stop_ids;
    return n < rules->vocab_size ? n : rules->vocab_size;
}

struct status beam_create(struct request *r, const struct request_rules *rules,
                          struct beam_search **out)
{
    *out = NULL;
    struct beam_search *b = NULL;
    const size_t width = (size_t)r->ask->beam.width, n_tops = (size_t)beam_n_tops(r, rules);
    TRY(mem_alloc(&b, 1, sizeof *b, "beam search"));
    b->r = r;
    b->rules = rules;
    b->n_most = (size_t)rules->max_model_len - r->n_prompt;
    if (b->n_most > (size_t)r->ask->max_tokens) b->n_most = (size_t)r->ask->max_tokens;
    struct status st;
    TRY_GOTO(st, mem_alloc(&b->running, width, sizeof *b->running, "beam search"), fail);
    TRY_GOTO(st, mem_alloc(&b->ended, width, sizeof *b->ended, "beam search"), fail);
    TRY_GOTO(st, mem_alloc(&b->next, width, sizeof *b->next, "beam search"), fail);
    TRY_GOTO(st, mem_alloc(&b->candidates, width * n_tops, sizeof *b->candidates, "beam search"),
             fail);
    b->n_running = 1;
    *out = b;
    return st;
fail:
    beam_destroy(&b);
    return st;
}

void beam_destroy(struct beam_search **beam)
{
    struct beam_search *b = *beam;
    if (b == NULL) return;
    for (int32_t i = 0; i < b->r->ask->beam.width; i++) {
        if (b->running != NULL) mem_free(&b->running[i].tokens);
        if (b->ended != NULL) mem_free(&b->ended[i].tokens);
        if (b->next != NULL) mem_free(&b->next[i].tokens);
    }
    mem_free(&b->running);
    mem_free(&b->ended);
    mem_free(&b->next);
    mem_free(&b->candidates);
    mem_free(beam);
}

int32_t beam_n_running(const struct beam_search *b)
{
    return b->n_running;
}

/* Returns the sampling values of a probe: greedy, one token, and as many of the most likely tokens
 * as a step needs. */
static struct request_ask probe_ask(const struct beam_search *b)
{
    struct request_ask ask = *b->r->ask;
    ask.n_choices = 1;
    ask.beam = (struct request_beam){.width = 0};
    ask.n_prompt_logprobs = ask.n_prompt_tops = -1;
    ask.temperature = 0;
    ask.max_tokens = 1;
    ask.min_tokens = 0;
    ask.n_logprobs = ask.n_tops = (int32_t)beam_n_tops(b->r, b->rules);
    ask.penalties = (struct plan_penalties){.repetition = 1};
    return ask;
}

struct status beam_make_probe(const struct beam_search *b, int32_t i, struct request **out)
{
    const struct hypothesis *h = &b->running[i];
    const struct request_ask ask = probe_ask(b);
    TRY(request_create_variant(b->r, (uint32_t)i, &ask, out));
    struct request *p = *out;
    const size_t n = p->n_prompt + h->n;
    const struct status st =
        mem_grow(&p->tokens, p->n_prompt, n + 1, sizeof *p->tokens, "request tokens");
    if (status_failed(&st)) {
        request_destroy(out);
        return st;
    }
    if (h->n > 0) memcpy(p->tokens + p->n_prompt, h->tokens, h->n * sizeof *h->tokens);
    p->tokens_capacity = n + 1;
    p->n_tokens = p->n_prompt = n;
    stop_destroy(&p->stop);
    return st;
}

size_t beam_n_steps(const struct beam_search *b)
{
    return b->n_running > 0 ? b->running[0].n : 0;
}

/* Precedes the tokens of a packed hypothesis. */
struct packed_hypothesis {
    double score;
    uint64_t n;
};

static void pack(const struct hypothesis *list, int32_t n, struct strbuf *out)
{
    const uint64_t count = (uint64_t)n;
    strbuf_add(out, (const char *)&count, sizeof count);
    for (int32_t i = 0; i < n; i++) {
        const struct packed_hypothesis head = {list[i].score, list[i].n};
        strbuf_add(out, (const char *)&head, sizeof head);
        strbuf_add(out, (const char *)list[i].tokens, list[i].n * sizeof *list[i].tokens);
    }
}

void beam_pack(const struct beam_search *b, struct strbuf *out)
{
    pack(b->running, b->n_running, out);
    pack(b->ended, b->n_ended, out);
}

/* Takes the next n bytes. False: fewer are left. */
static bool take_bytes(const char **at, const char *end, void *out, size_t n)
{
    if ((size_t)(end - *at) < n) return false;
    memcpy(out, *at, n);
    *at += n;
    return true;
}

static struct status unpack_one(const struct beam_search *b, const char **at, const char *end,
                                struct hypothesis *h, bool *taken)
{
    struct packed_hypothesis head;
    *taken = take_bytes(at, end, &head, sizeof head) && !isnan(head.score) && head.n > 0 &&
             head.n <= b->n_most && head.n <= (size_t)(end - *at) / sizeof *h->tokens;
    if (!*taken) return status_ok();
    TRY(mem_alloc(&h->tokens, head.n, sizeof *h->tokens, "beam search"));
    h->n = head.n;
    h->score = head.score;
    *taken = take_bytes(at, end, h->tokens, h->n * sizeof *h->tokens);
    for (size_t i = 0; i < h->n; i++)
        *taken = *taken && h->tokens[i] >= 0 && h->tokens[i] < b->rules->vocab_size;
    return status_ok();
}

static struct status unpack_beam(const struct beam_search *b, const char **at, const char *end,
                                 struct hypothesis *list, int32_t *n, bool *taken)
{
    uint64_t count = 0;
    *taken = take_bytes(at, end, &count, sizeof count) && count <= (uint64_t)b->r->ask->beam.width;
    *n = *taken ? (int32_t)count : 0;
    for (int32_t i = 0; i < *n && *taken; i++) TRY(unpack_one(b, at, end, &list[i], taken));
    return status_ok();
}

struct status beam_unpack(struct beam_search *b, const char *bytes, size_t n, bool *taken)
{
    const char *end = bytes + n;
    TRY(unpack_beam(b, &bytes, end, b->running, &b->n_running, taken));
    if (*taken) TRY(unpack_beam(b, &bytes, end, b->ended, &b->n_ended, taken));
    *taken = *taken && bytes == end && b->n_running > 0 && b->running[0].n < b->n_most;
    for (int32_t i = 1; i < b->n_running; i++)
        *taken = *taken && b->running[i].n == b->running[0].n;
    return status_ok();
}

static bool is_end(const struct beam_search *b, int32_t token)
{
    const struct request *r = b->r;
    for (size_t i = 0; i < r->ask->n_stop_ids; i++)
        if (r->ask->stop_ids[i] == token) return true;
    for (size_t i = 0; i < b->rules->n_end_ids && !r->ask->ignore_eos; i++)
        if (b->rules->end_ids[i] == token) return true;
    return false;
}

static int compare_candidates(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    if (a->token != b->token) return a->token < b->token ? -1 : 1;
    return a->from - b->from;
}

/* Lists the candidates for the next step, the best first; end tokens only once min_tokens are
 * sampled. */
static size_t list_candidates(struct beam_search *b, struct request *const *probes)
{
    const bool may_end = b->running[0].n >= (size_t)b->r->ask->min_tokens;
    size_t n = 0;
    for (int32_t i = 0; i < b->n_running; i++) {
        const struct request *p = probes[i];
        for (int32_t k = 0; k < p->ask->n_logprobs; k++) {
            const struct plan_top *t = &p->logprobs.tops[k];
            if (!may_end && is_end(b, t->id)) continue;
            b->candidates[n++] = (struct candidate){
                .score = b->running[i].score + (double)t->logprob, .token = t->id, .from = i};
        }
    }
    qsort(b->candidates, n, sizeof *b->candidates, compare_candidates);
    return n;
}

/* Returns length^penalty by products, square roots and a division, which IEEE 754 rounds the same
 * everywhere; exact for a penalty of 1. Uses the first 24 bits of the penalty's fraction. */
static double length_factor(size_t length, double penalty)
{
    const double size = fabs(penalty);
    double factor = 1, root = (double)length, rest = size - floor(size);
    for (int i = 0; i < (int)size; i++) factor *= (double)length;
    for (int bit = 0; bit < 24 && rest > 0; bit++) {
        root = sqrt(root);
        rest *= 2;
        if (rest < 1) continue;
        factor *= root;
        rest -= 1;
    }
    return penalty < 0 ? 1 / factor : factor;
}

static struct status beam_extend(const struct hypothesis *h, int32_t token, struct hypothesis *out)
{
    mem_free(&out->tokens);
    TRY(mem_alloc(&out->tokens, h->n + 1, sizeof *out->tokens, "beam search"));
    if (h->n > 0) memcpy(out->tokens, h->tokens, h->n * sizeof *h->tokens);
    out->tokens[h->n] = token;
    out->n = h->n + 1;
    return status_ok();
}

/* Keeps an ended hypothesis if it is among the best `width`; of two with equal scores the earlier
 * is better. */
static struct status beam_end(struct beam_search *b, const struct candidate *c)
{
    const struct hypothesis *from = &b->running[c->from];
    const double score = c->score / length_factor(from->n + 1, b->r->ask->beam.length_penalty);
    int32_t at = b->n_ended;
    while (at > 0 && b->ended[at - 1].score < score) at--;
    if (at == b->r->ask->beam.width) return status_ok();
    struct hypothesis made = {.score = score};
    TRY(beam_extend(from, c->token, &made));
    if (b->n_ended == b->r->ask->beam.width) mem_free(&b->ended[--b->n_ended].tokens);
    memmove(b->ended + at + 1, b->ended + at, (size_t)(b->n_ended - at) * sizeof *b->ended);
    b->ended[at] = made;
    b->n_ended++;
    return status_ok();
}

/* True when the search has ended: no hypothesis runs, or `width` have ended and the rule of
 * beam_early stops it. */
static bool is_over(const struct beam_search *b)
{
    const struct request_beam *beam = &b->r->ask->beam;
    if (b->n_running == 0) return true;
    if (b->n_ended < beam->width) return false;
    if (beam->early == BEAM_EARLY) return true;
    const bool to_the_end = beam->early == BEAM_NEVER && beam->length_penalty > 0;
    const size_t length = to_the_end ? b->n_most : b->running[0].n;
    const double best = b->running[0].score / length_factor(length, beam->length_penalty);
    return best <= b->ended[b->n_ended - 1].score;
}

struct status beam_advance(struct beam_search *b, struct request *const *probes)
{
    const size_t n = list_candidates(b, probes), width = (size_t)b->r->ask->beam.width;
    const bool is_last = b->running[0].n + 1 == b->n_most;
    int32_t n_next = 0;
    for (size_t i = 0; i < n && (i < width || n_next < (int32_t)width); i++) {
        const struct candidate *c = &b->candidates[i];
        if (is_last || is_end(b, c->token)) {
            if (i < width) TRY(beam_end(b, c));
        } else if (n_next < (int32_t)width) {
            TRY(beam_extend(&b->running[c->from], c->token, &b->next[n_next]));
            b->next[n_next++].score = c->score;
        }
    }
    struct hypothesis *was = b->running;
    b->running = b->next;
    b->next = was;
    b->n_running = n_next;
    if (is_over(b)) b->n_running = 0;
    return status_ok();
}

struct status beam_make_answer(const struct beam_search *b, int32_t i, struct request **out)
{
    TRY(request_create_choice(b->r, (uint32_t)i, out));
    struct request *a = *out;
    struct status st = status_ok();
    /* repeats the last answer if the vocabulary allows fewer answers than requested */
    const struct hypothesis *h = &b->ended[i < b->n_ended ? i : b->n_ended - 1];
    for (size_t k = 0; b->n_ended > 0 && k < h->n && a->finish == REQUEST_UNFINISHED; k++) {
        st = request_take_token(a, b->rules, h->tokens[k]);
        if (status_failed(&st)) break;
    }
    if (status_failed(&st)) request_destroy(out);
    return st;
}
