/* Chooses the library's algorithms for dense matrix products. In the arithmetic of the numerics
 * law, one algorithm is chosen for each element type and number of inputs, whatever the numbers of
 * rows and outputs. It is used only if trials on this GPU give the same bits for various numbers of
 * rows and outputs; the shape of each weight is tried once more when it is loaded. Many rows may
 * use a second, faster algorithm, if trials give the bits of the first. */
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/ops_cuda.h"

#include "base/log.h"

enum {
    ALGORITHMS_MAX = 16,
    TRIED_OUTPUTS = 96, /* outputs in the trial of an algorithm */
    TRIED_LEAVES = 3,
    CHECKED_ROWS = 128,      /* rows in the trial of a weight's shape at load */
    CHECKED_MANY_ROWS = 512, /* rows in that trial of the algorithm for many rows */
    W_BYTES = STATES_BYTES / 2,
};

/* --- trying algorithms ----------------------------------------------------------------------- */

static void compare(struct device *d, const float *a, const float *b, size_t a_stride,
                    size_t b_stride, size_t rows, size_t n)
{
    const struct gemm_differ_work w = {(const uint32_t *)(const void *)a,
                                       (const uint32_t *)(const void *)b,
                                       a_stride,
                                       b_stride,
                                       n,
                                       d->gemm.differs};
    gemm_launch_rows(d, CUDA_KERNEL_gemm_differ, rows, n, &w);
}

static void pattern(struct device *d, enum dtype t, void *to, size_t rows, size_t stride, size_t n,
                    uint32_t seed)
{
    const struct gemm_pattern_work w = {to, t, stride, n, seed};
    gemm_launch_rows(d, CUDA_KERNEL_gemm_pattern, rows, n, &w);
}

static void forget_differs(struct device *d)
{
    device_fill(d, d->gemm.differs, 0, sizeof *d->gemm.differs);
}

static bool nothing_differs(struct device *d)
{
    int32_t n = 1;
    device_get(d, &n, d->gemm.differs, sizeof n);
    return !device_is_lost(d) && n == 0;
}

/* Computes rows [row0, row0 + n) of the product `all` again, separately, into y, and compares them
 * with all->y. False: the library has no such product. */
static bool rows_alone(struct device *d, const struct cuda_gemm *all, size_t row0, size_t n,
                       float *y)
{
    struct cuda_gemm some = *all;
    some.rows = n;
    some.x = (const char *)all->x + row0 * all->x_stride * dtype_bytes(all->dtype);
    some.y = y;
    some.y_step = n * all->y_stride;
    if (!device_product(d, &some)) return false;
    for (size_t i = 0; i < all->batch; i++)
        compare(d, y + i * some.y_step, all->y + i * all->y_step + row0 * all->y_stride,
                all->y_stride, all->y_stride, n, all->n);
    return true;
}

/* Computes outputs [n0, n0 + n) of each product of the batch again, separately, into y, and
 * compares them with all->y. False: the library has no such product. */
static bool outputs_alone(struct device *d, const struct cuda_gemm *all, size_t n0, size_t n,
                          float *y)
{
    const size_t bytes = dtype_bytes(all->dtype);
    for (size_t i = 0; i < all->batch; i++) {
        struct cuda_gemm some = *all;
        some.n = n;
        some.batch = 1;
        some.w = (const char *)all->w + (n0 * all->w_stride + i * all->w_step) * bytes;
        some.x = (const char *)all->x + i * all->x_step * bytes;
        some.y = y;
        some.y_stride = gemm_rounded_up(n, GEMM_ALIGN_FLOATS);
        if (!device_product(d, &some)) return false;
        compare(d, y, all->y + i * all->y_step + n0, some.y_stride, all->y_stride, all->rows, n);
    }
    return true;
}

/* Runs products with other numbers of rows and compares their bits with those of `all`;
 * nothing_differs gives the result. False: the library has no such product. */
static bool rows_do_not_matter(struct device *d, const struct cuda_gemm *all, float *y)
{
    static const size_t counts[] = {1,  2,   3,   5,   8,   16,  17,  33,
                                    64, 100, 128, 200, 256, 384, 511, 1000};
    if (!rows_alone(d, all, all->rows - 1, 1, y)) return false;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const size_t n = counts[i];
        const size_t row0 = n < all->rows ? (all->rows - n) / (i % 3 + 1) : 0;
        if (n < all->rows && !rows_alone(d, all, row0, n, y)) return false;
    }
    return true;
}

/* Computes the product `all` again with another algorithm, into y, and compares the results. False:
 * the library has no such product. */
