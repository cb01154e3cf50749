/* Finds fixed texts by memmem, and patterns by pattern_next. */
#include "text/tokenizer/replacer.h"

#include "base/mem.h"
#include "text/grammar/json_read.h"

#include <string.h>

static struct status load_pattern(struct replacer *r, const struct js_node *node, const char *where)
{
    static const char *const KINDS[] = {"Regex", "String", NULL};
    const char *text;
    size_t n;
    TRY(json_known_fields(node, where, KINDS));
    if (js_count(node) != 1) {
        return status_make(STATUS_INPUT, "%s: 'pattern' must hold either Regex or String", where);
    }
    if (js_get(node, "Regex") != NULL) {
        TRY(json_string_field(node, "Regex", where, &text, &n));
        return pattern_create(text, n, false, where, &r->pattern);
    }
    TRY(json_string_field(node, "String", where, &text, &n));
    if (n == 0 || n > REPLACER_BYTES_MAX) {
        return status_make(STATUS_INPUT, "%s: a pattern of %zu bytes, expected 1 to %d", where, n,
                           (int)REPLACER_BYTES_MAX);
    }
    r->n_find = n;
    return mem_strndup(&r->find, text, n);
}

struct status replacer_load(struct replacer *r, const struct js_node *node, const char *where)
{
    static const char *const KNOWN[] = {"type", "pattern", "content", NULL};
    const char *content;
    memset(r, 0, sizeof *r);
    TRY(json_known_fields(node, where, KNOWN));
    TRY(json_string_field(node, "content", where, &content, &r->n_content));
    if (r->n_content > REPLACER_BYTES_MAX) {
        return status_make(STATUS_INPUT, "%s: a content of %zu bytes, expected at most %d", where,
                           r->n_content, (int)REPLACER_BYTES_MAX);
    }
    struct status st = load_pattern(r, js_get(node, "pattern"), where);
    if (!status_failed(&st)) st = mem_strndup(&r->content, content, r->n_content);
    if (status_failed(&st)) replacer_fini(r);
    return st;
}

void replacer_fini(struct replacer *r)
{
    pattern_destroy(&r->pattern);
    mem_free(&r->find);
    mem_free(&r->content);
    memset(r, 0, sizeof *r);
}

struct status replacer_next(struct replacer *r, struct pattern_walk *w, size_t *start, size_t *end,
                            bool *found)
{
    if (r->pattern != NULL) return pattern_next(r->pattern, w, start, end, found);
    const char *at =
        w->at < w->n ? memmem(w->text + w->at, w->n - w->at, r->find, r->n_find) : NULL;
    *found = at != NULL;
    if (at == NULL) return status_ok();
    *start = (size_t)(at - w->text);
    *end = *start + r->n_find;
    w->at = *end;
    return status_ok();
}
