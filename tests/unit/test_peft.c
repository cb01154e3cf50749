/* Adapters as peft publishes them become checkpoints of their own: names, bytes and scalings. A
 * field or tensor that would change results in another way is refused by name. */
#include "base/json.h"
#include "base/mem.h"
#include "checkpoint/convert/convert.h"
#include "checkpoint/convert/peft.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define GOLDEN SOURCE_DIR "/tests/golden/adapters/"

static struct status convert(const char *source, const char *name)
{
    const struct convert_options o = {
        .source = source, .path = scratch(name), .keep_dtype = true, .keep_codes = true};
    return convert_run(&o, NULL, NULL);
}

static struct ckpt *converted(const char *source)
{
    struct ckpt *c = NULL;
    struct status st = convert(source, "a.h5");
    if (!status_failed(&st)) st = ckpt_open(scratch("a.h5"), &c);
    if (status_failed(&st)) fprintf(stderr, "%s\n", st.text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(c);
    return c;
}

static void tensors_keep_their_bytes(void)
{
    static const char prefix[] = "base_model.model.";
    struct ckpt *c = converted(GOLDEN "attention/hf");
    struct safetensors *s = NULL;
    CU_ASSERT_EQUAL_FATAL(peft_open(GOLDEN "attention/hf", &s).code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(ckpt_tensor_count(c), 32);
    CU_ASSERT_EQUAL_FATAL(safetensors_count(s), 32);
    for (size_t i = 0; i < safetensors_count(s); i++) {
        const struct safetensors_tensor *from = safetensors_at(s, i);
        const struct ckpt_tensor *t = ckpt_find(c, from->name + strlen(prefix));
        CU_ASSERT_PTR_NOT_NULL_FATAL(t);
        CU_ASSERT(t->dtype == DTYPE_F16 && t->leaf_elems == 0 && t->n_bytes == from->n_bytes);
        CU_ASSERT(t->n_dims == 2 && t->dims[0] == from->dims[0] && t->dims[1] == from->dims[1]);
        char *a = malloc(t->n_bytes), *b = malloc(t->n_bytes);
        CU_ASSERT_EQUAL(ckpt_read_tensor(c, t, a).code, STATUS_OK);
        CU_ASSERT_EQUAL(safetensors_read(s, from, 0, t->n_bytes, b).code, STATUS_OK);
        CU_ASSERT_EQUAL(memcmp(a, b, t->n_bytes), 0);
        free(a);
        free(b);
    }
    CU_ASSERT_STRING_EQUAL(ckpt_source(c), "Hugging Face peft");
    safetensors_close(&s);
    ckpt_close(&c);
    scratch_clear();
}

static double scaling_of(const struct js_node *config, const char *linear)
{
    double x = NAN;
    const struct js_node *own = linear == NULL ? NULL : js_get(js_get(config, "scalings"), linear);
    js_number(own != NULL ? own : js_get(config, "scaling"), &x);
    return x;
}

static void scalings_are_those_of_peft(void)
{
    struct ckpt *c = converted(GOLDEN "attention/hf");
    struct js_doc *doc = NULL;
    size_t n;
    const char *text = ckpt_config_json(c, &n);
    CU_ASSERT_EQUAL_FATAL(js_parse(text, n, "config", &doc).code, STATUS_OK);
    const struct js_node *root = js_root(doc);
    CU_ASSERT_STRING_EQUAL(js_string(js_get(root, "adapter_type"), NULL), "lora");
    CU_ASSERT_EQUAL(scaling_of(root, NULL), 2);                                 /* 8 / 4 */
    CU_ASSERT_EQUAL(scaling_of(root, "model.layers.2.self_attn.o_proj"), 0.75); /* 3 / 4 */
    CU_ASSERT_EQUAL(scaling_of(root, "model.layers.1.self_attn.k_proj"), 4);    /* 8 / 2 */
    CU_ASSERT_EQUAL(js_count(js_get(root, "scalings")), 5);
    js_destroy(&doc);
    ckpt_close(&c);
    c = converted(GOLDEN "all-linears/hf");
    text = ckpt_config_json(c, &n);
    CU_ASSERT_EQUAL_FATAL(js_parse(text, n, "config", &doc).code, STATUS_OK);
    CU_ASSERT_EQUAL(scaling_of(js_root(doc), NULL), 5 / sqrt(8.0));
    js_destroy(&doc);
    ckpt_close(&c);
    scratch_clear();
}

/* Copies file `in` to `out` and replaces every `from` by `to`, which must have the same length if
 * the file has offsets. from "": nothing is replaced. */
static void put_replaced(const char *in, const char *out, const char *from, const char *to)
{
    size_t n, n_out = 0, n_from = strlen(from), n_to = strlen(to);
    char *text = get_file(in, &n), *changed = malloc(2 * n + 4096);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    for (size_t i = 0; i < n;) {
        const bool hit = n_from > 0 && n - i >= n_from && memcmp(text + i, from, n_from) == 0;
        if (hit)
            memcpy(changed + n_out, to, n_to);
        else
            changed[n_out] = text[i];
        n_out += hit ? n_to : 1;
        i += hit ? n_from : 1;
    }
    put_file(out, changed, n_out);
    free(text);
    free(changed);
}

/* Text replaced in a file of the golden "attention", and the sentence of the conversion's error;
 * NULL: it succeeds. */
struct peft_refusal {
    bool in_tensors;
    const char *from, *to, *sentence;
};

static void try_refusal(const struct peft_refusal *r)
{
    const char *none = "";
    mkdir(scratch("bad"), 0700);
    put_replaced(GOLDEN "attention/hf/adapter_config.json", scratch("bad/adapter_config.json"),
                 r->in_tensors ? none : r->from, r->in_tensors ? none : r->to);
    put_replaced(GOLDEN "attention/hf/adapter_model.safetensors",
                 scratch("bad/adapter_model.safetensors"), r->in_tensors ? r->from : none,
                 r->in_tensors ? r->to : none);
    const struct status st = convert(scratch("bad"), "bad.h5");
    if (r->sentence == NULL) {
        CU_ASSERT_EQUAL(st.code, STATUS_OK);
        if (st.code != STATUS_OK) fprintf(stderr, "%s\n", st.text);
        return;
    }
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, r->sentence));
    if (strstr(st.text, r->sentence) == NULL) fprintf(stderr, "\n  %s\n", st.text);
}

