/* The AVX2 and FMA loops that peak.c times: independent chains of multiply-adds in registers, and
 * reads of memory. */
#include "kernels/peak_isa.h"

#include <immintrin.h>
#include <stdint.h>

enum { PREFETCH_BYTES = 8192, LINE_BYTES = 64, N_STREAMS = 4 };

static float first_of(__m256 v)
{
    return _mm256_cvtss_f32(v);
}

float k_peak_fma_f32_avx2(void)
{
    const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
    __m256 c[PEAK_CHAINS];
#pragma GCC unroll 12
    for (int i = 0; i < PEAK_CHAINS; i++) c[i] = _mm256_set1_ps((float)i);
    for (int k = 0; k < PEAK_ROUNDS; k++) {
#pragma GCC unroll 12
        for (int i = 0; i < PEAK_CHAINS; i++) c[i] = _mm256_fmadd_ps(c[i], x, y);
    }
#pragma GCC unroll 12
    for (int i = 1; i < PEAK_CHAINS; i++) c[0] = _mm256_add_ps(c[0], c[i]);
    return first_of(c[0]);
}

/* Hides v's value from the compiler, which would otherwise multiply only once. */
static inline __m256i renewed(__m256i v)
{
    __asm__("" : "+x"(v));
    return v;
}

float k_peak_int8_avx2(void)
{
    const __m256i ones = _mm256_set1_epi16(1), a = _mm256_set1_epi8(3);
    __m256i c[PEAK_INT8_CHAINS];
#pragma GCC unroll 8
    for (int i = 0; i < PEAK_INT8_CHAINS; i++) c[i] = _mm256_setzero_si256();
    __m256i b = _mm256_set1_epi8(-5);
    for (int k = 0; k < PEAK_ROUNDS; k++) {
#pragma GCC unroll 8
        for (int i = 0; i < PEAK_INT8_CHAINS; i++) {
            b = renewed(b);
            const __m256i pairs = _mm256_maddubs_epi16(a, b);
            c[i] = _mm256_add_epi32(c[i], _mm256_madd_epi16(renewed(pairs), ones));
        }
    }
#pragma GCC unroll 8
    for (int i = 1; i < PEAK_INT8_CHAINS; i++) c[0] = _mm256_add_epi32(c[0], c[i]);
    return first_of(_mm256_castsi256_ps(c[0]));
}

float k_peak_int8_16bit_avx2(void)
{
    const __m256i a = _mm256_set1_epi8(3);
    __m256i c[PEAK_INT8_CHAINS];
#pragma GCC unroll 8
    for (int i = 0; i < PEAK_INT8_CHAINS; i++) c[i] = _mm256_setzero_si256();
    __m256i b = _mm256_set1_epi8(-5);
    for (int k = 0; k < PEAK_ROUNDS; k++) {
#pragma GCC unroll 8
        for (int i = 0; i < PEAK_INT8_CHAINS; i++) {
            b = renewed(b);
            c[i] = _mm256_add_epi16(c[i], renewed(_mm256_maddubs_epi16(a, b)));
        }
    }
#pragma GCC unroll 8
    for (int i = 1; i < PEAK_INT8_CHAINS; i++) c[0] = _mm256_add_epi16(c[0], c[i]);
    return first_of(_mm256_castsi256_ps(c[0]));
}

static inline __m256i load_floats(const char *from)
{
    return _mm256_loadu_si256((const void *)from);
}

float k_peak_read_1_avx2(const char *from, size_t n)
{
    __m256i s[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) s[i] = _mm256_setzero_si256();
    for (size_t at = 0; at + 256 <= n; at += 256) {
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            _mm_prefetch(from + at + i * LINE_BYTES + PREFETCH_BYTES, _MM_HINT_T0);
        }
#pragma GCC unroll 8
        for (size_t i = 0; i < 8; i++)
            s[i] = _mm256_xor_si256(s[i], load_floats(from + at + i * 32));
    }
#pragma GCC unroll 8
    for (int i = 1; i < 8; i++) s[0] = _mm256_xor_si256(s[0], s[i]);
    return first_of(_mm256_castsi256_ps(s[0]));
}

float k_peak_read_4_avx2(const char *from, size_t n)
{
    const size_t part = n / N_STREAMS / LINE_BYTES * LINE_BYTES;
    __m256i s[2 * N_STREAMS];
#pragma GCC unroll 8
    for (int i = 0; i < 2 * N_STREAMS; i++) s[i] = _mm256_setzero_si256();
    for (size_t at = 0; at < part; at += LINE_BYTES) {
#pragma GCC unroll 4
        for (size_t j = 0; j < N_STREAMS; j++) {
            const char *line = from + j * part + at;
            _mm_prefetch(line + PREFETCH_BYTES, _MM_HINT_T0);
            s[2 * j] = _mm256_xor_si256(s[2 * j], load_floats(line));
            s[2 * j + 1] = _mm256_xor_si256(s[2 * j + 1], load_floats(line + 32));
        }
    }
#pragma GCC unroll 8
    for (int i = 1; i < 2 * N_STREAMS; i++) s[0] = _mm256_xor_si256(s[0], s[i]);
    return first_of(_mm256_castsi256_ps(s[0]));
}
