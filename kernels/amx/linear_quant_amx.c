/* Linears with quantized weights and int8 activations of many rows on AMX: tiles of 16 rows and 16
 * outputs give the exact sums of each group, which go through memory of the first-level cache into
 * the vectors of AVX-512, where they become floats and steps of the chains. */
#include "kernels/amx/amx.h"

#include "kernels/amx/tiles.h"
#include "kernels/avx512/avx512.h"

enum {
    SET_TILE_ROWS = 256, /* a whole block */
    SET_BYTES_ROWS = SET_TILE_ROWS,
    SET_SIGNED = 1
};

#include "kernels/linear_quant_body.h"

#include "kernels/avx512/codes.h"
#include "kernels/avx512/turn.h"

enum {
    RING = 4,  /* groups whose sums stand in memory, each from a tile of its own */
    AHEAD = 3, /* groups multiplied before the sums of the first are read */
};

typedef int32_t tile_sums[TILE_ROWS][PANEL_COLUMNS];

/* What 16 rows bring to each group, group by group, so that a group's stand side by side. */
struct tile_rows {
    float scales[QUANT_PIECE_GROUPS][TILE_ROWS] __attribute__((aligned(64)));
    int32_t sums[QUANT_PIECE_GROUPS][TILE_ROWS] __attribute__((aligned(64)));
};

/* 16 rows by a panel, over the groups of a piece. */
struct chains {
    size_t n_groups, group;
    const int8_t *x; /* codes of the rows' first group, x_stride apart */
    size_t x_stride;
    const uint8_t *w;
    const struct tile_rows *rows;
    const float (*scales)[PANEL_COLUMNS];
    const int32_t (*zeros)[PANEL_COLUMNS]; /* NULL: none */
    const uint8_t *ahead;                  /* n_ahead lines to fetch meanwhile */
    size_t n_ahead;
};

/* Lines still to be fetched begin at `next`; `due` of n_groups parts of one are due. */
struct fetch {
    const uint8_t *next;
    size_t due;
};

/* out[g][r] = word g < n of row r, rows `stride` words apart. */
ALWAYS_INLINE void turn_rows(const void *rows, size_t stride, size_t n, void *out)
{
    const __mmask16 all = (__mmask16)((1u << n) - 1);
    __m512i in[TILE_ROWS], turned[QUANT_PIECE_GROUPS];
#pragma GCC unroll 16
    for (size_t r = 0; r < TILE_ROWS; r++)
        in[r] = _mm512_maskz_loadu_epi32(all, (const int32_t *)rows + r * stride);
    turn_words(in, turned);
#pragma GCC unroll 16
    for (size_t g = 0; g < QUANT_PIECE_GROUPS; g++)
        _mm512_store_si512((int32_t *)out + g * TILE_ROWS, turned[g]);
}

/* The exact sums of group g, in tile i. */
ALWAYS_INLINE void group_multiply(const struct chains *c, size_t i, size_t g)
{
    const int sums = TILE_SUMS + (int)i, x_tile = TILE_X + (int)(i % 2), w_tile = x_tile + 2;
    const int8_t *x = c->x + g * c->group;
    const uint8_t *w = c->w + g * c->group * PANEL_COLUMNS;
    tile_zero(sums);
#pragma GCC unroll 2
    for (size_t k = 0; k < c->group; k += TILE_BYTES) {
        tile_load(x_tile, x + k, c->x_stride);
        tile_load(w_tile, w + k * PANEL_COLUMNS, TILE_BYTES);
        tile_dot(sums, x_tile);
    }
}

/* The chains one group on. */
ALWAYS_INLINE void group_finish(const struct chains *c, size_t g, const tile_sums *sums,
                                __m512 *acc)
{
    const __m512 w_scales = _mm512_load_ps(c->scales[g]);
    __m512i zeros = _mm512_setzero_si512();
    if (c->zeros != NULL) zeros = _mm512_load_si512(c->zeros[g]);
#pragma GCC unroll 16
    for (size_t r = 0; r < TILE_ROWS; r++) {
        const __m512 scale = _mm512_mul_ps(w_scales, _mm512_set1_ps(c->rows->scales[g][r]));
        __m512i sum = _mm512_load_si512((*sums)[r]);
        if (c->zeros != NULL)
            sum = _mm512_dpwssd_epi32(sum, zeros, _mm512_set1_epi32(c->rows->sums[g][r]));
        acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[r]);
        if (c->zeros != NULL) __asm__ volatile("" ::: "memory"); /* no row's loads before */
    }
}

