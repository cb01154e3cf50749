/* The tokenizer's state, shared by its loader, its encoder, the detokenizer and token_order.c. */
#ifndef SHOAL_TEXT_TOKENIZER_TOKENIZER_PRIVATE_H
#define SHOAL_TEXT_TOKENIZER_TOKENIZER_PRIVATE_H

#include "base/str_map.h"
#include "text/tokenizer/added.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/decoder.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pretokenizer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/unigram.h"
#include "text/tokenizer/wordpiece.h"

struct token_info {
    const char *bytes; /* [n]: what the token decodes to, borrowed from the tokenizer; NULL: no
                          token has this id */
    uint32_t n;
    uint32_t n_key;
    const char *key; /* [n_key]: the token as the file writes it, or an added token's normalized
                        content; borrowed */
    int16_t byte;    /* the byte for which the token stands by the decoder's ByteFallback, or -1 */
    bool in_model;   /* the model's vocabulary has this id */
    bool added;      /* an added token has this id */
    bool special;
};

/* How the post-processor joins two texts. */
struct token_joint {
    bool is_known;  /* false: it joins no two texts, or in a way that is not supported */
    bool has_types; /* the second text and the ids behind it have type 1; false: all have type 0 */
    struct token_list before, between, behind; /* ids around the texts; owned */
};

struct tokenizer {
    struct byte_alphabet alphabet;
    char *arena; /* owned: the tokens' keys and, at the byte level, their bytes: of the vocabulary,
                    then of the added tokens */
    size_t n_arena, arena_bytes;
    struct token_info *tokens; /* owned, [n_tokens] by id */
    size_t n_tokens;
    size_t n_vocab;       /* entries of the model's vocabulary */
    struct str_map keys;  /* token as the file writes it -> id */
    struct str_map bytes; /* raw bytes -> id; only at the byte level with ignore_merges */
    bool ignore_merges;   /* a piece that is itself a token becomes this token */
    bool byte_level;      /* the model works on bytes; otherwise on characters */
    bool is_unigram;      /* Unigram instead of BPE */
    bool is_tiktoken;     /* BPE at the byte level; its merges follow from the ids
                             (tokenizer_load_ranks) */
    struct bpe bpe;
    bool is_wordpiece; /* WordPiece instead of BPE */
    struct unigram unigram;
    struct wordpiece wordpiece;
    struct normalizer normalizer;
    struct decoder decoder;
    struct strbuf spoken; /* owned: the texts that tokens decode to, when not at the byte level */
    struct pretokenizer pretokenizer;
    struct added_token *added; /* owned, [n_added]: first the tokens that are searched for in raw
                                  text, then those for normalized text */
    size_t n_added;
    char **normal_contents; /* owned, [n_added], each owned or NULL: normalized contents */
    struct added_set raw_set, normalized_set;
    struct token_list prefix, suffix; /* ids that the post-processor puts before and after a text */
    struct token_joint joint;
    struct strbuf valid; /* owned scratch: the text with ill-formed bytes replaced by U+FFFD */
    struct strbuf marks; /* owned scratch: 1 for each byte of the text that comes from a user */
};

/* Local. The steps of loading, in the order in which tokenizer_create runs them. Of the four steps
 * from tokenizer_load_unigram to tokenizer_load_ranks only that of the model's type runs.
 * tokenizer_load_spoken runs only if the tokenizer is not at the byte level. tokenizer_destroy
 * frees the tokenizer even after a failed step. Errors: STATUS_INPUT, STATUS_MEMORY;
 * tokenizer_load_added and tokenizer_load_spoken also STATUS_REQUEST when a pattern's match limit
 * is reached. */
struct status tokenizer_load_vocab(struct tokenizer *t, const struct js_node *model,
                                   const struct js_node *added, const char *what);
struct status tokenizer_load_unigram(struct tokenizer *t, const struct js_node *model,
                                     const char *what);
struct status tokenizer_load_wordpiece(struct tokenizer *t, const struct js_node *model,
                                       const char *what);
struct status tokenizer_load_merges(struct tokenizer *t, const struct js_node *model,
                                    const char *what);
/* For a Tiktoken model: adds a merge for each split of a token into two tokens. The merge's rank is
 * the id of the whole token. */
struct status tokenizer_load_ranks(struct tokenizer *t, const char *what);
struct status tokenizer_load_added(struct tokenizer *t, const struct js_node *list,
                                   const char *what);
struct status tokenizer_load_spoken(struct tokenizer *t, const char *what);
struct status tokenizer_load_post_processor(struct tokenizer *t, const struct js_node *node,
                                            const char *what);

/* Local. Sets the token's bytes, which are written to `to` [n]: those that the key's byte-level
 * characters represent, or the key itself if another character is in it. Returns false in the
 * latter case. */
bool tokenizer_set_bytes(const struct tokenizer *t, struct token_info *info, const char *key,
                         size_t n, char *to);

/* Local. Returns the id of the token that the file writes as `key`, or -1 if the model's vocabulary
 * does not have it. */
int32_t tokenizer_model_id(const struct tokenizer *t, const char *key, size_t n);

/* Local. Copies n bytes into the arena and returns the copy. Asserts that they fit:
 * tokenizer_load_vocab has allocated the arena for all tokens. */
char *tokenizer_arena_add(struct tokenizer *t, const char *bytes, size_t n);

#endif
