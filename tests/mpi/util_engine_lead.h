/* Rank 0 in the suite of the engine: it submits steps of a few sequences and checks their results.
 */
#ifndef SHOAL_TESTS_UTIL_ENGINE_LEAD_H
#define SHOAL_TESTS_UTIL_ENGINE_LEAD_H

#include "engine/engine.h"

enum { N_SEQS = 6, N_GOLDEN = 3, TOKENS_MAX = 192, DECODED = 32, BLOCKS = 3, CHUNK = 9 };

/* Sequences: a prompt, then the DECODED tokens that greedy decoding must give. */
struct golden_seqs {
    int32_t tokens[N_GOLDEN][TOKENS_MAX];
    int32_t n_tokens[N_GOLDEN];
    size_t n;
};

/* Local. Reads the sequences of a model's folder of goldens. */
void util_golden_read(struct golden_seqs *g, const char *dir);

/* Called by rank 0 while the other ranks are in engine_follow. Runs steps until all sequences are
 * done, then some without rows, and stops the engine. Checks tokens and logits, and returns a hash
 * of the scores. With counts_bad, values must leave the grid in every sequence instead, and the
 * hash is that of their counts. */
uint64_t util_engine_lead(struct engine *engine, const struct layout *l,
                          const struct golden_seqs *golden, bool counts_bad);

#endif
