/* The linear op. Lanes run across the 16 outputs of a panel, so each output keeps its own chain
 * over k. Few rows: weights are converted in registers and the next ones prefetched (bound by
 * memory). Many rows: a piece of a panel is converted once into a scratch that all rows use. */
#include "kernels/avx2/avx2.h"

#include "kernels/avx2/vec.h"

enum {
    FEW_ROWS = 6,    /* rows of a register tile: 6 x 16 outputs are 12 accumulators */
    BLOCK_ROWS = 96, /* rows that share a converted piece */
    PIECE = 256,     /* inputs of a converted piece: 16 KiB of f32 weights */
    FEW_PIECE = 512, /* inputs that are prefetched while as many are multiplied */
};

/* A rectangle of one group's outputs. */
struct slice {
    const struct packed *w;
    const float *x; /* of the first row */
    size_t x_stride;
    float *y; /* of the first row; or */
    size_t y_stride;
    int64_t *sums; /* of the first row */
    size_t n_rows;
};

/* The order in which 16 weights lie in two registers: ascending; bf16 has the even ones in a and
 * the odd ones in b, which costs one instruction each. */
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

/* Outputs in ascending order from the order of their weights. */
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

/* What a register tile reads. */
struct operands {
    const float *x; /* [n_rows, x_stride] from the first input */
    size_t x_stride;
    const void *w; /* the first input's weights of the first panel */
    size_t panel_stride, n_k;
    const char *ahead; /* weights to fetch meanwhile, laid out like w; any address will do */
};

/* c[row][panel] = the chain continued over n_k inputs; n_rows * n_panels <= 6. ahead_bytes is what
 * one input of a panel takes where `ahead` points; 0: nothing is fetched. */
ALWAYS_INLINE void chains(enum dtype t, size_t n_rows, size_t n_panels, size_t ahead_bytes,
                          const struct operands *o, struct v16 *c)
{
    __m256 a[FEW_ROWS], b[FEW_ROWS];
#pragma GCC unroll 6
    for (size_t i = 0; i < n_rows * n_panels; i++) {
        a[i] = c[i].a;
        b[i] = c[i].b;
    }
    for (size_t k = 0; k < o->n_k; k++) {
#pragma GCC unroll 4
        for (size_t p = 0; p < n_panels; p++) {
            const size_t at = p * o->panel_stride + k * PANEL_COLUMNS;
            const struct v16 wk = load_weights(t, o->w, at);
            if (ahead_bytes > 0)
                _mm_prefetch(o->ahead + at / PANEL_COLUMNS * ahead_bytes, _MM_HINT_T0);
#pragma GCC unroll 6
            for (size_t r = 0; r < n_rows; r++) {
                const __m256 xk = _mm256_broadcast_ss(o->x + r * o->x_stride + k);
                a[r * n_panels + p] = _mm256_fmadd_ps(xk, wk.a, a[r * n_panels + p]);
                b[r * n_panels + p] = _mm256_fmadd_ps(xk, wk.b, b[r * n_panels + p]);
            }
        }
    }
#pragma GCC unroll 6
    for (size_t i = 0; i < n_rows * n_panels; i++) c[i] = (struct v16){a[i], b[i]};
}