/* In n_groups calls n_ahead lines: all at once they would stand before what is needed now. */
ALWAYS_INLINE void fetch_due(const struct chains *c, struct fetch *f)
{
    for (f->due += c->n_ahead; f->due >= c->n_groups; f->due -= c->n_groups) {
        _mm_prefetch(f->next, _MM_HINT_T1);
        f->next += QUANT_LINE;
    }
}

/* The chains of 16 rows, of which those from `first` on are stored: the rows before are another
 * tile's. The dots of the next groups run beside the vectors of this one. A store waits for its
 * tile's dots, so it stands behind the next group's. */
ALWAYS_INLINE void tile_chains(const struct chains *c, size_t first,
                               float (*out)[QUANT_PANELS][PANEL_COLUMNS])
{
    struct fetch ahead = {.next = c->ahead};
    tile_sums ring[RING] __attribute__((aligned(64)));
    __m512 acc[TILE_ROWS];
#pragma GCC unroll 16
    for (size_t r = 0; r < TILE_ROWS; r++) acc[r] = _mm512_load_ps(out[r][0]);
#pragma GCC unroll 3
    for (size_t g = 0; g < AHEAD; g++) {
        if (g < c->n_groups) group_multiply(c, g, g);
        if (g > 0 && g <= c->n_groups) tile_store(TILE_SUMS + (int)g - 1, ring[g - 1][0]);
    }
    for (size_t g0 = 0; g0 < c->n_groups; g0 += RING) {
#pragma GCC unroll 4
        for (size_t i = 0; i < RING; i++) {
            const size_t g = g0 + i;
            if (g >= c->n_groups) break;
            if (g + AHEAD < c->n_groups) group_multiply(c, (i + AHEAD) % RING, g + AHEAD);
            const size_t last = (i + AHEAD - 1) % RING;
            if (g + AHEAD <= c->n_groups) tile_store(TILE_SUMS + (int)last, ring[last][0]);
            fetch_due(c, &ahead);
            group_finish(c, g, &ring[i], acc);
        }
    }
#pragma GCC unroll 16
    for (size_t r = 0; r < TILE_ROWS; r++)
        if (r >= first) _mm512_store_ps(out[r][0], acc[r]);
}

/* The last tile of rows ends where the rows do. `group` and has_zeros are constant in each call. */
ALWAYS_INLINE void block_chains(bool has_zeros, size_t group, const struct quant_tile *t,
                                float (*out)[QUANT_PANELS][PANEL_COLUMNS])
{
    const size_t n_tiles = (t->n_rows + TILE_ROWS - 1) / TILE_ROWS;
    const size_t n_lines = t->n_groups * t->ahead_step / QUANT_LINE;
    struct tile_rows rows;
    for (size_t begin = 0; begin < t->n_rows; begin += TILE_ROWS) {
        const size_t row = quant_min(begin, t->n_rows - TILE_ROWS);
        turn_rows(t->x_scales + row * t->q_stride, t->q_stride, t->n_groups, rows.scales);
        if (has_zeros)
            turn_rows(t->start + row * t->start_stride, t->start_stride, t->n_groups, rows.sums);
        const size_t line = begin / TILE_ROWS * n_lines / n_tiles;
        const size_t next_line = (begin / TILE_ROWS + 1) * n_lines / n_tiles;
        for (size_t p = 0; p < t->n_panels; p++) {
            const uint8_t *ahead = t->ahead + p * t->ahead_stride + line * QUANT_LINE;
            const struct chains c = {.n_groups = t->n_groups,
                                     .group = group,
                                     .x = t->x + row * t->x_stride,
                                     .x_stride = t->x_stride,
                                     .w = t->w + p * t->w_stride,
                                     .rows = &rows,
                                     .scales = t->scales[p],
                                     .zeros = has_zeros ? t->zeros[p] : NULL,
                                     .ahead = ahead,
                                     .n_ahead = next_line - line};
            tile_chains(&c, begin - row, (void *)out[row][p]);
        }
    }
}

