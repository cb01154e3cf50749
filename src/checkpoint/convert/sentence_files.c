/* Reads the files of sentence-transformers; job/job_embed.c interprets them. */
#include "checkpoint/convert/sentence_files.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { FILE_BYTES_MAX = 4 << 20 };

/* Parses a file of the folder; leaves *doc unchanged when it is missing. */
static struct status sentence_file(const char *folder, const char *name, struct js_doc **doc)
{
    char *path = NULL, *text = NULL;
    size_t n;
    struct stat info;
    TRY(file_join(folder, name, &path));
    struct status st = status_ok();
    if (stat(path, &info) == 0) st = file_read(path, FILE_BYTES_MAX, &text, &n);
    bool is_rounded;
    if (text != NULL) st = js_parse_rounding(text, n, name, doc, &is_rounded);
    mem_free(&text);
    mem_free(&path);
    return status_wrap(st, "%s", folder);
}

/* The file `name` in the folder of the first module whose type ends with `end`. */
struct module_file {
    const char *end, *name;
};

/* Writes the path of a module's file, "" if there is no such module. Errors: STATUS_INPUT for a
 * path that leads out of the model's folder. */
static struct status module_path(const struct js_node *modules, const struct module_file *file,
                                 char *out, size_t n)
{
    const char *end = file->end;
    out[0] = '\0';
    for (size_t i = 0; i < js_count(modules); i++) {
        const char *type = js_string(js_get(js_at(modules, i), "type"), NULL);
        const char *path = js_string(js_get(js_at(modules, i), "path"), NULL);
        if (type == NULL || path == NULL || strlen(type) < strlen(end)) continue;
        if (strcmp(type + strlen(type) - strlen(end), end) != 0) continue;
        if (path[0] == '/' || strstr(path, "..") != NULL)
            return status_make(STATUS_INPUT, "modules.json: path: expected a folder of the model");
        const char *slash = path[0] != '\0' ? "/" : "";
        if ((size_t)snprintf(out, n, "%s%s%s", path, slash, file->name) < n) return status_ok();
        return status_make(STATUS_INPUT, "modules.json: path: its name is too long");
    }
    return status_ok();
}

/* Reads a module's file, if there is one. */
static struct status module_file(const char *folder, const struct js_doc *modules,
                                 const struct module_file *file, struct js_doc **doc)
{
    char path[512];
    if (modules == NULL) return status_ok();
    TRY(status_wrap(module_path(js_root(modules), file, path, sizeof path), "%s", folder));
    return path[0] != '\0' ? sentence_file(folder, path, doc) : status_ok();
}

/* Reads the settings of the transformer module. sentence-transformers knows several names of this
 * file and takes the first one that exists. */
static struct status transformer_file(const char *folder, const struct js_doc *modules,
                                      struct js_doc **doc)
{
    static const char *const names[] = {
        "sentence_bert_config.json",       "sentence_roberta_config.json",
        "sentence_distilbert_config.json", "sentence_camembert_config.json",
        "sentence_albert_config.json",     "sentence_xlm-roberta_config.json",
        "sentence_xlnet_config.json"};
    for (size_t i = 0; *doc == NULL && i < sizeof names / sizeof names[0]; i++)
        TRY(module_file(folder, modules, &(struct module_file){".Transformer", names[i]}, doc));
    return status_ok();
}

static struct status put_member(const char *key, const struct js_doc *doc, struct strbuf *out)
{
    char *text = NULL;
    size_t n;
    strbuf_printf(out, "%s\"%s\": ", out->n == 0 ? "{" : ", ", key);
    if (doc == NULL) {
        strbuf_puts(out, "null");
        return strbuf_status(out);
    }
    TRY(js_dump(js_root(doc), &text, &n));
    strbuf_add(out, text, n);
    mem_free(&text);
    return strbuf_status(out);
}

struct status sentence_files_read(const char *folder, struct strbuf *out)
{
    enum { MODULES, POOLING, SETTINGS, TRANSFORMER, N };
    static const char *const keys[N] = {"modules", "pooling", "settings", "transformer"};
    const struct module_file pooling = {".Pooling", "config.json"};
    struct js_doc *docs[N] = {NULL};
    struct status st = sentence_file(folder, "modules.json", &docs[MODULES]);
    if (!status_failed(&st)) st = module_file(folder, docs[MODULES], &pooling, &docs[POOLING]);
    if (!status_failed(&st)) st = transformer_file(folder, docs[MODULES], &docs[TRANSFORMER]);
    if (!status_failed(&st))
        st = sentence_file(folder, "config_sentence_transformers.json", &docs[SETTINGS]);
    const bool any = docs[MODULES] != NULL || docs[SETTINGS] != NULL;
    for (int i = 0; i < N && any && !status_failed(&st); i++)
        if (i != TRANSFORMER || docs[i] != NULL) st = put_member(keys[i], docs[i], out);
    if (any) strbuf_puts(out, "}\n");
    for (int i = 0; i < N; i++) js_destroy(&docs[i]);
    return status_failed(&st) ? st : strbuf_status(out);
}