static void other_adapters_are_refused_by_name(void)
{
    static const struct peft_refusal refusals[] = {
        {false, "", "", NULL},
        {false, "\"LORA\"", "\"LOHA\"", "field \"peft_type\": expected LORA"},
        {false, "\"peft_type\"", "\"peft_tipe\"", "\"peft_type\": expected LORA, found nothing"},
        {false, "\"bias\": \"none\"", "\"bias\": \"all\"", "field \"bias\": expected none"},
        {false, "\"use_dora\": false", "\"use_dora\": true", "field \"use_dora\""},
        {false, "\"fan_in_fan_out\": false", "\"fan_in_fan_out\": true", "\"fan_in_fan_out\""},
        {false, "\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]",
         "\"modules_to_save\""},
        {false, "\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\"",
         "\"init_lora_weights\""},
        {false, "\"init_lora_weights\": true", "\"init_lora_weights\": \"gaussian\"", NULL},
        {false, "\"lora_dropout\": 0.0", "\"lora_dropout\": 0.1", NULL},
        {false, "\"use_dora\": false", "\"use_new\": {\"a\": 1}", "field \"use_new\""},
        {false, "\"use_dora\": false", "\"use_new\": {}", NULL},
        {false, "layers.1.self_attn.k_proj", "layers.[13].*k_proj", "field \"rank_pattern\""},
        {false, "\"layers.1.self_attn.k_proj\": 2", "\"1.self_attn.k_proj\": 2", NULL},
        {false, "\"layers.1.self_attn.k_proj\": 2", "\"_attn.k_proj\": 2", "[r, inputs], r = 4"},
        {false, "\"r\": 4", "\"r\": 0", "field \"r\""},
        {false, "\"r\": 4", "\"r\": 5", "[r, inputs], r = 5"},
        {false, "\"lora_alpha\": 8", "\"lora_alpha\": \"8\"", "field \"lora_alpha\""},
        {true, "layers.0.self_attn.q_proj.lora_B", "layers.9.self_attn.q_proj.lora_B",
         "'base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight' beside it"},
        {true, "layers.0.self_attn.q_proj.lora_A", "layers.0.self_attn.q_proj.lora_0",
         "q_proj.lora_0.weight': only adapters of A and B"},
        {true, "self_attn.q_proj", "x.experts.1.proj", "expected expert 0 of 1, found 1"},
        {true, "self_attn.q_proj", "x.experts.q_proj", "expected the number of an expert"},
        {false, "\"target_parameters\": null", "\"target_parameters\": [\"gate.weight\"]",
         "field \"target_parameters\": expected experts.gate_up_proj"},
        {true, "base_model.model.model.layers", "main_model.model.model.layers",
         "only adapters of A and B"},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) try_refusal(&refusals[i]);
    scratch_clear();
}

