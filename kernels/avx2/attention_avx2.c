/* Attention. Rows of a block share each tile of keys and values, converted to f32 once when there
 * are several. Dots run in the law's 16 lanes, values in lanes across the head dimension. */
#include "kernels/avx2/avx2.h"

#include "kernels/avx2/scales.h"
#include "kernels/ref/ref.h"

enum {
    BLOCK_ROWS = 64,   /* rows that share a converted tile */
    WORTH_ROWS = 3,    /* rows from which converting a tile of floats pays */
    WORTH_DIM = 128,   /* and the largest head dimension: 2 x 32 KiB */
    SCRATCH_DIM = 256, /* codes are always converted, up to this head dimension */
    TILE = KV_BLOCK_TOKENS,
};

/* The visible part [j0, j1) of a tile for one query row. */
struct tile {
    const float *q;
    const void *keys, *values; /* of slot 0 */
    size_t head_dim, j0, j1;
    float scale;
};

/* A row's running state; O is in the output row. */
struct state {
    float max, sum;
};

/* Converted keys and values of one tile. */
struct scratch {
    float keys[TILE * SCRATCH_DIM] __attribute__((aligned(64)));
    float values[TILE * SCRATCH_DIM] __attribute__((aligned(64)));
};

/* The trees 4-2-1 of four times 8 lanes. */
ALWAYS_INLINE __m128 tree4(const __m256 v[4])
{
    const __m256 t01 = _mm256_add_ps(_mm256_permute2f128_ps(v[0], v[1], 0x20),
                                     _mm256_permute2f128_ps(v[0], v[1], 0x31));
    const __m256 t23 = _mm256_add_ps(_mm256_permute2f128_ps(v[2], v[3], 0x20),
                                     _mm256_permute2f128_ps(v[2], v[3], 0x31));
    const __m256 two =
        _mm256_add_ps(_mm256_shuffle_ps(t01, t23, 0x44), _mm256_shuffle_ps(t01, t23, 0xEE));
    const __m256 one =
        _mm256_add_ps(_mm256_shuffle_ps(two, two, 0x88), _mm256_shuffle_ps(two, two, 0xDD));
    return _mm_unpacklo_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1));
}

/* q . k of four slots. */
ALWAYS_INLINE __m128 dots4(enum dtype t, const struct tile *tile, const size_t slot[4])
{
    __m256 a[4], b[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) a[i] = b[i] = _mm256_setzero_ps();
    for (size_t d = 0; d < tile->head_dim; d += LANES) {
        const __m256 qa = _mm256_loadu_ps(tile->q + d), qb = _mm256_loadu_ps(tile->q + d + 8);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const size_t at = slot[i] * tile->head_dim + d;
            a[i] = _mm256_fmadd_ps(qa, v8_load(t, tile->keys, at), a[i]);
            b[i] = _mm256_fmadd_ps(qb, v8_load(t, tile->keys, at + 8), b[i]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) a[i] = _mm256_add_ps(a[i], b[i]);
    return tree4(a);
}

/* Scores of slots [j, j + 8), all visible. */
ALWAYS_INLINE __m256 scores8(enum dtype t, const struct tile *tile, size_t j)
{
    const size_t low[4] = {j, j + 1, j + 2, j + 3}, high[4] = {j + 4, j + 5, j + 6, j + 7};
    const __m256 dots = _mm256_set_m128(dots4(t, tile, high), dots4(t, tile, low));
    return _mm256_mul_ps(dots, _mm256_set1_ps(tile->scale));
}

/* The same where some are not: those are -infinity, and a visible slot is read instead. */
ALWAYS_INLINE __m256 scores8_edge(enum dtype t, const struct tile *tile, size_t j)
{
    size_t slot[8];
    for (size_t i = 0; i < 8; i++) {
        const size_t s = j + i < tile->j1 ? j + i : tile->j1 - 1;
        slot[i] = s > tile->j0 ? s : tile->j0;
    }
    const __m256 dots = _mm256_set_m128(dots4(t, tile, slot + 4), dots4(t, tile, slot));
    const __m256 s = _mm256_mul_ps(dots, _mm256_set1_ps(tile->scale));
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i at = _mm256_add_epi32(_mm256_set1_epi32((int)j), lane);
    const __m256i hidden =
        _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)tile->j0), at),
                        _mm256_cmpgt_epi32(at, _mm256_set1_epi32((int)tile->j1 - 1)));
    return _mm256_blendv_ps(s, _mm256_set1_ps(-INFINITY), _mm256_castsi256_ps(hidden));
}

