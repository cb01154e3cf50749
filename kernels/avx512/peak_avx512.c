/* The AVX-512 and VNNI loops that peak.c times: independent chains of multiply-adds in registers,
 * and reads of memory. */
#include "kernels/peak_isa.h"

#include <immintrin.h>

enum { PREFETCH_BYTES = 8192, LINE_BYTES = 64 };

float k_peak_fma_f32_avx512(void)
{
    const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
    __m512 c[PEAK_CHAINS];
#pragma GCC unroll 12
    for (int i = 0; i < PEAK_CHAINS; i++) c[i] = _mm512_set1_ps((float)i);
    for (int k = 0; k < PEAK_ROUNDS; k++) {
#pragma GCC unroll 12
        for (int i = 0; i < PEAK_CHAINS; i++) c[i] = _mm512_fmadd_ps(c[i], x, y);
    }
#pragma GCC unroll 12
    for (int i = 1; i < PEAK_CHAINS; i++) c[0] = _mm512_add_ps(c[0], c[i]);
    return _mm512_cvtss_f32(c[0]);
}

float k_peak_int8_vnni_avx512(void)
{
    const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-5);
    __m512i c[PEAK_CHAINS];
#pragma GCC unroll 12
    for (int i = 0; i < PEAK_CHAINS; i++) c[i] = _mm512_set1_epi32(i);
    for (int k = 0; k < PEAK_ROUNDS; k++) {
#pragma GCC unroll 12
        for (int i = 0; i < PEAK_CHAINS; i++) c[i] = _mm512_dpbusd_epi32(c[i], a, b);
    }
#pragma GCC unroll 12
    for (int i = 1; i < PEAK_CHAINS; i++) c[0] = _mm512_add_epi32(c[0], c[i]);
    return _mm512_cvtss_f32(_mm512_castsi512_ps(c[0]));
}

float k_peak_read_1_avx512(const char *from, size_t n)
{
    __m512i s[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) s[i] = _mm512_setzero_si512();
    for (size_t at = 0; at + 8 * LINE_BYTES <= n; at += 8 * LINE_BYTES) {
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++) {
            const char *line = from + at + i * LINE_BYTES;
            _mm_prefetch(line + PREFETCH_BYTES, _MM_HINT_T0);
            s[i] = _mm512_xor_si512(s[i], _mm512_loadu_si512((const void *)line));
        }
    }
#pragma GCC unroll 8
    for (int i = 1; i < 8; i++) s[0] = _mm512_xor_si512(s[0], s[i]);
    return _mm512_cvtss_f32(_mm512_castsi512_ps(s[0]));
}
