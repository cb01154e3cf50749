/* Dividing rows of experts among the ranks of a host: small cases computed by hand, and properties
 * of random cases. */
#include "moe/balance.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>

enum { E = 64, RANKS = 8, W = BALANCE_WEIGHT_ROWS };

static struct expert_piece pieces[E + RANKS];
static uint64_t load[RANKS];

/* Makes one piece for each expert that has rows, with consecutive experts on the same rank. */
static size_t begin(const uint32_t *n_rows, uint32_t n_experts, uint32_t n_ranks)
{
    size_t n = 0;
    for (uint32_t e = 0; e < n_experts; e++) {
        const uint32_t home = e * n_ranks / n_experts;
        if (n_rows[e] == 0) continue;
        pieces[n++] = (struct expert_piece){e, home, 0, n_rows[e]};
    }
    return n;
}

static void even_ranks_stay(void)
{
    const uint32_t rows[4] = {3, 5, 4, 4};
    const size_t n = begin(rows, 4, 2);
    CU_ASSERT_EQUAL(balance_pieces(pieces, n, 2, load), 4);
    for (uint32_t i = 0; i < 4; i++) CU_ASSERT_EQUAL(pieces[i].rank, i / 2);
    CU_ASSERT_EQUAL(load[0], 8 + 2 * W);
    CU_ASSERT_EQUAL(load[1], 8 + 2 * W);
}

/* Both experts of one token are on one rank; the other rank takes one of them. */
static void one_token_keeps_both_ranks_busy(void)
{
    const uint32_t rows[8] = {0, 1, 1, 0, 0, 0, 0, 0};
    const size_t n = begin(rows, 8, 2);
    CU_ASSERT_EQUAL(n, 2);
    CU_ASSERT_EQUAL(balance_pieces(pieces, n, 2, load), 2);
    CU_ASSERT_EQUAL(pieces[0].rank + pieces[1].rank, 1);
    CU_ASSERT_EQUAL(load[0], load[1]);
}

static void one_expert_of_few_rows_stays_whole(void)
{
    const uint32_t rows[2] = {2 * BALANCE_LEAST_ROWS - 1, 0};
    const size_t n = begin(rows, 2, 2);
    CU_ASSERT_EQUAL(balance_pieces(pieces, n, 2, load), 1);
    CU_ASSERT_EQUAL(pieces[0].rank, 0);
}

static void one_expert_of_all_rows_is_cut(void)
{
    const uint32_t rows[2] = {1000, 0};
    const size_t n = begin(rows, 2, 2);
    CU_ASSERT_EQUAL(balance_pieces(pieces, n, 2, load), 2);
    CU_ASSERT_EQUAL(pieces[0].rank, 0);
    CU_ASSERT_EQUAL(pieces[1].rank, 1);
    CU_ASSERT_EQUAL(pieces[1].first, pieces[0].n_rows);
    CU_ASSERT_EQUAL(pieces[0].n_rows + pieces[1].n_rows, 1000);
    CU_ASSERT_EQUAL(pieces[1].n_rows % BALANCE_LEAST_ROWS, 0);
    CU_ASSERT(load[0] < 1000 && load[1] < load[0]);
}

/* Two experts are on one rank and two ranks are idle: one expert moves, then both are cut for the
 * third rank. */
static void what_was_moved_may_be_cut(void)
{
    const uint32_t rows[6] = {0, 0, 80, 80, 0, 0};
    const size_t n = balance_pieces(pieces, begin(rows, 6, 3), 3, load);
    CU_ASSERT(n > 2);
    for (uint32_t r = 0; r < 3; r++) CU_ASSERT(load[r] > 0 && load[r] < 80 + W);
}

static uint64_t fullest(uint32_t n_ranks)
{
    uint64_t most = 0;
    for (uint32_t r = 0; r < n_ranks; r++) most = load[r] > most ? load[r] : most;
    return most;
}

/* Every row occurs once, in order; the loads match the pieces; no rank has more than the fullest
 * rank had before. */
static void check(const uint32_t *rows, uint32_t n_experts, uint32_t n_ranks, size_t n)
{
    uint64_t before[RANKS] = {0}, after[RANKS] = {0}, most = 0;
    uint32_t seen[E] = {0};
    for (size_t i = 0; i < n; i++) {
        const struct expert_piece *p = &pieces[i];
        CU_ASSERT(i == 0 || p[-1].expert <= p->expert);
        CU_ASSERT_EQUAL(p->first, seen[p->expert]);
        CU_ASSERT(p->n_rows > 0 && p->rank < n_ranks);
        seen[p->expert] += p->n_rows;
        after[p->rank] += W + p->n_rows;
    }
    for (uint32_t e = 0; e < n_experts; e++) {
        CU_ASSERT_EQUAL(seen[e], rows[e]);
        if (rows[e] > 0) before[e * n_ranks / n_experts] += W + rows[e];
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        CU_ASSERT_EQUAL(after[r], load[r]);
        most = before[r] > most ? before[r] : most;
    }
    CU_ASSERT(fullest(n_ranks) <= most);
}

static void random_rows_are_all_computed_once(void)
{
    uint32_t rows[E];
    srand(7);
    for (int round = 0; round < 2000; round++) {
        const uint32_t n_ranks = 1 + (uint32_t)rand() % RANKS;
        const uint32_t n_experts = n_ranks + (uint32_t)rand() % (E - n_ranks + 1);
        const int most = round % 3 == 0 ? 3 : round % 3 == 1 ? 64 : 600;
        for (uint32_t e = 0; e < n_experts; e++) rows[e] = (uint32_t)(rand() % most);
        const size_t n = begin(rows, n_experts, n_ranks);
        check(rows, n_experts, n_ranks, balance_pieces(pieces, n, n_ranks, load));
    }
}

/* With many rows, as in a prompt, the fullest rank's load is at most 2 * BALANCE_LEAST_ROWS above
 * the mean. */
static void many_rows_become_even(void)
{
    uint32_t rows[E];
    srand(8);
    for (int round = 0; round < 200; round++) {
        uint64_t all = 0;
        for (uint32_t e = 0; e < E; e++) rows[e] = 20 + (uint32_t)(rand() % 100);
        const size_t n = balance_pieces(pieces, begin(rows, E, 2), 2, load);
        for (uint32_t r = 0; r < 2; r++) all += load[r];
        CU_ASSERT(fullest(2) <= all / 2 + 2 * BALANCE_LEAST_ROWS);
        CU_ASSERT(n <= E + 2);
    }
}

void suite_balance(CU_pSuite suite);
void suite_balance(CU_pSuite suite)
{
    CU_add_test(suite, "even ranks stay", even_ranks_stay);
    CU_add_test(suite, "one token keeps both ranks busy", one_token_keeps_both_ranks_busy);
    CU_add_test(suite, "one expert of few rows stays whole", one_expert_of_few_rows_stays_whole);
    CU_add_test(suite, "one expert of all rows is cut", one_expert_of_all_rows_is_cut);
    CU_add_test(suite, "what was moved may be cut", what_was_moved_may_be_cut);
    CU_add_test(suite, "random rows are all computed once", random_rows_are_all_computed_once);
    CU_add_test(suite, "many rows become even", many_rows_become_even);
}
