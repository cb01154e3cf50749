/* Linears as launches of own kernels, and weights on their way into device memory. Flat weights go
 * to a library: gemm_cuda.c. */
#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/ops_cuda.h"

#include "base/mem.h"
#include "kernels/quant_body.h"

#include <assert.h>
#include <string.h>

enum {
    MMA_ROWS_LEAST = 12, /* of a group, on average: below, most of a tile on tensor cores is air,
                            and weights are read for few rows */
    PACK_ROWS_MAX = 1 << 15
};

static size_t row_tiles(size_t n_rows, uint32_t at_once)
{
    return (n_rows + at_once - 1) / at_once;
}

/* The groups' weights and tiles of up to at_once rows, on the device. Returns the tiles; 0 after a
 * failure. */
static size_t list_tiles(struct device *d, const struct linear_args *a, uint32_t at_once,
                         struct linear_work *w)
{
    size_t n = 0, at = 0;
    for (size_t g = 0; g < a->n_groups; g++) n += row_tiles(a->groups[g].n_rows, at_once);
    struct linear_tile *tiles = NULL;
    struct packed *weights = NULL;
    struct status st = mem_alloc(&tiles, n, sizeof *tiles, "row tiles");
    if (!status_failed(&st)) st = mem_alloc(&weights, a->n_groups, sizeof *weights, "row tiles");
    for (size_t g = 0; !status_failed(&st) && g < a->n_groups; g++) {
        const struct linear_group *group = &a->groups[g];
        weights[g] = *group->w;
        for (size_t row = 0; row < group->n_rows; row += at_once) {
            const size_t left = group->n_rows - row;
            tiles[at++] =
                (struct linear_tile){.group = (uint32_t)g,
                                     .row0 = (uint32_t)(group->row0 + row),
                                     .n_rows = (uint32_t)(left < at_once ? left : at_once)};
        }
    }
    if (!status_failed(&st)) {
        w->tiles = device_call(d, tiles, n * sizeof *tiles);
        w->weights = device_call(d, weights, a->n_groups * sizeof *weights);
    } else if (!device_is_lost(d)) {
        d->failed = st;
    }
    mem_free(&tiles);
    mem_free(&weights);
    return device_is_lost(d) ? 0 : n;
}

/* Rows and outputs of one block of a kernel; the bits are the same whichever runs. */
struct choice {
    enum cuda_kernel kernel;
    uint32_t n_rows, n_outputs, shared_bytes;
};

static struct choice choose(const struct linear_args *a, bool leafy)
{
    const enum quant_kind kind = a->groups[0].w->quant.kind;
    const bool floats = kind == QUANT_NONE || kind == QUANT_FP8;
    size_t n_rows = 0;
    for (size_t g = 0; g < a->n_groups; g++) n_rows += a->groups[g].n_rows;
    const bool fits = a->groups[0].w->n_out < (uint32_t)CUDA_FEW_OUTPUTS * UINT16_MAX;
    if (n_rows < MMA_ROWS_LEAST * a->n_groups && (floats || a->xq != NULL) && fits)
        return (struct choice){leafy ? CUDA_KERNEL_linear_few_leaf : CUDA_KERNEL_linear_few,
                               CUDA_LINEAR_ROWS, CUDA_FEW_OUTPUTS, CUDA_FEW_SHARED};
    if (!floats && a->xq != NULL)
        return (struct choice){leafy ? CUDA_KERNEL_linear_mma_leaf : CUDA_KERNEL_linear_mma,
                               CUDA_MMA_ROWS, CUDA_MMA_OUTPUTS, 0};
    const enum cuda_kernel plain = leafy ? CUDA_KERNEL_linear_leaf : CUDA_KERNEL_linear;
    const enum cuda_kernel quant = leafy ? CUDA_KERNEL_linear_quant_leaf : CUDA_KERNEL_linear_quant;
    return (struct choice){kind == QUANT_NONE ? plain : quant, CUDA_LINEAR_ROWS, CUDA_THREADS, 0};
}

