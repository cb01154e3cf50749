/* The rows of a stage between its linears: norms and codes. Where tp ranks share a host's memory
 * and linears are cut by outputs, each rank holds a slice of a step's rows: it adds what comes to
 * h, norms and quantizes them, and all read the normed rows and codes where they stand. Called by
 * the stage's blocks. Korthikanti et al., 2022 (arXiv 2205.05198), section 4.2.2. */
#include "base/mem.h"
#include "kernels/ops.h"
#include "model/stage_private.h"

enum { ROWS_WORTH_CUTTING = 8 /* rows of a slice; below, every rank does all of them */ };

struct status stage_make_slices(struct stage *s)
{
    const struct layout *l = s->o.layout;
    s->slices = l->cuts_outputs && (s->moe == NULL || moe_takes_slices(s->moe));
    if (!s->slices) return status_ok();
    return mem_alloc(&s->slice_words, 2 * (size_t)l->tp, sizeof *s->slice_words, "workspace");
}

struct range stage_own_rows(const struct stage *s, size_t n_rows)
{
    const uint32_t tp = s->o.layout->tp;
    if (!s->slices || n_rows < (size_t)ROWS_WORTH_CUTTING * tp)
        return (struct range){0, (uint32_t)n_rows};
    return layout_split((uint32_t)n_rows, 1, tp, s->o.weights->place.tp);
}

static bool is_cut(const struct part *p)
{
    return range_count(p->own) < p->hidden.n_rows;
}

void stage_share_normed(struct stage *s)
{
    const size_t n = s->o.max_rows, d = s->o.model->width;
    if (!s->slices || s->shared_x != NULL) return;
    const size_t n_floats = (n * d * sizeof(float) + 63) / 64 * 64;
    s->shared_x =
        comm_common_lane(s->o.comm, COMM_TP, COMM_LANE_NORMED, n_floats + act_codes_bytes(n, d));
    s->shared_codes = (char *)s->shared_x + n_floats;
}

/* Where the codes of rows that begin with `row` go. */
static struct quant_rows codes_from(const struct quant_rows *all, size_t row)
{
    struct quant_rows from = *all;
    from.codes += row * all->n_groups * all->group;
    from.scales += row * all->n_groups;
    from.sums += row * all->n_groups;
    return from;
}

struct act_rows stage_norm(struct stage *s, const struct part *p, const float *norm,
                           enum tap_site site, const struct packed *first)
{
    const size_t n_rows = p->hidden.n_rows, d = s->o.model->width, row0 = p->own.begin;
    const bool shares = is_cut(p);
    struct act_rows rows = stage_input(s, shares ? s->shared_x : s->x, n_rows, d);
    if (shares && rows.memory != NULL) rows.memory = s->shared_codes;
    const struct quant_rows *all = first != NULL ? act_codes_to_make(&rows, first) : NULL;
    struct quant_rows codes;
    if (all != NULL) codes = codes_from(all, row0);
    const struct norm_args a = {.x = p->hidden.h + row0 * d,
                                .w = norm,
                                .n_rows = range_count(p->own),
                                .n = d,
                                .eps = s->o.model->norm_eps,
                                .y = (shares ? s->shared_x : s->x) + row0 * d,
                                .codes = all != NULL ? &codes : NULL};
    op_norm_codes(s->o.kern, &a);
    if (shares) {
        comm_barrier(s->o.comm, COMM_TP); /* all rows are there */
        rows.memory = s->codes;           /* of another group's codes: others read these */
    }
    stage_show(s, site, rows.x, n_rows, d);
    return rows;
}

void stage_gather_rows(struct stage *s, const struct part *p)
{
    const size_t d = s->o.model->width;
    int *counts = s->slice_words, *displs = counts + s->o.layout->tp;
    if (!is_cut(p)) return;
    for (size_t width = d; width > 0; width = width == d ? 1 : 0) {
        for (uint32_t r = 0; r < s->o.layout->tp; r++) {
            const struct range own =
                layout_split((uint32_t)p->hidden.n_rows, 1, s->o.layout->tp, r);
            counts[r] = (int)(range_count(own) * width);
            displs[r] = (int)(own.begin * width);
        }
        void *words = width == d ? (void *)p->hidden.h : p->hidden.bad;
        comm_gather_words(s->o.comm, COMM_TP, words, counts, displs);
    }
}
