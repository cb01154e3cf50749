/* Fields that nobody reads: which of them may stand in a line, and with which values. */
#include "serve/request/request_parse.h"

#include <math.h>
#include <string.h>

/* Fields that would change the output and are not implemented, with the value that changes nothing
 * (NAN: there is none). */
static const struct {
    const char *key;
    double neutral;
} not_implemented[] = {
    {"no_repeat_ngram_size", 0},
    {"do_sample", 1},
    {"echo", 0},
    {"suffix", 0},
    {"min_new_tokens", 0},
    {"max_new_tokens", NAN},
    {"max_length", NAN},
    {"skip_special_tokens", 1},
    {"include_stop_str_in_output", 0},
    {"add_special_tokens", 1},
    {"truncate_prompt_tokens", NAN},
    {"typical_p", 1},
    {"epsilon_cutoff", 0},
    {"eta_cutoff", 0},
    {"xtc_probability", 0},
    {"dry_multiplier", 0},
    {"mirostat", 0},
    {"penalty_alpha", 0},
    {"logits_processors", 0},
    {"guided_grammar", 0},
    {"functions", 0},
    {"function_call", NAN},
    {"prompt_embeds", 0},
    {"chat_template", 0},
    {"continue_final_message", 0},
};

/* The same, in the body of a batch line alone: what is not a batch line may carry any other field,
 * as a note to its reader. */
static const struct {
    const char *key;
    double neutral;
} not_in_body[] = {
    {"stream", 0},
    {"tools", 0},
    {"audio", 0},
    {"prediction", 0},
    {"reasoning_effort", NAN},
    {"verbosity", NAN},
    {"web_search_options", NAN},
};

/* What a body may hold: fields that are read, and those that change no token. */
static const char *const known_in_body[] = {
    "add_generation_prompt",
    "allowed_token_ids",
    "bad_words",
    "beam",
    "beam_width",
    "best_of",
    "chat_template_kwargs",
    "documents",
    "early_stopping",
    "frequency_penalty",
    "guided_choice",
    "guided_json",
    "guided_json_object",
    "guided_regex",
    "ignore_eos",
    "length_penalty",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "metadata",
    "min_p",
    "min_tokens",
    "modalities",
    "model",
    "n",
    "num_beams",
    "parallel_tool_calls",
    "presence_penalty",
    "priority",
    "prompt",
    "prompt_cache_key",
    "prompt_logprobs",
    "prompt_token_ids",
    "repetition_penalty",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "stop_token_ids",
    "store",
    "stream_options",
    "structured_outputs",
    "temperature",
    "tool_choice",
    "top_k",
    "top_logprobs",
    "top_p",
    "use_beam_search",
    "user",
};

/* True when the field's value changes nothing. */
static bool is_neutral(const struct js_node *node, double neutral)
{
    double number;
    bool flag;
    size_t n;
    if (js_type(node) == JS_NULL) return true;
    if (js_number(node, &number)) return number == neutral;
    if (js_bool(node, &flag)) return flag == (neutral != 0) && !isnan(neutral);
    if (js_string(node, &n) != NULL) return n == 0;
    return js_count(node) == 0;
}

static struct status refuse(struct request *r, const struct js_node *fields, const char *key,
                            double neutral)
{
    if (is_neutral(js_get(fields, key), neutral)) return status_ok();
    return request_bad(r, "unsupported",
                       "%s: a value that changes the output is not supported by this version", key);
}

static bool is_string(const struct js_node *node, const char *text)
{
    const char *found = js_string(node, NULL);
    return found != NULL && strcmp(found, text) == 0;
}

/* Calls of tools are not taken out of a text, so a body may neither ask for them nor for what is
 * not text. */
static struct status check_choices(struct request *r, const struct js_node *fields)
{
    const struct js_node *tool = js_get(fields, "tool_choice");
    const struct js_node *kinds = js_get(fields, "modalities");
    if (js_type(tool) != JS_NULL && !is_string(tool, "none") && !is_string(tool, "auto")) {
        return request_bad(r, "unsupported",
                           "tool_choice: expected \"none\" or \"auto\", other values are not "
                           "supported by this version");
    }
    if (js_type(kinds) == JS_NULL) return status_ok();
    if (js_type(kinds) == JS_ARRAY && js_count(kinds) == 1 && is_string(js_at(kinds, 0), "text")) {
        return status_ok();
    }
    return request_bad(r, "unsupported", "modalities: expected [\"text\"] alone");
}

static bool is_known(const char *key)
{
    for (size_t i = 0; i < sizeof known_in_body / sizeof *known_in_body; i++)
        if (strcmp(key, known_in_body[i]) == 0) return true;
    for (size_t i = 0; i < sizeof not_in_body / sizeof *not_in_body; i++)
        if (strcmp(key, not_in_body[i].key) == 0) return true;
    for (size_t i = 0; i < sizeof not_implemented / sizeof *not_implemented; i++)
        if (strcmp(key, not_implemented[i].key) == 0) return true;
    return false;
}

static struct status check_body(struct request *r, const struct js_node *fields)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    for (size_t i = 0; i < sizeof not_in_body / sizeof *not_in_body; i++)
        TRY(refuse(r, fields, not_in_body[i].key, not_in_body[i].neutral));
    TRY(check_choices(r, fields));
    while (js_next(fields, &it, &key, &value)) {
        if (is_known(key)) continue;
        return request_bad(r, "invalid_request", "%.100s: this field is not known", key);
    }
    return status_ok();
}

struct status request_check_fields(struct request *r, const struct js_node *fields)
{
    for (size_t i = 0; i < sizeof not_implemented / sizeof *not_implemented; i++)
        TRY(refuse(r, fields, not_implemented[i].key, not_implemented[i].neutral));
    return r->format == REQUEST_PLAIN ? status_ok() : check_body(r, fields);
}
