/* Quantized weight formats: how quantized values ("codes"), scales and zero points make a value,
 * and the shapes in which they are stored. Shared by quant, which makes them, checkpoint, which
 * stores them, and kernels, which multiply with them.
 *
 *     value(n, k) = (code(n, k) - zero(n, k / group)) * scale(n, k / group)
 *
 * A weight [out, in] (experts: [E, out, in]) is a group of the checkpoint with the datasets
 *     codes   [.., out, quant_code_bytes(in)]
 *     scales  [.., out, quant_groups(in)]      f16 or f32 (u8 E8M0 for mxfp4)
 *     zeros   [.., out, quant_groups(in)]      u8, only with has_zeros
 * so that a shard is one plain hyperslab of each. A scale of a whole tensor, or of a block of
 * outputs (DeepSeek's 128 x 128), is repeated for each output: the scales then take about 3 % of an
 * fp8 weight at most, and every shard has all that it needs. */
#ifndef SHOAL_TENSOR_QUANT_FORMAT_H
#define SHOAL_TENSOR_QUANT_FORMAT_H

#include "tensor/dtype.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* QUANT_INT8   codes i8 in [-127, 127], zero 0; with zeros: codes and zeros u8.
 * QUANT_INT4   codes 0..15, two in a byte, the even input in the low nibble; zero 8; with
 *              zeros: zeros u8 0..16.
 * QUANT_FP8    codes are E4M3 numbers (OCP 8-bit floating point: bias 7, 0x7F and 0xFF are NaN, no
 *              infinity), zero 0.
 * QUANT_MXFP4  codes are E2M1 numbers, packed as in int4; value = e2m1 * 2^(scale - 127); a scale
 *              is one E8M0 byte; group 32 (OCP Microscaling Formats, version 1.0). */
enum quant_kind { QUANT_NONE, QUANT_INT8, QUANT_INT4, QUANT_FP8, QUANT_MXFP4, QUANT_KIND_COUNT };

enum {
    QUANT_GROUP_MAX = 128, /* most inputs whose products are summed as integers */
    QUANT_INT4_ZERO = 8,
    QUANT_CODE_ALIGN = 32, /* a group is a multiple of this; only the last group of a row may be
                              shorter */
};

struct quant_format {
    enum quant_kind kind;   /* QUANT_NONE: not quantized, and the other members have no meaning */
    bool has_zeros;         /* asymmetric; int8 and int4 only */
    enum dtype scale_dtype; /* DTYPE_F16 or DTYPE_F32; meaningless for mxfp4 */
    uint32_t group;         /* inputs with one scale: 32, 64 or 128; 0: all inputs (per channel) */
};

/* Returns the inputs of one group in the kernels. A weight with per-channel scales is computed in
 * groups of 128, each with its own activation scale. */
DEVICE_INLINE uint32_t quant_kernel_group(struct quant_format f)
{
    return f.group == 0 ? (uint32_t)QUANT_GROUP_MAX : f.group;
}

/* Returns the number of stored scales of a row of n_in inputs. */
DEVICE_INLINE uint64_t quant_groups(struct quant_format f, uint64_t n_in)
{
    return f.group == 0 ? 1 : (n_in + f.group - 1) / f.group;
}

DEVICE_INLINE bool quant_is_nibbles(enum quant_kind k)
{
    return k == QUANT_INT4 || k == QUANT_MXFP4;
}

/* Returns the stored bytes of a row of n_in codes. */
DEVICE_INLINE uint64_t quant_code_bytes(enum quant_kind k, uint64_t n_in)
{
    return quant_is_nibbles(k) ? (n_in + 1) / 2 : n_in;
}

/* Return the element types of the stored codes and scales (zeros are u8). */
DEVICE_INLINE enum dtype quant_code_dtype(struct quant_format f)
{
    return f.kind == QUANT_INT8 && !f.has_zeros ? DTYPE_I8 : DTYPE_U8;
}

