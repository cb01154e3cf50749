/* A request's life but for parsing. */
#include "serve/request/request.h"

#include "base/mem.h"
#include "serve/request/beam.h"
#include "serve/request/request_guide.h"
#include "serve/request/request_parse.h"
#include "serve/request/request_words.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

void request_defaults_init(struct request_defaults *d)
{
    *d = (struct request_defaults){
        .max_tokens = 128, .temperature = 1.0, .top_p = 1.0, .repetition_penalty = 1.0, .n = 1};
}

static struct status check_penalties(const struct request_defaults *d)
{
    if (!(d->repetition_penalty >= 0x1p-20 && d->repetition_penalty <= 100)) {
        return status_make(STATUS_USAGE,
                           "--repetition-penalty: expected above 0 and up to 100, found %g",
                           d->repetition_penalty);
    }
    if (!(d->presence_penalty >= -2 && d->presence_penalty <= 2)) {
        return status_make(STATUS_USAGE, "--presence-penalty: expected -2 to 2, found %g",
                           d->presence_penalty);
    }
    if (!(d->frequency_penalty >= -2 && d->frequency_penalty <= 2)) {
        return status_make(STATUS_USAGE, "--frequency-penalty: expected -2 to 2, found %g",
                           d->frequency_penalty);
    }
    return status_ok();
}

struct status request_defaults_check(const struct request_defaults *d)
{
    if (d->max_tokens < 1) {
        return status_make(STATUS_USAGE, "--max-tokens: expected at least 1, found %lld",
                           (long long)d->max_tokens);
    }
    if (!isfinite(d->temperature) || d->temperature < 0) {
        return status_make(STATUS_USAGE, "--temperature: expected 0 or more, found %g",
                           d->temperature);
    }
    if (!(d->top_p > 0 && d->top_p <= 1)) {
        return status_make(STATUS_USAGE, "--top-p: expected above 0 and up to 1, found %g",
                           d->top_p);
    }
    if (!(d->min_p >= 0 && d->min_p <= 1)) {
        return status_make(STATUS_USAGE, "--min-p: expected 0 to 1, found %g", d->min_p);
    }
    if (d->top_k < -1) {
        return status_make(STATUS_USAGE, "--top-k: expected 0 (off) or more, found %lld",
                           (long long)d->top_k);
    }
    if (d->n < 1 || d->n > REQUEST_CHOICES_MAX) {
        return status_make(STATUS_USAGE, "--n: expected 1 to %d, found %lld", REQUEST_CHOICES_MAX,
                           (long long)d->n);
    }
    if (d->logprobs < 0 || d->logprobs > REQUEST_LOGPROBS_MAX) {
        return status_make(STATUS_USAGE, "--logprobs: expected 0 to %d, found %lld",
                           REQUEST_LOGPROBS_MAX, (long long)d->logprobs);
    }
    TRY(check_penalties(d));
    if (d->n_stops > REQUEST_STOPS_MAX) {
        return status_make(STATUS_USAGE, "--stop: expected at most %d strings, found %zu",
                           REQUEST_STOPS_MAX, d->n_stops);
    }
    for (size_t i = 0; i < d->n_stops; i++) {
        const size_t n = strlen(d->stops[i]);
        if (n == 0 || n > REQUEST_STOP_BYTES_MAX) {
            return status_make(STATUS_USAGE, "--stop: expected 1 to %d bytes, found %zu",
                               REQUEST_STOP_BYTES_MAX, n);
        }
    }
    return status_ok();
}

void request_key_of_seed(int64_t seed, uint32_t key[2])
{
    key[0] = (uint32_t)((uint64_t)seed & 0xFFFFFFFFu);
    key[1] = (uint32_t)((uint64_t)seed >> 32);
}

void request_key_of_id(uint64_t seed, const char *id, size_t n, uint32_t key[2])
{
    const uint64_t hash = XXH3_64bits_withSeed(id, n, seed);
    key[0] = (uint32_t)(hash & 0xFFFFFFFFu);
    key[1] = (uint32_t)(hash >> 32);
}

/* A request whose custom_id is its line number. */
static struct status create_bare(uint64_t line_number, struct request **out)
{
    *out = NULL;
    struct request *r = NULL;
    TRY(mem_alloc(&r, 1, sizeof *r, "request"));
    r->line = line_number;
    r->n_choices = 1;
    r->n_logprobs = r->n_prompt_logprobs = -1;
    strbuf_init(&r->text);
    detokenizer_init(&r->detokenizer, true);
    char digits[24];
    const int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)line_number);
    struct status st = mem_strndup(&r->custom_id.bytes, digits, (size_t)n);
    r->custom_id.n = (size_t)n;
    *out = r;
    if (status_failed(&st)) request_destroy(out);
    return st;
}

