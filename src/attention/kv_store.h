/* Keeps KV blocks of shared prefixes in a folder, for later jobs and for jobs that run at the same
 * time. A block's name is a hash of all that its bytes depend on: checkpoint, arithmetic, KV type
 * and all tokens up to its end (KV_STORE_NUMERICS counts changes of the arithmetic). A rank writes
 * its layers and heads as one file, and finds those that it needs in the files of any layout. Files
 * appear whole, by a rename, with checksums: a file of which a part that is read is torn or damaged
 * is removed. When the folder is full, the least recently used files are removed. Called by
 * kv_tier.c on its thread, and by engine_moves.c. */
#ifndef SHOAL_ATTENTION_KV_STORE_H
#define SHOAL_ATTENTION_KV_STORE_H

#include "attention/kv_pool.h"

enum { KV_STORE_NUMERICS = 1 }; /* raise it with every change of the bits of K or V */

struct kv_store_key {
    uint64_t low, high;
};

/* Which part of a block this rank has. */
struct kv_store_part {
    const uint32_t *layers; /* [n_layers] the model's layer of each layer in a block; borrowed */
    uint32_t n_layers;
    uint32_t head_begin, head_end; /* kv heads */
    uint32_t n_halves;             /* 2: K and V; 1: latents */
    uint64_t half_bytes;           /* of one head's K or V in a block */
    uint64_t beside_bytes;         /* of a layer's index keys, which follow its heads and which all
                                      its heads share; n_halves divides it */
};

struct kv_store;

/* Local. Opens a store in folder `dir`, which is made if it is missing; copies `part`. n_bytes: the
 * bound on the folder's files; sweeps: also call kv_store_sweep. Errors: STATUS_IO, STATUS_MEMORY.
 * destroy accepts NULL. */
struct status kv_store_create(const char *dir, uint64_t n_bytes, bool sweeps,
                              const struct kv_store_part *part, struct kv_store **out);
void kv_store_destroy(struct kv_store **s);

/* Local. Returns the key of the 64 tokens that follow those of key `before`. */
struct kv_store_key kv_store_key_of(struct kv_store_key before, const int32_t *tokens);

/* Local. True when the folder has a part of this block, written by any rank of any job. */
bool kv_store_has(const struct kv_store *s, struct kv_store_key key);

/* Local. Writes this rank's part, unless it is there: for each layer [n_halves, heads] of
 * half_bytes, then beside_bytes.
 * Sweeps if all writers of the folder together have written more than 1/16 of n_bytes since the
 * last sweep; so the folder holds at most 15/16 of n_bytes, plus one file of each writer. False:
 * the file could not be written. */
bool kv_store_put(struct kv_store *s, struct kv_store_key key, const void *part);

/* Local. Reads this rank's part from the files of the block. False: a layer or a head is missing or
 * damaged, or memory is short; `part` is then incomplete. */
bool kv_store_get(struct kv_store *s, struct kv_store_key key, void *part);

/* Local. Removes files, the least recently used first, until those left have at most 7/8 of
 * n_bytes. If the files cannot be listed, as when memory is short, it removes none; kv_store_put
 * then tries again only after as many bytes as after a success. */
void kv_store_sweep(struct kv_store *s);

#endif
