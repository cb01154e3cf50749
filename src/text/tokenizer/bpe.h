/* Byte-pair encoding (Sennrich et al. 2016) of one piece of text, from bytes as in GPT-2 or from
 * characters as in SentencePiece. Knows ids and merge ranks, not strings. The pre-tokenizer splits
 * the text into pieces. Called by the tokenizer for each piece if tokenizer.json has the model type
 * BPE or Tiktoken, unless ignore_merges makes the piece a single token. */
#ifndef SHOAL_TEXT_TOKENIZER_BPE_H
#define SHOAL_TEXT_TOKENIZER_BPE_H

#include "base/status.h"
#include "base/str_map.h"
#include "text/tokenizer/token_list.h"

#include <stddef.h>
#include <stdint.h>

struct bpe_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX when empty */
    uint32_t rank; /* lower ranks merge first */
};

struct bpe_symbol {
    int32_t id;
    int32_t prev, next; /* -1 at the ends */
    int32_t alive;      /* 0 once merged into its left neighbour */
};

enum { BPE_CACHE_BYTES = 22, BPE_CACHE_IDS = 10, BPE_CACHE_SLOTS = 1 << 13 };

/* A short piece that was encoded before, and its ids; 64 bytes, a cache line. n_bytes 0: an empty
 * slot. */
struct bpe_cached {
    uint8_t n_bytes, n_ids;
    char bytes[BPE_CACHE_BYTES];
    int32_t ids[BPE_CACHE_IDS];
};

struct bpe {
    int32_t byte_id[256];  /* the id of a byte (with by_char, used for byte_fallback only); -1:
                              none */
    int32_t unk_id;        /* the id for bytes or characters without an id; -1: they are left out */
    bool fuse_unk;         /* unknown bytes or characters in a row become a single unk_id */
    bool by_char;          /* a piece starts as characters, not as bytes */
    bool byte_fallback;    /* a character without an id becomes its bytes if all have an id */
    int32_t ascii_id[128]; /* by_char: ids of ASCII characters, -1: none */
    struct str_map chars;  /* owned; by_char: ids of the other characters */

    struct bpe_merge *merges; /* owned hash table, [merge_mask + 1] */
    size_t merge_mask;
    int32_t *merged; /* owned, [n_merges]: by rank, the id of the token that the merge makes */
    size_t n_merges, merge_capacity;
    bool by_result; /* a merge's rank is the id of the token that it makes; `merged` is not used */

    struct bpe_symbol *symbols; /* owned scratch, [n_symbols_max] */
    uint64_t *heap;             /* owned scratch, [3 * n_symbols_max]: rank << 32 | position */
    size_t n_symbols_max;
    struct bpe_cached *cache; /* owned, [BPE_CACHE_SLOTS] */
};

/* Local. Makes an empty model without merges; byte_id all -1, unk_id -1. Errors: STATUS_MEMORY. */
struct status bpe_init(struct bpe *b);
void bpe_fini(struct bpe *b);

/* Local. Makes room for n_merges; called once, before the first merge is added. by_result: a
 * merge's rank is the id of the token that it makes, as in tiktoken. Merges that make the same
 * token then have the same rank, and of their pairs the leftmost merges first. Errors:
 * STATUS_MEMORY. */
struct status bpe_merges_init(struct bpe *b, size_t n_merges, bool by_result);

/* Local. Adds a merge, up to n_merges in all. Its rank is the number of merges before it, or
 * `result` with by_result. A pair that is added twice gets the later rank. */
void bpe_add_merge(struct bpe *b, int32_t left, int32_t right, int32_t result);

/* Local. Appends the ids of one piece of n bytes. Takes time n log n. Errors: STATUS_REQUEST for a
 * piece that is too long, STATUS_MEMORY. */
struct status bpe_encode(struct bpe *b, const char *piece, size_t n, struct token_list *out);

#endif