static void run(struct device *d, const struct linear_args *a, bool leafy)
{
    if (a->n_groups == 0) return;
    const struct packed *first = a->groups[0].w;
    if (first->flat != 0 && a->n_groups == 1) {
        device_gemm_run(d, a, leafy);
        return;
    }
    struct linear_work w = {.one = *first,
                            .row0 = a->groups[0].row0,
                            .n_rows = a->groups[0].n_rows,
                            .x = a->x,
                            .x_stride = a->x_stride,
                            .y = a->y,
                            .y_stride = a->y_stride,
                            .sums = a->sums};
    if (a->xq != NULL) w.xq = *a->xq;
    const struct choice c = choose(a, leafy);
    const size_t n_tiles =
        a->n_groups == 1 ? row_tiles(w.n_rows, c.n_rows) : list_tiles(d, a, c.n_rows, &w);
    const uint32_t n_leaves = leafy ? (first->n_in + first->leaf - 1) / first->leaf : 1;
    const uint32_t n_blocks = (first->n_out + c.n_outputs - 1) / c.n_outputs;
    device_launch(d, c.kernel,
                  (struct cuda_grid){n_blocks, (uint32_t)n_tiles, n_leaves, c.shared_bytes}, &w);
}

void cuda_op_linears(struct device *d, const struct linear_args *a, size_t n)
{
    for (size_t i = 0; i < n; i++) run(d, &a[i], false);
    d->gemm.rounded.x = NULL;
}

void cuda_op_linear_leaf(struct device *d, const struct linear_args *a)
{
    for (size_t g = 0; g < a->n_groups && !device_is_lost(d); g++) {
        const struct linear_group *group = &a->groups[g];
        const size_t width = (size_t)group->w->n_out + 1;
        device_fill(d, a->sums + group->row0 * width, 0, group->n_rows * width * sizeof *a->sums);
    }
    run(d, a, true);
    d->gemm.rounded.x = NULL;
}

/* Threads that one row's elements take. */
static size_t pack_width(const struct cuda_pack_args *a)
{
    if (a->w->quant.kind == QUANT_NONE) return a->n_columns;
    return a->part == PACKED_CODES ? a->n_columns + QUANT_QUAD
                                   : kern_quant_groups(a->w->quant, a->w->n_in);
}

static enum cuda_kernel pack_kernel(const struct cuda_pack_args *a)
{
    if (a->w->quant.kind != QUANT_NONE) return CUDA_KERNEL_pack_quant;
    return a->transposed ? CUDA_KERNEL_pack_columns : CUDA_KERNEL_pack_rows;
}

void cuda_pack(struct device *d, const struct cuda_pack_args *a)
{
    const size_t fit = a->row_bytes > 0 ? STAGE_BYTES / a->row_bytes : PACK_ROWS_MAX;
    const size_t at_once = fit < PACK_ROWS_MAX ? fit : PACK_ROWS_MAX;
    const uint32_t n_blocks = (uint32_t)((pack_width(a) + CUDA_THREADS - 1) / CUDA_THREADS);
    assert(at_once > 0);
    for (size_t row = 0; row < a->n_rows; row += at_once) {
        const size_t n = a->n_rows - row < at_once ? a->n_rows - row : at_once;
        struct device_stage *s = device_stage_next(d);
        if (s == NULL) return;
        for (size_t i = 0; i < n; i++)
            memcpy((char *)s->pinned + i * a->row_bytes,
                   (const char *)a->rows + (row + i) * a->row_stride_bytes, a->row_bytes);
        device_stage_send(d, s, d->landing, n * a->row_bytes);
        const struct pack_work work = {.w = *a->w,
                                       .part = (int)a->part,
                                       .row0 = a->row0 + row,
                                       .n_rows = n,
                                       .row_stride_bytes = a->row_bytes,
                                       .n_columns = a->n_columns,
                                       .rows = d->landing};
        device_launch(d, pack_kernel(a), (struct cuda_grid){n_blocks, (uint32_t)n, 1, 0}, &work);
    }
}
