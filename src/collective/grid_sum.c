/* Treats rows of sums as one run of words: values, then the row's counter, then the next row. */
#include "collective/grid_sum.h"

#include "collective/device_comm.h"
#include "kernels/fpenv.h"
#include "kernels/ops.h"

#include <string.h>

/* A part of a run that lies within one row: columns [column, column + n), or only the counter. */
struct piece {
    size_t row, column, n;
    bool is_counter;
};

static struct piece grid_sum_piece_at(const struct grid_sum *s, size_t at, size_t end)
{
    const size_t row = at / (s->n_out + 1), column = at % (s->n_out + 1);
    const size_t left = s->n_out - column, n = end - at < left ? end - at : left;
    return (struct piece){row, column, left == 0 ? 1 : n, left == 0};
}

static void grid_sum_convert(const void *ctx, const int64_t *sums, size_t first, size_t n,
                             uint32_t *words)
{
    const struct grid_sum *s = ctx;
    fpenv_set();
    for (size_t at = first; at < first + n;) {
        const struct piece p = grid_sum_piece_at(s, at, first + n);
        const int64_t *from = sums + (at - first);
        uint32_t *to = words + (at - first);
        if (p.is_counter) {
            *to = *from > INT32_MAX ? INT32_MAX : (uint32_t)*from;
        } else {
            s->kern->grid_to_f32(from, p.n, s->grid_bits, (float *)(void *)to);
        }
        at += p.n;
    }
}

static void grid_sum_count(const struct grid_sum *s, size_t row, uint32_t n_bad)
{
    const uint32_t room = (uint32_t)(INT32_MAX - s->bad[row]);
    s->bad[row] = n_bad > room ? INT32_MAX : s->bad[row] + (int32_t)n_bad;
}

static void take_add(const void *ctx, const uint32_t *words, size_t first, size_t n)
{
    const struct grid_sum *s = ctx;
    fpenv_set();
    for (size_t at = first; at < first + n;) {
        const struct piece p = grid_sum_piece_at(s, at, first + n);
        const uint32_t *from = words + (at - first);
        if (p.is_counter) {
            grid_sum_count(s, p.row, *from);
        } else {
            s->kern->add(s->y + p.row * s->n_out + p.column, (const float *)(const void *)from,
                         p.n);
        }
        at += p.n;
    }
}

static void take_copy(const void *ctx, const uint32_t *words, size_t first, size_t n)
{
    const struct grid_sum *s = ctx;
    for (size_t at = first; at < first + n;) {
        const struct piece p = grid_sum_piece_at(s, at, first + n);
        const uint32_t *from = words + (at - first);
        if (p.is_counter) {
            grid_sum_count(s, p.row, *from);
        } else {
            memcpy(s->y + p.row * s->n_out + p.column, from, p.n * sizeof *from);
        }
        at += p.n;
    }
}

size_t grid_sum_room(size_t n_rows, size_t n_out, const struct comm *c, enum comm_axis axis)
{
    return n_rows * (n_out + 1) + (size_t)comm_size(c, axis) - 1;
}

/* On a device: starts to add up the ranks' sums. On the CPU grid_sum_finish does all the
 * work, because adding the sums uses the same threads as any op that could run meanwhile. */
void grid_sum_start(const struct grid_sum *s, struct comm *c, enum comm_axis axis, int lane)
{
    if (s->kern->device != NULL) device_sum_start(s, c, axis, lane);
}

static void grid_sum_finish(const struct grid_sum *s, struct comm *c, enum comm_axis axis, int lane,
                            bool adds)
{
    if (s->kern->device != NULL) {
        device_sum_finish(s, c, axis, lane, adds);
    } else if (comm_size(c, axis) > 1) {
        const struct comm_sum sum = {.sums = s->sums,
                                     .n = s->n_rows * (s->n_out + 1),
                                     .convert = grid_sum_convert,
                                     .take = adds ? take_add : take_copy,
                                     .ctx = s};
        comm_sum_words(c, axis, &sum);
    } else {
        grid_sum_round(s, adds);
    }
}

void grid_sum_finish_add(const struct grid_sum *s, struct comm *c, enum comm_axis axis, int lane)
{
    grid_sum_finish(s, c, axis, lane, true);
}

void grid_sum_finish_to_f32(const struct grid_sum *s, struct comm *c, enum comm_axis axis, int lane)
{
    grid_sum_finish(s, c, axis, lane, false);
}

void grid_sum_to_f32(const struct grid_sum *s, struct comm *c, enum comm_axis axis)
{
    grid_sum_start(s, c, axis, GRID_SUM_NOW);
    grid_sum_finish(s, c, axis, GRID_SUM_NOW, false);
}
