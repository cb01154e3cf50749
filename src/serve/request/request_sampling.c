/* Reads how a line's tokens are drawn, when its text ends, and how many answers it gets. The line's
 * values override those of the flags. */
#include "base/mem.h"
#include "serve/request/request_parse.h"

#include <stdlib.h>
#include <string.h>

/* A lower temperature counts as greedy: the most likely token would have nearly all the
 * probability, and 1 / temperature could overflow. */
#define TEMPERATURE_MIN 1e-5

static struct status read_draw(struct request_parser *p, const struct js_node *fields)
{
    struct request_defaults d = p->rules->defaults;
    int64_t seed = 0;
    TRY(request_read_int(p, fields, "top_k", -1, INT64_MAX, &d.top_k));
    TRY(request_read_real(p, fields, "temperature", "0 to 1e6", 0, 1e6, &d.temperature));
    TRY(request_read_real(p, fields, "top_p", "above 0 and up to 1", 0x1p-126, 1, &d.top_p));
    TRY(request_read_real(p, fields, "min_p", "0 to 1", 0, 1, &d.min_p));
    TRY(request_read_int(p, fields, "seed", INT64_MIN, INT64_MAX, &seed));
    if (js_type(js_get(fields, "seed")) == JS_NULL) {
        request_key_of_id(d.seed, p->r->custom_id.bytes, p->r->custom_id.n, p->ask->key);
    } else {
        request_key_of_seed(seed, p->ask->key);
        p->ask->is_seeded = true;
    }
    p->ask->top_k = d.top_k >= p->rules->vocab_size || d.top_k < 0 ? 0 : (int32_t)d.top_k;
    p->ask->temperature = d.temperature < TEMPERATURE_MIN ? 0 : (float)d.temperature;
    p->ask->top_p = (float)d.top_p;
    p->ask->min_p = (float)d.min_p;
    return status_ok();
}

static struct status read_penalties(struct request_parser *p, const struct js_node *fields)
{
    double repetition = p->rules->defaults.repetition_penalty;
    double presence = p->rules->defaults.presence_penalty;
    double frequency = p->rules->defaults.frequency_penalty;
    TRY(request_read_real(p, fields, "repetition_penalty", "above 0 and up to 100", 0x1p-20, 100,
                          &repetition));
    TRY(request_read_real(p, fields, "presence_penalty", "-2 to 2", -2, 2, &presence));
    TRY(request_read_real(p, fields, "frequency_penalty", "-2 to 2", -2, 2, &frequency));
    p->ask->penalties = (struct plan_penalties){.repetition = (float)repetition,
                                                .frequency = (float)frequency,
                                                .presence = (float)presence};
    return status_ok();
}

/* True when the row shows the prompt or its log-probabilities; max_tokens may then be 0. */
static bool wants_prompt(const struct request_parser *p, const struct js_node *fields)
{
    return p->ask->echo || js_type(js_get(fields, "prompt_logprobs")) != JS_NULL;
}

/* Reads the limits of the answer's length, and the priority. max_completion_tokens is OpenAI's
 * newer name for max_tokens. */
static struct status read_limits(struct request_parser *p, const struct js_node *fields)
{
    const int64_t fewest = wants_prompt(p, fields) ? 0 : 1;
    int64_t most = p->rules->defaults.max_tokens, newer = -1, least = 0, priority = 0;
    TRY(request_read_int(p, fields, "priority", INT32_MIN, INT32_MAX, &priority));
    TRY(request_read_int(p, fields, "max_tokens", fewest, INT64_MAX, &most));
    TRY(request_read_int(p, fields, "max_completion_tokens", fewest, INT64_MAX, &newer));
    if (newer >= 0 && js_type(js_get(fields, "max_tokens")) != JS_NULL && newer != most) {
        return request_bad(p, "invalid_request",
                           "max_completion_tokens: expected the same as max_tokens, %lld, found "
                           "%lld",
                           (long long)most, (long long)newer);
    }
    if (newer >= 0) most = newer;
    TRY(request_read_int(p, fields, "min_tokens", 0, most, &least));
    TRY(request_read_bool(p, fields, "ignore_eos", &p->ask->ignore_eos));
    p->ask->priority = (int32_t)priority;
    p->ask->max_tokens = most > INT32_MAX ? INT32_MAX : (int32_t)most;
    p->ask->min_tokens = least > INT32_MAX ? INT32_MAX : (int32_t)least;
    return status_ok();
}

