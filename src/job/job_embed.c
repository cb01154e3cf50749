/* Reads how a checkpoint turns texts into vectors. Refuses by name any setting that is not
 * implemented, because vectors made in another way could not be compared with the checkpoint's. */
#include "job/job_embed.h"

#include "base/ends_with.h"
#include "base/log.h"
#include "base/mem.h"

#include <string.h>

/* Checks that there are only transformer, pooling and normalization modules, and reads whether
 * vectors are normalized. Sets *pools if there is a pooling module. */
static struct status read_embed_modules(struct job_embed *e, const struct js_node *modules,
                                        bool *pools)
{
    if (js_type(modules) != JS_ARRAY) return status_ok();
    e->rules.normalizes = false;
    for (size_t i = 0; i < js_count(modules); i++) {
        const char *type = js_string(js_get(js_at(modules, i), "type"), NULL);
        if (type == NULL) type = "";
        if (ends_with(type, ".Normalize"))
            e->rules.normalizes = true;
        else if (ends_with(type, ".Pooling"))
            *pools = true;
        else if (!ends_with(type, ".Transformer"))
            return status_make(STATUS_INPUT, "modules.json: module \"%.80s\" is not implemented",
                               type);
    }
    return status_ok();
}

/* Reads the config of the pooling module, if there is one: {"pooling_mode_lasttoken": true, ...}.
 */
static struct status read_pooling(struct job_embed *e, const struct js_node *pooling,
                                  bool is_module)
{
    static const char prefix[] = "pooling_mode_";
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    bool is_on, with_prompt = true, is_given = false;
    while (js_next(pooling, &it, &key, &value)) {
        if (strncmp(key, prefix, strlen(prefix)) != 0 || !js_bool(value, &is_on) || !is_on)
            continue;
        const enum request_pool before = e->rules.pool;
        is_given = true;
        if (strcmp(key, "pooling_mode_lasttoken") == 0)
            e->rules.pool = POOL_LAST;
        else if (strcmp(key, "pooling_mode_cls_token") == 0)
            e->rules.pool = POOL_CLS;
        else if (strcmp(key, "pooling_mode_mean_tokens") == 0)
            e->rules.pool = POOL_MEAN;
        else
            return status_make(STATUS_INPUT,
                               "pooling: %.80s is not implemented; choose a --pooling", key);
        if (before != POOL_NONE)
            return status_make(STATUS_INPUT,
                               "pooling: several modes, whose vectors would be joined, are not "
                               "implemented; choose one with --pooling");
    }
    if (js_bool(js_get(pooling, "include_prompt"), &with_prompt) && !with_prompt)
        return status_make(STATUS_INPUT, "pooling: \"include_prompt\": false is not implemented");
    if (is_given || !is_module) return status_ok();
    return status_make(STATUS_INPUT,
                       "pooling: its config.json has no pooling_mode_... that is true; choose a "
                       "--pooling");
}

static struct status read_embed_prompts(struct job_embed *e, const struct js_node *settings,
                                        const char *asked)
{
    const bool is_auto = strcmp(asked, "auto") == 0, is_none = strcmp(asked, "none") == 0;
    const struct js_node *prompts = js_get(settings, "prompts");
    if (js_type(prompts) == JS_OBJECT) e->rules.prompts = prompts;
    e->rules.prompt = is_none ? NULL : asked;
    if (is_auto) e->rules.prompt = js_string(js_get(settings, "default_prompt_name"), NULL);
    if (e->rules.prompt == NULL || js_string(js_get(prompts, e->rules.prompt), NULL) != NULL)
        return status_ok();
    return status_make(is_auto ? STATUS_INPUT : STATUS_USAGE,
                       "%s: this checkpoint has no prompt named \"%.60s\"",
                       is_auto ? "default_prompt_name" : "--prompt-name", e->rules.prompt);
}

/* Reads how many tokens a text may have: {"max_seq_length": 256}. */
static void read_transformer(struct job_embed *e, const struct js_node *transformer)
{
    int64_t most;
    if (js_int(js_get(transformer, "max_seq_length"), &most) && most > 0 && most <= INT32_MAX)
        e->rules.max_tokens = (int32_t)most;
}

