/* GGUF's block formats as shoal's codes and scales: the same integers in another order. */
#include "checkpoint/gguf.h"

#include <string.h>

enum { SMALL = 32, Q4_0_BYTES = 2 + SMALL / 2, Q8_0_BYTES = 2 + SMALL };

bool gguf_quant_format(enum gguf_quant quant, struct quant_format *out)
{
    if (quant != GGUF_Q8_0_TENSOR && quant != GGUF_Q4_0_TENSOR) return false;
    *out = (struct quant_format){.kind = quant == GGUF_Q8_0_TENSOR ? QUANT_INT8 : QUANT_INT4,
                                 .scale_dtype = DTYPE_F16,
                                 .group = SMALL};
    return true;
}

static bool q8_0_codes(const uint8_t *block, uint8_t *codes)
{
    bool good = true;
    memcpy(codes, block + 2, SMALL);
    for (int i = 0; i < SMALL; i++) good = good && codes[i] != 0x80;
    return good;
}

/* Byte i has element i in its low and element i + 16 in its high nibble; ours has 2i and 2i + 1. */
static void q4_0_codes(const uint8_t *block, uint8_t *codes)
{
    const uint8_t *q = block + 2;
    for (int i = 0; i < SMALL / 4; i++) {
        codes[i] = (uint8_t)((q[2 * i] & 15) | (q[2 * i + 1] & 15) << 4);
        codes[i + SMALL / 4] = (uint8_t)(q[2 * i] >> 4 | (q[2 * i + 1] & 0xF0));
    }
}

bool gguf_codes(enum gguf_quant quant, const void *in, uint64_t n_rows, uint64_t n_cols,
                const struct quant_block *out)
{
    const bool is_q8 = quant == GGUF_Q8_0_TENSOR;
    const uint8_t *block = in;
    uint8_t *codes = out->codes;
    uint16_t *scales = out->scales;
    bool good = true;
    for (uint64_t i = 0; i < n_rows * (n_cols / SMALL); i++) {
        *scales++ = (uint16_t)(block[0] | block[1] << 8);
        if (is_q8) {
            good = q8_0_codes(block, codes) && good;
        } else {
            q4_0_codes(block, codes);
        }
        block += is_q8 ? Q8_0_BYTES : Q4_0_BYTES;
        codes += is_q8 ? SMALL : SMALL / 2;
    }
    return good;
}
