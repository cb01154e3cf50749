/* A request's life but for parsing. */
#include "serve/request.h"

#include "base/mem.h"
#include "serve/request_parse.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

void request_defaults_init(struct request_defaults *d)
{
    *d = (struct request_defaults){.max_tokens = 128, .temperature = 1.0, .top_p = 1.0};
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
    strbuf_fini(&r->text);
    detokenizer_fini(&r->detokenizer);
    mem_free(&r->error_message);
    mem_free(&r->blocks);
    mem_free(&r->block_keys);
    mem_free(request);
}

struct status request_fail(struct request *r, const char *code, const char *message)
{
    if (r->error_message != NULL) return status_ok();
    r->error_code = code;
    return mem_strndup(&r->error_message, message, strlen(message));
}

/* Adds what the detokenizer gave (`piece`) to the text, up to a stop string. */
static struct status add_text(struct request *r, const struct strbuf *piece, bool *stopped)
{
    *stopped = false;
    TRY(strbuf_status(piece));
    if (r->stop != NULL) return stop_feed(r->stop, piece->data, piece->n, &r->text, stopped);
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

static bool is_end_id(const struct request_rules *rules, int32_t token)
{
    for (size_t i = 0; i < rules->n_end_ids; i++)
        if (rules->end_ids[i] == token) return true;
    return false;
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
    bool stopped = is_end_id(rules, token);
    const bool ended = stopped;
    if (!ended) TRY(feed_text(r, rules, token, false, &stopped));
    if (stopped) {
        r->finish = REQUEST_STOP;
    } else if (r->n_tokens - r->n_prompt >= (size_t)r->max_tokens ||
               r->n_tokens >= (size_t)rules->max_model_len) {
        r->finish = REQUEST_LENGTH;
    }
    if (r->finish == REQUEST_UNFINISHED || (stopped && !ended)) return status_ok();
    bool ignored;
    return feed_text(r, rules, -1, true, &ignored);
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
    return n + n_grow * (sizeof(int32_t) + row_bytes_per_token);
}
