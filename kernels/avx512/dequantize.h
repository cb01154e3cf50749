/* Codes of a panel as floats on AVX-512: what weight-only linears multiply with. A quad of inputs
 * is a lane of 32 bits, so that no byte crosses lanes. Included by linear_avx512.c. */
#ifndef SHOAL_KERNELS_AVX512_DEQUANTIZE_H
#define SHOAL_KERNELS_AVX512_DEQUANTIZE_H

#include "kernels/avx512/scales.h"
#include "kernels/quant_body.h"

/* The doubled E2M1 number in the low nibble of each lane. */
ALWAYS_INLINE __m512i v16_e2m1(__m512i b)
{
    const __m512i table =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    return _mm512_permutexvar_epi32(b, table); /* the lowest four bits choose */
}

/* A code that starts at bit 8 j of each lane (nibbles: the low one, or the high one). */
ALWAYS_INLINE __m512 v16_value(enum quant_kind kind, __m512i b, __m512i zero, __m512 scale)
{
    __m512 v;
    if (kind == QUANT_FP8)
        v = v16_e4m3(b);
    else if (kind == QUANT_MXFP4)
        v = _mm512_cvtepi32_ps(v16_e2m1(b));
    else
        v = _mm512_cvtepi32_ps(_mm512_sub_epi32(
            _mm512_and_si512(b, _mm512_set1_epi32(kind == QUANT_INT8 ? 0xFF : 15)), zero));
    return _mm512_mul_ps(v, scale);
}

/* Whole vectors of codes: n inputs of one group, inputs `stride` floats apart. */
ALWAYS_INLINE void dequantize_run(enum quant_kind kind, const uint8_t *codes, size_t n,
                                  __m512i zero, __m512 scale, size_t stride, float *out)
{
    const bool nibbles = kind == QUANT_INT4 || kind == QUANT_MXFP4;
    for (size_t k = 0; k < n; k += nibbles ? 8 : 4, codes += 64) {
        const __m512i b = _mm512_loadu_si512(codes);
        float *to = out + k * stride;
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            const __m512i low = _mm512_srli_epi32(b, 8 * (unsigned)j);
            _mm512_store_ps(to + (size_t)j * stride, v16_value(kind, low, zero, scale));
            if (!nibbles) continue;
            const __m512i high = _mm512_srli_epi32(b, 8 * (unsigned)j + 4);
            _mm512_store_ps(to + (size_t)(4 + j) * stride, v16_value(kind, high, zero, scale));
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
        __m512i zero = _mm512_set1_epi32(kind == QUANT_INT8 ? QUANT_INT8_BIAS : QUANT_INT4_ZERO);
        if (w->quant.has_zeros)
            zero = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(w->zeros + at)));
        n = n_k - i < left ? n_k - i : left;
        dequantize_run(kind, codes, n, zero, v16_scales(w->quant, w->scales, at), stride,
                       out + i * stride);
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
