/* The tile registers of AMX (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1
 * chapter "Programming with Intel Advanced Matrix Extensions", and TILELOADD, TDPBSSD, TILESTORED
 * in volume 2). Instructions as assembly: compilers' own intrinsics tell of less memory than the
 * instructions touch.
 *
 * Sums in tiles 0 to 3, [16 rows][16 outputs] of 32 bits; rows' codes in tiles 4 and 5, [16
 * rows][64]; weights' codes in tiles 6 and 7, [64 / 4][16 outputs][4], which is how panels have
 * them. Tile numbers are constant in every call. */
#ifndef SHOAL_KERNELS_AMX_TILES_H
#define SHOAL_KERNELS_AMX_TILES_H

#include "kernels/avx512/vec.h"

#include <string.h>

enum {
    TILE_ROWS = 16,
    TILE_BYTES = 64, /* of a row of a tile */
    TILE_SUMS = 0,   /* the first of each */
    TILE_X = 4,
    TILE_W = 6,
    TILES = 8,
};

/* The operand of LDTILECFG; palette 1 is the only one. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* For dots of n inputs, a multiple of 4 up to 64, until tiles_release. Sets all to 0. */
ALWAYS_INLINE void tiles_configure(size_t n)
{
    struct tile_config c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = TILE_SUMS; i < TILE_X; i++) {
        c.rows[i] = TILE_ROWS;
        c.row_bytes[i] = TILE_BYTES;
    }
    for (int i = TILE_X; i < TILE_W; i++) {
        c.rows[i] = TILE_ROWS;
        c.row_bytes[i] = (uint16_t)n;
    }
    for (int i = TILE_W; i < TILES; i++) {
        c.rows[i] = (uint8_t)(n / 4);
        c.row_bytes[i] = TILE_BYTES;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

/* A thread that leaves its tiles empty is switched as fast as one that never had any. */
ALWAYS_INLINE void tiles_release(void)
{
    __asm__ volatile("tilerelease");
}

#define TILE_CASE(n, operation, ...)                                                               \
    case n:                                                                                        \
        __asm__ volatile(operation "%%tmm" #n __VA_ARGS__);                                        \
        break;

/* Rows `stride` bytes apart. */
ALWAYS_INLINE void tile_load(int tile, const void *from, size_t stride)
{
#define LOAD(n) TILE_CASE(n, "tileloadd (%0,%1,1), ", : : "r"(from), "r"(stride) : "memory")
    switch (tile) {
        LOAD(4)
        LOAD(5)
        LOAD(6)
        LOAD(7)
    }
#undef LOAD
}

ALWAYS_INLINE void tile_zero(int tile)
{
#define ZERO(n) TILE_CASE(n, "tilezero ", ::)
    switch (tile) {
        ZERO(0)
        ZERO(1)
        ZERO(2)
        ZERO(3)
    }
#undef ZERO
}

/* Sums [16][16], one after the other. */
ALWAYS_INLINE void tile_store(int tile, int32_t *to)
{
    const size_t stride = TILE_BYTES;
#define STORE(n)                                                                                   \
    case n:                                                                                        \
        __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" : : "r"(to), "r"(stride) : "memory"); \
        break;
    switch (tile) {
        STORE(0)
        STORE(1)
        STORE(2)
        STORE(3)
    }
#undef STORE
}

/* Sums += codes of rows in tile x, TILE_X or the next, times those of weights in tile x + 2, all of
 * them signed. */
ALWAYS_INLINE void tile_dot(int sums, int x)
{
#define DOT(sums, x, w)                                                                            \
    case sums * 2 + x - TILE_X:                                                                    \
        __asm__ volatile("tdpbssd %%tmm" #w ", %%tmm" #x ", %%tmm" #sums ::);                      \
        break;
    switch (sums * 2 + x - TILE_X) {
        DOT(0, 4, 6)
        DOT(0, 5, 7)
        DOT(1, 4, 6)
        DOT(1, 5, 7)
        DOT(2, 4, 6)
        DOT(2, 5, 7)
        DOT(3, 4, 6)
        DOT(3, 5, 7)
    }
#undef DOT
}

#endif