/* Bytes of 16 weights: one input of a panel. */
ALWAYS_INLINE size_t input_bytes(enum dtype t)
{
    return PANEL_COLUMNS * (t == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* The grid's constants (numerics law: bits((double)p + magic) - bits(magic) is llrint(p * 2^g)).
 * The subtraction is done once for all leaves, at the end. */
struct grid {
    __m256 limit;
    __m256d magic;
};

/* Sixteen integer sums, in the order of the weights. */
struct sums16 {
    __m256i s[4];
};

static struct grid grid_of(const struct packed *w)
{
    const int g = (int)w->grid_bits;
    return (struct grid){_mm256_set1_ps(kern_grid_limit(w->grid_bits)),
                         _mm256_set1_pd(1.5 * kern_pow2(52 - g))};
}

ALWAYS_INLINE __m256i add_four(__m256i sum, __m128 p, __m256d magic)
{
    const __m256d shifted = _mm256_add_pd(_mm256_cvtps_pd(p), magic);
    return _mm256_add_epi64(sum, _mm256_castpd_si256(shifted));
}

/* Adds a leaf's partials. Returns a bit for each lane that does not fit the grid and counts 0. */
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

/* The lanes of a panel that are outputs, n of them: the others are padding and never counted. */
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

static size_t leaf_length(const struct packed *w, bool leafy)
{
    return leafy ? w->leaf : w->n_in;
}

/* Outputs of `panel` that exist. */
static size_t outputs_of(const struct packed *w, size_t panel)
{
    const size_t left = w->n_out - panel * PANEL_COLUMNS;
    return left < PANEL_COLUMNS ? left : PANEL_COLUMNS;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Where row r's outputs of a panel go. */
ALWAYS_INLINE float *y_at(const struct slice *s, size_t r, size_t panel)
{
    return s->y + r * s->y_stride + panel * PANEL_COLUMNS;
}

ALWAYS_INLINE int64_t *sums_at(const struct slice *s, size_t r, size_t panel)
{
    return s->sums + r * ((size_t)s->w->n_out + 1) + panel * PANEL_COLUMNS;
}

/* Where the weights after inputs [.., k) of a group of panels stand: the next inputs, or the next
 * group of panels, or (at the end) these again. */
static const char *after(const struct slice *s, size_t panel, size_t n_panels, size_t k,
                         size_t n_bytes)
{
    const size_t next = k < s->w->n_in ? panel : panel + n_panels;
    const size_t at = k < s->w->n_in ? k : 0;
    const size_t last = (s->w->n_out - 1) / PANEL_COLUMNS;
    return (const char *)s->w->data + ((next < last ? next : last) * s->w->n_in + at) * n_bytes;
}

/* The leaf sums of n panels' tiles, and each row's number of bad leaves. */
struct leaf_sums {
    struct sums16 sums[FEW_ROWS];
    int64_t n_bad[FEW_ROWS];
    size_t n_leaves;
};

/* Takes a leaf's partials from c to the grid and starts the next one at +0. */
ALWAYS_INLINE void end_leaf(enum dtype t, size_t n_rows, size_t n_panels, const struct slice *s,
                            size_t panel, const struct grid *g, struct v16 *c, struct leaf_sums *l)
{
#pragma GCC unroll 6
    for (size_t i = 0; i < n_rows * n_panels; i++) {
        const unsigned bad = grid_add(g, c[i], &l->sums[i]);
        if (bad != 0)
            l->n_bad[i / n_panels] +=
                __builtin_popcount(bad & output_lanes(t, outputs_of(s->w, panel + i % n_panels)));
        c[i] = v16_zero();
    }
    l->n_leaves++;
}

/* n_rows rows (all of the slice) times n_panels panels, both constant. */
ALWAYS_INLINE void few_tile(enum dtype t, bool leafy, size_t n_rows, size_t n_panels,
                            const struct slice *s, size_t panel)
{
    const struct packed *w = s->w;
    const size_t leaf = leaf_length(w, leafy);
    const struct grid g = grid_of(w);
    struct leaf_sums l = {0};
    struct v16 c[FEW_ROWS];
    for (size_t i = 0; i < n_rows * n_panels; i++) c[i] = v16_zero();
    for (size_t k = 0, left = leaf, n_k; k < w->n_in; k += n_k, left -= n_k) {
        if (left == 0) left = leaf;
        n_k = min_size(min_size(left, w->n_in - k), FEW_PIECE);
        const struct operands o = {.x = s->x + k,
                                   .x_stride = s->x_stride,
                                   .w = (const char *)w->data +
                                        (panel * w->n_in + k) * input_bytes(t),
                                   .panel_stride = (size_t)w->n_in * PANEL_COLUMNS,
                                   .n_k = n_k,
                                   .ahead = after(s, panel, n_panels, k + n_k, input_bytes(t))};
        chains(t, n_rows, n_panels, input_bytes(t), &o, c);
        if (leafy && (n_k == left || k + n_k == w->n_in))
            end_leaf(t, n_rows, n_panels, s, panel, &g, c, &l);
    }
    for (size_t i = 0; i < n_rows * n_panels; i++) {
        const size_t r = i / n_panels, p = panel + i % n_panels;
        if (leafy)
            store_sums(t, &l.sums[i], &g, l.n_leaves, outputs_of(w, p), sums_at(s, r, p));
        else
            store_outputs(t, c[i], outputs_of(w, p), y_at(s, r, p));
    }
    for (size_t r = 0; leafy && r < n_rows; r++)
        kern_count_bad(sums_at(s, r, 0) + w->n_out, l.n_bad[r]);
}

/* A constant number of rows over panels [p, p1), n_panels at a time as long as there are. */
ALWAYS_INLINE void few_rows(enum dtype t, bool leafy, size_t n_rows, size_t n_panels,
                            const struct slice *s, size_t p, size_t p1)
{
    for (; p + n_panels <= p1; p += n_panels) few_tile(t, leafy, n_rows, n_panels, s, p);
    for (; p < p1; p++) few_tile(t, leafy, n_rows, 1, s, p);
}

/* At most FEW_ROWS rows: as many panels at once as make eight independent chains of fma, but one
 * when three rows are there, whose six chains per panel leave no registers for a second. */
ALWAYS_INLINE void few(enum dtype t, bool leafy, const struct slice *s, size_t p0, size_t p1)
{
    switch (s->n_rows) {
    case 1:
        few_rows(t, leafy, 1, 4, s, p0, p1);
        break;
    case 2:
        few_rows(t, leafy, 2, 2, s, p0, p1);
        break;
    case 3:
        few_rows(t, leafy, 3, 1, s, p0, p1);
        break;
    case 4:
        few_rows(t, leafy, 4, 1, s, p0, p1);
        break;
    case 5:
        few_rows(t, leafy, 5, 1, s, p0, p1);
        break;
    case 6:
        few_rows(t, leafy, 6, 1, s, p0, p1);
        break;
    default:
        break;
    }
}

/* Inputs [k, k + n_k) of a panel in f32: converted into `scratch`, or where they are. */
ALWAYS_INLINE const float *piece_f32(enum dtype t, const struct packed *w, size_t panel, size_t k,
                                     size_t n_k, float *scratch)
{
    const size_t at = (panel * w->n_in + k) * PANEL_COLUMNS;
    if (t == DTYPE_F32) return (const float *)w->data + at;
    for (size_t i = 0; i < n_k * PANEL_COLUMNS; i += PANEL_COLUMNS) {
        const struct v16 v = load_weights(t, w->data, at + i);
        _mm256_store_ps(scratch + i, v.a);
        _mm256_store_ps(scratch + i + 8, v.b);
    }
    return scratch;
}

/* A register tile of n rows (1 to FEW_ROWS) over a piece of f32 weights. */
ALWAYS_INLINE void piece_tile(size_t n, size_t ahead_bytes, const struct operands *o, struct v16 *c)
{
    switch (n) {
    case 6:
        chains(DTYPE_F32, 6, 1, ahead_bytes, o, c);
        break;
    case 5:
        chains(DTYPE_F32, 5, 1, ahead_bytes, o, c);
        break;
    case 4:
        chains(DTYPE_F32, 4, 1, ahead_bytes, o, c);
        break;
    case 3:
        chains(DTYPE_F32, 3, 1, ahead_bytes, o, c);
        break;
    case 2:
        chains(DTYPE_F32, 2, 1, ahead_bytes, o, c);
        break;
    default:
        chains(DTYPE_F32, 1, 1, ahead_bytes, o, c);
        break;
    }
}

/* Continues the chains of n_rows rows over a piece of f32 weights, in register tiles as even as can
 * be. The first one fetches what comes next. */
ALWAYS_INLINE void piece_rows(size_t n_rows, size_t ahead_bytes, struct operands o, struct v16 *c)
{
    size_t n = 0;
    for (size_t r = 0; r < n_rows; r += n, o.x += n * o.x_stride) {
        const size_t left = n_rows - r, n_tiles = (left + FEW_ROWS - 1) / FEW_ROWS;
        n = (left + n_tiles - 1) / n_tiles;
        if (r == 0)
            piece_tile(n, ahead_bytes, &o, c);
        else
            piece_tile(n, 0, &o, c + r);
    }
}

/* One panel, at most BLOCK_ROWS rows. */
ALWAYS_INLINE void many(enum dtype t, bool leafy, const struct slice *s, size_t panel)
{
    const struct packed *w = s->w;
    const struct grid g = grid_of(w);
    const size_t n_out = outputs_of(w, panel);
    float scratch[PIECE * PANEL_COLUMNS] __attribute__((aligned(64)));
    struct v16 c[BLOCK_ROWS];
    struct sums16 sums[BLOCK_ROWS];
    int64_t n_bad[BLOCK_ROWS];
    size_t n_leaves = 0;
    for (size_t r = 0; r < s->n_rows; r++) {
        c[r] = v16_zero();
        sums[r] = (struct sums16){0};
        n_bad[r] = 0;
    }
    for (size_t k0 = 0; k0 < w->n_in; k0 += leaf_length(w, leafy), n_leaves++) {
        const size_t k1 = k0 + min_size(w->n_in - k0, leaf_length(w, leafy));
        for (size_t k = k0; k < k1; k += PIECE) {
            const size_t n_k = min_size(k1 - k, PIECE);
            const struct operands o = {.x = s->x + k,
                                       .x_stride = s->x_stride,
                                       .w = piece_f32(t, w, panel, k, n_k, scratch),
                                       .n_k = n_k,
                                       .ahead = after(s, panel, 1, k + n_k, input_bytes(t))};
            piece_rows(s->n_rows, input_bytes(t), o, c);
        }
        for (size_t r = 0; leafy && r < s->n_rows; r++) {
            const unsigned bad = grid_add(&g, c[r], &sums[r]);
            if (bad != 0) n_bad[r] += __builtin_popcount(bad & output_lanes(t, n_out));
            c[r] = v16_zero();
        }
    }
    for (size_t r = 0; r < s->n_rows; r++) {
        if (leafy) {
            store_sums(t, &sums[r], &g, n_leaves, n_out, sums_at(s, r, panel));
            kern_count_bad(sums_at(s, r, 0) + w->n_out, n_bad[r]);
        } else {
            store_outputs(t, c[r], n_out, y_at(s, r, panel));
        }
    }
}

/* Rows [row0, row1) of a group as slices of a block of rows. */
ALWAYS_INLINE void linear(enum dtype t, bool leafy, const struct linear_args *a, size_t group,
                          size_t panel0, size_t panel1, size_t row0, size_t row1)
{
    const struct linear_group *g = &a->groups[group];
    for (size_t row = row0; row < row1; row += BLOCK_ROWS) {
        const size_t at = g->row0 + row;
        struct slice s = {.w = g->w,
                          .x = a->x + at * a->x_stride,
                          .x_stride = a->x_stride,
                          .y_stride = a->y_stride,
                          .n_rows = min_size(row1 - row, BLOCK_ROWS)};
        if (leafy)
            s.sums = a->sums + at * ((size_t)g->w->n_out + 1);
        else
            s.y = a->y + at * a->y_stride;
        if (s.n_rows <= FEW_ROWS) {
            few(t, leafy, &s, panel0, panel1);
            continue;
        }
        for (size_t p = panel0; p < panel1; p++) many(t, leafy, &s, p);
    }
}

#define LINEAR_AVX2(name, type)                                                                    \
    void k_linear_##name##_avx2(const struct linear_args *a, size_t group, size_t panel0,          \
                                size_t panel1, size_t row0, size_t row1)                           \
    {                                                                                              \
        linear(type, false, a, group, panel0, panel1, row0, row1);                                 \
    }                                                                                              \
    void k_linear_leaf_##name##_avx2(const struct linear_args *a, size_t group, size_t panel0,     \
                                     size_t panel1, size_t row0, size_t row1)                      \
    {                                                                                              \
        linear(type, true, a, group, panel0, panel1, row0, row1);                                  \
    }
LINEAR_AVX2(f32, DTYPE_F32)
LINEAR_AVX2(f16, DTYPE_F16)
LINEAR_AVX2(bf16, DTYPE_BF16)
