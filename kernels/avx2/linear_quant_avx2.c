/* Linears with quantized weights and int8 activations on AVX2.
 *     nibbles                      multiplied as bytes; sums stay in 16 bits while they fit
 *     bytes, few rows, no zeros    |weight| times the activation with the weight's sign
 *     bytes, few rows, zeros       multiplied in 16 bits, because pairs of bytes could saturate
 *     bytes, many rows             linear_pairs.h
 * Weights are stored unsigned, with a bias or zero points, whose share is subtracted from the sums
 * of each group; few rows of bytes without zeros subtract the bias from the weights instead. */
#include "kernels/avx2/avx2.h"

#include "kernels/avx2/scales.h"

enum {
    SET_FEW_ROWS = 6,
    SET_FEW_MOST = 8,
    SET_FEW_BYTES_MOST = 16,
    SET_TILE_ROWS = 6,
    SET_BYTES_ROWS = 6, /* required, but unused: linear_pairs.h multiplies bytes by many rows */
    SET_SIGNED = 0,
    SET_ENDS = 0
};

#include "kernels/linear_quant_few.h"

enum {
    HALVES = 2,    /* registers for a panel's 16 outputs */
    BOTH_ROWS = 4, /* most rows for which set_few computes both halves together */
    SUMS_ROWS = 6  /* most rows for which set_few computes one half after the other */
};

/* The sums that registers hold at one time: n_rows rows and halves [h0, h1) of a panel. All fields
 * are constants in each call. */
struct sums_shape {
    enum quant_source source;
    bool has_zeros;
    size_t n_rows, h0, h1;
};

/* The quantized values of a group of n_quads quads: those of rows, x_stride bytes apart, and those
 * of a panel. */
struct group_codes {
    const int8_t *x;
    size_t x_stride;
    const uint8_t *w;
    size_t n_quads;
};

/* Returns n, the quads of one step. The products of nibbles in a step are summed in 16 bits: at
 * most n * 2 * 15 * 127 (int4) or n * 2 * 24 * 127 (mxfp4), which is below 2^15. */
ALWAYS_INLINE size_t step_of(enum quant_source source)
{
    return source == SOURCE_INT4 || source == SOURCE_UNPACKED_INT4 ? 8 : 4;
}

/* Converts nibbles (E2M1) to bytes: the doubled number plus 12 (QUANT_MXFP4_BIAS). */
ALWAYS_INLINE __m256i mxfp4_bytes(__m256i nibbles)
{
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles);
}

/* Unpacks one nibble of each byte to a byte: the low nibbles (odd 0) are inputs 8i to 8i + 3, the
 * high ones (odd 1) inputs 8i + 4 to 8i + 7. */
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

/* Loads quad i of a group: four inputs of 8 outputs. */
ALWAYS_INLINE __m256i load_quad(enum quant_source source, const uint8_t *w, size_t i, size_t half)
{
    if (source != SOURCE_INT4 && source != SOURCE_MXFP4) return load_half(w + i * QUANT_LINE, half);
    return bytes_of(source, load_half(w + i / 2 * QUANT_LINE, half), i % 2);
}

ALWAYS_INLINE __m256i broadcast_quad(const int8_t *x)
{
    int32_t v;
    memcpy(&v, x, sizeof v);
    return _mm256_set1_epi32(v);
}

/* Returns a + b, computed at this place: compilers would otherwise delay the additions and spill
 * all products. */
ALWAYS_INLINE __m256i add16(__m256i a, __m256i b)
{
    a = _mm256_add_epi16(a, b);
    __asm__("" : "+x"(a));
    return a;
}

ALWAYS_INLINE __m256i add32(__m256i a, __m256i b)
{
    a = _mm256_add_epi32(a, b);
    __asm__("" : "+x"(a));
    return a;
}

/* sum[row][half] += one step of byte weights, multiplied in 16 bits: first the even inputs, then
 * the odd ones. */
