/* Linears of few rows with quantized weights and quantized activations, as in decoding. A block
 * has one panel (packed tile) of 16 outputs and up to eight rows. The integer sums of all groups of
 * inputs are independent of each other, so all threads compute them side by side, each for four
 * outputs and a slice of 32 inputs, with 16-byte loads straight from memory. Then one thread for
 * each row and output multiplies and adds the groups' sums in ascending order, in the chain of fma
 * that kern.h prescribes. Wide rows are computed in several rounds.
 *
 *     slices   [slice][row][16]   i32: the sum over 32 inputs of a group
 *     terms    [group][row][16]   {(float)sum, scale}: operands of one fma of the chain */
#include "kernels/cuda/linear_tile.h"

enum {
    SLICE = CUDA_GROUPS_SLICE,
    QUADS = PANEL_COLUMNS / 4, /* groups of four outputs, the 16 bytes of one load */
    LOAD_INPUTS = 16,          /* inputs of a row that one 16-byte load brings */
    TERMS_AT_ONCE = 4,         /* terms of a thread whose operands are loaded together */
};

struct group_term {
    float sum, scale;
};

/* The work of a block, and its shared memory. */
struct groups_part {
    const struct linear_work *a;
    struct linear_part rows;
    const uint8_t *panel;
    uint32_t G, n_slices; /* inputs and slices of a group */
    int32_t *slices;
    struct group_term *terms;
};

/* Adds the products of 16 inputs, for four outputs (w, by groups_load) and one row (x), to sum. */
BLOCK_INLINE void groups_dot(const uint32_t (*w)[4], const uint32_t *x, int32_t *sum)
{
    BLOCK_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        BLOCK_UNROLL
        for (uint32_t c = 0; c < 4; c++) sum[c] = block_dot4(w[i][c], x[i], sum[c]);
    }
}

/* Loads the signed bytes of 16 inputs, from input k on, of four outputs: out[i][c] holds inputs
 * k + 4i to k + 4i + 3 of output c. `from` is the panel's first word of those outputs. */
BLOCK_INLINE void groups_load(enum quant_kind kind, const uint8_t *from, uint32_t k,
                              uint32_t (*out)[4])
{
    enum { STEP = PANEL_COLUMNS * QUANT_QUAD };
    if (kind == QUANT_INT8) {
        BLOCK_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            block_load16(out[i], from + (size_t)(k / 4 + i) * STEP);
            BLOCK_UNROLL
            for (uint32_t c = 0; c < 4; c++) out[i][c] ^= 0x80808080u;
        }
        return;
    }
    BLOCK_UNROLL
    for (uint32_t i = 0; i < 4; i += 2) {
        block_load16(out[i], from + (size_t)(k / 8 + i / 2) * STEP);
        BLOCK_UNROLL
        for (uint32_t c = 0; c < 4; c++) {
            const uint32_t low = out[i][c] & 0x0F0F0F0Fu, high = out[i][c] >> 4 & 0x0F0F0F0Fu;
            out[i][c] = kind == QUANT_MXFP4 ? quant_doubled(low) : low;
            out[i + 1][c] = kind == QUANT_MXFP4 ? quant_doubled(high) : high;
        }
    }
}

/* Computes slice `slice` of group g for four outputs and all rows. */
BLOCK_INLINE void groups_slice(enum quant_kind kind, const struct groups_part *p, uint32_t rows,
                               uint32_t g, uint32_t slice, uint32_t quad, int32_t *to)
{
    const struct quant_rows *q = &p->a->xq;
    int32_t sums[CUDA_LINEAR_ROWS][4] = {{0}};
    BLOCK_UNROLL
    for (uint32_t half = 0; half < SLICE / LOAD_INPUTS; half++) {
        const uint32_t i = slice * SLICE + half * LOAD_INPUTS; /* within the group */
        uint32_t w[4][4];
        groups_load(kind, p->panel + (size_t)quad * 16, g * p->G + i, w);
        BLOCK_UNROLL
        for (uint32_t r = 0; r < CUDA_LINEAR_ROWS; r++) {
            uint32_t x[4];
            if (r >= rows) break;
            block_load16(x, q->codes + (linear_row(&p->rows, r) * q->n_groups + g) * p->G + i);
            groups_dot(w, x, sums[r]);
        }
    }
    BLOCK_UNROLL
    for (uint32_t r = 0; r < CUDA_LINEAR_ROWS; r++) {
        if (r >= rows) break;
        BLOCK_UNROLL
        for (uint32_t c = 0; c < 4; c++) to[r * PANEL_COLUMNS + c] = sums[r][c];
    }
}

