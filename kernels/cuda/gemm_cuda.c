/* Dense matrix products by the driver's library, and of few rows by the kernel gemm_few.
 * gemm_trials.c chooses the library's algorithms. */
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/ops_cuda.h"

#include "base/log.h"

#include <assert.h>

enum {
    MANY_ROWS = 256,       /* rows from which on device_algorithm.many is used */
    CACHE_BYTES = 32 << 20 /* partial sums that a GPU's L2 cache (40 to 50 MB) holds */
};

struct status device_gemm_open(struct device *d)
{
    struct device_gemm *g = &d->gemm;
    if (d->arithmetic == DEVICE_EXACT) return status_ok();
    TRY(device_alloc(d, &g->x, GEMM_X_BYTES, "rows of products"));
    if (d->driver->gemm_open == NULL) return status_ok();
    const int error = d->driver->gemm_open(device_compute(d), &g->library, g->name, sizeof g->name);
    if (error != 0) {
        g->library = NULL;
        log_line(LOG_WARN, "GPU %d: %s: own kernels multiply, which is slower", d->index,
                 d->driver->error_text(error));
        return status_ok();
    }
    void *p = NULL;
    TRY(device_alloc(d, &p, sizeof *g->differs, "rows of products"));
    g->differs = p;
    return status_ok();
}

void device_gemm_close(struct device *d)
{
    void *differs = d->gemm.differs;
    device_release(d, &d->gemm.x);
    device_release(d, &differs);
    if (d->gemm.library != NULL) (void)d->driver->gemm_close(d->gemm.library);
    d->gemm.library = NULL;
}

void gemm_launch_rows(struct device *d, enum cuda_kernel kernel, size_t n_rows, size_t width,
                      const void *args)
{
    const uint32_t x = (uint32_t)((width + CUDA_THREADS - 1) / CUDA_THREADS);
    device_launch(d, kernel, (struct cuda_grid){x, (uint32_t)n_rows, 1, 0}, args);
}

/* --- products -------------------------------------------------------------------------------- */

/* The rows of one linear that fit into the scratch memory at one time. */
struct gemm_rows {
    const struct linear_args *a;
    const struct packed *w;
    size_t row0, n; /* of x and y */
    size_t stride;  /* floats from row to row of scratch memory */
};

/* Computes with shoal's own kernel the products that the library lacks: with `leafy` those of the
 * leaves (K-blocks) from leaf0 on, otherwise that of all inputs. Either no algorithm passed its
 * trial (gemm_trials.c), or the library refused the shape. */
static void run_own(struct device *d, const struct gemm_rows *r, bool leafy, uint32_t leaf0)
{
    const struct packed *w = r->w;
    const struct linear_work work = {.one = *w,
                                     .row0 = r->row0,
                                     .n_rows = r->n,
                                     .x = r->a->x,
                                     .x_stride = r->a->x_stride,
                                     .y = r->a->y,
                                     .y_stride = r->a->y_stride,
                                     .sums = r->a->sums,
                                     .leaf0 = leaf0};
    const uint32_t x = (w->n_out + CUDA_THREADS - 1) / CUDA_THREADS;
    const uint32_t y = (uint32_t)((r->n + CUDA_LINEAR_ROWS - 1) / CUDA_LINEAR_ROWS);
    const uint32_t z = leafy ? (w->n_in + w->leaf - 1) / w->leaf - leaf0 : 1;
    device_launch(d, leafy ? CUDA_KERNEL_linear_leaf : CUDA_KERNEL_linear,
                  (struct cuda_grid){x, y, z, 0}, &work);
}

static void round_rows(struct device *d, const struct gemm_rows *r)
{
    struct device_gemm *g = &d->gemm;
    const float *x = r->a->x + r->row0 * r->a->x_stride;
    const struct device_rounded is = {x, r->n, r->w->flat, r->w->dtype, 0};
    if (g->rounded.x == x && g->rounded.n == is.n && g->rounded.stride == is.stride &&
        g->rounded.dtype == is.dtype && g->rounded.order == is.order)
        return;
    const struct gemm_round_work w = {x, r->a->x_stride, r->w->n_in, r->w->dtype, g->x, r->w->flat};
    gemm_launch_rows(d, CUDA_KERNEL_gemm_round, r->n,
                     (r->w->n_in + CUDA_ROUND_RUN - 1) / CUDA_ROUND_RUN, &w);
    g->rounded = is;
}

