/* The block pool never gives a block to two owners and never loses one. */
#include "serve/schedule/block_pool.h"
#include "util_fake_engine.h"

#include <CUnit/CUnit.h>
#include <string.h>

static void random_takes_and_gives_keep_every_block(void)
{
    enum { N = 57 };
    uint64_t random = 1;
    struct block_pool pool;
    struct status st = block_pool_init(&pool, N);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    int32_t held[N];
    int32_t n_held = 0;
    bool is_held[N] = {false};
    unsigned n_twice = 0, n_lost = 0, n_full = 0;
    for (int i = 0; i < 20000; i++) {
        if (fake_between(&random, 0, 9) != 0) {
            const int32_t id = block_pool_take(&pool);
            if (id < 0) {
                n_full++;
                n_lost += n_held != N;
                continue;
            }
            n_twice += is_held[id];
            is_held[id] = true;
            held[n_held++] = id;
        } else {
            const int32_t n = (int32_t)fake_between(&random, 0, n_held < 9 ? n_held : 9);
            n_held -= n;
            block_pool_give(&pool, held + n_held, n);
            for (int32_t k = 0; k < n; k++) is_held[held[n_held + k]] = false;
        }
        n_lost += pool.n_free + n_held != N;
    }
    CU_ASSERT_EQUAL(n_twice, 0);
    CU_ASSERT_EQUAL(n_lost, 0);
    CU_ASSERT(n_full > 0);
    block_pool_fini(&pool);
}

static void a_table_given_back_comes_out_in_order(void)
{
    struct block_pool pool;
    struct status st = block_pool_init(&pool, 8);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    int32_t table[3], again[3];
    for (int i = 0; i < 3; i++) table[i] = block_pool_take(&pool);
    CU_ASSERT_EQUAL(table[0], 0);
    block_pool_give(&pool, table, 3);
    for (int i = 0; i < 3; i++) again[i] = block_pool_take(&pool);
    CU_ASSERT_EQUAL(memcmp(table, again, sizeof table), 0);
    for (int i = 0; i < 5; i++) CU_ASSERT(block_pool_take(&pool) >= 0);
    CU_ASSERT_EQUAL(block_pool_take(&pool), -1);
    block_pool_fini(&pool);
}

void suite_block_pool(CU_pSuite suite);
void suite_block_pool(CU_pSuite suite)
{
    CU_add_test(suite, "random takes and gives keep every block",
                random_takes_and_gives_keep_every_block);
    CU_add_test(suite, "a table given back comes out in order",
                a_table_given_back_comes_out_in_order);
}