/* Computes the slices of groups [g0, g1). rows is a compile-time constant: n_rows, or more. */
BLOCK_INLINE void groups_slices(enum quant_kind kind, const struct groups_part *p, uint32_t rows,
                                uint32_t g0, uint32_t g1)
{
    const uint32_t n = (g1 - g0) * p->n_slices * QUADS;
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < n; i += CUDA_THREADS) {
            const uint32_t quad = i % QUADS, slice = i / QUADS;
            groups_slice(kind, p, rows, g0 + slice / p->n_slices, slice % p->n_slices, quad,
                         p->slices + (size_t)slice * rows * PANEL_COLUMNS + quad * 4);
        }
    }
}

/* The numbers from which groups_store_term makes a term; they are loaded from global memory. */
struct term_loads {
    int32_t offset, row_sum;
    float weight_scale, row_scale;
};

BLOCK_INLINE struct term_loads groups_load_term(const struct groups_part *p, uint32_t span,
                                                uint32_t g0, uint32_t i)
{
    const struct packed *w = p->rows.w;
    const struct quant_rows *q = &p->a->xq;
    const uint32_t g = g0 + i / span, own = p->rows.n + i % PANEL_COLUMNS;
    const uint32_t n = own < w->n_out ? own : w->n_out - 1;
    const size_t x = linear_row(&p->rows, i % span / PANEL_COLUMNS) * q->n_groups + g;
    return (struct term_loads){quant_offset(w, n, g), q->sums[x], kern_quant_scale(w, n, g),
                               q->scales[x]};
}

BLOCK_INLINE void groups_store_term(const struct groups_part *p, uint32_t span, uint32_t i,
                                    const struct term_loads *l)
{
    const int32_t *slices = p->slices + (size_t)(i / span) * p->n_slices * span + i % span;
    int32_t sum = l->offset * l->row_sum;
    for (uint32_t s = 0; s < p->n_slices; s++) sum += slices[(size_t)s * span];
    p->terms[i].sum = (float)sum;
    p->terms[i].scale = l->weight_scale * l->row_scale;
}

/* Adds up the slices of each group, and stores the sums with their scales as terms. Each thread's
 * loads are under way together before the first of them is used. */
BLOCK_INLINE void groups_terms(const struct groups_part *p, uint32_t rows, uint32_t g0, uint32_t g1)
{
    const uint32_t span = rows * PANEL_COLUMNS, end = (g1 - g0) * span;
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < end; i += CUDA_THREADS * TERMS_AT_ONCE) {
            struct term_loads l[TERMS_AT_ONCE];
            BLOCK_UNROLL
            for (uint32_t j = 0; j < TERMS_AT_ONCE; j++) {
                const uint32_t at = i + j * CUDA_THREADS;
                if (at < end) l[j] = groups_load_term(p, span, g0, at);
            }
            BLOCK_UNROLL
            for (uint32_t j = 0; j < TERMS_AT_ONCE; j++) {
                const uint32_t at = i + j * CUDA_THREADS;
                if (at < end) groups_store_term(p, span, at, &l[j]);
            }
        }
    }
}

BLOCK_INLINE void groups_chain(const struct groups_part *p, uint32_t rows, uint32_t n_groups,
                               float *acc)
{
    const uint32_t span = rows * PANEL_COLUMNS;
    FOR_THREADS_AT(t, i)
    {
        if (t < span) {
            BLOCK_UNROLL16
            for (uint32_t g = 0; g < n_groups; g++) {
                const struct group_term *term = &p->terms[(size_t)g * span + t];
                acc[i] = fmaf(term->sum, term->scale, acc[i]);
            }
        }
    }
}

