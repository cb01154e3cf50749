/* Linears with quantized weights and int8 activations on AVX2. Codes of a whole byte are multiplied
 * as 16 bits (a pair of them at 8 bits would saturate); codes of at most 24 as bytes, four products
 * of two summed in 16 bits. What the unsigned codes are too large by is in the sums' start. */
#include "kernels/avx2/avx2.h"

#include "kernels/avx2/scales.h"

enum { SET_TILE_ROWS = 4 };

#include "kernels/linear_quant_body.h"

enum {
    HALVES = 2, /* of a panel's 16 outputs in registers */
    STEP = 4,   /* quads summed in 16 bits: 4 * 2 * 24 * 127 < 2^15 */
};

/* The doubled E2M1 numbers, each with its bias of 12. */
ALWAYS_INLINE __m256i mxfp4_bytes(__m256i nibbles)
{
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles);
}

/* Of half a nibble vector: inputs 8i .. 8i + 3 (odd 0) or 8i + 4 .. 8i + 7 (odd 1) as bytes. */
ALWAYS_INLINE __m256i bytes_of(enum quant_source source, __m256i both, size_t odd)
{
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i v = _mm256_and_si256(odd ? _mm256_srli_epi16(both, 4) : both, low);
    return source == SOURCE_MXFP4 ? mxfp4_bytes(v) : v;
}

ALWAYS_INLINE __m256i load_half(const uint8_t *line, size_t half)
{
    return _mm256_loadu_si256((const void *)(line + half * QUANT_LINE / HALVES));
}

/* Quad i of a group: 4 inputs of 8 outputs. */
ALWAYS_INLINE __m256i load_quad(enum quant_source source, const uint8_t *w, size_t i, size_t half)
{
    if (source == SOURCE_BYTES || source == SOURCE_SMALL)
        return load_half(w + i * QUANT_LINE, half);
    return bytes_of(source, load_half(w + i / 2 * QUANT_LINE, half), i % 2);
}

ALWAYS_INLINE __m256i broadcast_quad(const int8_t *x)
{
    int32_t v;
    memcpy(&v, x, sizeof v);
    return _mm256_set1_epi32(v);
}

/* sum[row][half] += STEP quads of codes of a whole byte: even inputs, then odd ones, in 16 bits. */
ALWAYS_INLINE void add_wide(size_t n_rows, const int8_t *x, size_t x_stride, const uint8_t *w,
                            __m256i (*sum)[HALVES])
{
    const __m256i low = _mm256_set1_epi16(255);
#pragma GCC unroll 4
    for (size_t k = 0; k < STEP; k++) {
        __m256i even[HALVES], odd[HALVES];
#pragma GCC unroll 2
        for (size_t h = 0; h < HALVES; h++) {
            const __m256i v = load_quad(SOURCE_BYTES, w, k, h);
            even[h] = _mm256_and_si256(v, low);
            odd[h] = _mm256_srli_epi16(v, 8);
        }
#pragma GCC unroll 4
        for (size_t r = 0; r < n_rows; r++) {
            const __m256i v = broadcast_quad(x + r * x_stride + k * QUANT_QUAD);
            const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
            const __m256i x_odd = _mm256_srai_epi16(v, 8);
#pragma GCC unroll 2
            for (size_t h = 0; h < HALVES; h++) {
                sum[r][h] = _mm256_add_epi32(sum[r][h], _mm256_madd_epi16(even[h], x_even));
                sum[r][h] = _mm256_add_epi32(sum[r][h], _mm256_madd_epi16(odd[h], x_odd));
            }
        }
    }
}

