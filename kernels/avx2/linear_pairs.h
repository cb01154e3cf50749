/* int8 weights with many rows on AVX2. maddubs multiplies unsigned bytes (weights c, as stored) by
 * signed ones (activations x) and adds the products of two neighbours in 16 bits. That never
 * saturates if the two x have opposite signs. A pair with equal signs is multiplied as c0 * x0 +
 * (255 - c1) * (-x1), which is 255 * x1 too small; the start value of the sum makes up for it.
 *
 * A quad of four inputs has two pairs, so each quad of weights is stored in four versions (255 -
 * c1 in no pair, in the first, in the second or in both), and a row chooses a version by its
 * offset. Included only by linear_quant_avx2.c, after the functions that it uses. */
#ifndef SHOAL_KERNELS_AVX2_LINEAR_PAIRS_H
#define SHOAL_KERNELS_AVX2_LINEAR_PAIRS_H

enum {
    PAIRS_PIECE = 128, /* inputs of a K-slice; the versions of two panels fill 16 KiB */
    PAIRS_QUADS = PAIRS_PIECE / QUANT_QUAD,
    PAIRS_GROUPS = PAIRS_PIECE / QUANT_CODE_ALIGN,
    PAIRS_PANELS = 8, /* panels that share a K-slice's prepared activations */
    PAIRS_VERSIONS = 4,
    PAIRS_QUAD_BYTES = QUANT_PANELS * PAIRS_VERSIONS * QUANT_LINE,
};

/* A row's inputs in a K-slice: quantized values, of which the second of a pair is negated where
 * both have the same sign; for each quad, the offset in bytes of its version of the weights; for
 * each group, its scale, its sum, and the value with which the integer sums start. */
struct pairs_row {
    int8_t codes[PAIRS_PIECE];
    uint16_t at[PAIRS_QUADS];
    float scales[PAIRS_GROUPS];
    int32_t sums[PAIRS_GROUPS], start[PAIRS_GROUPS];
} __attribute__((aligned(64)));

/* Working memory for a block of rows: their chains, and the prepared weights that they share. */
struct pairs_work {
    float acc[PAIRS_PANELS / QUANT_PANELS][QUANT_BLOCK_ROWS][QUANT_PANELS][PANEL_COLUMNS]
        __attribute__((aligned(64)));
    uint8_t versions[PAIRS_QUADS][QUANT_PANELS][PAIRS_VERSIONS][QUANT_LINE]
        __attribute__((aligned(64)));
    float scales[QUANT_PANELS][PAIRS_GROUPS][PANEL_COLUMNS] __attribute__((aligned(64)));
    int32_t zeros[QUANT_PANELS][PAIRS_GROUPS][PANEL_COLUMNS] __attribute__((aligned(64)));
    struct pairs_row rows[QUANT_BLOCK_ROWS];
};

/* The groups [g, g + n_groups) of a K-slice, for n_rows rows. begins: the chains start with this
 * K-slice, at +0. */
struct pairs_piece {
    size_t n_rows, g, n_groups, n_quads; /* n_quads: of one group */
    bool begins;
    const uint8_t *ahead; /* n_ahead cache lines to prefetch, and as many of the next panel */
    size_t n_ahead, ahead_stride;
};

/* Prepares eight quads of a row. Returns, for each quad, 255 times the sum of the x1 that it
 * negated (with their old signs). */
ALWAYS_INLINE __m256i pairs_of(const int8_t *x, int8_t *codes, uint16_t *at)
{
    const __m256i steps =
        _mm256_set1_epi32((int)(0x10000u * (uint16_t)(-2 * QUANT_LINE)) | (uint16_t)-QUANT_LINE);
    const __m256i v = _mm256_loadu_si256((const void *)x);
    const __m256i signs = _mm256_xor_si256(v, _mm256_slli_epi16(v, 8));
    const __m256i same = _mm256_cmpgt_epi16(signs, _mm256_set1_epi16(-1));
    const __m256i turn = _mm256_or_si256(_mm256_slli_epi16(same, 8), _mm256_set1_epi8(1));
    _mm256_store_si256((void *)codes, _mm256_sign_epi8(v, turn));
    const __m256i places = _mm256_madd_epi16(same, steps);
    const __m128i high = _mm256_extracti128_si256(places, 1);
    _mm_store_si128((void *)at, _mm_packs_epi32(_mm256_castsi256_si128(places), high));
    const __m256i turned = _mm256_and_si256(_mm256_srai_epi16(v, 8), same);
    return _mm256_madd_epi16(turned, _mm256_set1_epi16(255));
}

