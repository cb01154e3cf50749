/* Quantized GGUF files: tensors that stay quantized have exactly the values that the source's
 * layout defines; those in a format that shoal lacks become f16; a value that shoal's format lacks
 * is an error. */
#include "base/mem.h"
#include "calibrate/tensor_rows.h"
#include "checkpoint/convert/convert.h"
#include "checkpoint/convert/gguf.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GGUF SOURCE_DIR "/tests/golden/gguf/quantized/"

static struct status convert(const char *source, const char *path, bool keep)
{
    const struct convert_options o = {
        .source = source, .path = path, .keep_dtype = keep, .dtype = DTYPE_F32, .keep_codes = keep};
    return convert_run(&o, NULL, NULL);
}

static float *values_of(struct ckpt *c, const struct ckpt_tensor *t)
{
    struct tensor_rows r;
    float *out = malloc(t->n_rows * t->n_cols * sizeof *out);
    CU_ASSERT_EQUAL_FATAL(tensor_rows_init(&r, c, t, NULL).code, STATUS_OK);
    CU_ASSERT_EQUAL(tensor_rows_f32(&r, 0, t->n_rows, out).code, STATUS_OK);
    tensor_rows_fini(&r);
    return out;
}

/* Converts with and without keep_codes; returns how many tensors were kept as `format`. */
static unsigned kept_equals_dequantized(const char *source, const char *format)
{
    struct ckpt *kept = NULL, *floats = NULL;
    unsigned n_kept = 0;
    struct status st = convert(source, scratch("kept.h5"), true);
    if (!status_failed(&st)) st = convert(source, scratch("floats.h5"), false);
    if (!status_failed(&st)) st = ckpt_open(scratch("kept.h5"), &kept);
    if (!status_failed(&st)) st = ckpt_open(scratch("floats.h5"), &floats);
    if (status_failed(&st)) fprintf(stderr, "%s\n", st.text);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(ckpt_tensor_count(kept), ckpt_tensor_count(floats));
    for (size_t i = 0; i < ckpt_tensor_count(kept); i++) {
        const struct ckpt_tensor *a = ckpt_tensor_at(kept, i), *b = ckpt_tensor_at(floats, i);
        char name[32] = "";
        CU_ASSERT_STRING_EQUAL(a->name, b->name);
        CU_ASSERT_FATAL(a->n_rows == b->n_rows && a->n_cols == b->n_cols);
        float *x = values_of(kept, a), *y = values_of(floats, b);
        for (size_t k = 0; k < a->n_rows * a->n_cols; k++) {
            /* tensors in a format that shoal lacks are stored as f16 */
            CU_ASSERT_FATAL(x[k] == (a->quant.kind != QUANT_NONE || a->dtype == DTYPE_F32
                                         ? y[k]
                                         : f32_from_f16(f16_from_f32(y[k]))));
        }
        free(x);
        free(y);
        if (a->quant.kind != QUANT_NONE) quant_format_name(a->quant, name, sizeof name);
        n_kept += strcmp(name, format) == 0;
        CU_ASSERT_EQUAL(a->leaf_elems != 0, b->leaf_elems != 0);
    }
    ckpt_close(&kept);
    ckpt_close(&floats);
    scratch_clear();
    return n_kept;
}

static void gguf_codes_are_kept(void)
{
    CU_ASSERT_EQUAL(kept_equals_dequantized(GGUF "q8_0.gguf", "int8-g32"), 8);
    CU_ASSERT_EQUAL(kept_equals_dequantized(GGUF "q4_0.gguf", "int4-g32"), 8);
    CU_ASSERT_EQUAL(kept_equals_dequantized(GGUF "mixed.gguf", "int4-g32"), 7);
}

/* One quantized value of a Q8_0 tensor is -128, which shoal's int8 lacks. */
static void a_code_of_minus_128_is_refused(void)
{
    struct gguf *g = NULL;
    size_t n;
    char *bytes = get_file(GGUF "q8_0.gguf", &n);
    CU_ASSERT_EQUAL_FATAL(gguf_open(GGUF "q8_0.gguf", &g).code, STATUS_OK);
    const struct gguf_tensor *t = gguf_find(g, "blk.0.attn_v.weight");
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    bytes[t->offset + 2 + 5] = (char)0x80;
    gguf_close(&g);
    put_file(scratch("bad.gguf"), bytes, n);
    const struct status st = convert(scratch("bad.gguf"), scratch("bad.h5"), true);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "v_proj"));
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "-128"));
    CU_ASSERT_EQUAL(convert(scratch("bad.gguf"), scratch("bad.h5"), false).code, STATUS_OK);
    free(bytes);
    scratch_clear();
}

void suite_import_quant(CU_pSuite suite);
void suite_import_quant(CU_pSuite suite)
{
    CU_add_test(suite, "GGUF's codes are kept", gguf_codes_are_kept);
    CU_add_test(suite, "a code of -128 is refused", a_code_of_minus_128_is_refused);
}
