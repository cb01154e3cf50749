/* The tile registers of AMX (Intel 64 and IA-32 Architectures Software Developer's Manual, volume
 * 1, chapter "Programming with Intel Advanced Matrix Extensions", and TILELOADD, TDPBSSD,
 * TILESTORED in volume 2). The instructions are written as assembly, because the compilers'
 * intrinsics declare less memory than the instructions access.
 *
 *     tiles 0 to 3   sums [16 rows][16 outputs], int32
 *     tiles 4, 5     the rows' quantized values [16 rows][64 inputs]
 *     tiles 6, 7     the weights' quantized values [64 / 4][16 outputs][4], as panels store them
 *
 * Tile numbers are constant in every call. */
#ifndef SHOAL_KERNELS_AMX_TILES_H
#define SHOAL_KERNELS_AMX_TILES_H

#include "kernels/avx512/vec.h"

#include <string.h>

enum {
    TILE_ROWS = 16,
    TILE_BYTES = 64, /* bytes of a row of a tile */
    TILE_SUMS = 0,   /* first tile of each kind */
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

/* Configures the tiles for dot products over n inputs, a multiple of 4 up to 64, and sets them to
 * 0. Valid until tiles_release. */
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

/* Empties the tiles, so that the system need not save them when it switches threads. */
ALWAYS_INLINE void tiles_release(void)
{
    __asm__ volatile("tilerelease");
}

#define TILE_CASE(n, operation, ...)                                                               \
    case n:                                                                                        \
        __asm__ volatile(operation "%%tmm" #n __VA_ARGS__);                                        \
        break;

/* Loads a tile; its rows are `stride` bytes apart in memory. */
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

/* Stores a tile of sums [16][16] without gaps. */
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

/* sums += rows in tile x (TILE_X or the next) times weights in tile x + 2; all signed. */
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
