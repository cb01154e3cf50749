/* Reads the tokenizer, end ids, chat template and sampling defaults. */
#include "job/job_text.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { TEMPLATE_BYTES_MAX = 1 << 20 };

static void add_end_id(struct job_text *t, int64_t id)
{
    if (id < 0 || id > INT32_MAX || t->n_end_ids == JOB_END_IDS_MAX) return;
    for (size_t i = 0; i < t->n_end_ids; i++) {
        if (t->end_ids[i] == (int32_t)id) return;
    }
    t->end_ids[t->n_end_ids++] = (int32_t)id;
}

/* Adds a single id or a list of ids. */
static struct status add_end_ids(struct job_text *t, const struct js_node *node)
{
    int64_t id;
    const bool is_list = js_type(node) == JS_ARRAY;
    if (js_type(node) == JS_NULL) return status_ok();
    for (size_t i = 0; i < (is_list ? js_count(node) : 1); i++) {
        if (!js_int(is_list ? js_at(node, i) : node, &id))
            return status_make(STATUS_INPUT, "eos_token_id: expected a token id or a list of them");
        add_end_id(t, id);
    }
    return status_ok();
}

/* True when the flag was not given. given NULL: there are no flags. */
static bool is_default(const struct flags_given *given, const char *flag)
{
    return given == NULL || !flags_is_given(given, flag);
}

/* Sets sampling defaults from generation_config.json (root), except those whose flag was given. */
static struct status take_values(struct request_defaults *d, const struct js_node *root,
                                 const struct flags_given *given)
{
    const struct {
        const char *key, *flag;
        double *value;
    } numbers[] = {{"temperature", "temperature", &d->temperature},
                   {"top_p", "top-p", &d->top_p},
                   {"min_p", "min-p", &d->min_p},
                   {"repetition_penalty", "repetition-penalty", &d->repetition_penalty}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        const struct js_node *node = js_get(root, numbers[i].key);
        if (!is_default(given, numbers[i].flag) || js_type(node) == JS_NULL) continue;
        if (!js_number(node, numbers[i].value))
            return status_make(STATUS_INPUT, "%s: expected a number; --%s overrides it",
                               numbers[i].key, numbers[i].flag);
    }
    const struct js_node *top_k = js_get(root, "top_k");
    if (!is_default(given, "top-k") || js_type(top_k) == JS_NULL) return status_ok();
    double real = 0;
    if (js_int(top_k, &d->top_k)) return status_ok();
    if (!js_number(top_k, &real) || real != floor(real) || fabs(real) > INT32_MAX)
        return status_make(STATUS_INPUT, "top_k: expected an integer; --top-k overrides it");
    d->top_k = (int64_t)real; /* some programs write 50.0 */
    return status_ok();
}

/* As take_values, but with STATUS_INPUT for values that the flags would refuse. */
static struct status take_good_values(struct request_defaults *d, const struct js_node *root,
                                      const struct flags_given *given)
{
    struct request_defaults alone;
    request_defaults_init(&alone);
    TRY(take_values(&alone, root, given));
    struct status st = request_defaults_check(&alone);
    if (status_failed(&st)) {
        st.code = STATUS_INPUT;
        return st;
    }
    return take_values(d, root, given);
}

static struct status read_generation_config(struct job_text *t, const struct ckpt *c,
                                            const struct flags_given *given)
{
    size_t n;
    const char *text = ckpt_generation_config_json(c, &n);
    if (text == NULL) return status_ok();
    struct js_doc *doc = NULL;
    TRY(js_parse(text, n, "generation_config.json", &doc));
    struct status st = add_end_ids(t, js_get(js_root(doc), "eos_token_id"));
    if (!status_failed(&st)) st = take_good_values(&t->defaults, js_root(doc), given);
    js_destroy(&doc);
    return status_wrap(st, "generation_config.json");
}

/* Returns the id of the token under `key` in tokenizer_config.json, a string or an object with
 * "content"; -1: there is none. */
static int32_t config_token(const struct job_text *t, const struct js_node *config, const char *key)
{
    size_t n;
    const struct js_node *token = js_get(config, key);
    if (js_type(token) == JS_OBJECT) token = js_get(token, "content");
    const char *content = js_string(token, &n);
    return content != NULL ? tokenizer_token_id(t->tokenizer, content, n) : -1;
}

