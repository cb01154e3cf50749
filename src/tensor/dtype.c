/* Traits and conversions of element types. */
#include "tensor/dtype.h"

#if defined(__FAST_MATH__)
#error "shoal's results are defined bit for bit: do not build with -ffast-math"
#endif
#include <float.h>
#include <math.h>
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

size_t dtype_count_overflowed(enum dtype t, const float *in, size_t n, const void *out)
{
    const uint16_t *h = out;
    size_t n_overflowed = 0;
    if (t == DTYPE_F32) return 0;
    for (size_t i = 0; i < n; i++) {
        const float y = t == DTYPE_F16 ? f32_from_f16(h[i]) : f32_from_bf16(h[i]);
        n_overflowed += isinf(y) && !isinf(in[i]);
    }
    return n_overflowed;
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
