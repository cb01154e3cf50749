/* The work of one block of attention_mma.cu, and how it loads queries, keys and values into shared
 * memory as f16. */
#ifndef SHOAL_KERNELS_CUDA_ATTENTION_TILE_H
#define SHOAL_KERNELS_CUDA_ATTENTION_TILE_H

#include "kernels/cuda/mma.h"

enum {
    TILE = KV_BLOCK_TOKENS,
    WARPS = CUDA_THREADS / WARP_THREADS,
    SCORE_TILES = TILE / MMA_N,
    WEIGHT_TILES = TILE / HALF_K,
    ROW_TILES_MAX = 2,
    ROWS_MAX = 2 * ROW_TILES_MAX, /* rows of one lane */
    VALUE_TILES_MAX = 32,
    QUERY_TILES_MAX = 8, /* fragments of queries that a lane holds */
    COLUMN_TILES = 4,    /* tiles of MMA_N columns of the values that are multiplied together */
    PIECE = 8,           /* cache elements of one 16-byte copy */
    ROWS_AT_ONCE = 8,    /* rows of queries that a warp loads before it stores them */
    WORDS_OF_LANE = 4,   /* most pairs of a query's elements that one lane loads */
};

/* The shape for which a kernel is compiled: the width of a row in shared memory, and row tiles per
 * warp. */
struct mma_kind {
    uint32_t width, row_tiles;
};

/* True when there are registers to hold the queries' fragments. Otherwise each tile loads them from
 * shared memory. */
BLOCK_INLINE bool mma_holds_queries(struct mma_kind kind)
{
    return kind.width / HALF_K * kind.row_tiles <= QUERY_TILES_MAX;
}

/* The work of a block. Row i of the block is position i / n_heads of the run and head i % n_heads
 * of the block's heads. */
struct mma_part {
    const struct attention_mma_work *a;
    struct mma_kind kind;
    size_t row0;
    uint32_t position0, n_positions;
    uint32_t head0, n_heads, kv_head;
    uint32_t tile, begin, end;       /* the current tile; the block's tiles [begin, end) */
    uint32_t first, last;            /* the first and the last position that any row sees */
    uint32_t whole_begin, whole_end; /* the tiles of which all rows see all slots */
    const int32_t *blocks;           /* the run's block table */
    int32_t block;                   /* the cache block of the tile that is fetched next */
    bool is_whole;                   /* every row sees the whole tile; a constant within mma_tile */
    uint8_t *q, *keys, *values;
    uint32_t *hidden; /* [2] one bit per slot of the tile: mma_hide changed the slot */
};

BLOCK_INLINE uint32_t mma_stride(uint32_t width)
{
    return CUDA_ATTENTION_STRIDE(width);
}

/* True when the block stores, for each row and tile, the state that attention_mma_fold combines
 * (maximum, sum, output before its division) instead of outputs. Only attention_few_* do. */
BLOCK_INLINE bool mma_splits(const struct mma_part *p)
{
    return p->kind.row_tiles == 1 && p->a->n_tiles > 0;
}

BLOCK_INLINE uint32_t mma_first(const struct mma_part *p, uint32_t position)
{
    return (uint32_t)kern_first_visible(position, p->a->window);
}

/* Finds the slots [*j0, *j1) of the tile that the row sees. */
BLOCK_INLINE void mma_visible(const struct mma_part *p, uint32_t position, uint32_t *j0,
                              uint32_t *j1)
{
    const uint32_t start = p->tile * TILE, first = mma_first(p, position);
    *j0 = first > start ? first - start : 0;
    *j1 = position < start ? 0 : position - start + 1;
    if (*j1 > TILE) *j1 = TILE;
    if (*j0 > *j1) *j0 = *j1;
}