/* Finds the token that stands before a scored text: bos_token, or else eos_token, of
 * tokenizer_config.json, or else of config.json. */
static struct status find_prefix(struct job_text *t, const struct ckpt *c,
                                 const struct js_node *config)
{
    static const char *const keys[] = {"bos_token_id", "eos_token_id"};
    size_t n;
    struct js_doc *doc = NULL;
    t->prefix_id = config_token(t, config, "bos_token");
    if (t->prefix_id < 0) t->prefix_id = config_token(t, config, "eos_token");
    if (t->prefix_id >= 0) return status_ok();
    const char *text = ckpt_config_json(c, &n);
    TRY(js_parse(text, n, "config.json", &doc));
    for (int i = 0; i < 2 && t->prefix_id < 0; i++) {
        const struct js_node *node = js_get(js_root(doc), keys[i]);
        int64_t id;
        if (js_type(node) == JS_ARRAY) node = js_at(node, 0);
        if (js_int(node, &id) && id >= 0 && id <= INT32_MAX) t->prefix_id = (int32_t)id;
    }
    js_destroy(&doc);
    return status_ok();
}

/* Sets templates' bos_token and eos_token from the ids in config.json; for checkpoints without
 * tokenizer_config.json (GGUF). */
static struct status name_tokens(struct job_text *t, const struct ckpt *c)
{
    static const char *const names[][2] = {{"bos_token", "bos_token_id"},
                                           {"eos_token", "eos_token_id"}};
    size_t n;
    const char *text = ckpt_config_json(c, &n);
    struct js_doc *doc = NULL;
    struct status st = js_parse(text, n, "config.json", &doc);
    for (size_t i = 0; i < 2 && !status_failed(&st); i++) {
        int64_t id;
        if (!js_int(js_get(js_root(doc), names[i][1]), &id) || id < 0 || id > INT32_MAX) continue;
        const char *bytes = tokenizer_token_bytes(t->tokenizer, (int32_t)id, &n);
        if (bytes != NULL) st = chat_set_token(t->chat, names[i][0], bytes, n);
    }
    js_destroy(&doc);
    return st;
}

/* Reads the chat template. A template that cannot be run is not an error, because plain prompts do
 * not need it; lines with messages then become error rows that say why. config is
 * tokenizer_config.json, or NULL. */
static struct status read_chat_template(struct job_text *t, const struct ckpt *c,
                                        const struct js_node *config)
{
    size_t n;
    const char *source = ckpt_chat_template(c, &n);
    if (source == NULL) {
        snprintf(t->chat_missing, sizeof t->chat_missing, "this model has no chat template");
        return status_ok();
    }
    const struct status st = chat_create(source, n, config, "chat template", &t->chat);
    if (!status_failed(&st)) return config == NULL ? name_tokens(t, c) : status_ok();
    snprintf(t->chat_missing, sizeof t->chat_missing, "%s", st.text);
    log_line(LOG_WARN, "%s; lines with messages become error rows", st.text);
    return status_ok();
}

static struct status read_tokenizer_config(struct job_text *t, const struct ckpt *c)
{
    size_t n;
    const char *text = ckpt_tokenizer_config_json(c, &n);
    snprintf(t->chat_missing, sizeof t->chat_missing, "this model has no tokenizer");
    if (t->tokenizer == NULL) return status_ok();
    struct js_doc *doc = NULL;
    bool is_rounded; /* as a model_max_length of 10^30 is */
    if (text != NULL)
        TRY(js_parse_rounding(text, n, "tokenizer_config.json", &doc, &is_rounded));
    const struct js_node *config = doc != NULL ? js_root(doc) : NULL;
    add_end_id(t, config_token(t, config, "eos_token"));
    struct status st = find_prefix(t, c, config);
    if (!status_failed(&st)) st = read_chat_template(t, c, config);
    js_destroy(&doc);
    return st;
}

