/* Linears on tensor cores with 16-bit operands: weights in f16 or bf16, or quantized values that
 * are exact in bf16, times rows rounded to the same type (half_rows.cu). Each output (of a
 * quantized weight, each group of an output) is a chain of products of 16 inputs, in one order for
 * all tile shapes. Each file that includes this one defines a shape. Weights and rows are copied
 * to shared memory by cp.async, some steps ahead. */
#ifndef SHOAL_KERNELS_CUDA_LINEAR_HALF_H
#define SHOAL_KERNELS_CUDA_LINEAR_HALF_H

#include "kernels/cuda/linear_tile.h"
#include "kernels/cuda/mma.h"

#include <assert.h>

/* The including file defines:
 *     HALF_ROWS, HALF_OUTPUTS   rows and outputs of a block's tile
 *     HALF_WARPS_DOWN           warps that divide the rows; HALF_WARPS_ACROSS divide the
 *                               outputs
 *     HALF_STEP                 inputs fetched per step
 *     HALF_STAGES               steps held in shared memory
 *     HALF_SHARED               bytes of shared memory */
enum {
    HALF_RUN = CUDA_HALF_RUN, /* a run: the inputs of two tensor-core products */
    HALF_PANELS = HALF_OUTPUTS / PANEL_COLUMNS,
    HALF_WARPS_ACROSS = CUDA_THREADS / WARP_THREADS / HALF_WARPS_DOWN,
    DOWN = HALF_ROWS / HALF_WARPS_DOWN / MMA_M,        /* products of a warp over the rows */
    ACROSS = HALF_OUTPUTS / HALF_WARPS_ACROSS / MMA_N, /* products of a warp over the outputs */
    RUN_ROW_BYTES = HALF_RUN * 2,                      /* bytes of one row's inputs in a run */
    RUN_FLOATS_BYTES = HALF_RUN * PANEL_COLUMNS * 2,   /* a run of a panel, 16-bit weights */
    RUN_CODES_BYTES =
        HALF_K * PANEL_COLUMNS, /* a run of a panel, 4-bit values; 8-bit values: twice that */
    ROWS_BYTES = HALF_STEP / HALF_RUN * HALF_ROWS * RUN_ROW_BYTES,
    PIECE = 16,
};

/* Asserts that panels of at most run_bytes per run fit into the shared memory. */
#define HALF_FITS(run_bytes)                                                                       \
    static_assert(HALF_STAGES * (ROWS_BYTES + HALF_STEP / HALF_RUN * HALF_PANELS * (run_bytes)) <= \
                      HALF_SHARED,                                                                 \
                  "more shared memory than is asked for")

/* The work of a block. */
struct half_part {
    const struct linear_work *a;
    struct linear_part rows;
    uint32_t panel0, n_panels; /* first panel of the block; panels from it to the weight's end */
    uint32_t k_end;            /* k1 rounded up to whole runs */
    uint32_t run_bytes;        /* bytes of a run of one panel */
    size_t panel_bytes;
    uint8_t *shared;
};

/* Registers of a warp's lanes. `chain` is used with groups that have scales. */
struct half_warp {
    struct half_sums sums[DOWN * ACROSS][WARP_LANES], chain[DOWN * ACROSS][WARP_LANES];
    float scale[ACROSS * 2][WARP_LANES]; /* current group's, of the outputs that the lane sums */
    uint32_t zero[ACROSS][WARP_LANES];   /* half_pair's zero of the output that the lane loads, in
                                            both halves */
};

BLOCK_INLINE uint8_t *half_stage(const struct half_part *p, uint32_t step)
{
    const uint32_t panels = HALF_PANELS * (HALF_STEP / HALF_RUN) * p->run_bytes;
    return p->shared + step % HALF_STAGES * (ROWS_BYTES + panels);
}

/* Returns the byte offset of chunk i (eight inputs, 16 bytes) of row r in a run. The XOR avoids
 * bank conflicts: chunk i of eight neighbouring rows touches every bank once. */
BLOCK_INLINE uint32_t half_row_at(uint32_t run, uint32_t r, uint32_t i)
{
    return (run * HALF_ROWS + r) * RUN_ROW_BYTES + (i ^ (r >> 1 & 3)) * PIECE;
}

/* Returns the byte offset of half h (eight outputs) of input k in a panel of 16-bit weights. Here
 * too the XOR avoids bank conflicts. */
BLOCK_INLINE uint32_t half_weight_at(uint32_t k, uint32_t h)
{
    return (k * 2 + (h ^ (k >> 2 & 1))) * PIECE;
}

