/* Converts GGUF's block formats to shoal's codes and scales: the same numbers in another order. A
 * format of 4 or 5 bits whose values are integers times a scale, but which int4 cannot store,
 * becomes int8: more bytes, but exact. */
#include "checkpoint/convert/gguf.h"

#include <string.h>

enum { SMALL = 32, SUPER = 256 };

static uint16_t gguf_codes_u16_at(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

/* Reorders nibbles. In GGUF, byte i holds element i in its low nibble and element i + 16 in its
 * high nibble; in shoal it holds elements 2i and 2i + 1. */
static void nibbles_codes(const uint8_t *q, uint8_t *codes)
{
    for (int i = 0; i < SMALL / 4; i++) {
        codes[i] = (uint8_t)((q[2 * i] & 15) | (q[2 * i + 1] & 15) << 4);
        codes[i + SMALL / 4] = (uint8_t)(q[2 * i] >> 4 | (q[2 * i + 1] & 0xF0));
    }
}

/* Looks up GGUF's nibbles in a table; writes one byte for each. */
static void table_codes(const uint8_t *q, uint8_t *codes)
{
    for (int i = 0; i < SMALL / 2; i++) {
        codes[i] = (uint8_t)gguf_iq4_values[q[i] & 15];
        codes[i + SMALL / 2] = (uint8_t)gguf_iq4_values[q[i] >> 4];
    }
}

static bool q4_0_codes(const uint8_t *block, uint8_t *codes, void *scales)
{
    *(uint16_t *)scales = gguf_codes_u16_at(block);
    nibbles_codes(block + 2, codes);
    return true;
}

static bool q5_0_codes(const uint8_t *block, uint8_t *codes, void *scales)
{
    const uint32_t high =
        (uint32_t)gguf_codes_u16_at(block + 2) | (uint32_t)gguf_codes_u16_at(block + 4) << 16;
    *(uint16_t *)scales = gguf_codes_u16_at(block);
    for (int i = 0; i < SMALL; i++) {
        const uint8_t four = block[6 + i % 16] >> i / 16 * 4 & 15;
        codes[i] = (uint8_t)((four | (high >> i & 1u) << 4) - 16);
    }
    return true;
}

static bool q8_0_codes(const uint8_t *block, uint8_t *codes, void *scales)
{
    bool good = true;
    *(uint16_t *)scales = gguf_codes_u16_at(block);
    memcpy(codes, block + 2, SMALL);
    for (int i = 0; i < SMALL; i++) good = good && codes[i] != 0x80;
    return good;
}

static bool iq4_nl_codes(const uint8_t *block, uint8_t *codes, void *scales)
{
    *(uint16_t *)scales = gguf_codes_u16_at(block);
    table_codes(block + 2, codes);
    return true;
}

static bool iq4_xs_codes(const uint8_t *block, uint8_t *codes, void *scales)
{
    for (int j = 0; j < SUPER / SMALL; j++) {
        ((float *)scales)[j] = gguf_iq4_xs_scale(block, j);
        table_codes(block + 8 + 16 * j, codes + SMALL * j);
    }
    return true;
}

static bool mxfp4_codes(const uint8_t *block, uint8_t *codes, void *scales)
{
    *(uint8_t *)scales = block[0];
    nibbles_codes(block + 1, codes);
    return block[0] != 255; /* 255 is NaN by the specification, 2^128 in GGUF */
}

struct layout {
    enum gguf_quant quant;
    enum quant_kind kind;
    enum dtype scale_dtype;
    bool (*codes)(const uint8_t *block, uint8_t *codes, void *scales);
};

/* Returns the type's layout in shoal; NULL when no format of shoal can hold its values. */
static const struct layout *layout_of(enum gguf_quant quant)
{
    static const struct layout layouts[] = {
        {GGUF_Q4_0_TENSOR, QUANT_INT4, DTYPE_F16, q4_0_codes},
        {GGUF_Q5_0_TENSOR, QUANT_INT8, DTYPE_F16, q5_0_codes},
        {GGUF_Q8_0_TENSOR, QUANT_INT8, DTYPE_F16, q8_0_codes},
        {GGUF_IQ4_NL_TENSOR, QUANT_INT8, DTYPE_F16, iq4_nl_codes},
        {GGUF_IQ4_XS_TENSOR, QUANT_INT8, DTYPE_F32, iq4_xs_codes},
        {GGUF_MXFP4_TENSOR, QUANT_MXFP4, DTYPE_F16, mxfp4_codes},
    };
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (layouts[i].quant == quant) return &layouts[i];
    return NULL;
}

bool gguf_quant_format(enum gguf_quant quant, struct quant_format *out)
{
    const struct layout *l = layout_of(quant);
    if (l == NULL) return false;
    *out = (struct quant_format){.kind = l->kind, .scale_dtype = l->scale_dtype, .group = SMALL};
    return true;
}

bool gguf_codes(enum gguf_quant quant, const void *in, uint64_t n_rows, uint64_t n_cols,
                const struct quant_block *out)
{
    const struct layout *l = layout_of(quant);
    struct quant_format f;
    uint32_t n_elems, n_bytes;
    if (l == NULL || !gguf_quant_format(quant, &f) || !gguf_quant_block(quant, &n_elems, &n_bytes))
        return false;
    const uint8_t *block = in;
    uint8_t *codes = out->codes, *scales = out->scales;
    bool good = true;
    for (uint64_t i = 0; i < n_rows * (n_cols / n_elems); i++) {
        good = l->codes(block, codes, scales) && good;
        block += n_bytes;
        codes += quant_code_bytes(l->kind, n_elems);
        scales += n_elems / SMALL * dtype_bytes(quant_scale_dtype(f));
    }
    return good;
}