/* Lane i of the result = the sum of v[i]'s lanes. */
ALWAYS_INLINE __m128i pairs_sums(const __m256i v[PAIRS_GROUPS])
{
    const __m256i s =
        _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    return _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
}

/* Prepares n_groups groups of a row, from index i of q's scales on, and prefetches a later row.
 * `group` and n_groups may be constants. */
ALWAYS_INLINE void pairs_prepare_row(const struct quant_rows *q, size_t group, size_t n_groups,
                                     bool has_zeros, size_t i, struct pairs_row *to)
{
    enum { AHEAD = 8 };
    const size_t next = i + AHEAD * q->n_groups;
    const __m128i is_there = _mm256_castsi256_si128(v8_first(n_groups));
    const int8_t *x = q->codes + i * group;
    __m256i turned[PAIRS_GROUPS];
#pragma GCC unroll 2
    for (size_t k = 0; k < PAIRS_PIECE; k += QUANT_LINE)
        _mm_prefetch((const void *)(q->codes + next * group + k), _MM_HINT_T0);
    _mm_prefetch((const void *)(q->scales + next), _MM_HINT_T0);
    _mm_prefetch((const void *)(q->sums + next), _MM_HINT_T0);
#pragma GCC unroll 4
    for (size_t g = 0; g < PAIRS_GROUPS; g++) turned[g] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (size_t g = 0; g < n_groups; g++) {
        for (size_t k = g * group; k < (g + 1) * group; k += QUANT_CODE_ALIGN) {
            const __m256i v = pairs_of(x + k, to->codes + k, to->at + k / QUANT_QUAD);
            turned[g] = _mm256_add_epi32(turned[g], v);
        }
    }
    const __m128i sums = _mm_maskload_epi32(q->sums + i, is_there);
    const __m128i bias = has_zeros ? _mm_setzero_si128() : _mm_set1_epi32(QUANT_INT8_BIAS);
    _mm_store_ps(to->scales, _mm_maskload_ps(q->scales + i, is_there));
    _mm_store_si128((void *)to->sums, sums);
    _mm_store_si128((void *)to->start,
                    _mm_sub_epi32(pairs_sums(turned), _mm_madd_epi16(sums, bias)));
}

static void pairs_prepare(const struct quant_slice *s, const struct pairs_piece *o,
                          struct pairs_work *m)
{
    const struct quant_rows *q = s->xq;
    const bool has_zeros = s->w->quant.has_zeros;
    const bool is_usual = q->group == QUANT_CODE_ALIGN && o->n_groups == PAIRS_GROUPS;
    for (size_t r = 0; r < s->n_rows; r++) {
        struct pairs_row *to = &m->rows[r];
        const size_t i = (s->row + r) * q->n_groups + o->g;
        if (is_usual)
            pairs_prepare_row(q, QUANT_CODE_ALIGN, PAIRS_GROUPS, has_zeros, i, to);
        else
            pairs_prepare_row(q, q->group, o->n_groups, has_zeros, i, to);
    }
}

/* Writes the four versions of a panel's n_quads quads of weights: as stored; with 255 - c1 in the
 * first pair; in the second pair; in both. */
static void pairs_versions(const uint8_t *w, size_t n_quads, uint8_t *out)
{
    const __m256i first = _mm256_set1_epi32(0x0000FF00);
    const __m256i second = _mm256_set1_epi32((int)0xFF000000);
    const __m256i both = _mm256_or_si256(first, second);
    for (size_t i = 0; i < n_quads; i++, w += QUANT_LINE) {
#pragma GCC unroll 2
        for (size_t h = 0; h < HALVES; h++) {
            const __m256i v = load_half(w, h);
            __m256i *to = (void *)(out + h * QUANT_LINE / HALVES);
            _mm256_store_si256(to, v);
            _mm256_store_si256(to + HALVES, _mm256_xor_si256(v, first));
            _mm256_store_si256(to + 2 * HALVES, _mm256_xor_si256(v, second));
            _mm256_store_si256(to + 3 * HALVES, _mm256_xor_si256(v, both));
        }
        out += PAIRS_QUAD_BYTES;
    }
}