void gemm_few(struct device *d, const struct cuda_gemm *g, size_t n)
{
    struct gemm_few_work w = {.x = g->x,
                              .x_stride = g->x_stride,
                              .k = g->k,
                              .x_step = g->x_step,
                              .w_step = g->w_step,
                              .y_step = g->y_step,
                              .n_rows = (uint32_t)g->rows,
                              .n = (uint32_t)n,
                              .dtype = g->dtype};
    uint32_t n_blocks = 0;
    assert(n <= CUDA_LIST && g->rows <= CUDA_GEMM_FEW_ROWS);
    for (size_t i = 0; i < n; i++) {
        w.part[i] = (struct gemm_few_part){.w = g[i].w,
                                           .w_stride = g[i].w_stride,
                                           .y_stride = g[i].y_stride,
                                           .y = g[i].y,
                                           .n_out = (uint32_t)g[i].n,
                                           .first = n_blocks};
        n_blocks += (uint32_t)(g[i].n + CUDA_GEMM_FEW_OUTPUTS - 1) / CUDA_GEMM_FEW_OUTPUTS;
    }
    device_launch(d, CUDA_KERNEL_gemm_few,
                  (struct cuda_grid){n_blocks, 1, (uint32_t)g->batch, CUDA_GEMM_FEW_SHARED}, &w);
}

bool gemm_takes_few(const struct gemm_part *p, size_t rows, size_t n_out)
{
    return p->few && rows <= CUDA_GEMM_FEW_ROWS && p->batch <= UINT16_MAX &&
           n_out <= (size_t)CUDA_GEMM_FEW_OUTPUTS * (UINT16_MAX / CUDA_LIST);
}

/* Runs a product. False: the library has no product of this shape. In the arithmetic of the
 * numerics law that is a failure, because the shape was tried at load. */
static bool run_product(struct device *d, const struct cuda_gemm *g)
{
    if (device_product(d, g)) return true;
    if (g->algorithm != CUDA_GEMM_FREE && !device_is_lost(d))
        d->failed =
            status_make(STATUS_LOST, "GPU %d (%s): %s: algorithm %u no longer takes %zu rows",
                        d->index, d->facts.name, d->gemm.name, g->algorithm, g->rows);
    return false;
}

static struct cuda_gemm rows_of_part(const struct gemm_rows *r, const struct gemm_part *p)
{
    struct cuda_gemm g = gemm_part_of(r->w, p);
    g.rows = r->n;
    if (r->n >= MANY_ROWS) g.algorithm = p->many;
    return g;
}

/* True when the library can write the linear's outputs directly to y. */
static bool writes_directly(const struct linear_args *a)
{
    return a->groups[0].w->n_out % GEMM_ALIGN_OUTPUTS == 0 &&
           a->y_stride % GEMM_ALIGN_FLOATS == 0 &&
           (uintptr_t)a->y % (GEMM_ALIGN_FLOATS * sizeof *a->y) == 0;
}

static void run_columns(struct device *d, const struct gemm_rows *r, const struct gemm_part *p)
{
    float *y = r->a->y + r->row0 * r->a->y_stride;
    const bool direct = writes_directly(r->a);
    struct cuda_gemm g = rows_of_part(r, p);
    g.x = d->gemm.x;
    g.y = direct ? y : d->states;
    g.y_stride = direct ? r->a->y_stride : r->stride;
    if (!run_product(d, &g)) {
        run_own(d, r, false, 0);
        return;
    }
    if (direct) return;
    const struct gemm_take_work w = {d->states, y, r->stride, r->a->y_stride, r->w->n_out};
    gemm_launch_rows(d, CUDA_KERNEL_gemm_take, r->n, r->w->n_out, &w);
}

/* Multiplies leaves [leaf, leaf + n) of a part; the partial sums go to y, n * r->n * r->stride
 * floats. */
static bool multiply_leaves(struct device *d, const struct gemm_rows *r, const struct gemm_part *p,
                            size_t leaf, size_t n, float *y)
{
    const size_t bytes = dtype_bytes(r->w->dtype);
    struct cuda_gemm g = rows_of_part(r, p);
    g.batch = n;
    g.w = (const char *)g.w + leaf * p->k * bytes;
    g.x = (const char *)d->gemm.x + (p->k0 + leaf * p->k) * bytes;
    g.y = y;
    g.y_stride = r->stride;
    g.y_step = r->n * r->stride;
    if (!gemm_takes_few(p, r->n, r->w->n_out)) return run_product(d, &g);
    gemm_few(d, &g, 1);
    return true;
}