static struct status read_checkpoint(struct job_text *t, const struct ckpt *c, const struct arch *m,
                                     const struct flags_given *given)
{
    size_t n;
    const char *json = ckpt_tokenizer_json(c, &n);
    if (json != NULL) {
        struct status st = tokenizer_create(json, n, "tokenizer.json", &t->tokenizer);
        TRY(status_wrap(st, "%s", ckpt_path(c)));
    }
    for (uint32_t i = 0; i < m->n_eos_ids; i++) add_end_id(t, m->eos_ids[i]);
    TRY(status_wrap(read_generation_config(t, c, given), "%s", ckpt_path(c)));
    return status_wrap(read_tokenizer_config(t, c), "%s", ckpt_path(c));
}

struct status job_text_open(struct job_text *t, const struct ckpt *c, const struct arch *m)
{
    *t = (struct job_text){.prefix_id = -1};
    request_defaults_init(&t->defaults);
    TRY(chat_date_parse(CHAT_DATE_DEFAULT, &t->date));
    return read_checkpoint(t, c, m, NULL);
}

/* Reads --input-field or --prompt-template. */
static struct status read_form(struct job_text *t, const struct job_file_flags *f)
{
    char *source = NULL;
    size_t n;
    if (f->input_field != NULL && f->prompt_template != NULL)
        return status_make(STATUS_USAGE,
                           "--input-field and --prompt-template: expected one of them");
    if (f->input_field != NULL && *f->input_field == '\0')
        return status_make(STATUS_USAGE, "--input-field: expected a name, found an empty one");
    t->form.field = f->input_field;
    if (f->prompt_template == NULL) return status_ok();
    TRY(status_wrap(file_read(f->prompt_template, TEMPLATE_BYTES_MAX, &source, &n),
                    "--prompt-template"));
    const struct status st = chat_create(source, n, NULL, f->prompt_template, &t->made_by);
    const XXH128_hash_t hash = XXH3_128bits(source, n);
    t->made_by_hash[0] = hash.high64;
    t->made_by_hash[1] = hash.low64;
    t->form.made_by = t->made_by;
    mem_free(&source);
    return st;
}

/* Settles --reasoning-parser auto by the chat template. */
static void settle_reasoning(struct job_text *t)
{
    enum reasoning_parser *parser = &t->defaults.reasoning;
    if (*parser == REASONING_NONE) return;
    if (*parser == REASONING_AUTO && (t->chat == NULL || !chat_has_thoughts(t->chat))) {
        *parser = REASONING_NONE;
        log_line(LOG_INFO, "reasoning: the chat template has no " CHAT_CLOSE_THOUGHT
                           ", so answers stay whole");
        return;
    }
    *parser = REASONING_THINK;
    log_line(LOG_INFO, "reasoning: the text between " CHAT_OPEN_THOUGHT " and " CHAT_CLOSE_THOUGHT
                       " is reasoning_content");
}

struct status job_text_init(struct job_text *t, const struct job_options *o, const struct ckpt *c,
                            const struct arch *m)
{
    *t = (struct job_text){.prefix_id = -1};
    t->defaults = o->sampling;
    TRY(status_wrap(chat_date_parse(o->run.template_date, &t->date), "--template-date"));
    if (c == NULL)
        snprintf(t->chat_missing, sizeof t->chat_missing, "no chat template without --model");
    if (c != NULL) TRY(read_checkpoint(t, c, m, &o->given));
    TRY(read_form(t, &o->files));
    settle_reasoning(t);
    if (o->mode != LEAD_GENERATE || (o->run.dry_run && o->lead.quiet))
        return request_defaults_check(
            &t->defaults); /* nothing is sampled, or nothing is to be printed */
    log_line(LOG_INFO,
             "sampling: max_tokens %lld, temperature %g, top_p %g, top_k %lld, min_p %g, "
             "repetition penalty %g, seed %llu; %zu end tokens",
             (long long)t->defaults.max_tokens, t->defaults.temperature, t->defaults.top_p,
             (long long)t->defaults.top_k, t->defaults.min_p, t->defaults.repetition_penalty,
             (unsigned long long)t->defaults.seed, t->n_end_ids);
    return request_defaults_check(&t->defaults);
}

void job_text_fini(struct job_text *t)
{
    chat_destroy(&t->chat);
    chat_destroy(&t->made_by);
    tokenizer_destroy(&t->tokenizer);
}
