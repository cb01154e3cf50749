/* Linears with int8 and int4 weights and int8 activations on AMX, for many rows. Tile registers of
 * 16 rows and 16 outputs compute the exact integer sums of each group. The sums go through the
 * first-level cache into AVX-512 vectors, which convert them to floats and continue the chains. */
#include "kernels/amx/amx.h"

#include "kernels/amx/tiles.h"
#include "kernels/avx512/avx512.h"

enum {
    SET_TILE_ROWS = 256, /* a whole block of rows */
    SET_BYTES_ROWS = SET_TILE_ROWS,
    SET_SIGNED = 1,
    SET_ENDS = 1
};

#include "kernels/linear_quant_body.h"

#include "kernels/avx512/codes.h"
#include "kernels/avx512/turn.h"

enum {
    RING = 4,               /* groups whose sums are in memory; each has its own tile register */
    AHEAD = 3,              /* groups multiplied before the sums of the first one are read */
    CACHED_CODES = 3 << 18, /* bytes of activations that a 2 MiB second-level cache keeps */
};

typedef int32_t tile_sums[TILE_ROWS][PANEL_COLUMNS];

/* The scales and sums of 16 rows, transposed so that all those of one group are consecutive. */
struct tile_rows {
    float scales[QUANT_PIECE_GROUPS][TILE_ROWS] __attribute__((aligned(64)));
    int32_t sums[QUANT_PIECE_GROUPS][TILE_ROWS] __attribute__((aligned(64)));
};

/* The chains of 16 rows and one panel over the groups of a K-slice. For each tile of rows, they
 * are computed panel by panel. */
struct chain {
    size_t tile, panel;
    size_t row; /* the first row; if rows are left over, the last tile overlaps the one before */
};

/* The quantized values of a group: those of the tile's first row, and those of the panel. */
struct codes {
    const int8_t *x;
    const uint8_t *w;
};

/* Prefetching: `next` is the next cache line; each chain fetches n lines, spread over its groups;
 * `due` is the progress towards the next line. */
struct fetch {
    const uint8_t *next;
    size_t n, due;
};

/* out[g][r] = word g of row r; 0 for g >= n. Rows are `stride` words apart. */
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

ALWAYS_INLINE size_t tiles_of(size_t n_rows)
{
    return (n_rows + TILE_ROWS - 1) / TILE_ROWS;
}

ALWAYS_INLINE void chain_next(const struct quant_tile *t, struct chain *c)
{
    if (++c->panel < t->n_panels) return;
    c->panel = 0;
    c->row = quant_min(++c->tile * TILE_ROWS, t->n_rows - TILE_ROWS);
}

/* Moves c to the next chain and returns its first quantized values. Not inlined, so that the loop
 * keeps its pointers in registers. */
static __attribute__((noinline)) struct codes codes_next(const struct quant_tile *t,
                                                         struct chain *c)
{
    chain_next(t, c);
    return (struct codes){t->x + c->row * t->x_stride, t->w + c->panel * t->w_stride};
}

/* Computes the exact sums of a group into tile register i. */
ALWAYS_INLINE void group_multiply(size_t group, struct codes c, size_t x_stride, size_t i)
{
    const int sums = TILE_SUMS + (int)i, x_tile = TILE_X + (int)(i % 2), w_tile = x_tile + 2;
    tile_zero(sums);
#pragma GCC unroll 2
    for (size_t k = 0; k < group; k += TILE_BYTES) {
        tile_load(x_tile, c.x + k, x_stride);
        tile_load(w_tile, c.w + k * PANEL_COLUMNS, TILE_BYTES);
        tile_dot(sums, x_tile);
    }
}

/* The chain that is being continued, with its scales, zero points and prefetches. */
struct finish {
    struct chain chain;
    struct fetch ahead;
    const float (*scales)[PANEL_COLUMNS];
    const int32_t (*zeros)[PANEL_COLUMNS];
    struct tile_rows rows;
};

/* Prepares f for the chain f->chain. Not inlined, so that the loop keeps its pointers in registers.
 */
static __attribute__((noinline)) void finish_start(const struct quant_tile *t, struct finish *f)
{
    const struct chain *c = &f->chain;
    f->ahead.next = t->ahead + c->panel * t->ahead_stride + c->tile * f->ahead.n * QUANT_LINE;
    f->ahead.due = 0;
    f->scales = t->scales[c->panel];
    if (t->has_zeros) f->zeros = t->zeros[c->panel];
    if (t->end != NULL)
        quant_fetch_ends(t->end, (struct quant_ended){c->row, TILE_ROWS, c->panel, 1});
    if (c->panel > 0) return; /* the rows are those of the chain before */
    turn_rows(t->x_scales + c->row * t->q_stride, t->q_stride, t->n_groups, f->rows.scales);
    if (t->has_zeros)
        turn_rows(t->start + c->row * t->start_stride, t->start_stride, t->n_groups, f->rows.sums);
}

