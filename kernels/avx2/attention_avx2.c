/* Attention on AVX2: four scores at a time, of one query or two. */
#include "kernels/avx2/avx2.h"

#include "kernels/avx2/scales.h"

enum { FOLD_ROWS = 2, VALUE_VECTORS = 2 };

struct tile;
struct seen_row;
ALWAYS_INLINE void dots16(enum dtype t, size_t n_rows, const struct tile *tile,
                          const struct seen_row *rows, const size_t slot[16], size_t j,
                          float (*e)[KV_BLOCK_TOKENS]);

/* Elements [i, i + 8) of the cache as floats; scale: of int8 codes. */
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

#include "kernels/attention_body.h"

/* The trees 4-2-1 of four times 8 lanes. */
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

/* The dots of n_rows queries with n_slots (constant; four dots), query by query. */
ALWAYS_INLINE __m128 dots4(enum dtype t, size_t n_rows, size_t n_slots, const struct tile *tile,
                           const struct seen_row *rows, const size_t *slot)
{
    __m256 a[4], b[4];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) a[i] = b[i] = _mm256_setzero_ps();
    for (size_t d = 0; d < tile->head_dim; d += LANES) {
#pragma GCC unroll 4
        for (size_t i = 0; i < n_slots; i++) {
            const size_t at = slot[i] * tile->head_dim + d;
            const float scale = t == DTYPE_I8 ? tile->key_scales[slot[i]] : 1.0f;
            const __m256 ka = kv_load8(t, tile->keys, scale, at);
            const __m256 kb = kv_load8(t, tile->keys, scale, at + 8);
#pragma GCC unroll 2
            for (size_t r = 0; r < n_rows; r++) {
                const size_t to = r * n_slots + i;
                a[to] = _mm256_fmadd_ps(_mm256_loadu_ps(rows[r].q + d), ka, a[to]);
                b[to] = _mm256_fmadd_ps(_mm256_loadu_ps(rows[r].q + d + 8), kb, b[to]);
            }
        }
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) a[i] = _mm256_add_ps(a[i], b[i]);
    return tree4(a);
}

/* e[r][j ..] = the dots of n_rows (constant) queries with 16 slots. */
ALWAYS_INLINE void dots16(enum dtype t, size_t n_rows, const struct tile *tile,
                          const struct seen_row *rows, const size_t slot[16], size_t j,
                          float (*e)[KV_BLOCK_TOKENS])
{
    if (n_rows == 1) {
        for (size_t i = 0; i < 16; i += 4)
            _mm_storeu_ps(e[0] + j + i, dots4(t, 1, 4, tile, rows, slot + i));
        return;
    }
    for (size_t i = 0; i < 16; i += 2) {
        const __m128 v = dots4(t, 2, 2, tile, rows, slot + i);
        _mm_storel_pi((__m64 *)(e[0] + j + i), v);
        _mm_storeh_pi((__m64 *)(e[1] + j + i), v);
    }
}

#define ATTENTION_AVX2(name, type)                                                                 \
    void k_attention_##name##_avx2(const struct attn_args *a, const struct attn_slice *s)          \
    {                                                                                              \
        attention(type, a, s);                                                                     \
    }
ATTENTION_AVX2(f32, DTYPE_F32)
ATTENTION_AVX2(f16, DTYPE_F16)
ATTENTION_AVX2(bf16, DTYPE_BF16)
ATTENTION_AVX2(i8, DTYPE_I8)
ATTENTION_AVX2(fp8, DTYPE_F8_E4M3)

void k_attention_fold_avx2(const struct attn_args *a, const struct attn_slice *s)
{
    for (size_t head = s->head0; head < s->head1; head++) fold_parts(a, s, head);
}
