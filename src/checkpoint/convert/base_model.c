/* Translates the architecture and the tensor names of base models without a head ("Qwen3Model"), as
 * embedding models are published, into those of the ForCausalLM architecture with the same layers.
 * Also translates the architecture of models with a head for classes, and of encoders with their
 * pretraining head. */
#include "checkpoint/convert/published.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* Writes to out [n] the name of shoal's architecture that has the layers of architecture `name`.
 * False: `name` has none of the endings below, or no name with another ending in its place is that
 * of an architecture that shoal runs. */
static bool name_of_layers(const char *name, char *out, size_t n)
{
    static const struct {
        const char *from, *to;
    } ends[] = {{"Model", "ForCausalLM"},
                {"ForSequenceClassification", "ForCausalLM"},
                {"ForSequenceClassification", "Model"},
                {"ForMaskedLM", "Model"},
                {"ForPreTraining", "Model"}};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const size_t length = strlen(name), end = strlen(ends[i].from);
        if (length <= end || strcmp(name + length - end, ends[i].from) != 0) continue;
        snprintf(out, n, "%.*s%s", (int)(length - end), name, ends[i].to);
        if (arch_family_find(out) != NULL) return true;
    }
    return false;
}

static struct status put_fields(const struct js_node *root, const char *architecture,
                                struct strbuf *out)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    strbuf_clear(out);
    strbuf_printf(out, "{\"architectures\": [\"%s\"]", architecture);
    while (js_next(root, &it, &key, &value)) {
        char *text = NULL;
        size_t n;
        if (strcmp(key, "architectures") == 0) continue;
        TRY(js_dump(value, &text, &n));
        strbuf_puts(out, ", ");
        strbuf_json_string(out, key, strlen(key));
        strbuf_printf(out, ": %s", text);
        mem_free(&text);
    }
    strbuf_puts(out, "}\n");
    return strbuf_status(out);
}

struct status published_base_config(struct strbuf *config, const char *what)
{
    struct js_doc *doc = NULL;
    char architecture[128];
    TRY(js_parse(config->data, config->n, what, &doc));
    const char *name = js_string(js_at(js_get(js_root(doc), "architectures"), 0), NULL);
    struct status st = status_ok();
    if (name != NULL && name_of_layers(name, architecture, sizeof architecture))
        st = put_fields(js_root(doc), architecture, config);
    js_destroy(&doc);
    return st;
}

void published_base_name(const char *name, char *out, size_t n)
{
    static const char *const starts[] = {"layers.", "embed_tokens.", "norm."};
    bool is_bare = false;
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++)
        is_bare = is_bare || strncmp(name, starts[i], strlen(starts[i])) == 0;
    snprintf(out, n, "%s%s", is_bare ? "model." : "", name);
}