BLOCK_INLINE void half_fetch_rows(const struct half_part *p, uint32_t k, uint32_t t, uint8_t *to)
{
    const uint32_t pieces = HALF_STEP / 8;
    BLOCK_UNROLL
    for (uint32_t i = t; i < HALF_ROWS * pieces; i += CUDA_THREADS) {
        const uint32_t r = i / pieces, at = i % pieces;
        const bool has = r < p->rows.n_rows && k + at * 8 < p->k_end;
        const size_t row = has ? p->rows.row0 + r - p->a->half_row0 : 0;
        const uint16_t *from = p->a->half + row * p->a->half_stride + (has ? k + at * 8 : 0);
        block_fetch16_or_zeros(to + half_row_at(at / 4, r, at % 4), from, has);
    }
}

/* Fetches the panels of a step. 16-bit weights after the last input become zeros. Quantized values
 * there are multiplied by zeros in the rows; those of fp8 may be NaN, so half_cut clears them. */
BLOCK_INLINE void half_fetch_panels(bool codes, const struct half_part *p, uint32_t k, uint32_t t,
                                    uint8_t *to)
{
    const uint32_t bytes = HALF_STEP / HALF_RUN * p->run_bytes;
    const size_t first = (size_t)(k / HALF_RUN) * p->run_bytes;
    const uint32_t end = codes ? p->k_end : p->rows.k1;
    const size_t last =
        (size_t)(end / HALF_RUN) * p->run_bytes + (codes ? 0 : end % HALF_RUN * PANEL_COLUMNS * 2);
    const uint32_t pieces = bytes / PIECE;
    BLOCK_UNROLL
    for (uint32_t i = t; i < HALF_PANELS * pieces; i += CUDA_THREADS) {
        const uint32_t panel = i / pieces, at = i % pieces;
        const size_t from = first + at * PIECE;
        const bool has = panel < p->n_panels && from < last;
        const uint8_t *data = (const uint8_t *)p->rows.w->data;
        if (has) data += (p->panel0 + panel) * p->panel_bytes + from;
        const uint32_t place = codes ? at * PIECE : half_weight_at(at / 2, at % 2);
        block_fetch16_or_zeros(to + panel * bytes + place, data, has);
    }
}

BLOCK_INLINE void half_fetch(bool codes, const struct half_part *p, uint32_t step)
{
    const uint32_t k = p->rows.k0 + step * HALF_STEP;
    FOR_THREADS(t)
    {
        if (k < p->k_end) {
            half_fetch_rows(p, k, t, half_stage(p, step));
            half_fetch_panels(codes, p, k, t, half_stage(p, step) + ROWS_BYTES);
        }
        block_fetch_end();
    }
}

/* --- fragments ------------------------------------------------------------------------------- */

/* Loads the rows of product h of a run: 16 rows, from r0 on. */
BLOCK_INLINE void half_load_rows(const uint8_t *stage, uint32_t run, uint32_t r0, uint32_t h,
                                 struct half_a *a)
{
    const void *rows[WARP_LANES];
    FOR_LANES(lane, i)
    {
        const uint32_t r = r0 + lane / 8 % 2 * 8 + lane % 8;
        rows[i] = stage + half_row_at(run, r, h * 2 + lane / 16);
    }
    warp_load_matrices(a, rows);
}

/* Loads the weights of both products of a run: eight outputs, 32 inputs. */
BLOCK_INLINE void half_load_weights(const uint8_t *panel, uint32_t run, uint32_t eighth,
                                    struct half_b (*b)[WARP_LANES])
{
    const void *rows[WARP_LANES];
    struct half_a both[WARP_LANES];
    FOR_LANES(lane, i)
    {
        rows[i] = panel + half_weight_at(run * HALF_RUN + lane, eighth);
    }
    warp_load_turned(both, rows);
    for (uint32_t i = 0; i < WARP_LANES; i++) {
        b[0][i].v[0] = both[i].v[0];
        b[0][i].v[1] = both[i].v[1];
        b[1][i].v[0] = both[i].v[2];
        b[1][i].v[1] = both[i].v[3];
    }
}

/* Converts two quantized values, in the low bits of v's halves, to the two bf16 numbers value -
 * zero, exactly. int8 and int4: for x below 128 the bits 0x4300 | x are the bf16 number 128 + x.
 * `zero` is 128 minus the zero point for int8 (whose `high` subtracts 256 or 128), and -128 minus
 * the zero point for int4. fp8 and mxfp4: E4M3 and E2M1 bits, shifted into place, are bf16 numbers
 * 2^120 and 2^126 times too small; the multiplication makes up for it (mxfp4 doubles the value,
 * because its scale is halved). */