static bool other_algorithm(struct device *d, const struct cuda_gemm *all, uint32_t algorithm,
                            float *y)
{
    struct cuda_gemm other = *all;
    other.algorithm = algorithm;
    other.y = y;
    if (!device_product(d, &other)) return false;
    for (size_t i = 0; i < all->batch; i++)
        compare(d, y + i * all->y_step, all->y + i * all->y_step, all->y_stride, all->y_stride,
                all->rows, all->n);
    return true;
}

/* Computes the product `all` again with gemm_few, up to `most` of its rows, into y, and compares.
 */
static void few_rows(struct device *d, const struct cuda_gemm *all, size_t most, float *y)
{
    for (size_t row = 0; row < gemm_smaller(all->rows, most); row += CUDA_GEMM_FEW_ROWS) {
        struct cuda_gemm some = *all;
        some.rows = gemm_smaller(CUDA_GEMM_FEW_ROWS, all->rows - row);
        some.x = (const char *)all->x + row * all->x_stride * dtype_bytes(all->dtype);
        some.y = y;
        some.y_step = some.rows * all->y_stride;
        gemm_few(d, &some, 1);
        for (size_t i = 0; i < all->batch; i++)
            compare(d, y + i * some.y_step, all->y + i * all->y_step + row * all->y_stride,
                    all->y_stride, all->y_stride, some.rows, all->n);
    }
}

/* Tries an algorithm on pseudo-random operands: products of TRIED_OUTPUTS outputs; when batched, of
 * several leaves (K-blocks). True: in all trials the bits were independent of other rows and
 * outputs, and equal to those of a->many. With a->few it only compares the bits of gemm_few. */
static bool passes(struct device *d, const struct device_algorithm *a)
{
    const size_t leaves = a->batched ? TRIED_LEAVES : 1, bytes = dtype_bytes(a->dtype);
    const size_t stride = gemm_rounded_up(leaves * a->k, GEMM_ALIGN_ELEMENTS), n = TRIED_OUTPUTS;
    const size_t most = a->many == a->algorithm ? GEMM_TRIED_ROWS : GEMM_TRIED_MANY_ROWS;
    const size_t rows = gemm_smaller(most, GEMM_X_BYTES / (stride * bytes));
    float *y = d->states + W_BYTES / sizeof *y, *other = y + leaves * rows * n;
    if (n * stride * bytes > W_BYTES || rows == 0) return false;
    const struct cuda_gemm all = {.dtype = a->dtype,
                                  .x = d->gemm.x,
                                  .w = d->states,
                                  .y = y,
                                  .rows = rows,
                                  .n = n,
                                  .k = a->k,
                                  .x_stride = stride,
                                  .w_stride = stride,
                                  .y_stride = n,
                                  .batch = leaves,
                                  .x_step = a->k,
                                  .w_step = a->k,
                                  .y_step = rows * n,
                                  .algorithm = a->algorithm};
    pattern(d, a->dtype, d->gemm.x, rows, stride, leaves * a->k, 1);
    pattern(d, a->dtype, d->states, n, stride, leaves * a->k, 2);
    forget_differs(d);
    if (a->few) {
        if (!device_product(d, &all)) return false;
        few_rows(d, &all, rows, other);
        return nothing_differs(d);
    }
    return device_product(d, &all) && rows_do_not_matter(d, &all, other) &&
           outputs_alone(d, &all, 0, n / 2, other) && outputs_alone(d, &all, n - 8, 8, other) &&
           (a->many == a->algorithm || other_algorithm(d, &all, a->many, other)) &&
           nothing_differs(d);
}

/* Returns the first algorithm of the library's list for many rows that gives the bits of
 * a->algorithm; a->algorithm itself if there is none. */
static uint32_t find_many(struct device *d, const struct device_algorithm *a)
{
    struct device_algorithm tried = *a;
    tried.many = a->algorithm;
    for (uint32_t i = 0; i < ALGORITHMS_MAX && !device_is_lost(d); i++) {
        tried.algorithm = CUDA_GEMM_MANY + i;
        if (passes(d, &tried)) return tried.algorithm;
    }
    return a->algorithm;
}

/* True when gemm_few gives the bits of a->algorithm. */
static bool few_passes(struct device *d, const struct device_algorithm *a)
{
    struct device_algorithm tried = *a;
    tried.few = true;
    return a->dtype != DTYPE_F32 && a->k % GEMM_ALIGN_ELEMENTS == 0 && passes(d, &tried);
}

/* Returns the algorithm for an element type and k inputs; the first call tries the library's
 * algorithms. NULL: none passed, or DEVICE_ALGORITHMS others are known already; shoal's own kernels
 * then multiply. */
