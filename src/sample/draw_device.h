/* Computes tokens and scores from logits in a device's memory, for rows that need nothing else. The
 * results have the same bytes as those of vocab_parallel.c on the host. Only a few numbers per row
 * are copied to the host; whole rows only when they are drawn over several ranks without NCCL.
 * Called by vocab_parallel.c only. */
#ifndef SHOAL_SAMPLE_DRAW_DEVICE_H
#define SHOAL_SAMPLE_DRAW_DEVICE_H

#include "sample/shards.h"
#include "sample/vocab_rows.h"

struct draw_device; /* buffers for VOCAB_ROWS_AT_ONCE rows */

/* Local. The shards are borrowed. destroy accepts NULL. Errors: STATUS_MEMORY. */
struct status draw_device_create(const struct kern_table *kern, const struct shards *shards,
                                 struct draw_device **out);
void draw_device_destroy(struct draw_device **d);

/* Local. True when no row wants more than a token and a score, and no row limits the tokens that
 * may be drawn (adjust.allowed). */
bool draw_device_serves(const struct vocab_want *wants, size_t n_rows);

/* **Collective (TP)**. Computes the results got [n_rows]. logits: an array [n_rows, shard], which
 * is changed; wants: equal on all tp ranks. Errors: STATUS_MEMORY, and the status of the device. */
struct status draw_device_run(struct draw_device *d, float *logits, const struct vocab_want *wants,
                              size_t n_rows, struct vocab_got *got);

#endif
