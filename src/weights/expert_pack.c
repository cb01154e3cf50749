/* Makes the packed copy of the experts, and opens it for a rank. */
#include "weights/expert_pack.h"

#include "base/mem.h"
#include "checkpoint/file/ckpt_room.h"
#include "kernels/ops.h"
#include "weights/expert_stream_private.h"
#include "weights/weights_private.h"

#include <assert.h>
#include <string.h>

/* One layer's experts, cut for one of the ranks that divide each expert among them. */
struct slabs {
    struct weight_spec spec[EXPERT_MATRIX_COUNT];
    const struct ckpt_tensor *tensor[EXPERT_MATRIX_COUNT];
    struct expert_shape shape; /* n_bytes 0: no experts, or this rank's part of them is empty */
};

static enum expert_matrix matrix_of_role(enum weight_role role)
{
    if (role == WEIGHT_EXPERT_GATE) return EXPERT_GATE;
    return role == WEIGHT_EXPERT_UP ? EXPERT_UP : EXPERT_DOWN;
}

static bool spec_is_empty(const struct weight_spec *s)
{
    return range_count(s->rows) == 0 || range_count(s->cols) == 0;
}

/* Finds the slabs of all experts for a layer and a part. */
static struct status slabs_of(const struct weights_source *from, uint32_t layer, uint32_t part,
                              struct slabs *out)
{
    const struct arch *m = from->model;
    struct weights_cut cut = weights_cut_of(from->layout, (struct layout_place){.etp = part});
    cut.experts = (struct range){0, m->moe.n_experts};
    bool is_whole = true;
    uint32_t n = 0;
    *out = (struct slabs){.shape = {.n_bytes = 0}};
    const struct arch_tensor *t;
    for (size_t i = 0; (t = arch_tensor_at(i)) != NULL; i++) {
        if (!t->is_expert || t->is_vector || (t->part & arch_layer_parts(m, layer)) == 0) continue;
        const enum expert_matrix which = matrix_of_role(t->role);
        struct weight_spec *s = &out->spec[which];
        *s = weights_slab(&cut, t);
        arch_tensor_name(t, m->family, layer, s->name, sizeof s->name);
        s->layer = layer;
        out->tensor[which] = ckpt_find(from->ckpt, s->name);
        out->shape.matrix[which] = weights_packed_like(s, out->tensor[which]);
        is_whole = is_whole && !spec_is_empty(s);
        n++;
    }
    assert(n == 0 || n == EXPERT_MATRIX_COUNT);
    return n > 0 && is_whole ? expert_shape_place(&out->shape) : status_ok();
}

/* Computes the shape of the packed copy; out->expert_bytes is *bytes, which the caller frees. */
static struct status pack_shape_of(const struct weights_source *from, uint64_t **bytes,
                                   struct expert_file_shape *out)
{
    const struct layout *l = from->layout;
    const uint32_t n_layers = from->model->n_layers;
    TRY(mem_alloc(bytes, (size_t)n_layers * l->etp, sizeof **bytes, "packed experts"));
    for (uint32_t i = 0; i < n_layers * l->etp; i++) {
        struct slabs s;
        TRY(slabs_of(from, i / l->etp, i % l->etp, &s));
        (*bytes)[i] = s.shape.n_bytes;
    }
    *out = (struct expert_file_shape){
        .digest = ckpt_digest(from->ckpt),
        .n_layers = n_layers,
        .n_experts = from->model->moe.n_experts,
        .n_parts = l->etp,
        .cut = l->etp > 1 && l->cuts_expert_outputs ? EXPERT_CUT_OUTPUTS : EXPERT_CUT_INPUTS,
        .expert_bytes = *bytes};
    return status_ok();
}

struct status expert_pack_sizes_of(const struct weights_source *from, struct expert_pack_sizes *out)
{
    uint64_t *bytes = NULL;
    struct expert_file_shape shape;
    *out = (struct expert_pack_sizes){0};
    const struct status st = pack_shape_of(from, &bytes, &shape);
    for (size_t i = 0; !status_failed(&st) && i < (size_t)shape.n_layers * shape.n_parts; i++) {
        if (bytes[i] > out->expert_bytes) out->expert_bytes = bytes[i];
        out->all_bytes += bytes[i] * shape.n_experts;
    }
    mem_free(&bytes);
    return st;
}