static const struct device_algorithm *algorithm_for(struct device *d, enum dtype t, size_t k,
                                                    bool batched)
{
    struct device_gemm *g = &d->gemm;
    struct device_algorithm *a = g->algorithms;
    for (uint32_t i = 0; i < g->n_algorithms; i++, a++) {
        if (a->dtype == t && a->k == k && a->batched == batched)
            return a->algorithm != CUDA_GEMM_FREE ? a : NULL;
    }
    if (g->n_algorithms == DEVICE_ALGORITHMS) return NULL;
    *a = (struct device_algorithm){.dtype = t, .k = k, .batched = batched};
    while (a->algorithm < ALGORITHMS_MAX && !device_is_lost(d) && !passes(d, a))
        a->many = ++a->algorithm;
    if (a->algorithm == ALGORITHMS_MAX) a->algorithm = CUDA_GEMM_FREE;
    if (a->algorithm != CUDA_GEMM_FREE) a->many = find_many(d, a);
    if (a->algorithm != CUDA_GEMM_FREE) a->few = few_passes(d, a);
    g->n_algorithms++;
    if (a->algorithm == CUDA_GEMM_FREE) {
        log_line(LOG_INFO,
                 "GPU %d: products of %s with %zu inputs: the bits of each algorithm of %s depend "
                 "on the rows; own kernels multiply",
                 d->index, dtype_name(t), k, g->name);
        return NULL;
    }
    log_line(
        LOG_DEBUG,
        "GPU %d: products of %s with %zu inputs: algorithm %u of %s, %s for many rows, %s for few",
        d->index, dtype_name(t), k, a->algorithm, g->name,
        a->many == a->algorithm ? "the same" : "another with the same bits",
        a->few ? "an own kernel with the same bits" : "the same");
    return a;
}

/* --- weights --------------------------------------------------------------------------------- */

void place_weight_cuda(struct device *d, struct packed *w)
{
    if (d->gemm.library == NULL || device_is_lost(d) || w->n_out == 0 || w->n_in == 0) return;
    const bool leafy = w->leaf > 0;
    const size_t k = leafy ? w->leaf : w->n_in;
    if (d->arithmetic == DEVICE_LAW &&
        ((leafy && k % GEMM_ALIGN_ELEMENTS != 0) || algorithm_for(d, w->dtype, k, leafy) == NULL))
        return;
    w->flat = (uint32_t)gemm_rounded_up(w->n_in, GEMM_ALIGN_ELEMENTS);
}

struct cuda_gemm gemm_part_of(const struct packed *w, const struct gemm_part *p)
{
    return (struct cuda_gemm){.dtype = w->dtype,
                              .w = (const char *)w->data + p->k0 * dtype_bytes(w->dtype),
                              .n = gemm_rounded_up(w->n_out, GEMM_ALIGN_OUTPUTS),
                              .k = p->k,
                              .w_stride = w->flat,
                              .x_stride = w->flat,
                              .batch = p->batch,
                              .x_step = p->k,
                              .w_step = p->k,
                              .algorithm = p->algorithm};
}

/* Returns a product with this weight for a trial, with up to `most` rows; half of the states'
 * memory holds its results. */
static struct cuda_gemm trial_of(const struct device *d, const struct packed *w,
                                 const struct gemm_part *p, size_t most)
{
    struct cuda_gemm all = gemm_part_of(w, p);
    all.y_stride = all.n;
    all.batch = gemm_smaller(p->batch, TRIED_LEAVES);
    const size_t fit = gemm_smaller(STATES_BYTES / (2 * all.batch * all.n * sizeof(float)),
                                    GEMM_X_BYTES / (w->flat * sizeof(float)));
    all.rows = gemm_smaller(most, fit);
    all.x = d->gemm.x;
    all.y = d->states;
    all.y_step = all.rows * all.y_stride;
    return all;
}

/* True when the products with this weight have the same bits as a few rows and a few outputs that
 * are computed separately. */
static bool holds(struct device *d, const struct packed *w, const struct gemm_part *p)
{
    const struct cuda_gemm all = trial_of(d, w, p, CHECKED_ROWS);
    const size_t few = gemm_smaller(TRIED_OUTPUTS, all.n);
    float *other = d->states + all.batch * all.y_step;
    if (all.rows == 0) return false;
    forget_differs(d);
    return device_product(d, &all) && rows_alone(d, &all, all.rows - 1, 1, other) &&
           (all.rows < 20 || rows_alone(d, &all, 2, 17, other)) &&
           outputs_alone(d, &all, 0, few, other) &&
           outputs_alone(d, &all, all.n - few, few, other) && nothing_differs(d);
}

