/* A line's sampling values, over those of the flags. */
#include "base/mem.h"
#include "serve/request/request_guide.h"
#include "serve/request/request_parse.h"
#include "serve/request/request_words.h"

#include <stdlib.h>
#include <string.h>

/* Below it the most likely token has all the probability, and 1 / temperature overflows: greedy. */
#define TEMPERATURE_MIN 1e-5

static struct status read_draw(struct request *r, const struct request_rules *rules,
                               const struct js_node *fields)
{
    struct request_defaults d = rules->defaults;
    int64_t seed = 0;
    TRY(request_read_int(r, fields, "top_k", -1, INT64_MAX, &d.top_k));
    TRY(request_read_real(r, fields, "temperature", "0 to 1e6", 0, 1e6, &d.temperature));
    TRY(request_read_real(r, fields, "top_p", "above 0 and up to 1", 0x1p-126, 1, &d.top_p));
    TRY(request_read_real(r, fields, "min_p", "0 to 1", 0, 1, &d.min_p));
    TRY(request_read_int(r, fields, "seed", INT64_MIN, INT64_MAX, &seed));
    if (js_type(js_get(fields, "seed")) == JS_NULL) {
        request_key_of_id(d.seed, r->custom_id.bytes, r->custom_id.n, r->key);
    } else {
        request_key_of_seed(seed, r->key);
        r->is_seeded = true;
    }
    r->top_k = d.top_k >= rules->vocab_size || d.top_k < 0 ? 0 : (int32_t)d.top_k;
    r->temperature = d.temperature < TEMPERATURE_MIN ? 0 : (float)d.temperature;
    r->top_p = (float)d.top_p;
    r->min_p = (float)d.min_p;
    return status_ok();
}

static struct status read_penalties(struct request *r, const struct request_rules *rules,
                                    const struct js_node *fields)
{
    double repetition = rules->defaults.repetition_penalty;
    double presence = rules->defaults.presence_penalty;
    double frequency = rules->defaults.frequency_penalty;
    TRY(request_read_real(r, fields, "repetition_penalty", "above 0 and up to 100", 0x1p-20, 100,
                          &repetition));
    TRY(request_read_real(r, fields, "presence_penalty", "-2 to 2", -2, 2, &presence));
    TRY(request_read_real(r, fields, "frequency_penalty", "-2 to 2", -2, 2, &frequency));
    r->penalties = (struct plan_penalties){.repetition = (float)repetition,
                                           .frequency = (float)frequency,
                                           .presence = (float)presence};
    return status_ok();
}

/* How long the answer gets. max_completion_tokens is max_tokens by its newer name. */
static struct status read_limits(struct request *r, const struct request_rules *rules,
                                 const struct js_node *fields)
{
    int64_t most = rules->defaults.max_tokens, newer = 0, least = 0, priority = 0;
    TRY(request_read_int(r, fields, "priority", INT32_MIN, INT32_MAX, &priority));
    TRY(request_read_int(r, fields, "max_tokens", 1, INT64_MAX, &most));
    TRY(request_read_int(r, fields, "max_completion_tokens", 1, INT64_MAX, &newer));
    if (newer > 0 && js_type(js_get(fields, "max_tokens")) != JS_NULL && newer != most) {
        return request_bad(r, "invalid_request",
                           "max_completion_tokens: expected the same as max_tokens, %lld, found "
                           "%lld",
                           (long long)most, (long long)newer);
    }
    if (newer > 0) most = newer;
    TRY(request_read_int(r, fields, "min_tokens", 0, most, &least));
    TRY(request_read_bool(r, fields, "ignore_eos", &r->ignore_eos));
    r->priority = (int32_t)priority;
    r->max_tokens = most > INT32_MAX ? INT32_MAX : (int32_t)most;
    r->min_tokens = least > INT32_MAX ? INT32_MAX : (int32_t)least;
    return status_ok();
}

static struct status check_stop(struct request *r, const struct js_node *node, const char **text,
                                size_t *n)
{
    *text = js_string(node, n);
    if (*text == NULL) {
        return request_bad(r, "invalid_request",
                           "stop: expected a string or a list of strings, found %s",
                           request_type_name(node));
    }
    if (*n >= 1 && *n <= REQUEST_STOP_BYTES_MAX) return status_ok();
    return request_bad(r, "invalid_request",
                       "stop: expected strings of 1 to %d bytes, found %zu bytes",
                       REQUEST_STOP_BYTES_MAX, *n);
}

/* A line's stops replace those of the flags; an empty list means none. */
static struct status read_stops(struct request *r, const struct request_rules *rules,
                                const struct js_node *fields)
{
    const char *texts[REQUEST_STOPS_MAX];
    size_t sizes[REQUEST_STOPS_MAX];
    const struct js_node *node = js_get(fields, "stop");
    size_t n = 1;
    if (js_type(node) == JS_NULL) {
        n = rules->defaults.n_stops;
        for (size_t i = 0; i < n; i++) {
            texts[i] = rules->defaults.stops[i];
            sizes[i] = strlen(texts[i]);
        }
    } else if (js_type(node) != JS_ARRAY) {
        TRY(check_stop(r, node, &texts[0], &sizes[0]));
    } else {
        n = js_count(node);
        if (n > REQUEST_STOPS_MAX) {
            return request_bad(r, "invalid_request", "stop: expected at most %d strings, found %zu",
                               REQUEST_STOPS_MAX, n);
        }
        for (size_t i = 0; i < n; i++) {
            TRY(check_stop(r, js_at(node, i), &texts[i], &sizes[i]));
        }
    }
    if (n == 0) return status_ok();
    if (rules->tokenizer == NULL) {
        return request_bad(r, "unsupported",
                           "stop: this model has no tokenizer, so it gives no text");
    }
    return stop_create(texts, sizes, n, &r->stop);
}

