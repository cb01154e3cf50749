/* WordPiece (Schuster and Nakajima, 2012; as BERT uses it): a word is cut from left to right into
 * the longest pieces that the vocabulary has. In the vocabulary, pieces that continue a word begin
 * with a prefix ("##"). Added tokens that the vocabulary lacks do not count as pieces. Called by
 * the tokenizer for each word of a text if tokenizer.json has the model type WordPiece. */
#ifndef SHOAL_TEXT_TOKENIZER_WORDPIECE_H
#define SHOAL_TEXT_TOKENIZER_WORDPIECE_H

#include "base/status.h"
#include "base/str_map.h"
#include "base/strbuf.h"
#include "text/tokenizer/token_list.h"

enum { WORDPIECE_PREFIX_MAX = 16 };

struct wordpiece {
    struct str_map vocab;              /* key -> id of the model's vocabulary; keys are borrowed */
    char prefix[WORDPIECE_PREFIX_MAX]; /* [n_prefix]: begins the pieces that continue a word */
    size_t n_prefix;
    size_t n_chars_max; /* a word of more characters becomes unk_id */
    size_t n_key_max;   /* bytes of the longest key */
    int32_t unk_id;
    struct strbuf key; /* owned scratch */
};

/* Local. Appends the ids of the pieces of one word of well-formed UTF-8, or only unk_id if the word
 * is too long, or if somewhere in it no piece of the vocabulary fits. Takes time proportional to
 * the word's bytes times the longest key. Errors: STATUS_MEMORY. */
struct status wordpiece_encode(struct wordpiece *w, const char *word, size_t n,
                               struct token_list *out);

#endif