BLOCK_INLINE uint32_t half_pair(enum quant_kind kind, uint32_t v, uint32_t zero)
{
    const uint32_t one = 0x3F803F80u, none = 0x80008000u;
    if (kind == QUANT_INT8) {
        const uint32_t low = 0x43004300u | (v & 0x007F007Fu);  /* 128 + low seven bits */
        const uint32_t high = 0xC380C380u ^ (v & 0x00800080u); /* -256, or -128 if bit 7 is set */
        return block_fma2_bf16(block_fma2_bf16(low, one, high), one, zero);
    }
    if (kind == QUANT_INT4) return block_fma2_bf16(0x43004300u | (v & 0x000F000Fu), one, zero);
    if (kind == QUANT_MXFP4)
        return block_fma2_bf16((v & 0x00080008u) << 12 | (v & 0x00070007u) << 6, 0x7F007F00u, none);
    const uint32_t size = v & 0x007F007Fu, nan = ((size + 0x00010001u) & 0x00800080u) * 0xFFu;
    return block_fma2_bf16((v & 0x00800080u) << 8 | size << 4 | nan, 0x7B807B80u, none);
}

/* Returns the `zero` of half_pair for output n in group g, in both halves. */
BLOCK_INLINE uint32_t half_zero(enum quant_kind kind, const struct packed *w, uint32_t n,
                                uint32_t g)
{
    if (kind != QUANT_INT8 && kind != QUANT_INT4) return 0;
    const int32_t zero = kern_quant_zero(w, n < w->n_out ? n : w->n_out - 1, g);
    const uint32_t bits =
        bf16_from_f32((float)(kind == QUANT_INT8 ? QUANT_INT8_BIAS - zero : -128 - zero));
    return bits << 16 | bits;
}

/* Returns a word of inputs k to k + 3, with zeros for inputs from n_in on. */
BLOCK_INLINE uint32_t half_cut(uint32_t word, uint32_t k, uint32_t n_in)
{
    if (k + QUANT_QUAD <= n_in) return word;
    return k < n_in ? word & ((1u << 8 * (n_in - k)) - 1) : 0;
}

/* Loads the quantized weights of both products of a run. A lane's word holds four inputs of one
 * output; with nibbles, four inputs for each of the two products. half_rows.cu orders the rows'
 * inputs to match. Column c of product j is output 2 c + j % 2 of its panel. */
BLOCK_INLINE void half_load_codes(enum quant_kind kind, const struct half_part *p, uint32_t k,
                                  const uint8_t *panel, uint32_t run, uint32_t odd,
                                  const uint32_t *zero, struct half_b (*b)[WARP_LANES])
{
    const bool nibbles = quant_is_nibbles(kind);
    FOR_LANES(lane, i)
    {
        const uint32_t *words = (const uint32_t *)(const void *)(panel + run * p->run_bytes);
        words += lane % 4 * PANEL_COLUMNS + lane / 4 * 2 + odd;
        BLOCK_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            uint32_t word = nibbles ? words[0] >> 4 * h : words[h * RUN_CODES_BYTES / 4];
            if (kind == QUANT_FP8)
                word = half_cut(word, k + h * HALF_K + lane % 4 * QUANT_QUAD, p->rows.w->n_in);
            b[h][i].v[0] = half_pair(kind, word, zero[i]);
            b[h][i].v[1] = half_pair(kind, word >> 8, zero[i]);
        }
    }
}

/* --- a warp's products ----------------------------------------------------------------------- */

/* Returns the output of column c of product j of a warp. For quantized weights see
 * half_load_codes. */
BLOCK_INLINE uint32_t half_output(bool codes, const struct half_part *p, uint32_t warp, uint32_t j,
                                  uint32_t c)
{
    const uint32_t eighth = warp % HALF_WARPS_ACROSS * ACROSS + j;
    const uint32_t in_panel = codes ? 2 * c + eighth % 2 : eighth % 2 * MMA_N + c;
    return (p->panel0 + eighth / 2) * PANEL_COLUMNS + in_panel;
}

BLOCK_INLINE float half_scale(enum quant_kind kind, const struct packed *w, uint32_t own,
                              uint32_t g)
{
    const uint32_t n = own < w->n_out ? own : w->n_out - 1;
    if (kind == QUANT_MXFP4 || w->quant.scale_dtype != DTYPE_F16) return kern_quant_scale(w, n, g);
    return block_load_f16(w->scales, kern_quant_scale_index(w, n, g));
}

