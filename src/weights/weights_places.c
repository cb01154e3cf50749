/* Reads experts whose places are not their ids, and moves experts between steps. */
#include "kernels/kern.h"
#include "kernels/ops.h"
#include "parallel/layout/expert_places.h"
#include "weights/weights_private.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

struct status weights_want_placed(struct loading *ld, const struct target *t,
                                  const uint32_t *expert, const uint32_t *was)
{
    const struct range places = t->spec.is_vector ? t->spec.rows : t->spec.outer;
    for (uint32_t at = places.begin, n; at < places.end; at += n) {
        n = 1;
        if (was != NULL && was[at] == expert[at]) continue;
        while (at + n < places.end && expert[at + n] == expert[at] + n &&
               (was == NULL || was[at + n] != expert[at + n]))
            n++;
        const struct range run = {expert[at], expert[at] + n};
        struct target part = *t;
        if (t->spec.is_vector) {
            part.spec.rows = run;
            part.vector += (size_t)(at - places.begin) * range_count(t->spec.cols);
        } else {
            part.spec.outer = run;
            part.packed += at - places.begin;
        }
        TRY(weights_want(ld, part));
    }
    return status_ok();
}

struct moving {
    struct loading ld;
    const struct expert_places *to;
};

/* Asks for the experts of a slab that are new at this rank's places. */
static struct status want_moved(void *ctx, const struct weight_spec *s)
{
    struct moving *m = ctx;
    if (!s->is_expert) return status_ok();
    struct target t = {.spec = *s, .tensor = ckpt_find(m->ld.c, s->name)};
    void *place = weights_place_of(m->ld.w, s);
    if (s->is_vector)
        memcpy(&t.vector, place, sizeof t.vector);
    else
        memcpy(&t.packed, place, sizeof t.packed);
    const size_t first = (size_t)s->layer * m->to->n_places;
    return weights_want_placed(&m->ld, &t, m->to->expert + first,
                               m->ld.l->expert_places->expert + first);
}

/* Resets the matrix of a replaced expert to its state before the first load: in the tensor's stored
 * format, and zeros. */
static void clear_matrix(struct packed *p, const struct ckpt_tensor *t)
{
    p->quant = t->quant; /* fp8 may have become int8 */
    p->fp8_plain = false;
    if (t->quant.kind == QUANT_NONE) {
        memset((void *)p->data, 0, packed_bytes_of(p));
        return;
    }
    const struct packed_quant_sizes n = packed_quant_bytes(p->quant, p->n_out, p->n_in);
    memset((void *)p->data, 0, n.data);
    memset((void *)p->scales, 0, n.scales);
    if (n.zeros > 0) memset((void *)p->zeros, 0, n.zeros);
}

static void clear_targets(const struct loading *ld)
{
    for (size_t i = 0; i < ld->n_targets; i++) {
        const struct target *t = &ld->targets[i];
        if (t->spec.is_vector || t->part != CKPT_CODES) continue;
        for (uint32_t e = 0; e < range_count(t->spec.outer); e++)
            clear_matrix(&t->packed[e], t->tensor);
    }
}

struct status weights_move_experts(const struct weights_source *from, struct weights *w,
                                   const struct expert_places *to, struct loader_stats *stats)
{
    struct moving m = {.ld = {.c = from->ckpt, .m = from->model, .l = from->layout, .w = w},
                       .to = to};
    assert(!w->streams_experts && w->kern->device == NULL);
    struct status st = weights_list(from->layout, w->place, want_moved, &m);
    st = comm_agree(from->comm, st); /* other ranks may read lent experts until they come here */
    if (!status_failed(&st)) {
        clear_targets(&m.ld);
        st = weights_read(from, &m.ld, stats);
        if (!status_failed(&st)) weights_prepare_fp8(&m.ld, from->fp8_as_int8);
        st = comm_agree(from->comm, st);
    }
    if (w->lends_by != NULL && !status_failed(&st)) {
        st = weights_lend(w, from->layout);
        st = comm_agree(from->comm, st);
    }
    mem_free(&m.ld.targets);
    mem_free(&m.ld.wants);
    return st;
}
