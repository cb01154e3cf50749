/* Checks, decodes and encodes UTF-8. */
#include "base/utf8.h"

#include <string.h>

/* Returns the length of a sequence with this lead byte, and the range of its second byte; 0: no
 * sequence begins with it. */
static size_t lead_info(unsigned char lead, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) {
        if (lead == 0xE0) *low = 0xA0;
        if (lead == 0xED) *high = 0x9F;
        return 3;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        if (lead == 0xF0) *low = 0x90;
        if (lead == 0xF4) *high = 0x8F;
        return 4;
    }
    return 0;
}

/* Returns how many of the first bytes of p may begin a well-formed sequence. *want: the whole
 * length of a sequence that begins with p[0]; 0: none does. */
static size_t matching(const char *p, size_t n, size_t *want)
{
    unsigned char low, high;
    *want = lead_info((unsigned char)p[0], &low, &high);
    if (*want == 0) return 0;
    size_t i = 1;
    for (; i < *want && i < n; i++) {
        const unsigned char c = (unsigned char)p[i];
        if (c < low || c > high) break;
        low = 0x80;
        high = 0xBF;
    }
    return i;
}

bool utf8_sequence(const char *p, size_t n, size_t *step)
{
    size_t want;
    const size_t got = matching(p, n, &want);
    *step = got > 0 ? got : 1;
    return want > 0 && got == want;
}

bool utf8_incomplete(const char *p, size_t n)
{
    size_t want;
    const size_t got = matching(p, n, &want);
    return got == n && n < want;
}

uint32_t utf8_decode(const char *p, size_t n, size_t *step)
{
    if (!utf8_sequence(p, n, step)) return 0xFFFD;
    static const unsigned char masks[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t c = (unsigned char)p[0] & masks[*step];
    for (size_t i = 1; i < *step; i++) c = c << 6 | ((unsigned char)p[i] & 0x3F);
    return c;
}

size_t utf8_encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    static const unsigned char leads[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    const size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (c & 0x3F));
        c >>= 6;
    }
    out[0] = (char)(leads[n] | c);
    return n;
}

size_t utf8_copy(char *out, size_t capacity, const char *text, size_t n)
{
    size_t n_out = 0;
    for (size_t i = 0, step; i < n; i += step) {
        const bool is_good = utf8_sequence(text + i, n - i, &step);
        const size_t n_added = is_good ? step : 3;
        if (n_out + n_added >= capacity) break;
        memcpy(out + n_out, is_good ? text + i : "\xEF\xBF\xBD", n_added);
        n_out += n_added;
    }
    out[n_out] = '\0';
    return n_out;
}

bool utf8_valid(const char *p, size_t n, size_t *bad_at)
{
    size_t step;
    for (size_t i = 0; i < n; i += step) {
        if (utf8_sequence(p + i, n - i, &step)) continue;
        *bad_at = i;
        return false;
    }
    return true;
}
