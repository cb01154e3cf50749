/* Small checkpoints and scratch files for the checkpoint room's tests. */
#ifndef SHOAL_TESTS_UTIL_CKPT_H
#define SHOAL_TESTS_UTIL_CKPT_H

#include "base/status.h"

#include <hdf5.h>
#include <stddef.h>
#include <stdint.h>

/* A path below a scratch folder of this process; the folder is made on the first call and
 * everything in it is removed by scratch_clear. The text lives until the next 8 calls. */
const char *scratch(const char *name);
void scratch_clear(void);

/* Writes a whole file; reads one into malloc'ed memory. */
void put_file(const char *path, const void *bytes, size_t n);
char *get_file(const char *path, size_t *n);

/* Writes a checkpoint with a config, a tokenizer and seven small tensors of all types, experts and
 * quantized ones among them, whose bytes follow from seed. */
struct status small_checkpoint(const char *path, uint32_t seed);

/* Makes a sound file, lets `change` work on it through HDF5, seals it again; what opening it says.
 */
struct status changed_checkpoint(void (*change)(hid_t file));

/* XXH3-free sum of everything a reader gets from a checkpoint: all texts, shapes and weights; 0 and
 * a failed status when any of it cannot be read. */
struct status checkpoint_content(const char *path, uint64_t *content);

/* Runs body(ctx) in a child with an alarm. 0..99: what it returned; 100: it hung; 101: it crashed.
 */
int in_child(int (*body)(void *ctx), void *ctx, unsigned seconds);

#endif
