/* Packed integers: every width comes back exactly, takes the bytes that the format says, and a
 * damaged or short message is refused. Messages are read from memory of their exact length, so that
 * AddressSanitizer sees a read after them. */
#include "parallel/wire/wire_ints.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

enum { N_MAX = 3 * WIRE_INTS_BLOCK + 5 };

static char *copy_of(const void *bytes, size_t n)
{
    char *copy = malloc(n > 0 ? n : 1);
    memcpy(copy, bytes, n);
    return copy;
}

/* Packs v, reads it back with wire_ints_unpack and wire_ints_add, and returns the packed length. */
static size_t round_trip(const int64_t *v, size_t n)
{
    char room[N_MAX * 8 + 64];
    int64_t read[N_MAX], sum[N_MAX];
    CU_ASSERT_FATAL(wire_ints_bound(n) <= sizeof room);
    memset(room, 0x5A, sizeof room);
    const size_t n_bytes = wire_ints_pack(v, n, room);
    for (size_t i = wire_ints_bound(n); i < sizeof room; i++) CU_ASSERT_EQUAL(room[i], 0x5A);
    char *message = copy_of(room, n_bytes);
    for (size_t i = 0; i < n; i++) sum[i] = (int64_t)i * 1000003 - 7;
    CU_ASSERT_EQUAL(wire_ints_unpack(message, n_bytes, read, n), n_bytes);
    CU_ASSERT_EQUAL(wire_ints_add(message, n_bytes, sum, n), n_bytes);
    for (size_t i = 0; i < n; i++) {
        CU_ASSERT_EQUAL(read[i], v[i]);
        CU_ASSERT_EQUAL((uint64_t)sum[i], (uint64_t)v[i] + (uint64_t)((int64_t)i * 1000003 - 7));
    }
    free(message);
    return n_bytes;
}

/* Returns the bytes that v needs with its sign; 0 needs none. */
static size_t bytes_of(int64_t v)
{
    for (size_t w = 0; w < 8; w++) {
        const int64_t limit = w == 0 ? 0 : (int64_t)1 << (8 * w - 1);
        if (w == 0 ? v == 0 : v >= -limit && v < limit) return w;
    }
    return 8;
}

static void edges_take_the_bytes_that_they_need(void)
{
    int64_t v[WIRE_INTS_BLOCK];
    for (int bit = 0; bit < 64; bit++) {
        const int64_t power = (int64_t)((uint64_t)1 << bit);
        const int64_t edges[] = {power, (int64_t)((uint64_t)power - 1),
                                 (int64_t)(0 - (uint64_t)power),
                                 (int64_t)(0 - (uint64_t)power - 1)};
        for (size_t e = 0; e < 4; e++) {
            memset(v, 0, sizeof v);
            v[bit] = edges[e];
            CU_ASSERT_EQUAL(round_trip(v, WIRE_INTS_BLOCK),
                            1 + bytes_of(edges[e]) * WIRE_INTS_BLOCK);
            CU_ASSERT_EQUAL(round_trip(v + bit, 1), 1 + bytes_of(edges[e]));
        }
    }
}

static void every_length_comes_back(void)
{
    int64_t v[N_MAX];
    uint64_t random = 88172645463325252u;
    for (unsigned width = 0; width <= 8; width++) {
        for (size_t i = 0; i < N_MAX; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            v[i] = width == 0 ? 0 : (int64_t)random >> (64 - 8 * width);
        }
        for (size_t n = 0; n <= N_MAX; n++) round_trip(v, n);
    }
    v[0] = INT64_MIN;
    v[1] = INT64_MAX;
    CU_ASSERT_EQUAL(round_trip(v, 2), 17);
    CU_ASSERT_EQUAL(round_trip(v, 0), 0);
}

static void each_block_has_a_width_of_its_own(void)
{
    int64_t v[3 * WIRE_INTS_BLOCK] = {0};
    v[0] = -1;                          /* 1 byte */
    v[2 * WIRE_INTS_BLOCK] = 1ll << 31; /* 5 bytes, because 4 have no room for the sign */
    CU_ASSERT_EQUAL(round_trip(v, 3 * WIRE_INTS_BLOCK), 3 + (1 + 0 + 5) * WIRE_INTS_BLOCK);
}

static void short_and_damaged_messages_are_refused(void)
{
    int64_t v[N_MAX], read[N_MAX];
    char room[N_MAX * 8 + 64];
    for (size_t i = 0; i < N_MAX; i++) v[i] = (int64_t)1 << (i / WIRE_INTS_BLOCK * 16);
    const size_t n_bytes = wire_ints_pack(v, N_MAX, room);
    for (size_t cut = 0; cut < n_bytes; cut++) {
        char *message = copy_of(room, cut);
        CU_ASSERT_EQUAL(wire_ints_unpack(message, cut, read, N_MAX), WIRE_INTS_BAD);
        CU_ASSERT_EQUAL(wire_ints_add(message, cut, read, N_MAX), WIRE_INTS_BAD);
        free(message);
    }
    for (int width = 9; width < 256; width++) {
        room[0] = (char)width;
        CU_ASSERT_EQUAL(wire_ints_unpack(room, n_bytes, read, 1), WIRE_INTS_BAD);
    }
}

void suite_wire_ints(CU_pSuite suite);
void suite_wire_ints(CU_pSuite suite)
{
    CU_add_test(suite, "edges take the bytes that they need", edges_take_the_bytes_that_they_need);
    CU_add_test(suite, "every length comes back", every_length_comes_back);
    CU_add_test(suite, "each block has a width of its own", each_block_has_a_width_of_its_own);
    CU_add_test(suite, "short and damaged messages are refused",
                short_and_damaged_messages_are_refused);
}
