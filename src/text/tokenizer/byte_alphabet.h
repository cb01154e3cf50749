/* The 256 printable characters that represent bytes in byte-level vocabularies (GPT-2's table): a
 * byte that is one of the 188 printable characters of Latin-1 is represented by that character, the
 * other 68 bytes by U+0100 to U+0143. */
#ifndef SHOAL_TEXT_TOKENIZER_BYTE_ALPHABET_H
#define SHOAL_TEXT_TOKENIZER_BYTE_ALPHABET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct byte_alphabet {
    uint16_t char_of[256]; /* byte -> code point */
    int16_t byte_of[324];  /* code point -> byte, -1 for none */
};

/* Local. Fills the table. */
void byte_alphabet_init(struct byte_alphabet *a);

/* Local. Turns n bytes of well-formed UTF-8 into the bytes that their characters represent (at most
 * n), in `out`. False when a character is outside the alphabet; *n_out is then unset. */
bool byte_alphabet_decode(const struct byte_alphabet *a, const char *text, size_t n, char *out,
                          size_t *n_out);

#endif