/* Multiplies a part leaf by leaf and adds the partial sums to the rows' integer sums, with as many
 * leaves at a time as fit. */
static bool run_leaves(struct device *d, const struct gemm_rows *r, const struct gemm_part *p)
{
    const size_t step = r->n * r->stride;
    const size_t at_once = gemm_smaller(p->batch, GEMM_LEAVES_BYTES / (step * sizeof(float)));
    assert(at_once > 0);
    for (size_t leaf = 0; leaf < p->batch; leaf += at_once) {
        const size_t n = gemm_smaller(at_once, p->batch - leaf);
        if (!multiply_leaves(d, r, p, leaf, n, d->states)) return false;
        const struct gemm_leaves_work w = {.parts = d->states,
                                           .n_parts = n,
                                           .step = step,
                                           .stride = r->stride,
                                           .n_out = r->w->n_out,
                                           .grid_bits = r->w->grid_bits,
                                           .sums = r->a->sums + r->row0 * (r->w->n_out + 1u)};
        gemm_launch_rows(d, CUDA_KERNEL_gemm_leaves, r->n, r->w->n_out, &w);
    }
    return true;
}

/* The parts of a weight, and how many rows are multiplied at one time. */
struct gemm_plan {
    struct gemm_part parts[2];
    size_t n_parts, n_rows;
};

/* Returns the most rows of one product. With DEVICE_LAW it is the largest number that was tried,
 * because the trials prove nothing about more rows; otherwise there is no bound. */
static size_t most_rows(const struct device *d, const struct gemm_part *parts, size_t n)
{
    if (d->arithmetic != DEVICE_LAW) return SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        if (parts[i].many == parts[i].algorithm) return GEMM_TRIED_ROWS;
    }
    return GEMM_TRIED_MANY_ROWS;
}

/* Plans a linear: finds its parts, and how many rows fit into the memory of the operands and into
 * `room` bytes for partial results, which are `floats` floats for each row. */
static struct gemm_plan plan_rows(struct device *d, const struct packed *w, size_t floats,
                                  size_t room)
{
    struct gemm_plan p;
    p.n_parts = gemm_list_parts(d, w, p.parts);
    p.n_rows = gemm_smaller(most_rows(d, p.parts, p.n_parts),
                            GEMM_X_BYTES / (w->flat * dtype_bytes(w->dtype)));
    if (floats > 0) p.n_rows = gemm_smaller(p.n_rows, room / (floats * sizeof(float)));
    return p;
}

static struct gemm_rows rows_from(const struct linear_args *a, size_t row, size_t at_once)
{
    const struct linear_group *g = &a->groups[0];
    return (struct gemm_rows){.a = a,
                              .w = g->w,
                              .row0 = g->row0 + row,
                              .n = gemm_smaller(at_once, g->n_rows - row),
                              .stride = gemm_rounded_up(g->w->n_out, GEMM_ALIGN_OUTPUTS)};
}

/* Runs linears without leaves of the same few rows as one launch. False: nothing was run. */
static bool run_few(struct device *d, const struct linear_args *a, size_t n)
{
    struct cuda_gemm g[CUDA_LIST];
    const size_t rows = a[0].groups[0].n_rows;
    if (n > CUDA_LIST || rows == 0) return false;
    for (size_t i = 0; i < n; i++) {
        const struct packed *w = a[i].groups[0].w, *first = a[0].groups[0].w;
        struct gemm_part part[2];
        const struct gemm_rows r = rows_from(&a[i], 0, rows);
        if (gemm_list_parts(d, w, part) != 1 || !gemm_takes_few(&part[0], rows, w->n_out) ||
            w->dtype != first->dtype || w->n_in != first->n_in)
            return false;
        g[i] = rows_of_part(&r, &part[0]);
        g[i].n = w->n_out;
        g[i].x = d->gemm.x;
        g[i].y = a[i].y + r.row0 * a[i].y_stride;
        g[i].y_stride = a[i].y_stride;
    }
    const struct gemm_rows r = rows_from(&a[0], 0, rows);
    round_rows(d, &r);
    gemm_few(d, g, n);
    return true;
}

