/* Quantized Hugging Face checkpoints: each weight, converted to floats or kept quantized, has the
 * values that the authors' code computes from the same file (tests/golden/make_import_goldens.py).
 * Anything not understood is refused by name. */
#include "base/json.h"
#include "base/mem.h"
#include "calibrate/tensor_rows.h"
#include "checkpoint/convert/convert.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#define GOLDEN SOURCE_DIR "/tests/golden/imports/"

/* A golden, and the format in which its quantized linears are kept. Groups are those of the source,
 * except in o_proj and down_proj, where they are short enough that tp can cut them. */
static const struct import {
    const char *name, *kind; /* kind: how the format's name begins; "": floats */
    unsigned n_kept;         /* tensors of such a format */
} imports[] = {
    {"gptq", "int4-g32", 7},      {"gptq-act", "", 0},
    {"gptq-all", "int4-asym", 7}, {"gptq-v2-8", "int8-asym-g32", 7},
    {"awq", "int4-asym-g32", 7},  {"ct-int4", "int4-asym-g32", 6},
    {"ct-int4-sym", "int4-g", 7}, {"ct-pack8", "int8-asym", 7},
    {"ct-int8", "int8-asym", 7},  {"ct-int8-asym", "int8-asym", 7},
    {"ct-fp8", "fp8", 7},         {"ct-fp8-tensor", "fp8", 7},
    {"ct-fp8-block", "fp8", 7},   {"fp8-blocks", "fp8", 7},
    {"fp8-e4m3", "fp8", 7},       {"fp8-e5m2", "", 0},
    {"mxfp4", "mxfp4", 3},        {"dsv4", "fp8-g128", 1},
    {"dsv4", "mxfp4", 3},
};
enum { N_IMPORTS = sizeof imports / sizeof imports[0] };

static struct js_doc *golden_of(const char *name)
{
    char path[512];
    size_t n;
    struct js_doc *doc = NULL;
    snprintf(path, sizeof path, GOLDEN "%s/golden.json", name);
    char *text = get_file(path, &n);
    CU_ASSERT_EQUAL_FATAL(js_parse(text, n, path, &doc).code, STATUS_OK);
    free(text);
    return doc;
}

static void print_failure(const char *what, const struct status *st)
{
    if (status_failed(st)) fprintf(stderr, "%s: %s\n", what, st->text);
}

