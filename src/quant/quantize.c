/* Quantizes single values and groups, and puts the quantized values into a stored block. */
#include "quant/quantize.h"

#include "base/mem.h"
#include "quant/quantize_private.h"

#include <float.h>
#include <math.h>

static const float f16_most = 65504.0f, e4m3_most = 448.0f;

static float quantize_clamp(float x, float least, float most)
{
    if (!(x > least)) return least; /* also for a NaN */
    return x < most ? x : most;
}

/* Returns 2^e, limited to the range of E8M0. */
static float power_of_two(int e)
{
    const int biased = e + 127;
    return f32_from_e8m0((uint8_t)(biased < 0 ? 0 : biased > 254 ? 254 : biased));
}

/* Returns floor(log2(x)) of a positive finite float. */
static int exponent_of(float x)
{
    if (x < 0x1p-126f) return exponent_of(x * 0x1p24f) - 24;
    return (int)(f32_bits(x) >> 23) - 127;
}

static float stored_scale(struct quant_format f, float scale)
{
    if (f.kind == QUANT_MXFP4) {
        const float m = scale < 0 ? -scale : scale;
        return m > 0 && m < INFINITY ? power_of_two(exponent_of(m)) : power_of_two(-127);
    }
    if (f.scale_dtype != DTYPE_F16) return scale;
    return f32_from_f16(f16_from_f32(quantize_clamp(scale, -f16_most, f16_most)));
}

static int32_t zero_most(struct quant_format f)
{
    return f.kind == QUANT_INT8 ? 255 : 16; /* GPTQ files store zero - 1, so zeros reach 16 */
}

struct quant_param quant_param_of(struct quant_format f, float scale, int32_t zero)
{
    struct quant_param p = {.scale = stored_scale(f, scale)};
    if (f.has_zeros) {
        p.zero = zero < 0 ? 0 : zero > zero_most(f) ? zero_most(f) : zero;
    } else {
        p.zero = f.kind == QUANT_INT4 ? QUANT_INT4_ZERO : 0;
    }
    return p;
}

static struct quant_extremes extremes_of(const float *x, size_t n)
{
    struct quant_extremes e = {0, 0, 0};
    for (size_t i = 0; i < n; i++) {
        if (!(__builtin_fabsf(x[i]) <= FLT_MAX)) continue;
        if (x[i] < e.least) e.least = x[i];
        if (x[i] > e.most) e.most = x[i];
        if (__builtin_fabsf(x[i]) > __builtin_fabsf(e.largest)) e.largest = x[i];
    }
    return e;
}

static struct quant_param fit_asymmetric(struct quant_format f, struct quant_extremes e)
{
    const float top = f.kind == QUANT_INT8 ? 255.0f : 15.0f;
    /* halves, because the difference of two floats may overflow */
    const float range = (e.most * 0.5f - e.least * 0.5f) / (top * 0.5f);
    struct quant_param p = quant_param_of(f, range, 0);
    if (p.scale > 0)
        p.zero = (int32_t)quantize_clamp(__builtin_rintf(-e.least / p.scale), 0.0f, top);
    return p;
}

struct quant_param quant_fit_extremes(struct quant_format f, struct quant_extremes e)
{
    const float m = __builtin_fabsf(e.largest);
    if (f.has_zeros) return fit_asymmetric(f, e);
    switch (f.kind) {
    case QUANT_INT8:
        return quant_param_of(f, m / 127.0f, 0);
    case QUANT_INT4:
        return quant_param_of(f, e.largest / -8.0f, 0);
    case QUANT_FP8:
        return quant_param_of(f, m / e4m3_most, 0);
    default:
        return (struct quant_param){.scale = power_of_two(m > 0 ? exponent_of(m) - 2 : -127)};
    }
}

struct quant_param quant_fit(struct quant_format f, const float *x, size_t n)
{
    return quant_fit_extremes(f, extremes_of(x, n));
}

