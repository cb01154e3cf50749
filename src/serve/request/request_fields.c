/* The fields that a line may have. A field is read, or has no effect, or is refused unless its
 * value changes nothing. The body of a batch line may have no other fields; a plain line may, and
 * is warned of names that are close to a field's, at most once for each name. */
#include "serve/request/request_parse.h"

#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A field that would change the output and is not implemented. */
struct refused_field {
    const char *key;
    double neutral;  /* the number or boolean that changes nothing; NAN: every number and boolean
                        changes something. Null and empty values never do */
    const char *use; /* the field to use instead; NULL: none */
};

static const struct refused_field not_implemented[] = {
    {"no_repeat_ngram_size", 0, NULL},
    {"do_sample", 1, "temperature 0"},
    {"echo", 0, "prompt_logprobs"},
    {"suffix", 0, NULL},
    {"min_new_tokens", 0, "min_tokens"},
    {"max_new_tokens", NAN, "max_tokens"},
    {"max_length", NAN, "max_tokens, which counts the answer alone"},
    {"skip_special_tokens", 1, "the row's token_ids, which keep them"},
    {"include_stop_str_in_output", 0, "the row's token_ids, which keep it"},
    {"add_special_tokens", 1, "prompt_token_ids"},
    {"truncate_prompt_tokens", NAN, NULL},
    {"typical_p", 1, "top_p or min_p"},
    {"epsilon_cutoff", 0, "min_p"},
    {"eta_cutoff", 0, "min_p"},
    {"xtc_probability", 0, NULL},
    {"dry_multiplier", 0, "repetition_penalty"},
    {"mirostat", 0, "top_p or min_p"},
    {"penalty_alpha", 0, NULL},
    {"logits_processors", 0, "logit_bias, allowed_token_ids or bad_words"},
    {"guided_grammar", 0, "guided_json or guided_regex"},
    {"functions", 0, NULL},
    {"function_call", NAN, NULL},
    {"prompt_embeds", 0, "prompt_token_ids"},
    {"chat_template", 0, "prompt, with the template applied"},
    {"continue_final_message", 0, "prompt, with the template applied"},
};

/* Fields that are refused only in the body of a batch line or a call (a call may have "stream"). In
 * a plain line they have no effect. */
static const struct refused_field not_in_body[] = {
    {"stream", 0, NULL},      {"audio", 0, NULL},
    {"prediction", 0, NULL},  {"reasoning_effort", NAN, "chat_template_kwargs"},
    {"verbosity", NAN, NULL}, {"web_search_options", NAN, NULL},
};

/* Fields that are supported, on plain lines and in bodies. */
static const char *const known[] = {
    "adapter",
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
    "min_p",
    "min_tokens",
    "n",
    "num_beams",
    "presence_penalty",
    "priority",
    "prompt",
    "prompt_logprobs",
    "prompt_token_ids",
    "repetition_penalty",
    "response_format",
    "seed",
    "stop",
    "stop_token_ids",
    "structured_outputs",
    "temperature",
    "tools",
    "top_k",
    "top_logprobs",
    "top_p",
    "use_beam_search",
};

/* Further fields that a body may have. They change no token, except "model" if it names an adapter.
 */
static const char *const inert_in_body[] = {
    "metadata",         "modalities",        "model",        "parallel_tool_calls",
    "prompt_cache_key", "safety_identifier", "service_tier", "store",
    "stream_options",   "tool_choice",       "user",
};

/* Other libraries' names of fields in `known`. */
static const struct {
    const char *key, *meant;
} foreign[] = {
    {"eos_token_id", "stop_token_ids"},
    {"input_ids", "prompt_token_ids"},
    {"inputs", "prompt"},
    {"json_schema", "guided_json"},
    {"max_gen_len", "max_tokens"},
    {"max_gen_toks", "max_tokens"},
    {"max_output_tokens", "max_tokens"},
    {"max_tokens_to_sample", "max_tokens"},
    {"n_predict", "max_tokens"},
    {"num_predict", "max_tokens"},
    {"num_return_sequences", "n"},
    {"num_samples", "n"},
    {"random_seed", "seed"},
    {"repeat_penalty", "repetition_penalty"},
    {"stop_sequences", "stop"},
    {"stop_strings", "stop"},
    {"stop_words", "stop"},
    {"stops", "stop"},
    {"temp", "temperature"},
};