/* sum[row][half] += STEP quads of codes of at most 24. */
ALWAYS_INLINE void add_small(enum quant_source source, size_t n_rows, const int8_t *x,
                             size_t x_stride, const uint8_t *w, __m256i (*sum)[HALVES])
{
    __m256i part[SET_TILE_ROWS][HALVES];
#pragma GCC unroll 4
    for (size_t k = 0; k < STEP; k++) {
        __m256i wk[HALVES];
#pragma GCC unroll 2
        for (size_t h = 0; h < HALVES; h++) wk[h] = load_quad(source, w, k, h);
#pragma GCC unroll 4
        for (size_t r = 0; r < n_rows; r++) {
            const __m256i xk = broadcast_quad(x + r * x_stride + k * QUANT_QUAD);
#pragma GCC unroll 2
            for (size_t h = 0; h < HALVES; h++) {
                const __m256i v = _mm256_maddubs_epi16(wk[h], xk);
                part[r][h] = k == 0 ? v : _mm256_add_epi16(part[r][h], v);
            }
        }
    }
#pragma GCC unroll 4
    for (size_t r = 0; r < n_rows; r++) {
#pragma GCC unroll 2
        for (size_t h = 0; h < HALVES; h++) {
            const __m256i pairs = _mm256_madd_epi16(part[r][h], _mm256_set1_epi16(1));
            sum[r][h] = _mm256_add_epi32(sum[r][h], pairs);
        }
    }
}

/* Where the sums of group g of panel p begin. */
ALWAYS_INLINE void start_sums(size_t n_rows, const struct quant_tile *t, size_t g, size_t p,
                              __m256i (*sum)[HALVES])
{
#pragma GCC unroll 4
    for (size_t r = 0; r < n_rows; r++) {
        const __m256i start = _mm256_set1_epi32(t->start[r * t->start_stride + g]);
#pragma GCC unroll 2
        for (size_t h = 0; h < HALVES; h++) {
            sum[r][h] = start;
            if (!t->has_zeros) continue;
            const __m256i zeros = _mm256_load_si256((const void *)(t->zeros[p][g] + 8 * h));
            sum[r][h] = _mm256_madd_epi16(zeros, start);
        }
    }
}

/* The chains of panel p, one step on: group g's sums times their scales. */
ALWAYS_INLINE void end_sums(size_t n_rows, const struct quant_tile *t, size_t g, size_t p,
                            __m256i (*sum)[HALVES], float (*acc)[QUANT_PANELS][PANEL_COLUMNS])
{
#pragma GCC unroll 4
    for (size_t r = 0; r < n_rows; r++) {
        const __m256 x_scale = _mm256_set1_ps(t->x_scales[r * t->q_stride + g]);
#pragma GCC unroll 2
        for (size_t h = 0; h < HALVES; h++) {
            float *at = acc[r][p] + 8 * h;
            const __m256 scale = _mm256_mul_ps(_mm256_load_ps(t->scales[p][g] + 8 * h), x_scale);
            const __m256 s = _mm256_cvtepi32_ps(sum[r][h]);
            _mm256_store_ps(at, _mm256_fmadd_ps(s, scale, _mm256_load_ps(at)));
        }
    }
}

/* All of one tile; source and n_rows are constant. */
ALWAYS_INLINE void tile(enum quant_source source, size_t n_rows, const struct quant_tile *t,
                        float (*acc)[QUANT_PANELS][PANEL_COLUMNS])
{
    const bool is_nibbles = source == SOURCE_INT4 || source == SOURCE_MXFP4;
    const size_t quad_bytes = is_nibbles ? QUANT_LINE / 2 : QUANT_LINE;
    const size_t n_quads = t->group / QUANT_QUAD;
    for (size_t g = 0; g < t->n_groups; g++) {
        const int8_t *x = t->x + g * t->group;
        for (size_t p = 0; p < t->n_panels; p++) {
            const uint8_t *w = t->w + p * t->w_stride + g * n_quads * quad_bytes;
            const uint8_t *next = t->ahead + p * t->ahead_stride + g * t->ahead_step;
            __m256i sum[SET_TILE_ROWS][HALVES];
            for (size_t i = 0; i < t->ahead_step; i += QUANT_LINE)
                _mm_prefetch(next + i, _MM_HINT_T0);
            start_sums(n_rows, t, g, p, sum);
            for (size_t q = 0; q < n_quads; q += STEP) {
                const uint8_t *at = w + q * quad_bytes;
                if (source == SOURCE_BYTES)
                    add_wide(n_rows, x + q * QUANT_QUAD, t->x_stride, at, sum);
                else
                    add_small(source, n_rows, x + q * QUANT_QUAD, t->x_stride, at, sum);
            }
            end_sums(n_rows, t, g, p, sum, acc);
        }
    }
}

