/* Unicode properties that tokenizers depend on: blanks, word characters, categories, case, normal
 * forms, grapheme clusters. A function that names no version of Unicode follows that of the
 * utf8proc library. Knows no tokens. */
#ifndef SHOAL_TEXT_UNICODE_UNICODE_H
#define SHOAL_TEXT_UNICODE_UNICODE_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* White_Space (PropList.txt) as the inside of a PCRE2 class, and its complement. PCRE2's own \s
 * also matches U+180E, which lost the property in Unicode 6.3. */
#define UNICODE_SPACE                                                                              \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define UNICODE_NOT_SPACE                                                                          \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-"         \
    "\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"        \
    "\\x{3001}-\\x{10ffff}"

/* Local. True when the code point has the property White_Space. */
bool unicode_is_space(uint32_t c);

/* Local. True for a word character (UTS 18, annex C): Alphabetic, Mark, Decimal_Number,
 * Connector_Punctuation, Join_Control. */
bool unicode_is_word(uint32_t c);

/* Local. Appends the inside of a PCRE2 class for a general category ("L", "Lu", ...) or the script
 * Han. A PCRE2 with Unicode 14, 15 or 16 then matches as with Unicode 16, except that with the
 * older two Mn still has U+1171E, which is Mc in Unicode 16. Returns false and appends nothing for
 * C, Cn, Co, Cs and any other name. */
bool unicode_category_class(const char *name, size_t n, struct strbuf *out);

/* The normalization forms of UAX 15. */
enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

/* Local. Appends the normal form of n bytes of well-formed UTF-8, by Unicode 9, as Hugging Face's
 * tokenizers library does. Time: linear. Errors: STATUS_MEMORY. */
struct status unicode_normalize(enum unicode_form form, const char *text, size_t n,
                                struct strbuf *out);

/* Local. True when the text certainly is its own normal form, because no byte begins a code point
 * that the form could change. False: unknown. */
bool unicode_is_normal(enum unicode_form form, const char *text, size_t n);

/* Local. True for a combining mark (general category M) of Unicode 9. */
bool unicode_is_mark(uint32_t c);

/* Local. Returns the length in bytes of the extended grapheme cluster (UAX 29) at the beginning of
 * n >= 1 bytes of well-formed UTF-8. */
size_t unicode_grapheme_bytes(const char *text, size_t n);

/* Local. Writes the lower case of one code point by Unicode 17, without regard to its neighbours:
 * 1 or 2 code points. Returns their number. */
size_t unicode_lowercase(uint32_t c, uint32_t out[2]);

/* Local. The character classes of BERT's normalizer and pre-tokenizer in the tokenizers library.
 * unicode_bert_drops: the characters that the normalizer removes (controls except tab, newline and
 * carriage return; formats; private use; U+FFFD). unicode_bert_is_accent: the accents of a text in
 * NFD. unicode_bert_is_ideograph: the characters that are words of their own. */
bool unicode_bert_drops(uint32_t c);
bool unicode_bert_is_accent(uint32_t c);
bool unicode_bert_is_punctuation(uint32_t c);
bool unicode_bert_is_ideograph(uint32_t c);

#endif
