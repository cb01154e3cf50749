/* Linears with quantized weights and quantized activations for many rows, on tensor cores
 * (mma.sync of int8). Its int32 sums are exact, so the bytes are those of linear_groups.cu. A packed
 * panel holds four inputs of an output side by side, as mma wants its second operand, so the
 * values go straight from memory to registers; int4 and mxfp4 are unpacked there. A warp computes
 * 32 outputs of 32 rows. */
#include "kernels/cuda/linear_tile.h"

enum {
    ROW_TILES = CUDA_MMA_ROWS / MMA_M,
    COLUMN_TILES = CUDA_MMA_OUTPUTS / (CUDA_THREADS / WARP_THREADS) / MMA_N,
    TILES = ROW_TILES * COLUMN_TILES,
    HALVES = 2, /* a thread has two rows of a tile, and two outputs */
};

/* The work of a warp: rows of one group, outputs from n on, and quantization groups [g0, g1) of G
 * inputs. */
struct mma_part {
    const struct linear_work *a;
    struct linear_part rows;
    uint32_t n, G, g0, g1;
};

/* Returns the words of row r's quantized values, from input k on. */
BLOCK_INLINE const uint32_t *mma_row(const struct mma_part *p, uint32_t r, uint32_t k)
{
    const struct quant_rows *q = &p->a->xq;
    const int8_t *row = q->codes + linear_row(&p->rows, r) * q->n_groups * p->G;
    return (const uint32_t *)(const void *)(row + k);
}

BLOCK_INLINE void mma_load_rows(const struct mma_part *p, uint32_t k, struct mma_a (*a)[WARP_LANES])
{
    FOR_LANES(lane, i)
    {
        BLOCK_UNROLL
        for (uint32_t t = 0; t < ROW_TILES; t++) {
            const uint32_t r = t * MMA_M + lane / 4;
            const uint32_t *low = mma_row(p, r, k) + lane % 4;
            const uint32_t *high = mma_row(p, r + MMA_M / 2, k) + lane % 4;
            a[t][i].v[0] = low[0];
            a[t][i].v[1] = high[0];
            a[t][i].v[2] = low[4];
            a[t][i].v[3] = high[4];
        }
    }
}

/* Returns four quantized values of an output as signed bytes: inputs 4 quad to 4 quad + 3. */
BLOCK_INLINE uint32_t mma_codes(enum quant_kind kind, const uint32_t *words, size_t quad)
{
    if (kind == QUANT_INT8) return words[quad * PANEL_COLUMNS] ^ 0x80808080u;
    const uint32_t nibbles = words[quad / 2 * PANEL_COLUMNS] >> 4 * (quad % 2) & 0x0F0F0F0Fu;
    return kind == QUANT_MXFP4 ? quant_doubled(nibbles) : nibbles;
}

BLOCK_INLINE void mma_load_weights(enum quant_kind kind, const struct mma_part *p, uint32_t k,
                                   struct mma_b (*b)[WARP_LANES])
{
    const struct packed *w = p->rows.w;
    const uint32_t last = (w->n_out - 1) / PANEL_COLUMNS;
    const size_t panel_bytes = kern_quant_panel_bytes(w->quant, w->n_in);
    FOR_LANES(lane, i)
    {
        BLOCK_UNROLL
        for (uint32_t t = 0; t < COLUMN_TILES; t++) {
            const uint32_t n = p->n + t * MMA_N + lane / 4, panel = n / PANEL_COLUMNS;
            const uint8_t *data =
                (const uint8_t *)w->data + (panel < last ? panel : last) * panel_bytes;
            const uint32_t *words = (const uint32_t *)(const void *)data + n % PANEL_COLUMNS;
            b[t][i].v[0] = mma_codes(kind, words, k / 4 + lane % 4);
            b[t][i].v[1] = mma_codes(kind, words, k / 4 + lane % 4 + 4);
        }
    }
}

