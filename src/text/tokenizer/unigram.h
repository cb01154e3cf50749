/* Unigram language model segmentation of one piece (Kudo 2018): the best path by Viterbi. Knows
 * ids, scores and the tokens' bytes; does not split text into pieces. Called by the tokenizer for
 * each piece of a text if tokenizer.json has the model type Unigram. */
#ifndef SHOAL_TEXT_TOKENIZER_UNIGRAM_H
#define SHOAL_TEXT_TOKENIZER_UNIGRAM_H

#include "base/status.h"
#include "text/tokenizer/token_list.h"

#include <stddef.h>
#include <stdint.h>

enum { UNIGRAM_TOKEN_BYTES_MAX = 1024 }; /* bounds the work for one byte of text */

struct unigram_edge {
    uint64_t key;  /* node << 8 | byte, plus 1; 0 when empty */
    uint32_t node; /* the node to which the byte leads */
};

/* The best path through the bytes before an offset of the piece. */
struct unigram_end {
    double score;
    int32_t from; /* where the path's last token starts; -1: no path ends at this offset yet */
    int32_t id;
};

struct unigram {
    struct unigram_edge *edges; /* owned hash table, [edge_mask + 1]: a trie over bytes */
    size_t edge_mask;
    int32_t *id_of; /* owned, [n_nodes_max]: the token that ends at a node, or -1 */
    size_t n_nodes, n_nodes_max;
    double *scores; /* owned, [n_tokens] by id */
    size_t n_tokens;
    double score_min;
    int32_t unk_id; /* -1: none */
    bool byte_fallback;
    int32_t byte_id[256]; /* the ids of <0x00> to <0xFF>, -1: none */

    struct unigram_end *ends; /* owned scratch, [n_ends_max] by offset */
    size_t n_ends_max;
};

/* Local. Makes an empty model with room for n_tokens tokens of n_bytes in all; ids are 0 to
 * n_tokens - 1. Errors: STATUS_MEMORY. */
struct status unigram_init(struct unigram *u, size_t n_tokens, size_t n_bytes);
void unigram_fini(struct unigram *u);

/* Local. Adds a token; false when another token has the same bytes. */
bool unigram_add(struct unigram *u, const char *bytes, size_t n, int32_t id, double score);

/* Local. Appends the ids of one piece of well-formed UTF-8. Takes time proportional to its bytes
 * times the longest token. Errors: STATUS_REQUEST when a path needs the unknown token, because no
 * token is exactly the next character, and there is no unk_id, or when the piece is too long;
 * STATUS_MEMORY. */
struct status unigram_encode(struct unigram *u, const char *piece, size_t n,
                             struct token_list *out);

#endif
