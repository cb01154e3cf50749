/* The float linear on AVX-512. An accumulator is one register, which holds a panel's sixteen
 * outputs; a register tile has 24 accumulators. */
#include "kernels/avx512/avx512.h"

#include "kernels/avx512/vec.h"

enum {
    TILE = 24,        /* accumulators of a register tile; there are 32 registers */
    FEW_PANELS = 4,   /* most panels of a tile with few rows */
    MANY_PANELS = 4,  /* panels of a tile with many rows; they share each broadcast input */
    SOME_PANELS = 2,  /* panels of a tile when fewer than MANY_PANELS are left */
    PIECE = 128,      /* inputs of a K-slice: 8 KiB per panel, as f32 */
    SHORT_PIECE = 64, /* with 7 to 39 rows, whose few tiles must fetch all of the next K-slice */
    BLOCK_ROWS = 256, /* rows that share a converted K-slice */
    COPY_ROWS = 1,
    GROUP_TILES = 1, /* the rows' inputs are not copied */
};

ALWAYS_INLINE struct v16 load_weights(enum dtype t, const void *data, size_t i)
{
    return v16_load(t, data, i);
}

/* Returns acc + x * w in each lane. */
ALWAYS_INLINE struct v16 v16_fma(float x, struct v16 w, struct v16 acc)
{
    return (struct v16){_mm512_fmadd_ps(_mm512_set1_ps(x), w.v, acc.v)};
}

ALWAYS_INLINE void v16_store_aligned(float *y, struct v16 v)
{
    _mm512_store_ps(y, v.v);
}

/* Returns a bit for each lane that holds one of the n outputs of a panel; the other lanes are
 * padding. */
ALWAYS_INLINE unsigned output_lanes(enum dtype t, size_t n)
{
    (void)t;
    return v16_first(n);
}

ALWAYS_INLINE void store_outputs(enum dtype t, struct v16 v, size_t n, float *y)
{
    (void)t;
    _mm512_mask_storeu_ps(y, v16_first(n), v.v);
}

/* Constants of the integer grid. Adding `magic` to a double p leaves llrint(p * 2^g) in the
 * difference of the bits: bits(p + magic) - bits(magic). store_sums and store_rounded subtract
 * once for all leaves (K-blocks). */
struct grid {
    __m512 limit;
    __m512d magic, unit;
};

/* Sixteen integer sums. */
struct sums16 {
    __m512i s[2];
};

static struct grid grid_of(const struct packed *w)
{
    const int g = (int)w->grid_bits;
    return (struct grid){_mm512_set1_ps(kern_grid_limit(w->grid_bits)),
                         _mm512_set1_pd(1.5 * kern_pow2(52 - g)), _mm512_set1_pd(kern_pow2(-g))};
}

ALWAYS_INLINE __m512i add_eight(__m512i sum, __m256 p, __m512d magic)
{
    const __m512d shifted = _mm512_add_pd(_mm512_cvtps_pd(p), magic);
    return _mm512_add_epi64(sum, _mm512_castpd_si512(shifted));
}

/* Adds a leaf's partial sums. Returns a bit for each lane whose partial sum does not fit the grid;
 * that partial sum counts as 0. */
ALWAYS_INLINE unsigned grid_add(const struct grid *g, struct v16 p, struct sums16 *sums)
{
    const __mmask16 fits = _mm512_cmp_ps_mask(_mm512_abs_ps(p.v), g->limit, _CMP_LT_OQ);
    const __m512 v = _mm512_maskz_mov_ps(fits, p.v);
    sums->s[0] = add_eight(sums->s[0], _mm512_castps512_ps256(v), g->magic);
    sums->s[1] = add_eight(sums->s[1], _mm512_extractf32x8_ps(v, 1), g->magic);
    return 0xFFFFu ^ (unsigned)fits;
}

ALWAYS_INLINE void store_sums(enum dtype t, const struct sums16 *sums, const struct grid *g,
                              size_t n_leaves, size_t n, int64_t *out)
{
    (void)t;
    const __m512i all =
        _mm512_mullo_epi64(_mm512_castpd_si512(g->magic), _mm512_set1_epi64((int64_t)n_leaves));
    const __mmask16 lanes = v16_first(n);
    _mm512_mask_storeu_epi64(out, (__mmask8)lanes, _mm512_sub_epi64(sums->s[0], all));
    _mm512_mask_storeu_epi64(out + 8, (__mmask8)(lanes >> 8), _mm512_sub_epi64(sums->s[1], all));
}

/* Stores the sums as f32. */
ALWAYS_INLINE void store_rounded(enum dtype t, const struct sums16 *sums, const struct grid *g,
                                 size_t n_leaves, size_t n, float *y)
{
    const __m512i all =
        _mm512_mullo_epi64(_mm512_castpd_si512(g->magic), _mm512_set1_epi64((int64_t)n_leaves));
    const __m512d a = _mm512_cvtepi64_pd(_mm512_sub_epi64(sums->s[0], all));
    const __m512d b = _mm512_cvtepi64_pd(_mm512_sub_epi64(sums->s[1], all));
    const __m256 low = _mm512_cvtpd_ps(_mm512_mul_pd(a, g->unit));
    const __m256 high = _mm512_cvtpd_ps(_mm512_mul_pd(b, g->unit));
    store_outputs(t, (struct v16){_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1)}, n, y);
}

#include "kernels/avx512/dequantize.h"
#include "kernels/avx512/fp8.h"
#include "kernels/linear_body.h"

#define LINEAR_AVX512(name, type)                                                                  \
    static void k_linear_##name##_avx512(const struct linear_args *a,                              \
                                         const struct linear_slice *s)                             \
    {                                                                                              \
        linear(type, false, false, a, s);                                                          \
    }                                                                                              \
    static void k_linear_leaf_##name##_avx512(const struct linear_args *a,                         \
                                              const struct linear_slice *s)                        \
    {                                                                                              \
        linear(type, false, true, a, s);                                                           \
    }
LINEAR_AVX512(f32, DTYPE_F32)
LINEAR_AVX512(f16, DTYPE_F16)
LINEAR_AVX512(bf16, DTYPE_BF16)
LINEAR_AVX512(fp8, DTYPE_F8_E4M3)

/* Linears with int8, int4 and mxfp4 weights, converted to floats; the arithmetic is that of f32
 * weights. */
void k_linear_dequant_avx512(const struct linear_args *a, const struct linear_slice *s)
{
    linear(DTYPE_F32, true, false, a, s);
}

void k_linear_leaf_dequant_avx512(const struct linear_args *a, const struct linear_slice *s)
{
    linear(DTYPE_F32, true, true, a, s);
}

void fill_linear_avx512(struct kern_table *t)
{
    t->linear[DTYPE_F32] = k_linear_f32_avx512;
    t->linear[DTYPE_F16] = k_linear_f16_avx512;
    t->linear[DTYPE_BF16] = k_linear_bf16_avx512;
    t->linear_leaf[DTYPE_F32] = k_linear_leaf_f32_avx512;
    t->linear_leaf[DTYPE_F16] = k_linear_leaf_f16_avx512;
    t->linear_leaf[DTYPE_BF16] = k_linear_leaf_bf16_avx512;
    t->linear_quant[QUANT_FP8] = k_linear_fp8_avx512;
    t->linear_quant_leaf[QUANT_FP8] = k_linear_leaf_fp8_avx512;
}
