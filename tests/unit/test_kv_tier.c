/* KV blocks on disk: a block is read back unchanged, or is known to be bad. */
#include "attention/kv_tier.h"

#include "kernels/kern.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_BLOCKS = 6, N_SLOTS = 9 };

struct tier_test {
    struct kern_table kern;
    struct kv_pool *pool;
    struct kv_tier *tier;
    size_t n_bytes; /* of a block */
};

static struct tier_test open_test(struct failpoint *failpoint)
{
    static struct kern_table kern;
    struct tier_test t = {0};
    const struct kv_shape shape = {
        .n_layers = 3, .n_blocks = N_BLOCKS, .n_kv_heads = 2, .head_dim = 16, .dtype = DTYPE_I8};
    struct status st = kv_pool_create(&kern, &shape, &t.pool);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    st = kv_tier_create(
        &(struct kv_tier_options){
            .dir = "/tmp", .n_slots = N_SLOTS, .pool = t.pool, .failpoint = failpoint},
        &t.tier);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    t.n_bytes = kv_pool_one_bytes(t.pool);
    CU_ASSERT_EQUAL(t.n_bytes, kv_pool_block_bytes(3, 2, 16, DTYPE_I8, false));
    return t;
}

/* Index keys take memory in the pool only for the layers that have them. A block in a buffer has
 * room for the keys of every layer, so that ranks with other layers can read it. */
static void some_layers_have_index_keys(void)
{
    enum { LAYERS = 3, BLOCKS = 2, KEYS = 64 * 8 * 2, LATENTS = 64 * 16 * 2, ONE = LATENTS + KEYS };
    static const bool has_index[LAYERS] = {true, false, true};
    static unsigned char in[LAYERS * ONE], out[LAYERS * ONE];
    static struct kern_table kern;
    const struct kv_shape shape = {.n_layers = LAYERS,
                                   .n_blocks = BLOCKS,
                                   .n_kv_heads = 1,
                                   .head_dim = 16,
                                   .dtype = DTYPE_F16,
                                   .latent = true,
                                   .index_dim = 8,
                                   .has_index = has_index};
    struct kv_pool *p = NULL;
    CU_ASSERT_EQUAL_FATAL(kv_pool_create(&kern, &shape, &p).code, STATUS_OK);
    CU_ASSERT_EQUAL(p->n_bytes, BLOCKS * (LAYERS * LATENTS + 2 * KEYS));
    CU_ASSERT_EQUAL(kv_pool_one_bytes(p), sizeof in);
    CU_ASSERT_EQUAL(kv_pool_layer(p, 1).beside_bytes, 0);
    CU_ASSERT_EQUAL(kv_pool_layer(p, 2).beside_bytes, KEYS);
    CU_ASSERT_EQUAL((char *)kv_pool_index(p, 2).base - (char *)kv_pool_layer(p, 2).base, LATENTS);
    CU_ASSERT_EQUAL((char *)kv_pool_layer(p, 2).base - (char *)kv_pool_layer(p, 1).base,
                    BLOCKS * LATENTS);
    for (int b = BLOCKS; b-- > 0;) {
        for (size_t i = 0; i < sizeof in; i++) in[i] = (unsigned char)(i * 31 + (size_t)b + 1);
        kv_pool_put_block(p, (uint32_t)b, in);
    }
    memset(in + ONE + LATENTS, 0, KEYS); /* layer 1 has no index keys */
    kv_pool_get_block(p, 0, out);
    CU_ASSERT_EQUAL(memcmp(in, out, sizeof in), 0);
    kv_pool_destroy(&p);
}

static void close_test(struct tier_test *t)
{
    kv_tier_destroy(&t->tier);
    kv_pool_destroy(&t->pool);
}

static void fill(const struct tier_test *t, uint32_t block, int seed)
{
    unsigned char bytes[1 << 16];
    for (size_t i = 0; i < t->n_bytes; i++)
        bytes[i] = (unsigned char)((i * 31 + (size_t)seed) >> 2);
    kv_pool_put_block(t->pool, block, bytes);
}

static bool holds(const struct tier_test *t, uint32_t block, int seed)
{
    unsigned char bytes[1 << 16];
    kv_pool_get_block(t->pool, block, bytes);
    for (size_t i = 0; i < t->n_bytes; i++)
        if (bytes[i] != (unsigned char)((i * 31 + (size_t)seed) >> 2)) return false;
    return true;
}

#define MUST(call)                                                                                 \
    do {                                                                                           \
        const struct status must = (call);                                                         \
        CU_ASSERT_FALSE(status_failed(&must));                                                     \
    } while (0)

