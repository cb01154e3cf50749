/* The emulated library for products. It adds each sum in four chains, which is not the order of the
 * numerics law, and adds these chains in another order if it is told to vary; or it adds in the
 * order of the emulated tensor cores. */
#include "driver_emulated.h"

#include "kernels/cuda/driver.h"

#include <math.h>
#include <stdlib.h>

enum { CHAINS = 4, VARIES_ABOVE = 4 };

static float *floats(enum dtype t, const void *data, size_t at, size_t rows, size_t stride,
                     size_t n)
{
    float *out = malloc(rows * n * sizeof *out + 1);
    if (out == NULL) abort();
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < n; i++) {
            const size_t from = at + r * stride + i;
            if (t == DTYPE_F32)
                out[r * n + i] = ((const float *)data)[from];
            else if (t == DTYPE_F16)
                out[r * n + i] = f32_from_f16(((const uint16_t *)data)[from]);
            else
                out[r * n + i] = f32_from_bf16(((const uint16_t *)data)[from]);
        }
    }
    return out;
}

static float dot(const float *x, const float *w, size_t n, bool other)
{
    float sums[CHAINS] = {0};
    size_t k = 0;
    for (; k + CHAINS <= n; k += CHAINS) {
        for (size_t i = 0; i < CHAINS; i++) sums[i] = fmaf(x[k + i], w[k + i], sums[i]);
    }
    for (; k < n; k++) sums[k % CHAINS] = fmaf(x[k], w[k], sums[k % CHAINS]);
    return other ? ((sums[0] + sums[1]) + sums[2]) + sums[3]
                 : (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

/* Adds the products of eight inputs as a tree, then their sum to the chain; missing inputs are
 * zeros. */
static float dot_of_cores(const float *x, const float *w, size_t n)
{
    float sum = 0.0f;
    for (size_t k = 0; k < n; k += 8) {
        float p[8] = {0};
        for (size_t i = 0; i < 8 && k + i < n; i++) p[i] = x[k + i] * w[k + i];
        sum += ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));
    }
    return sum;
}

void emulated_gemm(const struct cuda_gemm *g, const struct emulated *e)
{
    const bool free_choice = g->algorithm == CUDA_GEMM_FREE;
    const bool other = (free_choice && g->rows > 1) ||
                       (g->algorithm < e->gemm_varies && g->rows > VARIES_ABOVE) ||
                       (!free_choice && g->algorithm >= CUDA_GEMM_MANY &&
                        g->algorithm - CUDA_GEMM_MANY < e->gemm_many) ||
                       (e->gemm_wide > 0 && g->n > e->gemm_wide);
    const bool cores = e->gemm_cores > 0 && g->dtype != DTYPE_F32;
    for (size_t i = 0; i < g->batch; i++) {
        float *x = floats(g->dtype, g->x, i * g->x_step, g->rows, g->x_stride, g->k);
        float *w = floats(g->dtype, g->w, i * g->w_step, g->n, g->w_stride, g->k);
        for (size_t r = 0; r < g->rows; r++) {
            for (size_t n = 0; n < g->n; n++)
                g->y[i * g->y_step + r * g->y_stride + n] =
                    cores ? dot_of_cores(x + r * g->k, w + n * g->k, g->k)
                          : dot(x + r * g->k, w + n * g->k, g->k, other);
        }
        free(x);
        free(w);
    }
}
