/* SentencePiece's compiled normalization rules, as tokenizer.json's "Precompiled" holds them: a
 * table of replacements for characters and short sequences of characters. Reads the table and finds
 * replacements; normalizer.c walks the text. */
#ifndef SHOAL_TEXT_TOKENIZER_PRECOMPILED_H
#define SHOAL_TEXT_TOKENIZER_PRECOMPILED_H

#include "base/json.h"
#include "base/strbuf.h"

#include <stdint.h>

struct precompiled {
    struct strbuf bytes; /* owned: the table, decoded from base64 */
    const char *units;   /* in `bytes`: [n_units] words of 4 bytes, a trie as a double array */
    size_t n_units;
    const char *texts; /* in `bytes`: [n_texts] bytes, the replacements, each ended by a NUL */
    size_t n_texts;
};

/* bytes of the longest cluster of characters that is looked up as a whole */
enum { PRECOMPILED_KEY_MAX = 5 };

/* Local. Reads {"type":"Precompiled","precompiled_charsmap":BASE64}; `where` names the node in
 * errors. Errors: STATUS_INPUT, STATUS_MEMORY; *p then owns nothing. */
struct status precompiled_load(struct precompiled *p, const struct js_node *node,
                               const char *where);
void precompiled_fini(struct precompiled *p);

/* Local. Returns the replacement of the shortest beginning of key [n] that has one, and sets *n_out
 * to its length in bytes; NULL if none has. Borrowed. */
const char *precompiled_find(const struct precompiled *p, const char *key, size_t n, size_t *n_out);

#endif
