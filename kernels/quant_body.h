/* Quantized weights, one element at a time: where a packed weight holds an element's quantized
 * value, scale and zero point, and the element's value. The kernels of instruction sets find panels
 * and scales by these functions, but read whole vectors of elements. */
#ifndef SHOAL_KERNELS_QUANT_BODY_H
#define SHOAL_KERNELS_QUANT_BODY_H

#include "kernels/body.h"

enum {
    QUANT_QUAD = 4,        /* inputs of one output that are neighbours in a panel */
    QUANT_INT8_BIAS = 128, /* zero point of packed int8 values (u8), for weights without zero
                              points */
    QUANT_MXFP4_BIAS = 12, /* added to doubled E2M1 numbers to make them unsigned */
};

/* Returns the number of groups in a packed weight's row of n_in inputs. */
DEVICE_INLINE size_t kern_quant_groups(struct quant_format f, size_t n_in)
{
    const size_t group = quant_kernel_group(f);
    return n_in / group + (n_in % group != 0);
}

/* Returns the bytes of one panel's codes. */
DEVICE_INLINE size_t kern_quant_panel_bytes(struct quant_format f, size_t n_in)
{
    const size_t padded = kern_quant_groups(f, n_in) * quant_kernel_group(f);
    return padded * PANEL_COLUMNS / (quant_is_nibbles(f.kind) ? 2 : 1);
}

/* Returns the index of (output n, group g) in packed scales and zeros. */
DEVICE_INLINE size_t kern_quant_scale_index(const struct packed *w, size_t n, size_t g)
{
    const size_t n_groups = kern_quant_groups(w->quant, w->n_in);
    return (n / PANEL_COLUMNS * n_groups + g) * PANEL_COLUMNS + n % PANEL_COLUMNS;
}

/* Returns the bytes of one packed scale. */
DEVICE_INLINE size_t kern_quant_scale_bytes(struct quant_format f)
{
    if (f.kind == QUANT_MXFP4) return 1;
    return f.scale_dtype == DTYPE_F16 ? sizeof(uint16_t) : sizeof(float);
}

/* Returns the stored code; for int8 without zeros, with its bias. */
DEVICE_INLINE uint8_t kern_quant_code(const struct packed *w, size_t n, size_t k)
{
    const uint8_t *panel =
        (const uint8_t *)w->data + n / PANEL_COLUMNS * kern_quant_panel_bytes(w->quant, w->n_in);
    const size_t lane = n % PANEL_COLUMNS * QUANT_QUAD + k % QUANT_QUAD;
    if (!quant_is_nibbles(w->quant.kind))
        return panel[k / QUANT_QUAD * PANEL_COLUMNS * QUANT_QUAD + lane];
    const uint8_t both = panel[k / (2 * QUANT_QUAD) * PANEL_COLUMNS * QUANT_QUAD + lane];
    return k / QUANT_QUAD % 2 == 0 ? both & 15 : both >> 4;
}

DEVICE_INLINE int32_t kern_quant_zero(const struct packed *w, size_t n, size_t g)
{
    if (w->quant.has_zeros) return w->zeros[kern_quant_scale_index(w, n, g)];
    return w->quant.kind == QUANT_INT8 ? (int32_t)QUANT_INT8_BIAS : (int32_t)QUANT_INT4_ZERO;
}

/* Returns code - zero of an integer kind; for mxfp4, twice the number. */
DEVICE_INLINE int32_t kern_quant_int(const struct packed *w, size_t n, size_t k)
{
    const uint8_t code = kern_quant_code(w, n, k);
    if (w->quant.kind == QUANT_MXFP4) return e2m1_doubled(code);
    return code - kern_quant_zero(w, n, k / quant_kernel_group(w->quant));
}

/* Returns the unit of kern_quant_int: the weight's scale; for mxfp4, half of it. */
DEVICE_INLINE float kern_quant_scale(const struct packed *w, size_t n, size_t g)
{
    const size_t i = kern_quant_scale_index(w, n, g);
    if (w->quant.kind == QUANT_MXFP4) return f32_from_e8m0(((const uint8_t *)w->scales)[i]) * 0.5f;
    return w->quant.scale_dtype == DTYPE_F16 ? kern_load(DTYPE_F16, w->scales, i)
                                             : kern_load(DTYPE_F32, w->scales, i);
}

/* Returns the weight as a float, rounded once. */
DEVICE_INLINE float kern_quant_float(const struct packed *w, size_t n, size_t k)
{
    const float scale = kern_quant_scale(w, n, k / quant_kernel_group(w->quant));
    if (w->quant.kind == QUANT_FP8) return f32_from_e4m3(kern_quant_code(w, n, k)) * scale;
    return (float)kern_quant_int(w, n, k) * scale;
}

/* Returns the scale of a group whose largest |x| has these bits, and sets *factor, which is 0 if
 * all codes are 0. */
DEVICE_INLINE float kern_quantize_scale(uint32_t max_bits, float *factor)
{
    const float max = f32_from_bits(max_bits);
    *factor = 0.0f;
    if (max_bits >= 0x7F800000u) return f32_from_bits(0x7FC00000u);
    if (max < 0x1p-120f) return 0.0f;
    *factor = 127.0f / max;
    return max / 127.0f;
}

#endif
