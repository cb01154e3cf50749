/* Arrays that share memory: arrays that live at the same time do not overlap, and little memory is
 * lost. */
#include "base/lifetimes.h"

#include <CUnit/CUnit.h>

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static uint64_t rounded(uint64_t n)
{
    return (n + LIFETIME_ALIGN - 1) / LIFETIME_ALIGN * LIFETIME_ALIGN;
}

/* Counts pairs that overlap although they live at the same time, and arrays that are misaligned or
 * outside [0, total). */
static size_t count_wrong(const struct lifetime *a, size_t n, uint64_t total)
{
    size_t n_wrong = 0;
    for (size_t i = 0; i < n; i++) {
        if (a[i].n_bytes == 0) continue;
        n_wrong += a[i].offset % LIFETIME_ALIGN != 0 || a[i].offset + a[i].n_bytes > total;
        for (size_t j = 0; j < i; j++) {
            const int together = a[i].first <= a[j].last && a[j].first <= a[i].last;
            const int overlap = a[j].n_bytes > 0 && a[i].offset < a[j].offset + a[j].n_bytes &&
                                a[j].offset < a[i].offset + a[i].n_bytes;
            n_wrong += together && overlap;
        }
    }
    return n_wrong;
}

/* The bytes that are alive in the fullest step; no placement can need less. */
static uint64_t fullest(const struct lifetime *a, size_t n, uint32_t n_steps)
{
    uint64_t most = 0;
    for (uint32_t step = 0; step < n_steps; step++) {
        uint64_t sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += a[i].first <= step && step <= a[i].last ? rounded(a[i].n_bytes) : 0;
        if (sum > most) most = sum;
    }
    return most;
}

static void none_that_live_together_overlap(void)
{
    uint32_t state = 3;
    size_t n_wrong = 0, n_more = 0;
    for (int round = 0; round < 2000; round++) {
        struct lifetime a[LIFETIMES_MAX];
        const size_t n = next_random(&state) % (round % 10 == 0 ? LIFETIMES_MAX + 1 : 7);
        uint64_t sum = 0;
        for (size_t i = 0; i < n; i++) {
            const uint32_t first = next_random(&state) % 8;
            a[i] = (struct lifetime){.n_bytes = next_random(&state) % 5000,
                                     .first = first,
                                     .last = first + next_random(&state) % (8 - first),
                                     .offset = 12345};
            sum += rounded(a[i].n_bytes);
        }
        const uint64_t total = lifetimes_place(a, n), least = fullest(a, n, 8);
        n_wrong += count_wrong(a, n, total) + (total > sum) + (total < least);
        n_more += total > least;
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT(n_more < 300); /* of 2000 cases, most need only the memory of the fullest step */
}

static void a_layer_shares_its_two_halves(void)
{
    struct lifetime a[] = {{.n_bytes = 1024, .first = 0, .last = 9},
                           {.n_bytes = 4096, .first = 1, .last = 4},
                           {.n_bytes = 8192, .first = 5, .last = 9},
                           {.n_bytes = 0, .first = 0, .last = 9}};
    CU_ASSERT_EQUAL(lifetimes_place(a, 4), 1024 + 8192);
    CU_ASSERT_EQUAL(a[1].offset, a[2].offset);
}

static void sizes_that_overflow_are_told(void)
{
    struct lifetime a[] = {{.n_bytes = UINT64_MAX / 2, .last = 1},
                           {.n_bytes = UINT64_MAX / 2, .last = 1},
                           {.n_bytes = 4096, .last = 1}};
    CU_ASSERT_EQUAL(lifetimes_place(a, 3), UINT64_MAX);
    a[0].n_bytes = UINT64_MAX;
    CU_ASSERT_EQUAL(lifetimes_place(a, 1), UINT64_MAX);
    CU_ASSERT_EQUAL(lifetimes_place(NULL, 0), 0);
}

void suite_lifetimes(CU_pSuite suite);
void suite_lifetimes(CU_pSuite suite)
{
    CU_add_test(suite, "none that live together overlap", none_that_live_together_overlap);
    CU_add_test(suite, "a layer shares its two halves", a_layer_shares_its_two_halves);
    CU_add_test(suite, "sizes that overflow are told", sizes_that_overflow_are_told);
}
