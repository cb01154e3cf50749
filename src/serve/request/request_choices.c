/* n and beam search. A search has several names in requests: an object "beam" of ours, beam_width,
 * num_beams (transformers), and use_beam_search with best_of or n (vLLM of old). */
#include "serve/request/beam.h"
#include "serve/request/request_parse.h"

#include <string.h>

static bool is_given(const struct js_node *fields, const char *key)
{
    return js_type(js_get(fields, key)) != JS_NULL;
}

static struct status read_early(struct request *r, const struct js_node *fields)
{
    const struct js_node *node = js_get(fields, "early_stopping");
    const char *text = js_string(node, NULL);
    bool on = false;
    if (js_type(node) == JS_NULL) return status_ok();
    if (js_bool(node, &on)) {
        r->beam.early = on ? BEAM_EARLY : BEAM_NOT_EARLY;
        return status_ok();
    }
    if (text != NULL && strcmp(text, "never") == 0) {
        r->beam.early = BEAM_NEVER;
        return status_ok();
    }
    return request_bad(r, "invalid_request",
                       "early_stopping: expected true, false or \"never\", found %s",
                       text != NULL ? "another string" : request_type_name(node));
}

/* {"width", "length_penalty", "early_stopping"} */
static struct status check_object(struct request *r, const struct js_node *object)
{
    static const char *const known[] = {"width", "length_penalty", "early_stopping"};
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    if (js_type(object) != JS_OBJECT) {
        return request_bad(r, "invalid_request", "beam: expected an object, found %s",
                           request_type_name(object));
    }
    while (js_next(object, &it, &key, &value)) {
        bool is_known = false;
        for (int i = 0; i < 3; i++) is_known = is_known || strcmp(key, known[i]) == 0;
        if (is_known) continue;
        return request_bad(r, "invalid_request", "beam: %.60s is not known here", key);
    }
    return status_ok();
}

/* The width by whatever name; 0: none is asked for. */
static struct status read_width(struct request *r, const struct js_node *fields, int64_t *width)
{
    static const char *const names[] = {"beam_width", "num_beams"};
    const struct js_node *object = js_get(fields, "beam");
    bool is_used = false;
    TRY(request_read_bool(r, fields, "use_beam_search", &is_used));
    if (js_type(object) != JS_NULL) {
        TRY(check_object(r, object));
        TRY(request_read_int(r, object, "width", 1, REQUEST_BEAMS_MAX, width));
        if (*width == 0) return request_bad(r, "invalid_request", "beam: expected a width");
    }
    for (int i = 0; i < 2; i++) {
        if (!is_given(fields, names[i])) continue;
        if (*width > 0) {
            return request_bad(r, "invalid_request",
                               "%s: expected one way of asking for beam search", names[i]);
        }
        TRY(request_read_int(r, fields, names[i], 1, REQUEST_BEAMS_MAX, width));
        if (*width == 1 && !is_used) *width = 0; /* greedy by another name, or not even that */
    }
    if (!is_used || *width > 0) return status_ok();
    TRY(request_read_int(r, fields, "n", 1, REQUEST_BEAMS_MAX, width));
    TRY(request_read_int(r, fields, "best_of", 1, REQUEST_BEAMS_MAX, width));
    if (*width > 0) return status_ok();
    return request_bad(r, "invalid_request", "use_beam_search: expected a width, as best_of");
}

/* What a search does not do is refused where the line asks for it; defaults of flags are left out.
 */
static struct status check_beam(struct request *r, const struct request_rules *rules,
                                const struct js_node *fields)
{
    static const char *const refused[] = {"logprobs",          "prompt_logprobs",
                                          "logit_bias",        "repetition_penalty",
                                          "frequency_penalty", "presence_penalty"};
    const bool is_other[] = {
        r->n_logprobs >= 0,           r->n_prompt_logprobs >= 0,   r->n_biases > 0,
        r->penalties.repetition != 1, r->penalties.frequency != 0, r->penalties.presence != 0};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (!is_other[i] || !is_given(fields, refused[i])) continue;
        return request_bad(r, "unsupported", "%s: not supported together with beam search",
                           refused[i]);
    }
    if (r->n_choices > r->beam.width) {
        return request_bad(r, "invalid_request",
                           "n: expected at most %d, the beam's width, found %d", r->beam.width,
                           r->n_choices);
    }
    r->n_logprobs = -1;
    if ((int64_t)r->beam.width + (int64_t)(rules->n_end_ids + r->n_stop_ids) <= PLAN_TOPS_MAX)
        return status_ok();
    return request_bad(r, "invalid_request",
                       "beam: expected a width that with all end tokens makes at most %d",
                       PLAN_TOPS_MAX);
}

static struct status read_beam(struct request *r, const struct request_rules *rules,
                               const struct js_node *fields, int64_t width)
{
    const struct js_node *object = js_get(fields, "beam");
    const struct js_node *options = js_type(object) == JS_OBJECT ? object : fields;
    r->beam.width = (int32_t)width;
    r->beam.length_penalty = 1;
    TRY(request_read_real(r, options, "length_penalty", "-5 to 5", -5, 5, &r->beam.length_penalty));
    TRY(read_early(r, options));
    return check_beam(r, rules, fields);
}

/* Without a search there is nothing that these could change, unless they are what they always are.
 */
static struct status check_no_beam(struct request *r, const struct js_node *fields)
{
    double penalty = 1;
    int64_t best_of = r->n_choices;
    TRY(request_read_real(r, fields, "length_penalty", "-5 to 5", -5, 5, &penalty));
    TRY(request_read_int(r, fields, "best_of", 1, REQUEST_CHOICES_MAX, &best_of));
    TRY(read_early(r, fields));
    if (penalty != 1 || r->beam.early != BEAM_NOT_EARLY) {
        return request_bad(r, "invalid_request", "%s: expected beam search beside it",
                           penalty != 1 ? "length_penalty" : "early_stopping");
    }
    if (best_of == r->n_choices) return status_ok();
    return request_bad(r, "unsupported", "best_of: expected the same as n, %d, without beam search",
                       r->n_choices);
}

struct status request_read_choices(struct request *r, const struct request_rules *rules,
                                   const struct js_node *fields)
{
    int64_t n = rules->defaults.n, width = 0;
    TRY(request_read_int(r, fields, "n", 1, REQUEST_CHOICES_MAX, &n));
    r->n_choices = (int32_t)n;
    TRY(read_width(r, fields, &width));
    TRY(width > 0 ? read_beam(r, rules, fields, width) : check_no_beam(r, fields));
    if (!rules->score) return status_ok();
    r->n_choices = 1; /* a prompt that is scored has no answer */
    r->n_logprobs = r->n_prompt_logprobs = -1;
    r->beam.width = 0;
    return status_ok();
}
