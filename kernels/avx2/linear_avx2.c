/* The float linear on AVX2. An accumulator is two registers, which hold a panel's sixteen outputs.
 * A register tile has six accumulators. */
#include "kernels/avx2/avx2.h"

#include "kernels/avx2/vec.h"

enum {
    TILE = 6,            /* accumulators of a register tile: 12 of 16 registers */
    FEW_PANELS = 4,      /* most panels of a tile with few rows */
    MANY_PANELS = 1,     /* panels of a tile with many rows; they share each broadcast input */
    SOME_PANELS = 1,     /* unused: MANY_PANELS leaves no panels over */
    PIECE = 256,         /* inputs of a K-slice: 16 KiB per panel, as f32 */
    SHORT_PIECE = PIECE, /* inputs of a K-slice with 7 to 39 rows */
    BLOCK_ROWS = 256,    /* rows that share a converted K-slice */
    COPY_ROWS = 128,     /* rows that share a converted K-slice if inputs are copied: inputs, chains
                            and sums fill 330 KB of the second-level cache */
    GROUP_TILES = 8,     /* panels that share the rows' copied inputs */
};

/* Loads 16 weights into two registers. For bf16 the even weights go to a and the odd ones to b,
 * because each register then takes one instruction; other types stay in ascending order. */
ALWAYS_INLINE struct v16 load_weights(enum dtype t, const void *data, size_t i)
{
    if (t == DTYPE_BF16) {
        const __m256i h = _mm256_loadu_si256((const void *)((const uint16_t *)data + i));
        const __m256i odd = _mm256_set1_epi32((int)0xFFFF0000u);
        return (struct v16){_mm256_castsi256_ps(_mm256_slli_epi32(h, 16)),
                            _mm256_castsi256_ps(_mm256_and_si256(h, odd))};
    }
    return (struct v16){v8_load(t, data, i), v8_load(t, data, i + 8)};
}

/* Puts outputs back into ascending order. */
ALWAYS_INLINE struct v16 ascending(enum dtype t, struct v16 v)
{
    if (t != DTYPE_BF16) return v;
    const __m256 lo = _mm256_unpacklo_ps(v.a, v.b), hi = _mm256_unpackhi_ps(v.a, v.b);
    return (struct v16){_mm256_permute2f128_ps(lo, hi, 0x20), _mm256_permute2f128_ps(lo, hi, 0x31)};
}

ALWAYS_INLINE void store_outputs(enum dtype t, struct v16 v, size_t n, float *y)
{
    v = ascending(t, v);
    if (n >= PANEL_COLUMNS) {
        _mm256_storeu_ps(y, v.a);
        _mm256_storeu_ps(y + 8, v.b);
        return;
    }
    _mm256_maskstore_ps(y, v8_first(n), v.a);
    if (n > 8) _mm256_maskstore_ps(y + 8, v8_first(n - 8), v.b);
}

/* Returns acc + x * w in each lane. */
ALWAYS_INLINE struct v16 v16_fma(float x, struct v16 w, struct v16 acc)
{
    const __m256 xk = _mm256_set1_ps(x);
    return (struct v16){_mm256_fmadd_ps(xk, w.a, acc.a), _mm256_fmadd_ps(xk, w.b, acc.b)};
}

ALWAYS_INLINE void v16_store_aligned(float *y, struct v16 v)
{
    _mm256_store_ps(y, v.a);
    _mm256_store_ps(y + 8, v.b);
}

/* Constants of the integer grid. Adding `magic` to a double p leaves llrint(p * 2^g) in the
 * difference of the bits: bits(p + magic) - bits(magic). store_sums and store_rounded subtract
 * once for all leaves (K-blocks). */
struct grid {
    __m256 limit;
    __m256d magic, unit;
};

/* Sixteen integer sums, in the order in which load_weights puts the outputs. */
struct sums16 {
    __m256i s[4];
};

static struct grid grid_of(const struct packed *w)
{
    const int g = (int)w->grid_bits;
    return (struct grid){_mm256_set1_ps(kern_grid_limit(w->grid_bits)),
                         _mm256_set1_pd(1.5 * kern_pow2(52 - g)), _mm256_set1_pd(kern_pow2(-g))};
}

ALWAYS_INLINE __m256i add_four(__m256i sum, __m128 p, __m256d magic)
{
    const __m256d shifted = _mm256_add_pd(_mm256_cvtps_pd(p), magic);
    return _mm256_add_epi64(sum, _mm256_castpd_si256(shifted));
}

/* Adds a leaf's partial sums. Returns a bit for each lane whose partial sum does not fit the grid;
 * that partial sum counts as 0. */
