/* Ops on one row of f32 values. The end of a row goes through masked loads and stores, or through
 * scalar code that gives the same bits. */
#include "kernels/avx2/avx2.h"

#include "kernels/avx2/vec.h"

#include "kernels/activation_body.h"

/* Loads elements [i, i + 8), as far as they are below n; the others are +0. tail_store writes only
 * those below n. */
ALWAYS_INLINE __m256 tail_load(const float *x, size_t i, size_t n)
{
    return _mm256_maskload_ps(x + i, v8_first(n - i));
}

ALWAYS_INLINE void tail_store(float *y, size_t i, size_t n, __m256 v)
{
    _mm256_maskstore_ps(y + i, v8_first(n - i), v);
}

void k_grid_to_f32_avx2(const int64_t *sums, size_t n, uint32_t grid_bits, float *y)
{
    const double unit = kern_pow2(-(int)grid_bits);
    size_t i = 0;
    for (; i + 4 <= n; i += 4) _mm_storeu_ps(y + i, grid_four(sums + i, _mm256_set1_pd(unit)));
    for (; i < n; i++) y[i] = (float)((double)sums[i] * unit);
}

static void k_grid_add_avx2(const int64_t *sums, size_t n, uint32_t grid_bits, float *h)
{
    const double unit = kern_pow2(-(int)grid_bits);
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const __m128 y = grid_four(sums + i, _mm256_set1_pd(unit));
        _mm_storeu_ps(h + i, _mm_add_ps(_mm_loadu_ps(h + i), y));
    }
    for (; i < n; i++) h[i] += (float)((double)sums[i] * unit);
}

static float k_square_sum_f32_avx2(const float *x, size_t n)
{
    struct v16 lanes = v16_zero();
    size_t d = 0;
    for (; d + LANES <= n; d += LANES) {
        const __m256 a = _mm256_loadu_ps(x + d), b = _mm256_loadu_ps(x + d + 8);
        lanes.a = _mm256_fmadd_ps(a, a, lanes.a);
        lanes.b = _mm256_fmadd_ps(b, b, lanes.b);
    }
    if (d < n) {
        const __m256 a = tail_load(x, d, n);
        lanes.a = _mm256_fmadd_ps(a, a, lanes.a);
    }
    if (d + 8 < n) {
        const __m256 b = tail_load(x, d + 8, n);
        lanes.b = _mm256_fmadd_ps(b, b, lanes.b);
    }
    return v16_tree(lanes);
}

static void k_rmsnorm_f32_avx2(const float *x, const float *w, size_t n, float eps, float *y)
{
    const float scale = 1.0f / sqrtf(k_square_sum_f32_avx2(x, n) / (float)n + eps);
    const __m256 r = _mm256_set1_ps(scale);
    size_t d = 0;
    for (; d + 8 <= n; d += 8) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + d), r);
        _mm256_storeu_ps(y + d, _mm256_mul_ps(v, _mm256_loadu_ps(w + d)));
    }
    for (; d < n; d++) y[d] = (x[d] * scale) * w[d];
}

static void k_rope_f32_avx2(float *x, const float *cos, const float *sin, size_t rot)
{
    const size_t half = rot / 2;
    size_t i = 0;
    for (; i + 8 <= half; i += 8) {
        const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
        const __m256 c = _mm256_loadu_ps(cos + i), s = _mm256_loadu_ps(sin + i);
        _mm256_storeu_ps(x + i, _mm256_fnmadd_ps(b, s, _mm256_mul_ps(a, c)));
        _mm256_storeu_ps(x + half + i, _mm256_fmadd_ps(a, s, _mm256_mul_ps(b, c)));
    }
    for (; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = fmaf(-b, sin[i], a * cos[i]);
        x[i + half] = fmaf(a, sin[i], b * cos[i]);
    }
}

static void k_kv_store_f16_avx2(const float *x, size_t n, void *out, float *scale)
{
    (void)scale;
    uint16_t *h = out;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m128i v = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((void *)(h + i), v);
    }
    dtype_from_f32(DTYPE_F16, x + i, n - i, h + i);
}

/* Returns the top 16 bits, rounded to nearest even; a NaN is made quiet instead. */
ALWAYS_INLINE __m256i bf16_bits(__m256 x)
{
    const __m256i u = _mm256_castps_si256(x), top = _mm256_srli_epi32(u, 16);
    const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    const __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7FFF));
    const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(nearest, 16), quiet, nan);
}