/* --- making ------------------------------------------------------------------------------- */

struct packing {
    const struct weights_source *from;
    struct expert_file_writer *writer;
    struct packed *experts[EXPERT_MATRIX_COUNT]; /* [n_window] owned */
    char *memory;                                /* owned, mapped: the window */
    size_t window_bytes;
    uint32_t n_window; /* experts that fit in the window, of whatever layer */
};

/* Reads the experts [begin, end) of a layer's part into the window. */
static struct status fill_window(struct packing *p, const struct slabs *s, struct range experts)
{
    struct weights nowhere = {.kern = p->from->kern};
    struct loading ld = {
        .w = &nowhere, .m = p->from->model, .l = p->from->layout, .c = p->from->ckpt};
    struct status st = status_ok();
    memset(p->memory, 0, range_count(experts) * s->shape.n_bytes);
    for (int k = 0; k < EXPERT_MATRIX_COUNT && !status_failed(&st); k++) {
        for (uint32_t i = 0; i < range_count(experts); i++)
            p->experts[k][i] =
                expert_shape_at(&s->shape, (enum expert_matrix)k, p->memory + i * s->shape.n_bytes);
        struct target t = {.spec = s->spec[k], .tensor = s->tensor[k], .packed = p->experts[k]};
        t.spec.outer = experts;
        st = weights_want(&ld, t);
    }
    const struct loader_job job = {.c = p->from->ckpt,
                                   .host = MPI_COMM_SELF,
                                   .team = comm_team(p->from->comm),
                                   .wants = ld.wants,
                                   .n_wants = ld.n_targets,
                                   .sink = weights_take_piece,
                                   .ctx = &ld,
                                   .cache = p->from->cache,
                                   .free_bytes = p->from->free_bytes};
    if (!status_failed(&st)) st = loader_run(&job, NULL);
    mem_free(&ld.targets);
    mem_free(&ld.wants);
    return st;
}

static struct status pack_part(struct packing *p, uint32_t layer, uint32_t part)
{
    struct slabs s;
    TRY(slabs_of(p->from, layer, part, &s));
    const uint32_t n_experts = p->from->model->moe.n_experts;
    for (uint32_t e = 0, n; e < n_experts && s.shape.n_bytes > 0; e += n) {
        n = n_experts - e < p->n_window ? n_experts - e : p->n_window;
        TRY(fill_window(p, &s, (struct range){e, e + n}));
        TRY(expert_file_write(p->writer, layer, part, e, n, p->memory));
    }
    return status_ok();
}

static struct status pack_all(struct packing *p, const struct expert_file_shape *shape)
{
    uint64_t largest = EXPERT_FILE_ALIGN;
    for (size_t i = 0; i < (size_t)shape->n_layers * shape->n_parts; i++)
        if (shape->expert_bytes[i] > largest) largest = shape->expert_bytes[i];
    const uint64_t n = p->window_bytes / largest;
    p->n_window = n < 1 ? 1 : n > shape->n_experts ? shape->n_experts : (uint32_t)n;
    p->window_bytes = p->n_window * largest;
    TRY(mem_map(&p->memory, p->window_bytes, "packing experts"));
    for (int k = 0; k < EXPERT_MATRIX_COUNT; k++)
        TRY(mem_alloc(&p->experts[k], p->n_window, sizeof **p->experts, "packing experts"));
    for (uint32_t i = 0; i < shape->n_layers * shape->n_parts; i++)
        TRY(pack_part(p, i / shape->n_parts, i % shape->n_parts));
    return expert_file_finish(p->writer);
}

/* Refuses a disk that is too small before anything is written. */
static struct status check_room(const char *path, const struct expert_file_shape *shape)
{
    uint64_t n_free, n_bytes = 0;
    for (size_t i = 0; i < (size_t)shape->n_layers * shape->n_parts; i++)
        n_bytes += shape->expert_bytes[i] * shape->n_experts;
    TRY(ckpt_room_free(path, &n_free));
    if (n_bytes <= n_free) return status_ok();
    return status_make(STATUS_IO,
                       "%s: the packed copy of the experts takes %.1f MB, the file system has %.1f "
                       "MB free; give another --expert-file",
                       path, (double)n_bytes / 1e6, (double)n_free / 1e6);
}