/* Loads the scales and zero points of group g. */
BLOCK_INLINE void half_begin_group(enum quant_kind kind, const struct half_part *p, uint32_t warp,
                                   uint32_t g, struct half_warp *state)
{
    const struct packed *w = p->rows.w;
    FOR_LANES(lane, i)
    {
        BLOCK_UNROLL
        for (uint32_t j = 0; j < ACROSS; j++) {
            const uint32_t b = half_output(true, p, warp, j, lane / 4);
            state->zero[j][i] = half_zero(kind, w, b, g);
            BLOCK_UNROLL
            for (uint32_t e = 0; e < 2; e++) {
                const uint32_t n = half_output(true, p, warp, j, lane % 4 * 2 + e);
                state->scale[j * 2 + e][i] = half_scale(kind, w, n, g);
            }
        }
    }
}

/* Ends a group: chain = fma(sum of the group, scale, chain), then the sums start again at zero. */
BLOCK_INLINE void half_end_group(struct half_warp *state)
{
    for (uint32_t i = 0; i < WARP_LANES; i++) {
        BLOCK_UNROLL
        for (uint32_t t = 0; t < DOWN * ACROSS; t++) {
            BLOCK_UNROLL
            for (uint32_t v = 0; v < 4; v++) {
                float *chain = &state->chain[t][i].v[v], *sum = &state->sums[t][i].v[v];
                *chain = fmaf(*sum, state->scale[t % ACROSS * 2 + v % 2][i], *chain);
                *sum = 0.0f;
            }
        }
    }
}

BLOCK_INLINE void half_run_products(enum quant_kind kind, enum dtype type,
                                    const struct half_part *p, uint32_t warp, uint32_t k,
                                    uint32_t run, const uint8_t *stage, struct half_warp *state)
{
    const uint8_t *panels = stage + ROWS_BYTES;
    const uint32_t r0 = warp / HALF_WARPS_ACROSS * DOWN * MMA_M;
    struct half_a a[2][DOWN][WARP_LANES];
    BLOCK_UNROLL
    for (uint32_t d = 0; d < DOWN; d++) {
        half_load_rows(stage, run, r0 + d * MMA_M, 0, a[0][d]);
        half_load_rows(stage, run, r0 + d * MMA_M, 1, a[1][d]);
    }
    BLOCK_UNROLL
    for (uint32_t j = 0; j < ACROSS; j++) {
        struct half_b b[2][WARP_LANES];
        const uint32_t eighth = warp % HALF_WARPS_ACROSS * ACROSS + j;
        const uint8_t *panel = panels + eighth / 2 * (HALF_STEP / HALF_RUN) * p->run_bytes;
        if (kind == QUANT_NONE)
            half_load_weights(panel, run, eighth % 2, b);
        else
            half_load_codes(kind, p, k, panel, run, eighth % 2, state->zero[j], b);
        BLOCK_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            BLOCK_UNROLL
            for (uint32_t d = 0; d < DOWN; d++)
                warp_mma_half(type, state->sums[d * ACROSS + j], a[h][d], b[h]);
        }
    }
}

/* Multiplies all runs of a step. */
BLOCK_INLINE void half_step(enum quant_kind kind, enum dtype type, const struct half_part *p,
                            uint32_t step, uint32_t warp, struct half_warp *state)
{
    const uint8_t *stage = half_stage(p, step);
    const uint32_t G = kind == QUANT_NONE ? HALF_RUN : quant_kernel_group(p->rows.w->quant);
    BLOCK_UNROLL
    for (uint32_t run = 0; run < HALF_STEP / HALF_RUN; run++) {
        const uint32_t k = p->rows.k0 + step * HALF_STEP + run * HALF_RUN;
        if (k >= p->k_end) break;
        if (kind != QUANT_NONE && k % G == 0) half_begin_group(kind, p, warp, k / G, state);
        half_run_products(kind, type, p, warp, k, run, stage, state);
        if (kind != QUANT_NONE && ((k + HALF_RUN) % G == 0 || k + HALF_RUN >= p->k_end))
            half_end_group(state);
    }
}