/* Rounds to the nearest E2M1 number, ties to the even code, saturating at 6. */
static uint8_t e2m1_from_f32(float x)
{
    static const float middles[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    const float m = __builtin_fabsf(x);
    uint8_t code = 0;
    while (code < 7 && (m > middles[code] || (m == middles[code] && code % 2 != 0))) code++;
    return (uint8_t)(code | (f32_bits(x) >> 28 & 8u));
}

uint8_t quant_encode(struct quant_format f, struct quant_param p, float x)
{
    const bool usable = p.scale != 0 && __builtin_fabsf(x) <= FLT_MAX;
    const float q = usable ? x / p.scale : 0.0f;
    switch (f.kind) {
    case QUANT_INT8:
        if (f.has_zeros)
            return (uint8_t)quantize_clamp(__builtin_rintf(q) + (float)p.zero, 0.0f, 255.0f);
        return (uint8_t)(int8_t)quantize_clamp(__builtin_rintf(q), -127.0f, 127.0f);
    case QUANT_INT4:
        return (uint8_t)quantize_clamp(__builtin_rintf(q) + (float)p.zero, 0.0f, 15.0f);
    case QUANT_FP8:
        return e4m3_from_f32(q);
    default:
        return e2m1_from_f32(q);
    }
}

float quant_decode(struct quant_format f, struct quant_param p, uint8_t code)
{
    return quant_value(f, code, p.zero, p.scale);
}

void quant_put_code(struct quant_format f, const struct quant_block *b, size_t n_in, size_t row,
                    size_t k, uint8_t code)
{
    uint8_t *codes = (uint8_t *)b->codes + row * quant_code_bytes(f.kind, n_in);
    if (!quant_is_nibbles(f.kind)) {
        codes[k] = code;
    } else if (k % 2 == 0) {
        codes[k / 2] = (uint8_t)((codes[k / 2] & 0xF0u) | code);
    } else {
        codes[k / 2] = (uint8_t)((codes[k / 2] & 0x0Fu) | code << 4);
    }
}

uint8_t quant_get_code(struct quant_format f, const struct quant_block *b, size_t n_in, size_t row,
                       size_t k)
{
    const uint8_t *codes = (const uint8_t *)b->codes + row * quant_code_bytes(f.kind, n_in);
    if (!quant_is_nibbles(f.kind)) return codes[k];
    return k % 2 == 0 ? codes[k / 2] & 15u : codes[k / 2] >> 4;
}

void quant_put_param(struct quant_format f, const struct quant_block *b, size_t n_in, size_t row,
                     size_t g, struct quant_param p)
{
    const size_t at = row * quant_groups(f, n_in) + g;
    if (f.kind == QUANT_MXFP4) {
        ((uint8_t *)b->scales)[at] = (uint8_t)(exponent_of(p.scale) + 127);
    } else if (f.scale_dtype == DTYPE_F16) {
        ((uint16_t *)b->scales)[at] = f16_from_f32(p.scale);
    } else {
        ((float *)b->scales)[at] = p.scale;
    }
    if (f.has_zeros) b->zeros[at] = (uint8_t)p.zero;
}

struct quant_param quant_get_param(struct quant_format f, const struct quant_block *b, size_t n_in,
                                   size_t row, size_t g)
{
    const size_t at = row * quant_groups(f, n_in) + g;
    struct quant_param p = {.zero = f.kind == QUANT_INT4 ? QUANT_INT4_ZERO : 0};
    if (f.kind == QUANT_MXFP4) {
        p.scale = f32_from_e8m0(((const uint8_t *)b->scales)[at]);
    } else if (f.scale_dtype == DTYPE_F16) {
        p.scale = f32_from_f16(((const uint16_t *)b->scales)[at]);
    } else {
        p.scale = ((const float *)b->scales)[at];
    }
    if (f.has_zeros) p.zero = b->zeros[at];
    return p;
}

struct status quant_block_create(struct quant_format f, size_t n_rows, size_t n_in,
                                 struct quant_block *out)
{
    *out = (struct quant_block){0};
    const size_t n_groups = quant_groups(f, n_in);
    size_t n_codes, n_params;
    if (!mem_mul(n_rows, quant_code_bytes(f.kind, n_in), &n_codes) ||
        !mem_mul(n_rows, n_groups, &n_params)) {
        return status_make(STATUS_MEMORY, "quantized rows: %zu of %zu inputs", n_rows, n_in);
    }
    struct status st = mem_alloc(&out->codes, n_codes, 1, "codes");
    if (!status_failed(&st)) {
        st = mem_alloc(&out->scales, n_params, dtype_bytes(quant_scale_dtype(f)), "scales");
    }
    if (!status_failed(&st) && f.has_zeros) st = mem_alloc(&out->zeros, n_params, 1, "zero points");
    if (status_failed(&st)) quant_block_destroy(out);
    return st;
}

void quant_block_destroy(struct quant_block *b)
{
    mem_free(&b->codes);
    mem_free(&b->scales);
    mem_free(&b->zeros);
}
