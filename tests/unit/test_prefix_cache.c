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

static struct prefix_cache make(int32_t n_nodes, int32_t n_full, int32_t n_windowed)
{
    const struct plan_tables tables = {n_full, n_windowed, n_windowed > 0 ? 128 : 0};
    struct prefix_cache c;
    const struct status st = prefix_cache_init(&c, n_nodes, &tables);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    return c;
}

/* Adds 64 tokens of `value`; their blocks are 100 * value, 100 * value + 1, ... */
static int32_t add(struct prefix_cache *c, int32_t parent, uint64_t key, int32_t value)
{
    const struct block b = block_of(value);
    int32_t blocks[PLAN_TABLES_MAX];
    for (int32_t i = 0; i < PLAN_TABLES_MAX; i++) blocks[i] = 100 * value + i;
    return prefix_cache_add(c, parent, key, b.tokens, blocks, true);
}

static int32_t find(const struct prefix_cache *c, int32_t parent, uint64_t key, int32_t value)
{
    const struct block b = block_of(value);
    return prefix_cache_find(c, parent, key, b.tokens);
}

/* Evicts a block, the only one of its node, and returns the node's value; -1: none can be
 * evicted. */
static int32_t evict(struct prefix_cache *c)
{
    int32_t out[PLAN_TABLES_MAX];
    return prefix_cache_evict(c, out) == 1 ? out[0] / 100 : -1;
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
    struct prefix_cache c = make(8, 1, 0);
    const int32_t first = add(&c, -1, 100, 1), second = add(&c, first, 200, 2);
    CU_ASSERT_EQUAL(find(&c, -1, 100, 1), first);
    CU_ASSERT_EQUAL(find(&c, first, 200, 2), second);
    CU_ASSERT_EQUAL(prefix_cache_blocks(&c, second)[0], 200);
    CU_ASSERT_EQUAL(find(&c, -1, 200, 2), -1); /* not the first block of a sequence */
    CU_ASSERT_EQUAL(find(&c, second, 200, 2), -1);
    CU_ASSERT_EQUAL(c.n_cached, 2);
    prefix_cache_fini(&c);
}

/* Equal keys with different tokens, and different keys in the same bucket. */
static void a_key_alone_is_never_believed(void)
{
    struct prefix_cache c = make(4, 1, 0);
    const int32_t one = add(&c, -1, 7, 1);
    CU_ASSERT_EQUAL(find(&c, -1, 7, 2), -1);
    const int32_t two = add(&c, -1, 7, 2), three = add(&c, -1, 7 + 4, 3);
    CU_ASSERT_EQUAL(find(&c, -1, 7, 1), one);
    CU_ASSERT_EQUAL(find(&c, -1, 7, 2), two);
    CU_ASSERT_EQUAL(find(&c, -1, 7 + 4, 3), three);
    prefix_cache_release(&c, two);
    CU_ASSERT_EQUAL(evict(&c), 2); /* removes it from the middle of its bucket */
    CU_ASSERT_EQUAL(find(&c, -1, 7, 1), one);
    CU_ASSERT_EQUAL(find(&c, -1, 7, 2), -1);
    CU_ASSERT_EQUAL(find(&c, -1, 7 + 4, 3), three);
    prefix_cache_fini(&c);
}

