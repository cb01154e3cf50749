/* Attention on AVX2: 16 slots of a row at a time. */
#include "kernels/avx2/avx2.h"

#include "kernels/avx2/scales.h"

enum { SCORE_ROWS = 1, SCORE_VECTORS = 1, FOLD_ROWS = 2, VALUE_VECTORS = 2 };

struct tile;
ALWAYS_INLINE struct v16 dots16(enum dtype t, const struct tile *tile, const float *q,
                                const size_t slot[16]);

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

/* Lane i of v[j] becomes lane j of v[i]. */
ALWAYS_INLINE void transpose8(__m256 v[8])
{
    __m256 a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* 4 rows: g, and two of their columns in each 128 bits */
        const int g = i / 2 * 4, c = i % 2;
        b[g + 2 * c] = _mm256_shuffle_ps(a[g + c], a[g + c + 2], 0x44);
        b[g + 2 * c + 1] = _mm256_shuffle_ps(a[g + c], a[g + c + 2], 0xEE);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        v[c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x20);
        v[4 + c] = _mm256_permute2f128_ps(b[c], b[4 + c], 0x31);
    }
}

ALWAYS_INLINE void transpose16(struct v16 v[16])
{
    __m256 quarter[4][8]; /* rows below 8: a, b; rows from 8 on: a, b */
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        quarter[0][i] = v[i].a;
        quarter[1][i] = v[i].b;
        quarter[2][i] = v[8 + i].a;
        quarter[3][i] = v[8 + i].b;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) transpose8(quarter[i]);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        v[i] = (struct v16){quarter[0][i], quarter[2][i]};
        v[8 + i] = (struct v16){quarter[1][i], quarter[3][i]};
    }
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

/* q . k of four slots. */
ALWAYS_INLINE __m128 dots4(enum dtype t, const struct tile *tile, const float *q,
                           const size_t slot[4])
{
    __m256 a[4], b[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) a[i] = b[i] = _mm256_setzero_ps();
    for (size_t d = 0; d < tile->head_dim; d += LANES) {
        const __m256 qa = _mm256_loadu_ps(q + d), qb = _mm256_loadu_ps(q + d + 8);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const size_t at = slot[i] * tile->head_dim + d;
            const float scale = t == DTYPE_I8 ? tile->key_scales[slot[i]] : 1.0f;
            a[i] = _mm256_fmadd_ps(qa, kv_load8(t, tile->keys, scale, at), a[i]);
            b[i] = _mm256_fmadd_ps(qb, kv_load8(t, tile->keys, scale, at + 8), b[i]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) a[i] = _mm256_add_ps(a[i], b[i]);
    return tree4(a);
}

/* q . k of 16 slots. */
ALWAYS_INLINE struct v16 dots16(enum dtype t, const struct tile *tile, const float *q,
                                const size_t slot[16])
{
    const __m128 d0 = dots4(t, tile, q, slot), d4 = dots4(t, tile, q, slot + 4);
    const __m128 d8 = dots4(t, tile, q, slot + 8), d12 = dots4(t, tile, q, slot + 12);
    return (struct v16){_mm256_set_m128(d4, d0), _mm256_set_m128(d12, d8)};
}

#define ATTENTION_AVX2(name, type)                                                                 \
    void k_attention_##name##_avx2(const struct attn_args *a, size_t seq, size_t head,             \
                                   size_t row0, size_t row1)                                       \
    {                                                                                              \
        attention(type, a, seq, head, row0, row1);                                                 \
    }
ATTENTION_AVX2(f32, DTYPE_F32)
ATTENTION_AVX2(f16, DTYPE_F16)
ATTENTION_AVX2(bf16, DTYPE_BF16)
ATTENTION_AVX2(i8, DTYPE_I8)
ATTENTION_AVX2(fp8, DTYPE_F8_E4M3)