/* Ends group g: acc = fma((float)isum, sw * sx, acc), then sets the integer sums to zero. */
BLOCK_INLINE void mma_scale(const struct mma_part *p, uint32_t g, struct mma_c (*sums)[WARP_LANES],
                            float (*acc)[WARP_LANES][4])
{
    const struct packed *w = p->rows.w;
    const struct quant_rows *q = &p->a->xq;
    FOR_LANES(lane, i)
    {
        float sx[ROW_TILES * HALVES];
        int32_t xsum[ROW_TILES * HALVES];
        BLOCK_UNROLL
        for (uint32_t j = 0; j < ROW_TILES * HALVES; j++) {
            const uint32_t r = j / HALVES * MMA_M + j % HALVES * (MMA_M / 2) + lane / 4;
            const size_t at = linear_row(&p->rows, r) * q->n_groups + g;
            sx[j] = q->scales[at];
            xsum[j] = q->sums[at];
        }
        BLOCK_UNROLL
        for (uint32_t j = 0; j < COLUMN_TILES * HALVES; j++) {
            const uint32_t own = p->n + j / HALVES * MMA_N + lane % 4 * 2 + j % HALVES;
            const uint32_t n = own < w->n_out ? own : w->n_out - 1;
            const float scale = kern_quant_scale(w, n, g);
            const int32_t offset = quant_offset(w, n, g);
            BLOCK_UNROLL
            for (uint32_t r = 0; r < ROW_TILES * HALVES; r++) {
                const uint32_t tile = r / HALVES * COLUMN_TILES + j / HALVES;
                const uint32_t v = r % HALVES * 2 + j % HALVES;
                const int32_t sum = sums[tile][i].v[v] + offset * xsum[r];
                acc[tile][i][v] = fmaf((float)sum, scale * sx[r], acc[tile][i][v]);
                sums[tile][i].v[v] = 0;
            }
        }
    }
}

BLOCK_INLINE void mma_store(const struct mma_part *p, bool leafy, float (*acc)[WARP_LANES][4])
{
    FOR_LANES(lane, i)
    {
        BLOCK_UNROLL
        for (uint32_t t = 0; t < TILES; t++) {
            BLOCK_UNROLL
            for (uint32_t v = 0; v < 4; v++) {
                struct linear_part one = p->rows;
                const uint32_t r = t / COLUMN_TILES * MMA_M + v / HALVES * (MMA_M / 2) + lane / 4;
                one.n = p->n + t % COLUMN_TILES * MMA_N + lane % 4 * 2 + v % HALVES;
                if (one.n >= one.w->n_out) continue;
                if (leafy)
                    linear_store_leaf(p->a, &one, r, acc[t][i][v]);
                else
                    linear_store(p->a, &one, r, acc[t][i][v]);
            }
        }
    }
}

BLOCK_INLINE void mma_run(enum quant_kind kind, const struct mma_part *p, bool leafy)
{
    struct mma_c sums[TILES][WARP_LANES];
    float acc[TILES][WARP_LANES][4];
    for (uint32_t i = 0; i < WARP_LANES; i++) {
        BLOCK_UNROLL
        for (uint32_t t = 0; t < TILES; t++) {
            BLOCK_UNROLL
            for (uint32_t v = 0; v < 4; v++) {
                sums[t][i].v[v] = 0;
                acc[t][i][v] = 0.0f;
            }
        }
    }
    for (uint32_t g = p->g0; g < p->g1; g++) {
        for (uint32_t k = g * p->G; k < (g + 1) * p->G; k += MMA_K) {
            struct mma_a a[ROW_TILES][WARP_LANES];
            struct mma_b b[COLUMN_TILES][WARP_LANES];
            mma_load_rows(p, k, a);
            mma_load_weights(kind, p, k, b);
            BLOCK_UNROLL
            for (uint32_t t = 0; t < TILES; t++)
                warp_mma_s8(sums[t], a[t / COLUMN_TILES], b[t % COLUMN_TILES]);
        }
        mma_scale(p, g, sums, acc);
    }
    mma_store(p, leafy, acc);
}

BLOCK_INLINE void mma_warp(const struct linear_work *a, struct cuda_block b, uint32_t warp,
                           bool leafy)
{
    struct mma_part p;
    p.a = a;
    linear_rows_of(a, b, CUDA_MMA_ROWS, &p.rows);
    linear_inputs_of(a, b, leafy, &p.rows);
    p.n = b.x * CUDA_MMA_OUTPUTS + warp * (COLUMN_TILES * MMA_N);
    p.G = a->xq.group;
    p.g0 = p.rows.k0 / p.G;
    p.g1 = (p.rows.k1 + p.G - 1) / p.G;
    if (p.n >= p.rows.w->n_out || p.rows.k0 >= p.rows.w->n_in) return;
    if (p.rows.w->quant.kind == QUANT_INT8)
        mma_run(QUANT_INT8, &p, leafy);
    else if (p.rows.w->quant.kind == QUANT_INT4)
        mma_run(QUANT_INT4, &p, leafy);
    else
        mma_run(QUANT_MXFP4, &p, leafy);
}

BLOCK_INLINE void linear_mma_block(const struct linear_work *a, struct cuda_block b, void *shared)
{
    (void)shared;
    FOR_WARPS(warp)
    {
        mma_warp(a, b, warp, false);
    }
}
CUDA_KERNEL(linear_mma, linear_work)

BLOCK_INLINE void linear_mma_leaf_block(const struct linear_work *a, struct cuda_block b,
                                        void *shared)
{
    (void)shared;
    FOR_WARPS(warp)
    {
        mma_warp(a, b, warp, true);
    }
}
CUDA_KERNEL(linear_mma_leaf, linear_work)
