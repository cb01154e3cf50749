/* Quantized tensors in a checkpoint read back as written. Wrong use of the writer and hostile
 * groups are refused with an error. */
#include "base/mem.h"
#include "checkpoint/file/ckpt.h"
#include "checkpoint/file/ckpt_writer.h"
#include "checkpoint/file/h5.h"
#include "checkpoint/file/seal.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char down[] = "model.layers.1.mlp.experts.down_proj.weight";
static const char down_path[] = "/weights/model/layers/1/mlp/experts/down_proj/weight";
#define PART(name) "/weights/model/layers/1/mlp/experts/down_proj/weight/" name

static void groups_are_tensors_with_parts(void)
{
    struct ckpt *c = NULL;
    CU_ASSERT_EQUAL_FATAL(small_checkpoint(scratch("a.h5"), 1).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(ckpt_open(scratch("a.h5"), &c).code, STATUS_OK);
    CU_ASSERT_EQUAL(ckpt_tensor_count(c), 7);
    CU_ASSERT_EQUAL(ckpt_stored_count(c), 7 + 5);
    const struct ckpt_tensor *t = ckpt_find(c, down);
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    CU_ASSERT(t->quant.kind == QUANT_INT4 && t->quant.has_zeros && t->quant.group == 32);
    CU_ASSERT(t->quant.scale_dtype == DTYPE_F16 && t->leaf_elems == 64 && t->grid_bits == 32);
    CU_ASSERT_STRING_EQUAL(t->method, "rtn");
    CU_ASSERT(t->n_dims == 3 && t->dims[0] == 3 && t->dims[1] == 4 && t->dims[2] == 96);
    CU_ASSERT(t->n_rows == 12 && t->n_cols == 96 && t->n_blocks == 0);
    CU_ASSERT_EQUAL(t->n_bytes, 12 * (48 + 3 * 2 + 3));
    CU_ASSERT_EQUAL(t->parts[CKPT_CODES]->n_cols, 48);
    CU_ASSERT_EQUAL(t->parts[CKPT_ZEROS]->n_cols, 3);
    CU_ASSERT_PTR_NULL(ckpt_find(c, "model.layers.1.mlp.experts.down_proj.weight.codes"));
    t = ckpt_find(c, "model.layers.1.mlp.up_proj.weight");
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    CU_ASSERT(t->quant.kind == QUANT_INT8 && t->quant.scale_dtype == DTYPE_F32);
    CU_ASSERT(t->parts[CKPT_CODES]->dtype == DTYPE_I8 && t->parts[CKPT_ZEROS] == NULL);
    CU_ASSERT_EQUAL(ckpt_read_tensor(c, t, NULL).code, STATUS_BUG);
    ckpt_close(&c);
    scratch_clear();
}

static struct status write_one(struct ckpt_tensor_spec spec, bool plain_rows, bool zeros)
{
    static uint8_t bytes[512];
    struct quant_block b = {.codes = bytes, .scales = bytes, .zeros = zeros ? bytes : NULL};
    struct ckpt_writer *w = NULL;
    struct status st = ckpt_writer_create(scratch("w.h5"), "misuse", &w);
    if (!status_failed(&st)) st = ckpt_writer_config(w, "{}", 2);
    if (!status_failed(&st)) st = ckpt_writer_tensor(w, &spec);
    if (!status_failed(&st)) {
        st = plain_rows ? ckpt_writer_rows(w, bytes, 2) : ckpt_writer_quant_rows(w, &b, 2);
    }
    if (!status_failed(&st)) return ckpt_writer_finish(&w);
    ckpt_writer_destroy(&w);
    return st;
}

static void misuse_of_the_writer_is_refused(void)
{
    const struct ckpt_tensor_spec good = {.name = "a.b",
                                          .n_dims = 2,
                                          .dims = {2, 64},
                                          .leaf_elems = 32,
                                          .grid_bits = 32,
                                          .quant = {QUANT_INT4, false, DTYPE_F16, 32},
                                          .method = "rtn"};
    struct ckpt_tensor_spec bad = good;
    CU_ASSERT_EQUAL(write_one(good, false, false).code, STATUS_OK);
    CU_ASSERT_EQUAL(write_one(good, true, false).code, STATUS_BUG);
    CU_ASSERT_EQUAL(write_one(good, false, true).code, STATUS_BUG);
    bad.leaf_elems = 48;
    CU_ASSERT_EQUAL(write_one(bad, false, false).code, STATUS_INPUT);
    bad = good;
    bad.method = NULL;
    CU_ASSERT_EQUAL(write_one(bad, false, false).code, STATUS_INPUT);
    bad = good;
    bad.n_dims = 1;
    CU_ASSERT_EQUAL(write_one(bad, false, false).code, STATUS_INPUT);
    scratch_clear();
}

/* ---- hostile groups ---- */

static void number_set(hid_t file, const char *object, const char *name, int64_t value)
{
    const hid_t group = H5Gopen2(file, object, H5P_DEFAULT);
    const hid_t attribute = H5Aopen(group, name, H5P_DEFAULT);
    CU_ASSERT_FATAL(attribute >= 0);
    CU_ASSERT(H5Awrite(attribute, H5T_NATIVE_INT64, &value) >= 0);
    H5Aclose(attribute);
    H5Gclose(group);
}

static void text_set(hid_t file, const char *object, const char *name, const char *text)
{
    H5Adelete_by_name(file, object, name, H5P_DEFAULT);
    const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, strlen(text));
    const hid_t attribute =
        H5Acreate_by_name(file, object, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, type, text);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
}