static void k_kv_store_bf16_avx2(const float *x, size_t n, void *out, float *scale)
{
    (void)scale;
    uint16_t *h = out;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i v = bf16_bits(_mm256_loadu_ps(x + i));
        const __m128i packed =
            _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
        _mm_storeu_si128((void *)(h + i), packed);
    }
    dtype_from_f32(DTYPE_BF16, x + i, n - i, h + i);
}

ALWAYS_INLINE __m256 swiglu8(__m256 gate, __m256 up)
{
    const __m256 e = v8_exp(_mm256_xor_ps(gate, _mm256_set1_ps(-0.0f)));
    const __m256 silu = _mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
    return _mm256_mul_ps(silu, up);
}

static void k_swiglu_f32_avx2(const float *gate, const float *up, size_t n, float *y)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, swiglu8(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i)));
    if (i < n) tail_store(y, i, n, swiglu8(tail_load(gate, i, n), tail_load(up, i, n)));
}

ALWAYS_INLINE __m256 swiglu_clamped8(__m256 gate, __m256 up, float alpha, float limit)
{
    /* min and max return their second operand if either is NaN */
    const __m256 top = _mm256_set1_ps(limit), one = _mm256_set1_ps(1.0f);
    const __m256 g = _mm256_min_ps(top, gate);
    const __m256 u = _mm256_max_ps(_mm256_set1_ps(-limit), _mm256_min_ps(top, up));
    const __m256 scaled = _mm256_mul_ps(_mm256_set1_ps(alpha), g);
    const __m256 e = v8_exp(_mm256_xor_ps(scaled, _mm256_set1_ps(-0.0f)));
    return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, e)), _mm256_add_ps(u, one));
}

static void k_swiglu_clamped_f32_avx2(const float *gate, const float *up, size_t n, float alpha,
                                      float limit, float *y)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v =
            swiglu_clamped8(_mm256_loadu_ps(gate + i), _mm256_loadu_ps(up + i), alpha, limit);
        _mm256_storeu_ps(y + i, v);
    }
    if (i < n) {
        const __m256 g = tail_load(gate, i, n), u = tail_load(up, i, n);
        tail_store(y, i, n, swiglu_clamped8(g, u, alpha, limit));
    }
}

static void k_add_f32_avx2(float *h, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(h + i, _mm256_add_ps(_mm256_loadu_ps(h + i), _mm256_loadu_ps(x + i)));
    for (; i < n; i++) h[i] += x[i];
}

static void k_axpy_f32_avx2(float w, const float *y, size_t n, float *acc)
{
    const __m256 weight = _mm256_set1_ps(w);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 sum = _mm256_loadu_ps(acc + i);
        _mm256_storeu_ps(acc + i, _mm256_fmadd_ps(weight, _mm256_loadu_ps(y + i), sum));
    }
    for (; i < n; i++) acc[i] = fmaf(w, y[i], acc[i]);
}

static void k_geglu_f32_avx2(const float *gate, const float *up, size_t n, float *y)
{
    row_geglu(gate, up, n, y);
}

static void k_softcap_f32_avx2(float *x, size_t n, float cap)
{
    row_softcap(x, n, cap);
}

static void k_xielu_f32_avx2(float *x, size_t n, const float law[4])
{
    row_xielu(x, n, law);
}

static void k_gelu_f32_avx2(float *x, size_t n)
{
    row_gelu(x, n);
}

static void k_layernorm_f32_avx2(const float *x, const float *w, const float *b, size_t n,
                                 float eps, float *y)
{
    row_layernorm(x, w, b, n, eps, y);
}

void fill_row_avx2(struct kern_table *t)
{
    t->grid_to_f32 = k_grid_to_f32_avx2;
    t->grid_add = k_grid_add_avx2;
    t->square_sum = k_square_sum_f32_avx2;
    t->rmsnorm = k_rmsnorm_f32_avx2;
    t->rope = k_rope_f32_avx2;
    t->kv_store[DTYPE_F16] = k_kv_store_f16_avx2;
    t->kv_store[DTYPE_BF16] = k_kv_store_bf16_avx2;
    t->swiglu = k_swiglu_f32_avx2;
    t->geglu = k_geglu_f32_avx2;
    t->softcap = k_softcap_f32_avx2;
    t->xielu = k_xielu_f32_avx2;
    t->gelu = k_gelu_f32_avx2;
    t->layernorm = k_layernorm_f32_avx2;
    t->swiglu_clamped = k_swiglu_clamped_f32_avx2;
    t->add = k_add_f32_avx2;
    t->axpy = k_axpy_f32_avx2;
}