ALWAYS_INLINE void add_wide(struct sums_shape s, const struct group_codes *c,
                            __m256i (*sum)[HALVES])
{
    const __m256i low = _mm256_set1_epi16(255);
#pragma GCC unroll 4
    for (size_t k = 0; k < step_of(SOURCE_BYTES); k++) {
        __m256i even[HALVES], odd[HALVES];
#pragma GCC unroll 2
        for (size_t h = s.h0; h < s.h1; h++) {
            const __m256i v = load_quad(SOURCE_BYTES, c->w, k, h);
            even[h] = _mm256_and_si256(v, low);
            odd[h] = _mm256_srli_epi16(v, 8);
        }
#pragma GCC unroll 8
        for (size_t r = 0; r < s.n_rows; r++) {
            const __m256i v = broadcast_quad(c->x + r * c->x_stride + k * QUANT_QUAD);
            const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
            const __m256i x_odd = _mm256_srai_epi16(v, 8);
#pragma GCC unroll 2
            for (size_t h = s.h0; h < s.h1; h++) {
                sum[r][h] = add32(sum[r][h], _mm256_madd_epi16(even[h], x_even));
                sum[r][h] = add32(sum[r][h], _mm256_madd_epi16(odd[h], x_odd));
            }
        }
    }
}

/* sum[row][half] += one step of byte weights without zero points, as signed numbers. A pair of
 * products is at most 2 * 128 * 127 < 2^15. `first`: sum is set, not read. */
ALWAYS_INLINE void add_signed(struct sums_shape s, bool first, const struct group_codes *c,
                              __m256i (*sum)[HALVES])
{
    const __m256i bias = _mm256_set1_epi8((char)QUANT_INT8_BIAS), ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (size_t k = 0; k < step_of(SOURCE_BYTES); k++) {
        __m256i wk[HALVES], size[HALVES];
#pragma GCC unroll 2
        for (size_t h = s.h0; h < s.h1; h++) {
            wk[h] = _mm256_xor_si256(load_quad(SOURCE_BYTES, c->w, k, h), bias);
            size[h] = _mm256_abs_epi8(wk[h]);
        }
#pragma GCC unroll 8
        for (size_t r = 0; r < s.n_rows; r++) {
            const __m256i xk = broadcast_quad(c->x + r * c->x_stride + k * QUANT_QUAD);
#pragma GCC unroll 2
            for (size_t h = s.h0; h < s.h1; h++) {
                const __m256i pairs = _mm256_maddubs_epi16(size[h], _mm256_sign_epi8(xk, wk[h]));
                const __m256i quads = _mm256_madd_epi16(pairs, ones);
                sum[r][h] = first && k == 0 ? quads : add32(sum[r][h], quads);
            }
        }
    }
}

/* sum[row][half] += one step of nibble weights. `first`: sum is set, not read. */
ALWAYS_INLINE void add_nibbles(struct sums_shape s, bool first, const struct group_codes *c,
                               __m256i (*sum)[HALVES])
{
    __m256i part[SUMS_ROWS][HALVES];
#pragma GCC unroll 8
    for (size_t k = 0; k < step_of(s.source); k++) {
        __m256i wk[HALVES];
#pragma GCC unroll 2
        for (size_t h = s.h0; h < s.h1; h++) wk[h] = load_quad(s.source, c->w, k, h);
#pragma GCC unroll 8
        for (size_t r = 0; r < s.n_rows; r++) {
            const __m256i xk = broadcast_quad(c->x + r * c->x_stride + k * QUANT_QUAD);
#pragma GCC unroll 2
            for (size_t h = s.h0; h < s.h1; h++) {
                const __m256i v = _mm256_maddubs_epi16(wk[h], xk);
                part[r][h] = k == 0 ? v : add16(part[r][h], v);
            }
        }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < s.n_rows; r++) {
#pragma GCC unroll 2
        for (size_t h = s.h0; h < s.h1; h++) {
            const __m256i pairs = _mm256_madd_epi16(part[r][h], _mm256_set1_epi16(1));
            sum[r][h] = first ? pairs : _mm256_add_epi32(sum[r][h], pairs);
        }
    }
}

/* Moves on to the quantized values of the next step. */
ALWAYS_INLINE void next_step(enum quant_source source, struct group_codes *c)
{
    const bool packed = source == SOURCE_INT4 || source == SOURCE_MXFP4;
    c->x += step_of(source) * QUANT_QUAD;
    c->w += step_of(source) * QUANT_LINE / (packed ? 2 : 1);
}

/* sum[row][half] = the dot products over the quads of a group. */
ALWAYS_INLINE void sum_group(struct sums_shape s, struct group_codes c, __m256i (*sum)[HALVES])
{
    const size_t step = step_of(s.source), n_quads = c.n_quads;
    if (s.source == SOURCE_BYTES && !s.has_zeros) {
        add_signed(s, true, &c, sum);
        for (size_t q = step; q < n_quads; q += step) {
            next_step(s.source, &c);
            add_signed(s, false, &c, sum);
        }
        return;
    }
    if (s.source == SOURCE_BYTES) {
#pragma GCC unroll 8
        for (size_t r = 0; r < s.n_rows; r++) sum[r][0] = sum[r][1] = _mm256_setzero_si256();
        for (size_t q = 0; q < n_quads; q += step, next_step(s.source, &c)) add_wide(s, &c, sum);
        return;
    }
    add_nibbles(s, true, &c, sum);
    for (size_t q = step; q < n_quads; q += step) {
        next_step(s.source, &c);
        add_nibbles(s, false, &c, sum);
    }
}

