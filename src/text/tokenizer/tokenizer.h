/* Turns text into token ids and back, as a tokenizer.json describes: BPE over bytes or characters,
 * Unigram, WordPiece. Knows no language model, no chat template (text/chat/chat.h) and no files.
 * Encoding uses scratch memory and a word cache inside the tokenizer, so one thread at a time may
 * encode. The lead encodes requests; it decodes results with text/tokenizer/detokenizer.h. */
#ifndef SHOAL_TEXT_TOKENIZER_TOKENIZER_H
#define SHOAL_TEXT_TOKENIZER_TOKENIZER_H

#include "base/status.h"
#include "text/tokenizer/token_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

enum tokenizer_flags {
    TOKENIZER_ADD_SPECIAL = 1,   /* apply the post-processor (beginning-of-text and the like) */
    TOKENIZER_PARSE_SPECIAL = 2, /* text that spells a special token becomes that token */
};

/* Local. Builds a tokenizer from n bytes of tokenizer.json; `what` names them in errors. Supported:
 * models BPE (at the byte level, or of characters with or without byte fallback), Unigram,
 * WordPiece and Tiktoken (text/tokenizer/tiktoken.h); pre-tokenizers ByteLevel, Metaspace, Split,
 * Digits, WhitespaceSplit, BertPreTokenizer, Sequence, or none; normalizers NFC, NFD, NFKC, NFKD,
 * Lowercase, Strip, StripAccents, Replace, Prepend, BertNormalizer, Precompiled, Sequence;
 * post-processors TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing, Sequence;
 * decoders ByteLevel, Metaspace, WordPiece, or a Sequence of Replace and Strip steps, ByteFallback,
 * Fuse, Strip in this order; added tokens with all their flags (the detokenizer can skip special
 * ones even if they are normalized). Everything else that would change ids is refused by name.
 * `truncation` and `padding`, which concern batches, have no effect. Owner of *out: the caller,
 * tokenizer_destroy. Errors: STATUS_INPUT, STATUS_MEMORY. */
struct status tokenizer_create(const char *json, size_t n, const char *what,
                               struct tokenizer **out);
void tokenizer_destroy(struct tokenizer **t);

/* Local. Appends the ids of n_bytes of text to `out`: those of Hugging Face's tokenizers library
 * (0.23) with the same file. Each maximal ill-formed part of bytes that are not UTF-8 counts as one
 * U+FFFD. Without TOKENIZER_PARSE_SPECIAL, text that spells a special token is plain text; added
 * tokens that are not special are found in any case. Takes time n log n, or as long as a pattern's
 * match limit allows. After an error `out` has its old length. Errors: STATUS_MEMORY;
 * STATUS_REQUEST when a pattern of the file exceeds its match limit, a piece is too long, or
 * Unigram meets a character without a token and has no unk_id. */
struct status tokenizer_encode(struct tokenizer *t, const char *text, size_t n_bytes,
                               unsigned flags, struct token_list *out);

/* A part of a text, which comes either from a template or from a user. */
struct text_span {
    size_t begin, end; /* bytes [begin, end) */
    bool is_user;
};

/* Local. As tokenizer_encode, for a text with parts from users: text that spells a special token
 * becomes that token only if none of its bytes comes from a user. The borders of the parts have no
 * other effect: if no byte from a user belongs to the text of a special token, the ids are those of
 * tokenizer_encode with TOKENIZER_PARSE_SPECIAL. The spans cover [0, n_bytes) in order. Of the
 * flags only TOKENIZER_ADD_SPECIAL has an effect. Errors: also STATUS_REQUEST for bytes that are
 * not UTF-8. */
struct status tokenizer_encode_spans(struct tokenizer *t, const char *text, size_t n_bytes,
                                     const struct text_span *spans, size_t n_spans, unsigned flags,
                                     struct token_list *out);

struct text_bytes {
    const char *bytes; /* [n] */
    size_t n;
};

/* Local. True when tokenizer_encode_joined supports the way in which the post-processor joins two
 * texts. */
bool tokenizer_joins(const struct tokenizer *t);

/* Local. Appends the ids of two texts as the post-processor joins them, such as [CLS] a [SEP] b
 * [SEP]. Text that spells a special token is plain text. *n_first: how many of the appended ids
 * have type 0; they come first, the others have type 1. Call it only if tokenizer_joins is true.
 * Errors: as tokenizer_encode. */
struct status tokenizer_encode_joined(struct tokenizer *t, const struct text_bytes texts[2],
                                      struct token_list *out, size_t *n_first);

/* Local. Returns one more than the largest id. Ids below it may be unused. */
int32_t tokenizer_vocab_size(const struct tokenizer *t);

/* Local. Returns the bytes to which a token decodes if it is not the first of a text; they may end
 * inside a UTF-8 sequence. A byte-fallback token gives its name ("<0xE9>"), and at the byte level a
 * special token its content. Borrowed from t, not NUL-terminated. NULL and *n = 0 for an id that is
 * unused or out of range. */
const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *n);

/* Local. True for an added token that the file marks as special. */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);

/* Local. Returns the id of the token that tokenizer.json writes as `content`, or -1. At the byte
 * level the file writes a token of the model in byte-level characters, and an added token as plain
 * text. */
int32_t tokenizer_token_id(const struct tokenizer *t, const char *content, size_t n);

#endif
