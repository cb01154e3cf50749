/* Makes the entries of a checkpoint from descriptions of its tensors (struct ckpt_tensor_spec).
 */
#include "checkpoint/file/ckpt_list.h"

#include "base/mem.h"
#include "checkpoint/file/ckpt_writer_private.h"

#include <string.h>

static struct status list_add(struct ckpt *c, size_t i, const struct ckpt_tensor_spec *spec)
{
    struct ckpt_entry *e = &c->entries[i];
    struct ckpt_tensor *t = &e->tensor;
    TRY(ckpt_spec_shape(spec, t));
    TRY(mem_strndup(&e->name, spec->name, strlen(spec->name)));
    c->n_entries = i + 1;
    t->name = e->name;
    t->index = (uint32_t)i;
    t->quant = spec->quant;
    if (spec->quant.kind == QUANT_NONE) return status_ok();
    TRY(mem_strndup(&e->method, spec->method, strlen(spec->method)));
    t->method = e->method;
    t->n_bytes = ckpt_spec_bytes(spec);
    return status_ok();
}

static struct status list_fill(struct ckpt *c, const struct ckpt_list *list)
{
    TRY(mem_strndup(&c->path, list->path, strlen(list->path)));
    TRY(mem_strndup(&c->texts[CKPT_TEXT_CONFIG].text, list->config, list->n_config));
    c->texts[CKPT_TEXT_CONFIG].n = list->n_config;
    TRY(mem_alloc(&c->entries, list->n_specs, sizeof c->entries[0], "the list of tensors"));
    for (size_t i = 0; i < list->n_specs; i++) TRY(list_add(c, i, &list->specs[i]));
    c->n_tensors = list->n_specs;
    return status_ok();
}

struct status ckpt_list_create(const struct ckpt_list *list, struct ckpt **out)
{
    struct ckpt *c = NULL;
    *out = NULL;
    TRY(mem_alloc(&c, 1, sizeof *c, "a list of tensors"));
    c->file = -1;
    const struct status st = list_fill(c, list);
    if (status_failed(&st)) ckpt_close(&c);
    *out = c;
    return st;
}