/* sum[panel][half] += the products of n_quads quads of a row. */
ALWAYS_INLINE void pairs_group(size_t n_panels, size_t n_quads, const int8_t *x, const uint16_t *at,
                               const uint8_t *w, __m256i *sum)
{
#pragma GCC unroll 8
    for (size_t k = 0; k < n_quads; k++, w += PAIRS_QUAD_BYTES) {
        const __m256i xk = broadcast_quad(x + k * QUANT_QUAD);
        const uint8_t *version = w + at[k];
#pragma GCC unroll 4
        for (size_t i = 0; i < HALVES * n_panels; i++) {
            const size_t panel = i / HALVES * PAIRS_VERSIONS * QUANT_LINE;
            const __m256i pairs = _mm256_maddubs_epi16(load_half(version + panel, i % HALVES), xk);
            sum[i] = add32(sum[i], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
    }
}

/* Prefetches one row's share of the cache lines. Returns the next line to prefetch. */
ALWAYS_INLINE const uint8_t *pairs_fetch(const struct pairs_piece *o, const uint8_t *at)
{
    const uint8_t *end = o->ahead + o->n_ahead * QUANT_LINE;
    const size_t n_rows = o->n_rows, n_ahead = o->n_ahead;
    for (size_t n = 0; at < end && n < n_ahead; n += n_rows, at += QUANT_LINE) {
        _mm_prefetch((const void *)at, _MM_HINT_T1);
        _mm_prefetch((const void *)(at + o->ahead_stride), _MM_HINT_T1);
    }
    return at;
}

/* Continues the chains of all rows in one or two panels over a K-slice. All arguments but o, m,
 * acc and, with long groups, n_quads are constant. */
ALWAYS_INLINE void pairs_rows(bool has_zeros, size_t n_panels, size_t n_quads,
                              const struct pairs_piece *o, const struct pairs_work *m,
                              float (*acc)[QUANT_PANELS][PANEL_COLUMNS])
{
    const size_t n = HALVES * n_panels;
    const uint8_t *ahead = o->ahead;
    const struct pairs_row *end = m->rows + o->n_rows; /* not read again after stores to acc */
    for (const struct pairs_row *row = m->rows; row < end; row++, acc++) {
        __m256 a[HALVES * QUANT_PANELS];
        ahead = pairs_fetch(o, ahead);
#pragma GCC unroll 4
        for (size_t i = 0; i < n; i++)
            a[i] = o->begins ? _mm256_setzero_ps() : _mm256_load_ps((*acc)[0] + 8 * i);
        for (size_t g = 0; g < o->n_groups; g++) {
            const size_t quad = g * n_quads;
            __m256i sum[HALVES * QUANT_PANELS];
#pragma GCC unroll 4
            for (size_t i = 0; i < n; i++) sum[i] = _mm256_set1_epi32(row->start[g]);
            for (size_t k = quad; k < quad + n_quads; k += 8)
                pairs_group(n_panels, 8, row->codes + k * QUANT_QUAD, row->at + k,
                            m->versions[k][0][0], sum);
            const __m256 x_scale = _mm256_set1_ps(row->scales[g]);
#pragma GCC unroll 4
            for (size_t i = 0; i < n; i++) {
                const size_t p = i / HALVES, at = i % HALVES * 8;
                if (has_zeros) {
                    const __m256i z = _mm256_load_si256((const void *)(m->zeros[p][g] + at));
                    const __m256i x_sum = _mm256_set1_epi32(row->sums[g]);
                    sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(z, x_sum));
                }
                const __m256 scale = _mm256_mul_ps(_mm256_load_ps(m->scales[p][g] + at), x_scale);
                a[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[i]), scale, a[i]);
            }
        }
#pragma GCC unroll 4
        for (size_t i = 0; i < n; i++) _mm256_store_ps((*acc)[0] + 8 * i, a[i]);
    }
}

#define PAIRS_ROWS(name, has_zeros, n_panels)                                                      \
    static void name(const struct pairs_piece *o, const struct pairs_work *m,                      \
                     float(*acc)[QUANT_PANELS][PANEL_COLUMNS])                                     \
    {                                                                                              \
        if (o->n_quads == QUANT_CODE_ALIGN / QUANT_QUAD)                                           \
            pairs_rows(has_zeros, n_panels, QUANT_CODE_ALIGN / QUANT_QUAD, o, m, acc);             \
        else                                                                                       \
            pairs_rows(has_zeros, n_panels, o->n_quads, o, m, acc);                                \
    }
PAIRS_ROWS(pairs_rows_1, false, 1)
PAIRS_ROWS(pairs_rows_2, false, 2)
PAIRS_ROWS(pairs_rows_zeros_1, true, 1)
PAIRS_ROWS(pairs_rows_zeros_2, true, 2)

static const uint8_t *pairs_codes(const struct packed *w, size_t panel, const struct pairs_piece *o)
{
    return (const uint8_t *)w->data + panel * kern_quant_panel_bytes(w->quant, w->n_in) +
           o->g * o->n_quads * QUANT_LINE;
}