/* Fills p. False: the block has nothing to do. */
BLOCK_INLINE bool mma_part_of(const struct attention_mma_work *a, struct cuda_block b,
                              struct mma_kind kind, uint8_t *shared, struct mma_part *p)
{
    p->a = a;
    p->kind = kind;
    const uint32_t n_kv = (a->n_heads + a->skipped_heads + a->heads_per_kv - 1) / a->heads_per_kv;
    const uint32_t run = b.y / (n_kv * a->n_chunks), of_run = b.y % (n_kv * a->n_chunks);
    p->row0 = a->runs != NULL ? a->runs[run].row0 : a->row0 + run;
    p->n_positions = a->runs != NULL ? a->runs[run].n_rows : 1;
    p->position0 = (uint32_t)a->rows.position[p->row0];
    p->kv_head = of_run / a->n_chunks;
    const uint32_t chunk = of_run % a->n_chunks * CUDA_ATTENTION_HEADS;
    const uint32_t all = p->kv_head * a->heads_per_kv + chunk; /* counts the skipped heads too */
    uint32_t behind = (p->kv_head + 1) * a->heads_per_kv;
    if (behind > all + CUDA_ATTENTION_HEADS) behind = all + CUDA_ATTENTION_HEADS;
    if (behind > a->n_heads + a->skipped_heads) behind = a->n_heads + a->skipped_heads;
    const uint32_t head0 = all > a->skipped_heads ? all : a->skipped_heads;
    if (head0 >= behind) return false;
    p->head0 = head0 - a->skipped_heads;
    p->n_heads = behind - head0;
    p->begin = mma_first(p, p->position0) / TILE;
    p->end = (p->position0 + p->n_positions - 1) / TILE + 1;
    if (mma_splits(p)) {
        const uint32_t pass_end = p->begin + a->tile0 + a->n_tiles;
        p->begin += a->tile0 + b.z * a->span;
        if (p->end > p->begin + a->span) p->end = p->begin + a->span;
        if (p->end > pass_end) p->end = pass_end;
    }
    p->first = mma_first(p, p->position0);
    p->last = p->position0 + p->n_positions - 1;
    p->q = shared;
    p->keys = shared + a->q_rows * mma_stride(kind.width);
    p->values = p->keys + TILE * mma_stride(kind.width);
    p->hidden = (uint32_t *)(void *)(shared + kind.width * 2); /* in the padding after row 0 */
    if (p->begin >= p->end) return false;
    p->whole_begin = (mma_first(p, p->last) + TILE - 1) / TILE;
    p->whole_end = (p->position0 + 1) / TILE;
    if (p->whole_end > p->end) p->whole_end = p->end;
    p->blocks = a->rows.blocks + a->rows.first_block[p->row0];
    p->block = p->blocks[p->begin];
    return true;
}

/* --- into shared memory ---------------------------------------------------------------------- */

/* Loads the slots of a tile that some row sees, and zeros for the other slots and columns. */
BLOCK_INLINE void mma_fetch_half(const struct mma_part *p, const void *half, uint32_t start,
                                 uint8_t *to)
{
    const uint32_t hd = p->a->kv.head_dim, width = p->kind.width;
    const uint32_t lanes = width % (8 * PIECE) == 0 ? 8 : 4; /* threads of a row */
    FOR_THREADS(t)
    {
        const uint32_t row = t / lanes, column = t % lanes * PIECE;
        const uint16_t *from = (const uint16_t *)half + row * hd + column;
        uint8_t *place = to + row * mma_stride(width) + column * 2;
        BLOCK_UNROLL
        for (uint32_t j = 0; j < TILE; j += CUDA_THREADS / lanes) {
            const bool is_there = start + row + j - p->first <= p->last - p->first;
            BLOCK_UNROLL
            for (uint32_t d = 0; d < width; d += lanes * PIECE)
                block_fetch16_or_zeros(place + j * mma_stride(width) + d * 2, from + j * hd + d,
                                       is_there && column + d < hd);
        }
    }
}

BLOCK_INLINE void mma_fetch_codes(const struct mma_part *p, const void *half, uint32_t start,
                                  uint8_t *to)
{
    const struct kv_view *kv = &p->a->kv;
    const uint32_t pairs = p->kind.width / 2;
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < TILE * pairs; i += CUDA_THREADS) {
            const uint32_t j = i / pairs, d = i % pairs * 2;
            uint32_t *place = (uint32_t *)(void *)(to + j * mma_stride(p->kind.width)) + d / 2;
            if (d >= kv->head_dim || start + j < p->first || start + j > p->last)
                *place = 0;
            else if (kv->dtype == DTYPE_I8)
                *place = block_halves(kern_kv_load(DTYPE_I8, half, kv->head_dim, j, d),
                                      kern_kv_load(DTYPE_I8, half, kv->head_dim, j, d + 1));
            else
                *place = block_halves(kern_kv_load(DTYPE_F8_E4M3, half, kv->head_dim, j, d),
                                      kern_kv_load(DTYPE_F8_E4M3, half, kv->head_dim, j, d + 1));
        }
    }
}

/* Does what kern_kv_half does for p->block, with fewer instructions: a cache has fewer than 2^32
 * halves. */
BLOCK_INLINE const void *mma_half(const struct mma_part *p, uint32_t what)
{
    const struct kv_view *kv = &p->a->kv;
    const uint32_t part = kv->latent ? (uint32_t)p->block : (uint32_t)p->block * 2 + what;
    const uint32_t bytes = (uint32_t)kv_half_bytes(kv->dtype, kv->head_dim) + kv->beside_bytes;
    return (const uint8_t *)kv->base + (uint64_t)(part * kv->n_kv_heads + p->kv_head) * bytes;
}

/* Loads a tile's keys (what 0) or values (what 1), f16 ones asynchronously, and ends a group of
 * copies. The group is empty if `tile` is past the block's last one. Each tile's keys are fetched
 * before its values, and tiles in order. */