static void replace(hid_t file, const char *path, hid_t type, hsize_t n_cols)
{
    const hsize_t dims[3] = {3, 4, n_cols};
    const hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    const hid_t space = H5Screate_simple(3, dims, NULL);
    H5Ldelete(file, path, H5P_DEFAULT);
    H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY);
    const hid_t dataset = H5Dcreate2(file, path, type, space, H5P_DEFAULT, plist, H5P_DEFAULT);
    CU_ASSERT_FATAL(dataset >= 0);
    H5Dclose(dataset);
    H5Sclose(space);
    H5Pclose(plist);
}

static void nothing(hid_t file)
{
    (void)file;
}

static void unknown_format(hid_t file)
{
    text_set(file, down_path, "format", "int3");
}

static void other_format(hid_t file)
{
    text_set(file, down_path, "format", "int4-g32");
}

static void no_method(hid_t file)
{
    H5Adelete_by_name(file, down_path, "method", H5P_DEFAULT);
}

static void other_group_size(hid_t file)
{
    number_set(file, down_path, "group_size", 64);
}

static void more_inputs(hid_t file)
{
    number_set(file, down_path, "inputs", 98);
}

static void endless_inputs(hid_t file)
{
    number_set(file, down_path, "inputs", INT64_MAX);
}

static void leaf_in_a_group(hid_t file)
{
    number_set(file, down_path, "leaf", 48);
}

static void no_scales(hid_t file)
{
    H5Ldelete(file, PART("scales"), H5P_DEFAULT);
}

static void no_format(hid_t file)
{
    H5Adelete_by_name(file, down_path, "format", H5P_DEFAULT);
}

static void float_codes(hid_t file)
{
    replace(file, PART("codes"), H5T_IEEE_F32LE, 48);
}

static void few_zeros(hid_t file)
{
    replace(file, PART("zeros"), H5T_STD_U8LE, 2);
}

static void hostile_groups_are_refused(void)
{
    static const struct {
        void (*change)(hid_t file);
        const char *says;
    } cases[] = {
        {unknown_format, "int3"},
        {other_format, "is not part of its format"},
        {no_method, "method"},
        {other_group_size, "group_size"},
        {more_inputs, "does not fit"},
        {endless_inputs, "inputs"},
        {leaf_in_a_group, "leaf"},
        {no_scales, "scales: is missing"},
        {no_format, "outside a quantized"},
        {float_codes, "another element type"},
        {few_zeros, "does not fit"},
    };
    CU_ASSERT_EQUAL(changed_checkpoint(nothing).code, STATUS_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct status st = changed_checkpoint(cases[i].change);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        if (strstr(st.text, cases[i].says) == NULL) {
            fprintf(stderr, "case %zu: expected '%s' in '%s'\n", i, cases[i].says, st.text);
            CU_FAIL("another sentence");
        }
    }
    scratch_clear();
}

void suite_checkpoint_quant(CU_pSuite suite);
void suite_checkpoint_quant(CU_pSuite suite)
{
    CU_add_test(suite, "groups are tensors with parts", groups_are_tensors_with_parts);
    CU_add_test(suite, "misuse of the writer is refused", misuse_of_the_writer_is_refused);
    CU_add_test(suite, "hostile groups are refused", hostile_groups_are_refused);
}
