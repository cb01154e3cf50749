/* Conversions between element types: f16 over all its values, f16 and bf16 at their borders. */
#include "tensor/dtype.h"

#include <CUnit/CUnit.h>
#include <math.h>

static void f16_round_trips_for_every_value(void)
{
    unsigned n_wrong = 0;
    for (uint32_t h = 0; h < 65536; h++) {
        const float x = f32_from_f16((uint16_t)h);
        const uint16_t back = f16_from_f32(x);
        if (isnan(x)) {
            if (!isnan(f32_from_f16(back))) n_wrong++;
        } else if (back != h) {
            n_wrong++;
        }
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
}

static void f16_rounds_halfway_to_even(void)
{
    CU_ASSERT_EQUAL(f16_from_f32(2049.0f), f16_from_f32(2048.0f));
    CU_ASSERT_EQUAL(f16_from_f32(2051.0f), f16_from_f32(2052.0f));
    CU_ASSERT_EQUAL(f16_from_f32(65519.0f), 0x7BFF);
    CU_ASSERT_EQUAL(f16_from_f32(65520.0f), 0x7C00);
    CU_ASSERT_EQUAL(f16_from_f32(0x1p-25f), 0);
    CU_ASSERT_EQUAL(f16_from_f32(0x1.8p-25f), 1);
    CU_ASSERT_EQUAL(f16_from_f32(0x1.8p-24f), 2);
}

static void bf16_rounds_halfway_to_even(void)
{
    CU_ASSERT_EQUAL(bf16_from_f32(f32_from_bits(0x3F808000u)), 0x3F80);
    CU_ASSERT_EQUAL(bf16_from_f32(f32_from_bits(0x3F818000u)), 0x3F82);
    CU_ASSERT_EQUAL(bf16_from_f32(f32_from_bits(0x00000001u)), 0);
    CU_ASSERT_EQUAL(bf16_from_f32(INFINITY), 0x7F80);
    CU_ASSERT(isnan(f32_from_bf16(bf16_from_f32(NAN))));
}

void suite_dtype(CU_pSuite suite);
void suite_dtype(CU_pSuite suite)
{
    CU_add_test(suite, "f16 round trips for every value", f16_round_trips_for_every_value);
    CU_add_test(suite, "f16 rounds halfway to even", f16_rounds_halfway_to_even);
    CU_add_test(suite, "bf16 rounds halfway to even", bf16_rounds_halfway_to_even);
}
