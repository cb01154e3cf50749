/* Linears with quantized weights and int8 activations on AVX-512 VNNI: weights are the unsigned
 * operand of dpbusd, four inputs of 16 outputs in a register; four activation codes of a row are
 * broadcast. What the unsigned codes are too large by is in the sums' start. */
#include "kernels/avx512/avx512.h"

#include "kernels/avx512/scales.h"

enum { SET_TILE_ROWS = 6, SET_BYTES_ROWS = 6 };

#include "kernels/linear_quant_body.h"

/* The doubled E2M1 numbers, each with its bias of 12. */
ALWAYS_INLINE __m512i mxfp4_bytes(__m512i nibbles)
{
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), nibbles);
}

/* Inputs 8i .. 8i + 3 (half 0) or 8i + 4 .. 8i + 7 (half 1) of nibble vector i as bytes. */
ALWAYS_INLINE __m512i bytes_of(enum quant_source source, __m512i both, int half)
{
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i v = _mm512_and_si512(half ? _mm512_srli_epi16(both, 4) : both, low);
    return source == SOURCE_MXFP4 ? mxfp4_bytes(v) : v;
}

/* Quad i of a group: 4 inputs of 16 outputs. */
ALWAYS_INLINE __m512i load_quad(enum quant_source source, const uint8_t *w, size_t i)
{
    if (source == SOURCE_BYTES) return _mm512_loadu_si512(w + i * QUANT_LINE);
    return bytes_of(source, _mm512_loadu_si512(w + i / 2 * QUANT_LINE), (int)(i % 2));
}

ALWAYS_INLINE __m512i broadcast_quad(const int8_t *x)
{
    int32_t v;
    memcpy(&v, x, sizeof v);
    return _mm512_set1_epi32(v);
}

/* All constant but t: n_rows * n_panels chains, each summed in n_split parts inside a group (exact
 * integers, so the parts do not show). */
ALWAYS_INLINE void tile(enum quant_source source, bool has_zeros, size_t n_rows, size_t n_panels,
                        size_t n_split, const struct quant_tile *t,
                        float (*out)[QUANT_PANELS][PANEL_COLUMNS])
{
    enum { MOST = SET_TILE_ROWS * QUANT_PANELS, UNROLL = QUANT_CODE_ALIGN / QUANT_QUAD };
    const size_t n_quads = t->group / QUANT_QUAD;
    const size_t quad_bytes = QUANT_LINE / (source == SOURCE_BYTES ? 1 : 2);
    const int8_t *x = t->x;
    const uint8_t *w = t->w, *next = t->ahead;
    __m512 acc[MOST];
#pragma GCC unroll 12
    for (size_t i = 0; i < n_rows * n_panels; i++)
        acc[i] = _mm512_load_ps(out[i / n_panels][i % n_panels]);
    for (size_t g = 0; g < t->n_groups; g++, next += t->ahead_step) {
        for (size_t i = 0; i < t->ahead_step; i += QUANT_LINE) {
#pragma GCC unroll 2
            for (size_t p = 0; p < n_panels; p++)
                _mm_prefetch(next + p * t->ahead_stride + i, _MM_HINT_T0);
        }
#pragma GCC unroll 6
        for (size_t r = 0; r < n_rows;
             r++) /* of the next tile, which are in no first-level cache */
            _mm_prefetch(x + (n_rows + r) * t->x_stride, _MM_HINT_T0);
        __m512i sum[MOST];
#pragma GCC unroll 12
        for (size_t i = 0; i < n_rows * n_panels; i++) {
            const size_t r = i / n_panels;
            const __m512i start = _mm512_set1_epi32(t->start[r * t->start_stride + g]);
            sum[i * n_split] = start;
            if (has_zeros)
                sum[i * n_split] =
                    _mm512_madd_epi16(_mm512_load_si512(t->zeros[i % n_panels][g]), start);
#pragma GCC unroll 4
            for (size_t k = 1; k < n_split; k++) sum[i * n_split + k] = _mm512_setzero_si512();
        }
        for (size_t q = 0; q < n_quads; q += UNROLL) {
#pragma GCC unroll 8
            for (size_t k = 0; k < UNROLL; k++) {
                __m512i wk[QUANT_PANELS];
#pragma GCC unroll 2
                for (size_t p = 0; p < n_panels; p++)
                    wk[p] = load_quad(source, w + p * t->w_stride, k);
#pragma GCC unroll 6
                for (size_t r = 0; r < n_rows; r++) {
                    const __m512i xk = broadcast_quad(x + r * t->x_stride + k * QUANT_QUAD);
#pragma GCC unroll 2
                    for (size_t p = 0; p < n_panels; p++) {
                        __m512i *s = &sum[(r * n_panels + p) * n_split + k % n_split];
                        *s = _mm512_dpbusd_epi32(*s, wk[p], xk);
                    }
                }
            }
            x += UNROLL * QUANT_QUAD;
            w += UNROLL * quad_bytes;
        }
#pragma GCC unroll 12
        for (size_t i = 0; i < n_rows * n_panels; i++) {
            const size_t r = i / n_panels;
            __m512i *s = sum + i * n_split;
            if (n_split == 4) s[0] = _mm512_add_epi32(s[0], s[2]);
            if (n_split == 4) s[1] = _mm512_add_epi32(s[1], s[3]);
            if (n_split >= 2) s[0] = _mm512_add_epi32(s[0], s[1]);
            const __m512 scale = _mm512_mul_ps(_mm512_load_ps(t->scales[i % n_panels][g]),
                                               _mm512_set1_ps(t->x_scales[r * t->q_stride + g]));
            acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s[0]), scale, acc[i]);
        }
    }
