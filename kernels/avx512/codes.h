/* Helpers of the quantized linears for AVX-512 and AMX: nibbles to bytes, and those set_* functions
 * of linear_quant_body.h that convert scales and zero points and add to the integer grid. Included
 * after linear_quant_body.h. */
#ifndef SHOAL_KERNELS_AVX512_CODES_H
#define SHOAL_KERNELS_AVX512_CODES_H

#include "kernels/avx512/scales.h"
#include "kernels/linear_quant_body.h"

/* Converts nibbles (E2M1) to bytes: the doubled number plus 12 (QUANT_MXFP4_BIAS). */
ALWAYS_INLINE __m512i mxfp4_bytes(__m512i nibbles)
{
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), nibbles);
}

/* Unpacks half of the nibbles of `both`, which holds inputs 8i to 8i + 7 of 16 outputs, into bytes:
 * half 0 the low ones (inputs 8i to 8i + 3), half 1 the high ones (8i + 4 to 8i + 7). */
ALWAYS_INLINE __m512i bytes_of(enum quant_source source, __m512i both, int half)
{
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i v = _mm512_and_si512(half ? _mm512_srli_epi16(both, 4) : both, low);
    return source == SOURCE_MXFP4 ? mxfp4_bytes(v) : v;
}

static void set_scales(struct quant_format f, const void *in, size_t i, size_t n, float *out)
{
    for (size_t end = i + n; i < end; i += PANEL_COLUMNS, out += PANEL_COLUMNS)
        _mm512_store_ps(out, v16_scales(f, in, i));
}

static void set_zeros(const uint8_t *in, size_t n, int32_t bias, int32_t *out)
{
    for (size_t i = 0; i < n; i += PANEL_COLUMNS) {
        const __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(in + i)));
        _mm512_store_si512(out + i, _mm512_sub_epi16(_mm512_set1_epi32(bias), v));
    }
}

/* Compares |p| as integers: without the sign, the bits of floats are in the order of their values,
 * and a NaN is above all. */
ALWAYS_INLINE bool set_grid_fits(const float *p, size_t n, uint32_t grid_bits)
{
    const __m512i size = _mm512_set1_epi32(0x7FFFFFFF);
    const __m512i least = _mm512_castps_si512(_mm512_set1_ps(kern_grid_limit(grid_bits)));
    __m512i most = _mm512_setzero_si512();
#pragma GCC unroll 2
    for (size_t i = 0; i < n; i += 16)
        most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_load_si512(p + i), size));
    return _mm512_cmpge_epi32_mask(most, least) == 0;
}

ALWAYS_INLINE void set_grid_add(const float *p, uint32_t grid_bits, const int64_t *from,
                                int64_t *to)
{
    const __m512d magic = _mm512_set1_pd(1.5 * kern_pow2(52 - (int)grid_bits));
#pragma GCC unroll 2
    for (size_t i = 0; i < PANEL_COLUMNS; i += 8) {
        const __m512d moved = _mm512_add_pd(_mm512_cvtps_pd(_mm256_load_ps(p + i)), magic);
        const __m512i sums = _mm512_load_si512(from + i);
        _mm512_storeu_si512(to + i, _mm512_add_epi64(sums, _mm512_castpd_si512(moved)));
    }
}

ALWAYS_INLINE void set_grid_round(const int64_t *sums, size_t n, uint32_t grid_bits, float *y)
{
    const __m512d unit = _mm512_set1_pd(kern_pow2(-(int)grid_bits));
#pragma GCC unroll 4
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(y + i, grid_eight(_mm512_load_si512(sums + i), unit));
}

#endif
