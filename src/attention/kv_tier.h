/* KV blocks on disk: in a rank's own file, without a name, of slots of one block each, or in a
 * kv_store. While steps run, a thread writes and reads the blocks in the order of the calls. Each
 * slot's checksum stays in memory; a block that comes back changed has failed, and the lead has its
 * tokens computed again. Knows no sequences: the lead's plan says which block goes where. Called by
 * the engine. */
#ifndef SHOAL_ATTENTION_KV_TIER_H
#define SHOAL_ATTENTION_KV_TIER_H

#include "attention/kv_pool.h"
#include "attention/kv_store.h"
#include "base/failpoint.h"

struct kv_tier;

struct kv_tier_stats {
    uint64_t n_out, n_in;         /* writes and reads that have ended, including failed ones */
    uint64_t out_bytes, in_bytes; /* of their blocks */
    uint64_t out_ns, in_ns;       /* the thread's time for them */
    uint64_t wait_ns;             /* time that steps waited for reads, or for room to write */
    uint64_t n_failed;            /* reads that failed, or brought another checksum */
};

struct kv_tier_options {
    const char *dir;             /* of the file */
    uint32_t n_slots;            /* blocks that it holds; 0: no file */
    const struct kv_pool *pool;  /* in host memory; borrowed */
    struct kv_store *store;      /* borrowed; NULL: none */
    struct failpoint *failpoint; /* tests only; NULL: none */
};

/* Local. Makes the file, if there are slots, and starts the thread. Errors: STATUS_IO names the
 * folder, STATUS_USAGE (its name is too long), STATUS_MEMORY. destroy accepts NULL; it drops the
 * writes and reads that have not begun. */
struct status kv_tier_create(const struct kv_tier_options *options, struct kv_tier **out);
void kv_tier_destroy(struct kv_tier **t);

/* Local. Copies a block, which may change afterwards; it is written to `slot` later. Waits for
 * reads into the block, and while too many copies wait to be written. A block that cannot be
 * written fails when it is read. Errors: STATUS_MEMORY, STATUS_BUG (ids out of range). */
struct status kv_tier_out(struct kv_tier *t, uint32_t block, uint32_t slot);

/* Local. Orders a slot to be read into a block, which nobody may use until the read has ended.
 * Reads, also those of kv_tier_get, are counted from 0 on. Errors: as kv_tier_out. */
struct status kv_tier_in(struct kv_tier *t, uint32_t slot, uint32_t block);

/* Local. As kv_tier_out and kv_tier_in, with the store instead of the file. */
struct status kv_tier_put(struct kv_tier *t, uint32_t block, struct kv_store_key key);
struct status kv_tier_get(struct kv_tier *t, struct kv_store_key key, uint32_t block);

/* Local. Waits for all reads into this block that were ordered. */
void kv_tier_await_block(struct kv_tier *t, uint32_t block);

/* Local. Returns the number of reads that have ended; with `all`, first waits for all that were
 * ordered. */
uint64_t kv_tier_n_ended(struct kv_tier *t, bool all);

/* Local. True when read i, which has ended, brought the block as it was written. i must be among
 * the last KV_TIER_READS reads. */
enum { KV_TIER_READS = 1 << 16 };
bool kv_tier_is_good(struct kv_tier *t, uint64_t i);

/* Local. Returns the descriptor of the file, for tests that damage it; -1: no file. */
int kv_tier_fd(const struct kv_tier *t);
struct kv_tier_stats kv_tier_stats_of(struct kv_tier *t);

#endif
