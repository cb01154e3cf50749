/* Linears with quantized weights and int8 activations on AVX-512 VNNI. dpbusd multiplies unsigned
 * bytes (four inputs of 16 outputs in a register) by signed bytes (four inputs of a row,
 * broadcast). Weights are stored with a bias that makes them unsigned; each sum starts with minus
 * the share of the bias, or of the zero points. */
#include "kernels/avx512/avx512.h"

#include "kernels/avx512/scales.h"

enum {
    SET_FEW_ROWS = 8,
    SET_FEW_MOST = 16,
    SET_FEW_BYTES_MOST = 16,
    SET_TILE_ROWS = 6,
    SET_BYTES_ROWS = 6,
    SET_SIGNED = 0,
    SET_ENDS = 0
};

#include "kernels/linear_quant_few.h"

#include "kernels/avx512/codes.h"

/* Loads quad i of a group: four inputs of 16 outputs. Odd quads of int4 stay in the high nibbles,
 * 16 times too large; sum_of_parts divides the sum of these products. */
ALWAYS_INLINE __m512i load_quad(enum quant_source source, const uint8_t *w, size_t i)
{
    if (source == SOURCE_BYTES) return _mm512_loadu_si512(w + i * QUANT_LINE);
    const __m512i both = _mm512_loadu_si512(w + i / 2 * QUANT_LINE);
    if (source == SOURCE_INT4 && i % 2 != 0)
        return _mm512_and_si512(both, _mm512_set1_epi8((char)0xF0));
    return bytes_of(source, both, (int)(i % 2));
}

ALWAYS_INLINE __m512i broadcast_quad(const int8_t *x)
{
    int32_t v;
    memcpy(&v, x, sizeof v);
    return _mm512_set1_epi32(v);
}

enum { QUADS = QUANT_CODE_ALIGN / QUANT_QUAD, TILE_SUMS = SET_TILE_ROWS * QUANT_PANELS };

/* Prefetches a share of the next K-slice's weights, and the next tile's rows, into the first-level
 * cache. */
ALWAYS_INLINE void tile_fetch(size_t n_rows, size_t n_panels, const struct quant_tile *t, size_t g,
                              const int8_t *x)
{
    const uint8_t *next = t->ahead + g * t->ahead_step;
    for (size_t i = 0; i < t->ahead_step; i += QUANT_LINE) {
#pragma GCC unroll 2
        for (size_t p = 0; p < n_panels; p++)
            _mm_prefetch(next + p * t->ahead_stride + i, _MM_HINT_T0);
    }
#pragma GCC unroll 6
    for (size_t r = 0; r < n_rows; r++) _mm_prefetch(x + (n_rows + r) * t->x_stride, _MM_HINT_T0);
}

ALWAYS_INLINE void tile_starts(bool has_zeros, size_t n_rows, size_t n_panels,
                               const struct quant_tile *t, size_t g, __m512i *sum)
{
#pragma GCC unroll 12
    for (size_t i = 0; i < n_rows * n_panels; i++) {
        sum[i] = _mm512_set1_epi32(t->start[i / n_panels * t->start_stride + g]);
        if (has_zeros)
            sum[i] = _mm512_madd_epi16(_mm512_load_si512(t->zeros[i % n_panels][g]), sum[i]);
    }
}

/* Adds the dot products over QUANT_CODE_ALIGN inputs to the integer sums. */
ALWAYS_INLINE void tile_dots(size_t n_rows, size_t n_panels, const struct quant_tile *t,
                             const int8_t *x, const uint8_t *w, __m512i *sum)
{
#pragma GCC unroll 8
    for (size_t k = 0; k < QUADS; k++) {
        __m512i wk[QUANT_PANELS];
#pragma GCC unroll 2
        for (size_t p = 0; p < n_panels; p++)
            wk[p] = load_quad(SOURCE_BYTES, w + p * t->w_stride, k);
#pragma GCC unroll 6
        for (size_t r = 0; r < n_rows; r++) {
            const __m512i xk = broadcast_quad(x + r * t->x_stride + k * QUANT_QUAD);
#pragma GCC unroll 2
            for (size_t p = 0; p < n_panels; p++) {
                __m512i *s = &sum[r * n_panels + p];
                *s = _mm512_dpbusd_epi32(*s, wk[p], xk);
            }
        }
    }
}

/* Ends group g: acc = fma((float)sum, weight scale * activation scale, acc). */
ALWAYS_INLINE void tile_ends(size_t n_rows, size_t n_panels, const struct quant_tile *t, size_t g,
                             const __m512i *sum, __m512 *acc)
{
#pragma GCC unroll 12
    for (size_t i = 0; i < n_rows * n_panels; i++) {
        const __m512 x_scale = _mm512_set1_ps(t->x_scales[i / n_panels * t->q_stride + g]);
        const __m512 scale = _mm512_mul_ps(_mm512_load_ps(t->scales[i % n_panels][g]), x_scale);
        acc[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i]), scale, acc[i]);
    }
}

