/* Launches linears on shoal's own kernels, and packs weights into device memory. Linears with flat
 * weights go to a library instead (gemm_cuda.c). */
#include "kernels/cuda/device_state.h"
#include "kernels/cuda/ops_cuda.h"

#include "base/mem.h"
#include "kernels/quant_body.h"

#include <assert.h>
#include <string.h>

enum {
    MMA_ROWS_LEAST = 12, /* average rows of a group from which on tensor cores are used; with fewer,
                            most of a tile would be empty */
    BLOCKS_ENOUGH = 256, /* blocks of 128 outputs that keep every processor busy */
    HALF_INPUTS_MAX = 1 << 18, /* so that 16-bit operands of a few rows always fit */
    PACK_ROWS_MAX = 1 << 15
};

static size_t row_tiles(size_t n_rows, uint32_t at_once)
{
    return (n_rows + at_once - 1) / at_once;
}

/* Where the next list of tiles begins. */
struct tiles_at {
    size_t group, row; /* `row` counts from the group's first row */
};

/* Divides the groups into tiles of up to at_once rows, from *at on, as long as all tiles lie
 * within n_rows consecutive rows (SIZE_MAX: no limit). Advances *at. Returns the number of tiles;
 * with `tiles` NULL it only counts. */
static size_t cut_tiles(const struct linear_args *a, uint32_t at_once, size_t n_rows,
                        struct tiles_at *at, struct linear_tile *tiles)
{
    size_t n = 0;
    const size_t first = a->groups[at->group].row0 + at->row;
    for (; at->group < a->n_groups; at->group++, at->row = 0) {
        const struct linear_group *g = &a->groups[at->group];
        assert(n == 0 || g->row0 >= first || n_rows == SIZE_MAX);
        while (at->row < g->n_rows) {
            const size_t row = g->row0 + at->row, left = g->n_rows - at->row;
            const size_t count = left < at_once ? left : at_once;
            if (n_rows != SIZE_MAX && row + count - first > n_rows) return n;
            if (tiles != NULL)
                tiles[n] =
                    (struct linear_tile){(uint32_t)at->group, (uint32_t)row, (uint32_t)count};
            at->row += count;
            n++;
        }
    }
    return n;
}

/* Makes tiles from *at on and copies them and the groups' weights to the device. Returns the
 * number of tiles; 0 after a failure. */
static size_t list_tiles(struct device *d, const struct linear_args *a, uint32_t at_once,
                         size_t n_rows, struct tiles_at *at, struct linear_work *w)
{
    struct tiles_at counted = *at;
    const size_t n = cut_tiles(a, at_once, n_rows, &counted, NULL);
    struct linear_tile *tiles = NULL;
    struct packed *weights = NULL;
    struct status st = mem_alloc(&tiles, n, sizeof *tiles, "row tiles");
    if (!status_failed(&st)) st = mem_alloc(&weights, a->n_groups, sizeof *weights, "row tiles");
    if (!status_failed(&st)) {
        for (size_t g = 0; g < a->n_groups; g++) weights[g] = *a->groups[g].w;
        cut_tiles(a, at_once, n_rows, at, tiles);
        w->tiles = device_call(d, tiles, n * sizeof *tiles);
        w->weights = device_call(d, weights, a->n_groups * sizeof *weights);
        w->half_row0 = n > 0 ? tiles[0].row0 : 0;
        w->n_rows = n > 0 ? tiles[n - 1].row0 + tiles[n - 1].n_rows - w->half_row0 : 0;
    } else if (!device_is_lost(d)) {
        d->failed = st;
    }
    mem_free(&tiles);
    mem_free(&weights);
    return device_is_lost(d) ? 0 : n;
}

/* A kernel, with the rows and outputs of one of its blocks. All kernels that may be chosen for a
 * linear give the same bits. */
struct choice {
    enum cuda_kernel kernel;
    uint32_t n_rows, n_outputs, shared_bytes;
    bool folds; /* a block computes all leaves (K-blocks) */
};

