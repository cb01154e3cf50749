/* The largest logits of a row whose vocabulary is divided over ranks: each rank finds its own, and
 * one rank merges them. A key is (ordered bits of the logit << 32) | ~id, so that keys order by
 * (logit descending, id ascending) and the result does not depend on the division. Called by
 * vocab_parallel.c. */
#ifndef SHOAL_SAMPLE_TOP_H
#define SHOAL_SAMPLE_TOP_H

#include <stddef.h>
#include <stdint.h>

/* Local. Sets keys [n_top] to the largest keys of logits [width], descending; the first logit has
 * id id0. With fewer than n_top logits the last keys are 0. All logits are finite. */
void top_of_shard(const float *logits, size_t width, uint32_t id0, size_t n_top, uint64_t *keys);

/* Local. Sets keys [n_top] to the largest keys of `all` [n_lists, stride], descending. The first
 * n_top keys of each list are sorted, descending. */
void top_merge(const uint64_t *all, size_t n_lists, size_t stride, size_t n_top, uint64_t *keys);

/* Local. Returns the token id and the logit that a key encodes. */
int32_t top_id(uint64_t key);
float top_logit(uint64_t key);

#endif
