/* Attention on AVX2: computes the scores of four slots for up to three queries at a time. */
#include "kernels/avx2/avx2.h"

#include "kernels/avx2/scales.h"

#define TURN_KEYS 0
#define FOLD_FOUR 0

enum { FOLD_ROWS = 3, VALUE_VECTORS = 2 };

struct tile_fold;
ALWAYS_INLINE void dots16(enum dtype t, size_t n_rows, const struct tile_fold *f,
                          const size_t slot[16], size_t j);

/* Loads elements [i, i + 8) of the cache as floats. `scale` is used only for int8. */
ALWAYS_INLINE __m256 kv_load8(enum dtype t, const void *from, float scale, size_t i)
{
    if (t != DTYPE_I8 && t != DTYPE_F8_E4M3) return v8_load(t, from, i);
    const __m128i codes = _mm_loadl_epi64((const void *)((const uint8_t *)from + i));
    if (t == DTYPE_F8_E4M3) return v8_e4m3(_mm256_cvtepu8_epi32(codes));
    const __m256 v = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
    return _mm256_mul_ps(v, _mm256_set1_ps(scale));
}

ALWAYS_INLINE struct v16 kv_load16(enum dtype t, const void *from, float scale, size_t i)
{
    return (struct v16){kv_load8(t, from, scale, i), kv_load8(t, from, scale, i + 8)};
}

ALWAYS_INLINE void rows_max(size_t n, const struct v16 *v, float *to)
{
#pragma GCC unroll 3
    for (size_t r = 0; r < n; r++) to[r] = v16_max_lane(v[r]);
}

ALWAYS_INLINE void rows_tree(size_t n, const struct v16 *v, float *to)
{
#pragma GCC unroll 3
    for (size_t r = 0; r < n; r++) to[r] = v16_tree(v[r]);
}

#include "kernels/attention_body.h"
#include "kernels/index_body.h"

/* Lane i of the result = the sum of v[i]'s eight lanes in the order 4-2-1. */
ALWAYS_INLINE __m128 tree4(const __m256 v[4])
{
    const __m256 t01 = _mm256_add_ps(_mm256_permute2f128_ps(v[0], v[1], 0x20),
                                     _mm256_permute2f128_ps(v[0], v[1], 0x31));
    const __m256 t23 = _mm256_add_ps(_mm256_permute2f128_ps(v[2], v[3], 0x20),
                                     _mm256_permute2f128_ps(v[2], v[3], 0x31));
    const __m256 two =
        _mm256_add_ps(_mm256_shuffle_ps(t01, t23, 0x44), _mm256_shuffle_ps(t01, t23, 0xEE));
    const __m256 one =
        _mm256_add_ps(_mm256_shuffle_ps(two, two, 0x88), _mm256_shuffle_ps(two, two, 0xDD));
    return _mm_unpacklo_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1));
}

/* sum[r][i] = lanes [half, half + 8) of the dot products of n_rows (constant) queries with four
 * slots. */
ALWAYS_INLINE void half_dots(enum dtype t, size_t n_rows, const struct tile_fold *f,
                             const size_t *slot, size_t half, __m256 (*sum)[4])
{
    const struct tile *tile = f->tile;
#pragma GCC unroll 3
    for (size_t r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) sum[r][i] = _mm256_setzero_ps();
    }
    for (size_t d = half; d < tile->head_dim; d += LANES) {
        __m256 q[FOLD_ROWS];
#pragma GCC unroll 3
        for (size_t r = 0; r < n_rows; r++) q[r] = _mm256_loadu_ps(f->rows[r].q + d);
#pragma GCC unroll 4
        for (size_t i = 0; i < 4; i++) {
            const float scale = t == DTYPE_I8 ? tile->key_scales[slot[i]] : 1.0f;
            const __m256 k = kv_load8(t, tile->keys, scale, slot[i] * tile->head_dim + d);
#pragma GCC unroll 3
            for (size_t r = 0; r < n_rows; r++) sum[r][i] = _mm256_fmadd_ps(q[r], k, sum[r][i]);
        }
    }
}

/* e[r][j ..] = the dot products of n_rows (constant) queries with 16 slots, unscaled. */
ALWAYS_INLINE void dots16(enum dtype t, size_t n_rows, const struct tile_fold *f,
                          const size_t slot[16], size_t j)
{
    for (size_t at = 0; at < 16; at += 4) {
        __m256 a[FOLD_ROWS][4], b[FOLD_ROWS][4];
        half_dots(t, n_rows, f, slot + at, 0, a);
        half_dots(t, n_rows, f, slot + at, 8, b);
#pragma GCC unroll 3
        for (size_t r = 0; r < n_rows; r++) {
#pragma GCC unroll 4
            for (size_t i = 0; i < 4; i++) a[r][i] = _mm256_add_ps(a[r][i], b[r][i]);
            _mm_storeu_ps(f->e[r] + j + at, tree4(a[r]));
        }
    }
}

#define ATTENTION_AVX2(name, type)                                                                 \
    static void k_attention_##name##_avx2(const struct attn_args *a, const struct attn_slice *s)   \
    {                                                                                              \
        attention(type, a, s);                                                                     \
    }
ATTENTION_AVX2(f32, DTYPE_F32)
ATTENTION_AVX2(f16, DTYPE_F16)
ATTENTION_AVX2(bf16, DTYPE_BF16)
ATTENTION_AVX2(i8, DTYPE_I8)
ATTENTION_AVX2(fp8, DTYPE_F8_E4M3)

#define INDEX_AVX2(name, type)                                                                     \
    static void k_index_scores_##name##_avx2(const struct index_args *a,                           \
                                             const struct index_slice *s)                          \
    {                                                                                              \
        index_scores(type, a, s);                                                                  \
    }
INDEX_AVX2(f32, DTYPE_F32)
INDEX_AVX2(f16, DTYPE_F16)
INDEX_AVX2(bf16, DTYPE_BF16)
INDEX_AVX2(i8, DTYPE_I8)
INDEX_AVX2(fp8, DTYPE_F8_E4M3)

static void k_attention_fold_avx2(const struct attn_args *a, const struct attn_slice *s)
{
    for (size_t head = s->head0; head < s->head1; head++) fold_parts(a, s, head);
}

void fill_attention_avx2(struct kern_table *t)
{
    t->attention[DTYPE_F32] = k_attention_f32_avx2;
    t->attention[DTYPE_F16] = k_attention_f16_avx2;
    t->attention[DTYPE_BF16] = k_attention_bf16_avx2;
    t->attention[DTYPE_I8] = k_attention_i8_avx2;
    t->attention[DTYPE_F8_E4M3] = k_attention_fp8_avx2;
    t->attention_fold = k_attention_fold_avx2;
    t->index_scores[DTYPE_F32] = k_index_scores_f32_avx2;
    t->index_scores[DTYPE_F16] = k_index_scores_f16_avx2;
    t->index_scores[DTYPE_BF16] = k_index_scores_bf16_avx2;
    t->index_scores[DTYPE_I8] = k_index_scores_i8_avx2;
    t->index_scores[DTYPE_F8_E4M3] = k_index_scores_fp8_avx2;
}