static size_t rows_of(const struct linear_args *a)
{
    size_t n_rows = 0;
    for (size_t g = 0; g < a->n_groups; g++) n_rows += a->groups[g].n_rows;
    return n_rows;
}

/* Chooses the largest block shape that gives each processor a block (the largest: two), if a group
 * has more rows on average than the smallest shape; else the smallest that the grid allows. */
static struct choice choose_mma(const struct device *d, const struct linear_args *a)
{
#define X(name, rows, outputs, shared_bytes)                                                       \
    {CUDA_KERNEL_##name, rows, outputs, shared_bytes, false},
    static const struct choice shapes[] = {CUDA_MMA_SHAPES(X)};
#undef X
    enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };
    const size_t n_out = a->groups[0].w->n_out;
    const size_t rows = rows_of(a) / a->n_groups; /* of a group, on average */
    for (size_t i = 0; i + 1 < N_SHAPES; i++) {
        const size_t across = (n_out + shapes[i].n_outputs - 1) / shapes[i].n_outputs;
        const size_t n_blocks = across * row_tiles(rows, shapes[i].n_rows) * a->n_groups;
        const size_t enough = (size_t)d->facts.n_processors * (i == 0 ? 2 : 1);
        const bool fits = n_out <= (size_t)shapes[i + 1].n_outputs * UINT16_MAX;
        if (!fits || (n_blocks >= enough && rows > shapes[N_SHAPES - 1].n_rows)) return shapes[i];
    }
    return shapes[N_SHAPES - 1];
}

/* True when blocks suffice for all processors, although each computes all leaves of its outputs. */
static bool may_fold(const struct device *d, const struct linear_args *a)
{
    const size_t n_out = a->groups[0].w->n_out, rows = rows_of(a) / a->n_groups;
    const size_t across = (n_out + CUDA_OUTPUTS_linear_mma_fold - 1) / CUDA_OUTPUTS_linear_mma_fold;
    return rows > CUDA_ROWS_linear_mma_few && across <= UINT16_MAX &&
           across * row_tiles(rows, CUDA_ROWS_linear_mma_fold) * a->n_groups >=
               d->facts.n_processors;
}

static struct choice choose_kernel(const struct device *d, const struct linear_args *a, bool leafy)
{
#define X(name, rows, outputs, shared_bytes)                                                       \
    {                                                                                              \
        CUDA_KERNEL_##name, rows, outputs, shared_bytes, true                                      \
    }
    static const struct choice fold = CUDA_MMA_FOLD(X);
#undef X
    const enum quant_kind kind = a->groups[0].w->quant.kind;
    const bool floats = kind == QUANT_NONE || kind == QUANT_FP8;
    const bool fits = a->groups[0].w->n_out < (uint32_t)PANEL_COLUMNS * UINT16_MAX;
    const bool few = rows_of(a) < MMA_ROWS_LEAST * a->n_groups && fits;
    if (few && !floats && a->xq != NULL)
        return (struct choice){leafy ? CUDA_KERNEL_linear_groups_leaf : CUDA_KERNEL_linear_groups,
                               CUDA_LINEAR_ROWS, PANEL_COLUMNS, 0, false};
    if (few && floats)
        return (struct choice){leafy ? CUDA_KERNEL_linear_few_leaf : CUDA_KERNEL_linear_few,
                               CUDA_LINEAR_ROWS, CUDA_FEW_OUTPUTS, CUDA_FEW_SHARED, false};
    if (!floats && a->xq != NULL && leafy && may_fold(d, a)) return fold;
    if (!floats && a->xq != NULL) return choose_mma(d, a);
    const enum cuda_kernel plain = leafy ? CUDA_KERNEL_linear_leaf : CUDA_KERNEL_linear;
    const enum cuda_kernel quant = leafy ? CUDA_KERNEL_linear_quant_leaf : CUDA_KERNEL_linear_quant;
    return (struct choice){kind == QUANT_NONE ? plain : quant, CUDA_LINEAR_ROWS, CUDA_THREADS, 0,
                           false};
}