static struct status check_stop(struct request_parser *p, const struct js_node *node,
                                const char **text, size_t *n)
{
    *text = js_string(node, n);
    if (*text == NULL) {
        return request_bad(p, "invalid_request",
                           "stop: expected a string or a list of strings, found %s",
                           request_type_name(node));
    }
    if (*n >= 1 && *n <= REQUEST_STOP_BYTES_MAX) return status_ok();
    return request_bad(p, "invalid_request",
                       "stop: expected strings of 1 to %d bytes, found %zu bytes",
                       REQUEST_STOP_BYTES_MAX, *n);
}

/* Reads the stop strings. A line's stop strings replace those of the flags; an empty list means
 * none. */
static struct status read_stops(struct request_parser *p, const struct js_node *fields)
{
    const char *texts[REQUEST_STOPS_MAX];
    size_t sizes[REQUEST_STOPS_MAX];
    const struct js_node *node = js_get(fields, "stop");
    size_t n = 1;
    if (js_type(node) == JS_NULL) {
        n = p->rules->defaults.stops.n;
        for (size_t i = 0; i < n; i++) {
            texts[i] = p->rules->defaults.stops.values[i];
            sizes[i] = strlen(texts[i]);
        }
    } else if (js_type(node) != JS_ARRAY) {
        TRY(check_stop(p, node, &texts[0], &sizes[0]));
    } else {
        n = js_count(node);
        if (n > REQUEST_STOPS_MAX) {
            return request_bad(p, "invalid_request", "stop: expected at most %d strings, found %zu",
                               REQUEST_STOPS_MAX, n);
        }
        for (size_t i = 0; i < n; i++) {
            TRY(check_stop(p, js_at(node, i), &texts[i], &sizes[i]));
        }
    }
    if (n == 0) return status_ok();
    if (p->rules->tokenizer == NULL) {
        return request_bad(p, "unsupported",
                           "stop: this model has no tokenizer, so it gives no text");
    }
    return stop_create(texts, sizes, n, &p->r->stop);
}

static struct status read_stop_ids(struct request_parser *p, const struct js_node *fields)
{
    const struct js_node *list = js_get(fields, "stop_token_ids");
    if (js_type(list) == JS_NULL) return status_ok();
    const size_t n = js_count(list);
    if (js_type(list) != JS_ARRAY || n > REQUEST_STOP_IDS_MAX) {
        return request_bad(p, "invalid_request",
                           "stop_token_ids: expected a list of at most %d token ids, found %s",
                           REQUEST_STOP_IDS_MAX,
                           js_type(list) == JS_ARRAY ? "more" : request_type_name(list));
    }
    if (n == 0) return status_ok();
    TRY(mem_alloc(&p->ask->stop_ids, n, sizeof *p->ask->stop_ids, "request"));
    for (size_t i = 0; i < n; i++) {
        TRY(request_read_id(p, "stop_token_ids", js_at(list, i), &p->ask->stop_ids[i]));
        p->ask->n_stop_ids++;
    }
    return status_ok();
}

/* Reads a key of logit_bias: a token id in decimal, because JSON keys are strings. False: the text
 * is no such number. */
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

