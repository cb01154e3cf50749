/* Attention on AVX-512: computes sixteen scores at a time. Up to four queries share each load
 * of a key. */
#include "kernels/avx512/avx512.h"

#include "kernels/avx512/scales.h"
#include "kernels/avx512/turn.h"

#define TURN_KEYS 1
#define FOLD_FOUR 1

enum { FOLD_ROWS = 4, VALUE_VECTORS = 4 };

struct tile_fold;
struct rows_part;
ALWAYS_INLINE void dots16(enum dtype t, size_t n_rows, const struct tile_fold *f,
                          const size_t slot[16], size_t j);

/* Loads elements [i, i + 16) of the cache as floats. `scale` is used only for int8. */
ALWAYS_INLINE struct v16 kv_load16(enum dtype t, const void *from, float scale, size_t i)
{
    if (t != DTYPE_I8 && t != DTYPE_F8_E4M3) return v16_load(t, from, i);
    const __m128i codes = _mm_loadu_si128((const void *)((const uint8_t *)from + i));
    if (t == DTYPE_F8_E4M3) return (struct v16){v16_e4m3(_mm512_cvtepu8_epi32(codes))};
    const __m512 v = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
    return (struct v16){_mm512_mul_ps(v, _mm512_set1_ps(scale))};
}

/* Transposes 16 x 16 floats: the new v[i] = lane i of each old v. */
ALWAYS_INLINE void v16_turn(struct v16 v[16])
{
    vec from[16], to[16];
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; i++) from[i] = _mm512_castps_si512(v[i].v);
    turn_words(from, to);
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; i++) v[i].v = _mm512_castsi512_ps(to[i]);
}

enum rows_fold { ROWS_MAX, ROWS_ADD };

ALWAYS_INLINE __m512 fold2(enum rows_fold f, __m512 a, __m512 b)
{
    return f == ROWS_MAX ? _mm512_max_ps(a, b) : _mm512_add_ps(a, b);
}

/* to[r] = the maximum, or the sum in the order 8-4-2-1, of the lanes of v[r], for r < 4. */
ALWAYS_INLINE void fold_lanes(enum rows_fold f, const struct v16 *v, float *to)
{
    __m512 eight[2], x;
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        eight[i] = fold2(f, _mm512_shuffle_f32x4(v[2 * i].v, v[2 * i + 1].v, 0x44),
                         _mm512_shuffle_f32x4(v[2 * i].v, v[2 * i + 1].v, 0xEE));
    x = fold2(f, _mm512_shuffle_f32x4(eight[0], eight[1], 0x88),
              _mm512_shuffle_f32x4(eight[0], eight[1], 0xDD));
    x = fold2(f, x, _mm512_permute_ps(x, 0xEE));
    x = fold2(f, x, _mm512_permute_ps(x, 0x55));
    const __m512i heads = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
    _mm_store_ps(to, _mm512_castps512_ps128(_mm512_permutexvar_ps(heads, x)));
}

ALWAYS_INLINE void rows_max(size_t n, const struct v16 *v, float *to)
{
    if (n == 4) fold_lanes(ROWS_MAX, v, to);
    for (size_t r = 0; n < 4 && r < n; r++) to[r] = v16_max_lane(v[r]);
}

ALWAYS_INLINE void rows_tree(size_t n, const struct v16 *v, float *to)
{
    if (n == 4) fold_lanes(ROWS_ADD, v, to);
    for (size_t r = 0; n < 4 && r < n; r++) to[r] = v16_tree(v[r]);
}

ALWAYS_INLINE void fold_four(struct rows_part *part, float *max, float *sum);

#include "kernels/attention_body.h"
#include "kernels/index_body.h"

/* Folds a tile's (m, l) of four rows into their running states max[4] and sum[4]. The tile must not
 * be the first one of any of these rows. */
ALWAYS_INLINE void fold_four(struct rows_part *part, float *max, float *sum)
{
    const __m128 m = _mm_load_ps(part->max), old = _mm_loadu_ps(max), top = _mm_max_ps(m, old);
    const __m256 below =
        _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_sub_ps(old, top)), _mm_sub_ps(m, top), 1);
    const struct v16 factors = v16_exp((struct v16){_mm512_zextps256_ps512(below)});
    const __m128 a = _mm512_castps512_ps128(factors.v), b = _mm512_extractf32x4_ps(factors.v, 1);
    _mm_store_ps(part->a, a);
    _mm_store_ps(part->b, b);
    _mm_storeu_ps(max, top);
    _mm_storeu_ps(sum, _mm_fmadd_ps(_mm_load_ps(part->sum), b, _mm_mul_ps(_mm_loadu_ps(sum), a)));
}

/* Lane i of the result = the sum of v[i]'s lanes by a tree: first lanes that are 8 apart are
 * added, then 4, 2 and 1 apart. */
ALWAYS_INLINE struct v16 trees16(const __m512 v[16])
{
    __m512 eight[8], four[4], two[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) { /* slots s and s + 4, for s = 0 to 3 and 8 to 11 */
        const int s = i % 4 + i / 4 * 8;
        eight[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[s], v[s + 4], 0x44),
                                 _mm512_shuffle_f32x4(v[s], v[s + 4], 0xEE));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) /* slots i, i + 4, i + 8 and i + 12 */
        four[i] = _mm512_add_ps(_mm512_shuffle_f32x4(eight[i], eight[i + 4], 0x88),
                                _mm512_shuffle_f32x4(eight[i], eight[i + 4], 0xDD));
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        two[i] = _mm512_add_ps(_mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                               _mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0xEE));
    return (struct v16){_mm512_add_ps(_mm512_shuffle_ps(two[0], two[1], 0x88),
                                      _mm512_shuffle_ps(two[0], two[1], 0xDD))};
}