ALWAYS_INLINE unsigned grid_add(const struct grid *g, struct v16 p, struct sums16 *sums)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 fits_a = _mm256_cmp_ps(_mm256_andnot_ps(sign, p.a), g->limit, _CMP_LT_OQ);
    const __m256 fits_b = _mm256_cmp_ps(_mm256_andnot_ps(sign, p.b), g->limit, _CMP_LT_OQ);
    p.a = _mm256_and_ps(p.a, fits_a);
    p.b = _mm256_and_ps(p.b, fits_b);
    sums->s[0] = add_four(sums->s[0], _mm256_castps256_ps128(p.a), g->magic);
    sums->s[1] = add_four(sums->s[1], _mm256_extractf128_ps(p.a, 1), g->magic);
    sums->s[2] = add_four(sums->s[2], _mm256_castps256_ps128(p.b), g->magic);
    sums->s[3] = add_four(sums->s[3], _mm256_extractf128_ps(p.b, 1), g->magic);
    const int fits = _mm256_movemask_ps(fits_a) | _mm256_movemask_ps(fits_b) << 8;
    return 0xFFFFu ^ (unsigned)fits;
}

/* Returns a bit for each lane that holds one of the n outputs of a panel; the other lanes are
 * padding. */
ALWAYS_INLINE unsigned output_lanes(enum dtype t, size_t n)
{
    if (n >= PANEL_COLUMNS) return 0xFFFFu;
    if (t != DTYPE_BF16) return (1u << n) - 1;
    return ((1u << (n + 1) / 2) - 1) | ((1u << n / 2) - 1) << 8;
}

ALWAYS_INLINE void store_sums(enum dtype t, const struct sums16 *sums, const struct grid *g,
                              size_t n_leaves, size_t n, int64_t *out)
{
    const __m256i one = _mm256_castpd_si256(g->magic);
    const int64_t magic = _mm256_extract_epi64(one, 0);
    const __m256i all = _mm256_set1_epi64x((int64_t)((uint64_t)magic * n_leaves));
    int64_t v[PANEL_COLUMNS] __attribute__((aligned(32)));
    for (size_t i = 0; i < 4; i++)
        _mm256_store_si256((__m256i *)v + i, _mm256_sub_epi64(sums->s[i], all));
    const size_t n_stored = n < PANEL_COLUMNS ? n : PANEL_COLUMNS;
    for (size_t i = 0; i < n_stored; i++) out[i] = t == DTYPE_BF16 ? v[i / 2 + i % 2 * 8] : v[i];
}

/* Returns four sums as f32. */
ALWAYS_INLINE __m128 round_four(__m256i sums, __m256i all, const struct grid *g)
{
    const __m256d v = double_from_int64(_mm256_sub_epi64(sums, all));
    return _mm256_cvtpd_ps(_mm256_mul_pd(v, g->unit));
}

/* Stores the sums as f32. */
ALWAYS_INLINE void store_rounded(enum dtype t, const struct sums16 *sums, const struct grid *g,
                                 size_t n_leaves, size_t n, float *y)
{
    const int64_t magic = _mm256_extract_epi64(_mm256_castpd_si256(g->magic), 0);
    const __m256i all = _mm256_set1_epi64x((int64_t)((uint64_t)magic * n_leaves));
    __m128 v[4];
    for (size_t i = 0; i < 4; i++) v[i] = round_four(sums->s[i], all, g);
    const struct v16 values = {_mm256_set_m128(v[1], v[0]), _mm256_set_m128(v[3], v[2])};
    store_outputs(t, values, n, y);
}

#include "kernels/avx2/dequantize.h"
#include "kernels/avx2/fp8.h"
#include "kernels/linear_body.h"

#define LINEAR_AVX2(name, type)                                                                    \
    static void k_linear_##name##_avx2(const struct linear_args *a, const struct linear_slice *s)  \
    {                                                                                              \
        linear(type, false, false, a, s);                                                          \
    }                                                                                              \
    static void k_linear_leaf_##name##_avx2(const struct linear_args *a,                           \
                                            const struct linear_slice *s)                          \
    {                                                                                              \
        linear(type, false, true, a, s);                                                           \
    }
LINEAR_AVX2(f32, DTYPE_F32)
LINEAR_AVX2(f16, DTYPE_F16)
LINEAR_AVX2(bf16, DTYPE_BF16)
LINEAR_AVX2(fp8, DTYPE_F8_E4M3)

/* Linears with int8, int4 and mxfp4 weights, converted to floats; the arithmetic is that of f32
 * weights. */
void k_linear_dequant_avx2(const struct linear_args *a, const struct linear_slice *s)
{
    linear(DTYPE_F32, true, false, a, s);
}

void k_linear_leaf_dequant_avx2(const struct linear_args *a, const struct linear_slice *s)
{
    linear(DTYPE_F32, true, true, a, s);
}

void fill_linear_avx2(struct kern_table *t)
{
    t->linear[DTYPE_F32] = k_linear_f32_avx2;
    t->linear[DTYPE_F16] = k_linear_f16_avx2;
    t->linear[DTYPE_BF16] = k_linear_bf16_avx2;
    t->linear_leaf[DTYPE_F32] = k_linear_leaf_f32_avx2;
    t->linear_leaf[DTYPE_F16] = k_linear_leaf_f16_avx2;
    t->linear_leaf[DTYPE_BF16] = k_linear_leaf_bf16_avx2;
    t->linear_quant[QUANT_FP8] = k_linear_fp8_avx2;
    t->linear_quant_leaf[QUANT_FP8] = k_linear_leaf_fp8_avx2;
}
