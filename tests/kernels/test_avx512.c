/* Tests that the instruction set avx512 can be selected by name if the CPU has it; otherwise says
 * that this was not tested. */
#include "util_kernels.h"

#include <CUnit/CUnit.h>
#include <stdio.h>

static void avx512_can_be_selected_by_name(void)
{
    check_selected("avx512");
}

void suite_avx512(CU_pSuite suite);
void suite_avx512(CU_pSuite suite)
{
    if (!system_has("avx512_vnni")) {
        printf("skipped: this system has no AVX-512 with VNNI\n");
        return;
    }
    CU_add_test(suite, "avx512 can be selected by name", avx512_can_be_selected_by_name);
}
