/* Names and shapes of quantized formats, and the exact conversions of their codes. */
#include "tensor/quant_format.h"

#include <CUnit/CUnit.h>
#include <math.h>

static void names_round_trip(void)
{
    static const char *const names[] = {"int8",           "int8-g32", "int8-asym-g64", "int4-g32",
                                        "int4-asym-g128", "fp8",      "fp8-g128",      "mxfp4"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct quant_format f;
        char back[32];
        CU_ASSERT_TRUE_FATAL(quant_format_parse(names[i], &f));
        quant_format_name(f, back, sizeof back);
        CU_ASSERT_STRING_EQUAL(back, names[i]);
    }
}

static void other_names_are_refused(void)
{
    static const char *const names[] = {"",         "int9",      "int8-",        "int8-g",
                                        "int8-g33", "int4-g32x", "fp8-asym",     "mxfp4-g32",
                                        "INT8",     "int4-g256", "int4-g32-asym"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct quant_format f;
        CU_ASSERT_FALSE(quant_format_parse(names[i], &f));
    }
}

static void shapes(void)
{
    struct quant_format f;
    CU_ASSERT_TRUE_FATAL(quant_format_parse("int4", &f));
    CU_ASSERT_EQUAL(f.group, 32);
    CU_ASSERT_EQUAL(quant_groups(f, 33), 2);
    CU_ASSERT_EQUAL(quant_code_bytes(f.kind, 33), 17);
    CU_ASSERT_TRUE_FATAL(quant_format_parse("int8", &f));
    CU_ASSERT_EQUAL(quant_groups(f, 4096), 1);
    CU_ASSERT_EQUAL(quant_kernel_group(f), 128);
    CU_ASSERT_EQUAL(quant_code_bytes(f.kind, 33), 33);
}

/* Every E4M3 code against its definition. */
static void e4m3_values(void)
{
    for (int c = 0; c < 256; c++) {
        const int exponent = c >> 3 & 15, mantissa = c & 7;
        const float got = f32_from_e4m3((uint8_t)c);
        if (exponent == 15 && mantissa == 7) {
            CU_ASSERT_TRUE(isnan(got));
            continue;
        }
        const double size =
            exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
        CU_ASSERT_EQUAL(got, (float)(c & 128 ? -size : size));
        CU_ASSERT_EQUAL(signbit(got) != 0, c >= 128);
    }
}

static void microscaling_values(void)
{
    static const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    for (uint8_t c = 0; c < 16; c++)
        CU_ASSERT_EQUAL(e2m1_doubled(c), (c & 8 ? -2 : 2) * values[c & 7]);
    for (int e = 0; e < 255; e++)
        CU_ASSERT_EQUAL(f32_from_e8m0((uint8_t)e), (float)ldexp(1, e - 127));
    CU_ASSERT_TRUE(isnan(f32_from_e8m0(255)));
}

void suite_quant_format(CU_pSuite suite);
void suite_quant_format(CU_pSuite suite)
{
    CU_ADD_TEST(suite, names_round_trip);
    CU_ADD_TEST(suite, other_names_are_refused);
    CU_ADD_TEST(suite, shapes);
    CU_ADD_TEST(suite, e4m3_values);
    CU_ADD_TEST(suite, microscaling_values);
}