#define TILES(name, source)                                                                        \
    static void tiles_##name(const struct quant_tile *t, float(*acc)[QUANT_PANELS][PANEL_COLUMNS]) \
    {                                                                                              \
        if (t->n_rows == 1)                                                                        \
            tile(source, 1, t, acc);                                                               \
        else if (t->n_rows == 2)                                                                   \
            tile(source, 2, t, acc);                                                               \
        else if (t->n_rows == 3)                                                                   \
            tile(source, 3, t, acc);                                                               \
        else                                                                                       \
            tile(source, 4, t, acc);                                                               \
    }
TILES(bytes, SOURCE_BYTES)
TILES(small, SOURCE_SMALL)
TILES(int4, SOURCE_INT4)
TILES(mxfp4, SOURCE_MXFP4)

static void set_tile(const struct quant_tile *t, float (*acc)[QUANT_PANELS][PANEL_COLUMNS])
{
    static void (*const tiles[])(const struct quant_tile *,
                                 float(*)[QUANT_PANELS][PANEL_COLUMNS]) = {
        [SOURCE_BYTES] = tiles_bytes,
        [SOURCE_SMALL] = tiles_small,
        [SOURCE_INT4] = tiles_int4,
        [SOURCE_MXFP4] = tiles_mxfp4};
    tiles[t->source](t, acc);
}

/* One row and panel; all constant but t. */
ALWAYS_INLINE void row(enum quant_source source, bool has_zeros, int32_t bias,
                       const struct quant_row *t, float *out)
{
    const size_t quad_bytes = source == SOURCE_BYTES ? QUANT_LINE : QUANT_LINE / 2;
    const int8_t *x = t->x;
    const uint8_t *w = t->w;
    const char *next = t->scales_ahead;
    __m256 acc[HALVES] = {_mm256_load_ps(out), _mm256_load_ps(out + 8)};
    for (size_t g = 0; g < t->n_groups; g++, next += t->scales_step) {
        const size_t at = t->scale + g * PANEL_COLUMNS;
        __m256i sum[1][HALVES];
#pragma GCC unroll 2
        for (size_t h = 0; h < HALVES; h++) {
            sum[0][h] = _mm256_set1_epi32(t->sums[g] * -bias);
            if (!has_zeros) continue;
            const __m256i zeros =
                _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(t->zeros + at + 8 * h)));
            sum[0][h] = _mm256_madd_epi16(zeros, _mm256_set1_epi32(-t->sums[g]));
        }
        for (size_t q = 0; q < t->group / QUANT_QUAD; q += STEP) {
            for (size_t i = 0; i < STEP * quad_bytes; i += QUANT_LINE)
                _mm_prefetch(w + i + QUANT_ROW_AHEAD, _MM_HINT_T0);
            if (source == SOURCE_BYTES)
                add_wide(1, x, 0, w, sum);
            else
                add_small(source, 1, x, 0, w, sum);
            x += STEP * QUANT_QUAD;
            w += STEP * quad_bytes;
        }
        _mm_prefetch(next, _MM_HINT_T0);
#pragma GCC unroll 2
        for (size_t h = 0; h < HALVES; h++) {
            const __m256 scale = _mm256_mul_ps(v8_scales(t->format, t->scales, at + 8 * h),
                                               _mm256_set1_ps(t->x_scales[g]));
            acc[h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[0][h]), scale, acc[h]);
        }
    }
    _mm256_store_ps(out, acc[0]);
    _mm256_store_ps(out + 8, acc[1]);
}

