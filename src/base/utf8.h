/* UTF-8 as Unicode 15, table 3-7 defines it: no overlong forms, no surrogates, at most U+10FFFF. */
#ifndef SHOAL_BASE_UTF8_H
#define SHOAL_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Local. True when a well-formed sequence starts at p (n >= 1 bytes); *step is its length. False:
 * *step is the length of the maximal ill-formed subpart (at least 1), to be replaced by one U+FFFD.
 */
bool utf8_sequence(const char *p, size_t n, size_t *step);

/* Local. True when p (n bytes, 1 to 3) could become well-formed with more bytes after it. */
bool utf8_incomplete(const char *p, size_t n);

/* Local. Returns the code point of the sequence at p, U+FFFD if it is ill-formed; *step as
 * utf8_sequence. */
uint32_t utf8_decode(const char *p, size_t n, size_t *step);

/* Local. Writes a code point's 1 to 4 bytes to out; returns their number. */
size_t utf8_encode(uint32_t code_point, char out[4]);

/* Local. Copies text [n] to out [capacity], NUL-terminated and well-formed: each ill-formed part
 * becomes U+FFFD; text that does not fit is cut between two characters. Returns the bytes copied.
 */
size_t utf8_copy(char *out, size_t capacity, const char *text, size_t n);

/* Local. True when all n bytes are well-formed; *bad_at is the first bad offset otherwise. */
bool utf8_valid(const char *p, size_t n, size_t *bad_at);

#endif
