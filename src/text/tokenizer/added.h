/* Finds added tokens: fixed strings, each of which becomes one id before the text around it is
 * split. The caller searches for some in the raw text, for the others in the normalized text, and
 * encodes the text between them. Called by the tokenizer. */
#ifndef SHOAL_TEXT_TOKENIZER_ADDED_H
#define SHOAL_TEXT_TOKENIZER_ADDED_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct added_token {
    const char *content; /* borrowed: the bytes to find (already normalized if `normalized`) */
    size_t n;
    int32_t id;
    bool special;     /* a special token; it is plain text unless the walk parses special tokens */
    bool single_word; /* found only where no word character is next to it */
    bool lstrip;      /* takes in the whitespace before it */
    bool rstrip;      /* takes in the whitespace after it */
    bool normalized;  /* searched for in the normalized text, in normalized form */
};

/* Tokens that are searched for at the same time. */
struct added_set {
    struct added_token *tokens; /* borrowed, sorted by content, all different */
    size_t n_tokens;
    bool starts[256]; /* some token begins with this byte */
};

/* Local. Sorts the tokens in place and prepares the search. Returns n_tokens, or the index of a
 * token that has the content of another one. */
size_t added_set_init(struct added_set *s, struct added_token *tokens, size_t n_tokens);

/* A piece of text between added tokens, or an added token. */
struct added_piece {
    size_t start, n; /* bytes [start, start + n) of plain text; both 0 for tokens */
    int32_t id;      /* the token's id; -1: plain text */
};

struct added_walk {
    const char *text; /* borrowed, well-formed UTF-8 */
    size_t n;
    size_t search_at;          /* where the next search starts */
    size_t emitted;            /* the text before this offset has been returned */
    size_t run_start, run_end; /* the last run of whitespace that blanks_behind found */
    size_t token_end;          /* where the token to return next ends */
    int32_t token_id;          /* the token to return after the plain text before it; -1: none */
    bool parse_special;
    const unsigned char *user; /* borrowed, [n], set after init: 1 marks a byte that comes from a
                                  user. A special token that contains a marked byte is plain
                                  text; NULL: no byte is marked */
};

/* Local. Starts a walk over n bytes. parse_special false: special tokens are plain text. */
void added_walk_init(struct added_walk *w, const char *text, size_t n, bool parse_special);

/* Local. Finds the next piece in the order of the text, never an empty one; false at the end. Of
 * overlapping tokens the leftmost wins, then the longest. */
bool added_next(const struct added_set *s, struct added_walk *w, struct added_piece *out);

#endif
