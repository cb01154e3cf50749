/* Dequantizes GGUF's block formats to f32. Products of a scale and integers are exact in f32; each
 * sum or difference is rounded once. */
#include "checkpoint/convert/gguf.h"

#include "tensor/dtype.h"

#include <string.h>

enum { SMALL = 32, SUPER = 256 }; /* elements of a block */

static uint16_t gguf_dequant_u16_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)gguf_dequant_u16_at(p) | (uint32_t)gguf_dequant_u16_at(p + 2) << 16;
}

static float half_at(const uint8_t *p)
{
    return f32_from_f16(gguf_dequant_u16_at(p));
}

/* Returns 16 if bit number `bit` of `bits` is set, otherwise 0. `bits` holds the fifth bit of each
 * element. */
static int fifth(uint32_t bits, int bit)
{
    return (int)(bits >> bit & 1u) << 4;
}

static void q4_0_block(const uint8_t *p, float *out)
{
    const float d = half_at(p);
    for (int i = 0; i < SMALL / 2; i++) {
        out[i] = (float)((p[2 + i] & 15) - 8) * d;
        out[i + SMALL / 2] = (float)((p[2 + i] >> 4) - 8) * d;
    }
}

static void q4_1_block(const uint8_t *p, float *out)
{
    const float d = half_at(p), m = half_at(p + 2);
    for (int i = 0; i < SMALL / 2; i++) {
        out[i] = (float)(p[4 + i] & 15) * d + m;
        out[i + SMALL / 2] = (float)(p[4 + i] >> 4) * d + m;
    }
}

static void q5_0_block(const uint8_t *p, float *out)
{
    const float d = half_at(p);
    const uint32_t high = u32_at(p + 2);
    for (int i = 0; i < SMALL / 2; i++) {
        out[i] = (float)(((p[6 + i] & 15) | fifth(high, i)) - 16) * d;
        out[i + SMALL / 2] = (float)((p[6 + i] >> 4 | fifth(high, i + 16)) - 16) * d;
    }
}

static void q5_1_block(const uint8_t *p, float *out)
{
    const float d = half_at(p), m = half_at(p + 2);
    const uint32_t high = u32_at(p + 4);
    for (int i = 0; i < SMALL / 2; i++) {
        out[i] = (float)((p[8 + i] & 15) | fifth(high, i)) * d + m;
        out[i + SMALL / 2] = (float)(p[8 + i] >> 4 | fifth(high, i + 16)) * d + m;
    }
}

static void q8_0_block(const uint8_t *p, float *out)
{
    const float d = half_at(p);
    for (int i = 0; i < SMALL; i++) out[i] = (float)(int8_t)p[2 + i] * d;
}

/* Reads the 6-bit scale and minimum of sub-block j (0..7), which are packed in 12 bytes. */
static void scale_and_min(const uint8_t *p, int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = p[j] & 63;
        *min = p[j + 4] & 63;
    } else {
        *scale = (p[j + 4] & 15) | p[j - 4] >> 6 << 4;
        *min = p[j + 4] >> 4 | p[j] >> 6 << 4;
    }
}

/* Dequantizes Q4_K or Q5_K: eight sub-blocks of 32 elements. high is NULL for Q4_K; for Q5_K, bit j
 * of high[l] is the fifth bit of element l of sub-block j. */
static void k_block(const uint8_t *p, const uint8_t *high, const uint8_t *low, float *out)
{
    const float d = half_at(p), d_min = half_at(p + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        scale_and_min(p + 4, j, &scale, &min);
        const float s = d * (float)scale, m = d_min * (float)min;
        for (int l = 0; l < 32; l++) {
            const uint8_t pair = low[j / 2 * 32 + l];
            const int q =
                (j % 2 == 0 ? pair & 15 : pair >> 4) | (high != NULL ? fifth(high[l], j) : 0);
            out[j * 32 + l] = s * (float)q - m;
        }
    }
}

static void q4_k_block(const uint8_t *p, float *out)
{
    k_block(p, NULL, p + 16, out);
}

static void q5_k_block(const uint8_t *p, float *out)
{
    k_block(p, p + 16, p + 48, out);
}

static void q6_k_block(const uint8_t *p, float *out)
{
    const uint8_t *low = p, *high = p + 128, *scales = p + 192;
    const float d = half_at(p + 208);
    for (int i = 0; i < SUPER; i++) {
        const int half = i / 128, part = i % 128 / 32, l = i % 32;
        const uint8_t pair = low[half * 64 + part % 2 * 32 + l];
        const int four = part < 2 ? pair & 15 : pair >> 4;
        const int two = high[half * 32 + l] >> 2 * part & 3;
        const float s = d * (float)(int8_t)scales[i / 16];
        out[i] = s * (float)((four | two << 4) - 32);
    }
}

/* Dequantizes Q2_K: 16 sub-blocks of 16 elements, each with a scale and a minimum of 4 bits. */
static void q2_k_block(const uint8_t *p, float *out)
{
    const uint8_t *scales = p, *low = p + 16;
    const float d = half_at(p + 80), d_min = half_at(p + 82);
    for (int i = 0; i < SUPER; i++) {
        const int half = i / 128, part = i % 128 / 32;
        const int q = low[half * 32 + i % 32] >> 2 * part & 3;
        const float s = d * (float)(scales[i / 16] & 15), m = d_min * (float)(scales[i / 16] >> 4);
        out[i] = s * (float)q - m;
    }
}

/* Dequantizes Q3_K: 16 sub-blocks of 16 elements. The 6-bit scale of a sub-block has 4 bits in one
 * byte and 2 in another. Each element has two bits in `low` and a third in `third`; when the third
 * bit is 0, 4 is subtracted. */
