/* Rows of sums as one run of words: values, then the row's counter, then the next row. */
#include "kernels/grid_sum.h"

#include "kernels/device_comm.h"
#include "kernels/fpenv.h"
#include "kernels/ops.h"

#include <string.h>

/* A piece of a run that lies in one row: columns [column, column + n), or the counter alone. */
struct piece {
    size_t row, column, n;
    bool is_counter;
};

static struct piece piece_at(const struct grid_sum *s, size_t at, size_t end)
{
    const size_t row = at / (s->n_out + 1), column = at % (s->n_out + 1);
    const size_t left = s->n_out - column, n = end - at < left ? end - at : left;
    return (struct piece){row, column, left == 0 ? 1 : n, left == 0};
}

static void convert(const void *ctx, const int64_t *sums, size_t first, size_t n, uint32_t *words)
{
    const struct grid_sum *s = ctx;
    fpenv_set();
    for (size_t at = first; at < first + n;) {
        const struct piece p = piece_at(s, at, first + n);
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

static void count(const struct grid_sum *s, size_t row, uint32_t n_bad)
{
    const uint32_t room = (uint32_t)(INT32_MAX - s->bad[row]);
    s->bad[row] = n_bad > room ? INT32_MAX : s->bad[row] + (int32_t)n_bad;
}

static void take_add(const void *ctx, const uint32_t *words, size_t first, size_t n)
{
    const struct grid_sum *s = ctx;
    fpenv_set();
    for (size_t at = first; at < first + n;) {
        const struct piece p = piece_at(s, at, first + n);
        const uint32_t *from = words + (at - first);
        if (p.is_counter) {
            count(s, p.row, *from);
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
        const struct piece p = piece_at(s, at, first + n);
        const uint32_t *from = words + (at - first);
        if (p.is_counter) {
            count(s, p.row, *from);
        } else {
            memcpy(s->y + p.row * s->n_out + p.column, from, p.n * sizeof *from);
        }
        at += p.n;
    }
}

static struct comm_sum sum_of(const struct grid_sum *s)
{
    return (struct comm_sum){
        .sums = s->sums, .n = s->n_rows * (s->n_out + 1), .convert = convert, .ctx = s};
}

void grid_sum_add(const struct grid_sum *s, struct comm *c, enum comm_axis axis)
{
    if (comm_size(c, axis) == 1 || s->kern->device != NULL) {
        device_sum_i64(s->kern, c, axis, s->sums, s->n_rows * (s->n_out + 1));
        op_grid_add(s->kern, s->sums, s->n_rows, s->n_out, s->grid_bits, s->y, s->bad);
        return;
    }
    struct comm_sum sum = sum_of(s);
    sum.take = take_add;
    comm_sum_words(c, axis, &sum);
}

void grid_sum_to_f32(const struct grid_sum *s, struct comm *c, enum comm_axis axis)
{
    if (comm_size(c, axis) == 1 || s->kern->device != NULL) {
        device_sum_i64(s->kern, c, axis, s->sums, s->n_rows * (s->n_out + 1));
        op_grid_to_f32(s->kern, s->sums, s->n_rows, s->n_out, s->grid_bits, s->y, s->bad);
        return;
    }
    struct comm_sum sum = sum_of(s);
    sum.take = take_copy;
    comm_sum_words(c, axis, &sum);
}
