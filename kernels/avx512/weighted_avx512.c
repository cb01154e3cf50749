/* Adds rows with weights on the integer grid, as avx2/weighted_avx2.c does, with twice the lanes.
 */
#include "kernels/avx512/avx512.h"
#include "kernels/avx512/vec.h"

enum { WEIGHTED_TILE = 64 };

ALWAYS_INLINE bool weighted_tile(const struct weighted_rows *a, size_t i, size_t n, int64_t *sums)
{
    const __m512d magic = _mm512_set1_pd(1.5 * kern_pow2(52 - (int)a->grid_bits));
    const __m512i half = _mm512_set1_epi64(WEIGHTED_HALF);
    const __m512i offset = _mm512_sub_epi64(half, _mm512_castpd_si512(magic));
    __m512i sum[WEIGHTED_TILE / 8], seen = _mm512_setzero_si512();
    for (size_t j = 0; j < n / 8; j++)
        sum[j] = _mm512_set1_epi64(-WEIGHTED_HALF * (int64_t)a->n_rows);
    for (size_t r = 0; r < a->n_rows; r++) {
        const __m512d w = _mm512_set1_pd((double)a->weights[r]);
        const float *y = a->rows[r] + i;
        for (size_t j = 0; j < n / 8; j++) {
            const __m512d v = _mm512_cvtps_pd(_mm256_loadu_ps(y + 8 * j));
            const __m512i moved = _mm512_castpd_si512(_mm512_fmadd_pd(w, v, magic));
            const __m512i shifted = _mm512_add_epi64(moved, offset);
            seen = _mm512_or_si512(seen, shifted);
            sum[j] = _mm512_add_epi64(sum[j], shifted);
        }
    }
    for (size_t j = 0; j < n / 8; j++) _mm512_storeu_si512(sums + 8 * j, sum[j]);
    return _mm512_test_epi64_mask(seen, _mm512_set1_epi64(-2 * WEIGHTED_HALF)) == 0;
}

#include "kernels/weighted_body.h"

static int64_t k_weighted_to_f32_avx512(const struct weighted_rows *a, float *y)
{
    return weighted_to_f32(a, y, k_grid_to_f32_avx512);
}

static int64_t k_weighted_add_avx512(const struct weighted_rows *a, int64_t *sums)
{
    return weighted_add(a, sums);
}

void fill_weighted_avx512(struct kern_table *t)
{
    t->weighted_to_f32 = k_weighted_to_f32_avx512;
    t->weighted_add = k_weighted_add_avx512;
}
