/* Tests packing: every element is where kern.h says, however the rows are divided; rows read back;
 * sizes. */
#include "util_kernels.h"

#include "kernels/ops.h"

#include <CUnit/CUnit.h>
#include <stdlib.h>

/* Elements of 2 or 4 bytes whose value is their own index, packed in random pieces. */
static void elements_stand_where_the_contract_says(void)
{
    enum { N_OUT = 53, N_IN = 37, STRIDE = N_IN + 4 };
    struct rng r = {1};
    for (int t = 0; t < DTYPE_COUNT; t++) {
        const size_t size = dtype_bytes((enum dtype)t);
        const size_t n_bytes = packed_bytes((enum dtype)t, N_OUT, N_IN);
        CU_ASSERT_EQUAL(n_bytes, 64 * N_IN * size);
        char *rows = test_memory(N_OUT * STRIDE * size), *data = test_memory(n_bytes);
        memset(data, 0, n_bytes);
        for (uint32_t i = 0; i < N_OUT * STRIDE; i++) memcpy(rows + i * size, &i, size);
        for (size_t n0 = 0, n = 0; n0 < N_OUT; n0 += n) {
            n = 1 + rng_below(&r, N_OUT - n0);
            packed_put_rows((enum dtype)t, data, N_IN,
                            &(struct matrix_rows){rows + n0 * STRIDE * size, STRIDE * size, n0, n});
        }
        size_t n_wrong = 0;
        for (size_t n = 0; n < 64; n++) {
            for (size_t k = 0; k < N_IN; k++) {
                uint32_t found = 0;
                memcpy(&found, data + ((n / 16 * N_IN + k) * 16 + n % 16) * size, size);
                n_wrong += found != (n < N_OUT ? n * STRIDE + k : 0);
            }
        }
        CU_ASSERT_EQUAL(n_wrong, 0);
        free(rows);
        free(data);
    }
}

static void a_row_is_read_back(void)
{
    struct rng r = {2};
    for (int t = 0; t < DTYPE_COUNT; t++) {
        const struct packed w = random_packed(&r, (enum dtype)t, 40, 19, 0, 0, 9);
        for (uint32_t n = 0; n < 40; n++) {
            float got[19], want[19];
            for (size_t k = 0; k < 19; k++) want[k] = packed_at(&w, n, k);
            op_embed_row(&w, n, got);
            CU_ASSERT_EQUAL(count_different(got, want, 19), 0);
        }
        free(packed_memory(&w));
    }
}

static void sizes_that_overflow_are_the_largest(void)
{
    CU_ASSERT_EQUAL(packed_bytes(DTYPE_F32, SIZE_MAX, 1), SIZE_MAX);
    CU_ASSERT_EQUAL(packed_bytes(DTYPE_F16, (size_t)1 << 40, (size_t)1 << 40), SIZE_MAX);
    CU_ASSERT_EQUAL(packed_bytes(DTYPE_F16, 0, 7), 0);
    CU_ASSERT_EQUAL(packed_bytes(DTYPE_F16, 1, 0), 0);
}

/* Packing columns of the transposed matrix gives the same bytes as packing rows. */
static void columns_pack_like_rows(void)
{
    enum { OUT = 37, IN = 11 };
    static float rows[OUT][IN], columns[IN][OUT];
    for (size_t n = 0; n < OUT; n++)
        for (size_t k = 0; k < IN; k++) rows[n][k] = columns[k][n] = (float)(n * 100 + k);
    static float by_row[48 * IN], by_column[48 * IN];
    packed_put_rows(DTYPE_F32, by_row, IN, &(struct matrix_rows){rows, sizeof rows[0], 0, OUT});
    for (size_t k = 0; k < IN; k++) packed_put_column(DTYPE_F32, by_column, IN, k, OUT, columns[k]);
    CU_ASSERT_EQUAL(memcmp(by_row, by_column, sizeof by_row), 0);
}

/* Input `i` (0 to 7) of a row's nibbles as the checkpoint stores them. */
static unsigned stored_nibble(const uint8_t *row, size_t i)
{
    return i % 2 == 0 ? row[i / 2] & 15u : row[i / 2] >> 4;
}

/* Byte b of the panel's word for the four stored bytes of `row`. */
static uint8_t wanted_byte(enum pack_words_kind kind, const uint8_t *row, size_t b)
{
    if (kind == PACK_WORDS_SIGNED) return (uint8_t)(row[b] + 128);
    if (kind == PACK_WORDS_PLAIN) return row[b];
    return (uint8_t)(stored_nibble(row, b) | stored_nibble(row, 4 + b) << 4);
}

/* Packs one panel of n elements of 2 bytes (kind < 0) or 4 bytes. Returns the number of wrong
 * bytes, including changed bytes after the panel. */
static size_t wrong_in_panel(const struct kern_table *k, struct rng *r, int kind, size_t n)
{
    enum { BEHIND = 64 };
    const size_t size = kind < 0 ? 2 : 4, stride = n * size + rng_below(r, 9);
    const size_t n_bytes = 16 * n * size;
    uint8_t *rows = test_memory(15 * stride + n * size), *panel = test_memory(n_bytes + BEHIND);
    for (size_t i = 0; i < 15 * stride + n * size; i++) rows[i] = (uint8_t)rng_next(r);
    memset(panel, 0xA5, n_bytes + BEHIND);
    if (kind < 0)
        k->pack_halves(rows, stride, n, panel);
    else
        k->pack_words((enum pack_words_kind)kind, rows, stride, n, panel);
    size_t n_wrong = 0;
    for (size_t i = 0; i < n_bytes + BEHIND; i++) {
        const uint8_t *from = rows + i / size % 16 * stride + i / size / 16 * size;
        const enum pack_words_kind as = kind < 0 ? PACK_WORDS_PLAIN : (enum pack_words_kind)kind;
        n_wrong += panel[i] != (i < n_bytes ? wanted_byte(as, from, i % size) : 0xA5);
    }
    free(rows);
    free(panel);
    return n_wrong;
}

static void every_set_packs_whole_panels(void)
{
    struct rng r = {3};
    for (size_t set = 0; set < 3; set++) {
        const struct kern_table k = set == 0 ? table_ref() : table_in_turn(set);
        for (size_t n = 0; n < 80; n++)
            for (int kind = -1; kind <= (int)PACK_WORDS_NIBBLES; kind++)
                CU_ASSERT_EQUAL(wrong_in_panel(&k, &r, kind, n), 0);
    }
}

void suite_pack(CU_pSuite suite);
void suite_pack(CU_pSuite suite)
{
    CU_add_test(suite, "columns pack like rows", columns_pack_like_rows);
    CU_add_test(suite, "elements stand where the contract says",
                elements_stand_where_the_contract_says);
    CU_add_test(suite, "every set packs whole panels", every_set_packs_whole_panels);
    CU_add_test(suite, "a row is read back", a_row_is_read_back);
    CU_add_test(suite, "sizes that overflow are the largest", sizes_that_overflow_are_the_largest);
}
