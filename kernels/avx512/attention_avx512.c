/* Attention on AVX-512: 32 slots of two rows at a time. */
#include "kernels/avx512/avx512.h"

#include "kernels/avx512/scales.h"

enum { SCORE_ROWS = 2, SCORE_VECTORS = 2, FOLD_ROWS = 4, VALUE_VECTORS = 4 };

struct tile;
ALWAYS_INLINE struct v16 dots16(enum dtype t, const struct tile *tile, const float *q,
                                const size_t slot[16]);

/* Elements [i, i + 16) of the cache as floats; scale: of int8 codes. */
ALWAYS_INLINE struct v16 kv_load16(enum dtype t, const void *from, float scale, size_t i)
{
    if (t != DTYPE_I8 && t != DTYPE_F8_E4M3) return v16_load(t, from, i);
    const __m128i codes = _mm_loadu_si128((const void *)((const uint8_t *)from + i));
    if (t == DTYPE_F8_E4M3) return (struct v16){v16_e4m3(_mm512_cvtepu8_epi32(codes))};
    const __m512 v = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
    return (struct v16){_mm512_mul_ps(v, _mm512_set1_ps(scale))};
}

/* Lane i of v[j] becomes lane j of v[i]. */
ALWAYS_INLINE void transpose16(struct v16 v[16])
{
    __m512 a[16], b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(v[i].v, v[i + 1].v);
        a[i + 1] = _mm512_unpackhi_ps(v[i].v, v[i + 1].v);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) { /* 4 rows: g, and two of their columns in each 128 bits */
        const int g = i / 2 * 4, c = i % 2;
        const __m512d lo = _mm512_castps_pd(a[g + c]), hi = _mm512_castps_pd(a[g + c + 2]);
        b[g + 2 * c] = _mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi));
        b[g + 2 * c + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi));
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const __m512 even0 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0x88);
        const __m512 odd0 = _mm512_shuffle_f32x4(b[c], b[4 + c], 0xDD);
        const __m512 even8 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0x88);
        const __m512 odd8 = _mm512_shuffle_f32x4(b[8 + c], b[12 + c], 0xDD);
        v[c].v = _mm512_shuffle_f32x4(even0, even8, 0x88);
        v[4 + c].v = _mm512_shuffle_f32x4(odd0, odd8, 0x88);
        v[8 + c].v = _mm512_shuffle_f32x4(even0, even8, 0xDD);
        v[12 + c].v = _mm512_shuffle_f32x4(odd0, odd8, 0xDD);
    }
}

#include "kernels/attention_body.h"

/* Lane i: the tree 8-4-2-1 over v[i]. */
ALWAYS_INLINE struct v16 trees16(const __m512 v[16])
{
    __m512 eight[8], four[4], two[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) { /* slots s and s + 4, of which s below 4 and from 8 on */
        const int s = i % 4 + i / 4 * 8;
        eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[s], v[s + 4], 0x44),
                                 _mm512_shuffle_f32x4(v[s], v[s + 4], 0xEE));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) /* slots i, i + 4, i + 8, i + 12 */
        four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(eight[i], eight[i + 4], 0x88),
                                _mm512_shuffle_f32x4(eight[i], eight[i + 4], 0xDD));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        two[i] = _mm512_add_ps(_mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                               _mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0xEE));
    return (struct v16){_mm512_add_ps(_mm512_shuffle_ps(two[0], two[1], 0x88),
                                      _mm512_shuffle_ps(two[0], two[1], 0xDD))};
}

/* q . k of 16 slots. */
ALWAYS_INLINE struct v16 dots16(enum dtype t, const struct tile *tile, const float *q,
                                const size_t slot[16])
{
    __m512 dots[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) dots[i] = _mm512_setzero_ps();
    for (size_t d = 0; d < tile->head_dim; d += LANES) {
        const __m512 qd = _mm512_loadu_ps(q + d);
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            const float scale = t == DTYPE_I8 ? tile->key_scales[slot[i]] : 1.0f;
            const struct v16 k = kv_load16(t, tile->keys, scale, slot[i] * tile->head_dim + d);
            dots[i] = _mm512_fmadd_ps(qd, k.v, dots[i]);
        }
    }
    return trees16(dots);
}

#define ATTENTION_AVX512(name, type)                                                               \
    void k_attention_##name##_avx512(const struct attn_args *a, size_t seq, size_t head,           \
                                     size_t row0, size_t row1)                                     \
    {                                                                                              \
        attention(type, a, seq, head, row0, row1);                                                 \
    }
ATTENTION_AVX512(f32, DTYPE_F32)
ATTENTION_AVX512(f16, DTYPE_F16)
ATTENTION_AVX512(bf16, DTYPE_BF16)
ATTENTION_AVX512(i8, DTYPE_I8)
ATTENTION_AVX512(fp8, DTYPE_F8_E4M3)