/* True when the second algorithm gives the bits of the first in products with this weight. */
static bool many_holds(struct device *d, const struct packed *w, const struct gemm_part *p)
{
    struct cuda_gemm all = trial_of(d, w, p, CHECKED_MANY_ROWS);
    if (p->many == p->algorithm) return true;
    if (all.rows == 0) return false;
    forget_differs(d);
    return device_product(d, &all) &&
           other_algorithm(d, &all, p->many, d->states + all.batch * all.y_step) &&
           nothing_differs(d);
}

/* True when gemm_few gives the bits of the library in products with this weight. */
static bool few_holds(struct device *d, const struct packed *w, const struct gemm_part *p)
{
    const struct cuda_gemm all = trial_of(d, w, p, CHECKED_ROWS);
    if (!p->few || !gemm_takes_few(p, 1, w->n_out)) return true;
    if (all.rows == 0) return false;
    forget_differs(d);
    if (!device_product(d, &all)) return false;
    few_rows(d, &all, 2 * CUDA_GEMM_FEW_ROWS, d->states + all.batch * all.y_step);
    return nothing_differs(d);
}

static void forget_few(struct device *d, enum dtype t, const struct gemm_part *p)
{
    for (uint32_t i = 0; i < d->gemm.n_algorithms; i++) {
        struct device_algorithm *a = &d->gemm.algorithms[i];
        if (a->dtype == t && a->k == p->k) a->few = false;
    }
}

/* Gives up the second algorithm for the part's element type and number of inputs. */
static void forget_many(struct device *d, enum dtype t, const struct gemm_part *p)
{
    for (uint32_t i = 0; i < d->gemm.n_algorithms; i++) {
        struct device_algorithm *a = &d->gemm.algorithms[i];
        if (a->dtype == t && a->k == p->k) a->many = a->algorithm;
    }
}

size_t gemm_list_parts(struct device *d, const struct packed *w, struct gemm_part parts[2])
{
    const bool free = d->arithmetic == DEVICE_FREE;
    const size_t leaf = w->leaf > 0 && !free ? w->leaf : w->n_in;
    const size_t n_whole = w->n_in / leaf, tail = w->n_in % leaf;
    size_t n = 0;
    if (free) {
        parts[n++] = (struct gemm_part){0, w->n_in, 1, CUDA_GEMM_FREE, CUDA_GEMM_FREE, false};
        return n;
    }
    const struct device_algorithm *a = NULL;
    if (n_whole > 0) a = algorithm_for(d, w->dtype, leaf, w->leaf > 0);
    if (a != NULL) parts[n++] = (struct gemm_part){0, leaf, n_whole, a->algorithm, a->many, a->few};
    if (tail > 0) a = algorithm_for(d, w->dtype, tail, false);
    if (tail > 0 && a != NULL)
        parts[n++] = (struct gemm_part){n_whole * leaf, tail, 1, a->algorithm, a->many, a->few};
    return n;
}

static bool was_checked(const struct device_gemm *g, const struct packed *w)
{
    const size_t most = sizeof g->checked / sizeof g->checked[0];
    for (size_t i = 0; i < gemm_smaller(g->n_checked, most); i++) {
        const struct packed *c = &g->checked[i];
        if (c->dtype == w->dtype && c->n_out == w->n_out && c->n_in == w->n_in &&
            c->leaf == w->leaf)
            return true;
    }
    return false;
}

struct status check_weight_cuda(struct device *d, const struct packed *w)
{
    struct device_gemm *g = &d->gemm;
    struct gemm_part parts[2];
    if (d->arithmetic == DEVICE_FREE || was_checked(g, w)) return device_status(d);
    const size_t n = gemm_list_parts(d, w, parts);
    pattern(d, w->dtype, (void *)(uintptr_t)w->data, gemm_rounded_up(w->n_out, GEMM_ALIGN_OUTPUTS),
            w->flat, w->n_in, 2);
    pattern(d, w->dtype, d->gemm.x,
            gemm_smaller(CHECKED_MANY_ROWS, GEMM_X_BYTES / (w->flat * sizeof(float))), w->flat,
            w->n_in, 1);
    for (size_t i = 0; i < n && !device_is_lost(d); i++) {
        if (holds(d, w, &parts[i])) {
            if (!many_holds(d, w, &parts[i])) forget_many(d, w->dtype, &parts[i]);
            if (!few_holds(d, w, &parts[i])) forget_few(d, w->dtype, &parts[i]);
            continue;
        }
        TRY(device_status(d));
        return status_make(STATUS_USAGE,
                           "GPU %d (%s): %s: a product with %u outputs has other bits than one "
                           "with %d; --exact-across-devices does without the library",
                           d->index, d->facts.name, g->name, w->n_out, TRIED_OUTPUTS);
    }
    g->checked[g->n_checked++ % (sizeof g->checked / sizeof g->checked[0])] = *w;
    return device_status(d);
}
