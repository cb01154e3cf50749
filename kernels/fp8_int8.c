/* Converts fp8 weights to int8, panel (packed tile) by panel. Both formats store a panel's values
 * in the same places, so the conversion happens in place. */
#include "kernels/fp8_int8.h"

#include "kernels/part.h"
#include "kernels/quant_body.h"

#include <assert.h>
#include <math.h>

enum {
    LINE = QUANT_QUAD * PANEL_COLUMNS, /* bytes of four inputs of a panel */
    SIZE_BITS = 0x7F,                  /* the magnitude bits of an E4M3 number */
    NAN_BITS = 0x7F,
    CODE_COST = 4, /* cost of converting a value, in multiply-adds */
};

/* Returns the magnitude of an E4M3 number. With exponent bits e and mantissa m, u is (1 + m/8)
 * 2^(e - 7). For e > 0, u is the magnitude, and 2u - 2^-6 is no less; for e = 0 the magnitude is
 * m/8 2^-6 = 2u - 2^-6, which is less than u. */
static inline float size_of(uint32_t bits)
{
    const float u = f32_from_bits((bits << 20) + (120u << 23)), v = 2.0f * u - 0x1p-6f;
    return v < u ? v : u;
}

/* most[c] = the largest magnitude, as bits, among n inputs of output c. */
static void largest(const uint8_t *codes, size_t n, uint8_t *most)
{
    uint8_t all[LINE] = {0};
    for (size_t k = 0; k + QUANT_QUAD <= n; k += QUANT_QUAD, codes += LINE) {
        for (size_t i = 0; i < LINE; i++) {
            const uint8_t size = codes[i] & SIZE_BITS;
            all[i] = size > all[i] ? size : all[i];
        }
    }
    for (size_t i = 0; i < LINE && n % QUANT_QUAD != 0; i++) {
        const uint8_t size = codes[i] & SIZE_BITS;
        if (i % QUANT_QUAD < n % QUANT_QUAD && size > all[i]) all[i] = size;
    }
    for (size_t c = 0; c < PANEL_COLUMNS; c++) {
        most[c] = 0;
        for (size_t j = 0; j < QUANT_QUAD; j++)
            most[c] = all[c * QUANT_QUAD + j] > most[c] ? all[c * QUANT_QUAD + j] : most[c];
    }
}

/* Converts n inputs (rounded up to a multiple of 4) to int8 in place: each value times its output's
 * factor, rounded, plus the bias. Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits.
 */
static void encode_codes(uint8_t *codes, size_t n, const float *factor)
{
    float each[LINE];
    for (size_t i = 0; i < LINE; i++) each[i] = factor[i / QUANT_QUAD];
    for (size_t k = 0; k < n; k += QUANT_QUAD, codes += LINE) {
        for (size_t i = 0; i < LINE; i++) {
            const float shifted = size_of(codes[i] & SIZE_BITS) * each[i] + 0x1.8p23f;
            const uint32_t size = f32_bits(shifted), sign = 0u - (codes[i] >> 7);
            codes[i] = (uint8_t)(((size ^ sign) - sign) + QUANT_INT8_BIAS);
        }
    }
}

/* Converts one group of a panel: the codes of n inputs and sixteen scales. */
static void convert_group(enum dtype scale_dtype, uint8_t *codes, size_t n, void *scales)
{
    uint8_t most[PANEL_COLUMNS];
    float factor[PANEL_COLUMNS], scale[PANEL_COLUMNS];
    largest(codes, n, most);
    dtype_to_f32(scale_dtype, scales, PANEL_COLUMNS, scale);
    for (size_t c = 0; c < PANEL_COLUMNS; c++) {
        const float m = size_of(most[c]);
        const bool is_usual = most[c] != 0 && most[c] != NAN_BITS;
        factor[c] = is_usual ? 127.0f / m : 0.0f;
        scale[c] = is_usual ? scale[c] * (m / 127.0f) : most[c] == 0 ? 0.0f : NAN;
    }
    encode_codes(codes, n, factor);
    dtype_from_f32(scale_dtype, scale, PANEL_COLUMNS, scales);
}

static size_t panels_of(const struct packed *w)
{
    return ((size_t)w->n_out + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
}

/* Returns the cost of a panel in multiply-adds; never 0. */
static uint64_t panel_cost(const struct packed *w)
{
    return (uint64_t)kern_quant_panel_bytes(w->quant, w->n_in) * CODE_COST + 1;
}

static void convert_panels(const void *job, struct part part)
{
    const struct packed *w = job;
    const size_t group = quant_kernel_group(w->quant),
                 n_groups = kern_quant_groups(w->quant, w->n_in);
    const size_t panel_bytes = kern_quant_panel_bytes(w->quant, w->n_in);
    const size_t scales_bytes = PANEL_COLUMNS * kern_quant_scale_bytes(w->quant);
    size_t p, end;
    if (!part_take(&part, panels_of(w), panel_cost(w), &p, &end)) return;
    for (; p < end; p++) {
        uint8_t *codes = (uint8_t *)(uintptr_t)w->data + p * panel_bytes;
        char *scales = (char *)(uintptr_t)w->scales + p * n_groups * scales_bytes;
        for (size_t g = 0; g < n_groups; g++) {
            const size_t left = w->n_in - g * group, n = left < group ? left : group;
            convert_group(w->quant.scale_dtype, codes + g * group * PANEL_COLUMNS, n,
                          scales + g * scales_bytes);
        }
    }
}

bool fp8_int8_fits(const struct packed *w)
{
    return w->quant.kind == QUANT_FP8 && w->leaf % quant_kernel_group(w->quant) == 0;
}

struct quant_format fp8_int8_format(struct quant_format fp8)
{
    return (struct quant_format){
        .kind = QUANT_INT8, .scale_dtype = fp8.scale_dtype, .group = quant_kernel_group(fp8)};
}

void op_fp8_to_int8(const struct kern_table *k, struct packed *w)
{
    assert(k->device == NULL && fp8_int8_fits(w));
    part_run(k->team, panels_of(w) * panel_cost(w), convert_panels, w);
    w->quant = fp8_int8_format(w->quant);
}
