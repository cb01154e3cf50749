/* Ops on one row that are faster with 512-bit registers. The loops of this file handle the last
 * values of a row with masked loads and stores: lanes beyond the row load as +0 and are not
 * written. Ops that only call a row_ function handle them as activation_body.h does. */
#include "kernels/avx512/avx512.h"

#include "kernels/avx512/vec.h"

#include "kernels/activation_body.h"

ALWAYS_INLINE __m512 negative(__m512 x)
{
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), sign));
}

void k_grid_to_f32_avx512(const int64_t *sums, size_t n, uint32_t grid_bits, float *y)
{
    const __m512d unit = _mm512_set1_pd(kern_pow2(-(int)grid_bits));
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, grid_eight(_mm512_loadu_si512(sums + i), unit));
    if (i == n) return;
    const __mmask8 rest = (__mmask8)v16_first(n - i);
    _mm256_mask_storeu_ps(y + i, rest, grid_eight(_mm512_maskz_loadu_epi64(rest, sums + i), unit));
}

static void k_grid_add_avx512(const int64_t *sums, size_t n, uint32_t grid_bits, float *h)
{
    const __m512d unit = _mm512_set1_pd(kern_pow2(-(int)grid_bits));
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 y = grid_eight(_mm512_loadu_si512(sums + i), unit);
        _mm256_storeu_ps(h + i, _mm256_add_ps(_mm256_loadu_ps(h + i), y));
    }
    if (i == n) return;
    const __mmask8 rest = (__mmask8)v16_first(n - i);
    const __m256 y = grid_eight(_mm512_maskz_loadu_epi64(rest, sums + i), unit);
    _mm256_mask_storeu_ps(h + i, rest, _mm256_add_ps(_mm256_maskz_loadu_ps(rest, h + i), y));
}

ALWAYS_INLINE __m512 swiglu16(__m512 gate, __m512 up)
{
    const struct v16 e = v16_exp((struct v16){negative(gate)});
    const __m512 silu = _mm512_div_ps(gate, _mm512_add_ps(_mm512_set1_ps(1.0f), e.v));
    return _mm512_mul_ps(silu, up);
}

static void k_swiglu_f32_avx512(const float *gate, const float *up, size_t n, float *y)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(y + i, swiglu16(_mm512_loadu_ps(gate + i), _mm512_loadu_ps(up + i)));
    if (i == n) return;
    const __mmask16 rest = v16_first(n - i);
    _mm512_mask_storeu_ps(
        y + i, rest,
        swiglu16(_mm512_maskz_loadu_ps(rest, gate + i), _mm512_maskz_loadu_ps(rest, up + i)));
}

static void k_rmsnorm_f32_avx512(const float *x, const float *w, size_t n, float eps, float *y)
{
    __m512 lanes = _mm512_setzero_ps();
    size_t d = 0;
    for (; d + LANES <= n; d += LANES) {
        const __m512 v = _mm512_loadu_ps(x + d);
        lanes = _mm512_fmadd_ps(v, v, lanes);
    }
    const __mmask16 rest = v16_first(n - d);
    const __m512 last = _mm512_maskz_loadu_ps(rest, x + d);
    lanes = _mm512_mask3_fmadd_ps(last, last, lanes, rest);
    const float sum = v16_tree((struct v16){lanes});
    const __m512 r = _mm512_set1_ps(1.0f / sqrtf(sum / (float)n + eps));
    for (d = 0; d + LANES <= n; d += LANES) {
        const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x + d), r);
        _mm512_storeu_ps(y + d, _mm512_mul_ps(v, _mm512_loadu_ps(w + d)));
    }
    const __m512 v = _mm512_mul_ps(last, r);
    _mm512_mask_storeu_ps(y + d, rest, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(rest, w + d)));
}

static void k_axpy_f32_avx512(float w, const float *y, size_t n, float *acc)
{
    const __m512 weight = _mm512_set1_ps(w);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512 sum = _mm512_loadu_ps(acc + i);
        _mm512_storeu_ps(acc + i, _mm512_fmadd_ps(weight, _mm512_loadu_ps(y + i), sum));
    }
    if (i == n) return;
    const __mmask16 rest = v16_first(n - i);
    const __m512 sum = _mm512_maskz_loadu_ps(rest, acc + i);
    const __m512 last = _mm512_maskz_loadu_ps(rest, y + i);
    _mm512_mask_storeu_ps(acc + i, rest, _mm512_fmadd_ps(weight, last, sum));
}

static void k_geglu_f32_avx512(const float *gate, const float *up, size_t n, float *y)
{
    row_geglu(gate, up, n, y);
}

static void k_softcap_f32_avx512(float *x, size_t n, float cap)
{
    row_softcap(x, n, cap);
}

static void k_xielu_f32_avx512(float *x, size_t n, const float law[4])
{
    row_xielu(x, n, law);
}

static void k_gelu_f32_avx512(float *x, size_t n)
{
    row_gelu(x, n);
}

static void k_layernorm_f32_avx512(const float *x, const float *w, const float *b, size_t n,
                                   float eps, float *y)
{
    row_layernorm(x, w, b, n, eps, y);
}

void fill_row_avx512(struct kern_table *t)
{
    t->grid_to_f32 = k_grid_to_f32_avx512;
    t->grid_add = k_grid_add_avx512;
    t->rmsnorm = k_rmsnorm_f32_avx512;
    t->swiglu = k_swiglu_f32_avx512;
    t->geglu = k_geglu_f32_avx512;
    t->softcap = k_softcap_f32_avx512;
    t->xielu = k_xielu_f32_avx512;
    t->gelu = k_gelu_f32_avx512;
    t->layernorm = k_layernorm_f32_avx512;
    t->axpy = k_axpy_f32_avx512;
}