/* Fetches n lines in n_groups calls, one call for each group, because fetching all at once would
 * delay the loads that are needed now. */
ALWAYS_INLINE void fetch_due(size_t n_groups, struct fetch *f)
{
    for (f->due += f->n; f->due >= n_groups; f->due -= n_groups) {
        _mm_prefetch(f->next, _MM_HINT_T1);
        f->next += QUANT_LINE;
    }
}

/* Continues the chains of 16 rows by one group. The empty asm keeps each row's step in its place;
 * otherwise compilers would load the sums of all rows first and run out of registers. */
ALWAYS_INLINE void group_finish(bool has_zeros, const struct finish *f, size_t g,
                                const tile_sums *sums, __m512 *acc)
{
    const __m512 w_scales = _mm512_load_ps(f->scales[g]);
    __m512i zeros = _mm512_setzero_si512();
    if (has_zeros) zeros = _mm512_load_si512(f->zeros[g]);
#pragma GCC unroll 16
    for (size_t r = 0; r < TILE_ROWS; r++) {
        const __m512 scale = _mm512_mul_ps(w_scales, _mm512_set1_ps(f->rows.scales[g][r]));
        __m512i sum = _mm512_load_si512((*sums)[r]);
        if (has_zeros) sum = _mm512_dpwssd_epi32(sum, zeros, _mm512_set1_epi32(f->rows.sums[g][r]));
        acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[r]);
        __asm__ volatile("" : "+v"(acc[r]) : : "memory");
    }
}

typedef float (*chains_at)[QUANT_PANELS][PANEL_COLUMNS];

ALWAYS_INLINE void chains_load(const struct quant_tile *t, const struct chain *c, chains_at from,
                               __m512 *acc)
{
    const bool begins = t->begins;
#pragma GCC unroll 16
    for (size_t r = 0; r < TILE_ROWS; r++)
        acc[r] = begins ? _mm512_setzero_ps() : _mm512_load_ps(from[c->row + r][c->panel]);
}

static __attribute__((noinline)) void chains_end(const struct quant_end *end, const struct chain *c,
                                                 size_t first, float (*chains)[PANEL_COLUMNS])
{
    const struct quant_ended which = {c->row + first, TILE_ROWS - first, c->panel, 1};
    quant_chains_end(end, which, chains[first], PANEL_COLUMNS);
}

/* Stores or ends the chains of 16 rows, except the rows that the tile before has already done. */
ALWAYS_INLINE void chains_store(const struct quant_tile *t, const struct chain *c,
                                const __m512 *acc, chains_at to)
{
    const size_t first = c->tile * TILE_ROWS - c->row;
    float ended[TILE_ROWS][PANEL_COLUMNS] __attribute__((aligned(64)));
    float *at = t->end != NULL ? ended[0] : to[c->row][c->panel];
    const size_t step = t->end != NULL ? PANEL_COLUMNS : QUANT_PANELS * PANEL_COLUMNS;
#pragma GCC unroll 16
    for (size_t r = 0; r < TILE_ROWS; r++)
        if (r >= first) _mm512_store_ps(at + r * step, acc[r]);
    if (t->end != NULL) chains_end(t->end, c, first, ended);
}

/* Computes all chains, group by group. The tiles multiply AHEAD groups ahead of the vectors,
 * across the ends of chains, so that both units work at the same time. A tile is stored after the
 * next group's multiplication, because the store waits for the tile's own multiplication.
 * has_zeros and group are constant in each call. */