BLOCK_INLINE void half_store(bool codes, const struct half_part *p, uint32_t warp,
                             const struct half_warp *state)
{
    FOR_LANES(lane, i)
    {
        BLOCK_UNROLL
        for (uint32_t t = 0; t < DOWN * ACROSS; t++) {
            BLOCK_UNROLL
            for (uint32_t v = 0; v < 4; v++) {
                struct linear_part one = p->rows;
                const uint32_t down = warp / HALF_WARPS_ACROSS * DOWN + t / ACROSS;
                const uint32_t r = down * MMA_M + v / 2 * 8 + lane / 4;
                const float y = codes ? state->chain[t][i].v[v] : state->sums[t][i].v[v];
                one.n = half_output(codes, p, warp, t % ACROSS, lane % 4 * 2 + v % 2);
                if (one.n >= one.w->n_out) continue;
                if (p->a->leafy)
                    linear_store_leaf(p->a, &one, r, y);
                else
                    linear_store(p->a, &one, r, y);
            }
        }
    }
}

/* --- a block --------------------------------------------------------------------------------- */

BLOCK_INLINE bool half_part_of(enum quant_kind kind, const struct linear_work *a,
                               struct cuda_block b, void *shared, struct half_part *p)
{
    p->a = a;
    linear_rows_of(a, b, HALF_ROWS, &p->rows);
    linear_inputs_of(a, b, a->leafy, &p->rows);
    const struct packed *w = p->rows.w;
    const uint32_t all = (w->n_out + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
    p->panel0 = b.x * HALF_PANELS;
    p->n_panels = all - p->panel0;
    p->k_end = (p->rows.k1 + HALF_RUN - 1) / HALF_RUN * HALF_RUN;
    p->run_bytes = RUN_FLOATS_BYTES;
    p->panel_bytes = (size_t)w->n_in * PANEL_COLUMNS * 2;
    if (kind != QUANT_NONE) {
        p->run_bytes = RUN_CODES_BYTES * (quant_is_nibbles(kind) ? 1 : 2);
        p->panel_bytes = kern_quant_panel_bytes(w->quant, w->n_in);
    }
    p->shared = (uint8_t *)shared;
    return p->rows.k0 < w->n_in || w->n_in == 0;
}

BLOCK_INLINE void half_clear(struct half_warp *state)
{
    const struct half_sums zeros = {{0.0f, 0.0f, 0.0f, 0.0f}};
    for (uint32_t i = 0; i < WARP_LANES; i++) {
        BLOCK_UNROLL
        for (uint32_t t = 0; t < DOWN * ACROSS; t++) {
            state->sums[t][i] = zeros;
            state->chain[t][i] = zeros;
        }
    }
}

/* Computes one block. `type` is the type of the operands; kind and type are compile-time
 * constants. */
BLOCK_INLINE void half_block(enum quant_kind kind, enum dtype type, const struct linear_work *a,
                             struct cuda_block b, void *shared)
{
    const bool codes = kind != QUANT_NONE;
    struct half_warp warps[WARP_SLOTS];
    struct half_part p;
    if (!half_part_of(kind, a, b, shared, &p)) return;
    const uint32_t n_steps = (p.k_end - p.rows.k0 + HALF_STEP - 1) / HALF_STEP;
    for (uint32_t s = 0; s < WARP_SLOTS; s++) half_clear(&warps[s]);
    for (uint32_t step = 0; step + 1 < HALF_STAGES; step++) half_fetch(codes, &p, step);
    for (uint32_t step = 0; step < n_steps; step++) {
        BLOCK_FETCH_WAIT(HALF_STAGES - 2);
        BLOCK_SYNC(); /* all threads' copies have arrived; the oldest stage is free */
        half_fetch(codes, &p, step + HALF_STAGES - 1);
        FOR_WARPS_AT(w, s)
        {
            half_step(kind, type, &p, step, w, &warps[s]);
        }
    }
    FOR_WARPS_AT(w, s)
    {
        half_store(codes, &p, w, &warps[s]);
    }
}

BLOCK_INLINE void half_floats(const struct linear_work *a, struct cuda_block b, void *shared)
{
    if (a->one.dtype == DTYPE_F16)
        half_block(QUANT_NONE, DTYPE_F16, a, b, shared);
    else
        half_block(QUANT_NONE, DTYPE_BF16, a, b, shared);
}

BLOCK_INLINE void half_codes(const struct linear_work *a, struct cuda_block b, void *shared)
{
    switch (a->one.quant.kind) {
    case QUANT_INT8:
        half_block(QUANT_INT8, DTYPE_BF16, a, b, shared);
        break;
    case QUANT_INT4:
        half_block(QUANT_INT4, DTYPE_BF16, a, b, shared);
        break;
    case QUANT_FP8:
        half_block(QUANT_FP8, DTYPE_BF16, a, b, shared);
        break;
    default:
        half_block(QUANT_MXFP4, DTYPE_BF16, a, b, shared);
        break;
    }
}

#endif
