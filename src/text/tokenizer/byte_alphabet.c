/* Fills the byte alphabet of byte-level vocabularies, and decodes with it. */
#include "text/tokenizer/byte_alphabet.h"

#include "base/utf8.h"

#include <string.h>

static bool is_printable(int byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
}

void byte_alphabet_init(struct byte_alphabet *a)
{
    memset(a->byte_of, 0xFF, sizeof a->byte_of);
    uint16_t next = 0x100;
    for (int byte = 0; byte < 256; byte++) {
        const uint16_t c = is_printable(byte) ? (uint16_t)byte : next++;
        a->char_of[byte] = c;
        a->byte_of[c] = (int16_t)byte;
    }
}

bool byte_alphabet_decode(const struct byte_alphabet *a, const char *text, size_t n, char *out,
                          size_t *n_out)
{
    size_t n_bytes = 0, step;
    for (size_t i = 0; i < n; i += step) {
        const uint32_t c = utf8_decode(text + i, n - i, &step);
        if (c >= sizeof a->byte_of / sizeof a->byte_of[0] || a->byte_of[c] < 0) return false;
        out[n_bytes++] = (char)a->byte_of[c];
    }
    *n_out = n_bytes;
    return true;
}