static void q3_k_block(const uint8_t *p, float *out)
{
    const uint8_t *third = p, *low = p + 32, *scales = p + 96;
    const float d = half_at(p + 108);
    for (int i = 0; i < SUPER; i++) {
        const int half = i / 128, part = i % 128 / 32, j = i / 16;
        const int four = scales[j % 8] >> j / 8 * 4 & 15, two = scales[8 + j % 4] >> j / 4 * 2 & 3;
        const int q = low[half * 32 + i % 32] >> 2 * part & 3;
        const int off = third[i % 32] >> i / 32 & 1 ? 0 : 4;
        out[i] = d * (float)((four | two << 4) - 32) * (float)(q - off);
    }
}

const int8_t gguf_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};

static void table_block(const uint8_t *q, float d, const int8_t *values, float *out)
{
    for (int i = 0; i < SMALL / 2; i++) {
        out[i] = d * (float)values[q[i] & 15];
        out[i + SMALL / 2] = d * (float)values[q[i] >> 4];
    }
}

static void iq4_nl_block(const uint8_t *p, float *out)
{
    table_block(p + 2, half_at(p), gguf_iq4_values, out);
}

float gguf_iq4_xs_scale(const uint8_t *block, int j)
{
    const int four = block[4 + j / 2] >> j % 2 * 4 & 15,
              two = gguf_dequant_u16_at(block + 2) >> 2 * j & 3;
    return half_at(block) * (float)((four | two << 4) - 32);
}

static void iq4_xs_block(const uint8_t *p, float *out)
{
    for (int j = 0; j < SUPER / SMALL; j++) {
        table_block(p + 8 + 16 * j, gguf_iq4_xs_scale(p, j), gguf_iq4_values, out + SMALL * j);
    }
}

/* The table has doubled values, so the scale is 2^(e - 128), which is subnormal for e below 2. */
static void mxfp4_block(const uint8_t *p, float *out)
{
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const uint32_t e = p[0];
    table_block(p + 1, f32_from_bits(e < 2 ? 0x200000u << e : (e - 1) << 23), doubled, out);
}

struct format {
    enum gguf_quant quant;
    const char *name;
    uint32_t n_elems, n_bytes; /* of a block */
    void (*block)(const uint8_t *p, float *out);
};

/* Returns the format of a type; NULL for an unknown type. */
static const struct format *gguf_dequant_format_of(enum gguf_quant quant)
{
    static const struct format formats[] = {
        {GGUF_Q4_0_TENSOR, "Q4_0", 32, 18, q4_0_block},
        {GGUF_Q4_1_TENSOR, "Q4_1", 32, 20, q4_1_block},
        {GGUF_Q5_0_TENSOR, "Q5_0", 32, 22, q5_0_block},
        {GGUF_Q5_1_TENSOR, "Q5_1", 32, 24, q5_1_block},
        {GGUF_Q8_0_TENSOR, "Q8_0", 32, 34, q8_0_block},
        {GGUF_Q4_K_TENSOR, "Q4_K", 256, 144, q4_k_block},
        {GGUF_Q5_K_TENSOR, "Q5_K", 256, 176, q5_k_block},
        {GGUF_Q6_K_TENSOR, "Q6_K", 256, 210, q6_k_block},
        {GGUF_Q2_K_TENSOR, "Q2_K", 256, 84, q2_k_block},
        {GGUF_Q3_K_TENSOR, "Q3_K", 256, 110, q3_k_block},
        {GGUF_IQ4_NL_TENSOR, "IQ4_NL", 32, 18, iq4_nl_block},
        {GGUF_IQ4_XS_TENSOR, "IQ4_XS", 256, 136, iq4_xs_block},
        {GGUF_MXFP4_TENSOR, "MXFP4", 32, 17, mxfp4_block},
        {GGUF_F32_TENSOR, "F32", 1, 4, NULL},
        {GGUF_F16_TENSOR, "F16", 1, 2, NULL},
        {GGUF_BF16_TENSOR, "BF16", 1, 2, NULL},
    };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (formats[i].quant == quant) return &formats[i];
    return NULL;
}

const char *gguf_quant_name(enum gguf_quant quant)
{
    const struct format *f = gguf_dequant_format_of(quant);
    return f != NULL ? f->name : "unknown";
}

bool gguf_quant_block(uint32_t id, uint32_t *n_elems, uint32_t *n_bytes)
{
    const struct format *f = gguf_dequant_format_of((enum gguf_quant)id);
    if (f == NULL) return false;
    *n_elems = f->n_elems;
    *n_bytes = f->n_bytes;
    return true;
}

bool gguf_quant_dtype(enum gguf_quant quant, enum dtype *out)
{
    switch (quant) {
    case GGUF_F32_TENSOR:
        *out = DTYPE_F32;
        return true;
    case GGUF_F16_TENSOR:
        *out = DTYPE_F16;
        return true;
    case GGUF_BF16_TENSOR:
        *out = DTYPE_BF16;
        return true;
    default:
        return false;
    }
}

void gguf_dequantize(enum gguf_quant quant, const void *in, uint64_t n, float *out)
{
    enum dtype dtype;
    const struct format *f = gguf_dequant_format_of(quant);
    if (gguf_quant_dtype(quant, &dtype)) {
        dtype_to_f32(dtype, in, n, out);
    } else if (f != NULL) {
        const uint8_t *p = in;
        for (uint64_t i = 0; i < n; i += f->n_elems, p += f->n_bytes) f->block(p, out + i);
    }
}