#define BLOCK(has_zeros, group)                                                                    \
    case 2 * (group) + (has_zeros):                                                                \
        block_chains(has_zeros, group, t, acc);                                                    \
        break;

static void set_tile(const struct quant_tile *t, float (*acc)[QUANT_PANELS][PANEL_COLUMNS])
{
    switch (2 * t->group + t->has_zeros) {
        BLOCK(false, 32)
        BLOCK(true, 32)
        BLOCK(false, 64)
        BLOCK(true, 64)
        BLOCK(false, 128)
        BLOCK(true, 128)
    default:
        assert(!"groups of 32, 64 or 128");
    }
}

ALWAYS_INLINE void unpack_nibbles(enum quant_source source, const uint8_t *in, size_t n_vectors,
                                  uint8_t *out)
{
    const __m512i bias = _mm512_set1_epi8((char)quant_bias(source));
    for (size_t i = 0; i < n_vectors; i++) {
        const __m512i both = _mm512_loadu_si512(in + i * QUANT_LINE);
        const __m512i low = bytes_of(source, both, 0), high = bytes_of(source, both, 1);
        _mm512_store_si512(out + 2 * i * QUANT_LINE, _mm512_sub_epi8(low, bias));
        _mm512_store_si512(out + (2 * i + 1) * QUANT_LINE, _mm512_sub_epi8(high, bias));
    }
}

static void unpack_bytes(const uint8_t *in, size_t n_vectors, uint8_t *out)
{
    const __m512i bias = _mm512_set1_epi8((char)QUANT_INT8_BIAS);
    for (size_t i = 0; i < n_vectors; i++) {
        const __m512i v = _mm512_loadu_si512(in + i * QUANT_LINE);
        _mm512_store_si512(out + i * QUANT_LINE, _mm512_xor_si512(v, bias));
    }
}

static void set_unpack(enum quant_source source, const uint8_t *in, size_t n_vectors, uint8_t *out)
{
    if (source == SOURCE_BYTES)
        unpack_bytes(in, n_vectors, out);
    else if (source == SOURCE_INT4)
        unpack_nibbles(SOURCE_INT4, in, n_vectors, out);
    else
        unpack_nibbles(SOURCE_MXFP4, in, n_vectors, out);
}

/* Signed codes start from 0. */
static void set_starts(const int32_t *sums, size_t n, int32_t factor, int32_t *out)
{
    (void)sums;
    (void)factor;
    memset(out, 0, n * sizeof *out);
}

/* From three quarters of the tiles' rows on, tiles are ahead of AVX-512 (bench/tried.md). */
static bool suits_tiles(const struct linear_args *a, size_t n_rows)
{
    const size_t n_tiles = (n_rows + TILE_ROWS - 1) / TILE_ROWS;
    return a->xq != NULL && n_rows >= TILE_ROWS && 4 * n_rows >= 3 * n_tiles * TILE_ROWS;
}

static void linear_many(bool leafy, const struct linear_args *a, size_t group, size_t panel0,
                        size_t panel1, size_t row0, size_t row1)
{
    tiles_configure(quant_min(a->xq->group, TILE_BYTES));
    quant_linear_many(leafy ? quant_panels_leaf : quant_panels, QUANT_PANELS, leafy, a,
                      &a->groups[group], panel0, panel1, row0, row1);
    tiles_release();
}

void k_linear_quant_amx(const struct linear_args *a, size_t group, size_t panel0, size_t panel1,
                        size_t row0, size_t row1)
{
    if (!suits_tiles(a, row1 - row0))
        k_linear_quant_avx512_6x32(a, group, panel0, panel1, row0, row1);
    else
        linear_many(false, a, group, panel0, panel1, row0, row1);
}

void k_linear_quant_leaf_amx(const struct linear_args *a, size_t group, size_t panel0,
                             size_t panel1, size_t row0, size_t row1)
{
    if (!suits_tiles(a, row1 - row0))
        k_linear_quant_leaf_avx512_6x32(a, group, panel0, panel1, row0, row1);
    else
        linear_many(true, a, group, panel0, panel1, row0, row1);
}