/* Text replaced in the config of a golden adapter of experts, and the sentence of the error. */
static void adapters_of_unequal_experts_are_refused(void)
{
    static const struct {
        const char *golden, *from, *to, *sentence;
    } cases[] = {{"each-expert", "\"alpha_pattern\": {}",
                  "\"alpha_pattern\": {\"experts.1.w1\": 8}",
                  "experts.1.w1.lora_A.weight': expected the rank and the scaling of expert 0"},
                 {"each-expert", "\"alpha_pattern\": {}", "\"alpha_pattern\": {\"w1\": 8}", NULL},
                 {"parameters", "\"r\": 2", "\"r\": 7", "[r, inputs], r = 7"},
                 {"parameters", "\"down_proj\": 10", "\".*\\\\.down_proj\": 10", NULL}};
    char path[480];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mkdir(scratch("bad"), 0700);
        snprintf(path, sizeof path, GOLDEN "%s/hf/adapter_config.json", cases[i].golden);
        put_replaced(path, scratch("bad/adapter_config.json"), cases[i].from, cases[i].to);
        snprintf(path, sizeof path, GOLDEN "%s/hf/adapter_model.safetensors", cases[i].golden);
        put_replaced(path, scratch("bad/adapter_model.safetensors"), "", "");
        const struct status st = convert(scratch("bad"), "bad.h5");
        CU_ASSERT_EQUAL(st.code, cases[i].sentence != NULL ? STATUS_INPUT : STATUS_OK);
        const bool said = cases[i].sentence == NULL || strstr(st.text, cases[i].sentence) != NULL;
        CU_ASSERT(said);
        if (!said) fprintf(stderr, "\n  %s\n", st.text);
    }
    scratch_clear();
}

static void a_tokenizer_is_left_out_and_a_model_refused(void)
{
    struct ckpt *c = NULL;
    try_refusal(&(struct peft_refusal){false, "", "", NULL});
    put_file(scratch("bad/tokenizer.json"), "{}", 2);
    put_file(scratch("bad/config.json"), "{}", 2);
    CU_ASSERT_EQUAL(convert(scratch("bad"), "t.h5").code, STATUS_OK);
    CU_ASSERT_EQUAL_FATAL(ckpt_open(scratch("t.h5"), &c).code, STATUS_OK);
    CU_ASSERT_PTR_NULL(ckpt_tokenizer_json(c, NULL));
    ckpt_close(&c);
    put_file(scratch("bad/model.safetensors"), "", 0);
    const struct status st = convert(scratch("bad"), "t.h5");
    CU_ASSERT(st.code == STATUS_INPUT && strstr(st.text, "a model and an adapter") != NULL);
    scratch_clear();
}

static void every_failed_allocation_is_a_status(void)
{
    mem_fail_after(0);
    CU_ASSERT_EQUAL(convert(GOLDEN "experts/hf", "a.h5").code, STATUS_OK);
    const uint64_t n = mem_fail_after(0);
    CU_ASSERT(n > 20);
    unsigned n_wrong = 0;
    for (uint64_t i = 1; i <= n; i++) {
        mem_fail_after(i);
        const struct status st = convert(GOLDEN "experts/hf", "a.h5");
        mem_fail_after(0);
        n_wrong += st.code != STATUS_MEMORY;
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    scratch_clear();
}

void suite_peft(CU_pSuite suite);
void suite_peft(CU_pSuite suite)
{
    CU_add_test(suite, "tensors keep their bytes", tensors_keep_their_bytes);
    CU_add_test(suite, "scalings are those of peft", scalings_are_those_of_peft);
    CU_add_test(suite, "other adapters are refused by name", other_adapters_are_refused_by_name);
    CU_add_test(suite, "adapters of unequal experts are refused",
                adapters_of_unequal_experts_are_refused);
    CU_add_test(suite, "a tokenizer is left out and a model refused",
                a_tokenizer_is_left_out_and_a_model_refused);
    CU_add_test(suite, "every failed allocation is a status", every_failed_allocation_is_a_status);
}