static struct status read_files(struct job_embed *e, const struct embed_flags *flags,
                                const struct ckpt *c)
{
    size_t n;
    const char *text = ckpt_text(c, CKPT_TEXT_EMBEDDING, &n);
    if (text != NULL) TRY(js_parse(text, n, "embedding_json", &e->doc));
    const struct js_node *root = e->doc != NULL ? js_root(e->doc) : NULL;
    const struct js_node *pooling = js_get(root, "pooling");
    bool pools = js_type(pooling) == JS_OBJECT;
    TRY(read_embed_modules(e, js_get(root, "modules"), &pools));
    read_transformer(e, js_get(root, "transformer"));
    if (flags->pooling == POOL_NONE) TRY(read_pooling(e, pooling, pools));
    return read_embed_prompts(e, js_get(root, "settings"), flags->prompt_name);
}

struct status job_embed_check_case(const struct job_embed *e, struct tokenizer *t)
{
    const struct js_node *root = e->doc != NULL ? js_root(e->doc) : NULL;
    struct token_list ids = {0};
    bool lowers = false;
    (void)js_bool(js_get(js_get(root, "transformer"), "do_lower_case"), &lowers);
    if (!lowers || t == NULL) return status_ok();
    struct status st = tokenizer_encode(t, "aA\xC3\xA4\xC3\x84", 6, 0, &ids);
    struct token_list lower = {0};
    if (!status_failed(&st)) st = tokenizer_encode(t, "aa\xC3\xA4\xC3\xA4", 6, 0, &lower);
    const bool is_same =
        ids.n == lower.n && memcmp(ids.ids, lower.ids, ids.n * sizeof *ids.ids) == 0;
    if (!status_failed(&st) && !is_same)
        st = status_make(STATUS_INPUT, "sentence_bert_config.json: \"do_lower_case\": true is not "
                                       "implemented for a tokenizer that keeps upper case");
    token_list_fini(&ids);
    token_list_fini(&lower);
    return st;
}

struct status job_embed_init(struct job_embed *e, const struct embed_flags *flags,
                             const struct ckpt *c, const struct arch *m)
{
    *e = (struct job_embed){.rules = {.is_whole = m->encoder,
                                      .width = (int32_t)m->width,
                                      .dimensions = (int32_t)flags->dimensions,
                                      .encoding = flags->encoding,
                                      .cuts_texts = flags->long_texts == EMBED_LONG_CUT,
                                      .pool = flags->pooling,
                                      .normalizes = true}};
    TRY(status_wrap(read_files(e, flags, c), "%s", ckpt_path(c)));
    if (flags->max_text_tokens > 0) e->rules.max_tokens = (int32_t)flags->max_text_tokens;
    if (e->rules.pool == POOL_NONE) e->rules.pool = m->encoder ? POOL_MEAN : POOL_LAST;
    if (flags->normalize != EMBED_AUTO) e->rules.normalizes = flags->normalize == EMBED_ON;
    if (e->rules.dimensions == 0) e->rules.dimensions = (int32_t)m->width;
    if (flags->dimensions > m->width)
        return status_make(STATUS_USAGE, "--dimensions: this model's vectors have %u, found %u",
                           m->width, flags->dimensions);
    static const char *const names[] = {
        [POOL_LAST] = "last", [POOL_CLS] = "cls", [POOL_MEAN] = "mean"};
    log_line(LOG_INFO, "vectors: pooling %s, %s, %d of %d dimensions, prompt %s",
             names[e->rules.pool], e->rules.normalizes ? "normalized" : "not normalized",
             e->rules.dimensions, e->rules.width,
             e->rules.prompt != NULL ? e->rules.prompt : "none");
    return status_ok();
}

void job_embed_fini(struct job_embed *e)
{
    js_destroy(&e->doc);
    mem_free(&e->head);
    mem_free(&e->dense);
    mem_free(&e->work);
    mem_free(&e->pair_template);
}
