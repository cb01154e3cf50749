/* Reads base64. */
#include "base/base64.h"

#include <stdint.h>
#include <string.h>

static int base64_digit(char c)
{
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c != '\0' ? strchr(DIGITS, c) : NULL;
    return at != NULL ? (int)(at - DIGITS) : -1;
}

bool base64_decode(const char *text, size_t n, struct strbuf *out)
{
    if (n == 0 || n % 4 != 0) return false;
    const size_t n_pad = text[n - 1] != '=' ? 0 : text[n - 2] != '=' ? 1 : 2;
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        const int digit = i < n - n_pad ? base64_digit(text[i]) : 0;
        if (digit < 0) return false;
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4 != 3) continue;
        const char bytes[3] = {(char)(bits >> 16), (char)(bits >> 8), (char)bits};
        strbuf_add(out, bytes, i + 1 < n ? 3 : 3 - n_pad);
        bits = 0;
    }
    return true;
}