void device_gemm_columns(struct device *d, const struct linear_args *a, size_t n)
{
    if (run_few(d, a, n)) return;
    size_t at_once = SIZE_MAX;
    for (size_t i = 0; i < n; i++) {
        const struct packed *w = a[i].groups[0].w;
        const size_t floats =
            writes_directly(&a[i]) ? 0 : gemm_rounded_up(w->n_out, GEMM_ALIGN_OUTPUTS);
        const struct gemm_plan p = plan_rows(d, w, floats, STATES_BYTES);
        assert(p.n_parts == 1 && p.n_rows > 0 && a[i].groups[0].n_rows == a[0].groups[0].n_rows);
        at_once = gemm_smaller(at_once, p.n_rows);
    }
    for (size_t row = 0; row < a[0].groups[0].n_rows && !device_is_lost(d); row += at_once) {
        for (size_t i = 0; i < n; i++) {
            const struct gemm_rows r = rows_from(&a[i], row, at_once);
            struct gemm_part part[2];
            (void)gemm_list_parts(d, r.w, part);
            round_rows(d, &r);
            run_columns(d, &r, &part[0]);
        }
    }
}

void device_gemm_leaves(struct device *d, const struct linear_args *a)
{
    const struct packed *w = a->groups[0].w;
    const struct gemm_plan p =
        plan_rows(d, w, gemm_rounded_up(w->n_out, GEMM_ALIGN_OUTPUTS), GEMM_LEAVES_BYTES);
    assert(p.n_rows > 0);
    for (size_t row = 0; row < a->groups[0].n_rows && !device_is_lost(d); row += p.n_rows) {
        const struct gemm_rows r = rows_from(a, row, p.n_rows);
        size_t k_done = 0;
        round_rows(d, &r);
        for (size_t i = 0; i < p.n_parts; i++) {
            const struct gemm_part *part = &p.parts[i];
            assert(part->k0 == k_done);
            if (!run_leaves(d, &r, part)) break;
            k_done = part->k0 + part->k * part->batch;
        }
        if (k_done < w->n_in) run_own(d, &r, true, (uint32_t)(k_done / w->leaf));
    }
}

/* Marks the device as lost: a product failed after others had changed the output. Returns true. */
static bool give_up(struct device *d)
{
    if (!device_is_lost(d))
        d->failed = status_make(STATUS_LOST, "GPU %d (%s): %s takes a product no more", d->index,
                                d->facts.name, d->gemm.name);
    return true;
}

/* True when the parts hold all inputs of the weight. */
static bool covers(const struct gemm_plan *p, const struct packed *w)
{
    if (p->n_parts == 0) return false;
    const struct gemm_part *last = &p->parts[p->n_parts - 1];
    return last->k0 + last->k * last->batch >= w->n_in;
}

bool device_gemm_sums(struct device *d, const struct linear_args *a)
{
    const struct packed *w = a->groups[0].w;
    const bool apart = d->arithmetic != DEVICE_FREE; /* leaves have sums of their own */
    const size_t n_leaves = apart ? (w->n_in + w->leaf - 1) / w->leaf : 1;
    const size_t stride = gemm_rounded_up(w->n_out, GEMM_ALIGN_OUTPUTS);
    struct gemm_plan p = plan_rows(d, w, n_leaves * stride, STATES_BYTES);
    if (!covers(&p, w) || p.n_rows == 0) return false;
    assert(a->y_stride == w->n_out);
    const size_t in_cache = CACHE_BYTES / (n_leaves * stride * sizeof(float));
    p.n_rows = gemm_smaller(p.n_rows, in_cache > MANY_ROWS ? in_cache : MANY_ROWS);
    for (size_t row = 0; row < a->groups[0].n_rows && !device_is_lost(d); row += p.n_rows) {
        const struct gemm_rows r = rows_from(a, row, p.n_rows);
        size_t n = 0; /* partial sums of an output */
        round_rows(d, &r);
        for (size_t i = 0; i < p.n_parts; i++) {
            float *y = d->states + n * r.n * stride;
            n += p.parts[i].batch;
            if (!multiply_leaves(d, &r, &p.parts[i], 0, p.parts[i].batch, y))
                return row > 0 ? give_up(d) : false;
        }
        const struct gemm_sums_work sums = {.parts = d->states,
                                            .n_parts = n,
                                            .step = r.n * stride,
                                            .stride = stride,
                                            .n_out = w->n_out,
                                            .grid_bits = w->grid_bits,
                                            .adds = a->adds,
                                            .y = a->y + r.row0 * a->y_stride,
                                            .bad = a->bad + r.row0};
        gemm_launch_rows(d, CUDA_KERNEL_gemm_sums, r.n, w->n_out, &sums);
    }
    return true;
}
