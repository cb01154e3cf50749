/* The first half of a gated FFN as one op: a thread that has some columns of gate and up also makes
 * their product, and its codes, so that nobody waits for one thread between two linears. */
#include "kernels/ops.h"

#include "kernels/cuda/ops_cuda.h"
#include "kernels/linear_strips.h"

#include <assert.h>

enum { CODED_PANELS = 4 /* most panels of a unit: longer groups leave too little to cut */ };

struct gated_job {
    const struct kern_table *k;
    const struct linear_args *gate, *up;
    const struct quant_rows *codes; /* NULL: none are made here */
    size_t unit;
};

/* The product of columns [column0, column1) of one row, and its codes. */
static void gate_columns(const struct gated_job *job, size_t row, size_t column0, size_t column1)
{
    float *gate = job->gate->y + row * job->gate->y_stride + column0;
    const float *up = job->up->y + row * job->up->y_stride + column0;
    const size_t n = column1 - column0;
    job->k->swiglu(gate, up, n, gate);
    if (job->codes == NULL) return;
    struct quant_rows part = *job->codes;
    const size_t first = column0 / part.group, i = row * part.n_groups + first;
    part.n_groups = (n + part.group - 1) / part.group;
    part.codes += i * part.group;
    part.scales += i;
    part.sums += i;
    job->k->quantize_row(gate, n, &part, 0);
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
    size_t panel0, panel1;
    for (size_t g = 0; g < job->gate->n_groups; g++) {
        const struct linear_group *gate = &job->gate->groups[g], *up = &job->up->groups[g];
        for (size_t row = 0; row < gate->n_rows; row += LINEAR_ROWS) {
            const struct strip s = gated_strip(job, g, row);
            if (!strip_take(&part, &s, &panel0, &panel1)) continue;
            slice_of(job->k, gate->w, false)(job->gate, g, panel0, panel1, row, row + s.n_rows);
            slice_of(job->k, up->w, false)(job->up, g, panel0, panel1, row, row + s.n_rows);
            const size_t end = panel1 * PANEL_COLUMNS, n_out = gate->w->n_out;
            for (size_t i = row; i < row + s.n_rows; i++)
                gate_columns(job, gate->row0 + i, panel0 * PANEL_COLUMNS,
                             end < n_out ? end : n_out);
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
        const struct linear_args both[2] = {a->gate, a->up};
        cuda_op_linears(k->device, both, 2);
        cuda_op_swiglu(k->device, a->gate.y, a->up.y, f, a->n_rows, f, a->gate.y, f);
        if (q != NULL) cuda_op_quantize_rows(k->device, a->gate.y, f, a->n_rows, f, q);
        return;
    }
    struct gated_job job = {k, &a->gate, &a->up, q, TILE_PANELS};
    if (q != NULL && q->group > CODED_PANELS * PANEL_COLUMNS) job.codes = NULL;
    if (a->n_rows == 1) job.unit = job.codes != NULL ? q->group / PANEL_COLUMNS : 0;
    gated_here(&job);
    if (q != NULL && job.codes == NULL) op_quantize_rows(k, a->gate.y, f, a->n_rows, f, q);
}
