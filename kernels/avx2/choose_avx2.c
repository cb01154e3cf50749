/* The router, the sampler's masses and the argmax on AVX2. */
#include "kernels/avx2/avx2.h"

#include "kernels/avx2/vec.h"
#include "kernels/choose_body.h"

/* Computes exponentials eight at a time, but adds them one by one, because the numerics law fixes
 * that order. */
static float exp_sum(const float *logits, size_t n, float max)
{
    float e[8] __attribute__((aligned(32)));
    float sum = 0.0f;
    for (size_t i = 0; i < n; i += 8) {
        const __m256 l = _mm256_maskload_ps(logits + i, v8_first(n - i));
        _mm256_store_ps(e, v8_exp(_mm256_sub_ps(l, _mm256_set1_ps(max))));
        for (size_t j = 0; j < 8 && i + j < n; j++) sum += e[j];
    }
    return sum;
}

static void k_router_f32_avx2(const struct router_args *a, size_t row)
{
    const float *logits = a->logits + row * a->n_experts;
    int32_t *ids = a->ids + row * a->n_chosen;
    float max = -INFINITY, sum = 0.0f;
    if (a->rule.kind == ROUTER_MIXER) {
        kern_router_mix(a, logits, ids, a->weights + row * a->n_chosen);
        return;
    }
    for (uint32_t e = 0; e < a->n_experts; e++) max = logits[e] > max ? logits[e] : max;
    if (!kern_router_is_apart(a)) sum = exp_sum(logits, a->n_experts, max);
    kern_router_ids(a, logits, max, sum, ids);
    kern_router_weights(a, logits, ids, max, sum, a->weights + row * a->n_chosen);
}

/* Eight masses: values of exp as integers in units of 2^-32. */
struct mass8 {
    __m256i low, high;
};

/* Returns floor(e * 2^32) of four values in [0, 1]. Adding 2^52 leaves the integer in the double's
 * low bits. */
ALWAYS_INLINE __m256i mass_four(__m128 e)
{
    const __m256d scaled = _mm256_mul_pd(_mm256_cvtps_pd(e), _mm256_set1_pd(0x1p32));
    const __m256d magic = _mm256_set1_pd(0x1p52);
    const __m256d integer = _mm256_add_pd(_mm256_floor_pd(scaled), magic);
    return _mm256_xor_si256(_mm256_castpd_si256(integer), _mm256_castpd_si256(magic));
}

ALWAYS_INLINE struct mass8 mass_eight(__m256 logits, __m256 max, __m256 inv_t)
{
    const __m256 l = _mm256_add_ps(logits, _mm256_setzero_ps());
    __m256 e = v8_exp(_mm256_mul_ps(_mm256_sub_ps(l, max), inv_t));
    e = _mm256_and_ps(e, _mm256_cmp_ps(e, _mm256_set1_ps(1.0f), _CMP_LE_OQ));
    return (struct mass8){mass_four(_mm256_castps256_ps128(e)),
                          mass_four(_mm256_extractf128_ps(e, 1))};
}

static uint64_t k_mass_f32_avx2(const float *logits, size_t n, float max, float inv_t,
                                uint64_t *mass)
{
    const __m256 top = _mm256_set1_ps(max), scale = _mm256_set1_ps(inv_t);
    __m256i sums = _mm256_setzero_si256();
    uint64_t four[8] __attribute__((aligned(32)));
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const struct mass8 m = mass_eight(_mm256_loadu_ps(logits + i), top, scale);
        sums = _mm256_add_epi64(sums, _mm256_add_epi64(m.low, m.high));
        if (mass == NULL) continue;
        _mm256_storeu_si256((void *)(mass + i), m.low);
        _mm256_storeu_si256((void *)(mass + i + 4), m.high);
    }
    _mm256_store_si256((void *)four, sums);
    uint64_t sum = four[0] + four[1] + four[2] + four[3];
    if (i == n) return sum;
    const __m256 tail = _mm256_maskload_ps(logits + i, v8_first(n - i));
    const struct mass8 m = mass_eight(tail, top, scale);
    _mm256_store_si256((void *)four, m.low);
    _mm256_store_si256((void *)(four + 4), m.high);
    for (size_t j = 0; i + j < n; j++) {
        if (mass != NULL) mass[i + j] = four[j];
        sum += four[j];
    }
    return sum;
}

/* Returns kern_ordered_bits(x) - 2^31 for eight floats x; the results compare as signed integers.
 */
ALWAYS_INLINE __m256i ordered_signed(__m256 x)
{
    const __m256i u = _mm256_castps_si256(x);
    const __m256i flip = _mm256_srli_epi32(_mm256_srai_epi32(u, 31), 1);
    return _mm256_xor_si256(u, flip);
}

static uint64_t k_argmax_f32_avx2(const float *logits, size_t n, uint32_t id0, uint64_t *n_bad)
{
    const __m256i infinite = _mm256_set1_epi32(0x7F800000), eight = _mm256_set1_epi32(8);
    __m256i best = _mm256_set1_epi32(INT32_MIN), best_at = _mm256_setzero_si256();
    __m256i at = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    uint64_t bad = 0, key = 0;
    size_t i = 0;
    for (; i + 8 <= n; i += 8, at = _mm256_add_epi32(at, eight)) {
        const __m256 l = _mm256_add_ps(_mm256_loadu_ps(logits + i), _mm256_setzero_ps());
        const __m256i exponent = _mm256_and_si256(_mm256_castps_si256(l), infinite);
        const __m256i is_bad = _mm256_cmpeq_epi32(exponent, infinite);
        const __m256i ordered = ordered_signed(l), better = _mm256_cmpgt_epi32(ordered, best);
        bad +=
            (unsigned)__builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(is_bad)));
        best = _mm256_blendv_epi8(best, ordered, better);
        best_at = _mm256_blendv_epi8(best_at, at, better);
    }
    uint32_t ordered[8], where[8];
    _mm256_storeu_si256((void *)ordered, best);
    _mm256_storeu_si256((void *)where, best_at);
    for (size_t j = 0; i > 0 && j < 8; j++) {
        const uint64_t k =
            (uint64_t)(ordered[j] ^ 0x80000000u) << 32 | (uint32_t) ~(id0 + where[j]);
        key = k > key ? k : key;
    }
    for (; i < n; i++) {
        const float l = logits[i] + 0.0f;
        const uint64_t k = (uint64_t)kern_ordered_bits(l) << 32 | (uint32_t) ~(id0 + (uint32_t)i);
        key = k > key ? k : key;
        bad += (f32_bits(l) & 0x7F800000u) == 0x7F800000u;
    }
    *n_bad = bad;
    return key;
}

void fill_choose_avx2(struct kern_table *t)
{
    t->router = k_router_f32_avx2;
    t->mass = k_mass_f32_avx2;
    t->argmax = k_argmax_f32_avx2;
}