BLOCK_INLINE void groups_rounds(enum quant_kind kind, struct groups_part *p, uint32_t rows,
                                float *acc)
{
    const uint32_t slots = p->a->slots / rows / p->n_slices; /* groups of a round */
    const uint32_t last = (p->rows.k1 + p->G - 1) / p->G;
    p->terms = (struct group_term *)(void *)(p->slices + (size_t)p->a->slots * PANEL_COLUMNS);
    for (uint32_t g = p->rows.k0 / p->G; g < last; g += slots) {
        const uint32_t end = last - g < slots ? last : g + slots;
        groups_slices(kind, p, rows, g, end);
        BLOCK_SYNC();
        groups_terms(p, rows, g, end);
        BLOCK_SYNC();
        groups_chain(p, rows, end - g, acc);
    }
}

BLOCK_INLINE void groups_kind(enum quant_kind kind, struct groups_part *p, float *acc)
{
    if (p->rows.n_rows == 1)
        groups_rounds(kind, p, 1, acc);
    else if (p->rows.n_rows == 2)
        groups_rounds(kind, p, 2, acc);
    else if (p->rows.n_rows <= 4)
        groups_rounds(kind, p, 4, acc);
    else
        groups_rounds(kind, p, CUDA_LINEAR_ROWS, acc);
}

BLOCK_INLINE void groups_run(const struct linear_work *a, struct cuda_block b, void *shared,
                             bool leafy)
{
    struct groups_part p;
    float acc[THREAD_SLOTS];
    p.a = a;
    linear_rows_of(a, b, CUDA_LINEAR_ROWS, &p.rows);
    linear_inputs_of(a, b, leafy, &p.rows);
    if (p.rows.k0 >= p.rows.w->n_in) return;
    const struct packed *w = p.rows.w;
    p.rows.n = b.x * PANEL_COLUMNS;
    p.panel = (const uint8_t *)w->data + b.x * kern_quant_panel_bytes(w->quant, w->n_in);
    p.G = a->xq.group;
    p.n_slices = p.G / SLICE;
    p.slices = (int32_t *)shared;
    for (uint32_t i = 0; i < THREAD_SLOTS; i++) acc[i] = 0.0f;
    if (w->quant.kind == QUANT_INT8)
        groups_kind(QUANT_INT8, &p, acc);
    else if (w->quant.kind == QUANT_INT4)
        groups_kind(QUANT_INT4, &p, acc);
    else
        groups_kind(QUANT_MXFP4, &p, acc);
    FOR_THREADS_AT(t, i)
    {
        struct linear_part one = p.rows;
        one.n += t % PANEL_COLUMNS;
        if (one.n >= w->n_out) continue;
        if (leafy)
            linear_store_leaf(a, &one, t / PANEL_COLUMNS, acc[i]);
        else
            linear_store(a, &one, t / PANEL_COLUMNS, acc[i]);
    }
}

BLOCK_INLINE void linear_groups_block(const struct linear_work *a, struct cuda_block b,
                                      void *shared)
{
    groups_run(a, b, shared, false);
}
CUDA_KERNEL(linear_groups, linear_work)

BLOCK_INLINE void linear_groups_leaf_block(const struct linear_work *a, struct cuda_block b,
                                           void *shared)
{
    groups_run(a, b, shared, true);
}
CUDA_KERNEL(linear_groups_leaf, linear_work)

BLOCK_INLINE void linear_groups_list_block(const struct linear_list_work *a, struct cuda_block b,
                                           void *shared)
{
    uint32_t i = a->n - 1;
    while (b.x < a->first[i]) i--;
    const struct cuda_block own = {b.x - a->first[i], b.y, b.z};
    groups_run(&a->part[i], own, shared, false);
}
CUDA_KERNEL(linear_groups_list, linear_list_work)