static void set_row(const struct quant_row *t, float *acc)
{
    if (t->source == SOURCE_MXFP4)
        row(SOURCE_MXFP4, false, QUANT_MXFP4_BIAS, t, acc);
    else if (t->source == SOURCE_INT4 && t->format.has_zeros)
        row(SOURCE_INT4, true, 0, t, acc);
    else if (t->source == SOURCE_INT4)
        row(SOURCE_INT4, false, QUANT_INT4_ZERO, t, acc);
    else if (t->format.has_zeros)
        row(SOURCE_BYTES, true, 0, t, acc);
    else
        row(SOURCE_BYTES, false, QUANT_INT8_BIAS, t, acc);
}

static void set_unpack(enum quant_source source, const uint8_t *in, size_t n_vectors, uint8_t *out)
{
    for (size_t i = 0; i < n_vectors; i++, in += QUANT_LINE, out += 2 * QUANT_LINE) {
        for (size_t h = 0; h < HALVES; h++) {
            const __m256i both = load_half(in, h);
            uint8_t *at = out + h * QUANT_LINE / HALVES;
            for (size_t odd = 0; odd < 2; odd++)
                _mm256_store_si256((void *)(at + odd * QUANT_LINE), bytes_of(source, both, odd));
        }
    }
}

static void set_scales(struct quant_format f, const void *in, size_t i, size_t n, float *out)
{
    for (size_t end = i + n; i < end; i += 8, out += 8) _mm256_store_ps(out, v8_scales(f, in, i));
}

static void set_zeros(const uint8_t *in, size_t n, int32_t *out)
{
    for (size_t i = 0; i < n; i += 8) {
        const __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(in + i)));
        _mm256_store_si256((void *)(out + i), _mm256_sub_epi16(_mm256_setzero_si256(), v));
    }
}

static void set_starts(const int32_t *sums, size_t n, int32_t factor, int32_t *out)
{
    for (size_t i = 0; i < n; i++) out[i] = sums[i] * factor;
}

static unsigned set_grid_add(const float *p, uint32_t grid_bits, int64_t *sums)
{
    const __m256d magic = _mm256_set1_pd(1.5 * kern_pow2(52 - (int)grid_bits));
    const __m256 limit = _mm256_set1_ps(kern_grid_limit(grid_bits));
    unsigned fits = 0;
    for (size_t h = 0; h < HALVES; h++) {
        const __m256 v = _mm256_load_ps(p + 8 * h);
        const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
        const __m256 kept = _mm256_cmp_ps(size, limit, _CMP_LT_OQ);
        float four[8] __attribute__((aligned(32)));
        _mm256_store_ps(four, _mm256_and_ps(v, kept));
        fits |= (unsigned)_mm256_movemask_ps(kept) << 8 * h;
        for (size_t i = 0; i < 8; i += 4) {
            __m256i *at = (void *)(sums + 8 * h + i);
            const __m256d shifted = _mm256_add_pd(_mm256_cvtps_pd(_mm_load_ps(four + i)), magic);
            const __m256i units =
                _mm256_sub_epi64(_mm256_castpd_si256(shifted), _mm256_castpd_si256(magic));
            _mm256_store_si256(at, _mm256_add_epi64(_mm256_load_si256(at), units));
        }
    }
    return 0xFFFFu ^ fits;
}

void k_linear_quant_avx2(const struct linear_args *a, size_t group, size_t panel0, size_t panel1,
                         size_t row0, size_t row1)
{
    if (a->xq == NULL)
        k_linear_dequant_avx2(a, group, panel0, panel1, row0, row1);
    else
        quant_linear(false, a, group, panel0, panel1, row0, row1);
}

void k_linear_quant_leaf_avx2(const struct linear_args *a, size_t group, size_t panel0,
                              size_t panel1, size_t row0, size_t row1)
{
    if (a->xq == NULL)
        k_linear_leaf_dequant_avx2(a, group, panel0, panel1, row0, row1);
    else
        quant_linear(true, a, group, panel0, panel1, row0, row1);
}