/* Continues n_rows * n_panels chains over the tile's groups. All arguments but t and out are
 * constant. */
ALWAYS_INLINE void tile(bool has_zeros, size_t n_rows, size_t n_panels, const struct quant_tile *t,
                        float (*out)[QUANT_PANELS][PANEL_COLUMNS])
{
    const int8_t *x = t->x;
    const uint8_t *w = t->w;
    __m512 acc[TILE_SUMS];
#pragma GCC unroll 12
    for (size_t i = 0; i < n_rows * n_panels; i++)
        acc[i] = _mm512_load_ps(out[i / n_panels][i % n_panels]);
    for (size_t g = 0; g < t->n_groups; g++) {
        __m512i sum[TILE_SUMS];
        tile_fetch(n_rows, n_panels, t, g, x);
        tile_starts(has_zeros, n_rows, n_panels, t, g, sum);
        for (size_t i = 0; i < t->group; i += QUANT_CODE_ALIGN) {
            tile_dots(n_rows, n_panels, t, x, w, sum);
            x += QUANT_CODE_ALIGN;
            w += QUADS * QUANT_LINE;
        }
        tile_ends(n_rows, n_panels, t, g, sum, acc);
    }
#pragma GCC unroll 12
    for (size_t i = 0; i < n_rows * n_panels; i++)
        _mm512_store_ps(out[i / n_panels][i % n_panels], acc[i]);
}

/* Computes a tile of four to six rows: more rows are divided evenly, and fewer rows are multiplied
 * by set_few. */
ALWAYS_INLINE void tile_rows(bool has_zeros, size_t n_panels, const struct quant_tile *t,
                             float (*out)[QUANT_PANELS][PANEL_COLUMNS])
{
    if (t->n_rows == 4)
        tile(has_zeros, 4, n_panels, t, out);
    else if (t->n_rows == 5)
        tile(has_zeros, 5, n_panels, t, out);
    else
        tile(has_zeros, 6, n_panels, t, out);
}

static void set_tile(const struct quant_tile *t, float (*acc)[QUANT_PANELS][PANEL_COLUMNS])
{
    if (t->has_zeros && t->n_panels == QUANT_PANELS)
        tile_rows(true, QUANT_PANELS, t, acc);
    else if (t->has_zeros)
        tile_rows(true, 1, t, acc);
    else if (t->n_panels == QUANT_PANELS)
        tile_rows(false, QUANT_PANELS, t, acc);
    else
        tile_rows(false, 1, t, acc);
}

/* Adds the dot products of w with one quad that all outputs share. The instruction itself
 * broadcasts the quad; from intrinsics, compilers make a separate broadcast, which doubles the
 * instructions when each quad is used once. */
ALWAYS_INLINE __m512i dot_broadcast(__m512i sum, __m512i w, const int8_t *x)
{
    const struct quad {
        int8_t x[QUANT_QUAD];
    } *quad = (const void *)x;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*quad));
    return sum;
}

/* Returns the number of parts of a group's sum with few rows. A sum has parts so that a product
 * need not wait for the one before. The parts are exact integers, so splitting changes nothing.
 * The parts of int4 are its even quads, and its odd quads, which are 16 times too large. */
ALWAYS_INLINE size_t few_parts(enum quant_source source, size_t n_rows)
{
    return n_rows <= 4 && source != SOURCE_INT4 ? 4 : 2;
}

/* Starts the integer sums of group g for few rows: sum[row][part]. Part 0 starts with the share of
 * bias and zero points, the other parts with 0. */
ALWAYS_INLINE void few_starts(enum quant_source source, bool has_zeros, size_t n_rows,
                              const struct quant_few *t, size_t g, __m512i *sum)
{
    const size_t n_split = few_parts(source, n_rows);
    const int32_t bias = quant_bias(source);
    __m512i offset = _mm512_setzero_si512();
    if (has_zeros) {
        const void *zeros = t->zeros + t->scale + g * PANEL_COLUMNS;
        offset = _mm512_sub_epi32(offset, _mm512_cvtepu8_epi32(_mm_loadu_si128(zeros)));
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < n_rows; r++) {
        const int32_t codes = t->sums[r * t->q_stride + g];
        sum[r * n_split] = has_zeros ? _mm512_mullo_epi32(_mm512_set1_epi32(codes), offset)
                                     : _mm512_set1_epi32(-bias * codes);
#pragma GCC unroll 4
        for (size_t k = 1; k < n_split; k++) sum[r * n_split + k] = _mm512_setzero_si512();
    }
}

/* Adds the n_split parts of a group's sum. */
ALWAYS_INLINE __m512i sum_of_parts(enum quant_source source, const __m512i *s, size_t n_split)
{
    if (source == SOURCE_INT4) return _mm512_add_epi32(s[0], _mm512_srai_epi32(s[1], 4));
    const __m512i two = _mm512_add_epi32(s[0], s[1]);
    return n_split == 2 ? two : _mm512_add_epi32(two, _mm512_add_epi32(s[2], s[3]));
}