/* Blocks change right after the order to write them, and are read into other blocks. */
static void blocks_come_back_as_they_went(void)
{
    struct tier_test t = open_test(NULL);
    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        fill(&t, b, (int)b);
        MUST(kv_tier_out(t.tier, b, N_SLOTS - 1 - b));
        fill(&t, b, 99);
    }
    for (uint32_t b = 0; b < N_BLOCKS; b++)
        MUST(kv_tier_in(t.tier, N_SLOTS - 1 - b, (b + 1) % N_BLOCKS));
    CU_ASSERT_EQUAL(kv_tier_n_ended(t.tier, true), N_BLOCKS);
    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        CU_ASSERT(kv_tier_is_good(t.tier, b));
        CU_ASSERT(holds(&t, (b + 1) % N_BLOCKS, (int)b));
    }
    /* a slot is written again after a read of it was ordered: the read gets the earlier content */
    fill(&t, 0, 5);
    MUST(kv_tier_out(t.tier, 0, 0));
    MUST(kv_tier_in(t.tier, 0, 1));
    fill(&t, 2, 6);
    MUST(kv_tier_out(t.tier, 2, 0));
    kv_tier_await_block(t.tier, 1);
    CU_ASSERT(holds(&t, 1, 5));
    const struct kv_tier_stats s = kv_tier_stats_of(t.tier);
    CU_ASSERT_EQUAL(s.n_in, N_BLOCKS + 1);
    CU_ASSERT_EQUAL(s.in_bytes, (N_BLOCKS + 1) * t.n_bytes);
    CU_ASSERT_EQUAL(s.n_failed, 0);
    close_test(&t);
}

/* A read is known to have failed if a bit in the middle of the block was flipped (each of 8 in
 * turn), on EIO, if the slot was never written, and if the file was cut. */
static void what_does_not_come_back_is_known(void)
{
    struct failpoint failpoint = {.name = FAILPOINT_TIER_READ, .n_left = 10, .error = 5};
    struct tier_test t = open_test(&failpoint);
    fill(&t, 0, 1);
    MUST(kv_tier_out(t.tier, 0, 3));
    MUST(kv_tier_in(t.tier, 3, 1));
    CU_ASSERT_EQUAL(kv_tier_n_ended(t.tier, true), 1);
    CU_ASSERT(kv_tier_is_good(t.tier, 0));
    const off_t at = (off_t)(3 * t.n_bytes + t.n_bytes / 2);
    for (int bit = 0; bit < 8; bit++) {
        unsigned char byte;
        CU_ASSERT_EQUAL(pread(kv_tier_fd(t.tier), &byte, 1, at), 1);
        byte ^= (unsigned char)(1 << bit);
        CU_ASSERT_EQUAL(pwrite(kv_tier_fd(t.tier), &byte, 1, at), 1);
        fill(&t, 1, 7);
        MUST(kv_tier_in(t.tier, 3, 1));
        const uint64_t n = kv_tier_n_ended(t.tier, true);
        CU_ASSERT_FALSE(kv_tier_is_good(t.tier, n - 1));
        CU_ASSERT(holds(&t, 1, 7)); /* the pool keeps its old bytes */
        byte ^= (unsigned char)(1 << bit);
        CU_ASSERT_EQUAL(pwrite(kv_tier_fd(t.tier), &byte, 1, at), 1);
    }
    MUST(kv_tier_in(t.tier, 3, 1)); /* the tenth read: EIO */
    CU_ASSERT_FALSE(kv_tier_is_good(t.tier, kv_tier_n_ended(t.tier, true) - 1));
    MUST(kv_tier_in(t.tier, 3, 1));
    CU_ASSERT(kv_tier_is_good(t.tier, kv_tier_n_ended(t.tier, true) - 1));
    MUST(kv_tier_in(t.tier, 5, 1)); /* never written */
    CU_ASSERT_FALSE(kv_tier_is_good(t.tier, kv_tier_n_ended(t.tier, true) - 1));
    CU_ASSERT_EQUAL(ftruncate(kv_tier_fd(t.tier), at), 0);
    MUST(kv_tier_in(t.tier, 3, 1));
    CU_ASSERT_FALSE(kv_tier_is_good(t.tier, kv_tier_n_ended(t.tier, true) - 1));
    CU_ASSERT_EQUAL(kv_tier_stats_of(t.tier).n_failed, 8 + 3);
    close_test(&t);
}

static void ids_out_of_range_and_missing_folders_are_errors(void)
{
    struct tier_test t = open_test(NULL);
    CU_ASSERT_EQUAL(kv_tier_out(t.tier, N_BLOCKS, 0).code, STATUS_BUG);
    CU_ASSERT_EQUAL(kv_tier_out(t.tier, 0, N_SLOTS).code, STATUS_BUG);
    CU_ASSERT_EQUAL(kv_tier_in(t.tier, N_SLOTS, 0).code, STATUS_BUG);
    struct kv_tier *none = NULL;
    const struct kv_tier_options o = {.dir = "/tmp/there/is/none", .n_slots = 1, .pool = t.pool};
    const struct status st = kv_tier_create(&o, &none);
    CU_ASSERT_EQUAL(st.code, STATUS_IO);
    CU_ASSERT_PTR_NULL(none);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "/tmp/there/is/none"));
    /* closing the tier ends orders that nobody waits for */
    for (int i = 0; i < 200; i++) MUST(kv_tier_out(t.tier, 0, (uint32_t)i % N_SLOTS));
    close_test(&t);
}

void suite_kv_tier(CU_pSuite suite);
void suite_kv_tier(CU_pSuite suite)
{
    CU_add_test(suite, "some layers have index keys", some_layers_have_index_keys);
    CU_add_test(suite, "blocks come back as they went", blocks_come_back_as_they_went);
    CU_add_test(suite, "what does not come back is known", what_does_not_come_back_is_known);
    CU_add_test(suite, "ids out of range and missing folders are errors",
                ids_out_of_range_and_missing_folders_are_errors);
}