#pragma GCC unroll 12
    for (size_t i = 0; i < n_rows * n_panels; i++)
        _mm512_store_ps(out[i / n_panels][i % n_panels], acc[i]);
}

/* Chains side by side: at least eight where the rows alone are too few. */
ALWAYS_INLINE void tile_rows(enum quant_source source, bool has_zeros, size_t n_panels,
                             const struct quant_tile *t, float (*out)[QUANT_PANELS][PANEL_COLUMNS])
{
    switch (t->n_rows) {
    case 1:
        tile(source, has_zeros, 1, n_panels, 4, t, out);
        break;
    case 2:
        tile(source, has_zeros, 2, n_panels, 2, t, out);
        break;
    case 3:
        tile(source, has_zeros, 3, n_panels, 2, t, out);
        break;
    case 4:
        tile(source, has_zeros, 4, n_panels, 1, t, out);
        break;
    case 5:
        tile(source, has_zeros, 5, n_panels, 1, t, out);
        break;
    default:
        tile(source, has_zeros, 6, n_panels, 1, t, out);
        break;
    }
}

#define TILES(name, source, has_zeros)                                                             \
    static void tiles_##name(const struct quant_tile *t, float(*acc)[QUANT_PANELS][PANEL_COLUMNS]) \
    {                                                                                              \
        if (t->n_panels == QUANT_PANELS)                                                           \
            tile_rows(source, has_zeros, QUANT_PANELS, t, acc);                                    \
        else                                                                                       \
            tile_rows(source, has_zeros, 1, t, acc);                                               \
    }
TILES(bytes, SOURCE_BYTES, false)
TILES(bytes_zeros, SOURCE_BYTES, true)
TILES(int4, SOURCE_INT4, false)
TILES(int4_zeros, SOURCE_INT4, true)
TILES(mxfp4, SOURCE_MXFP4, false)

static void set_tile(const struct quant_tile *t, float (*acc)[QUANT_PANELS][PANEL_COLUMNS])
{
    if (t->source == SOURCE_INT4)
        (t->has_zeros ? tiles_int4_zeros : tiles_int4)(t, acc);
    else if (t->source == SOURCE_MXFP4)
        tiles_mxfp4(t, acc);
    else
        (t->has_zeros ? tiles_bytes_zeros : tiles_bytes)(t, acc);
}

/* A group's sum has parts, so that a dot need not wait for the one before. */
ALWAYS_INLINE void set_row(enum quant_source source, bool has_zeros, int32_t bias,
                           const struct quant_row *t, float *out)
{
    enum { UNROLL = QUANT_CODE_ALIGN / QUANT_QUAD, PARTS = 4 };
    const size_t line_quads = source == SOURCE_BYTES ? 1 : 2;
    const int8_t *x = t->x;
    const uint8_t *w = t->w;
    const char *next = t->scales_ahead;
    __m512 acc = _mm512_load_ps(out);
    for (size_t g = 0; g < t->n_groups; g++, next += t->scales_step) {
        const size_t at = t->scale + g * PANEL_COLUMNS;
        __m512i sum[PARTS];
        sum[0] = _mm512_set1_epi32(t->sums[g] * -bias);
        if (has_zeros) {
            const __m512i zeros =
                _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(t->zeros + at)));
            sum[0] = _mm512_madd_epi16(zeros, _mm512_set1_epi32(-t->sums[g]));
        }
