/* Reads the texts of a Hugging Face folder: its config, its defaults of generation, its tokenizer,
 * its chat template and the settings of sentence-transformers. Called by source.c. */
#include "checkpoint/convert/source_texts.h"

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/convert/published.h"
#include "checkpoint/convert/sentence_files.h"
#include "text/tokenizer/tiktoken.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { TEXT_BYTES_MAX = 256 << 20 };

static struct status text_file(struct source_texts *s, const char *name, enum ckpt_text which)
{
    char *path = NULL, *text = NULL;
    size_t n;
    struct stat info;
    TRY(file_join(s->path, name, &path));
    struct status st = status_ok();
    if (stat(path, &info) == 0) {
        st = file_read(path, TEXT_BYTES_MAX, &text, &n);
        if (!status_failed(&st) && n == 0)
            st = status_make(STATUS_INPUT, "%s: is empty; was it downloaded in full?", path);
    } else if (lstat(path, &info) == 0) { /* a link to nothing is not a missing file */
        st = status_make(STATUS_INPUT, "%s: cannot be opened: %s", path, strerror(errno));
    }
    if (!status_failed(&st) && text != NULL) {
        strbuf_clear(&s->texts[which]);
        strbuf_add(&s->texts[which], text, n);
        st = strbuf_status(&s->texts[which]);
    }
    mem_free(&text);
    mem_free(&path);
    return st;
}

/* Parses a published text. Some have numbers beyond 64 bits: the model_max_length of a tokenizer
 * without a limit is 10^30. */
static struct status parse_text(const struct strbuf *text, const char *name, struct js_doc **doc)
{
    bool is_rounded;
    return js_parse_rounding(text->data, text->n, name, doc, &is_rounded);
}

/* Reads a file that must be JSON if it is there. What its values mean is checked when a job reads
 * the checkpoint. */
static struct status json_file(struct source_texts *s, const char *name, enum ckpt_text which)
{
    struct js_doc *doc = NULL;
    TRY(text_file(s, name, which));
    if (s->texts[which].n == 0) return status_ok();
    const struct status st = parse_text(&s->texts[which], name, &doc);
    js_destroy(&doc);
    return status_wrap(st, "%s", s->path);
}

/* Reads the template of a node: a string, or the entry named "default" of a list. */
static void template_take(struct source_texts *s, const struct js_node *node)
{
    size_t n;
    const char *text = js_string(node, &n);
    for (size_t i = 0; text == NULL && i < js_count(node); i++) {
        const char *name = js_string(js_get(js_at(node, i), "name"), NULL);
        if (name == NULL || strcmp(name, "default") != 0) continue;
        text = js_string(js_get(js_at(node, i), "template"), &n);
        break;
    }
    if (text != NULL) strbuf_add(&s->texts[CKPT_TEXT_CHAT_TEMPLATE], text, n);
}

/* Reads the chat template: chat_template.jinja, else chat_template.json, else
 * tokenizer_config.json. */
static struct status chat_template_read(struct source_texts *s)
{
    struct strbuf *text = &s->texts[CKPT_TEXT_CHAT_TEMPLATE];
    struct strbuf *config = &s->texts[CKPT_TEXT_TOKENIZER_CONFIG];
    TRY(text_file(s, "chat_template.jinja", CKPT_TEXT_CHAT_TEMPLATE));
    if (text->n > 0) return status_ok();
    TRY(text_file(s, "chat_template.json", CKPT_TEXT_CHAT_TEMPLATE));
    const bool own_file = text->n > 0;
    const struct strbuf *json = own_file ? text : config;
    if (json->n == 0) return status_ok();
    struct js_doc *doc = NULL;
    TRY(parse_text(json, own_file ? "chat_template.json" : "tokenizer_config.json", &doc));
    strbuf_clear(text);
    template_take(s, js_get(js_root(doc), "chat_template"));
    js_destroy(&doc);
    return strbuf_status(text);
}

/* Makes a tokenizer.json from Kimi-K2's tiktoken.model. */
static struct status tiktoken_read(struct source_texts *s)
{
    const struct strbuf *config = &s->texts[CKPT_TEXT_TOKENIZER_CONFIG];
    struct strbuf *text = &s->texts[CKPT_TEXT_TOKENIZER];
    struct js_doc *doc = NULL;
    struct strbuf ranks;
    TRY(text_file(s, "tiktoken.model", CKPT_TEXT_TOKENIZER));
    if (text->n == 0) return status_ok();
    ranks = *text;
    strbuf_init(text);
    struct status st = status_ok();
    if (config->n > 0) st = parse_text(config, "tokenizer_config.json", &doc);
    if (!status_failed(&st)) {
        st = tokenizer_json_from_tiktoken(ranks.data, ranks.n, js_root(doc), text);
    }
    js_destroy(&doc);
    strbuf_fini(&ranks);
    return status_wrap(st, "%s", s->path);
}

struct status source_texts_read(struct source_texts *s)
{
    TRY(text_file(s, "config.json", CKPT_TEXT_CONFIG));
    TRY(published_finite_config(&s->texts[CKPT_TEXT_CONFIG]));
    if (s->texts[CKPT_TEXT_CONFIG].n > 0)
        TRY(published_text_config(&s->texts[CKPT_TEXT_CONFIG], "config.json", &s->is_text));
    if (s->texts[CKPT_TEXT_CONFIG].n > 0)
        TRY(published_base_config(&s->texts[CKPT_TEXT_CONFIG], "config.json"));
    TRY(sentence_files_read(s->path, &s->texts[CKPT_TEXT_EMBEDDING]));
    TRY(json_file(s, "generation_config.json", CKPT_TEXT_GENERATION_CONFIG));
    TRY(json_file(s, "tokenizer.json", CKPT_TEXT_TOKENIZER));
    TRY(json_file(s, "tokenizer_config.json", CKPT_TEXT_TOKENIZER_CONFIG));
    if (s->texts[CKPT_TEXT_CONFIG].n == 0) {
        return status_make(STATUS_INPUT, "%s: expected a config.json in it", s->path);
    }
    if (s->texts[CKPT_TEXT_TOKENIZER].n == 0) TRY(tiktoken_read(s));
    if (s->texts[CKPT_TEXT_TOKENIZER].n == 0) {
        log_line(
            LOG_WARN,
            "%s: no tokenizer.json or tiktoken.model: the checkpoint takes prompt_token_ids only",
            s->path);
    }
    return chat_template_read(s);
}