/* Continues the chains of all rows in the panels [panel, panel + n_panels) over a K-slice. */
static void pairs_piece(const struct quant_slice *s, size_t panel, size_t n_panels,
                        struct pairs_piece *o, struct pairs_work *m)
{
    const struct packed *w = s->w;
    const size_t panel_bytes = kern_quant_panel_bytes(w->quant, w->n_in);
    const size_t n_quads = o->n_groups * o->n_quads, n_scales = o->n_groups * PANEL_COLUMNS;
    pairs_prepare(s, o, m);
    o->n_ahead = n_quads;
    o->ahead_stride = panel_bytes;
    for (size_t p = 0, n; p < n_panels; p += n) {
        float(*acc)[QUANT_PANELS][PANEL_COLUMNS] = m->acc[p / QUANT_PANELS];
        n = quant_min(n_panels - p, QUANT_PANELS);
        for (size_t i = 0; i < n; i++) {
            const uint8_t *codes = pairs_codes(w, panel + p + i, o);
            const size_t scale = kern_quant_scale_index(w, (panel + p + i) * PANEL_COLUMNS, o->g);
            pairs_versions(codes, n_quads, m->versions[0][i][0]);
            set_scales(w->quant, w->scales, scale, n_scales, m->scales[i][0]);
            if (w->quant.has_zeros) set_zeros(w->zeros + scale, n_scales, 0, m->zeros[i][0]);
        }
        o->ahead = p + n < n_panels ? pairs_codes(w, panel + p + n, o)
                                    : quant_after(w, panel, n_panels, o->g + o->n_groups,
                                                  s->xq->n_groups, panel_bytes);
        if (w->quant.has_zeros)
            (n == 1 ? pairs_rows_zeros_1 : pairs_rows_zeros_2)(o, m, acc);
        else
            (n == 1 ? pairs_rows_1 : pairs_rows_2)(o, m, acc);
    }
}

/* Computes the chains over groups [g0, g1), starting at +0, into m->acc. */
static void pairs_chains(const struct quant_slice *s, size_t panel, size_t n_panels, size_t g0,
                         size_t g1, struct pairs_work *m)
{
    const size_t most = PAIRS_PIECE / s->xq->group, n_pieces = (g1 - g0 + most - 1) / most;
    struct pairs_piece o = {
        .n_rows = s->n_rows, .g = g0, .n_quads = s->xq->group / QUANT_QUAD, .begins = true};
    if (n_pieces == 0) memset(m->acc, 0, sizeof m->acc);
    for (size_t i = 0; i < n_pieces; i++, o.g += o.n_groups, o.begins = false) {
        o.n_groups = (g1 - o.g + n_pieces - i - 1) / (n_pieces - i);
        pairs_piece(s, panel, n_panels, &o, m);
    }
}

static void pairs_panels(const struct quant_slice *s, size_t panel, size_t n_panels)
{
    struct pairs_work m;
    pairs_chains(s, panel, n_panels, 0, s->xq->n_groups, &m);
    for (size_t r = 0; r < s->n_rows; r++)
        for (size_t p = 0; p < n_panels; p++)
            QUANT_PUT(quant_y_at(s, r, panel + p), m.acc[p / QUANT_PANELS][r][p % QUANT_PANELS],
                      quant_outputs_of(s->w, panel + p));
}

struct pairs_sums {
    int64_t sums[QUANT_BLOCK_ROWS][PAIRS_PANELS][PANEL_COLUMNS] __attribute__((aligned(64)));
    int64_t n_bad[QUANT_BLOCK_ROWS];
};

static void pairs_leaf_ends(const struct quant_slice *s, const struct quant_leaf *leaf,
                            size_t panel, size_t n_panels, struct pairs_work *m,
                            struct pairs_sums *l)
{
    for (size_t p = 0; p < n_panels; p += QUANT_PANELS)
        quant_panels_leaf_end(&(struct quant_end){.slice = s,
                                                  .panel = panel + p,
                                                  .leaf = leaf,
                                                  .sums = l->sums[0][p],
                                                  .sums_row = PAIRS_PANELS * PANEL_COLUMNS,
                                                  .n_bad = l->n_bad},
                              quant_min(n_panels - p, QUANT_PANELS),
                              m->acc[p / QUANT_PANELS][0][0]);
}

static void pairs_panels_leaf(const struct quant_slice *s, size_t panel, size_t n_panels)
{
    struct pairs_work m;
    struct pairs_sums l;
    struct quant_leaf leaf = quant_leaf_start(s);
    memset(l.n_bad, 0, s->n_rows * sizeof l.n_bad[0]);
    for (;; quant_leaf_next(s, &leaf)) {
        pairs_chains(s, panel, n_panels, leaf.g, leaf.g + leaf.n_groups, &m);
        pairs_leaf_ends(s, &leaf, panel, n_panels, &m, &l);
        if (leaf.is_last) break;
    }
    quant_count_bad(s, l.n_bad);
}

#endif
