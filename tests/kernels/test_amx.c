/* Tests that the instruction set amx is chosen where possible, and that its linears really use
 * tiles. Linears without tiles would give the same bits, so no other test would notice. */
#include "util_quant.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The operand of LDTILECFG and STTILECFG: one tile of one row of four bytes, a configuration that
 * no kernel uses. */
struct tile_mark {
    uint8_t bytes[64];
};
static const struct tile_mark mark = {
    {[0] = 1 /* palette */, [16] = 4 /* bytes */, [48] = 1 /* rows */}};

static void tiles_mark(void)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(mark));
}

/* Whether this thread used tiles since tiles_mark: then they are configured differently, or not at
 * all. Releases the tiles. */
static bool tiles_were_used(void)
{
    struct tile_mark found;
    __asm__ volatile("sttilecfg %0\n\ttilerelease" : "=m"(found));
    return memcmp(&found, &mark, sizeof mark) != 0;
}

static void amx_can_be_selected_and_is_the_default(void)
{
    struct kern_table t;
    check_selected("amx");
    CU_ASSERT_EQUAL(kern_select(NULL, &t).code, STATUS_OK);
    CU_ASSERT_STRING_EQUAL(t.name, "amx");
}

static bool linear_uses_tiles(const struct kern_table *k, struct rng *r, struct quant_format f,
                              size_t leaf, size_t n_rows)
{
    enum { N_OUT = 48, N_IN = 512 };
    struct quant_weight w = quant_weight_make(r, f, N_OUT, N_IN, leaf, 0);
    struct quant_rows xq = quant_rows_make(n_rows, N_IN, f);
    float *x = test_floats(n_rows * N_IN), *y = test_floats(n_rows * N_OUT);
    int64_t *sums = test_memory(n_rows * (N_OUT + 1) * sizeof *sums);
    const struct linear_group group = {&w.w, 0, n_rows};
    const struct linear_args a = {.groups = &group,
                                  .n_groups = 1,
                                  .x = x,
                                  .x_stride = N_IN,
                                  .xq = &xq,
                                  .y = y,
                                  .y_stride = N_OUT,
                                  .sums = sums};
    rng_floats(r, x, n_rows * N_IN, 1.0f);
    op_quantize_rows(k, x, N_IN, n_rows, N_IN, &xq);
    tiles_mark();
    (leaf > 0 ? op_linear_leaf : op_linear)(k, &a);
    const bool used = tiles_were_used();
    quant_weight_free(&w);
    quant_rows_free(&xq);
    free(x);
    free(y);
    free(sums);
    return used;
}

/* Calls the op as the forward pass does, but on this thread. A single row runs on AVX-512. */
static void many_rows_of_codes_go_through_tiles(void)
{
    static const size_t rows[] = {16, 32, 64, 256};
    struct kern_table k;
    struct rng r = {11};
    CU_ASSERT_EQUAL_FATAL(kern_select("amx", &k).code, STATUS_OK);
    k.team = NULL;
    for (size_t i = 0; i < QUANT_TEST_FORMATS; i++) {
        const struct quant_format f = quant_test_format(i);
        if (f.kind != QUANT_INT8 && f.kind != QUANT_INT4) continue;
        for (size_t leaf = 0; leaf <= 256; leaf += 256) {
            for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++)
                CU_ASSERT(linear_uses_tiles(&k, &r, f, leaf, rows[n]));
            CU_ASSERT_FALSE(linear_uses_tiles(&k, &r, f, leaf, 1));
        }
    }
}

void suite_amx(CU_pSuite suite);
void suite_amx(CU_pSuite suite)
{
    if (!system_has("amx_int8") || !system_has("amx_tile") || !system_has("avx512_vnni") ||
        syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) != 0) {
        printf("skipped: this system has no AMX with 8-bit integers\n");
        return;
    }
    CU_add_test(suite, "amx can be selected and is the default",
                amx_can_be_selected_and_is_the_default);
    CU_add_test(suite, "many rows of codes go through tiles", many_rows_of_codes_go_through_tiles);
}
