/* Handles defaults, memory, keys and errors of requests. request_parse.c reads lines;
 * request_answer.c takes tokens. */
#include "serve/request/request.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define FLAG_OWNER struct request_defaults
static const struct flag sampling_rows[] = {SAMPLING_FLAGS(FLAG_ROW)};
#undef FLAG_OWNER

void request_defaults_init(struct request_defaults *d)
{
    const struct flag_group group = FLAG_GROUP(sampling_rows, 0);
    const struct flag_table table = {.groups = &group, .n_groups = 1};
    *d = (struct request_defaults){.n = 0};
    flags_preset(&table, d);
}

static struct status check_penalties(const struct request_defaults *d)
{
    if (!(d->repetition_penalty >= 0x1p-20 && d->repetition_penalty <= 100)) {
        return status_make(STATUS_USAGE,
                           "--repetition-penalty: expected above 0 and up to 100, found %.10g",
                           d->repetition_penalty);
    }
    if (!(d->presence_penalty >= -2 && d->presence_penalty <= 2)) {
        return status_make(STATUS_USAGE, "--presence-penalty: expected -2 to 2, found %.10g",
                           d->presence_penalty);
    }
    if (!(d->frequency_penalty >= -2 && d->frequency_penalty <= 2)) {
        return status_make(STATUS_USAGE, "--frequency-penalty: expected -2 to 2, found %.10g",
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
        return status_make(STATUS_USAGE, "--temperature: expected 0 or more, found %.10g",
                           d->temperature);
    }
    if (!(d->top_p > 0 && d->top_p <= 1)) {
        return status_make(STATUS_USAGE, "--top-p: expected above 0 and up to 1, found %.10g",
                           d->top_p);
    }
    if (!(d->min_p >= 0 && d->min_p <= 1)) {
        return status_make(STATUS_USAGE, "--min-p: expected 0 to 1, found %.10g", d->min_p);
    }
    if (d->top_k < -1) {
        return status_make(STATUS_USAGE, "--top-k: expected -1 or 0 (off), or more, found %lld",
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
    if (d->stops.n > REQUEST_STOPS_MAX) {
        return status_make(STATUS_USAGE, "--stop: expected at most %d strings, found %zu",
                           REQUEST_STOPS_MAX, d->stops.n);
    }
    for (size_t i = 0; i < d->stops.n; i++) {
        const size_t n = strlen(d->stops.values[i]);
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

struct status request_create_bare(uint64_t line_number, struct request **out,
                                  struct request_ask **ask)
{
    struct request *r = NULL;
    *out = NULL;
    TRY(mem_alloc(&r, 1, sizeof *r, "request"));
    strbuf_init(&r->text);
    detokenizer_init(&r->detokenizer, true);
    r->line = line_number;
    struct status st = mem_alloc(ask, 1, sizeof **ask, "request");
    if (!status_failed(&st)) {
        char digits[24];
        (*ask)->n_choices = (*ask)->n_prompts = 1;
        (*ask)->n_logprobs = (*ask)->n_prompt_logprobs = -1;
        (*ask)->n_tops = (*ask)->n_prompt_tops = -1;
        r->ask = *ask;
        snprintf(digits, sizeof digits, "%llu", (unsigned long long)line_number);
        st = request_rename(r, digits);
    }
    if (status_failed(&st)) request_destroy(&r);
    *out = r;
    return st;
}

static void ask_destroy(const struct request_ask **ask, bool owns_lists)
{
    struct request_ask *a = (struct request_ask *)*ask;
    if (a == NULL) return;
    if (owns_lists) {
        mem_free(&a->model.bytes);
        mem_free(&a->tools.bytes);
        mem_free(&a->stop_ids);
        mem_free(&a->biases);
        mem_free(&a->words.kept);
        mem_free(&a->words.banned);
    }
    guide_release(&a->guide);
    mem_free(&a);
    *ask = NULL;
}

void request_destroy(struct request **request)
{
    struct request *r = *request;
    if (r == NULL) return;
    const int32_t n_prompts = r->ask != NULL ? r->ask->n_prompts : 0;
    for (size_t i = 0; i < r->choices.capacity; i++) request_destroy(&r->choices.at[i]);
    mem_free(&r->choices.at);
    ask_destroy(&r->ask, r->parent == NULL);
    mem_free(&r->custom_id.bytes);
    mem_free(&r->tokens);
    for (int32_t i = 0; r->prompts != NULL && i < n_prompts; i++)
        mem_free(&r->prompts[i].echo.bytes);
    mem_free(&r->prompts);
    mem_free(&r->pooled);
    detokenizer_fini(&r->detokenizer);
    stop_destroy(&r->stop);
    strbuf_fini(&r->text);
    mem_free(&r->allowed);
    mem_free(&r->logprobs.scores);
    mem_free(&r->logprobs.prompt_tops);
    mem_free(&r->hidden.runs);
    mem_free(&r->logprobs.sampled);
    mem_free(&r->logprobs.tops);
    mem_free(&r->error.message);
    mem_free(request);
}

struct status request_fail(struct request *r, const char *code, const char *message)
{
    if (r->error.message != NULL) return status_ok();
    r->error.code = code;
    return mem_strndup(&r->error.message, message, strlen(message));
}

struct status request_rename(struct request *r, const char *name)
{
    const size_t n = strlen(name);
    if (n > 0 && n == r->custom_id.n && memcmp(name, r->custom_id.bytes, n) == 0)
        return status_ok();
    mem_free(&r->custom_id.bytes);
    r->custom_id.n = 0;
    TRY(mem_strndup(&r->custom_id.bytes, name, n));
    r->custom_id.n = n;
    return status_ok();
}

void request_run_last(struct request *r)
{
    ((struct request_ask *)r->ask)->priority = INT32_MAX;
}

bool request_runs_last(const struct request *r)
{
    return r->ask->priority == INT32_MAX;
}

struct status request_take_logprob(struct request *r, float logprob, const struct plan_top *tops)
{
    const size_t n = r->n_tokens - r->n_prompt, n_tops = (size_t)r->ask->n_tops;
    if (n == r->logprobs.capacity) {
        const size_t grown = n + n / 2 + 64;
        TRY(mem_grow(&r->logprobs.sampled, n, grown, sizeof *r->logprobs.sampled,
                     "log-probabilities"));
        TRY(mem_grow(&r->logprobs.tops, n * n_tops, grown * n_tops + 1, sizeof *r->logprobs.tops,
                     "log-probabilities"));
        r->logprobs.capacity = grown;
    }
    r->logprobs.sampled[n] = logprob;
    if (n_tops > 0) memcpy(r->logprobs.tops + n * n_tops, tops, n_tops * sizeof *tops);
    return status_ok();
}

struct status request_take_hidden(struct request *r, const struct request_rows *rows)
{
    if (r->hidden.n_runs == r->hidden.capacity) {
        const size_t grown = r->hidden.capacity < 4 ? 4 : 2 * r->hidden.capacity;
        TRY(mem_grow(&r->hidden.runs, r->hidden.n_runs, grown, sizeof *r->hidden.runs,
                     "hidden rows"));
        r->hidden.capacity = grown;
    }
    r->hidden.runs[r->hidden.n_runs++] = *rows;
    return status_ok();
}

bool request_is_replayable(const struct request *r)
{
    return r->ask->n_choices == 1 && r->ask->beam.width == 0 && r->ask->n_tops < 0 &&
           r->ask->n_prompt_tops < 0 && r->ask->max_tokens > 0;
}

/* Returns the bytes that one token's log-probabilities take: n_row likely tokens as text and
 * numbers; the others of the n_kept only as numbers, but twice, because they are also saved. */
static size_t logprob_bytes(int32_t n_row, int32_t n_kept)
{
    const size_t text = n_row < 0 ? 0 : (1 + (size_t)n_row) * 64;
    return n_kept > n_row ? text + (size_t)(n_kept - n_row) * 2 * sizeof(struct plan_top) : text;
}

/* Returns the bytes of a list of prompts. Echoed texts count twice: the row has them too. */
static size_t prompts_bytes(const struct request *r)
{
    size_t n = 0;
    for (int32_t i = 0; r->prompts != NULL && i < r->ask->n_prompts; i++)
        n += sizeof *r->prompts + 2 * r->prompts[i].echo.n;
    return n;
}

static size_t words_bytes(const struct request_words *w)
{
    return w->n_kept_words * sizeof *w->kept + w->banned_capacity * sizeof *w->banned;
}

/* Returns the bytes of a request for vectors or scores: its tokens (twice, because each
 * answer copies its own), its prompts, its answers with their vectors, and the vectors as text. */
static size_t embed_cost_bytes(const struct request *r, const struct request_rules *rules)
{
    const size_t digit_bytes = 16, n = (size_t)r->ask->n_choices;
    const size_t vector_bytes = sizeof(int64_t) * (size_t)rules->embed->width; /* before it is
                                                                                  cut to
                                                                                  `dimensions` */
    return 2 * r->n_prompt * sizeof(int32_t) + prompts_bytes(r) +
           n * (sizeof *r + sizeof *r->ask + vector_bytes +
                digit_bytes * (size_t)r->ask->dimensions);
}

/* Returns the most tokens that an answer can have. */
static size_t most_sampled(const struct request *r, const struct request_rules *rules)
{
    const size_t n = (size_t)r->ask->max_tokens, n_context = (size_t)rules->max_model_len;
    if (rules->score) return 0;
    /* with several prompts, any of them may be short */
    const size_t n_left = r->ask->n_prompts > 1 ? n_context : n_context - r->n_prompt;
    return n < n_left ? n : n_left;
}

size_t request_cost_bytes(const struct request *r, const struct request_rules *rules)
{
    const size_t row_bytes_per_token = 12; /* an id, its comma, some text */
    size_t n = sizeof *r + sizeof *r->ask + r->custom_id.n + r->ask->model.n + r->ask->tools.n;
    if (r->error.code != NULL) return n + 512;
    if (r->ask->pool != POOL_NONE) return n + embed_cost_bytes(r, rules);
    n += r->n_prompt * sizeof(int32_t) + prompts_bytes(r);
    n += r->n_prompt * logprob_bytes(r->ask->n_prompt_logprobs, r->ask->n_prompt_tops);
    n += (r->ask->n_biases + (size_t)r->ask->n_stop_ids) * sizeof *r->ask->biases;
    if (r->ask->guide != NULL) n += guide_cost_bytes(r->ask->guide);
    const size_t n_words_bytes = words_bytes(&r->ask->words);
    if (r->ask->guide != NULL || n_words_bytes > 0)
        n += (size_t)rules->vocab_size / 8 + n_words_bytes;
    const size_t hidden_bytes = rules->saves_hidden ? 2 * sizeof *r->hidden.runs : 0;
    const size_t per_token = sizeof(int32_t) + row_bytes_per_token + hidden_bytes +
                             logprob_bytes(r->ask->n_logprobs, r->ask->n_tops);
    /* beam search has running hypotheses, ended ones, and probes */
    const size_t n_answers =
        r->ask->beam.width > 0 ? 4 * (size_t)r->ask->beam.width : (size_t)r->ask->n_choices;
    if (n_answers > 1)
        n += n_answers * (sizeof *r + sizeof *r->ask +
                          r->n_prompt / (size_t)r->ask->n_prompts * sizeof(int32_t));
    return n + n_answers * most_sampled(r, rules) * per_token;
}
