/* Embedding, gathering, placing, adding and moving rows, and counting marks; on the CPU only
 * placing and adding rows are threaded. Also the ops that only a device has. */
#include "kernels/ops.h"

#include "kernels/device_ops.h"
#include "kernels/part.h"

#include <assert.h>
#include <string.h>

void op_take_marks(const struct kern_table *k, const int32_t *marks, size_t n, int32_t *bad,
                   int32_t *dropped)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->take_marks(k->device, marks, n, bad, dropped);
        return;
    }
    for (size_t t = 0; t < n; t++) {
        bad[t] += marks[2 * t];
        dropped[t] += marks[2 * t + 1];
    }
}

void op_embed(const struct kern_table *k, const struct embed_args *a)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->embed(k->device, a);
        return;
    }
    for (size_t t = 0; t < a->n_rows; t++) {
        const uint32_t id = (uint32_t)a->tokens[t];
        float *row = a->h + t * a->w->n_in;
        if (id >= a->vocab_begin && id < a->vocab_end) {
            op_embed_row(a->w, id - a->vocab_begin, row);
        } else {
            memset(row, 0, a->w->n_in * sizeof *row);
        }
    }
}

void op_gather_rows(const struct kern_table *k, const struct gather_args *a)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->gather_rows(k->device, a);
        return;
    }
    for (size_t i = 0; i < a->n_rows; i++)
        memcpy(a->to + i * a->width, a->from + (size_t)a->rows[i] * a->width,
               a->width * sizeof *a->to);
}

struct place_job {
    const struct kern_table *k; /* NULL: rows are copied, not added */
    const struct place_args *a;
};

static void place_part(const void *job_, struct part part)
{
    const struct place_job *job = job_;
    const struct place_args *a = job->a;
    size_t i, end;
    if (!part_take(&part, a->n_rows, a->width + 1, &i, &end)) return;
    for (; i < end; i++) {
        const float *from = a->from + i * (a->from_stride > 0 ? a->from_stride : a->width);
        float *to = a->to + i * a->to_stride;
        if (job->k != NULL) {
            job->k->add(to, from, a->width);
        } else {
            memcpy(to, from, a->width * sizeof *to);
        }
    }
}

void op_place_rows(const struct kern_table *k, const struct place_args *a)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->place_rows(k->device, a);
        return;
    }
    const struct place_job job = {NULL, a};
    part_run(k->team, (uint64_t)a->n_rows * (a->width + 1), place_part, &job);
}

void op_add_rows(const struct kern_table *k, const struct place_args *a)
{
    assert(k->device == NULL);
    const struct place_job job = {k, a};
    part_run(k->team, (uint64_t)a->n_rows * (a->width + 1), place_part, &job);
}

void op_move_rows(const struct kern_table *k, const struct move_args *a)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->move_rows(k->device, a);
        return;
    }
    for (size_t i = 0; i < a->n_rows; i++) {
        const size_t from = (size_t)a->from_row[i];
        uint32_t *to = (uint32_t *)a->to + (size_t)a->to_row[i] * a->to_stride;
        memcpy(to, (const uint32_t *)a->from + from * a->width, a->width * sizeof *to);
        if (a->extra != NULL) to[a->width] = (uint32_t)a->extra[from];
    }
}

void op_argmax_rows(const struct kern_table *k, const struct argmax_args *a)
{
    assert(k->device != NULL);
    device_ops_of(k->device)->argmax_rows(k->device, a);
}

void op_score_rows(const struct kern_table *k, const struct score_args *a)
{
    assert(k->device != NULL);
    device_ops_of(k->device)->score_rows(k->device, a);
}

void op_change_logits(const struct kern_table *k, const struct change_logits_args *a)
{
    assert(k->device != NULL);
    device_ops_of(k->device)->change_logits(k->device, a);
}

void op_pick_rows(const struct kern_table *k, const struct pick_args *a)
{
    assert(k->device != NULL);
    device_ops_of(k->device)->pick_rows(k->device, a);
}
