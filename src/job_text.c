/* Tokenizer, end ids, sampling defaults. */
#include "job_text.h"

#include "base/json.h"
#include "base/log.h"

#include <string.h>

static void add_end_id(struct job_text *t, int64_t id)
{
    if (id < 0 || id > INT32_MAX || t->n_end_ids == JOB_END_IDS_MAX) return;
    for (size_t i = 0; i < t->n_end_ids; i++) {
        if (t->end_ids[i] == (int32_t)id) return;
    }
    t->end_ids[t->n_end_ids++] = (int32_t)id;
}

/* A single id or a list of them. */
static void add_end_ids(struct job_text *t, const struct js_node *node)
{
    int64_t id;
    if (js_int(node, &id)) add_end_id(t, id);
    for (size_t i = 0; js_type(node) == JS_ARRAY && i < js_count(node); i++) {
        if (js_int(js_at(node, i), &id)) add_end_id(t, id);
    }
}

static void take_number(const struct js_node *root, const char *key, double *out)
{
    double value;
    if (js_number(js_get(root, key), &value)) *out = value;
}

static struct status read_generation_config(struct job_text *t, const struct ckpt *c)
{
    size_t n;
    const char *text = ckpt_generation_config_json(c, &n);
    if (text == NULL) return status_ok();
    struct js_doc *doc = NULL;
    TRY(js_parse(text, n, "generation_config.json", &doc));
    const struct js_node *root = js_root(doc);
    add_end_ids(t, js_get(root, "eos_token_id"));
    take_number(root, "temperature", &t->defaults.temperature);
    take_number(root, "top_p", &t->defaults.top_p);
    take_number(root, "min_p", &t->defaults.min_p);
    int64_t top_k;
    if (js_int(js_get(root, "top_k"), &top_k)) t->defaults.top_k = top_k;
    js_destroy(&doc);
    return status_ok();
}

/* tokenizer_config.json's eos_token: a string, or an object with "content". */
static struct status read_tokenizer_config(struct job_text *t, const struct ckpt *c)
{
    size_t n;
    const char *text = ckpt_tokenizer_config_json(c, &n);
    if (text == NULL || t->tokenizer == NULL) return status_ok();
    struct js_doc *doc = NULL;
    TRY(js_parse(text, n, "tokenizer_config.json", &doc));
    const struct js_node *eos = js_get(js_root(doc), "eos_token");
    if (js_type(eos) == JS_OBJECT) eos = js_get(eos, "content");
    const char *content = js_string(eos, &n);
    if (content != NULL) add_end_id(t, tokenizer_token_id(t->tokenizer, content, n));
    js_destroy(&doc);
    return status_ok();
}

static void take_flags(struct request_defaults *d, const struct job_options *o)
{
    if (o->temperature >= 0) d->temperature = o->temperature;
    if (o->top_p >= 0) d->top_p = o->top_p;
    if (o->min_p >= 0) d->min_p = o->min_p;
    if (o->top_k >= 0) d->top_k = o->top_k;
    d->max_tokens = o->max_tokens;
    d->seed = o->seed;
    d->stops = o->stops.values;
    d->n_stops = o->stops.n;
}

struct status job_text_init(struct job_text *t, const struct job_options *o, const struct ckpt *c,
                            const struct model_config *m)
{
    memset(t, 0, sizeof *t);
    request_defaults_init(&t->defaults);
    size_t n;
    const char *json = ckpt_tokenizer_json(c, &n);
    if (json != NULL) {
        struct status st = tokenizer_create(json, n, "tokenizer.json", &t->tokenizer);
        TRY(status_wrap(st, "%s", ckpt_path(c)));
    }
    for (uint32_t i = 0; i < m->n_eos_ids; i++) add_end_id(t, m->eos_ids[i]);
    TRY(status_wrap(read_generation_config(t, c), "%s", ckpt_path(c)));
    TRY(status_wrap(read_tokenizer_config(t, c), "%s", ckpt_path(c)));
    take_flags(&t->defaults, o);
    log_line(LOG_INFO,
             "sampling: max_tokens %lld, temperature %g, top_p %g, top_k %lld, min_p %g, "
             "seed %llu; %zu end tokens",
             (long long)t->defaults.max_tokens, t->defaults.temperature, t->defaults.top_p,
             (long long)t->defaults.top_k, t->defaults.min_p, (unsigned long long)t->defaults.seed,
             t->n_end_ids);
    return request_defaults_check(&t->defaults);
}

void job_text_fini(struct job_text *t)
{
    tokenizer_destroy(&t->tokenizer);
}