struct status request_create(const struct request_rules *rules, uint64_t line_number,
                             const char *text, size_t n, struct request **out)
{
    TRY(create_bare(line_number, out));
    struct status st = request_parse(*out, rules, text, n);
    if (st.code == STATUS_REQUEST) st = request_fail(*out, (*out)->error_code, st.text);
    if (status_failed(&st)) request_destroy(out);
    return st;
}

struct status request_create_failed(uint64_t line_number, const char *code, const char *message,
                                    struct request **out)
{
    TRY(create_bare(line_number, out));
    struct status st = request_fail(*out, code, message);
    if (status_failed(&st)) request_destroy(out);
    return st;
}

void request_destroy(struct request **request)
{
    struct request *r = *request;
    if (r == NULL) return;
    mem_free(&r->custom_id.bytes);
    mem_free(&r->model.bytes);
    stop_destroy(&r->stop);
    mem_free(&r->tokens);
    mem_free(&r->scores);
    mem_free(&r->prompt_tops);
    mem_free(&r->logprobs);
    mem_free(&r->tops);
    if (r->parent == NULL) mem_free(&r->stop_ids);
    if (r->parent == NULL) mem_free(&r->biases);
    if (r->parent == NULL) request_words_fini(&r->words);
    mem_free(&r->allowed);
    guide_release(&r->guide);
    for (size_t i = 0; i < r->choices_capacity; i++) request_destroy(&r->choices[i]);
    mem_free(&r->choices);
    beam_destroy(&r->search);
    strbuf_fini(&r->text);
    detokenizer_fini(&r->detokenizer);
    mem_free(&r->error_message);
    mem_free(request);
}

struct status request_fail(struct request *r, const char *code, const char *message)
{
    if (r->error_message != NULL) return status_ok();
    r->error_code = code;
    return mem_strndup(&r->error_message, message, strlen(message));
}

struct status request_rename(struct request *r, const char *name)
{
    const size_t n = strlen(name);
    if (n == r->custom_id.n && memcmp(name, r->custom_id.bytes, n) == 0) return status_ok();
    mem_free(&r->custom_id.bytes);
    r->custom_id.n = 0;
    TRY(mem_strndup(&r->custom_id.bytes, name, n));
    r->custom_id.n = n;
    return status_ok();
}

/* Adds what the detokenizer gave (`piece`) to the text, up to a stop string. */
static struct status add_text(struct request *r, const struct strbuf *piece, bool *stopped)
{
    *stopped = false;
    TRY(strbuf_status(piece));
    const bool may_stop = r->n_tokens > r->n_prompt + (size_t)r->min_tokens;
    if (r->stop != NULL && may_stop) {
        return stop_feed(r->stop, piece->data, piece->n, &r->text, stopped);
    }
    strbuf_add(&r->text, piece->data, piece->n);
    return strbuf_status(&r->text);
}

/* True when the text would end in a stop string if no more tokens came. */
static bool stops_ahead(struct request *r, const struct request_rules *rules)
{
    if (r->stop == NULL) return false;
    size_t n;
    const char *text = detokenizer_pending(&r->detokenizer, rules->tokenizer, &n);
    return n > 0 && stop_peek(r->stop, text, n);
}

/* Feeds one token, or with last set ends the text. */
static struct status feed_text(struct request *r, const struct request_rules *rules, int32_t token,
                               bool last, bool *stopped)
{
    *stopped = false;
    if (rules->tokenizer == NULL) return status_ok();
    struct strbuf piece;
    strbuf_init(&piece);
    struct status st = last ? detokenizer_flush(&r->detokenizer, rules->tokenizer, &piece)
                            : detokenizer_feed(&r->detokenizer, rules->tokenizer, token, &piece);
    if (!status_failed(&st) && piece.n > 0) st = add_text(r, &piece, stopped);
    if (!status_failed(&st) && !last && !*stopped && stops_ahead(r, rules)) {
        strbuf_clear(&piece);
        st = detokenizer_flush(&r->detokenizer, rules->tokenizer, &piece);
        if (!status_failed(&st)) st = add_text(r, &piece, stopped);
    }
    if (!status_failed(&st) && last && r->stop != NULL) st = stop_flush(r->stop, &r->text);
    strbuf_fini(&piece);
    return st;
}

