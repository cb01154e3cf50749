/* Linears with quantized weights and int8 activations of many rows on AMX: tiles of 16 rows and 16
 * outputs give the exact sums of each group, which go through memory of the first-level cache into
 * the vectors of AVX-512, where they become floats and steps of the chains. Vectors are what binds,
 * not tiles, so the tiles of the next few groups are multiplied between the vectors of these. */
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

enum {
    ROWS_LEAST = TILE_ROWS,   /* fewer go AVX-512's way, */
    GROUP_LEAST = TILE_BYTES, /* as do smaller groups: they fill half a tile, and gain nothing */
    CHUNK = 4,                /* groups whose sums stand in memory together */
    X_TILES = 2,              /* tiles of rows, side by side; as many of panels */
    SUM_TILES = X_TILES * QUANT_PANELS,
};
static_assert(CHUNK % SUM_TILES == 0, "which tile comes next is constant");

typedef int32_t chunk_sums[SUM_TILES][CHUNK][TILE_ROWS][PANEL_COLUMNS];

/* Groups [g, g + n) of some tiles of rows: `row` is each one's first in the block, rows before
 * `first` are another tile's too, which has their chains. */
struct chunk {
    size_t g, n, row[X_TILES], first[X_TILES];
    chunk_sums *sums;
};

/* The exact sums of a group, c'th of its chunk, in tile i. */
ALWAYS_INLINE void chunk_multiply(size_t n_panels, size_t i, size_t c, const struct quant_tile *t,
                                  const struct chunk *next)
{
    const size_t r = i / n_panels, p = i % n_panels, g = next->g + c;
    const int tile = TILE_SUMS + (int)(r * 2 + p), x_tile = TILE_X + (int)r,
              w_tile = TILE_W + (int)p;
    const int8_t *x = t->x + next->row[r] * t->x_stride + g * t->group;
    const uint8_t *w = t->w + p * t->w_stride + g * t->group * PANEL_COLUMNS;
    const bool twice = t->group > TILE_BYTES;
    tile_zero(tile);
    if (p == 0 || twice) tile_load(x_tile, x, t->x_stride);
    if (r == 0 || twice) tile_load(w_tile, w, TILE_BYTES);
    tile_dot((int)r, (int)p);
    if (twice) {
        tile_load(x_tile, x + TILE_BYTES, t->x_stride);
        tile_load(w_tile, w + TILE_BYTES * PANEL_COLUMNS, TILE_BYTES);
        tile_dot((int)r, (int)p);
    }
    tile_store(tile, (*next->sums)[i][c][0]);
}

/* The chains of a tile, one group on. */
ALWAYS_INLINE void chunk_finish(bool has_zeros, size_t p, const struct quant_tile *t, size_t row,
                                size_t g, int32_t (*sums)[PANEL_COLUMNS], __m512 *acc)
{
    const __m512 w_scales = _mm512_load_ps(t->scales[p][g]);
    const float *x_scales = t->x_scales + row * t->q_stride + g;
    __m512i zeros = _mm512_setzero_si512();
    if (has_zeros) zeros = _mm512_load_si512(t->zeros[p][g]);
#pragma GCC unroll 16
    for (size_t r = 0; r < TILE_ROWS; r++) {
        const __m512 scale = _mm512_mul_ps(w_scales, _mm512_set1_ps(x_scales[r * t->q_stride]));
        __m512i sum = _mm512_load_si512(sums[r]);
        if (has_zeros) {
            const int32_t x_sum = t->start[(row + r) * t->start_stride + g];
            sum = _mm512_dpwssd_epi32(sum, zeros, _mm512_set1_epi32(x_sum));
        }
        acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[r]);
    }
}

/* The vectors of a chunk beside the tiles of the next. */
ALWAYS_INLINE void chunk_step(bool has_zeros, size_t n_x, size_t n_panels,
                              const struct quant_tile *t, const struct chunk *now,
                              const struct chunk *next, float (*out)[QUANT_PANELS][PANEL_COLUMNS])
{
    const size_t n_tiles = n_x * n_panels;
    for (size_t i = 0; i < n_tiles; i++) {
        const size_t x = i / n_panels, p = i % n_panels, row = now->row[x];
        __m512 acc[TILE_ROWS];
#pragma GCC unroll 16
        for (size_t r = 0; r < TILE_ROWS; r++) acc[r] = _mm512_load_ps(out[row + r][p]);
#pragma GCC unroll 4
        for (size_t c = 0; c < CHUNK; c++) {
            const size_t next_c = i * (CHUNK / n_tiles) + c / n_tiles;
            if (next_c < next->n) chunk_multiply(n_panels, c % n_tiles, next_c, t, next);
            if (c < now->n) chunk_finish(has_zeros, p, t, row, now->g + c, (*now->sums)[i][c], acc);
        }
#pragma GCC unroll 16
        for (size_t r = 0; r < TILE_ROWS; r++)
            if (r >= now->first[x]) _mm512_store_ps(out[row + r][p], acc[r]);
    }
}

