/* Rotary frequencies: plain ones exactly, scaled ones against what transformers computes in f32,
 * and none for rules that are not known. */
#include "arch/arch.h"
#include "arch/arch_rope.h"
#include "base/mem.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct arch_rope found;

static struct status make(const char *json)
{
    struct js_doc *doc = NULL;
    mem_free(&found.inv_freq);
    js_parse(json, strlen(json), "test", &doc);
    const struct status st = arch_rope_make(js_root(doc), &found);
    js_destroy(&doc);
    return st;
}

static size_t count_of(const char *json)
{
    make(json);
    return found.n;
}

static void plain_ones_are_rounded_once(void)
{
    CU_ASSERT_EQUAL(count_of("{\"hidden_size\":576,\"num_attention_heads\":9,\"rope_theta\":1e5}"),
                    32);
    CU_ASSERT_EQUAL(found.inv_freq[31], (float)pow(1e5, -62.0 / 64.0));
    CU_ASSERT_EQUAL(count_of("{\"head_dim\":128,\"rope_parameters\":{\"rope_type\":\"default\","
                             "\"rope_theta\":1000000.0}}"),
                    64);
    CU_ASSERT_EQUAL(found.inv_freq[63], (float)pow(1e6, -126.0 / 128.0));
    CU_ASSERT_EQUAL(count_of("{\"head_dim\":128,\"rope_scaling\":{\"rope_type\":\"default\","
                             "\"rope_theta\":1000000.0}}"),
                    64);
    CU_ASSERT_EQUAL(found.inv_freq[63], (float)pow(1e6, -126.0 / 128.0));
    CU_ASSERT_EQUAL(count_of("{\"head_dim\":128,\"partial_rotary_factor\":0.25}"), 16);
    CU_ASSERT_EQUAL(count_of("{\"head_dim\":192,\"qk_rope_head_dim\":64}"), 32);
    CU_ASSERT_EQUAL(count_of("{\"head_dim\":128,\"rope_scaling\":null}"), 64);
    CU_ASSERT(found.attention_factor == 1 && found.softmax_factor == 1);
    mem_free(&found.inv_freq);
}

static void what_is_not_known_has_none(void)
{
    CU_ASSERT_EQUAL(count_of("{\"head_dim\":128,\"rope_scaling\":{\"type\":\"dynamic\"}}"), 0);
    CU_ASSERT_EQUAL(count_of("{\"head_dim\":128,\"rope_scaling\":{\"factor\":8}}"), 0);
    CU_ASSERT_EQUAL(count_of("{\"head_dim\":1e300}"), 0);
    CU_ASSERT_EQUAL(count_of("{\"head_dim\":64,\"rope_theta\":-1}"), 0);
    CU_ASSERT_EQUAL(count_of("{}"), 0);
}

/* In OLMo-3 windowed layers have plain frequencies, others scaled ones; Llama has no local ones. */
static void local_ones_are_plain(void)
{
    struct js_doc *doc = NULL;
    const char *olmo = "{\"architectures\":[\"Olmo3ForCausalLM\"],\"head_dim\":64,"
                       "\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}";
    CU_ASSERT_EQUAL(count_of(olmo), 32);
    CU_ASSERT_EQUAL(found.inv_freq[0], 0.25f);
    mem_free(&found.inv_freq);
    js_parse(olmo, strlen(olmo), "test", &doc);
    CU_ASSERT_EQUAL(arch_rope_make_local(js_root(doc), &found).code, STATUS_OK);
    CU_ASSERT(found.n == 32 && found.inv_freq[0] == 1);
    CU_ASSERT_EQUAL(found.inv_freq[31], (float)pow(5e5, -62.0 / 64.0));
    js_destroy(&doc);
    mem_free(&found.inv_freq);
    const char *llama = "{\"architectures\":[\"LlamaForCausalLM\"],\"head_dim\":64}";
    js_parse(llama, strlen(llama), "test", &doc);
    CU_ASSERT_EQUAL(arch_rope_make_local(js_root(doc), &found).code, STATUS_OK);
    CU_ASSERT_EQUAL(found.n, 0);
    js_destroy(&doc);
}

/* Checks theta of ModernBERT's layers without a window, and with one. */
static void check_modern(const char *fields, double global, double local)
{
    char json[256];
    struct js_doc *doc = NULL;
    snprintf(json, sizeof json, "{\"architectures\":[\"ModernBertModel\"],\"head_dim\":64%s}",
             fields);
    CU_ASSERT_EQUAL(count_of(json), 32);
    CU_ASSERT_EQUAL(found.inv_freq[31], (float)pow(global, -62.0 / 64.0));
    mem_free(&found.inv_freq);
    js_parse(json, strlen(json), "test", &doc);
    CU_ASSERT_EQUAL(arch_rope_make_local(js_root(doc), &found).code, STATUS_OK);
    CU_ASSERT_EQUAL(found.inv_freq[31], (float)pow(local, -62.0 / 64.0));
    mem_free(&found.inv_freq);
    js_destroy(&doc);
}

