/* Sums weighted rows on the integer grid. As in linear_avx2.c, adding m = 1.5 * 2^(52-g) to a
 * double v rounds v to the grid: llrint(v * 2^g) is the bits of v + m minus the bits of m. The
 * product of a weight and a value is exact in double, so one fma multiplies and rounds.
 *
 * The fast way is for tiles whose values are all below half the grid's limit, 2^50 on the grid:
 * then the bits minus those of m, plus 2^50, are in [0, 2^51). Any other value, also an
 * infinity or a NaN, sets a higher bit. */
#include "kernels/avx2/avx2.h"
#include "kernels/avx2/vec.h"

enum { WEIGHTED_TILE = 32 };

ALWAYS_INLINE bool weighted_tile(const struct weighted_rows *a, size_t i, size_t n, int64_t *sums)
{
    const __m256d magic = _mm256_set1_pd(1.5 * kern_pow2(52 - (int)a->grid_bits));
    const __m256i half = _mm256_set1_epi64x(WEIGHTED_HALF);
    const __m256i offset = _mm256_sub_epi64(half, _mm256_castpd_si256(magic));
    __m256i sum[WEIGHTED_TILE / 4], seen = _mm256_setzero_si256();
    for (size_t j = 0; j < n / 4; j++)
        sum[j] = _mm256_set1_epi64x(-WEIGHTED_HALF * (int64_t)a->n_rows);
    for (size_t r = 0; r < a->n_rows; r++) {
        const __m256d w = _mm256_set1_pd((double)a->weights[r]);
        const float *y = a->rows[r] + i;
        for (size_t j = 0; j < n / 4; j++) {
            const __m256d v = _mm256_cvtps_pd(_mm_loadu_ps(y + 4 * j));
            const __m256i moved = _mm256_castpd_si256(_mm256_fmadd_pd(w, v, magic));
            const __m256i shifted = _mm256_add_epi64(moved, offset);
            seen = _mm256_or_si256(seen, shifted);
            sum[j] = _mm256_add_epi64(sum[j], shifted);
        }
    }
    for (size_t j = 0; j < n / 4; j++) _mm256_storeu_si256((void *)(sums + 4 * j), sum[j]);
    return _mm256_testz_si256(seen, _mm256_set1_epi64x(-2 * WEIGHTED_HALF));
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