BLOCK_INLINE void mma_fetch(struct mma_part *p, uint32_t tile, uint32_t what)
{
    if (tile < p->end) {
        uint8_t *to = what == 0 ? p->keys : p->values;
        if (p->a->kv.dtype == DTYPE_F16)
            mma_fetch_half(p, mma_half(p, what), tile * TILE, to);
        else
            mma_fetch_codes(p, mma_half(p, what), tile * TILE, to);
        if (what == 1 && tile + 1 < p->end) p->block = p->blocks[tile + 1];
    }
    block_fetch_end();
}

/* Stores ROWS_AT_ONCE of a warp's rows of queries as f16, with zeros in rows and columns that the
 * block does not have. All loads come first, so that they are under way together. */
BLOCK_INLINE void mma_put_queries(const struct mma_part *p, uint32_t row, uint32_t lane)
{
    const struct attention_mma_work *a = p->a;
    const uint32_t hd = a->kv.head_dim, n = p->n_positions * p->n_heads;
    float low[ROWS_AT_ONCE][WORDS_OF_LANE], high[ROWS_AT_ONCE][WORDS_OF_LANE];
    BLOCK_UNROLL
    for (uint32_t i = 0; i < ROWS_AT_ONCE; i++) {
        const uint32_t at = row + i * WARPS < n ? row + i * WARPS : 0;
        const size_t head = (p->row0 + at / p->n_heads) * a->n_heads + p->head0 + at % p->n_heads;
        BLOCK_UNROLL
        for (uint32_t w = 0; w < p->kind.width / 2; w += WARP_THREADS) {
            const uint32_t d = 2 * (w + lane);
            low[i][w / WARP_THREADS] = a->q[head * hd + (d < hd ? d : 0)];
            high[i][w / WARP_THREADS] = a->q[head * hd + (d < hd ? d + 1 : 0)];
        }
    }
    BLOCK_UNROLL
    for (uint32_t i = 0; i < ROWS_AT_ONCE; i++) {
        const uint32_t at = row + i * WARPS;
        uint32_t *to = (uint32_t *)(void *)(p->q + at * mma_stride(p->kind.width));
        BLOCK_UNROLL
        for (uint32_t w = 0; w < p->kind.width / 2; w += WARP_THREADS) {
            const bool has = at < n && 2 * (w + lane) < hd;
            const uint32_t two = block_halves(low[i][w / WARP_THREADS], high[i][w / WARP_THREADS]);
            if (at < p->a->q_rows && w + lane < p->kind.width / 2) to[w + lane] = has ? two : 0;
        }
    }
}

BLOCK_INLINE void mma_begin(const struct mma_part *p)
{
    FOR_THREADS(t)
    {
        for (uint32_t i = t / WARP_THREADS; i < p->a->q_rows; i += WARPS * ROWS_AT_ONCE)
            mma_put_queries(p, i, t % WARP_THREADS);
    }
}

/* True only when the warp has no rows, or when none of its rows sees any slot of the tile. */
BLOCK_INLINE bool mma_is_idle(const struct mma_part *p, uint32_t warp)
{
    const uint32_t n = p->n_positions * p->n_heads, first = warp * MMA_M;
    const uint32_t behind = ((p->kind.row_tiles - 1) * WARPS + warp + 1) * MMA_M;
    if (first >= n || p->is_whole) return first >= n;
    const uint32_t last = (behind < n ? behind : n) - 1;
    return p->position0 + last / p->n_heads < p->tile * TILE ||
           mma_first(p, p->position0 + first / p->n_heads) >= (p->tile + 1) * TILE;
}

/* Sets values that are not finite to zero, because a weight of zero would not hide them from rows
 * that do not see them (0 * infinity is NaN). Notes their slots, so that the rows that do see them
 * become NaN (mma_spoil). */
BLOCK_INLINE void mma_hide(const struct mma_part *p)
{
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < TILE * p->kind.width / 2; i += CUDA_THREADS) {
            const uint32_t j = i / (p->kind.width / 2), w = i % (p->kind.width / 2);
            uint32_t *x = (uint32_t *)(void *)(p->values + j * mma_stride(p->kind.width)) + w;
            const bool low = (*x & 0x7C00u) == 0x7C00u, high = (*x & 0x7C000000u) == 0x7C000000u;
            if (!low && !high) continue;
            *x &= (low ? 0xFFFF0000u : 0xFFFFFFFFu) & (high ? 0xFFFFu : 0xFFFFFFFFu);
            block_or_u32(&p->hidden[j / 32], 1u << j % 32);
        }
    }
    BLOCK_SYNC();
}

/* True when mma_hide changed any of the slots [j0, j1). */
BLOCK_INLINE bool mma_was_hidden(const struct mma_part *p, uint32_t j0, uint32_t j1)
{
    const uint64_t all = p->hidden[0] | (uint64_t)p->hidden[1] << 32;
    return j0 < j1 && (all >> j0 & UINT64_MAX >> (TILE - (j1 - j0))) != 0;
}

#endif