/* Returns how many slots (slices times rows) a block of linear_groups has in shared memory: as many
 * as its inputs and rows need, at most CUDA_GROUPS_SLOTS. The less shared memory blocks take, the
 * more of them run at the same time. */
static uint32_t groups_slots(const struct linear_args *a, bool leafy)
{
    const struct packed *w = a->groups[0].w;
    const size_t n_in = leafy && w->leaf < w->n_in ? w->leaf : w->n_in;
    size_t most = 1, rows = 1; /* rows as the kernel rounds them up */
    for (size_t g = 0; g < a->n_groups; g++)
        if (a->groups[g].n_rows > most) most = a->groups[g].n_rows;
    while (rows < most && rows < CUDA_LINEAR_ROWS) rows *= 2;
    const size_t slices =
        (n_in + a->xq->group - 1) / a->xq->group * a->xq->group / CUDA_GROUPS_SLICE * rows;
    return slices < CUDA_GROUPS_SLOTS ? (uint32_t)slices : CUDA_GROUPS_SLOTS;
}

/* Launches a kernel over n_tiles tiles of rows. */
static void launch(struct device *d, const struct choice *c, const struct packed *first, bool leafy,
                   size_t n_tiles, const struct linear_work *w)
{
    const bool apart = leafy && !c->folds;
    const uint32_t n_leaves = apart ? (first->n_in + first->leaf - 1) / first->leaf : 1;
    const uint32_t n_blocks = (first->n_out + c->n_outputs - 1) / c->n_outputs;
    device_launch(d, c->kernel,
                  (struct cuda_grid){n_blocks, (uint32_t)n_tiles, n_leaves,
                                     c->shared_bytes + w->slots * CUDA_GROUPS_SLOT},
                  w);
}

/* --- operands of 16 bits ------------------------------------------------------------------- */

/* True when a linear runs on 16-bit operands. Depends only on the device's arithmetic and the
 * model, so every rank and every number of rows gives the same answer. */
static bool takes_halves(const struct device *d, const struct linear_args *a)
{
    const struct packed *w = a->groups[0].w;
    if (d->arithmetic == DEVICE_EXACT || a->exact || w->leaf % CUDA_HALF_RUN != 0 ||
        w->n_in > HALF_INPUTS_MAX)
        return false;
    if (w->quant.kind == QUANT_NONE) return w->dtype != DTYPE_F32;
    return a->xq == NULL || w->quant.kind == QUANT_FP8;
}

/* Chooses the shape of a block, when rows_fit rows can be held as 16-bit operands at one time: the
 * smallest shape that holds a group's average rows; but the largest instead of the middle one if
 * its blocks, too, keep all processors busy. */