static struct status add_bias(struct request_parser *p, const char *key,
                              const struct js_node *value)
{
    int64_t id;
    double bias;
    if (!read_id(key, &id)) {
        return request_bad(p, "invalid_request",
                           "logit_bias: expected token ids as keys, found \"%.40s\"", key);
    }
    TRY(request_check_id(p, "logit_bias", id));
    if (!js_number(value, &bias) || !(bias >= -100 && bias <= 100)) {
        return request_bad(p, "invalid_request",
                           "logit_bias: expected a number from -100 to 100 for token %lld",
                           (long long)id);
    }
    p->ask->biases[p->ask->n_biases++] =
        (struct plan_adjust){.id = (int32_t)id, .bias = (float)bias};
    return status_ok();
}

static struct status read_biases(struct request_parser *p, const struct js_node *fields)
{
    const struct js_node *map = js_get(fields, "logit_bias");
    if (js_type(map) == JS_NULL) return status_ok();
    const size_t n = js_count(map);
    if (js_type(map) != JS_OBJECT || n > REQUEST_BIASES_MAX) {
        return request_bad(p, "invalid_request",
                           "logit_bias: expected an object of at most %d token ids, found %s",
                           REQUEST_BIASES_MAX,
                           js_type(map) == JS_OBJECT ? "more" : request_type_name(map));
    }
    if (n == 0) return status_ok();
    TRY(mem_alloc(&p->ask->biases, n, sizeof *p->ask->biases, "request"));
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(map, &it, &key, &value)) TRY(add_bias(p, key, value));
    qsort(p->ask->biases, p->ask->n_biases, sizeof *p->ask->biases, compare_biases);
    return status_ok();
}

/* Reads the fields of log-probabilities. `logprobs` is a number of likely tokens, or a boolean that
 * goes with top_logprobs. The number 0 means no log-probabilities; in /v1/completions it means
 * those of the sampled tokens alone. */
static struct status read_logprobs(struct request_parser *p, const struct js_node *fields)
{
    const struct js_node *node = js_get(fields, "logprobs");
    const bool is_chat = p->ask->format == REQUEST_OPENAI_CHAT;
    int64_t n = p->rules->defaults.logprobs > 0 ? p->rules->defaults.logprobs : -1;
    int64_t n_top = -1, n_prompt = -1;
    bool on = false;
    TRY(request_read_int(p, fields, "top_logprobs", 0, REQUEST_LOGPROBS_MAX, &n_top));
    TRY(request_read_int(p, fields, "prompt_logprobs", 0, REQUEST_LOGPROBS_MAX, &n_prompt));
    if (js_bool(node, &on) || is_chat) {
        if (is_chat) TRY(request_read_bool(p, fields, "logprobs", &on));
        if (js_type(node) != JS_NULL) n = on ? 0 : -1;
        if (on && n_top > 0) n = n_top;
    } else {
        TRY(request_read_int(p, fields, "logprobs", 0, REQUEST_LOGPROBS_MAX, &n));
        if (n == 0 && p->ask->format == REQUEST_PLAIN) n = -1;
    }
    if (n_top > 0 && !on) {
        return request_bad(p, "invalid_request", "top_logprobs: needs \"logprobs\": true");
    }
    if (p->ask->echo && n_prompt >= 0)
        return request_bad(p, "invalid_request",
                           "prompt_logprobs: expected logprobs alone, which with echo also has "
                           "those of the prompt");
    if (p->ask->echo) n_prompt = n;
    const int64_t most = p->rules->vocab_size;
    p->ask->n_logprobs = (int32_t)(n < most ? n : most);
    p->ask->n_prompt_logprobs = (int32_t)(n_prompt < most ? n_prompt : most);
    return status_ok();
}

/* ---- several answers, and beam search: shoal's own object "beam", beam_width, num_beams
 * (transformers), and use_beam_search with best_of or n (older vLLM) ---- */

static bool is_field_given(const struct js_node *fields, const char *key)
{
    return js_type(js_get(fields, key)) != JS_NULL;
}

