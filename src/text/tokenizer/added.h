/* Added tokens: fixed strings that become one id before anything else looks at the text.
 * Finds them; does not normalize and does not encode what lies between. Called by the tokenizer. */
#ifndef SHOAL_TEXT_TOKENIZER_ADDED_H
#define SHOAL_TEXT_TOKENIZER_ADDED_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

struct added_token {
    const char *content; /* borrowed: the bytes to find (normalized when `normalized`) */
    size_t n;
    int32_t id;
    bool special;     /* not searched when special tokens are plain text */
    bool single_word; /* only where no word character touches it */
    bool lstrip;      /* swallows the blanks before it */
    bool rstrip;      /* swallows the blanks behind it */
    bool normalized;  /* searched in the normalized text, with its content normalized */
};

/* One set of tokens that are searched together. */
struct added_set {
    struct added_token *tokens; /* borrowed, sorted by content, no two alike */
    size_t n_tokens;
    bool starts[256]; /* some token begins with this byte */
};

/* Local. Sorts the tokens in place and prepares the search. Returns the index of a token equal to
 * its neighbour, or n_tokens when all differ. */
size_t added_set_init(struct added_set *s, struct added_token *tokens, size_t n_tokens);

/* A piece of text between added tokens, or one of them. */
struct added_piece {
    size_t start, n; /* unset for tokens */
    int32_t id;      /* -1: plain text */
};

struct added_walk {
    const char *text; /* borrowed, well-formed UTF-8 */
    size_t n;
    size_t search_at;          /* where the next search starts */
    size_t emitted;            /* text up to here has been handed out */
    size_t run_start, run_end; /* the last run of blanks that a token swallowed */
    size_t token_end;          /* where the waiting token ends */
    int32_t token_id;          /* waits behind the plain piece just handed out; -1: none */
    bool parse_special;
    const unsigned char *user; /* borrowed, [n], set after init: a special token that touches a
                                * byte marked 1 is plain text; NULL: no byte is marked */
};

/* Local. Starts a walk over n bytes; parse_special false leaves special tokens in the plain text.
 */
void added_walk_init(struct added_walk *w, const char *text, size_t n, bool parse_special);

/* Local. The next piece, in order, none empty; false at the end. Leftmost first, longest among
 * those. */
bool added_next(const struct added_set *s, struct added_walk *w, struct added_piece *out);

#endif
