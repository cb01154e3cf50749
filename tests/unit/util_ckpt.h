/* Small checkpoints and scratch files for tests of src/checkpoint. */
#ifndef SHOAL_TESTS_UTIL_CKPT_H
#define SHOAL_TESTS_UTIL_CKPT_H

#include "base/status.h"
#include "base/strbuf.h"

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

/* Returns a published config.json as convert stores it, NUL-terminated; owner: the caller, who
 * calls strbuf_fini. */
struct strbuf get_published_config(const char *path);

/* Writes a checkpoint with a config, a tokenizer and seven small tensors of all types, including
 * experts and quantized tensors. The seed determines their bytes. */
struct status small_checkpoint(const char *path, uint32_t seed);

/* Makes a valid file, lets `change` modify it through HDF5, and seals it again. Returns what
 * opening the file returns. */
struct status changed_checkpoint(void (*change)(hid_t file));

/* Sums all that a reader gets from a checkpoint: all texts, shapes and weights. The sum does not
 * use XXH3, so it is independent of the file's checksums. When something cannot be read, the sum is
 * 0 and the status has failed. */
struct status checkpoint_content(const char *path, uint64_t *content);

/* Runs body(ctx) in a child process for at most `seconds`. Returns 0 to 99: what body returned;
 * 100: it did not end; 101: it crashed. */
int in_child(int (*body)(void *ctx), void *ctx, unsigned seconds);

#endif
