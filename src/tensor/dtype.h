/* Element types: traits, and conversions in integer code, which are exact or round to nearest
 * even, with the same bits on every CPU. Does no arithmetic. */
#ifndef SHOAL_TENSOR_DTYPE_H
#define SHOAL_TENSOR_DTYPE_H

#include "tensor/inline.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Columns: id, name, bytes per element. First the float types with which kernels compute, then
 * types of stored values only: quantized weights, their scales (E8M0) and zero points, KV caches,
 * and the integers in other programs' files (words of packed weights, indices, shapes). */
#define DTYPE_LIST(X) X(F32, "f32", 4) X(F16, "f16", 2) X(BF16, "bf16", 2)
#define DTYPE_STORED_LIST(X)                                                                       \
    X(I8, "i8", 1)                                                                                 \
    X(U8, "u8", 1)                                                                                 \
    X(F8_E4M3, "f8_e4m3", 1)                                                                       \
    X(F8_E5M2, "f8_e5m2", 1)                                                                       \
    X(F8_E8M0, "f8_e8m0", 1)                                                                       \
    X(I32, "i32", 4)                                                                               \
    X(I64, "i64", 8)

enum dtype {
#define X(id, name, n_bytes) DTYPE_##id,
    DTYPE_LIST(X)
#undef X
        DTYPE_COUNT, /* number of float types, the length of kernel tables; not a type */
#define X(id, name, n_bytes) DTYPE_##id,
    DTYPE_STORED_LIST(X)
#undef X
        DTYPE_STORED_COUNT
};

/* The names of the float types in flags. */
#define FLOAT_WORDS                                                                                \
    {"f32", DTYPE_F32}, {"f16", DTYPE_F16},                                                        \
    {                                                                                              \
        "bf16", DTYPE_BF16                                                                         \
    }

/* Local. dtype_name returns "f32", "f16", "bf16", "i8", ...; dtype_bytes the bytes of one element.
 * dtype_parse knows only the float types and returns false for any other name. */
const char *dtype_name(enum dtype t);
size_t dtype_bytes(enum dtype t);
bool dtype_parse(const char *name, enum dtype *out);

DEVICE_INLINE uint32_t f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

DEVICE_INLINE float f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

DEVICE_INLINE float f32_from_bf16(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

/* Converts IEEE 754 binary16 to binary32, exactly; keeps NaN payloads (made quiet). */
DEVICE_INLINE float f32_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 0x1Fu;
    uint32_t mantissa = h & 0x3FFu;
    if (exponent == 31)
        return f32_from_bits(sign | 0x7F800000u | mantissa << 13 | (mantissa ? 0x400000u : 0));
    if (exponent != 0) return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    if (mantissa == 0) return f32_from_bits(sign);
    uint32_t shift = 0;
    while ((mantissa & 0x400u) == 0) {
        mantissa <<= 1;
        shift++;
    }
    return f32_from_bits(sign | (113 - shift) << 23 | (mantissa & 0x3FFu) << 13);
}

/* Returns value >> shift, rounded to nearest even; 1 <= shift <= 31. */
DEVICE_INLINE uint32_t f32_shift_rne(uint32_t value, uint32_t shift)
{
    const uint32_t rest = value & ((1u << shift) - 1);
    const uint32_t half = 1u << (shift - 1);
    const uint32_t down = value >> shift;
    return down + (rest > half || (rest == half && (down & 1)));
}

/* Rounds to nearest even; overflow gives infinity; NaN stays NaN. Equals VCVTPS2PH bit for bit. */
DEVICE_INLINE uint16_t f16_from_f32(float x)
{
    const uint32_t u = f32_bits(x);
    const uint32_t sign = u >> 16 & 0x8000u;
    const uint32_t magnitude = u & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7C00u);
    if (magnitude >= 0x38800000u) {
        /* normal: rounding may carry into the exponent, up to infinity, as it should */
        return (uint16_t)(sign | f32_shift_rne(magnitude - 0x38000000u, 13));
    }
    const uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return (uint16_t)sign;
    const uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
    return (uint16_t)(sign | f32_shift_rne(mantissa, 126 - exponent));
}

DEVICE_INLINE uint16_t bf16_from_f32(float x)
{
    const uint32_t u = f32_bits(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)(((u >> 16 & 1) + 0x7FFFu + u) >> 16);
}

/* Local. out[n] = in[n] in f32, exact; t is a float type. */
void dtype_to_f32(enum dtype t, const void *in, size_t n, float *out);
/* Local. out[n] = in[n] rounded to t, a float type. */
void dtype_from_f32(enum dtype t, const float *in, size_t n, void *out);
/* Local. Returns how many finite values of in[n] became infinite in out[n] of type t (F16 or BF16;
 * 0 for F32). */
size_t dtype_count_overflowed(enum dtype t, const float *in, size_t n, const void *out);

#endif