static struct status read_early(struct request_parser *p, const struct js_node *fields)
{
    const struct js_node *node = js_get(fields, "early_stopping");
    const char *text = js_string(node, NULL);
    bool on = false;
    if (js_type(node) == JS_NULL) return status_ok();
    if (js_bool(node, &on)) {
        p->ask->beam.early = on ? BEAM_EARLY : BEAM_NOT_EARLY;
        return status_ok();
    }
    if (text != NULL && strcmp(text, "never") == 0) {
        p->ask->beam.early = BEAM_NEVER;
        return status_ok();
    }
    return request_bad(p, "invalid_request",
                       "early_stopping: expected true, false or \"never\", found %s",
                       text != NULL ? "another string" : request_type_name(node));
}

/* Checks the keys of "beam": {"width", "length_penalty", "early_stopping"}. */
static struct status check_object(struct request_parser *p, const struct js_node *object)
{
    static const char *const known[] = {"width", "length_penalty", "early_stopping"};
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    if (js_type(object) != JS_OBJECT) {
        return request_bad(p, "invalid_request", "beam: expected an object, found %s",
                           request_type_name(object));
    }
    while (js_next(object, &it, &key, &value)) {
        bool is_known = false;
        for (int i = 0; i < 3; i++) is_known = is_known || strcmp(key, known[i]) == 0;
        if (is_known) continue;
        return request_bad(p, "invalid_request", "beam: %.60s is not known here", key);
    }
    return status_ok();
}

/* Reads the width under any of its names; 0: no beam search. */
static struct status read_width(struct request_parser *p, const struct js_node *fields,
                                int64_t *width)
{
    static const char *const names[] = {"beam_width", "num_beams"};
    const struct js_node *object = js_get(fields, "beam");
    bool is_used = false;
    TRY(request_read_bool(p, fields, "use_beam_search", &is_used));
    if (js_type(object) != JS_NULL) {
        TRY(check_object(p, object));
        TRY(request_read_int(p, object, "width", 1, REQUEST_BEAMS_MAX, width));
        if (*width == 0) return request_bad(p, "invalid_request", "beam: expected a width");
    }
    for (int i = 0; i < 2; i++) {
        if (!is_field_given(fields, names[i])) continue;
        if (*width > 0) {
            return request_bad(p, "invalid_request",
                               "%s: beam search was asked for in another way too", names[i]);
        }
        TRY(request_read_int(p, fields, names[i], 1, REQUEST_BEAMS_MAX, width));
        if (*width == 1 && !is_used) *width = 0; /* one beam means no beam search */
    }
    if (!is_used || *width > 0) return status_ok();
    TRY(request_read_int(p, fields, "n", 1, REQUEST_BEAMS_MAX, width));
    TRY(request_read_int(p, fields, "best_of", 1, REQUEST_BEAMS_MAX, width));
    if (*width > 0) return status_ok();
    return request_bad(p, "invalid_request", "use_beam_search: expected a width, such as best_of");
}

/* Sets how many likely tokens are computed: as many as the row has, or as are saved if that is
 * more. */
static void settle_tops(struct request_parser *p)
{
    const int32_t vocab = p->rules->vocab_size, n = p->rules->n_saved_tops;
    const int32_t n_saved = n == 0 ? -1 : n < vocab ? n : vocab;
    p->ask->n_tops = p->ask->n_logprobs > n_saved ? p->ask->n_logprobs : n_saved;
    p->ask->n_prompt_tops =
        p->ask->n_prompt_logprobs > n_saved ? p->ask->n_prompt_logprobs : n_saved;
}

/* Refuses what beam search does not support. Log-probabilities and penalties are ignored if they
 * come from flags. */