/* Returns the dot products of n_rows queries with n_slots slots, query by query. Both numbers are
 * constant, and their product is at most 16. */
ALWAYS_INLINE struct v16 dots(enum dtype t, size_t n_rows, size_t n_slots,
                              const struct tile_fold *f, const size_t *slot)
{
    const struct tile *tile = f->tile;
    __m512 sum[16];
#pragma GCC unroll 16
    for (size_t i = 0; i < 16; i++) sum[i] = _mm512_setzero_ps();
    for (size_t d = 0; d < tile->head_dim; d += LANES) {
        __m512 q[4];
#pragma GCC unroll 4
        for (size_t r = 0; r < n_rows; r++) q[r] = _mm512_loadu_ps(f->rows[r].q + d);
#pragma GCC unroll 16
        for (size_t i = 0; i < n_slots; i++) {
            const float scale = t == DTYPE_I8 ? tile->key_scales[slot[i]] : 1.0f;
            const struct v16 k = kv_load16(t, tile->keys, scale, slot[i] * tile->head_dim + d);
#pragma GCC unroll 4
            for (size_t r = 0; r < n_rows; r++)
                sum[r * n_slots + i] = _mm512_fmadd_ps(q[r], k.v, sum[r * n_slots + i]);
        }
    }
    return trees16(sum);
}

/* e[r][j ..] = the dot products of n_rows (constant) queries with 16 slots, unscaled. */
ALWAYS_INLINE void dots16(enum dtype t, size_t n_rows, const struct tile_fold *f,
                          const size_t slot[16], size_t j)
{
    float(*const e)[KV_BLOCK_TOKENS] = f->e;
    if (n_rows == 1) {
        v16_store(e[0] + j, dots(t, 1, 16, f, slot));
        return;
    }
    if (n_rows == 2) {
#pragma GCC unroll 2
        for (size_t i = 0; i < 16; i += 8) {
            const __m512 v = dots(t, 2, 8, f, slot + i).v;
            _mm256_storeu_ps(e[0] + j + i, _mm512_castps512_ps256(v));
            _mm256_storeu_ps(e[1] + j + i, _mm512_extractf32x8_ps(v, 1));
        }
        return;
    }
    for (size_t i = 0; i < 16; i += 4) {
        const __m512 v = dots(t, n_rows, 4, f, slot + i).v;
        _mm_storeu_ps(e[0] + j + i, _mm512_castps512_ps128(v));
        _mm_storeu_ps(e[1] + j + i, _mm512_extractf32x4_ps(v, 1));
        _mm_storeu_ps(e[2] + j + i, _mm512_extractf32x4_ps(v, 2));
        if (n_rows == 4) _mm_storeu_ps(e[3] + j + i, _mm512_extractf32x4_ps(v, 3));
    }
}

#define ATTENTION_AVX512(name, type)                                                               \
    static void k_attention_##name##_avx512(const struct attn_args *a, const struct attn_slice *s) \
    {                                                                                              \
        attention(type, a, s);                                                                     \
    }
ATTENTION_AVX512(f32, DTYPE_F32)
ATTENTION_AVX512(f16, DTYPE_F16)
ATTENTION_AVX512(bf16, DTYPE_BF16)
ATTENTION_AVX512(i8, DTYPE_I8)
ATTENTION_AVX512(fp8, DTYPE_F8_E4M3)

#define INDEX_AVX512(name, type)                                                                   \
    static void k_index_scores_##name##_avx512(const struct index_args *a,                         \
                                               const struct index_slice *s)                        \
    {                                                                                              \
        index_scores(type, a, s);                                                                  \
    }
INDEX_AVX512(f32, DTYPE_F32)
INDEX_AVX512(f16, DTYPE_F16)
INDEX_AVX512(bf16, DTYPE_BF16)
INDEX_AVX512(i8, DTYPE_I8)
INDEX_AVX512(fp8, DTYPE_F8_E4M3)

static void k_attention_fold_avx512(const struct attn_args *a, const struct attn_slice *s)
{
    for (size_t head = s->head0; head < s->head1; head++) fold_parts(a, s, head);
}

void fill_attention_avx512(struct kern_table *t)
{
    t->attention[DTYPE_F32] = k_attention_f32_avx512;
    t->attention[DTYPE_F16] = k_attention_f16_avx512;
    t->attention[DTYPE_BF16] = k_attention_bf16_avx512;
    t->attention[DTYPE_I8] = k_attention_i8_avx512;
    t->attention[DTYPE_F8_E4M3] = k_attention_fp8_avx512;
    t->attention_fold = k_attention_fold_avx512;
    t->index_scores[DTYPE_F32] = k_index_scores_f32_avx512;
    t->index_scores[DTYPE_F16] = k_index_scores_f16_avx512;
    t->index_scores[DTYPE_BF16] = k_index_scores_bf16_avx512;
    t->index_scores[DTYPE_I8] = k_index_scores_i8_avx512;
    t->index_scores[DTYPE_F8_E4M3] = k_index_scores_fp8_avx512;
}
