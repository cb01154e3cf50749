/* Reads base64 (RFC 4648) with padding. Called by tiktoken.c, precompiled.c and job_vectors.c. */
#ifndef SHOAL_BASE_BASE64_H
#define SHOAL_BASE_BASE64_H

#include "base/strbuf.h"

#include <stdbool.h>

/* Local. Decodes n characters and appends the bytes; errors stay in `out` (strbuf_status). False
 * when the characters are not base64, or n is 0. */
bool base64_decode(const char *text, size_t n, struct strbuf *out);

#endif
