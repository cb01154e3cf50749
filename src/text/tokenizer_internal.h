/* The tokenizer's insides, shared by its loader and its encoder; nobody else includes this. */
#ifndef SHOAL_TEXT_TOKENIZER_INTERNAL_H
#define SHOAL_TEXT_TOKENIZER_INTERNAL_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/pretokenizer.h"
#include "text/str_map.h"
#include "text/tokenizer.h"

struct token_info {
    const char *bytes; /* what the token stands for, in the arena; NULL for a hole */
    uint32_t n;
    bool in_model; /* the model's vocabulary has this id */
    bool added;    /* an added token has this id */
    bool special;
};

struct tokenizer {
    struct byte_alphabet alphabet;
    char *arena; /* owned: keys and bytes of the vocabulary, then of the added tokens */
    size_t n_arena, arena_bytes;
    struct token_info *tokens; /* owned, [n_tokens] by id */
    size_t n_tokens;
    size_t n_vocab;       /* entries of the model's vocabulary */
    struct str_map keys;  /* as the file writes them -> id */
    struct str_map bytes; /* raw bytes -> id, with ignore_merges only */
    bool ignore_merges;   /* a piece that is a token is that token, whatever the merges say */
    bool nfc;
    struct bpe bpe;
    struct pretokenizer pretokenizer;
    struct added_token *added; /* owned, [n_added]: those for raw text, then for normalized text */
    size_t n_added;
    struct added_set raw_set, normalized_set;
    struct token_list prefix, suffix; /* what the post-processor puts around a text */
    struct strbuf valid;              /* owned scratch: the text with its bad bytes replaced */
    struct strbuf normalized;         /* owned scratch */
    struct strbuf marks;              /* owned scratch: which bytes of the text are a user's */
    struct strbuf normalized_marks;   /* owned scratch */
};

/* Local. The loader's parts, in the order in which they run. All fill a zeroed tokenizer, which
 * tokenizer_destroy frees whole or half filled. Errors: STATUS_INPUT, STATUS_MEMORY. */
struct status tokenizer_load_vocab(struct tokenizer *t, const struct js_node *model,
                                   const struct js_node *added, const char *what);
struct status tokenizer_load_merges(struct tokenizer *t, const struct js_node *model,
                                    const char *what);
struct status tokenizer_load_added(struct tokenizer *t, const struct js_node *list,
                                   const char *what);
struct status tokenizer_load_post_processor(struct tokenizer *t, const struct js_node *node,
                                            const char *what);

/* Local. NFC of n bytes of valid UTF-8 into t->normalized, and into t->normalized_marks whose the
 * characters are; a character composed of both sides' is a user's. Errors: STATUS_MEMORY. */
struct status tokenizer_nfc_marked(struct tokenizer *t, const char *text, const unsigned char *user,
                                   size_t n);

/* Local. n bytes copied into the arena, which was sized beforehand; asserts that they fit. */
char *tokenizer_arena_add(struct tokenizer *t, const char *bytes, size_t n);

#endif
