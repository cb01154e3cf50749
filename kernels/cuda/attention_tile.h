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
    PIECE = 8, /* cache elements of one 16-byte copy */
};

/* The shape for which a kernel is compiled: the width of a row in shared memory, and row tiles per
 * warp. */
struct mma_kind {
    uint32_t width, row_tiles;
};

/* The work of a block. Row i of the block is position i / n_heads of the run and head i % n_heads
 * of the block's heads. */
struct mma_part {
    const struct attention_mma_work *a;
    struct mma_kind kind;
    size_t row0;
    uint32_t position0, n_positions;
    uint32_t head0, n_heads, kv_head;
    uint32_t tile, begin, end; /* the current tile; the block's tiles [begin, end) */
    bool is_whole;             /* every row sees the whole tile */
    uint8_t *q, *keys, *values;
    uint32_t *hidden; /* [2] one bit per slot of the tile: mma_hide changed the slot */
};

BLOCK_INLINE uint32_t mma_stride(uint32_t width)
{
    return CUDA_ATTENTION_STRIDE(width);
}

/* True when the block stores one state per row and tile instead of outputs. Only `few` kernels do.
 */
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
    p->row0 = a->runs != NULL ? a->runs[b.y].row0 : a->row0 + b.y;
    p->n_positions = a->runs != NULL ? a->runs[b.y].n_rows : 1;
    p->position0 = (uint32_t)a->rows.position[p->row0];
    p->kv_head = b.x / a->n_chunks;
    const uint32_t chunk = b.x % a->n_chunks * CUDA_ATTENTION_HEADS;
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
    p->q = shared;
    p->keys = shared + a->q_rows * mma_stride(kind.width);
    p->values = p->keys + TILE * mma_stride(kind.width);
    p->hidden = (uint32_t *)(void *)(shared + kind.width * 2); /* in the padding after row 0 */
    return p->begin < p->end;
}

/* --- into shared memory ---------------------------------------------------------------------- */

/* Loads the slots of a tile that some row sees, and zeros for the other slots. */
BLOCK_INLINE void mma_fetch_half(const struct mma_part *p, const void *half, uint32_t start,
                                 uint8_t *to)
{
    const struct kv_view *kv = &p->a->kv;
    const uint32_t pieces = p->kind.width / PIECE;
    const uint32_t first = mma_first(p, p->position0), last = p->position0 + p->n_positions - 1;
    FOR_THREADS(t)
    {
        BLOCK_ROLLED /* unrolled, the addresses would take too many registers */
            for (uint32_t i = t; i < TILE * pieces; i += CUDA_THREADS)
        {
            const uint32_t j = i / pieces, d = i % pieces * PIECE;
            const bool is_there = start + j >= first && start + j <= last;
            if (d < kv->head_dim)
                block_fetch16_or_zeros(to + j * mma_stride(p->kind.width) + d * 2,
                                       (const uint16_t *)half + j * kv->head_dim + d, is_there);
        }
    }
}

BLOCK_INLINE void mma_fetch_codes(const struct mma_part *p, const void *half, uint32_t start,
                                  uint8_t *to)
{
    const struct kv_view *kv = &p->a->kv;
    const uint32_t pairs = p->kind.width / 2;
    const uint32_t first = mma_first(p, p->position0), last = p->position0 + p->n_positions - 1;
    FOR_THREADS(t)
    {
        for (uint32_t i = t; i < TILE * pairs; i += CUDA_THREADS) {
            const uint32_t j = i / pairs, d = i % pairs * 2;
            uint32_t *place = (uint32_t *)(void *)(to + j * mma_stride(p->kind.width)) + d / 2;
            if (d >= kv->head_dim) continue;
            if (start + j < first || start + j > last)
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

/* Loads a tile's keys (what 0) or values (what 1), f16 ones asynchronously, and ends a group of
 * copies. The group is empty if `tile` is past the block's last one. */
BLOCK_INLINE void mma_fetch(const struct mma_part *p, uint32_t tile, int what)
{
    const struct cuda_rows *rows = &p->a->rows;
    uint8_t *to = what == 0 ? p->keys : p->values;
    if (tile < p->end) {
        const int32_t block = rows->blocks[rows->first_block[p->row0] + (int32_t)tile];
        const void *half = kern_kv_half(&p->a->kv, block, what, p->kv_head);
        if (p->a->kv.dtype == DTYPE_F16)
            mma_fetch_half(p, half, tile * TILE, to);
        else
            mma_fetch_codes(p, half, tile * TILE, to);
    }
    block_fetch_end();
}

/* Stores the queries as f16, with zeros in rows and columns that the block does not have, and
 * clears the unused columns of keys and values. */
BLOCK_INLINE void mma_begin(const struct mma_part *p)
{
    const struct attention_mma_work *a = p->a;
    const uint32_t hd = a->kv.head_dim, words = p->kind.width / 2;
    const uint32_t n = p->n_positions * p->n_heads, n_filled = (n + MMA_M - 1) / MMA_M * MMA_M;
    FOR_THREADS(t)
    {
        for (uint32_t i = t / WARP_THREADS; i < n_filled; i += WARPS) {
            const uint32_t head = p->head0 + i % p->n_heads;
            const float *q = a->q + ((p->row0 + i / p->n_heads) * a->n_heads + head) * hd;
            uint32_t *to = (uint32_t *)(void *)(p->q + i * mma_stride(p->kind.width));
            for (uint32_t w = t % WARP_THREADS; w < words; w += WARP_THREADS)
                to[w] = i < n && 2 * w < hd ? block_halves(q[2 * w], q[2 * w + 1]) : 0;
        }
        for (uint32_t i = t; i < 2 * TILE * (words - hd / 2); i += CUDA_THREADS) {
            const uint32_t row = i / (words - hd / 2), w = hd / 2 + i % (words - hd / 2);
            ((uint32_t *)(void *)(p->keys + row * mma_stride(p->kind.width)))[w] = 0;
        }
    }
}

/* True only when the warp has no rows, or when none of its rows sees any slot of the tile. */
BLOCK_INLINE bool mma_is_idle(const struct mma_part *p, uint32_t warp)
{
    const uint32_t n = p->n_positions * p->n_heads, first = warp * MMA_M;
    const uint32_t behind = ((p->kind.row_tiles - 1) * WARPS + warp + 1) * MMA_M;
    if (first >= n) return true;
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