#pragma GCC unroll 4
        for (size_t k = 1; k < PARTS; k++) sum[k] = _mm512_setzero_si512();
        for (size_t i = 0; i < t->group; i += QUANT_CODE_ALIGN) {
#pragma GCC unroll 8
            for (size_t k = 0; k < UNROLL; k++) {
                if (k % line_quads == 0)
                    _mm_prefetch(w + k / line_quads * QUANT_LINE + QUANT_ROW_AHEAD, _MM_HINT_T0);
                const __m512i wk = load_quad(source, w, k);
                sum[k % PARTS] =
                    _mm512_dpbusd_epi32(sum[k % PARTS], wk, broadcast_quad(x + k * QUANT_QUAD));
            }
            x += QUANT_CODE_ALIGN;
            w += UNROLL / line_quads * QUANT_LINE;
        }
        _mm_prefetch(next, _MM_HINT_T0);
        const __m512i all =
            _mm512_add_epi32(_mm512_add_epi32(sum[0], sum[1]), _mm512_add_epi32(sum[2], sum[3]));
        const __m512 scale =
            _mm512_mul_ps(v16_scales(t->format, t->scales, at), _mm512_set1_ps(t->x_scales[g]));
        acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(all), scale, acc);
    }
    _mm512_store_ps(out, acc);
}

ALWAYS_INLINE void unpack(enum quant_source source, const uint8_t *in, size_t n_vectors,
                          uint8_t *out)
{
    for (size_t i = 0; i < n_vectors; i++) {
        const __m512i both = _mm512_loadu_si512(in + i * QUANT_LINE);
        _mm512_store_si512(out + 2 * i * QUANT_LINE, bytes_of(source, both, 0));
        _mm512_store_si512(out + (2 * i + 1) * QUANT_LINE, bytes_of(source, both, 1));
    }
}

static void set_unpack(enum quant_source source, const uint8_t *in, size_t n_vectors, uint8_t *out)
{
    if (source == SOURCE_MXFP4)
        unpack(SOURCE_MXFP4, in, n_vectors, out);
    else
        unpack(SOURCE_INT4, in, n_vectors, out);
}

static void set_scales(struct quant_format f, const void *in, size_t i, size_t n, float *out)
{
    for (size_t end = i + n; i < end; i += PANEL_COLUMNS, out += PANEL_COLUMNS)
        _mm512_store_ps(out, v16_scales(f, in, i));
}

static void set_zeros(const uint8_t *in, size_t n, int32_t *out)
{
    for (size_t i = 0; i < n; i += PANEL_COLUMNS) {
        const __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(in + i)));
        const __m512i negative = _mm512_sub_epi16(_mm512_setzero_si512(), v);
        _mm512_store_si512(out + i, negative);
    }
}

static void set_starts(const int32_t *sums, size_t n, int32_t factor, int32_t *out)
{
    const __mmask16 there = (__mmask16)((1u << n) - 1);
    const __m512i v = _mm512_maskz_loadu_epi32(there, sums);
    _mm512_mask_storeu_epi32(out, there, _mm512_mullo_epi32(v, _mm512_set1_epi32(factor)));
}

static unsigned set_grid_add(const float *p, uint32_t grid_bits, int64_t *sums)
{
    const __m512d magic = _mm512_set1_pd(1.5 * kern_pow2(52 - (int)grid_bits));
    const __m512i one = _mm512_castpd_si512(magic);
    const __m512 v = _mm512_load_ps(p), limit = _mm512_set1_ps(kern_grid_limit(grid_bits));
    const __mmask16 fits = _mm512_cmp_ps_mask(_mm512_abs_ps(v), limit, _CMP_LT_OQ);
    const __m512 kept = _mm512_maskz_mov_ps(fits, v);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const __m256 half = i ? _mm512_extractf32x8_ps(kept, 1) : _mm512_castps512_ps256(kept);
        const __m512d shifted = _mm512_add_pd(_mm512_cvtps_pd(half), magic);
        const __m512i units = _mm512_sub_epi64(_mm512_castpd_si512(shifted), one);
        const __m512i sum = _mm512_add_epi64(_mm512_load_si512(sums + 8 * i), units);
        _mm512_store_si512(sums + 8 * i, sum);
    }
    return 0xFFFFu ^ (unsigned)fits;
}

void k_linear_quant_avx512_6x32(const struct linear_args *a, size_t group, size_t panel0,
                                size_t panel1, size_t row0, size_t row1)
{
    if (a->xq == NULL)
        k_linear_dequant_avx512(a, group, panel0, panel1, row0, row1);
    else
        quant_linear(false, a, group, panel0, panel1, row0, row1);
}

void k_linear_quant_leaf_avx512_6x32(const struct linear_args *a, size_t group, size_t panel0,
                                     size_t panel1, size_t row0, size_t row1)
{
    if (a->xq == NULL)
        k_linear_leaf_dequant_avx512(a, group, panel0, panel1, row0, row1);
    else
        quant_linear(true, a, group, panel0, panel1, row0, row1);
}
