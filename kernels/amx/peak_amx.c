/* The machine's peak with AMX: chains in all four tiles of sums. */
#include "kernels/peak_isa.h"

#include "kernels/amx/tiles.h"

float k_peak_int8_amx(void)
{
    float first;
    int32_t sums[TILE_ROWS * PANEL_COLUMNS];
    tiles_configure();
    for (int k = 0; k < PEAK_ROUNDS; k++) {
        tile_dot(0, 0);
        tile_dot(0, 1);
        tile_dot(1, 0);
        tile_dot(1, 1);
    }
    tile_store(TILE_SUMS, sums);
    tiles_release();
    memcpy(&first, sums, sizeof first);
    return first;
}