static void held_blocks_stay_and_the_longest_unused_goes_first(void)
{
    struct prefix_cache c = make(4, 1, 0);
    int32_t node[4];
    for (int32_t i = 0; i < 4; i++) node[i] = add(&c, -1, (uint64_t)i, i);
    CU_ASSERT_EQUAL(add(&c, -1, 9, 9), -1); /* no node is free */
    CU_ASSERT_EQUAL(evict(&c), -1);
    prefix_cache_hold(&c, node[1]);
    for (int32_t i = 3; i >= 0; i--) prefix_cache_release(&c, node[i]);
    CU_ASSERT_EQUAL(prefix_cache_n_idle(&c), 3); /* block 1 has one holder left */
    prefix_cache_hold(&c, node[3]);              /* used again: now the youngest */
    prefix_cache_release(&c, node[3]);
    CU_ASSERT_EQUAL(evict(&c), 2);
    CU_ASSERT_EQUAL(evict(&c), 0);
    CU_ASSERT_EQUAL(evict(&c), 3);
    CU_ASSERT_EQUAL(evict(&c), -1);
    prefix_cache_release(&c, node[1]);
    CU_ASSERT_EQUAL(evict(&c), 1);
    CU_ASSERT_EQUAL(c.n_cached, 0);
    CU_ASSERT_EQUAL(prefix_cache_n_idle(&c), 0);
    prefix_cache_fini(&c);
}

/* Two chains, 0-1-2 and 0-1-3: the ends are evicted before the blocks that they follow. */
static void a_block_goes_after_those_behind_it(void)
{
    struct prefix_cache c = make(8, 1, 0);
    const int32_t n0 = add(&c, -1, 10, 0), n1 = add(&c, n0, 11, 1), n2 = add(&c, n1, 12, 2);
    prefix_cache_hold(&c, n0);
    prefix_cache_hold(&c, n1);
    const int32_t n3 = add(&c, n1, 13, 3);
    const int32_t second[] = {n3, n1, n0}, first[] = {n2, n1, n0};
    for (int i = 0; i < 3; i++) prefix_cache_release(&c, second[i]);
    CU_ASSERT_EQUAL(prefix_cache_n_idle(&c), 1); /* block 3; the first chain holds the others */
    for (int i = 0; i < 3; i++) prefix_cache_release(&c, first[i]);
    CU_ASSERT_EQUAL(prefix_cache_n_idle(&c), 4);
    CU_ASSERT_EQUAL(evict(&c), 3);
    CU_ASSERT_EQUAL(evict(&c), 2);
    CU_ASSERT_EQUAL(evict(&c), 1);
    CU_ASSERT_EQUAL(evict(&c), 0);
    CU_ASSERT(add(&c, -1, 12, 2) >= 0); /* a node may be used again for other content */
    CU_ASSERT(find(&c, -1, 12, 2) >= 0);
    prefix_cache_fini(&c);
}

/* One full and two windowed tables: windowed blocks that no request holds are evicted apart from
 * their node's full block. The longest unused go first. */
static void windowed_blocks_go_first(void)
{
    struct prefix_cache c = make(8, 1, 2);
    int32_t out[PLAN_TABLES_MAX];
    const int32_t a = add(&c, -1, 10, 1), b = add(&c, a, 11, 2);
    prefix_cache_release_windows(&c, a);
    CU_ASSERT_EQUAL(prefix_cache_n_idle(&c), 2);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c, out), 2);
    CU_ASSERT(out[0] == 101 && out[1] == 102);
    CU_ASSERT_FALSE(c.nodes[a].has_windows);
    CU_ASSERT_EQUAL(find(&c, -1, 10, 1), a); /* still there, for the layers without a window */
    const int32_t given[] = {0, 7, 8};
    prefix_cache_give_windows(&c, a, given);
    CU_ASSERT(c.nodes[a].has_windows && prefix_cache_blocks(&c, a)[2] == 8);
    prefix_cache_release_windows(&c, b);
    prefix_cache_release(&c, b);
    prefix_cache_release_windows(&c, a);
    prefix_cache_release(&c, a);
    CU_ASSERT_EQUAL(prefix_cache_n_idle(&c), 6);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c, out), 2); /* b's windowed blocks, unused the longest */
    CU_ASSERT_EQUAL(prefix_cache_evict(&c, out), 1); /* b */
    CU_ASSERT_EQUAL(out[0], 200);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c, out), 2);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c, out), 1);
    CU_ASSERT_EQUAL(prefix_cache_evict(&c, out), 0);
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
    CU_add_test(suite, "windowed blocks go first", windowed_blocks_go_first);
}