#define COUNT_OF(list) (sizeof(list) / sizeof *(list))

static bool is_member(const char *const *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], key) == 0) return true;
    return false;
}

static bool is_refused(const struct refused_field *list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i].key, key) == 0) return true;
    return false;
}

/* ---- misspelled names ---- */

enum { NAME_MAX_BYTES = 32 }; /* longest name that is compared; every field is shorter */

/* Writes a name in lower case without '_', '-' and blanks, and returns its length; 0 if it is
 * longer than NAME_MAX_BYTES. */
static size_t request_fields_fold(const char *name, char out[NAME_MAX_BYTES])
{
    size_t n = 0;
    for (; *name != '\0'; name++) {
        if (*name == '_' || *name == '-' || *name == ' ') continue;
        if (n == NAME_MAX_BYTES) return 0;
        out[n++] = *name >= 'A' && *name <= 'Z' ? (char)(*name - 'A' + 'a') : *name;
    }
    return n;
}

static size_t request_fields_least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Returns the number of insertions, deletions, substitutions and swaps of neighbours that turn a
 * [n] into b [m]: the restricted Damerau-Levenshtein distance. Row i of the table holds the
 * distances of a's first i bytes to the prefixes of b. */
static size_t edits(const char *a, size_t n, const char *b, size_t m)
{
    size_t table[NAME_MAX_BYTES + 1][NAME_MAX_BYTES + 1];
    for (size_t i = 0; i <= n; i++) {
        for (size_t k = 0; k <= m; k++) {
            size_t best = i == 0 ? k : table[i - 1][k] + 1;
            if (k > 0) best = request_fields_least(best, table[i][k - 1] + 1);
            if (i > 0 && k > 0)
                best = request_fields_least(best, table[i - 1][k - 1] + (a[i - 1] != b[k - 1]));
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
                best = request_fields_least(best, table[i - 2][k - 2] + 1);
            table[i][k] = k == 0 ? i : best;
        }
    }
    return table[n][m];
}

/* True when `key` equals `name` except for case, '_', '-' and blanks, or when one edit (two for a
 * name of 10 letters or more, none below 5) makes them equal. Never true for a key of fewer than 3
 * letters. */
static bool is_close(const char *key, const char *name)
{
    char a[NAME_MAX_BYTES], b[NAME_MAX_BYTES];
    const size_t n = request_fields_fold(key, a), m = request_fields_fold(name, b);
    const size_t most = m >= 10 ? 2 : m >= 5 ? 1 : 0;
    if (n < 3 || n > m + most || m > n + most) return false;
    return edits(a, n, b, m) <= most;
}

const char *request_field_meant(const char *key)
{
    if (is_member(known, COUNT_OF(known), key) || strcmp(key, "custom_id") == 0 ||
        is_refused(not_in_body, COUNT_OF(not_in_body), key) ||
        is_refused(not_implemented, COUNT_OF(not_implemented), key)) {
        return NULL;
    }
    for (size_t i = 0; i < COUNT_OF(foreign); i++)
        if (is_close(key, foreign[i].key)) return foreign[i].meant;
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (is_close(key, known[i])) return known[i];
    return is_close(key, "custom_id") ? "custom_id" : NULL;
}

/* Logs a warning that a line has the field `key`; once for each name, and for at most
 * REQUEST_WARNINGS_MAX names. problem: why it is wrong. field: what to write instead. */
static void warn(const struct request_parser *p, const char *key, const char *problem,
                 const char *field)
{
    struct request_warnings *w = p->rules->warnings;
    if (w == NULL || w->n == REQUEST_WARNINGS_MAX) return;
    for (size_t i = 0; i < w->n; i++)
        if (strncmp(w->names[i], key, sizeof w->names[i] - 1) == 0) return;
    snprintf(w->names[w->n++], sizeof w->names[0], "%s", key);
    log_line(LOG_WARN, "line %llu: %.60s: %s %s (other lines with it get no warning)",
             (unsigned long long)p->r->line, key, problem, field);
}

