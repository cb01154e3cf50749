/* Quantized values of a packed tile as floats, for linears with float activations; shared by the
 * instruction sets. (fp8: linear_fp8.h.) Four neighbouring inputs of an output (eight
 * if nibbles) share one 32-bit lane, so no byte crosses lanes.
 *
 * The including file defines LANES_AT_ONCE (outputs of a vector, 8 or 16), the types lanes_int and
 * lanes_f32, and
 *     lanes_load(codes)                  a vector of quantized values, four bytes in each lane
 *     lanes_down(v, bits)                each lane shifted right
 *     lanes_value(kind, v, zero, scale)  the weights whose quantized values are the lanes' low bits
 *     lanes_zeros(zeros), lanes_set(x)   LANES_AT_ONCE zero points; x in each lane
 *     lanes_scales(format, scales, i)    scales [i, i + LANES_AT_ONCE)
 *     lanes_put(to, v)                   an aligned store */
#ifndef SHOAL_KERNELS_DEQUANTIZE_BODY_H
#define SHOAL_KERNELS_DEQUANTIZE_BODY_H

#include "kernels/quant_body.h"

/* Inputs [k, k + n_k) of a packed tile, and the place of their floats, `stride` floats from input
 * to input. */
struct dequantized {
    const struct packed *w;
    size_t panel, k, n_k, stride;
    float *out;
};

/* Zero points and scales of one group. */
struct lanes_group {
    lanes_int zero;
    lanes_f32 scale;
};

/* Converts n inputs of one group, rounded up to whole vectors of quantized values. */
ALWAYS_INLINE void dequantize_run(enum quant_kind kind, const uint8_t *codes, size_t n,
                                  const struct lanes_group *g, size_t stride, float *out)
{
    const bool nibbles = kind == QUANT_INT4 || kind == QUANT_MXFP4;
    for (size_t k = 0; k < n; k += nibbles ? 8 : 4, codes += PANEL_COLUMNS * QUANT_QUAD) {
        const lanes_int b = lanes_load(codes);
        float *to = out + k * stride;
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            lanes_put(to + (size_t)j * stride,
                      lanes_value(kind, lanes_down(b, 8 * j), g->zero, g->scale));
            if (!nibbles) continue;
            lanes_put(to + (size_t)(4 + j) * stride,
                      lanes_value(kind, lanes_down(b, 8 * j + 4), g->zero, g->scale));
        }
    }
}

ALWAYS_INLINE void dequantize_as(enum quant_kind kind, const struct dequantized *d)
{
    const struct packed *w = d->w;
    const size_t group = quant_kernel_group(w->quant);
    const size_t halves = kind == QUANT_INT4 || kind == QUANT_MXFP4 ? 2 : 1;
    const uint8_t *codes = (const uint8_t *)w->data +
                           d->panel * kern_quant_panel_bytes(w->quant, w->n_in) +
                           d->k * PANEL_COLUMNS / halves;
    for (size_t i = 0, n; i < d->n_k; i += n, codes += n * PANEL_COLUMNS / halves) {
        const size_t g = (d->k + i) / group, left = (g + 1) * group - (d->k + i);
        const size_t at = kern_quant_scale_index(w, d->panel * PANEL_COLUMNS, g);
        n = d->n_k - i < left ? d->n_k - i : left;
        for (size_t h = 0; h < PANEL_COLUMNS; h += LANES_AT_ONCE) {
            const struct lanes_group here = {
                .zero = w->quant.has_zeros
                            ? lanes_zeros(w->zeros + at + h)
                            : lanes_set(kind == QUANT_INT8 ? QUANT_INT8_BIAS : QUANT_INT4_ZERO),
                .scale = lanes_scales(w->quant, w->scales, at + h)};
            dequantize_run(kind, codes + h * QUANT_QUAD, n, &here, d->stride,
                           d->out + i * d->stride + h);
        }
    }
}

/* out[n_k, rounded up to 8 (int8: 4)][stride] = as floats, the weights of inputs [k, k + n_k) for
 * the 16 outputs of packed tile `panel`, of int8, int4 or mxfp4. k is a multiple of 8. */
static void dequantize(const struct packed *w, size_t panel, size_t k, size_t n_k, size_t stride,
                       float *out)
{
    const struct dequantized d = {w, panel, k, n_k, stride, out};
    if (w->quant.kind == QUANT_INT8)
        dequantize_as(QUANT_INT8, &d);
    else if (w->quant.kind == QUANT_INT4)
        dequantize_as(QUANT_INT4, &d);
    else
        dequantize_as(QUANT_MXFP4, &d);
}

#endif
