/* Reference kernels on one row: grid, weighted rows, norms, RoPE, storing into the cache, gates
 * and activations, sums. */
#include "kernels/ref/ref.h"

#include "kernels/body.h"
#include "kernels/elementary_body.h"

#include <math.h>

static void k_grid_to_f32_ref(const int64_t *sums, size_t n, uint32_t grid_bits, float *y)
{
    const double unit = kern_pow2(-(int)grid_bits);
    for (size_t i = 0; i < n; i++) y[i] = (float)((double)sums[i] * unit);
}

static void k_grid_add_ref(const int64_t *sums, size_t n, uint32_t grid_bits, float *h)
{
    const double unit = kern_pow2(-(int)grid_bits);
    for (size_t i = 0; i < n; i++) h[i] += (float)((double)sums[i] * unit);
}

static int64_t k_weighted_add_ref(const struct weighted_rows *a, int64_t *sums)
{
    int64_t n_bad = 0;
    for (size_t i = 0; i < a->n; i++) sums[i] += kern_weighted_column(a, i, &n_bad);
    return n_bad;
}

static int64_t k_weighted_to_f32_ref(const struct weighted_rows *a, float *y)
{
    int64_t n_bad = 0;
    for (size_t i = 0; i < a->n; i++) {
        const int64_t sum = kern_weighted_column(a, i, &n_bad);
        k_grid_to_f32_ref(&sum, 1, a->grid_bits, y + i);
    }
    return n_bad;
}

static float tree(float lanes[LANES])
{
    for (size_t half = LANES / 2; half > 0; half /= 2)
        for (size_t i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

static float k_square_sum_f32_ref(const float *x, size_t n)
{
    float lanes[LANES] = {0};
    for (size_t d = 0; d < n; d++) lanes[d % LANES] = fmaf(x[d], x[d], lanes[d % LANES]);
    return tree(lanes);
}

static void k_rmsnorm_f32_ref(const float *x, const float *w, size_t n, float eps, float *y)
{
    const float r = 1.0f / sqrtf(k_square_sum_f32_ref(x, n) / (float)n + eps);
    for (size_t d = 0; d < n; d++) y[d] = (x[d] * r) * w[d];
}

static void k_layernorm_f32_ref(const float *x, const float *w, const float *b, size_t n, float eps,
                                float *y)
{
    float sums[LANES] = {0}, squares[LANES] = {0};
    for (size_t d = 0; d < n; d++) sums[d % LANES] += x[d];
    const float mean = tree(sums) / (float)n;
    for (size_t d = 0; d < n; d++) {
        const float c = x[d] - mean;
        squares[d % LANES] = fmaf(c, c, squares[d % LANES]);
    }
    const float r = 1.0f / sqrtf(tree(squares) / (float)n + eps);
    for (size_t d = 0; d < n; d++) y[d] = fmaf((x[d] - mean) * r, w[d], b[d]);
}

static void k_rope_f32_ref(float *x, const float *cos, const float *sin, size_t rot)
{
    const size_t half = rot / 2;
    for (size_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = fmaf(-b, sin[i], a * cos[i]);
        x[i + half] = fmaf(a, sin[i], b * cos[i]);
    }
}

static void k_kv_store_f32_ref(const float *x, size_t n, void *out, float *scale)
{
    (void)scale;
    dtype_from_f32(DTYPE_F32, x, n, out);
}

static void k_kv_store_f16_ref(const float *x, size_t n, void *out, float *scale)
{
    (void)scale;
    dtype_from_f32(DTYPE_F16, x, n, out);
}

static void k_kv_store_bf16_ref(const float *x, size_t n, void *out, float *scale)
{
    (void)scale;
    dtype_from_f32(DTYPE_BF16, x, n, out);
}

static void k_kv_store_i8_ref(const float *x, size_t n, void *out, float *scale)
{
    int32_t sum;
    const struct quant_rows one = {(uint32_t)n, 1, out, scale, &sum};
    k_quantize_row_ref(x, n, &one, 0);
}

static void k_kv_store_fp8_ref(const float *x, size_t n, void *out, float *scale)
{
    uint8_t *codes = out;
    (void)scale;
    for (size_t i = 0; i < n; i++) codes[i] = isfinite(x[i]) ? e4m3_from_f32(x[i]) : 0x7F;
}

static void k_swiglu_f32_ref(const float *gate, const float *up, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] = el_swiglu_body(gate[i], up[i]);
}

static void k_geglu_f32_ref(const float *gate, const float *up, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] = el_geglu_body(gate[i], up[i]);
}

static void k_softcap_f32_ref(float *x, size_t n, float cap)
{
    for (size_t i = 0; i < n; i++) x[i] = el_softcap_body(x[i], cap);
}

static void k_xielu_f32_ref(float *x, size_t n, const float law[4])
{
    for (size_t i = 0; i < n; i++) x[i] = el_xielu_body(x[i], law);
}

static void k_gelu_f32_ref(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = el_gelu_body(x[i]);
}

static void k_swiglu_clamped_f32_ref(const float *gate, const float *up, size_t n, float alpha,
                                     float limit, float *y)
{
    for (size_t i = 0; i < n; i++) y[i] = el_swiglu_clamped_body(gate[i], up[i], alpha, limit);
}

static void k_add_f32_ref(float *h, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) h[i] += x[i];
}

static void k_axpy_f32_ref(float w, const float *y, size_t n, float *acc)
{
    for (size_t i = 0; i < n; i++) acc[i] = fmaf(w, y[i], acc[i]);
}

void fill_row_ref(struct kern_table *t)
{
    t->grid_to_f32 = k_grid_to_f32_ref;
    t->grid_add = k_grid_add_ref;
    t->weighted_to_f32 = k_weighted_to_f32_ref;
    t->weighted_add = k_weighted_add_ref;
    t->square_sum = k_square_sum_f32_ref;
    t->rmsnorm = k_rmsnorm_f32_ref;
    t->rope = k_rope_f32_ref;
    t->kv_store[DTYPE_F32] = k_kv_store_f32_ref;
    t->kv_store[DTYPE_F16] = k_kv_store_f16_ref;
    t->kv_store[DTYPE_BF16] = k_kv_store_bf16_ref;
    t->kv_store[DTYPE_I8] = k_kv_store_i8_ref;
    t->kv_store[DTYPE_F8_E4M3] = k_kv_store_fp8_ref;
    t->swiglu = k_swiglu_f32_ref;
    t->geglu = k_geglu_f32_ref;
    t->softcap = k_softcap_f32_ref;
    t->xielu = k_xielu_f32_ref;
    t->gelu = k_gelu_f32_ref;
    t->layernorm = k_layernorm_f32_ref;
    t->swiglu_clamped = k_swiglu_clamped_f32_ref;
    t->add = k_add_f32_ref;
    t->axpy = k_axpy_f32_ref;
}
