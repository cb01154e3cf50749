/* Linears of few rows, as in decoding, with float or fp8 weights in the CPU's order, up to eight
 * rows to a block. With one chain per output, plain loads of so few threads would not keep memory
 * busy, so all threads copy weights to shared memory in chunks of 16 bytes, some steps ahead. The
 * arithmetic is that of kern.h. */
#include "kernels/cuda/linear_tile.h"

enum {
    FEW_PANELS = CUDA_FEW_OUTPUTS / PANEL_COLUMNS,
    ROW_STEP = CUDA_THREADS / CUDA_FEW_OUTPUTS, /* rows computed side by side */
    THREAD_ROWS = CUDA_LINEAR_ROWS / ROW_STEP,
    PIECE_BYTES = 16,
};

/* The work of a block. Its shared memory holds CUDA_FEW_STAGES steps of FEW_PANELS panels (packed
 * tiles). */
struct few_part {
    const struct linear_work *a;
    struct linear_part rows;
    uint32_t panel0, n_panels;
    size_t panel_bytes;
    uint8_t *shared;
};

/* Returns the bytes of n inputs of a panel. */
BLOCK_INLINE size_t few_bytes(const struct packed *w, size_t n)
{
    if (w->quant.kind != QUANT_NONE) return n * PANEL_COLUMNS;
    return n * PANEL_COLUMNS * (w->dtype == DTYPE_F32 ? 4 : 2);
}

BLOCK_INLINE uint8_t *few_stage(const struct few_part *p, uint32_t step, uint32_t panel)
{
    return p->shared + (step % CUDA_FEW_STAGES * FEW_PANELS + panel) * CUDA_FEW_STRIDE;
}

/* Returns the number of inputs of a step; for quantized weights, whole groups. */
BLOCK_INLINE uint32_t few_at_once(const struct few_part *p)
{
    return (uint32_t)(CUDA_FEW_BYTES / few_bytes(p->rows.w, 1));
}

/* Finds the inputs [*k0, *k1) of a step; empty after the last step. */
BLOCK_INLINE void few_inputs(const struct few_part *p, uint32_t step, uint32_t *k0, uint32_t *k1)
{
    const uint32_t all = p->rows.k1 - p->rows.k0, at_once = few_at_once(p);
    const uint32_t first = step * at_once < all ? step * at_once : all;
    *k0 = p->rows.k0 + first;
    *k1 = all - first < at_once ? p->rows.k1 : *k0 + at_once;
}

BLOCK_INLINE void few_fetch(const struct few_part *p, uint32_t step)
{
    const struct packed *w = p->rows.w;
    uint32_t k0, k1;
    few_inputs(p, step, &k0, &k1);
    const uint32_t G = w->quant.kind == QUANT_NONE ? 1 : quant_kernel_group(w->quant);
    const size_t first = few_bytes(w, k0);
    const size_t n_bytes = k0 < k1 ? few_bytes(w, (k1 + G - 1) / G * G - k0) : 0;
    FOR_THREADS(t)
    {
        for (uint32_t panel = 0; panel < p->n_panels; panel++) {
            const uint8_t *from =
                (const uint8_t *)w->data + (p->panel0 + panel) * p->panel_bytes + first;
            for (size_t i = (size_t)t * PIECE_BYTES; i < n_bytes; i += CUDA_THREADS * PIECE_BYTES)
                block_fetch16(few_stage(p, step, panel) + i, from + i);
        }
        block_fetch_end();
    }
}

BLOCK_INLINE float few_chain(enum dtype type, const float *x, const uint8_t *run, uint32_t column,
                             uint32_t n, float acc)
{
    BLOCK_UNROLL16
    for (uint32_t k = 0; k < n; k++)
        acc = fmaf(x[k], block_load(type, run, (size_t)k * PANEL_COLUMNS + column), acc);
    return acc;
}

/* Continues a chain with fp8 weights: as floats, each times its group's scale. */
BLOCK_INLINE float few_fp8(const struct linear_part *p, const float *x, const uint8_t *run,
                           uint32_t k0, uint32_t k1, float acc)
{
    const uint32_t G = quant_kernel_group(p->w->quant);
    for (uint32_t k = k0; k < k1;) {
        const float scale = kern_quant_scale(p->w, p->n, k / G);
        const uint32_t end = k1 - k < G ? k1 : k + G;
        for (; k < end; k++) {
            const uint32_t i = k - k0;
            const uint8_t code =
                run[(i / QUANT_QUAD * PANEL_COLUMNS + p->column) * QUANT_QUAD + i % QUANT_QUAD];
            acc = fmaf(x[i], f32_from_e4m3(code) * scale, acc);
        }
    }
    return acc;
}