static bool has_id(const int32_t *ids, size_t n, int32_t id)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

static bool is_end_id(const struct request *r, const struct request_rules *rules, int32_t token)
{
    return (!r->ignore_eos && has_id(rules->end_ids, rules->n_end_ids, token)) ||
           has_id(r->stop_ids, r->n_stop_ids, token);
}

struct status request_take_token(struct request *r, const struct request_rules *rules,
                                 int32_t token)
{
    if (r->n_tokens == r->tokens_capacity) {
        const size_t grown = r->tokens_capacity + r->tokens_capacity / 2 + 64;
        TRY(mem_grow(&r->tokens, r->n_tokens, grown, sizeof *r->tokens, "request tokens"));
        r->tokens_capacity = grown;
    }
    r->tokens[r->n_tokens++] = token;
    bool stopped = is_end_id(r, rules, token);
    const bool ended = stopped;
    bool is_done = false;
    if (!ended) TRY(feed_text(r, rules, token, false, &stopped));
    if (!ended) TRY(request_guide_take(r, token, &is_done));
    if (stopped || is_done || r->error_code != NULL) {
        r->finish = REQUEST_STOP;
    } else if (r->n_tokens - r->n_prompt >= (size_t)r->max_tokens ||
               r->n_tokens >= (size_t)rules->max_model_len) {
        r->finish = REQUEST_LENGTH;
    } else {
        TRY(request_words_check(r, rules, &is_done));
        if (is_done || r->error_code != NULL) r->finish = REQUEST_STOP;
    }
    if (r->finish == REQUEST_UNFINISHED || (stopped && !ended)) return status_ok();
    bool ignored;
    return feed_text(r, rules, -1, true, &ignored);
}

struct status request_take_logprob(struct request *r, float logprob, const struct plan_top *tops)
{
    const size_t n = r->n_tokens - r->n_prompt, n_tops = (size_t)r->n_logprobs;
    if (n == r->logprobs_capacity) {
        const size_t grown = n + n / 2 + 64;
        TRY(mem_grow(&r->logprobs, n, grown, sizeof *r->logprobs, "log-probabilities"));
        TRY(mem_grow(&r->tops, n * n_tops, grown * n_tops + 1, sizeof *r->tops,
                     "log-probabilities"));
        r->logprobs_capacity = grown;
    }
    r->logprobs[n] = logprob;
    if (n_tops > 0) memcpy(r->tops + n * n_tops, tops, n_tops * sizeof *tops);
    return status_ok();
}

bool request_is_replayable(const struct request *r)
{
    return r->n_choices == 1 && r->beam.width == 0 && r->n_logprobs < 0 && r->n_prompt_logprobs < 0;
}

/* Bytes of a token's log-probability and of those beside it, and of their decimals. */
static size_t logprob_bytes(int32_t n_tops)
{
    return n_tops < 0 ? 0 : (1 + (size_t)n_tops) * 64;
}

size_t request_cost_bytes(const struct request *r, const struct request_rules *rules)
{
    const size_t row_bytes_per_token = 12; /* an id, its comma, some text */
    size_t n = sizeof *r + r->custom_id.n + r->model.n;
    if (r->error_code != NULL) return n + 512;
    size_t n_grow = (size_t)r->max_tokens;
    if (n_grow > (size_t)rules->max_model_len - r->n_prompt) {
        n_grow = (size_t)rules->max_model_len - r->n_prompt;
    }
    if (rules->score) n_grow = 2 * r->n_prompt; /* scores, and their decimals */
    n += r->n_prompt * sizeof(int32_t);
    n += r->n_prompt * logprob_bytes(r->n_prompt_logprobs);
    n += (r->n_biases + (size_t)r->n_stop_ids) * sizeof *r->biases;
    if (r->guide != NULL) n += guide_cost_bytes(r->guide);
    const size_t n_words_bytes = request_words_bytes(r);
    if (r->guide != NULL || n_words_bytes > 0) n += (size_t)rules->vocab_size / 8 + n_words_bytes;
    const size_t per_token = sizeof(int32_t) + row_bytes_per_token + logprob_bytes(r->n_logprobs);
    /* hypotheses that run, those that ended, and probes */
    const size_t n_answers = r->beam.width > 0 ? 4 * (size_t)r->beam.width : (size_t)r->n_choices;
    if (n_answers > 1) n += n_answers * (sizeof *r + r->n_prompt * sizeof(int32_t));
    return n + n_answers * n_grow * per_token;
}