ALWAYS_INLINE void block_chains(bool has_zeros, size_t group, const struct quant_tile *t,
                                chains_at out)
{
    const size_t n_groups = t->n_groups, n_tiles = tiles_of(t->n_rows), x_stride = t->x_stride;
    const size_t n = n_tiles * t->n_panels * n_groups, n_first = quant_min(n, AHEAD);
    struct codes codes = {t->x, t->w};
    struct chain multiplied = {0};
    size_t n_left = n_groups, g = 0; /* the chain's groups left to multiply; next group to finish */
    const size_t n_lines = n_groups * t->ahead_step / QUANT_LINE;
    struct finish f = {.ahead = {.n = (n_lines + n_tiles - 1) / n_tiles}};
    tile_sums ring[RING] __attribute__((aligned(64)));
    __m512 acc[TILE_ROWS];
#define MULTIPLY(i)                                                                                \
    do {                                                                                           \
        group_multiply(group, codes, x_stride, i);                                                 \
        codes.x += group;                                                                          \
        codes.w += group * PANEL_COLUMNS;                                                          \
        if (--n_left > 0) break;                                                                   \
        codes = codes_next(t, &multiplied);                                                        \
        n_left = n_groups;                                                                         \
    } while (0)
#define FINISH(i)                                                                                  \
    do {                                                                                           \
        fetch_due(n_groups, &f.ahead);                                                             \
        group_finish(has_zeros, &f, g, &ring[i], acc);                                             \
        if (++g < n_groups) break;                                                                 \
        g = 0;                                                                                     \
        chains_store(t, &f.chain, acc, out);                                                       \
        chain_next(t, &f.chain);                                                                   \
        if (f.chain.tile == n_tiles) return;                                                       \
        finish_start(t, &f);                                                                       \
        chains_load(t, &f.chain, out, acc);                                                        \
    } while (0)
    finish_start(t, &f);
    chains_load(t, &f.chain, out, acc);
#pragma GCC unroll 3
    for (size_t i = 0; i < AHEAD; i++) {
        if (i < n_first) MULTIPLY(i);
        if (i > 0 && i < n_first) tile_store(TILE_SUMS + (int)i - 1, ring[i - 1][0]);
    }
    for (size_t left = n - n_first; left > 0;) {
#pragma GCC unroll 4
        for (size_t i = 0; i < RING; i++) {
            const size_t last = (i + AHEAD - 1) % RING;
            MULTIPLY((i + AHEAD) % RING);
            tile_store(TILE_SUMS + (int)last, ring[last][0]);
            FINISH(i);
            if (--left == 0) break;
        }
    }
    tile_store(TILE_SUMS + (int)((n - 1) % RING), ring[(n - 1) % RING][0]);
    for (size_t i = n - n_first;; i++) FINISH(i % RING);
#undef MULTIPLY
#undef FINISH
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

/* Unused: tiles multiply signed values, so their sums start at 0. */
static void set_starts(const int32_t *sums, size_t n, int32_t factor, int32_t *out)
{
    (void)sums;
    (void)factor;
    memset(out, 0, n * sizeof *out);
}

/* True when AMX is faster than AVX-512 (bench/tried.md): with int8 activations, at least one whole
 * tile of rows, and at least three quarters of the tiles' rows in use. */
static bool suits_tiles(const struct linear_args *a, size_t n_rows)
{
    return a->xq != NULL && a->xq->n_groups > 0 && n_rows >= TILE_ROWS &&
           4 * n_rows >= 3 * tiles_of(n_rows) * TILE_ROWS;
}

/* Returns the number of rows, in whole tiles, whose quantized values stay in the second-level
 * cache while all panels pass. */
static size_t rows_at_once(const struct quant_rows *q, size_t n_rows)
{
    const size_t row_bytes = q->n_groups * q->group;
    const size_t n_parts = (n_rows * row_bytes + CACHED_CODES - 1) / CACHED_CODES;
    return tiles_of((n_rows + n_parts - 1) / n_parts) * TILE_ROWS;
}

static void linear_many(bool leafy, const struct linear_args *a, const struct linear_slice *s)
{
    const size_t most = rows_at_once(a->xq, s->row1 - s->row0);
    struct linear_slice part = *s;
    tiles_configure(quant_min(a->xq->group, TILE_BYTES));
    for (; part.row0 < s->row1; part.row0 = part.row1) {
        part.row1 = quant_min(s->row1, part.row0 + most);
        if (s->row1 - part.row1 < TILE_ROWS)
            part.row1 = s->row1; /* leaves no rest of less than a tile */
        quant_linear_many(leafy ? quant_panels_leaf : quant_panels, QUANT_PANELS, leafy, a, &part);
    }
    tiles_release();
}

static void k_linear_quant_amx(const struct linear_args *a, const struct linear_slice *s)
{
    if (!suits_tiles(a, s->row1 - s->row0))
        k_linear_quant_avx512_6x32(a, s);
    else
        linear_many(false, a, s);
}

static void k_linear_quant_leaf_amx(const struct linear_args *a, const struct linear_slice *s)
{
    if (!suits_tiles(a, s->row1 - s->row0))
        k_linear_quant_leaf_avx512_6x32(a, s);
    else
        linear_many(true, a, s);
}

void fill_linear_quant_amx(struct kern_table *t)
{
    static const enum quant_kind kinds[] = {QUANT_INT8, QUANT_INT4};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        t->linear_quant[kinds[i]] = k_linear_quant_amx;
        t->linear_quant_leaf[kinds[i]] = k_linear_quant_leaf_amx;
    }
}