BLOCK_INLINE float few_step(const struct few_part *f, const struct linear_part *p, size_t row,
                            const uint8_t *run, uint32_t k0, uint32_t k1, float acc)
{
    const float *x = f->a->x + row * f->a->x_stride + k0;
    if (p->w->quant.kind == QUANT_FP8) return few_fp8(p, x, run, k0, k1, acc);
    if (p->w->dtype == DTYPE_F16) return few_chain(DTYPE_F16, x, run, p->column, k1 - k0, acc);
    if (p->w->dtype == DTYPE_BF16) return few_chain(DTYPE_BF16, x, run, p->column, k1 - k0, acc);
    return few_chain(DTYPE_F32, x, run, p->column, k1 - k0, acc);
}

/* Finds the output of thread t. False: it has none. */
BLOCK_INLINE bool few_output(const struct few_part *f, uint32_t t, struct linear_part *p)
{
    *p = f->rows;
    p->panel = t % CUDA_FEW_OUTPUTS / PANEL_COLUMNS;
    p->column = t % PANEL_COLUMNS;
    p->n = (f->panel0 + p->panel) * PANEL_COLUMNS + p->column;
    return p->n < p->w->n_out;
}

BLOCK_INLINE void few_compute(const struct few_part *f, uint32_t step, float (*acc)[THREAD_ROWS])
{
    uint32_t k0, k1;
    few_inputs(f, step, &k0, &k1);
    FOR_THREADS_AT(t, i)
    {
        struct linear_part p;
        if (few_output(f, t, &p)) {
            const uint8_t *run = few_stage(f, step, p.panel);
            BLOCK_UNROLL
            for (uint32_t j = 0; j < THREAD_ROWS; j++) {
                const uint32_t r = t / CUDA_FEW_OUTPUTS + j * ROW_STEP;
                if (r < p.n_rows) acc[i][j] = few_step(f, &p, p.row0 + r, run, k0, k1, acc[i][j]);
            }
        }
    }
}

BLOCK_INLINE void few_store(const struct few_part *f, bool leafy, float (*acc)[THREAD_ROWS])
{
    FOR_THREADS_AT(t, i)
    {
        struct linear_part p;
        if (few_output(f, t, &p)) {
            BLOCK_UNROLL
            for (uint32_t j = 0; j < THREAD_ROWS; j++) {
                const uint32_t r = t / CUDA_FEW_OUTPUTS + j * ROW_STEP;
                if (leafy)
                    linear_store_leaf(f->a, &p, r, acc[i][j]);
                else
                    linear_store(f->a, &p, r, acc[i][j]);
            }
        }
    }
}

BLOCK_INLINE void few_run(const struct linear_work *a, struct cuda_block b, void *shared,
                          bool leafy)
{
    struct few_part f;
    float acc[THREAD_SLOTS][THREAD_ROWS];
    f.a = a;
    linear_rows_of(a, b, CUDA_LINEAR_ROWS, &f.rows);
    linear_inputs_of(a, b, leafy, &f.rows);
    if (f.rows.k0 >= f.rows.w->n_in) return;
    const struct packed *w = f.rows.w;
    const uint32_t all = (w->n_out + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
    f.panel0 = b.x * FEW_PANELS;
    f.n_panels = all - f.panel0 < FEW_PANELS ? all - f.panel0 : FEW_PANELS;
    f.panel_bytes = w->quant.kind == QUANT_NONE ? few_bytes(w, w->n_in)
                                                : kern_quant_panel_bytes(w->quant, w->n_in);
    f.shared = (uint8_t *)shared;
    for (uint32_t i = 0; i < THREAD_SLOTS; i++) {
        BLOCK_UNROLL
        for (uint32_t j = 0; j < THREAD_ROWS; j++) acc[i][j] = 0.0f;
    }
    const uint32_t at_once = few_at_once(&f);
    const uint32_t n_steps = (f.rows.k1 - f.rows.k0 + at_once - 1) / at_once;
    for (uint32_t s = 0; s + 1 < CUDA_FEW_STAGES; s++) few_fetch(&f, s);
    for (uint32_t s = 0; s < n_steps; s++) {
        BLOCK_FETCH_WAIT(CUDA_FEW_STAGES - 2);
        BLOCK_SYNC(); /* all threads' copies have arrived; the oldest stage is free */
        few_fetch(&f, s + CUDA_FEW_STAGES - 1);
        few_compute(&f, s, acc);
    }
    few_store(&f, leafy, acc);
}

BLOCK_INLINE void linear_few_block(const struct linear_work *a, struct cuda_block b, void *shared)
{
    few_run(a, b, shared, false);
}
CUDA_KERNEL(linear_few, linear_work)

BLOCK_INLINE void linear_few_leaf_block(const struct linear_work *a, struct cuda_block b,
                                        void *shared)
{
    few_run(a, b, shared, true);
}
CUDA_KERNEL(linear_few_leaf, linear_work)
