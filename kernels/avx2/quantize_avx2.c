/* Quantizes activations to int8 on AVX2, 32 inputs at a time, to the bits of the reference. */
#include "kernels/avx2/avx2.h"
#include "kernels/ref/ref.h"

#include "kernels/avx2/vec.h"
#include "kernels/quant_body.h"

#include <string.h>

/* Loads inputs [i, i + 8) of a group of n. Inputs beyond n are +0, which changes no maximum and
 * quantizes to 0. */
ALWAYS_INLINE __m256 group_load(const float *x, size_t i, size_t n)
{
    if (i + 8 <= n) return _mm256_loadu_ps(x + i);
    return i < n ? _mm256_maskload_ps(x + i, v8_first(n - i)) : _mm256_setzero_ps();
}

ALWAYS_INLINE uint32_t max_lane(__m256i v)
{
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

ALWAYS_INLINE int32_t sum_lanes(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
}

/* Returns the bits of the largest |x|. As integers they are in the order of the numbers, with NaN
 * above infinity. */
ALWAYS_INLINE uint32_t max_bits(const float *x, size_t n)
{
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    __m256i max = _mm256_setzero_si256();
    for (size_t i = 0; i < n; i += 8) {
        const __m256i bits = _mm256_castps_si256(group_load(x, i, n));
        max = _mm256_max_epu32(max, _mm256_and_si256(bits, magnitude));
    }
    return max_lane(max);
}

/* Quantizes eight inputs to 32-bit integers and adds them to *sum. */
ALWAYS_INLINE __m256i eight_codes(__m256 x, __m256 factor, __m256i *sum)
{
    const __m256i codes = _mm256_cvtps_epi32(_mm256_mul_ps(x, factor));
    *sum = _mm256_add_epi32(*sum, codes);
    return codes;
}

/* Quantizes one group of n inputs, padded with zeros to `padded` inputs (whole vectors). Returns
 * its scale. */
ALWAYS_INLINE float quantize_group(const float *x, size_t n, size_t padded, int8_t *codes,
                                   int32_t *sum)
{
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    float factor;
    const float scale = kern_quantize_scale(max_bits(x, n), &factor);
    *sum = 0;
    if (factor == 0.0f) { /* all quantized values are 0, even where x is infinite */
        memset(codes, 0, padded);
        return scale;
    }
    const __m256 f = _mm256_set1_ps(factor);
    __m256i s = _mm256_setzero_si256();
    for (size_t i = 0; i < padded; i += QUANT_CODE_ALIGN) {
        const __m256i a = eight_codes(group_load(x, i, n), f, &s);
        const __m256i b = eight_codes(group_load(x, i + 8, n), f, &s);
        const __m256i c = eight_codes(group_load(x, i + 16, n), f, &s);
        const __m256i d = eight_codes(group_load(x, i + 24, n), f, &s);
        const __m256i bytes =
            _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        _mm256_storeu_si256((void *)(codes + i), _mm256_permutevar8x32_epi32(bytes, in_order));
    }
    *sum = sum_lanes(s);
    return scale;
}

static void k_quantize_row_avx2(const float *x, size_t n, const struct quant_rows *out, size_t row)
{
    int8_t *codes = out->codes + row * out->n_groups * out->group;
    for (size_t g = 0; g < out->n_groups; g++) {
        const size_t at = g * out->group, left = n - at, i = row * out->n_groups + g;
        const size_t length = left < out->group ? left : out->group;
        out->scales[i] = quantize_group(x + at, length, out->group, codes + at, &out->sums[i]);
    }
}

/* Stores keys or values as int8. Head dimensions that do not fill whole vectors use the reference.
 */
static void k_kv_store_i8_avx2(const float *x, size_t n, void *out, float *scale)
{
    int32_t sum;
    const struct quant_rows one = {(uint32_t)n, 1, out, scale, &sum};
    (n % QUANT_CODE_ALIGN == 0 ? k_quantize_row_avx2 : k_quantize_row_ref)(x, n, &one, 0);
}

void fill_quantize_avx2(struct kern_table *t)
{
    t->quantize_row = k_quantize_row_avx2;
    t->kv_store[DTYPE_I8] = k_kv_store_i8_avx2;
}
