/* Adds rows with weights on the integer grid. As in linear_avx2.c, adding 1.5 * 2^(52-g) to a
 * double v rounds it to the grid: llrint(v * 2^g) is the difference of the bits. The product of a
 * weight and a value is exact in double, so one fma multiplies and rounds. A value inside the
 * grid's limit does not change the exponent of the sum. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/vec.h"

enum { WEIGHTED_TILE = 32 };

ALWAYS_INLINE bool weighted_tile(const struct weighted_rows *a, size_t i, size_t n, int64_t *sums)
{
    const __m256d magic = _mm256_set1_pd(1.5 * kern_pow2(52 - (int)a->grid_bits));
    const __m256i one = _mm256_castpd_si256(magic);
    const int64_t all = (int64_t)((uint64_t)_mm256_extract_epi64(one, 0) * a->n_rows);
    __m256i sum[WEIGHTED_TILE / 4], changed = _mm256_setzero_si256();
    for (size_t j = 0; j < n / 4; j++) sum[j] = _mm256_set1_epi64x(-all);
    for (size_t r = 0; r < a->n_rows; r++) {
        const __m256d w = _mm256_set1_pd((double)a->weights[r]);
        const float *y = a->rows[r] + i;
        for (size_t j = 0; j < n / 4; j++) {
            const __m256d v = _mm256_cvtps_pd(_mm_loadu_ps(y + 4 * j));
            const __m256i moved = _mm256_castpd_si256(_mm256_fmadd_pd(w, v, magic));
            changed = _mm256_or_si256(changed, _mm256_xor_si256(moved, one));
            sum[j] = _mm256_add_epi64(sum[j], moved);
        }
    }
    for (size_t j = 0; j < n / 4; j++) _mm256_storeu_si256((void *)(sums + 4 * j), sum[j]);
    return _mm256_testz_si256(changed, _mm256_set1_epi64x((int64_t)0xFFF << 52));
}

#include "kernels/weighted_body.h"

static int64_t k_weighted_to_f32_avx2(const struct weighted_rows *a, float *y)
{
    return weighted_to_f32(a, y, k_grid_to_f32_avx2);
}

static int64_t k_weighted_add_avx2(const struct weighted_rows *a, int64_t *sums)
{
    return weighted_add(a, sums);
}

void fill_weighted_avx2(struct kern_table *t)
{
    t->weighted_to_f32 = k_weighted_to_f32_avx2;
    t->weighted_add = k_weighted_add_avx2;
}