/* Writes the checksum of a tensor's values in `dtype` to out, as hexadecimal digits. */
static void value_hash(struct ckpt *c, const struct ckpt_tensor *t, enum dtype dtype, char *out)
{
    struct tensor_rows r;
    const size_t n = (size_t)(t->n_rows * t->n_cols);
    float *wide = malloc(n * sizeof *wide);
    void *narrow = malloc(n * sizeof *wide);
    CU_ASSERT_EQUAL_FATAL(tensor_rows_init(&r, c, t, NULL).code, STATUS_OK);
    CU_ASSERT_EQUAL(tensor_rows_f32(&r, 0, t->n_rows, wide).code, STATUS_OK);
    tensor_rows_fini(&r);
    for (size_t i = 0; i < n; i++) wide[i] += 0.0f; /* turns -0 into 0 */
    dtype_from_f32(dtype, wide, n, narrow);
    const XXH128_hash_t h = XXH3_128bits(narrow, n * dtype_bytes(dtype));
    sprintf(out, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    free(narrow);
    free(wide);
}

/* Checks all weights of a converted golden; returns how many are kept in im->kind. */
static unsigned weights_check(const struct import *im, bool keep)
{
    char source[512], hash[33], format[32];
    struct ckpt *c = NULL;
    struct js_doc *golden = golden_of(im->name);
    enum dtype dtype = DTYPE_F32;
    unsigned n_kept = 0;
    snprintf(source, sizeof source, GOLDEN "%s/hf", im->name);
    CU_ASSERT(dtype_parse(js_string(js_get(js_root(golden), "dtype"), NULL), &dtype));
    const struct convert_options o = {
        .source = source, .path = scratch("i.h5"), .keep_dtype = true, .keep_codes = keep};
    struct status st = convert_run(&o, NULL, NULL);
    if (!status_failed(&st)) st = ckpt_open(scratch("i.h5"), &c);
    print_failure(im->name, &st);
    CU_ASSERT_EQUAL_FATAL(st.code, STATUS_OK);
    const struct js_node *weights = js_get(js_root(golden), "weights"), *want;
    CU_ASSERT_EQUAL(ckpt_tensor_count(c), js_count(weights));
    const void *it = NULL;
    const char *name;
    while (js_next(weights, &it, &name, &want)) {
        const struct ckpt_tensor *t = ckpt_find(c, name);
        CU_ASSERT_PTR_NOT_NULL_FATAL(t);
        value_hash(c, t, dtype, hash);
        CU_ASSERT_STRING_EQUAL(hash, js_string(want, NULL));
        if (strcmp(hash, js_string(want, NULL)) != 0) fprintf(stderr, "%s: %s\n", im->name, name);
        CU_ASSERT_TRUE(keep || (t->quant.kind == QUANT_NONE && t->dtype == dtype));
        if (t->quant.kind == QUANT_NONE) continue;
        /* o_proj has 64 inputs and down_proj 192, so each needs at least two leaves for ranks to
         * divide */
        CU_ASSERT(t->leaf_elems == 0 || t->n_cols < 64 || t->leaf_elems <= t->n_cols / 2);
        quant_format_name(t->quant, format, sizeof format);
        n_kept += strncmp(format, im->kind, strlen(im->kind)) == 0;
    }
    ckpt_close(&c);
    js_destroy(&golden);
    scratch_clear();
    return n_kept;
}

static void floats_are_the_makers(void)
{
    for (int i = 0; i < N_IMPORTS; i++) CU_ASSERT_EQUAL(weights_check(&imports[i], false), 0);
}

static void codes_have_the_makers_values(void)
{
    for (int i = 0; i < N_IMPORTS; i++) {
        const unsigned n_kept = weights_check(&imports[i], true);
        CU_ASSERT_EQUAL(n_kept, imports[i].n_kept);
        if (n_kept != imports[i].n_kept) fprintf(stderr, "%s: %u\n", imports[i].name, n_kept);
    }
}

/* ---- what is refused ---- */

/* Converts the golden's weights with another quantization_config. */
static struct status convert_as(const char *golden, const char *quantization)
{
    char path[512], config[2048];
    size_t n;
    const char *folder = scratch("hf");
    mkdir(folder, 0777);
    snprintf(path, sizeof path, GOLDEN "%s/hf/model.safetensors", golden);
    char *bytes = get_file(path, &n);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    put_file(path, bytes, n);
    free(bytes);
    const int length = snprintf(config, sizeof config,
                                "{\"hidden_size\": 64, \"num_attention_heads\": 4, "
                                "\"quantization_config\": %s}",
                                quantization);
    snprintf(path, sizeof path, "%s/config.json", folder);
    put_file(path, config, (size_t)length);
    const struct convert_options o = {
        .source = folder, .path = scratch("no.h5"), .keep_dtype = true, .keep_codes = true};
    struct status st = convert_run(&o, NULL, NULL);
    scratch_clear();
    return st;
}

static void what_is_not_understood_is_refused_by_name(void)
{
    static const struct {
        const char *golden, *config, *word;
    } cases[] = {
        {"gptq", "{\"quant_method\": \"bitsandbytes\"}", "bitsandbytes"},
        {"gptq", "{\"bits\": 4}", "quant_method"},
        {"gptq", "{\"quant_method\": 4}", "no string"},
        {"gptq", "{\"quant_method\": \"gptq\", \"checkpoint_format\": \"marlin\"}", "marlin"},
        {"gptq", "{\"quant_method\": \"gptq\", \"bits\": 3, \"group_size\": 32}", "4 bits"},
        {"gptq", "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 64}", "group_size"},
        {"gptq-v2-8", "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32}",
         "group_size"},
        {"gptq-all", "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": -1, \"sym\": true}",
         "zero point"},
        {"awq", "{\"quant_method\": \"awq\", \"bits\": 4, \"version\": \"gemv\"}", "gemv"},
        {"ct-int4", "{\"quant_method\": \"compressed-tensors\", \"format\": \"marlin-24\"}",
         "marlin-24"},
        {"ct-int4",
         "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
         "\"config_groups\": {\"g\": {\"weights\": {\"num_bits\": 3}}}}",
         "num_bits"},
        {"fp8-blocks", "{\"quant_method\": \"fp8\", \"weight_block_size\": [64, 128]}", "blocks"},
        {"fp8-blocks", "{\"quant_method\": \"fp8\", \"weight_block_size\": [0, 128]}",
         "weight_block_size"},
        {"dsv4", "{\"quant_method\": \"fp8\", \"expert_dtype\": \"int4\"}", "expert_dtype"},
        {"dsv4", "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 64]}", "blocks"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct status st = convert_as(cases[i].golden, cases[i].config);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, cases[i].word));
        if (strstr(st.text, cases[i].word) == NULL) fprintf(stderr, "%zu: %s\n", i, st.text);
    }
}

void suite_import_hf(CU_pSuite suite);
void suite_import_hf(CU_pSuite suite)
{
    CU_add_test(suite, "floats are the makers'", floats_are_the_makers);
    CU_add_test(suite, "codes have the makers' values", codes_have_the_makers_values);
    CU_add_test(suite, "what is not understood is refused by name",
                what_is_not_understood_is_refused_by_name);
}
