/* Reads the experts' loads that an earlier job wrote with --metrics or kept beside its journal. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "parallel/layout/expert_places.h"

#include <string.h>

enum { FILE_BYTES_MAX = 64 << 20 };

void expert_load_fit(int64_t *load, size_t n)
{
    int64_t most = 0;
    for (size_t e = 0; e < n; e++)
        if (load[e] > most) most = load[e];
    for (; most > EXPERT_LOAD_MAX; most /= 2)
        for (size_t e = 0; e < n; e++) load[e] /= 2;
}

/* Reads one layer's counts into load [E], scaled by expert_load_fit. */
static struct status read_layer_load(const struct js_node *counts, const struct layout_model *m,
                                     uint32_t layer, int64_t *load)
{
    const size_t n = m->arch->layer.is_moe[layer] ? m->arch->moe.n_experts : 0;
    if (js_type(counts) != JS_ARRAY || js_count(counts) != n) {
        return status_make(STATUS_INPUT,
                           "expert_load of layer %u: expected an array of %zu counts, found %zu",
                           layer, n, js_count(counts));
    }
    for (size_t e = 0; e < n; e++) {
        if (!js_int(js_at(counts, e), &load[e]) || load[e] < 0) {
            return status_make(STATUS_INPUT,
                               "expert_load of layer %u: the count of expert %zu is no whole "
                               "number from 0 on",
                               layer, e);
        }
    }
    expert_load_fit(load, n);
    return status_ok();
}

/* *is_other: set when the file is of another model. */
static struct status read_root(const struct js_node *root, const struct layout_model *m,
                               bool *is_other, int64_t *load)
{
    const struct arch *a = m->arch;
    size_t n_name = 0;
    const char *name = js_string(js_get(root, "model"), &n_name);
    const struct js_node *all = js_get(root, "expert_load");
    if (name == NULL || js_get(root, "schema") == NULL)
        return status_make(STATUS_INPUT, "expected what --metrics writes");
    if (n_name != strlen(m->name) || memcmp(name, m->name, n_name) != 0) {
        *is_other = true;
        return status_make(STATUS_INPUT, "is of another model: expected \"%s\", found \"%s\"",
                           m->name, name);
    }
    if (all == NULL) {
        return status_make(STATUS_INPUT,
                           "has no expert_load, which jobs write when they have ended");
    }
    if (js_type(all) != JS_ARRAY || js_count(all) != a->n_layers) {
        return status_make(STATUS_INPUT, "expert_load: expected an array of %u layers, found %zu",
                           a->n_layers, js_count(all));
    }
    for (uint32_t layer = 0; layer < a->n_layers; layer++)
        TRY(read_layer_load(js_at(all, layer), m, layer, load + (size_t)layer * a->moe.n_experts));
    return status_ok();
}

static struct status read_file(const char *path, const struct layout_model *m, bool *is_other,
                               int64_t **out)
{
    const struct arch *a = m->arch;
    char *text = NULL;
    size_t n = 0;
    struct js_doc *doc = NULL;
    struct status st;
    *out = NULL;
    *is_other = false;
    if (a->moe.n_experts == 0)
        return status_make(STATUS_USAGE, "%s is dense, it has no experts", m->name);
    TRY(file_read(path, FILE_BYTES_MAX, &text, &n));
    TRY_GOTO(st, js_parse(text, n, path, &doc), done);
    TRY_GOTO(st,
             mem_alloc(out, (size_t)a->n_layers * a->moe.n_experts, sizeof **out, "experts' load"),
             done);
    st = read_root(js_root(doc), m, is_other, *out);
    if (status_failed(&st)) mem_free(out);
    if (status_failed(&st)) st = status_wrap(st, "%s", path);
done:
    js_destroy(&doc);
    mem_free(&text);
    return st;
}

struct status expert_load_read(const char *path, const struct layout_model *m, int64_t **out)
{
    bool is_other;
    return status_wrap(read_file(path, m, &is_other, out), "--expert-load");
}

struct status expert_load_read_kept(const char *path, const struct layout_model *m, int64_t **out,
                                    struct status *unusable)
{
    bool is_other;
    const struct status st = read_file(path, m, &is_other, out);
    const bool is_ignored = st.code == STATUS_INPUT && !is_other;
    *unusable = is_ignored ? st : status_ok();
    return is_ignored ? status_ok() : st;
}
