/* The AMX loop that peak.c times: independent chains in all four tiles of sums. */
#include "kernels/peak_isa.h"

#include "kernels/amx/tiles.h"

float k_peak_int8_amx(void)
{
    float first;
    int32_t sums[TILE_ROWS * PANEL_COLUMNS];
    tiles_configure(TILE_BYTES);
    for (int k = 0; k < PEAK_ROUNDS; k++) {
        tile_dot(0, TILE_X);
        tile_dot(1, TILE_X);
        tile_dot(2, TILE_X);
        tile_dot(3, TILE_X);
    }
    tile_store(TILE_SUMS, sums);
    tiles_release();
    memcpy(&first, sums, sizeof first);
    return first;
}