/* Adds the dot products over QUANT_CODE_ALIGN inputs to the integer sums. */
ALWAYS_INLINE void few_dots(enum quant_source source, size_t n_rows, const struct quant_few *t,
                            const int8_t *x, const uint8_t *w, __m512i *sum)
{
    const size_t n_split = few_parts(source, n_rows);
    const size_t line_quads = source == SOURCE_BYTES ? 1 : 2;
#pragma GCC unroll 8
    for (size_t k = 0; k < QUADS; k++) {
        if (k % line_quads == 0)
            _mm_prefetch(w + k / line_quads * QUANT_LINE + QUANT_CODES_AHEAD, _MM_HINT_T0);
        const __m512i wk = load_quad(source, w, k);
#pragma GCC unroll 8
        for (size_t r = 0; r < n_rows; r++) {
            __m512i *s = &sum[r * n_split + k % n_split];
            *s = dot_broadcast(*s, wk, x + r * t->x_stride + k * QUANT_QUAD);
        }
    }
}

/* Ends group g: acc = fma((float)sum, weight scale * activation scale, acc). */
ALWAYS_INLINE void few_ends(enum quant_source source, size_t n_rows, const struct quant_few *t,
                            size_t g, const __m512i *sum, __m512 *acc)
{
    const size_t n_split = few_parts(source, n_rows);
    const struct quant_format format = {/* built from constants, so that v16_scales is compiled
                                           for one kind */
                                        .kind = source == SOURCE_MXFP4 ? QUANT_MXFP4 : QUANT_INT4,
                                        .scale_dtype = t->format.scale_dtype};
    const __m512 w_scales = v16_scales(format, t->scales, t->scale + g * PANEL_COLUMNS);
#pragma GCC unroll 8
    for (size_t r = 0; r < n_rows; r++) {
        const __m512 x_scale = _mm512_set1_ps(t->x_scales[r * t->q_stride + g]);
        const __m512 sums = _mm512_cvtepi32_ps(sum_of_parts(source, sum + r * n_split, n_split));
        acc[r] = _mm512_fmadd_ps(sums, _mm512_mul_ps(w_scales, x_scale), acc[r]);
    }
}

/* Computes few rows as linear_quant_few.h declares. */
ALWAYS_INLINE void set_few(enum quant_source source, bool has_zeros, size_t n_rows,
                           const struct quant_few *t, float (*out)[PANEL_COLUMNS])
{
    const size_t nibbles = source == SOURCE_BYTES ? 1 : 2;
    const int8_t *x = t->x;
    const uint8_t *w = t->w;
    const char *next = t->scales_ahead;
    __m512 acc[SET_FEW_ROWS];
#pragma GCC unroll 8
    for (size_t r = 0; r < n_rows; r++) acc[r] = _mm512_setzero_ps();
    for (size_t g = 0; g < t->n_groups; g++, next += t->scales_step) {
        __m512i sum[2 * SET_FEW_ROWS];
        few_starts(source, has_zeros, n_rows, t, g, sum);
        for (size_t i = 0; i < t->group; i += QUANT_CODE_ALIGN) {
            few_dots(source, n_rows, t, x, w, sum);
            x += QUANT_CODE_ALIGN;
            w += QUADS * QUANT_LINE / nibbles;
        }
        _mm_prefetch(next, _MM_HINT_T0);
        few_ends(source, n_rows, t, g, sum, acc);
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < n_rows; r++) _mm512_store_ps(out[r], acc[r]);
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

static void set_starts(const int32_t *sums, size_t n, int32_t factor, int32_t *out)
{
    const __mmask16 there = (__mmask16)((1u << n) - 1);
    const __m512i v = _mm512_maskz_loadu_epi32(there, sums);
    _mm512_mask_storeu_epi32(out, there, _mm512_mullo_epi32(v, _mm512_set1_epi32(factor)));
}

void k_linear_quant_avx512_6x32(const struct linear_args *a, const struct linear_slice *s)
{
    if (a->xq == NULL)
        k_linear_dequant_avx512(a, s);
    else
        quant_linear(false, a, s);
}

void k_linear_quant_leaf_avx512_6x32(const struct linear_args *a, const struct linear_slice *s)
{
    if (a->xq == NULL)
        k_linear_leaf_dequant_avx512(a, s);
    else
        quant_linear(true, a, s);
}

void fill_linear_quant_avx512(struct kern_table *t)
{
    static const enum quant_kind kinds[] = {QUANT_INT8, QUANT_INT4, QUANT_MXFP4};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        t->linear_quant[kinds[i]] = k_linear_quant_avx512_6x32;
        t->linear_quant_leaf[kinds[i]] = k_linear_quant_leaf_avx512_6x32;
    }
}