/* Rows [row0, row1), n_x tiles of them at a time; the last tile ends where the rows do. */
ALWAYS_INLINE void chunk_rows(bool has_zeros, size_t n_x, size_t n_panels,
                              const struct quant_tile *t, size_t row0, size_t row1,
                              float (*out)[QUANT_PANELS][PANEL_COLUMNS])
{
    chunk_sums sums[2] __attribute__((aligned(64)));
    struct chunk now = {.n = 0, .sums = &sums[1]}, next = {.sums = &sums[0]};
    for (size_t row = row0; row < row1; row += n_x * TILE_ROWS) {
        for (size_t x = 0; x < n_x; x++) {
            const size_t begin = row + x * TILE_ROWS, last = t->n_rows - TILE_ROWS;
            next.row[x] = quant_min(begin, last);
            next.first[x] = begin - next.row[x];
        }
        for (size_t g = 0; g < t->n_groups; g += CHUNK) {
            next.g = g;
            next.n = quant_min(CHUNK, t->n_groups - g);
            chunk_step(has_zeros, n_x, n_panels, t, &now, &next, out);
            chunk_sums *free = now.sums;
            now = next;
            next.sums = free;
        }
    }
    next.n = 0;
    chunk_step(has_zeros, n_x, n_panels, t, &now, &next, out);
}

/* Pairs of row tiles, then what is left. */
ALWAYS_INLINE void chunk_block(bool has_zeros, size_t n_panels, const struct quant_tile *t,
                               float (*out)[QUANT_PANELS][PANEL_COLUMNS])
{
    const size_t n_tiles = (t->n_rows + TILE_ROWS - 1) / TILE_ROWS;
    const size_t paired = n_tiles / X_TILES * X_TILES * TILE_ROWS;
    if (paired > 0)
        chunk_rows(has_zeros, X_TILES, n_panels, t, 0, quant_min(paired, t->n_rows), out);
    if (paired < t->n_rows) chunk_rows(has_zeros, 1, n_panels, t, paired, t->n_rows, out);
}

static void set_tile(const struct quant_tile *t, float (*acc)[QUANT_PANELS][PANEL_COLUMNS])
{
    if (t->has_zeros && t->n_panels == QUANT_PANELS)
        chunk_block(true, QUANT_PANELS, t, acc);
    else if (t->has_zeros)
        chunk_block(true, 1, t, acc);
    else if (t->n_panels == QUANT_PANELS)
        chunk_block(false, QUANT_PANELS, t, acc);
    else
        chunk_block(false, 1, t, acc);
}

static void unpack_nibbles(const uint8_t *in, size_t n_vectors, uint8_t *out)
{
    const __m512i bias = _mm512_set1_epi8((char)QUANT_INT4_ZERO);
    for (size_t i = 0; i < n_vectors; i++) {
        const __m512i both = _mm512_loadu_si512(in + i * QUANT_LINE);
        const __m512i low = bytes_of(SOURCE_INT4, both, 0), high = bytes_of(SOURCE_INT4, both, 1);
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
    else
        unpack_nibbles(in, n_vectors, out);
}

/* Signed codes start from 0. */
static void set_starts(const int32_t *sums, size_t n, int32_t factor, int32_t *out)
{
    (void)sums;
    (void)factor;
    memset(out, 0, n * sizeof *out);
}

static bool suits_tiles(const struct linear_args *a, size_t n_rows)
{
    return a->xq != NULL && n_rows >= ROWS_LEAST && a->xq->group >= GROUP_LEAST;
}

static void linear_many(bool leafy, const struct linear_args *a, size_t group, size_t panel0,
                        size_t panel1, size_t row0, size_t row1)
{
    tiles_configure();
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
