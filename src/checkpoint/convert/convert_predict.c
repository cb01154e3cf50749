/* Checks that a prediction layer (multi-token prediction) is whole. A layer that lacks a tensor
 * gives no draft tokens, so its tensors are left out, with a warning; the rest of the model needs
 * none of them. Whether other layers are whole is checked when the file is read (weights_check). */
#include "arch/arch_tensors.h"
#include "base/log.h"
#include "base/mem.h"
#include "checkpoint/convert/convert_private.h"

#include <stdio.h>
#include <string.h>

static bool is_predict_part(const struct convert *c, size_t i, const char *name, int64_t expert)
{
    return i < c->n_parts && strcmp(c->parts[i].name, name) == 0 && c->parts[i].expert == expert;
}

/* Returns the first of the parts that make this tensor; n_parts: there is none. */
static size_t find_predict_part(const struct convert *c, const char *name)
{
    size_t i = 0;
    while (i < c->n_parts && strcmp(c->parts[i].name, name) != 0) i++;
    return i;
}

/* True when the source has the tensor `name`, with all its experts; if not, writes the name of the
 * missing tensor to missing [n]. */
static bool is_there(const struct convert *c, const struct arch *m, const char *name, char *missing,
                     size_t n)
{
    const size_t first = find_predict_part(c, name);
    snprintf(missing, n, "%s", name);
    if (first == c->n_parts) return false;
    if (c->parts[first].expert < 0) return true;
    for (uint32_t e = 0; e < m->moe.n_experts; e++) {
        if (is_predict_part(c, first + e, name, e)) continue;
        snprintf(missing, n, "%s of expert %u", name, e);
        return false;
    }
    return true;
}

/* True when the source has all tensors of the prediction layer; if not, writes the name of the
 * first missing tensor to missing [n]. */
static bool has_whole_layer(const struct convert *c, const struct arch *m, char *missing, size_t n)
{
    const uint64_t parts = arch_layer_parts(m, m->n_layers);
    const struct arch_tensor *t;
    for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
        char name[CKPT_NAME_MAX];
        if ((t->part & parts) == 0) continue;
        arch_tensor_name(t, m->family, m->n_layers, name, sizeof name);
        if (!is_there(c, m, name, missing, n)) return false;
    }
    return true;
}

/* Removes the parts whose names begin with the prefix; returns how many. */
static size_t parts_remove(struct convert *c, const char *prefix)
{
    size_t n_kept = 0;
    for (size_t i = 0; i < c->n_parts; i++) {
        if (strncmp(c->parts[i].name, prefix, strlen(prefix)) != 0)
            c->parts[n_kept++] = c->parts[i];
    }
    const size_t n_removed = c->n_parts - n_kept;
    c->n_parts = n_kept;
    return n_removed;
}

static void leave_out_incomplete(struct convert *c, const struct arch *m)
{
    char prefix[32], missing[CKPT_NAME_MAX + 32];
    if (!m->may_predict || has_whole_layer(c, m, missing, sizeof missing)) return;
    snprintf(prefix, sizeof prefix, "model.layers.%u.", m->n_layers);
    const size_t n = parts_remove(c, prefix);
    if (n == 0 || c->rank != 0) return;
    log_line(LOG_WARN,
             "%s: tensor %s is missing, so the prediction layer gives no draft tokens, and its "
             "other %zu tensors are left out",
             c->options->source, missing, n);
}

struct status convert_check_prediction(struct convert *c)
{
    const struct strbuf *config = source_text(c->source, CKPT_TEXT_CONFIG);
    struct arch *m = NULL;
    TRY(mem_alloc(&m, 1, sizeof *m, "model"));
    struct status st = arch_parse(config->data, config->n, "config.json", m);
    if (!status_failed(&st)) leave_out_incomplete(c, m);
    mem_free(&m);
    /* A model that is not implemented is converted, too; a job then names the reason. */
    return st.code == STATUS_MEMORY ? st : status_ok();
}
