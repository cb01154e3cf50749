/* Codes of a panel as floats on AVX2: what weight-only linears multiply with. A quad of inputs is a
 * lane of 32 bits, so that no byte crosses lanes. Included by linear_avx2.c. */
#ifndef SHOAL_KERNELS_AVX2_DEQUANTIZE_H
#define SHOAL_KERNELS_AVX2_DEQUANTIZE_H

#include "kernels/avx2/scales.h"
#include "kernels/quant_body.h"

/* The doubled E2M1 number in the low nibble of each lane. */
ALWAYS_INLINE __m256i v8_e2m1(__m256i b)
{
    const __m256i table = _mm256_setr_epi32(0, 1, 2, 3, 4, 6, 8, 12);
    const __m256i size = _mm256_permutevar8x32_epi32(table, b); /* the lowest three bits choose */
    const __m256i sign = _mm256_srai_epi32(_mm256_slli_epi32(b, 28), 31);
    return _mm256_sub_epi32(_mm256_xor_si256(size, sign), sign);
}

/* The code in the lowest bits of each lane, as a weight. */
ALWAYS_INLINE __m256 v8_value(enum quant_kind kind, __m256i b, __m256i zero, __m256 scale)
{
    __m256 v;
    if (kind == QUANT_FP8)
        v = v8_e4m3(b);
    else if (kind == QUANT_MXFP4)
        v = _mm256_cvtepi32_ps(v8_e2m1(b));
    else
        v = _mm256_cvtepi32_ps(_mm256_sub_epi32(
            _mm256_and_si256(b, _mm256_set1_epi32(kind == QUANT_INT8 ? 0xFF : 15)), zero));
    return _mm256_mul_ps(v, scale);
}

/* Whole vectors of codes: n inputs of one group, 8 outputs of 16, inputs `stride` floats apart. */
ALWAYS_INLINE void dequantize_run(enum quant_kind kind, const uint8_t *codes, size_t n,
                                  __m256i zero, __m256 scale, size_t stride, float *out)
{
    const bool nibbles = kind == QUANT_INT4 || kind == QUANT_MXFP4;
    for (size_t k = 0; k < n; k += nibbles ? 8 : 4, codes += 64) {
        const __m256i b = _mm256_loadu_si256((const void *)codes);
        float *to = out + k * stride;
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const __m256i low = _mm256_srli_epi32(b, 8 * j);
            _mm256_store_ps(to + (size_t)j * stride, v8_value(kind, low, zero, scale));
            if (!nibbles) continue;
            const __m256i high = _mm256_srli_epi32(b, 8 * j + 4);
            _mm256_store_ps(to + (size_t)(4 + j) * stride, v8_value(kind, high, zero, scale));
        }
    }
}

ALWAYS_INLINE void dequantize_as(enum quant_kind kind, const struct packed *w, size_t panel,
                                 size_t k, size_t n_k, size_t stride, float *out)
{
    const size_t group = quant_kernel_group(w->quant);
    const size_t halves = kind == QUANT_INT4 || kind == QUANT_MXFP4 ? 2 : 1;
    const uint8_t *codes = (const uint8_t *)w->data +
                           panel * kern_quant_panel_bytes(w->quant, w->n_in) +
                           k * PANEL_COLUMNS / halves;
    for (size_t i = 0, n; i < n_k; i += n, codes += n * PANEL_COLUMNS / halves) {
        const size_t g = (k + i) / group, left = (g + 1) * group - (k + i);
        const size_t at = kern_quant_scale_index(w, panel * PANEL_COLUMNS, g);
        n = n_k - i < left ? n_k - i : left;
        for (size_t h = 0; h < PANEL_COLUMNS; h += 8) {
            __m256i zero =
                _mm256_set1_epi32(kind == QUANT_INT8 ? QUANT_INT8_BIAS : QUANT_INT4_ZERO);
            if (w->quant.has_zeros)
                zero = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(w->zeros + at + h)));
            dequantize_run(kind, codes + h * QUANT_QUAD, n, zero,
                           v8_scales(w->quant, w->scales, at + h), stride, out + i * stride + h);
        }
    }
}

/* out[n_k, rounded up to 8][stride] = 16 outputs of inputs [k, k + n_k) of a panel; k is a multiple
 * of 8. */
static void dequantize(const struct packed *w, size_t panel, size_t k, size_t n_k, size_t stride,
                       float *out)
{
    if (w->quant.kind == QUANT_INT8)
        dequantize_as(QUANT_INT8, w, panel, k, n_k, stride, out);
    else if (w->quant.kind == QUANT_INT4)
        dequantize_as(QUANT_INT4, w, panel, k, n_k, stride, out);
    else if (w->quant.kind == QUANT_FP8)
        dequantize_as(QUANT_FP8, w, panel, k, n_k, stride, out);
    else
        dequantize_as(QUANT_MXFP4, w, panel, k, n_k, stride, out);
}

#endif
