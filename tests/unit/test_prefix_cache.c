/* The tree of cached blocks: lookup, counts of holders, and the order of eviction. */
#include "serve/schedule/prefix_cache.h"

#include <CUnit/CUnit.h>

/* 64 tokens that all are `value`. */
struct block {
    int32_t tokens[PLAN_BLOCK_TOKENS];
};

static struct block block_of(int32_t value)
{
    struct block b;
    for (int i = 0; i < PLAN_BLOCK_TOKENS; i++) b.tokens[i] = value;
    return b;
}

static struct prefix_cache make(int32_t n_blocks)
{
    struct prefix_cache c;
    const struct status st = prefix_cache_init(&c, n_blocks);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    return c;
}

static void add(struct prefix_cache *c, int32_t id, int32_t parent, uint64_t key, int32_t value)
{
    const struct block b = block_of(value);
    prefix_cache_add(c, id, parent, key, b.tokens);
}

static int32_t find(const struct prefix_cache *c, int32_t parent, uint64_t key, int32_t value)
{
    const struct block b = block_of(value);
    return prefix_cache_find(c, parent, key, b.tokens);
}

static void keys_depend_on_all_tokens_before(void)
{
    struct block a = block_of(1), b = block_of(2);
    const uint64_t ab = prefix_key(prefix_key(0, a.tokens), b.tokens);
    const uint64_t bb = prefix_key(prefix_key(0, b.tokens), b.tokens);
    CU_ASSERT_NOT_EQUAL(ab, bb);
    CU_ASSERT_NOT_EQUAL(prefix_key(0, a.tokens), prefix_key(0, b.tokens));
    b = block_of(1);
    CU_ASSERT_EQUAL(prefix_key(5, a.tokens), prefix_key(5, b.tokens));
    b.tokens[PLAN_BLOCK_TOKENS - 1] = 9;
    CU_ASSERT_NOT_EQUAL(prefix_key(5, a.tokens), prefix_key(5, b.tokens));
}

static void blocks_are_found_by_their_place_and_tokens(void)
{
    struct prefix_cache c = make(8);
    add(&c, 3, -1, 100, 1);
    add(&c, 5, 3, 200, 2);
    CU_ASSERT_EQUAL(find(&c, -1, 100, 1), 3);
    CU_ASSERT_EQUAL(find(&c, 3, 200, 2), 5);
    CU_ASSERT_EQUAL(find(&c, -1, 200, 2), -1); /* not at the start */
    CU_ASSERT_EQUAL(find(&c, 5, 200, 2), -1);
    CU_ASSERT_EQUAL(c.n_cached, 2);
    prefix_cache_fini(&c);
}

/* Equal keys with different tokens, and different keys in the same bucket. */
static void a_key_alone_is_never_believed(void)
{
    struct prefix_cache c = make(4);
    add(&c, 0, -1, 7, 1);
    CU_ASSERT_EQUAL(find(&c, -1, 7, 2), -1);
    add(&c, 1, -1, 7, 2);
    add(&c, 2, -1, 7 + 4, 3);
    CU_ASSERT_EQUAL(find(&c, -1, 7, 1), 0);
    CU_ASSERT_EQUAL(find(&c, -1, 7, 2), 1);
    CU_ASSERT_EQUAL(find(&c, -1, 7 + 4, 3), 2);
    prefix_cache_release(&c, 1);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c), 1); /* removes it from the middle of its bucket */
    CU_ASSERT_EQUAL(find(&c, -1, 7, 1), 0);
    CU_ASSERT_EQUAL(find(&c, -1, 7, 2), -1);
    CU_ASSERT_EQUAL(find(&c, -1, 7 + 4, 3), 2);
    prefix_cache_fini(&c);
}

static void held_blocks_stay_and_the_longest_unused_goes_first(void)
{
    struct prefix_cache c = make(8);
    for (int32_t i = 0; i < 4; i++) add(&c, i, -1, (uint64_t)i, i);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c), -1);
    prefix_cache_hold(&c, 1);
    for (int32_t i = 3; i >= 0; i--) prefix_cache_release(&c, i);
    CU_ASSERT_EQUAL(c.n_idle, 3); /* block 1 has one holder left */
    prefix_cache_hold(&c, 3);     /* used again: now the youngest */
    prefix_cache_release(&c, 3);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c), 2);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c), 0);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c), 3);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c), -1);
    prefix_cache_release(&c, 1);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c), 1);
    CU_ASSERT_EQUAL(c.n_cached, 0);
    CU_ASSERT_EQUAL(c.n_idle, 0);
    prefix_cache_fini(&c);
}

/* Two chains, 0-1-2 and 0-1-3: the ends are evicted before the blocks that they follow. */
static void a_block_goes_after_those_behind_it(void)
{
    struct prefix_cache c = make(8);
    add(&c, 0, -1, 10, 0);
    add(&c, 1, 0, 11, 1);
    add(&c, 2, 1, 12, 2);
    prefix_cache_hold(&c, 0);
    prefix_cache_hold(&c, 1);
    add(&c, 3, 1, 13, 3);
    for (int32_t i = 3; i >= 0; i -= i == 3 ? 2 : 1) prefix_cache_release(&c, i);
    CU_ASSERT_EQUAL(c.n_idle, 1); /* block 3; the first chain holds the others */
    for (int32_t i = 2; i >= 0; i--) prefix_cache_release(&c, i);
    CU_ASSERT_EQUAL(c.n_idle, 4);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c), 3);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c), 2);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c), 1);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c), 0);
    add(&c, 0, -1, 12, 2); /* a block number may be used again for other content */
    CU_ASSERT_EQUAL(find(&c, -1, 12, 2), 0);
    prefix_cache_fini(&c);
}

void suite_prefix_cache(CU_pSuite suite);
void suite_prefix_cache(CU_pSuite suite)
{
    CU_add_test(suite, "keys depend on all tokens before", keys_depend_on_all_tokens_before);
    CU_add_test(suite, "blocks are found by their place and tokens",
                blocks_are_found_by_their_place_and_tokens);
    CU_add_test(suite, "a key alone is never believed", a_key_alone_is_never_believed);
    CU_add_test(suite, "held blocks stay and the longest unused goes first",
                held_blocks_stay_and_the_longest_unused_goes_first);
    CU_add_test(suite, "a block goes after those behind it", a_block_goes_after_those_behind_it);
}
