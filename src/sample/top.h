/* The largest logits of a row whose vocabulary is cut over ranks: each finds its own, and one
 * merges them. A key is (ordered bits of the logit << 32) | ~id, so keys order as (logit
 * descending, id ascending) and no cut shows. Called by vocab_parallel.c. */
#ifndef SHOAL_SAMPLE_TOP_H
#define SHOAL_SAMPLE_TOP_H

#include <stddef.h>
#include <stdint.h>

/* Local. keys [n_top] = the largest keys of logits [width], ids from id0 on, descending; 0 where
 * there are fewer. Finite logits. */
void top_of_shard(const float *logits, size_t width, uint32_t id0, size_t n_top, uint64_t *keys);

/* Local. The n_top largest of all [n_lists, stride], each list descending in its first n_top, into
 * keys, descending. */
void top_merge(const uint64_t *all, size_t n_lists, size_t stride, size_t n_top, uint64_t *keys);

/* Local. The token id and the logit that a key encodes. */
int32_t top_id(uint64_t key);
float top_logit(uint64_t key);

#endif