static struct choice choose_halves(const struct linear_args *a, size_t rows_fit)
{
#define X(name, rows, outputs, shared_bytes)                                                       \
    {CUDA_KERNEL_##name, rows, outputs, shared_bytes, false},
    static const struct choice shapes[] = {CUDA_HALF_SHAPES(X)};
#undef X
    const struct choice *many = &shapes[a->groups[0].w->quant.kind == QUANT_NONE ? 0 : 3];
    const struct choice *mid = many + 1, *few = many + 2;
    const size_t n_rows = rows_of(a), n_out = a->groups[0].w->n_out;
    const size_t n_blocks = n_out / many->n_outputs * row_tiles(n_rows, many->n_rows);
    if (n_out > (size_t)few->n_outputs * UINT16_MAX) return rows_fit < many->n_rows ? *mid : *many;
    if (n_rows <= few->n_rows * a->n_groups || rows_fit < many->n_rows) return *few;
    return n_rows <= mid->n_rows * a->n_groups && n_blocks < BLOCKS_ENOUGH ? *mid : *many;
}

/* Rounds rows [w->half_row0, w->half_row0 + w->n_rows) of x to 16-bit operands, unless that was
 * already done. */
static void round_rows(struct device *d, const struct packed *first, struct linear_work *w)
{
    struct device_gemm *g = &d->gemm;
    const enum dtype type = first->quant.kind == QUANT_NONE ? first->dtype : DTYPE_BF16;
    const struct half_rows_work work = {.x = w->x + w->half_row0 * w->x_stride,
                                        .x_stride = w->x_stride,
                                        .n = first->n_in,
                                        .dtype = type,
                                        .kind = first->quant.kind,
                                        .to = g->x,
                                        .stride = w->half_stride};
    const struct device_rounded is = {work.x, w->n_rows, (uint32_t)w->half_stride, type,
                                      1 + (int)first->quant.kind};
    w->half = g->x;
    if (g->rounded.x == is.x && g->rounded.n == is.n && g->rounded.stride == is.stride &&
        g->rounded.dtype == is.dtype && g->rounded.order == is.order)
        return;
    device_launch(d, CUDA_KERNEL_half_rows,
                  (struct cuda_grid){(uint32_t)((w->half_stride + CUDA_THREADS - 1) / CUDA_THREADS),
                                     (uint32_t)w->n_rows, 1, 0},
                  &work);
    g->rounded = is;
}

/* Runs a linear on 16-bit operands, with as many rows at a time as fit into the operands' memory.
 */
static void run_halves(struct device *d, const struct linear_args *a, bool leafy,
                       struct linear_work *w)
{
    const struct packed *first = a->groups[0].w;
    w->half_stride = ((size_t)first->n_in + CUDA_HALF_RUN - 1) / CUDA_HALF_RUN * CUDA_HALF_RUN;
    const size_t fit = GEMM_X_BYTES / (w->half_stride > 0 ? w->half_stride * sizeof *w->half : 1);
    const struct choice c = choose_halves(a, fit);
    struct tiles_at at = {0, 0};
    assert(fit >= c.n_rows);
    if (a->n_groups > 1) {
        while (at.group < a->n_groups && !device_is_lost(d)) {
            const size_t n_tiles = list_tiles(d, a, c.n_rows, fit, &at, w);
            if (n_tiles == 0) continue;
            round_rows(d, first, w);
            launch(d, &c, first, leafy, n_tiles, w);
        }
        return;
    }
    const size_t n_rows = a->groups[0].n_rows;
    for (size_t row = 0; row < n_rows && !device_is_lost(d); row += w->n_rows) {
        w->row0 = w->half_row0 = a->groups[0].row0 + row;
        w->n_rows = n_rows - row < fit ? n_rows - row : fit;
        round_rows(d, first, w);
        launch(d, &c, first, leafy, row_tiles(w->n_rows, c.n_rows), w);
    }
}

/* ------------------------------------------------------------------------------------------- */

/* Describes a linear of one group. */
static struct linear_work work_of(const struct linear_args *a, bool leafy)
{
    struct linear_work w = {.one = *a->groups[0].w,
                            .row0 = a->groups[0].row0,
                            .n_rows = a->groups[0].n_rows,
                            .x = a->x,
                            .x_stride = a->x_stride,
                            .y = a->y,
                            .y_stride = a->y_stride,
                            .sums = a->sums,
                            .bad = a->bad,
                            .adds = a->adds,
                            .leafy = leafy};
    if (a->xq != NULL) w.xq = *a->xq;
    return w;
}

static void run(struct device *d, const struct linear_args *a, bool leafy)
{
    if (a->n_groups == 0) return;
    const struct packed *first = a->groups[0].w;
    if (first->flat != 0 && a->n_groups == 1) {
        if (leafy)
            device_gemm_leaves(d, a);
        else
            device_gemm_columns(d, a, 1);
        return;
    }
    struct linear_work w = work_of(a, leafy);
    if (takes_halves(d, a)) {
        run_halves(d, a, leafy, &w);
        return;
    }
    const struct choice c = choose_kernel(d, a, leafy);
    if (c.kernel == CUDA_KERNEL_linear_groups || c.kernel == CUDA_KERNEL_linear_groups_leaf)
        w.slots = groups_slots(a, leafy);
    struct tiles_at at = {0, 0};
    const size_t n_tiles = a->n_groups == 1 ? row_tiles(w.n_rows, c.n_rows)
                                            : list_tiles(d, a, c.n_rows, SIZE_MAX, &at, &w);
    launch(d, &c, first, leafy, n_tiles, &w);
}

/* Runs several quantized linears of few rows as one launch, because one of them alone leaves
 * processors idle. False: at least one needs another kernel, and nothing was run. */
static bool run_list(struct device *d, const struct linear_args *a, size_t n)
{
    struct linear_list_work list = {.n = (uint32_t)n};
    uint32_t n_blocks = 0, n_tiles = 0, slots = 0;
    if (n < 2 || n > CUDA_LIST) return false;
    for (size_t i = 0; i < n; i++) {
        if (a[i].n_groups != 1 || a[i].groups[0].w->flat != 0 || takes_halves(d, &a[i]) ||
            choose_kernel(d, &a[i], false).kernel != CUDA_KERNEL_linear_groups ||
            a[i].groups[0].n_rows != a[0].groups[0].n_rows)
            return false;
        list.part[i] = work_of(&a[i], false);
        list.first[i] = n_blocks;
        list.part[i].slots = groups_slots(&a[i], false);
        if (list.part[i].slots > slots) slots = list.part[i].slots;
        n_blocks += (a[i].groups[0].w->n_out + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
        n_tiles = (uint32_t)row_tiles(a[i].groups[0].n_rows, CUDA_LINEAR_ROWS);
    }
    if (n_blocks > UINT16_MAX) return false;
    device_launch(d, CUDA_KERNEL_linear_groups_list,
                  (struct cuda_grid){n_blocks, n_tiles, 1, slots * CUDA_GROUPS_SLOT}, &list);
    return true;
}

/* True when all linears have row-major weights and multiply the same rows. */
static bool are_flat(const struct linear_args *a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (a[i].n_groups != 1 || a[i].groups[0].w->flat == 0 || a[i].x != a[0].x ||
            a[i].x_stride != a[0].x_stride || a[i].groups[0].row0 != a[0].groups[0].row0 ||
            a[i].groups[0].n_rows != a[0].groups[0].n_rows)
            return false;
    }
    return true;
}

void op_linears_cuda(struct device *d, const struct linear_args *a, size_t n)
{
    if (n == 0 || run_list(d, a, n)) return;
    if (are_flat(a, n))
        device_gemm_columns(d, a, n);
    else
        for (size_t i = 0; i < n; i++) run(d, &a[i], false);
    d->gemm.rounded.x = NULL;
}

static void zero_sums(struct device *d, const struct linear_args *a)
{
    for (size_t g = 0; g < a->n_groups && !device_is_lost(d); g++) {
        const struct linear_group *group = &a->groups[g];
        const size_t width = (size_t)group->w->n_out + 1;
        device_fill(d, a->sums + group->row0 * width, 0, group->n_rows * width * sizeof *a->sums);
    }
}

/* Returns the linear for rows [row, row + n) of a's only group, which become its rows [0, n). Fills
 * *group and *xq, to which the result points. The caller sets `sums`. */
static struct linear_args rows_alone(const struct linear_args *a, size_t row, size_t n,
                                     struct linear_group *group, struct quant_rows *xq)
{
    struct linear_args some = *a;
    const size_t first = a->groups[0].row0 + row;
    *group = (struct linear_group){.w = a->groups[0].w, .row0 = 0, .n_rows = n};
    some.groups = group;
    some.x = a->x + first * a->x_stride;
    if (a->xq != NULL) {
        *xq = *a->xq;
        xq->codes += first * xq->n_groups * xq->group;
        xq->scales += first * xq->n_groups;
        xq->sums += first * xq->n_groups;
        some.xq = xq;
    }
    some.y = a->y + first * a->y_stride;
    some.bad = a->bad + first;
    return some;
}

/* Adds leaves (K-blocks) in scratch memory, and converts the sums to values: for kernels that give
 * only sums. */
static void values_of_sums(struct device *d, const struct linear_args *a)
{
    const struct packed *w = a->groups[0].w;
    const size_t width = (size_t)w->n_out + 1, fit = GEMM_SUMS_BYTES / (width * sizeof(int64_t));
    assert(a->n_groups == 1 && a->y_stride == w->n_out && fit > 0);
    for (size_t row = 0; row < a->groups[0].n_rows && !device_is_lost(d); row += fit) {
        const size_t left = a->groups[0].n_rows - row, n = left < fit ? left : fit;
        struct linear_group group;
        struct quant_rows xq;
        struct linear_args some = rows_alone(a, row, n, &group, &xq);
        some.sums = (int64_t *)(void *)((char *)d->states + GEMM_LEAVES_BYTES);
        zero_sums(d, &some);
        run(d, &some, true);
        op_grid_cuda(d, &(struct grid_args){.sums = some.sums,
                                            .n_rows = n,
                                            .n_out = w->n_out,
                                            .grid_bits = w->grid_bits,
                                            .y = some.y,
                                            .adds = a->adds,
                                            .bad = some.bad});
        d->gemm.rounded.x = NULL; /* rounds the next rows anew */
    }
}

void op_linear_leaf_cuda(struct device *d, const struct linear_args *a)
{
    const struct packed *w = a->n_groups > 0 ? a->groups[0].w : NULL;
    if (w == NULL) return;
    if (a->sums != NULL) {
        zero_sums(d, a);
        run(d, a, true);
    } else if (w->flat != 0) {
        if (!device_gemm_sums(d, a)) values_of_sums(d, a);
    } else if (!takes_halves(d, a) && choose_kernel(d, a, true).folds) {
        run(d, a, true);
    } else {
        values_of_sums(d, a);
    }
    d->gemm.rounded.x = NULL;
}

/* Returns the number of threads that pack one row. */
static size_t pack_width(const struct device_pack_args *a)
{
    if (a->w->quant.kind == QUANT_NONE) return a->n_columns;
    return a->part == PACKED_CODES ? a->n_columns + QUANT_QUAD
                                   : kern_quant_groups(a->w->quant, a->w->n_in);
}

static enum cuda_kernel pack_kernel(const struct device_pack_args *a)
{
    if (a->w->quant.kind != QUANT_NONE) return CUDA_KERNEL_pack_quant;
    return a->transposed ? CUDA_KERNEL_pack_columns : CUDA_KERNEL_pack_rows;
}

void pack_cuda(struct device *d, const struct device_pack_args *a)
{
    const size_t fit = a->row_bytes > 0 ? STAGE_BYTES / a->row_bytes : PACK_ROWS_MAX;
    const size_t at_once = fit < PACK_ROWS_MAX ? fit : PACK_ROWS_MAX;
    const uint32_t n_blocks = (uint32_t)((pack_width(a) + CUDA_THREADS - 1) / CUDA_THREADS);
    assert(at_once > 0);
    for (size_t row = 0; row < a->rows.n; row += at_once) {
        const size_t n = a->rows.n - row < at_once ? a->rows.n - row : at_once;
        struct device_stage *s = device_stage_next(d);
        if (s == NULL) return;
        for (size_t i = 0; i < n; i++)
            memcpy((char *)s->pinned + i * a->row_bytes,
                   (const char *)a->rows.data + (row + i) * a->rows.stride_bytes, a->row_bytes);
        device_stage_send(d, s, d->landing, n * a->row_bytes);
        const struct pack_work work = {.w = *a->w,
                                       .part = (int)a->part,
                                       .row0 = a->rows.row0 + row,
                                       .n_rows = n,
                                       .row_stride_bytes = a->row_bytes,
                                       .n_columns = a->n_columns,
                                       .rows = d->landing};
        device_launch(d, pack_kernel(a), (struct cuda_grid){n_blocks, (uint32_t)n, 1, 0}, &work);
    }
}