static void modern_bert_has_two_thetas(void)
{
    check_modern("", 160000, 10000);
    check_modern(",\"global_rope_theta\":3e4,\"local_rope_theta\":2e4", 3e4, 2e4);
    check_modern(",\"rope_theta\":5e4", 160000, 10000);
    check_modern(",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":7e4},"
                 "\"sliding_attention\":{\"rope_theta\":6e4}}",
                 7e4, 6e4);
}

/* Expects an error whose message contains `word`. */
static void refuse(const char *scaling, const char *word)
{
    char json[512];
    snprintf(json, sizeof json,
             "{\"head_dim\":64,\"max_position_embeddings\":8192,\"rope_scaling\":{%s}}", scaling);
    const struct status st = make(json);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_EQUAL(found.n, 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, word));
}

static void senseless_parameters_are_refused_by_name(void)
{
    refuse("\"type\":\"linear\"", "factor");
    refuse("\"type\":\"linear\",\"factor\":0", "factor");
    refuse("\"type\":\"linear\",\"factor\":\"8\"", "factor");
    refuse("\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4",
           "high_freq_factor");
    refuse("\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
           "\"original_max_position_embeddings\":-1",
           "original_max_position_embeddings");
    refuse("\"rope_type\":\"yarn\",\"factor\":-4", "factor");
    refuse("\"rope_type\":\"frequency_factors\",\"factors\":[1,2]", "factors");
    refuse("\"rope_type\":\"frequency_factors\"", "factors");
    refuse("\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":true", "beta_fast");
    refuse("\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":1e9", "mscale");
}

static const struct {
    double theta;
    const char *scaling;
    float attention, softmax;
    float inv_freq[32]; /* transformers 5, f32 */
} scaled[] = {
    {10000,
     "\"rope_type\":\"linear\",\"factor\":4",
     1.0f,
     1.0f,
     {0.25f,           0.18747355f,     0.140585333f,    0.105424128f,    0.079056941f,
      0.0592843406f,   0.0444569848f,   0.0333380364f,   0.0250000004f,   0.0187473539f,
      0.0140585322f,   0.0105424123f,   0.00790569466f,  0.00592843397f,  0.00444569858f,
      0.00333380373f,  0.00249999994f,  0.00187473558f,  0.00140585331f,  0.00105424121f,
      0.000790569466f, 0.000592843455f, 0.000444569858f, 0.000333380362f, 0.000250000012f,
      0.000187473546f, 0.000140585325f, 0.000105424122f, 7.90569466e-05f, 5.92843462e-05f,
      4.44569851e-05f, 3.33380376e-05f}},
    {500000,
     "\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"
     "\"original_max_position_embeddings\":8192",
     1.0f,
     1.0f,
     {1.0f,
      0.663601279f,
      0.440366626f,
      0.292227834f,
      0.193922758f,
      0.128687382f,
      0.0853971019f,
      0.0566696189f,
      0.0376060307f,
      0.0249554086f,
      0.0165604409f,
      0.0109895291f,
      0.00729266508f,
      0.00483942125f,
      0.00321144611f,
      0.00137189368f,
      0.000524846022f,
      0.000178507791f,
      7.78465546e-05f,
      5.16590699e-05f,
      3.42810235e-05f,
      2.2748929e-05f,
      1.50962178e-05f,
      1.00178686e-05f,
      6.64786967e-06f,
      4.41153452e-06f,
      2.92749974e-06f,
      1.94269251e-06f,
      1.28917316e-06f,
      8.55496921e-07f,
      5.6770881e-07f,
      3.7673226e-07f}},
    {150000,
     "\"rope_type\":\"yarn\",\"factor\":32,\"beta_fast\":32,\"beta_slow\":1,\"truncate\":false,"
     "\"original_max_position_embeddings\":4096",
     1.34657359f,
     1.0f,
     {1.0f,
      0.689044297f,
      0.47478205f,
      0.327145875f,
      0.225418001f,
      0.155322984f,
      0.107024424f,
      0.0737445652f,
      0.0508132726f,
      0.0317056961f,
      0.0193349998f,
      0.0115920492f,
      0.00679495931f,
      0.00386035908f,
      0.00209379266f,
      0.00105260219f,
      0.000456483918f,
      0.000129318694f,
      3.83088118e-05f,
      2.63964685e-05f,
      1.8188337e-05f,
      1.25325696e-05f,
      8.63549576e-06f,
      5.95023948e-06f,
      4.09997847e-06f,
      2.82506676e-06f,
      1.94659629e-06f,
      1.34129095e-06f,
      9.24208962e-07f,
      6.36820914e-07f,
      4.38797855e-07f,
      3.0235114e-07f}},
    {1e+06,
     "\"type\":\"yarn\",\"original_max_position_embeddings\":32768",
     1.13862944f,
     1.0f,
     {1.0f,
      0.649381638f,
      0.421696514f,
      0.273841977f,
      0.177827939f,
      0.115478203f,
      0.0749894157f,
      0.0486967526f,
      0.0316227786f,
      0.0205352511f,
      0.0133352149f,
      0.00865964312f,
      0.00515479548f,
      0.0030431177f,
      0.00177853031f,
      0.00102661771f,
      0.000583333371f,
      0.000324690831f,
      0.000175706868f,
      9.12806499e-05f,
      4.44569851e-05f,
      2.88695483e-05f,
      1.87473561e-05f,
      1.21741887e-05f,
      7.90569356e-06f,
      5.13381246e-06f,
      3.33380353e-06f,
      2.16491094e-06f,
      1.40585337e-06f,
      9.1293532e-07f,
      5.92843435e-07f,
      3.84981632e-07f}},
    {10000,
     "\"type\":\"yarn\",\"factor\":40,\"mscale\":1,\"mscale_all_dim\":0.5,\"original_max_position_"
     "embeddings\":4096",
     1.15572199f,
     1.40290752f,
     {1.0f,
      0.749894202f,
      0.562341332f,
      0.421696514f,
      0.316227764f,
      0.237137362f,
      0.177827939f,
      0.133352146f,
      0.100000001f,
      0.0749894157f,
      0.0562341288f,
      0.0390069261f,
      0.0268793609f,
      0.0183781441f,
      0.012447956f,
      0.0083345091f,
      0.00550000044f,
      0.00356199732f,
      0.00224936521f,
      0.00137051346f,
      0.000790569407f,
      0.000414990413f,
      0.00017782794f,
      3.3338034e-05f,
      2.49999994e-05f,
      1.87473543e-05f,
      1.40585325e-05f,
      1.05424124e-05f,
      7.90569447e-06f,
      5.92843435e-06f,
      4.44569832e-06f,
      3.33380353e-06f}},
};

static void scaled_ones_are_those_of_transformers(void)
{
    for (size_t i = 0; i < sizeof scaled / sizeof scaled[0]; i++) {
        char json[512];
        snprintf(json, sizeof json,
                 "{\"head_dim\":64,\"max_position_embeddings\":131072,\"rope_theta\":%g,"
                 "\"rope_scaling\":{%s}}",
                 scaled[i].theta, scaled[i].scaling);
        CU_ASSERT_EQUAL(make(json).code, STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(found.n, 32);
        for (size_t k = 0; k < 32; k++) {
            const float want = scaled[i].inv_freq[k];
            CU_ASSERT(fabsf(found.inv_freq[k] - want) <= 1e-6f * want);
        }
        CU_ASSERT(fabsf(found.attention_factor - scaled[i].attention) < 1e-6f);
        CU_ASSERT(fabsf(found.softmax_factor - scaled[i].softmax) < 1e-6f);
    }
    mem_free(&found.inv_freq);
}

/* Compares what arch_parse and the functions of arch_rope.h read from a golden model's config. */
static void compare_sizes(const char *path)
{
    static struct arch m;
    struct js_doc *doc = NULL;
    struct strbuf config = get_published_config(path);
    const char *json = config.data;
    CU_ASSERT_EQUAL_FATAL(arch_parse(json, config.n, path, &m).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(js_parse(json, config.n, path, &doc).code, STATUS_OK);
    CU_ASSERT_EQUAL(make(json).code, STATUS_OK);
    CU_ASSERT_EQUAL(arch_value_dim(js_root(doc)), arch_o_unit(&m));
    CU_ASSERT_EQUAL(found.n, m.attn.rotary / 2);
    /* every rule leaves the highest frequency as it is, or divides it by a factor */
    CU_ASSERT(found.inv_freq[0] > 0 && found.inv_freq[0] <= 1);
    const bool is_plain =
        strstr(json, "\"factor\"") == NULL && strstr(json, "short_factor") == NULL;
    if (is_plain)
        CU_ASSERT_EQUAL(found.inv_freq[1], (float)pow(m.rope_theta, -2.0 / m.attn.rotary));
    js_destroy(&doc);
    strbuf_fini(&config);
    mem_free(&found.inv_freq);
}

static void a_model_that_runs_has_the_sizes_of_its_description(void)
{
    glob_t found_paths;
    const char *pattern = TEST_DATA_DIR "/golden/models/*/hf/config.json";
    CU_ASSERT_EQUAL_FATAL(glob(pattern, 0, NULL, &found_paths), 0);
    CU_ASSERT(found_paths.gl_pathc >= 36);
    for (size_t i = 0; i < found_paths.gl_pathc; i++) compare_sizes(found_paths.gl_pathv[i]);
    globfree(&found_paths);
}

void suite_arch_rope(CU_pSuite suite);
void suite_arch_rope(CU_pSuite suite)
{
    CU_add_test(suite, "plain ones are rounded once", plain_ones_are_rounded_once);
    CU_add_test(suite, "those of layers with a window are plain", local_ones_are_plain);
    CU_add_test(suite, "ModernBERT has two thetas", modern_bert_has_two_thetas);
    CU_add_test(suite, "what is not known has none", what_is_not_known_has_none);
    CU_add_test(suite, "senseless parameters are refused by name",
                senseless_parameters_are_refused_by_name);
    CU_add_test(suite, "scaled ones are those of transformers",
                scaled_ones_are_those_of_transformers);
    CU_add_test(suite, "a model that runs has the sizes of its description",
                a_model_that_runs_has_the_sizes_of_its_description);
}
