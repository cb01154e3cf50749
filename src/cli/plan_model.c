/* Lists the tensors that the checkpoint of a config.json would have, so that the code that chooses
 * the formats of a checkpoint's tensors can choose them without a checkpoint. */
#include "cli/plan_model.h"

#include "base/file.h"
#include "base/mem.h"
#include "calibrate/quantize_plan.h"
#include "checkpoint/convert/published.h"
#include "checkpoint/file/ckpt_list.h"
#include "weights/weights.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIG_BYTES_MAX = 16 << 20, GRID_BITS = 32 };

/* The tensors of a model; names are owned. */
struct tensors {
    const struct layout_model *model;
    enum dtype dtype;
    struct ckpt_tensor_spec *specs;
    char **names;
    size_t n;
};

static void tensors_fini(struct tensors *t)
{
    for (size_t i = 0; i < t->n; i++) mem_free(&t->names[i]);
    mem_free(&t->names);
    mem_free(&t->specs);
}

static uint32_t leaf_of(const struct layout_model *m, const struct weight_spec *s)
{
    const enum weight_role role = s->role;
    if (role == WEIGHT_O)
        return arch_o_leaf(m->arch, m->o_leaf, arch_dim_unit(m->arch, s->tensor->cols));
    return role == WEIGHT_DOWN          ? m->ffn_leaf
           : role == WEIGHT_EXPERT_DOWN ? m->expert_leaf
           : role == WEIGHT_SHARED_DOWN ? m->shared_leaf
           : role == WEIGHT_DELTA_O     ? m->delta_leaf
                                        : 0;
}

static struct status add_tensor(void *ctx, const struct weight_spec *s)
{
    struct tensors *t = ctx;
    const bool has_rows = !s->is_vector || s->is_expert || s->tensor->rows != DIM_ONE;
    const uint64_t dims[3] = {s->n_outer, s->n_rows, s->n_cols};
    const size_t n = t->n;
    TRY(mem_grow(&t->specs, n, n + 1, sizeof *t->specs, "the list of tensors"));
    TRY(mem_grow(&t->names, n, n + 1, sizeof *t->names, "the list of tensors"));
    struct ckpt_tensor_spec *spec = &t->specs[n];
    *spec = (struct ckpt_tensor_spec){
        .dtype = t->dtype,
        .n_dims = s->is_expert && !s->is_vector ? 3
                  : has_rows                    ? 2
                                                : 1,
        .leaf_elems = leaf_of(t->model, s),
        .grid_bits = GRID_BITS,
    };
    memcpy(spec->dims, dims + 3 - spec->n_dims, spec->n_dims * sizeof *dims);
    TRY(mem_strndup(&t->names[n], s->name, strlen(s->name)));
    spec->name = t->names[n];
    t->n++;
    return status_ok();
}

static int by_role_name(const void *a, const void *b)
{
    const struct ckpt_tensor_spec *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Sorts by name and keeps one tensor of each name, because the halves of a tensor are listed
 * separately. Returns how many it keeps. */
static size_t sort_specs(struct ckpt_tensor_spec *specs, size_t n)
{
    size_t n_kept = 0;
    qsort(specs, n, sizeof *specs, by_role_name);
    for (size_t i = 0; i < n; i++)
        if (n_kept == 0 || strcmp(specs[n_kept - 1].name, specs[i].name) != 0)
            specs[n_kept++] = specs[i];
    return n_kept;
}

static struct status list_tensors(struct tensors *t)
{
    struct layout *l = NULL;
    const struct layout_flags one_rank = {.tp = 1, .pp = 1, .ep = 1, .dp = 1};
    struct status st;
    TRY(mem_alloc(&l, 1, sizeof *l, "layout"));
    TRY_GOTO(st, layout_build(t->model, 1, &one_rank, l), done);
    st = weights_list(l, layout_place_of(l, 0), add_tensor, t);
done:
    mem_free(&l);
    return st;
}

/* Describes in *out how the model would be in memory if its file had the formats of the policy. */
static struct status quantized_model(const struct plan_source *source, const char *config,
                                     const struct arch *m, struct layout_model *out)
{
    struct tensors t = {.model = out, .dtype = source->dtype};
    struct ckpt *plain = NULL, *file = NULL;
    struct quantize_policy policy;
    struct status st;
    TRY(quantize_policy_parse(source->format, source->policy, &policy));
    TRY_GOTO(st, list_tensors(&t), done);
    const size_t n = sort_specs(t.specs, t.n);
    const struct ckpt_list list = {source->path, config, strlen(config), t.specs, n};
    TRY_GOTO(st, ckpt_list_create(&list, &plain), done);
    TRY_GOTO(st, quantize_specs(plain, &policy, t.specs), done);
    TRY_GOTO(st, ckpt_list_create(&list, &file), done);
    st = weights_check(m, file, out);
done:
    ckpt_close(&file);
    ckpt_close(&plain);
    tensors_fini(&t);
    return st;
}

/* Reads a published config.json as convert would store it. */
static struct status read_published(const char *path, struct strbuf *config)
{
    char *text = NULL;
    size_t n;
    bool is_text;
    TRY(file_read(path, CONFIG_BYTES_MAX, &text, &n));
    strbuf_add(config, text, n);
    mem_free(&text);
    TRY(strbuf_status(config));
    TRY(published_finite_config(config));
    return published_text_config(config, path, &is_text);
}

static struct status read_config(const struct plan_source *source, struct arch *m,
                                 struct layout_model *out)
{
    struct strbuf config;
    strbuf_init(&config);
    struct status st = read_published(source->path, &config);
    if (!status_failed(&st)) st = arch_parse(config.data, config.n, source->path, m);
    if (!status_failed(&st)) {
        layout_describe(m, (uint32_t)dtype_bytes(source->dtype), out);
        if (source->format != NULL) st = quantized_model(source, config.data, m, out);
    }
    strbuf_fini(&config);
    return st;
}

struct status plan_model_read(const struct plan_source *source, struct arch *m,
                              struct layout_model *out)
{
    const size_t n_path = strlen(source->path);
    if (n_path >= 5 && strcmp(source->path + n_path - 5, ".json") == 0)
        return read_config(source, m, out);
    if (source->format != NULL)
        return status_make(
            STATUS_USAGE, "--format: %s is a checkpoint, which has formats; expected a config.json",
            source->path);
    struct ckpt *c = NULL;
    TRY(ckpt_open(source->path, &c));
    size_t n;
    const char *config = ckpt_config_json(c, &n);
    struct status st = arch_parse(config, n, "config.json", m);
    if (!status_failed(&st)) st = weights_check(m, c, out);
    ckpt_close(&c);
    return status_wrap(st, "%s", source->path);
}