ALWAYS_INLINE float max8(__m256 v)
{
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* e[j] = exp(s_j - m) of the visible slots, +0 for hidden ones beside them; returns (m, l). A NaN
 * score is not the maximum, and makes e, l and the row NaN. */
ALWAYS_INLINE struct state weights(enum dtype t, const struct tile *tile, float e[TILE])
{
    const size_t first = tile->j0 & ~(size_t)7;
    __m256 top = _mm256_set1_ps(-INFINITY);
    struct v16 lanes = v16_zero();
    for (size_t j = first; j < tile->j1; j += 8) {
        const bool inside = j >= tile->j0 && j + 8 <= tile->j1;
        const __m256 s = inside ? scores8(t, tile, j) : scores8_edge(t, tile, j);
        _mm256_store_ps(e + j, s);
        top = _mm256_max_ps(s, top);
    }
    const float max = max8(top);
    for (size_t j = first; j < tile->j1; j += 8) {
        const __m256 v = v8_exp(_mm256_sub_ps(_mm256_load_ps(e + j), _mm256_set1_ps(max)));
        _mm256_store_ps(e + j, v);
        if (j & 8)
            lanes.b = _mm256_add_ps(lanes.b, v);
        else
            lanes.a = _mm256_add_ps(lanes.a, v);
    }
    return (struct state){max, v16_tree(lanes)};
}

/* out[d ..] = o, or fma(o, b, out * a) after the first tile, for 8 * n_vectors (constant) values.
 */
ALWAYS_INLINE void fold_values(enum dtype t, size_t n_vectors, const struct tile *tile,
                               const float *e, size_t d, bool first, float a, float b, float *out)
{
    __m256 o[8];
#pragma GCC unroll 8
    for (size_t i = 0; i < n_vectors; i++) o[i] = _mm256_setzero_ps();
    for (size_t j = tile->j0; j < tile->j1; j++) {
        const __m256 weight = _mm256_broadcast_ss(e + j);
        const size_t at = j * tile->head_dim + d;
#pragma GCC unroll 8
        for (size_t i = 0; i < n_vectors; i++)
            o[i] = _mm256_fmadd_ps(weight, v8_load(t, tile->values, at + 8 * i), o[i]);
    }
#pragma GCC unroll 8
    for (size_t i = 0; i < n_vectors; i++) {
        float *to = out + d + 8 * i;
        if (!first) {
            const __m256 old = _mm256_mul_ps(_mm256_loadu_ps(to), _mm256_set1_ps(a));
            o[i] = _mm256_fmadd_ps(o[i], _mm256_set1_ps(b), old);
        }
        _mm256_storeu_ps(to, o[i]);
    }
}

/* Folds a tile into the row's state; the first one is taken as it is. */
ALWAYS_INLINE void fold(enum dtype t, const struct tile *tile, bool first, struct state *total,
                        float *out)
{
    float e[TILE] __attribute__((aligned(32)));
    float a = 0.0f, b = 0.0f;
    const struct state part = weights(t, tile, e);
    if (first) {
        *total = part;
    } else {
        const float max = part.max > total->max ? part.max : total->max;
        a = el_exp_body(total->max - max);
        b = el_exp_body(part.max - max);
        *total = (struct state){max, fmaf(part.sum, b, total->sum * a)};
    }
    size_t d = 0;
    for (; d + 64 <= tile->head_dim; d += 64) fold_values(t, 8, tile, e, d, first, a, b, out);
    for (; d < tile->head_dim; d += 16) fold_values(t, 2, tile, e, d, first, a, b, out);
}

/* At most BLOCK_ROWS rows of a sequence, one head. */
struct block {
    const struct attn_args *args;
    const struct seq_rows *seq;
    size_t head, row0, n_rows;
    struct state total[BLOCK_ROWS];
};

static size_t output_at(const struct block *b, size_t i)
{
    const size_t row = b->seq->row0 + b->row0 + i;
    return (row * b->args->n_heads + b->head) * b->args->kv.head_dim;
}

/* Tile n, whose keys and values are given in type t, for the rows that see it. */
ALWAYS_INLINE void block_tile(enum dtype t, struct block *b, size_t n, const void *keys,
                              const void *values)
{
    const struct attn_args *a = b->args;
    const size_t start = n * TILE;
    for (size_t i = 0; i < b->n_rows; i++) {
        const size_t p = b->seq->pos0 + b->row0 + i, lo = kern_first_visible(p, a->window);
        if (p < start || lo >= start + TILE) continue;
        const struct tile tile = {.q = a->q + output_at(b, i),
                                  .keys = keys,
                                  .values = values,
                                  .head_dim = a->kv.head_dim,
                                  .j0 = lo > start ? lo - start : 0,
                                  .j1 = p - start < TILE ? p - start + 1 : TILE,
                                  .scale = a->scale};
        fold(t, &tile, n == lo / TILE, &b->total[i], a->out + output_at(b, i));
    }
}

/* Whether the cache holds bytes that no arithmetic reads. */
ALWAYS_INLINE bool is_coded(enum dtype t)
{
    return t == DTYPE_I8 || t == DTYPE_F8_E4M3;
}

ALWAYS_INLINE void convert_codes(enum dtype t, const void *from, size_t j0, size_t j1, size_t hd,
                                 float *to)
{
    const float *scales = kern_kv_scales(from, hd);
    for (size_t j = j0; j < j1; j++) {
        const __m256 scale = _mm256_set1_ps(t == DTYPE_I8 ? scales[j] : 1.0f);
        for (size_t i = j * hd; i < (j + 1) * hd; i += 8) {
            const __m128i codes = _mm_loadl_epi64((const void *)((const uint8_t *)from + i));
            const __m256 v =
                t == DTYPE_I8
                    ? _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), scale)
                    : v8_e4m3(_mm256_cvtepu8_epi32(codes));
            _mm256_store_ps(to + i, v);
        }
    }
}

