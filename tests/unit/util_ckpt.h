/* Small checkpoints and scratch files for tests of src/checkpoint. */
#ifndef SHOAL_TESTS_UTIL_CKPT_H
#define SHOAL_TESTS_UTIL_CKPT_H

#include "base/status.h"
#include "base/strbuf.h"

#include <hdf5.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the path of `name` in a scratch folder of this process. The first call makes the folder;
 * scratch_clear removes it with all that is in it. The 8th call from now overwrites the string. */
const char *scratch(const char *name);
void scratch_clear(void);

/* Writes a whole file; reads one into malloc'ed memory, which the caller frees. NULL: the file
 * cannot be opened. */
void put_file(const char *path, const void *bytes, size_t n);
char *get_file(const char *path, size_t *n);

/* Returns a published config.json as convert stores it, NUL-terminated; owner: the caller, who
 * calls strbuf_fini. */
struct strbuf get_published_config(const char *path);

/* Writes a checkpoint with a config, a tokenizer, a chat template and seven small tensors of five
 * types, some of them of experts, two of them quantized. The seed determines the bytes of the
 * tensors. */
struct status small_checkpoint(const char *path, uint32_t seed);

/* Makes a valid file, lets `change` modify it through HDF5, and seals it again. Returns what
 * opening the file returns. */
struct status changed_checkpoint(void (*change)(hid_t file));

/* Hashes all that a reader gets from a checkpoint: texts, shapes, weights and RoPE frequencies. The
 * hash is not XXH3, so it is independent of the file's checksums. If something cannot be read,
 * *content is 0 and the status has failed. */
struct status checkpoint_content(const char *path, uint64_t *content);

/* Runs body(ctx) in a child process for at most `seconds`. Returns 0 to 99: what body returned;
 * 100: it did not end in time; 101: it crashed or returned another number. */
int in_child(int (*body)(void *ctx), void *ctx, unsigned seconds);

#endif