/* Ends group g for panel p: adds to each sum its start value (with zero points: minus the zero
 * point times the sum of the row's values), then acc = fma((float)sum, weight scale * activation
 * scale, acc). */
ALWAYS_INLINE void end_sums(struct sums_shape shape, const struct quant_tile *t, size_t g, size_t p,
                            __m256i (*sum)[HALVES], float (*acc)[QUANT_PANELS][PANEL_COLUMNS])
{
#pragma GCC unroll 6
    for (size_t r = 0; r < shape.n_rows; r++) {
        const __m256 x_scale = _mm256_set1_ps(t->x_scales[r * t->q_stride + g]);
        const __m256i start = _mm256_set1_epi32(t->start[r * t->start_stride + g]);
#pragma GCC unroll 2
        for (size_t h = 0; h < HALVES; h++) {
            __m256i s = sum[r][h];
            if (shape.has_zeros) {
                const __m256i zeros = _mm256_load_si256((const void *)(t->zeros[p][g] + 8 * h));
                s = _mm256_add_epi32(s, _mm256_madd_epi16(zeros, start));
            } else {
                s = _mm256_add_epi32(s, start);
            }
            float *at = acc[r][p] + 8 * h;
            const __m256 scale = _mm256_mul_ps(_mm256_load_ps(t->scales[p][g] + 8 * h), x_scale);
            _mm256_store_ps(at, _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), scale, _mm256_load_ps(at)));
        }
    }
}

/* Continues the chains of one tile; a group has n_quads quads. All arguments but `in`, acc and,
 * with long groups, n_quads are constant. */
ALWAYS_INLINE void tile_of(enum quant_source source, bool has_zeros, size_t n_quads, size_t n_rows,
                           const struct quant_tile *in, float (*acc)[QUANT_PANELS][PANEL_COLUMNS])
{
    const struct quant_tile t = *in; /* a local copy, which stores to acc cannot change */
    const struct sums_shape shape = {source, has_zeros, n_rows, 0, HALVES};
    const size_t w_bytes = n_quads * QUANT_LINE;
    for (size_t g = 0; g < t.n_groups; g++) {
        const int8_t *x = t.x + g * n_quads * QUANT_QUAD;
        for (size_t p = 0; p < t.n_panels; p++) {
            const struct group_codes codes = {x, t.x_stride, t.w + p * t.w_stride + g * w_bytes,
                                              n_quads};
            const uint8_t *next = t.ahead + p * t.ahead_stride + g * t.ahead_step;
            __m256i sum[SET_TILE_ROWS][HALVES];
            for (size_t i = 0; i < t.ahead_step; i += QUANT_LINE)
                _mm_prefetch(next + i, _MM_HINT_T0);
            sum_group(shape, codes, sum);
            end_sums(shape, &t, g, p, sum, acc);
        }
    }
}

/* Continues the chains of one tile. Groups of QUANT_CODE_ALIGN inputs get their own code with
 * constant sizes, so that no sum leaves its register. */
ALWAYS_INLINE void tile(enum quant_source source, bool has_zeros, size_t n_rows,
                        const struct quant_tile *t, float (*acc)[QUANT_PANELS][PANEL_COLUMNS])
{
    if (source == SOURCE_UNPACKED_MXFP4 || t->group == QUANT_CODE_ALIGN)
        tile_of(source, has_zeros, QUANT_CODE_ALIGN / QUANT_QUAD, n_rows, t, acc);
    else
        tile_of(source, has_zeros, t->group / QUANT_QUAD, n_rows, t, acc);
}

/* Defines the tiles of one source. Tiles of three to six rows are compiled; four are the fewest in
 * use, because set_few takes up to SET_FEW_MOST rows and more rows are divided evenly. */