static struct status check_beam(struct request_parser *p, const struct js_node *fields)
{
    static const char *const refused[] = {"logprobs",          "prompt_logprobs",
                                          "logit_bias",        "repetition_penalty",
                                          "frequency_penalty", "presence_penalty"};
    if (p->ask->echo)
        return request_bad(p, "unsupported", "echo: not supported together with beam search");
    if (p->rules->n_saved_tops > 0)
        return request_bad(p, "unsupported",
                           "beam search: not supported together with --save-logprobs");
    const bool is_other[] = {p->ask->n_logprobs >= 0,
                             p->ask->n_prompt_logprobs >= 0,
                             p->ask->n_biases > 0,
                             p->ask->penalties.repetition != 1,
                             p->ask->penalties.frequency != 0,
                             p->ask->penalties.presence != 0};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (!is_other[i] || !is_field_given(fields, refused[i])) continue;
        return request_bad(p, "unsupported", "%s: not supported together with beam search",
                           refused[i]);
    }
    if (p->ask->n_choices > p->ask->beam.width) {
        return request_bad(p, "invalid_request",
                           "n: expected at most %d, the beam's width, found %d", p->ask->beam.width,
                           p->ask->n_choices);
    }
    p->ask->n_logprobs = -1;
    if ((int64_t)p->ask->beam.width + (int64_t)(p->rules->n_end_ids + p->ask->n_stop_ids) <=
        PLAN_TOPS_MAX)
        return status_ok();
    return request_bad(p, "invalid_request",
                       "beam: expected a width that with all end tokens makes at most %d",
                       PLAN_TOPS_MAX);
}

static struct status read_beam(struct request_parser *p, const struct js_node *fields,
                               int64_t width)
{
    const struct js_node *object = js_get(fields, "beam");
    const struct js_node *options = js_type(object) == JS_OBJECT ? object : fields;
    p->ask->beam.width = (int32_t)width;
    p->ask->beam.length_penalty = 1;
    TRY(request_read_real(p, options, "length_penalty", "-5 to 5", -5, 5,
                          &p->ask->beam.length_penalty));
    TRY(read_early(p, options));
    return check_beam(p, fields);
}

/* In a line without beam search, refuses beam search's fields, unless their values change nothing.
 */
static struct status check_no_beam(struct request_parser *p, const struct js_node *fields)
{
    double penalty = 1;
    int64_t best_of = p->ask->n_choices;
    TRY(request_read_real(p, fields, "length_penalty", "-5 to 5", -5, 5, &penalty));
    TRY(request_read_int(p, fields, "best_of", 1, REQUEST_CHOICES_MAX, &best_of));
    TRY(read_early(p, fields));
    if (penalty != 1 || p->ask->beam.early != BEAM_NOT_EARLY) {
        return request_bad(p, "invalid_request", "%s: has an effect only with beam search",
                           penalty != 1 ? "length_penalty" : "early_stopping");
    }
    if (best_of == p->ask->n_choices) return status_ok();
    return request_bad(p, "unsupported", "best_of: expected the same as n, %d, without beam search",
                       p->ask->n_choices);
}

static struct status read_choices(struct request_parser *p, const struct js_node *fields)
{
    int64_t n = p->rules->defaults.n, width = 0;
    TRY(request_read_int(p, fields, "n", 1, REQUEST_CHOICES_MAX, &n));
    p->ask->n_choices = (int32_t)n;
    TRY(read_width(p, fields, &width));
    TRY(width > 0 ? read_beam(p, fields, width) : check_no_beam(p, fields));
    if (!p->rules->score) return status_ok();
    p->ask->n_choices = 1; /* a scored prompt has no answer */
    p->ask->echo = false;
    p->ask->n_logprobs = -1;
    p->ask->n_prompt_logprobs = 0;
    p->ask->beam.width = 0;
    return status_ok();
}

struct status request_read_sampling(struct request_parser *p, const struct js_node *fields)
{
    if (p->ask->format == REQUEST_OPENAI) TRY(request_read_bool(p, fields, "echo", &p->ask->echo));
    TRY(read_limits(p, fields));
    TRY(read_draw(p, fields));
    TRY(read_penalties(p, fields));
    TRY(read_biases(p, fields));
    TRY(read_stops(p, fields));
    TRY(read_stop_ids(p, fields));
    TRY(read_logprobs(p, fields));
    TRY(read_choices(p, fields));
    settle_tops(p);
    TRY(request_read_guide(p, fields));
    return request_read_words(p, fields);
}