/* True when the field's value changes nothing: it is `neutral`, null, or empty. */
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

/* Makes an error row that names the field, and the field to use instead, unless the value is
 * neutral. */
static struct status request_fields_refuse(struct request_parser *p, const struct js_node *fields,
                                           const struct refused_field *f)
{
    if (is_neutral(js_get(fields, f->key), f->neutral)) return status_ok();
    if (f->use != NULL) {
        warn(p, f->key, "not supported; use", f->use);
        return request_bad(p, "unsupported", "%s: not supported; use %s", f->key, f->use);
    }
    return request_bad(p, "unsupported", "%s: not supported by this version; leave it out", f->key);
}

static bool is_string(const struct js_node *node, const char *text)
{
    const char *found = js_string(node, NULL);
    return found != NULL && strcmp(found, text) == 0;
}

/* Refuses a body that forces tool calls or requests modalities other than text. */
static struct status check_choices(struct request_parser *p, const struct js_node *fields)
{
    const struct js_node *tool = js_get(fields, "tool_choice");
    const struct js_node *kinds = js_get(fields, "modalities");
    if (js_type(tool) != JS_NULL && !is_string(tool, "none") && !is_string(tool, "auto")) {
        return request_bad(p, "unsupported",
                           "tool_choice: expected \"none\" or \"auto\", other values are not "
                           "supported by this version");
    }
    if (js_type(kinds) == JS_NULL) return status_ok();
    if (js_type(kinds) == JS_ARRAY && js_count(kinds) == 1 && is_string(js_at(kinds, 0), "text")) {
        return status_ok();
    }
    return request_bad(p, "unsupported", "modalities: expected [\"text\"] alone");
}

static bool is_known_in_body(const char *key)
{
    return is_member(known, COUNT_OF(known), key) ||
           is_member(inert_in_body, COUNT_OF(inert_in_body), key) ||
           is_refused(not_in_body, COUNT_OF(not_in_body), key) ||
           is_refused(not_implemented, COUNT_OF(not_implemented), key);
}

static struct status check_body(struct request_parser *p, const struct js_node *fields)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    for (size_t i = 0; i < COUNT_OF(not_in_body); i++) {
        if (p->is_call && strcmp(not_in_body[i].key, "stream") == 0) continue;
        TRY(request_fields_refuse(p, fields, &not_in_body[i]));
    }
    TRY(check_choices(p, fields));
    while (js_next(fields, &it, &key, &value)) {
        if (is_known_in_body(key)) continue;
        const char *meant = request_field_meant(key);
        return request_bad(p, "invalid_request", "%.100s: this field is not known%s%s", key,
                           meant != NULL ? "; did you mean " : "", meant != NULL ? meant : "");
    }
    return status_ok();
}

/* Warns of notes (unknown fields of a plain line) whose names are close to those of fields. */
static void warn_of_notes(const struct request_parser *p, const struct js_node *fields)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(fields, &it, &key, &value)) {
        const char *meant = request_field_meant(key);
        if (meant != NULL) warn(p, key, "unknown, so without effect; the closest field is", meant);
    }
}

/* True when this kind of line takes a field that other kinds refuse. */
static bool takes_field(const struct request_parser *p, const char *key)
{
    if (strcmp(key, "echo") == 0) return p->ask->format == REQUEST_OPENAI;
    return p->rules->takes_pairs && strcmp(key, "add_special_tokens") == 0;
}

struct status request_check_fields(struct request_parser *p, const struct js_node *fields)
{
    for (size_t i = 0; i < COUNT_OF(not_implemented); i++)
        if (!takes_field(p, not_implemented[i].key))
            TRY(request_fields_refuse(p, fields, &not_implemented[i]));
    if (p->ask->format != REQUEST_PLAIN) return check_body(p, fields);
    if (p->rules->warnings != NULL) warn_of_notes(p, fields);
    return status_ok();
}
