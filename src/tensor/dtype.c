/* Type traits and conversions. */
#include "tensor/dtype.h"

#if defined(__FAST_MATH__)
#error "shoal's results are defined bit for bit: do not build with -ffast-math"
#endif
#include <float.h>
#if FLT_EVAL_METHOD != 0
#error "shoal needs FLT_EVAL_METHOD 0 (no excess precision)"
#endif

static const struct {
    const char *name;
    size_t n_bytes;
} traits[DTYPE_STORED_COUNT] = {
#define X(id, text, bytes) [DTYPE_##id] = {text, bytes},
    DTYPE_LIST(X) DTYPE_STORED_LIST(X)
#undef X
};

const char *dtype_name(enum dtype t)
{
    return traits[t].name;
}

size_t dtype_bytes(enum dtype t)
{
    return traits[t].n_bytes;
}

bool dtype_parse(const char *name, enum dtype *out)
{
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(name, traits[i].name) != 0) continue;
        *out = (enum dtype)i;
        return true;
    }
    return false;
}

/* value >> shift, rounded to nearest even; 1 <= shift <= 31 */
static uint32_t shift_rne(uint32_t value, uint32_t shift)
{
    const uint32_t rest = value & ((1u << shift) - 1);
    const uint32_t half = 1u << (shift - 1);
    const uint32_t down = value >> shift;
    return down + (rest > half || (rest == half && (down & 1)));
}

uint16_t f16_from_f32(float x)
{
    const uint32_t u = f32_bits(x);
    const uint32_t sign = u >> 16 & 0x8000u;
    const uint32_t magnitude = u & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu));
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7C00u);
    if (magnitude >= 0x38800000u) {
        /* normal: rounding may carry into the exponent, up to infinity, as it should */
        return (uint16_t)(sign | shift_rne(magnitude - 0x38000000u, 13));
    }
    const uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return (uint16_t)sign;
    const uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
    return (uint16_t)(sign | shift_rne(mantissa, 126 - exponent));
}

uint16_t bf16_from_f32(float x)
{
    const uint32_t u = f32_bits(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)(((u >> 16 & 1) + 0x7FFFu + u) >> 16);
}

void dtype_to_f32(enum dtype t, const void *in, size_t n, float *out)
{
    const uint16_t *h = in;
    switch (t) {
    case DTYPE_F16:
        for (size_t i = 0; i < n; i++) out[i] = f32_from_f16(h[i]);
        break;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++) out[i] = f32_from_bf16(h[i]);
        break;
    default:
        memcpy(out, in, n * sizeof(float));
        break;
    }
}

void dtype_from_f32(enum dtype t, const float *in, size_t n, void *out)
{
    uint16_t *h = out;
    switch (t) {
    case DTYPE_F16:
        for (size_t i = 0; i < n; i++) h[i] = f16_from_f32(in[i]);
        break;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++) h[i] = bf16_from_f32(in[i]);
        break;
    default:
        memcpy(out, in, n * sizeof(float));
        break;
    }
}
