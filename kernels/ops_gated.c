/* The first half of a gated FFN as one op. The thread that computes some columns of gate and up
 * also computes the gated product and quantizes it, so that no thread waits between the steps. */
#include "kernels/ops.h"

#include "kernels/device_ops.h"
#include "kernels/linear_strips.h"

#include <assert.h>

enum {
    CODED_PANELS = 4,   /* most panels of a unit; larger groups are quantized afterwards, because
                           large units divide badly */
    SCRATCH_PANELS = 8, /* panels in scratch memory: twice 128 KiB for all rows of a strip */
    SCRATCH_ROWS = 16, /* fewest rows for scratch memory; fewer rows are limited by reading weights,
                          whose streams it would interrupt */
};

struct gated_job {
    const struct kern_table *k;
    const struct linear_args *gate, *up;
    const struct quant_rows *codes; /* NULL: do not quantize here */
    size_t unit;
    enum gate_kind kind;
    bool codes_alone; /* only the quantized values are kept */
};

/* Gate and up of some panels, for a strip's rows. The gated product and its quantization read them
 * while the cache still holds them. */
struct scratch {
    float gate[LINEAR_ROWS][SCRATCH_PANELS * PANEL_COLUMNS] __attribute__((aligned(64)));
    float up[LINEAR_ROWS][SCRATCH_PANELS * PANEL_COLUMNS] __attribute__((aligned(64)));
};

static void run_linear(const struct gated_job *job, const struct linear_args *a,
                       const struct linear_slice *p)
{
    slice_of(job->k, a->groups[p->group].w, false)(a, p);
}

/* Quantizes n columns of a row, from column0 on. */
static void put_gated_codes(const struct gated_job *job, const float *gate, size_t n, size_t row,
                            size_t column0)
{
    struct quant_rows part = *job->codes;
    const size_t first = column0 / part.group, i = row * part.n_groups + first;
    part.n_groups = (n + part.group - 1) / part.group;
    part.codes += i * part.group;
    part.scales += i;
    part.sums += i;
    job->k->quantize_row(gate, n, &part, 0);
}

/* Computes gate and up, writes their gated product to gate's y, and quantizes it. */
static void run_piece(const struct gated_job *job, const struct linear_args *gate,
                      const struct linear_args *up, const struct linear_slice *p)
{
    const struct linear_group *g = &gate->groups[p->group];
    const size_t end = p->panel1 * PANEL_COLUMNS, column0 = p->panel0 * PANEL_COLUMNS;
    const size_t n = (end < g->w->n_out ? end : g->w->n_out) - column0;
    run_linear(job, gate, p);
    run_linear(job, up, p);
    for (size_t row = g->row0 + p->row0; row < g->row0 + p->row1; row++) {
        const size_t column = column0 - gate->y_panel * PANEL_COLUMNS;
        float *y = gate->y + (row - gate->y_row) * gate->y_stride + column;
        kern_gate(job->k, job->kind, y, up->y + (row - up->y_row) * up->y_stride + column, n, y);
        if (job->codes != NULL) put_gated_codes(job, y, n, row, column0);
    }
}

/* Does what run_piece does, a few panels at a time in scratch memory; only the quantized values are
 * kept. */
static void run_in_scratch(const struct gated_job *job, const struct linear_slice *whole)
{
    struct scratch s;
    struct linear_args gate = *job->gate, up = *job->up;
    gate.y = s.gate[0];
    up.y = s.up[0];
    gate.y_stride = up.y_stride = SCRATCH_PANELS * PANEL_COLUMNS;
    gate.y_row = up.y_row = gate.groups[whole->group].row0 + whole->row0;
    for (struct linear_slice p = *whole; p.panel0 < whole->panel1; p.panel0 = p.panel1) {
        p.panel1 =
            p.panel0 + SCRATCH_PANELS < whole->panel1 ? p.panel0 + SCRATCH_PANELS : whole->panel1;
        gate.y_panel = up.y_panel = p.panel0;
        run_piece(job, &gate, &up, &p);
    }
}

static struct strip gated_strip(const struct gated_job *job, size_t g, size_t row)
{
    struct strip s = strip_of(job->gate, &job->gate->groups[g], row, job->unit);
    s.unit_cost += strip_of(job->up, &job->up->groups[g], row, job->unit).unit_cost;
    return s;
}

static void gated_part(const void *job_, struct part part)
{
    const struct gated_job *job = job_;
    struct linear_slice p;
    for (p.group = 0; p.group < job->gate->n_groups; p.group++) {
        const size_t n_rows = job->gate->groups[p.group].n_rows;
        for (p.row0 = 0; p.row0 < n_rows; p.row0 += LINEAR_ROWS) {
            const struct strip s = gated_strip(job, p.group, p.row0);
            p.row1 = p.row0 + s.n_rows;
            if (!strip_take(&part, &s, &p.panel0, &p.panel1)) continue;
            if (job->codes_alone && s.n_rows >= SCRATCH_ROWS)
                run_in_scratch(job, &p);
            else
                run_piece(job, job->gate, job->up, &p);
        }
    }
}

static void gated_here(struct gated_job *job)
{
    uint64_t cost = 0;
    for (size_t g = 0; g < job->gate->n_groups; g++) {
        assert(job->gate->groups[g].n_rows == job->up->groups[g].n_rows);
        for (size_t row = 0; row < job->gate->groups[g].n_rows; row += LINEAR_ROWS) {
            const struct strip s = gated_strip(job, g, row);
            cost += s.n_units * s.unit_cost;
        }
    }
    if (cost > 0) part_run(job->k->team, cost, gated_part, job);
}

void op_gated(const struct kern_table *k, const struct gated_args *a)
{
    const size_t f = a->gate.y_stride;
    const struct quant_rows *q = a->codes;
    if (k->device != NULL) {
        assert(a->kind != GATE_GEGLU_EXACT);
        device_ops_of(k->device)->gated(k->device, a);
        return;
    }
    struct gated_job job = {k, &a->gate, &a->up, q, TILE_PANELS, a->kind, false};
    if (q != NULL && q->group > CODED_PANELS * PANEL_COLUMNS) job.codes = NULL;
    job.codes_alone = a->codes_alone && job.codes != NULL;
    if (a->n_rows == 1) job.unit = job.codes != NULL ? q->group / PANEL_COLUMNS : 0;
    gated_here(&job);
    if (q != NULL && job.codes == NULL) op_quantize_rows(k, a->gate.y, f, a->n_rows, f, q);
}