static struct status make_file(const struct weights_source *from, const char *path,
                               size_t window_bytes, const struct expert_file_shape *shape)
{
    struct packing p = {.from = from, .window_bytes = window_bytes};
    struct expert_file *made = NULL;
    TRY(check_room(path, shape));
    TRY(expert_file_create(path, shape, &p.writer));
    /* this process may have waited for another one that made the file */
    struct status st = expert_file_open(path, shape, &made);
    if (!status_failed(&st) && made == NULL) st = pack_all(&p, shape);
    expert_file_close(&made);
    if (p.memory != NULL) mem_unmap(&p.memory, p.window_bytes);
    for (int k = 0; k < EXPERT_MATRIX_COUNT; k++) mem_free(&p.experts[k]);
    expert_file_writer_destroy(&p.writer);
    return st;
}

struct status expert_pack_make(const struct weights_source *from, const char *path,
                               size_t window_bytes)
{
    uint64_t *bytes = NULL;
    struct expert_file_shape shape;
    struct expert_file *found = NULL;
    struct status st = pack_shape_of(from, &bytes, &shape);
    if (!status_failed(&st)) st = expert_file_open(path, &shape, &found);
    if (!status_failed(&st) && found == NULL) st = make_file(from, path, window_bytes, &shape);
    expert_file_close(&found);
    mem_free(&bytes);
    return st;
}

/* --- a rank's stream ---------------------------------------------------------------------- */

/* Adds the stage's MoE layers to the stream, and sets the stream in their weights. */
static struct status add_layers(struct expert_stream *s, struct weights *w,
                                const struct weights_source *from)
{
    const uint32_t n = range_count(w->layers);
    TRY(mem_alloc(&s->layer_at, n, sizeof *s->layer_at, "streamed experts"));
    TRY(mem_alloc(&s->layers, n, sizeof *s->layers, "streamed experts"));
    for (uint32_t i = 0; i < n; i++) {
        struct layer *layer = &w->stage_layers[i];
        struct slabs slabs;
        if (!layer->is_moe) continue;
        TRY(slabs_of(from, layer->index, s->part, &slabs));
        s->layer_at[i] = s->n_layers;
        s->layers[s->n_layers++] =
            (struct stream_layer){.file_layer = layer->index,
                                  .shape = slabs.shape,
                                  .matrix = {layer->moe.gate, layer->moe.up, layer->moe.down},
                                  .expert_at = layer->moe.expert_at};
        layer->moe.stream = s;
        if (slabs.shape.n_bytes > s->slot_bytes) s->slot_bytes = slabs.shape.n_bytes;
    }
    return status_ok();
}

static struct status stream_init(struct expert_stream *s, struct weights *w,
                                 const struct weights_source *from)
{
    s->failpoint = from->failpoint;
    s->part = from->place.etp;
    s->first_place = w->experts.begin;
    s->n_local = range_count(w->experts);
    TRY(add_layers(s, w, from));
    if (s->slot_bytes == 0) s->n_local = 0; /* this rank's part of each expert is empty */
    TRY(expert_stream_set(s));
    return team_cpus(comm_team(from->comm), &s->cpus);
}

struct status weights_open_stream(struct weights *w, const struct weights_source *from)
{
    struct expert_stream *s = NULL;
    uint64_t *bytes = NULL;
    struct expert_file_shape shape;
    TRY(expert_stream_create(&s));
    w->stream = s;
    struct status st = pack_shape_of(from, &bytes, &shape);
    if (!status_failed(&st)) st = expert_file_open(from->expert_file, &shape, &s->file);
    mem_free(&bytes);
    TRY(st);
    if (s->file == NULL) {
        return status_make(STATUS_INPUT,
                           "%s: the packed copy of the experts is missing on this host",
                           from->expert_file);
    }
    return stream_init(s, w, from);
}