DEVICE_INLINE enum dtype quant_scale_dtype(struct quant_format f)
{
    return f.kind == QUANT_MXFP4 ? DTYPE_U8 : f.scale_dtype;
}

/* Rows of a quantized weight as they are stored, row after row, in the caller's memory. */
struct quant_block {
    void *codes;    /* [n_rows, quant_code_bytes(in)] */
    void *scales;   /* [n_rows, quant_groups(in)] of quant_scale_dtype */
    uint8_t *zeros; /* [n_rows, quant_groups(in)], or NULL without zeros */
};

/* Converts E4M3 to f32, exactly. */
DEVICE_INLINE float f32_from_e4m3(uint8_t c)
{
    const uint32_t sign = (uint32_t)(c & 0x80u) << 24;
    const uint32_t exponent = (c >> 3) & 0xFu, mantissa = c & 7u;
    if (exponent == 15 && mantissa == 7) return f32_from_bits(sign | 0x7FC00000u);
    if (exponent == 0) {
        const float tiny = (float)mantissa * 0x1p-9f;
        return sign ? -tiny : tiny;
    }
    return f32_from_bits(sign | (exponent + 120) << 23 | mantissa << 20);
}

/* Converts f32 to E4M3: rounds to nearest even, saturating at 448; x must be finite. OCP 8-bit
 * floating point. */
DEVICE_INLINE uint8_t e4m3_from_f32(float x)
{
    const uint8_t sign = (uint8_t)(f32_bits(x) >> 24 & 0x80u);
    const float m = fabsf(x);
    if (!(m < 448.0f)) return sign | 0x7Eu;
    if (m < 0x1p-6f) return sign | (uint8_t)rintf(m * 512.0f);
    const uint32_t u = f32_bits(m), rounded = u + 0x7FFFFu + (u >> 20 & 1u);
    return (uint8_t)(sign | ((rounded >> 20) - (120u << 3)));
}

/* Converts E5M2, the upper byte of a binary16, to f32, exactly. */
static inline float f32_from_e5m2(uint8_t c)
{
    return f32_from_f16((uint16_t)(c << 8));
}

/* Returns twice an E2M1 number: an integer in [-12, 12], so that mxfp4's sums are exact, as int8's
 * are. */
DEVICE_INLINE int8_t e2m1_doubled(uint8_t nibble)
{
    static const int8_t magnitude[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    const int8_t m = magnitude[nibble & 7];
    return nibble & 8 ? (int8_t)-m : m;
}

/* Returns 2^(e - 127); e = 255 gives NaN (E8M0). */
DEVICE_INLINE float f32_from_e8m0(uint8_t e)
{
    if (e == 255) return f32_from_bits(0x7FC00000u);
    return f32_from_bits(e == 0 ? 0x00400000u : (uint32_t)e << 23);
}

/* Returns the value of a stored code (nibbles: 0..15), rounded once. mxfp4: scale is 2^(e - 127).
 */
static inline float quant_value(struct quant_format f, uint8_t code, int32_t zero, float scale)
{
    switch (f.kind) {
    case QUANT_INT8:
        return (float)(f.has_zeros ? (int32_t)code - zero : (int8_t)code) * scale;
    case QUANT_INT4:
        return (float)((int32_t)code - zero) * scale;
    case QUANT_FP8:
        return f32_from_e4m3(code) * scale;
    default:
        return (float)e2m1_doubled(code) * 0.5f * scale;
    }
}

/* Local. Parse and write the name of a format as users write it and reports print it: "int8",
 * "int8-asym-g64", "int4-g32", "int4-asym-g128", "fp8", "fp8-g128", "mxfp4". Without -gN: int4 g32,
 * int8 and fp8 per channel. quant_format_parse sets f16 scales (fp8: f32) and returns false for
 * anything else; quant_format_name writes at most n bytes, NUL included. */
bool quant_format_parse(const char *name, struct quant_format *out);
void quant_format_name(struct quant_format f, char *out, size_t n);

#endif