#define TILES(name, source, has_zeros)                                                             \
    static void tiles_##name(const struct quant_tile *t, float(*acc)[QUANT_PANELS][PANEL_COLUMNS]) \
    {                                                                                              \
        if (t->n_rows == 3)                                                                        \
            tile(source, has_zeros, 3, t, acc);                                                    \
        else if (t->n_rows == 4)                                                                   \
            tile(source, has_zeros, 4, t, acc);                                                    \
        else if (t->n_rows == 5)                                                                   \
            tile(source, has_zeros, 5, t, acc);                                                    \
        else                                                                                       \
            tile(source, has_zeros, 6, t, acc);                                                    \
    }
TILES(unpacked_int4, SOURCE_UNPACKED_INT4, false)
TILES(unpacked_int4_zeros, SOURCE_UNPACKED_INT4, true)
TILES(unpacked_mxfp4, SOURCE_UNPACKED_MXFP4, false)

static void set_tile(const struct quant_tile *t, float (*acc)[QUANT_PANELS][PANEL_COLUMNS])
{
    static void (*const tiles[][2])(const struct quant_tile *,
                                    float(*)[QUANT_PANELS][PANEL_COLUMNS]) = {
        [SOURCE_UNPACKED_INT4] = {tiles_unpacked_int4, tiles_unpacked_int4_zeros},
        [SOURCE_UNPACKED_MXFP4] = {tiles_unpacked_mxfp4}};
    tiles[t->source][t->has_zeros](t, acc);
}

/* Ends group g for few rows: subtracts the share of the zero points, or of the bias of nibbles,
 * then acc = fma((float)sum, weight scale * activation scale, acc). */
ALWAYS_INLINE void few_ends(struct sums_shape shape, const struct quant_few *t, size_t g,
                            __m256i (*sum)[HALVES], float (*acc)[PANEL_COLUMNS])
{
    const struct quant_format format = {/* built from constants, so that v8_scales is compiled
                                           for one kind */
                                        .kind =
                                            shape.source == SOURCE_MXFP4 ? QUANT_MXFP4 : QUANT_INT4,
                                        .scale_dtype = t->format.scale_dtype};
    const size_t at = t->scale + g * PANEL_COLUMNS;
    const bool is_signed = shape.source == SOURCE_BYTES && !shape.has_zeros;
    __m256 w_scales[HALVES];
    __m256i zeros[HALVES];
#pragma GCC unroll 2
    for (size_t h = shape.h0; h < shape.h1; h++) {
        w_scales[h] = v8_scales(format, t->scales, at + 8 * h);
        zeros[h] = _mm256_setzero_si256();
        if (shape.has_zeros)
            zeros[h] = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(t->zeros + at + 8 * h)));
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < shape.n_rows; r++) {
        const size_t i = r * t->q_stride + g;
        const __m256 x_scale = _mm256_set1_ps(t->x_scales[i]);
        const __m256i x_sum = _mm256_set1_epi32(t->sums[i]);
        const __m256i bias = _mm256_set1_epi32(quant_bias(shape.source));
        const __m256i start = _mm256_madd_epi16(x_sum, bias); /* both fit 16 bits */
#pragma GCC unroll 2
        for (size_t h = shape.h0; h < shape.h1; h++) {
            __m256i s = sum[r][h];
            if (shape.has_zeros)
                s = _mm256_sub_epi32(s, _mm256_madd_epi16(x_sum, zeros[h]));
            else if (!is_signed)
                s = _mm256_sub_epi32(s, start);
            float *to = acc[r] + 8 * h;
            const __m256 scale = _mm256_mul_ps(w_scales[h], x_scale);
            _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(s), scale, _mm256_load_ps(to)));
        }
    }
}

/* Computes few rows as linear_quant_few.h declares. */
ALWAYS_INLINE void set_few(enum quant_source source, bool has_zeros, size_t n_rows,
                           const struct quant_few *in, float (*acc)[PANEL_COLUMNS])
{
    const struct quant_few t = *in; /* a local copy, which stores to acc cannot change */
    const size_t n_quads = t.group / QUANT_QUAD;
    const size_t w_bytes = n_quads * (source == SOURCE_BYTES ? QUANT_LINE : QUANT_LINE / 2);
    const int8_t *x = t.x;
    const uint8_t *w = t.w;
    const char *next = t.scales_ahead;
    memset(acc, 0, n_rows * sizeof *acc);
    for (size_t g = 0; g < t.n_groups; g++, next += t.scales_step, x += t.group, w += w_bytes) {
        const size_t n_halves = n_rows > BOTH_ROWS ? 1 : HALVES;
        __m256i sum[SET_FEW_ROWS][HALVES];
        for (size_t i = 0; i < w_bytes; i += QUANT_LINE)
            _mm_prefetch(w + i + QUANT_CODES_AHEAD, _MM_HINT_T0);
        _mm_prefetch(next, _MM_HINT_T0);
#pragma GCC unroll 2
        for (size_t h = 0; h < HALVES; h += n_halves) {
            const struct sums_shape shape = {source, has_zeros, n_rows, h, h + n_halves};
            sum_group(shape, (struct group_codes){x, t.x_stride, w, n_quads}, sum);
            few_ends(shape, &t, g, sum, acc);
        }
    }
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

static void set_zeros(const uint8_t *in, size_t n, int32_t bias, int32_t *out)
{
    const __m256i b = _mm256_set1_epi32(bias);
    for (size_t i = 0; i < n; i += 8) {
        const __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(in + i)));
        _mm256_store_si256((void *)(out + i), _mm256_sub_epi16(b, v));
    }
}

