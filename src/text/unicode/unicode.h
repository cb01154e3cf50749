/* The Unicode facts that tokenizers depend on: blanks, word characters, categories, case, normal
 * forms. Knows no patterns and no tokens. The reference is Unicode 16 with the tokenizers library's
 * own ideas where it has some. Called by the pattern translator, the added tokens and the encoder.
 */
#ifndef SHOAL_TEXT_UNICODE_UNICODE_H
#define SHOAL_TEXT_UNICODE_UNICODE_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* White_Space (PropList.txt) as the inside of a PCRE2 class, and its complement. PCRE2's own \s
 * also holds U+180E, which lost the property in Unicode 6.3. */
#define UNICODE_SPACE                                                                              \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define UNICODE_NOT_SPACE                                                                          \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-"         \
    "\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"        \
    "\\x{3001}-\\x{10ffff}"

/* Local. White_Space of one code point. */
bool unicode_is_space(uint32_t c);

/* Local. A word character (UTS 18, annex C): Alphabetic, Mark, Decimal_Number,
 * Connector_Punctuation, Join_Control. */
bool unicode_is_word(uint32_t c);

/* Local. True for a general category's name ("L", "Lu", ...), and for the script Han. When so,
 * appends to `out` the inside of a PCRE2 class that means this in Unicode 16 whatever the library's
 * own version. */
bool unicode_category_class(const char *name, size_t n, struct strbuf *out);

/* The normalization forms of UAX 15. */
enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

/* Local. Appends the normal form of n bytes of well-formed UTF-8, by Unicode 9 as the reference
 * does. Linear but for the sorting of runs of combining marks. Errors: STATUS_MEMORY. */
struct status unicode_normalize(enum unicode_form form, const char *text, size_t n,
                                struct strbuf *out);

/* Local. True when a glance shows that text is its own normal form: no byte leads to a code point
 * that any form changes. */
bool unicode_is_normal(enum unicode_form form, const char *text, size_t n);

/* Local. A combining mark (general category M) of Unicode 9. */
bool unicode_is_mark(uint32_t c);

/* Local. The lower case of one code point, without context; returns how many, 1 or 2. */
size_t unicode_lowercase(uint32_t c, uint32_t out[2]);

#endif