/* Slots [j0, j1) of a tile in f32. */
ALWAYS_INLINE void convert(enum dtype t, const void *from, size_t j0, size_t j1, size_t hd,
                           float *to)
{
    if (is_coded(t)) {
        convert_codes(t, from, j0, j1, hd, to);
        return;
    }
    for (size_t i = j0 * hd; i < j1 * hd; i += 8) _mm256_store_ps(to + i, v8_load(t, from, i));
}

ALWAYS_INLINE void block_rows(enum dtype t, struct block *b)
{
    const struct attn_args *a = b->args;
    const size_t p0 = b->seq->pos0 + b->row0, p1 = p0 + b->n_rows - 1, hd = a->kv.head_dim;
    const size_t lo = kern_first_visible(p0, a->window);
    const bool converts =
        is_coded(t) || (t != DTYPE_F32 && b->n_rows >= WORTH_ROWS && hd <= WORTH_DIM);
    struct scratch scratch;
    for (size_t n = lo / TILE; n <= p1 / TILE; n++) {
        const size_t start = n * TILE, g = a->kv_of_head[b->head];
        const void *keys = kern_kv_half(&a->kv, b->seq->blocks[n], 0, g);
        const void *values = kern_kv_half(&a->kv, b->seq->blocks[n], 1, g);
        if (!converts) {
            block_tile(t, b, n, keys, values);
            continue;
        }
        const size_t j0 = lo > start ? lo - start : 0;
        const size_t j1 = p1 - start < TILE ? p1 - start + 1 : TILE;
        convert(t, keys, j0, j1, hd, scratch.keys);
        convert(t, values, j0, j1, hd, scratch.values);
        block_tile(DTYPE_F32, b, n, scratch.keys, scratch.values);
    }
    for (size_t i = 0; i < b->n_rows; i++) {
        float *out = a->out + output_at(b, i);
        const __m256 sum =
            _mm256_set1_ps(kern_attention_sum(a, b->head, b->total[i].max, b->total[i].sum));
        for (size_t d = 0; d < hd; d += 8)
            _mm256_storeu_ps(out + d, _mm256_div_ps(_mm256_loadu_ps(out + d), sum));
    }
}

ALWAYS_INLINE void attention(enum dtype t, const struct attn_args *a, size_t seq, size_t head,
                             size_t row0, size_t row1)
{
    for (size_t row = row0; row < row1; row += BLOCK_ROWS) {
        struct block b = {.args = a, .seq = &a->seqs[seq], .head = head, .row0 = row};
        b.n_rows = row1 - row < BLOCK_ROWS ? row1 - row : BLOCK_ROWS;
        block_rows(t, &b);
    }
}

#define ATTENTION_AVX2(name, type)                                                                 \
    void k_attention_##name##_avx2(const struct attn_args *a, size_t seq, size_t head,             \
                                   size_t row0, size_t row1)                                       \
    {                                                                                              \
        attention(type, a, seq, head, row0, row1);                                                 \
    }
ATTENTION_AVX2(f32, DTYPE_F32)
ATTENTION_AVX2(f16, DTYPE_F16)
ATTENTION_AVX2(bf16, DTYPE_BF16)

#define ATTENTION_CODES_AVX2(name, type)                                                           \
    void k_attention_##name##_avx2(const struct attn_args *a, size_t seq, size_t head,             \
                                   size_t row0, size_t row1)                                       \
    {                                                                                              \
        if (a->kv.head_dim <= SCRATCH_DIM)                                                         \
            attention(type, a, seq, head, row0, row1);                                             \
        else                                                                                       \
            k_attention_##name##_ref(a, seq, head, row0, row1);                                    \
    }
ATTENTION_CODES_AVX2(i8, DTYPE_I8)
ATTENTION_CODES_AVX2(fp8, DTYPE_F8_E4M3)