static void set_starts(const int32_t *sums, size_t n, int32_t factor, int32_t *out)
{
    const __m256i f = _mm256_set1_epi32(factor);
    for (size_t i = 0; i < n; i += 8) {
        const __m256i v = _mm256_maskload_epi32(sums + i, v8_first(n - i));
        _mm256_storeu_si256((void *)(out + i), _mm256_mullo_epi32(v, f));
    }
}

/* Compares |p| as integers: without the sign, the bits of floats are in the order of their values,
 * and a NaN is above all. */
ALWAYS_INLINE bool set_grid_fits(const float *p, size_t n, uint32_t grid_bits)
{
    const __m256i size = _mm256_set1_epi32(0x7FFFFFFF);
    const __m256i least = _mm256_castps_si256(_mm256_set1_ps(kern_grid_limit(grid_bits)));
    __m256i most = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (size_t i = 0; i < n; i += 8)
        most = _mm256_max_epi32(most,
                                _mm256_and_si256(_mm256_load_si256((const void *)(p + i)), size));
    const __m256i fit = _mm256_cmpgt_epi32(least, most);
    return _mm256_testc_si256(fit, _mm256_set1_epi32(-1)) != 0;
}

ALWAYS_INLINE void set_grid_add(const float *p, uint32_t grid_bits, const int64_t *from,
                                int64_t *to)
{
    const __m256d magic = _mm256_set1_pd(1.5 * kern_pow2(52 - (int)grid_bits));
#pragma GCC unroll 4
    for (size_t i = 0; i < PANEL_COLUMNS; i += 4) {
        const __m256d moved = _mm256_add_pd(_mm256_cvtps_pd(_mm_load_ps(p + i)), magic);
        const __m256i sums = _mm256_load_si256((const void *)(from + i));
        _mm256_storeu_si256((void *)(to + i), _mm256_add_epi64(sums, _mm256_castpd_si256(moved)));
    }
}

ALWAYS_INLINE void set_grid_round(const int64_t *sums, size_t n, uint32_t grid_bits, float *y)
{
    const __m256d unit = _mm256_set1_pd(kern_pow2(-(int)grid_bits));
#pragma GCC unroll 8
    for (size_t i = 0; i < n; i += 4) _mm_storeu_ps(y + i, grid_four(sums + i, unit));
}

#include "kernels/avx2/linear_pairs.h"

ALWAYS_INLINE void linear_codes(bool leafy, const struct linear_args *a,
                                const struct linear_slice *s)
{
    const bool is_int8 = a->groups[s->group].w->quant.kind == QUANT_INT8;
    if (is_int8 && s->row1 - s->row0 > SET_FEW_BYTES_MOST)
        quant_linear_many(leafy ? pairs_panels_leaf : pairs_panels, PAIRS_PANELS, leafy, a, s);
    else
        quant_linear(leafy, a, s);
}

static void k_linear_quant_avx2(const struct linear_args *a, const struct linear_slice *s)
{
    if (a->xq == NULL)
        k_linear_dequant_avx2(a, s);
    else
        linear_codes(false, a, s);
}

static void k_linear_quant_leaf_avx2(const struct linear_args *a, const struct linear_slice *s)
{
    if (a->xq == NULL)
        k_linear_leaf_dequant_avx2(a, s);
    else
        linear_codes(true, a, s);
}

void fill_linear_quant_avx2(struct kern_table *t)
{
    static const enum quant_kind kinds[] = {QUANT_INT8, QUANT_INT4, QUANT_MXFP4};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        t->linear_quant[kinds[i]] = k_linear_quant_avx2;
        t->linear_quant_leaf[kinds[i]] = k_linear_quant_leaf_avx2;
    }
}