static struct status read_stop_ids(struct request *r, const struct request_rules *rules,
                                   const struct js_node *fields)
{
    const struct js_node *list = js_get(fields, "stop_token_ids");
    if (js_type(list) == JS_NULL) return status_ok();
    const size_t n = js_count(list);
    if (js_type(list) != JS_ARRAY || n > REQUEST_STOP_IDS_MAX) {
        return request_bad(r, "invalid_request",
                           "stop_token_ids: expected a list of at most %d token ids, found %s",
                           REQUEST_STOP_IDS_MAX,
                           js_type(list) == JS_ARRAY ? "more" : request_type_name(list));
    }
    if (n == 0) return status_ok();
    TRY(mem_alloc(&r->stop_ids, n, sizeof *r->stop_ids, "request"));
    for (size_t i = 0; i < n; i++) {
        TRY(request_read_id(r, rules, "stop_token_ids", js_at(list, i), &r->stop_ids[i]));
        r->n_stop_ids++;
    }
    return status_ok();
}

/* A key of logit_bias: a token id in decimals, as JSON has no other keys than strings. */
static bool read_id(const char *text, int64_t *id)
{
    size_t n = 0;
    *id = 0;
    for (; text[n] >= '0' && text[n] <= '9' && n < 10; n++) *id = 10 * *id + (text[n] - '0');
    return n > 0 && text[n] == '\0' && (n == 1 || text[0] != '0');
}

static int compare_biases(const void *a, const void *b)
{
    const int32_t x = ((const struct plan_adjust *)a)->id, y = ((const struct plan_adjust *)b)->id;
    return (x > y) - (x < y);
}

static struct status add_bias(struct request *r, const struct request_rules *rules, const char *key,
                              const struct js_node *value)
{
    int64_t id;
    double bias;
    if (!read_id(key, &id)) {
        return request_bad(r, "invalid_request",
                           "logit_bias: expected token ids as keys, found \"%.40s\"", key);
    }
    TRY(request_check_id(r, rules, "logit_bias", id));
    if (!js_number(value, &bias) || !(bias >= -100 && bias <= 100)) {
        return request_bad(r, "invalid_request",
                           "logit_bias: expected a number of -100 to 100 for token %lld",
                           (long long)id);
    }
    r->biases[r->n_biases++] = (struct plan_adjust){.id = (int32_t)id, .bias = (float)bias};
    return status_ok();
}

static struct status read_biases(struct request *r, const struct request_rules *rules,
                                 const struct js_node *fields)
{
    const struct js_node *map = js_get(fields, "logit_bias");
    if (js_type(map) == JS_NULL) return status_ok();
    const size_t n = js_count(map);
    if (js_type(map) != JS_OBJECT || n > REQUEST_BIASES_MAX) {
        return request_bad(r, "invalid_request",
                           "logit_bias: expected an object of at most %d token ids, found %s",
                           REQUEST_BIASES_MAX,
                           js_type(map) == JS_OBJECT ? "more" : request_type_name(map));
    }
    if (n == 0) return status_ok();
    TRY(mem_alloc(&r->biases, n, sizeof *r->biases, "request"));
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(map, &it, &key, &value)) TRY(add_bias(r, rules, key, value));
    qsort(r->biases, r->n_biases, sizeof *r->biases, compare_biases);
    return status_ok();
}

/* `logprobs` is a number of alternatives or a switch. A number of 0 means none at all, but in
 * /v1/completions the sampled tokens' alone; the switch goes with top_logprobs. */
static struct status read_logprobs(struct request *r, const struct request_rules *rules,
                                   const struct js_node *fields)
{
    const struct js_node *node = js_get(fields, "logprobs");
    const bool is_chat = r->format == REQUEST_OPENAI_CHAT;
    int64_t n = rules->defaults.logprobs > 0 ? rules->defaults.logprobs : -1;
    int64_t n_top = -1, n_prompt = -1;
    bool on = false;
    TRY(request_read_int(r, fields, "top_logprobs", 0, REQUEST_LOGPROBS_MAX, &n_top));
    TRY(request_read_int(r, fields, "prompt_logprobs", 0, REQUEST_LOGPROBS_MAX, &n_prompt));
    if (js_bool(node, &on) || is_chat) {
        if (is_chat) TRY(request_read_bool(r, fields, "logprobs", &on));
        if (js_type(node) != JS_NULL) n = on ? 0 : -1;
        if (on && n_top > 0) n = n_top;
    } else {
        TRY(request_read_int(r, fields, "logprobs", 0, REQUEST_LOGPROBS_MAX, &n));
        if (n == 0 && r->format == REQUEST_PLAIN) n = -1;
    }
    if (n_top > 0 && !on) {
        return request_bad(r, "invalid_request", "top_logprobs: expected logprobs true beside it");
    }
    const int64_t most = rules->vocab_size;
    r->n_logprobs = (int32_t)(n < most ? n : most);
    r->n_prompt_logprobs = (int32_t)(n_prompt < most ? n_prompt : most);
    return status_ok();
}

struct status request_read_sampling(struct request *r, const struct request_rules *rules,
                                    const struct js_node *fields)
{
    TRY(read_limits(r, rules, fields));
    TRY(read_draw(r, rules, fields));
    TRY(read_penalties(r, rules, fields));
    TRY(read_biases(r, rules, fields));
    TRY(read_stops(r, rules, fields));
    TRY(read_stop_ids(r, rules, fields));
    TRY(read_logprobs(r, rules, fields));
    TRY(request_read_choices(r, rules, fields));
    TRY(request_read_guide(r, rules, fields));
    return request_read_words(r, rules, fields);
}
