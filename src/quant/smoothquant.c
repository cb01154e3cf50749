/* SmoothQuant's equation 4. */
#include "quant/smoothquant.h"

#include "quant/power.h"

void smoothquant_scales(const float *max_x, const float *max_w, uint32_t n, unsigned alpha_64ths,
                        float *s)
{
    for (uint32_t k = 0; k < n; k++) {
        const double x = power_64ths((double)max_x[k], alpha_64ths);
        const double w = power_64ths((double)max_w[k], POWER_ONE - alpha_64ths);
        const double scale = max_x[k] > 0 && max_w[k] > 0 ? x / w : 1;
        s[k] = scale > 1e-5 ? (float)scale : 1e-5f;
    }
}

void smoothquant_see_weights(const float *rows, size_t n_rows, uint32_t n, float *max_w)
{
    for (size_t r = 0; r < n_rows; r++) {
        for (uint32_t k = 0; k < n; k++) {
            const float m = fabsf(rows[r * n + k]);
            if (m > max_w[k]) max_w[k] = m;
        }
    }
}
