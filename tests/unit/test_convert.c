/* Conversion: a Hugging Face directory and a GGUF file of the same model give the same weights;
 * experts are merged, leaves set and types changed; a failed conversion leaves no file. */
#include "base/json.h"
#include "base/mem.h"
#include "calibrate/quantize_plan.h"
#include "checkpoint/convert/convert.h"
#include "checkpoint/convert/safetensors.h"
#include "checkpoint/file/ckpt.h"
#include "checkpoint/file/ckpt_room.h"
#include "unit/util_ckpt.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GOLDEN SOURCE_DIR "/tests/golden/gguf/"

static const char *const archs[] = {"llama", "mixtral", "qwen3moe", "llama3",
                                    "qwen2", "qwen3",   "gpt-oss"};
/* the most by which the bytes counted and the file's may differ, for each dataset */
enum { CKPT_ROOM_SLACK = 6144 };
enum { N_ARCHS = sizeof archs / sizeof archs[0] };

static struct status convert(const char *source, const char *path, const char *dtype)
{
    struct convert_options options = {.source = source, .path = path, .keep_dtype = dtype == NULL};
    if (dtype != NULL) CU_ASSERT_FATAL(dtype_parse(dtype, &options.dtype));
    return convert_run(&options, NULL, NULL);
}

static struct ckpt *converted(const char *source, const char *name, const char *dtype)
{
    struct ckpt *c = NULL;
    struct status st = convert(source, scratch(name), dtype);
    if (!status_failed(&st)) st = ckpt_open(scratch(name), &c);
    if (status_failed(&st)) fprintf(stderr, "%s\n", st.text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(c);
    return c;
}

static void *tensor_bytes(struct ckpt *c, const struct ckpt_tensor *t)
{
    char *bytes = malloc(t->n_bytes);
    CU_ASSERT_EQUAL(ckpt_read_tensor(c, t, bytes).code, STATUS_OK);
    return bytes;
}

static void tensors_compare(struct ckpt *a, struct ckpt *b)
{
    CU_ASSERT_EQUAL_FATAL(ckpt_tensor_count(a), ckpt_tensor_count(b));
    for (size_t i = 0; i < ckpt_tensor_count(a); i++) {
        const struct ckpt_tensor *x = ckpt_tensor_at(a, i), *y = ckpt_tensor_at(b, i);
        CU_ASSERT_STRING_EQUAL(x->name, y->name);
        CU_ASSERT_FATAL(x->dtype == y->dtype && x->n_bytes == y->n_bytes);
        CU_ASSERT(memcmp(x->dims, y->dims, sizeof x->dims) == 0 && x->n_dims == y->n_dims);
        CU_ASSERT(x->leaf_elems == y->leaf_elems && x->grid_bits == y->grid_bits);
        char *p = tensor_bytes(a, x), *q = tensor_bytes(b, y);
        CU_ASSERT_EQUAL(memcmp(p, q, x->n_bytes), 0);
        free(p);
        free(q);
    }
}

/* Compares, as JSON text, those fields of two configs that define the model. */
static void configs_compare(const struct ckpt *a, const struct ckpt *b)
{
    static const char *const fields[] = {"architectures",
                                         "model_type",
                                         "hidden_size",
                                         "intermediate_size",
                                         "num_hidden_layers",
                                         "num_attention_heads",
                                         "num_key_value_heads",
                                         "head_dim",
                                         "vocab_size",
                                         "num_experts",
                                         "num_local_experts",
                                         "num_experts_per_tok",
                                         "moe_intermediate_size",
                                         "norm_topk_prob",
                                         "sliding_window",
                                         "max_position_embeddings",
                                         "bos_token_id",
                                         "eos_token_id",
                                         "tie_word_embeddings",
                                         "hidden_act",
                                         "rms_norm_eps"};
    struct js_doc *docs[2] = {NULL, NULL};
    const struct ckpt *files[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        size_t n;
        const char *text = ckpt_config_json(files[i], &n);
        CU_ASSERT_EQUAL_FATAL(js_parse(text, n, "config", &docs[i]).code, STATUS_OK);
    }
    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++) {
        char *texts[2] = {NULL, NULL};
        for (int i = 0; i < 2; i++) {
            const struct js_node *node = js_get(js_root(docs[i]), fields[f]);
            size_t n;
            if (node != NULL) js_dump(node, &texts[i], &n);
        }
        CU_ASSERT_EQUAL(texts[0] == NULL, texts[1] == NULL);
        if (texts[0] != NULL && texts[1] != NULL) CU_ASSERT_STRING_EQUAL(texts[0], texts[1]);
        mem_free(&texts[0]);
        mem_free(&texts[1]);
    }
    js_destroy(&docs[0]);
    js_destroy(&docs[1]);
}

static void a_directory_and_a_gguf_give_the_same_model(void)
{
    for (int i = 0; i < N_ARCHS; i++) {
        char hf[256], gguf[256];
        snprintf(hf, sizeof hf, GOLDEN "%s/hf", archs[i]);
        snprintf(gguf, sizeof gguf, GOLDEN "%s/model.gguf", archs[i]);
        struct ckpt *a = converted(hf, "hf.h5", NULL), *b = converted(gguf, "gguf.h5", NULL);
        size_t n_a, n_b;
        tensors_compare(a, b);
        configs_compare(a, b);
        CU_ASSERT_STRING_EQUAL(ckpt_source(a), "Hugging Face safetensors");
        CU_ASSERT_STRING_EQUAL(ckpt_source(b), "GGUF");
        CU_ASSERT_STRING_EQUAL(ckpt_chat_template(a, NULL), "{{ messages }}");
        CU_ASSERT_STRING_EQUAL(ckpt_chat_template(b, NULL), "{{ messages }}");
        CU_ASSERT_PTR_NOT_NULL(ckpt_generation_config_json(b, NULL));
        CU_ASSERT_PTR_NOT_NULL(ckpt_tokenizer_json(b, NULL));
        CU_ASSERT_PTR_NULL(ckpt_tokenizer_json(a, NULL));
        const float *p = ckpt_rope_inv_freq(a, &n_a), *q = ckpt_rope_inv_freq(b, &n_b);
        CU_ASSERT_FATAL(n_a == 4 && n_b == 4);
        for (size_t k = 0; k < 4; k++) CU_ASSERT(fabsf(p[k] - q[k]) <= 2e-7f * p[k]);
        CU_ASSERT_EQUAL(ckpt_rope_factors(a).attention, ckpt_rope_factors(b).attention);
        ckpt_close(&a);
        ckpt_close(&b);
    }
    scratch_clear();
}

/* Part e of the merged tensor is the source's tensor of expert e. */
static void experts_are_merged_in_their_order(void)
{
    struct ckpt *c = converted(GOLDEN "mixtral/hf", "m.h5", NULL);
    struct safetensors *s = NULL;
    CU_ASSERT_EQUAL_FATAL(safetensors_open(GOLDEN "mixtral/hf", &s).code, STATUS_OK);
    const struct ckpt_tensor *t = ckpt_find(c, "model.layers.0.block_sparse_moe.experts.w2.weight");
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    CU_ASSERT(t->n_dims == 3 && t->dims[0] == 4 && t->dims[1] == 32 && t->dims[2] == 64);
    CU_ASSERT(t->dtype == DTYPE_F16 && t->leaf_elems == 32 && t->grid_bits == 32);
    char *merged = tensor_bytes(c, t);
    for (int e = 0; e < 4; e++) {
        char name[128], one[32 * 64 * 2];
        snprintf(name, sizeof name, "model.layers.0.block_sparse_moe.experts.%d.w2.weight", e);
        const struct safetensors_tensor *source = safetensors_find(s, name);
        CU_ASSERT_FATAL(source != NULL && source->n_bytes == sizeof one);
        CU_ASSERT_EQUAL(safetensors_read(s, source, 0, sizeof one, one).code, STATUS_OK);
        CU_ASSERT_EQUAL(memcmp(merged + e * sizeof one, one, sizeof one), 0);
    }
    free(merged);
    CU_ASSERT_PTR_NULL(ckpt_find(c, "model.layers.0.block_sparse_moe.experts.0.w2.weight"));
    t = ckpt_find(c, "model.layers.0.self_attn.o_proj.weight");
    CU_ASSERT_FATAL(t != NULL);
    CU_ASSERT_EQUAL(t->leaf_elems, 8); /* each head of 8 is a leaf */
    t = ckpt_find(c, "model.layers.0.self_attn.q_proj.weight");
    CU_ASSERT(t != NULL && t->leaf_elems == 0);
    safetensors_close(&s);
    ckpt_close(&c);
    scratch_clear();
}

static void types_change_when_asked_for(void)
{
    struct ckpt *kept = converted(GOLDEN "llama/hf", "k.h5", NULL);
    struct ckpt *wide = converted(GOLDEN "llama/hf", "w.h5", "f32");
    struct ckpt *half = converted(GOLDEN "llama/hf", "b.h5", "bf16");
    const char *name = "model.layers.0.mlp.up_proj.weight";
    const struct ckpt_tensor *k = ckpt_find(kept, name), *w = ckpt_find(wide, name),
                             *h = ckpt_find(half, name);
    CU_ASSERT_FATAL(k != NULL && w != NULL && h != NULL);
    CU_ASSERT(k->dtype == DTYPE_F16 && w->dtype == DTYPE_F32 && h->dtype == DTYPE_BF16);
    CU_ASSERT_EQUAL(ckpt_find(kept, "model.norm.weight")->dtype, DTYPE_F32);
    CU_ASSERT_EQUAL(ckpt_find(half, "model.norm.weight")->dtype, DTYPE_BF16);
    uint16_t *p = tensor_bytes(kept, k), *q = tensor_bytes(half, h);
    float *x = tensor_bytes(wide, w);
    unsigned n_wrong = 0;
    for (size_t i = 0; i < k->n_rows * k->n_cols; i++) {
        n_wrong += f32_from_f16(p[i]) != x[i] || bf16_from_f32(x[i]) != q[i];
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    free(p);
    free(q);
    free(x);
    ckpt_close(&kept);
    ckpt_close(&wide);
    ckpt_close(&half);
    scratch_clear();
}

static void the_same_source_makes_the_same_bytes(void)
{
    size_t n1, n2;
    convert(GOLDEN "qwen3moe/model.gguf", scratch("a.h5"), NULL);
    convert(GOLDEN "qwen3moe/model.gguf", scratch("b.h5"), NULL);
    char *a = get_file(scratch("a.h5"), &n1), *b = get_file(scratch("b.h5"), &n2);
    CU_ASSERT(n1 > 0 && n1 == n2 && memcmp(a, b, n1) == 0);
    free(a);
    free(b);
    scratch_clear();
}

/* ---- what cannot be converted ---- */

/* Makes a directory with this config.json (NULL: without one) and a safetensors file with these
 * tensors, whose data are 32 bytes of zeros. */
static void directory_put(const char *config, const char *tensors)
{
    char bytes[4096] = {0};
    const size_t n = strlen(tensors);
    mkdir(scratch("hf"), 0700);
    if (config != NULL) {
        put_file(scratch("hf/config.json"), config, strlen(config));
    } else {
        unlink(scratch("hf/config.json"));
    }
    bytes[0] = (char)(n & 255);
    bytes[1] = (char)(n >> 8);
    memcpy(bytes + 8, tensors, n);
    put_file(scratch("hf/model.safetensors"), bytes, 8 + n + 32);
}

#define T(name, shape, offsets)                                                                    \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define TWO(first, second) "{" T(first, "[2,2]", "[0,16]") "," T(second, "[2,2]", "[16,32]") "}"

/* A model of MiniMax-M3 in fp8, and gate and up of a dense FFN as one tensor. */
#define MINIMAX                                                                                    \
    "{\"architectures\":[\"MiniMaxM3VLForCausalLM\"],\"dense_intermediate_size\":16,"              \
    "\"head_dim\":16,\"hidden_size\":16,\"intermediate_size\":16,\"vocab_size\":16,"               \
    "\"max_position_embeddings\":64,\"num_attention_heads\":1,\"num_key_value_heads\":1,"          \
    "\"num_hidden_layers\":1,\"num_local_experts\":2,\"num_experts_per_tok\":1,"                   \
    "\"rms_norm_eps\":1e-6,\"rope_theta\":1e4,\"partial_rotary_factor\":1,"                        \
    "\"routed_scaling_factor\":2,\"shared_intermediate_size\":16,"                                 \
    "\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}}"
#define FUSED "model.layers.0.mlp.gate_up_proj.weight"
#define FUSED_FP8                                                                                  \
    "{\"" FUSED "\":{\"dtype\":\"F8_E4M3\",\"shape\":[2,14],\"data_offsets\":[0,28]}," T(          \
        FUSED "_scale_inv", "[1,1]", "[28,32]") "}"

/* Tries each of three texts beside the weights: cut, empty, and as a link to nothing. */
static void texts_that_are_not_whole_are_refused(void)
{
    static const char *const names[] = {"hf/tokenizer.json", "hf/tokenizer_config.json",
                                        "hf/generation_config.json"};
    static const char *const texts[] = {"{\"model\":{", "", NULL};
    for (size_t i = 0; i < 3 * 3; i++) {
        const char *name = names[i / 3], *text = texts[i % 3];
        if (text != NULL)
            put_file(scratch(name), text, strlen(text));
        else
            CU_ASSERT_EQUAL(symlink("nowhere", scratch(name)), 0);
        const struct status st = convert(scratch("hf"), scratch("a.h5"), NULL);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, name + 3));
        CU_ASSERT_NOT_EQUAL(access(scratch("a.h5"), F_OK), 0);
        unlink(scratch(name));
    }
}

/* transformers writes 1e30 as an integer for the limits of a tokenizer that has none. */
static void limits_beyond_64_bits_are_taken(void)
{
    static const char *const names[] = {"hf/tokenizer_config.json", "hf/chat_template.json",
                                        "hf/config_sentence_transformers.json"};
    static const char text[] =
        "{\"model_max_length\": 1000000000000000019884624838656, \"max_seq_length\": "
        "1000000000000000019884624838656, \"chat_template\": \"a\"}";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        put_file(scratch(names[i]), text, strlen(text));
        const struct status st = convert(scratch("hf"), scratch("a.h5"), NULL);
        if (status_failed(&st)) fprintf(stderr, "%s\n", st.text);
        CU_ASSERT_EQUAL(st.code, STATUS_OK);
        unlink(scratch(names[i]));
        unlink(scratch("a.h5"));
    }
}

static void what_cannot_be_converted_is_a_sentence_and_leaves_nothing(void)
{
    static const char *const bad[][3] = {
        {"{}", TWO("m.experts.0.w", "m.experts.2.w"), "expected expert 1 of 2, found 2"},
        {"{}", TWO("m.experts.1.w", "m.experts.2.w"), "expected expert 0 of 2, found 1"},
        {"{}",
         "{" T("m.experts.0.w", "[2,2]", "[0,16]") "," T("m.experts.1.w", "[4]", "[16,32]") "}",
         "expert 1 differs"},
        {"{}", TWO("m.experts.0x.w", "b"), "expected an expert's number"},
        {"{}", TWO("m.experts.99999999999999999999.w", "b"), "expected an expert's number"},
        {"{}", TWO("m.experts.gate_up_proj", "b"), "fused experts"},
        {"{}", TWO("m.self_attn.o_proj.weight", "b"), "expected head_dim"},
        {"{}", TWO("a", "a.b"), "tensor a.b"},
        {"{}", TWO("a/b", "c"), "cannot be stored"},
        {"{}", "{" T("a", "[2,0]", "[0,0]") "," T("b", "[8]", "[0,32]") "}", "has no elements"},
        {"{}", "{" T("a", "[]", "[0,4]") "," T("b", "[7]", "[4,32]") "}", "0 dimensions"},
        {"[]", TWO("a", "b"), "expected an object"},
        {"{", TWO("a", "b"), "config.json"},
        {NULL, TWO("a", "b"), "expected a config.json"},
        {MINIMAX, FUSED_FP8, "quantized tensors of this kind are not implemented"},
        {"{}", "{}", "a.h5"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        directory_put(bad[i][0], bad[i][1]);
        const struct status st = convert(scratch("hf"), scratch("a.h5"), NULL);
        CU_ASSERT(status_failed(&st));
        if (i + 1 < sizeof bad / sizeof bad[0] && strstr(st.text, bad[i][2]) == NULL) {
            fprintf(stderr, "expected '%s', found '%s'\n", bad[i][2], st.text);
            CU_FAIL("another sentence");
        }
        CU_ASSERT_NOT_EQUAL(access(scratch("a.h5"), F_OK), 0);
    }
    directory_put("{}", TWO("a", "b"));
    CU_ASSERT_EQUAL(convert(scratch("hf"), scratch("a.h5"), NULL).code, STATUS_OK);
    unlink(scratch("a.h5"));
    texts_that_are_not_whole_are_refused();
    limits_beyond_64_bits_are_taken();
    unlink(scratch("hf/model.safetensors"));
    CU_ASSERT_EQUAL_FATAL(mkfifo(scratch("hf/model.safetensors"), 0600), 0);
    CU_ASSERT_EQUAL(convert(scratch("hf"), scratch("a.h5"), NULL).code, STATUS_INPUT);
    CU_ASSERT_EQUAL(convert(scratch("none"), scratch("b.h5"), NULL).code, STATUS_INPUT);
    scratch_clear();
}

/* Replaces text by text of the same length in a copy of a golden GGUF file, and converts it. */
static struct status gguf_changed(const char *from, const char *to)
{
    size_t n;
    char *bytes = get_file(GOLDEN "llama/model.gguf", &n);
    char *found = memmem(bytes, n, from, strlen(from));
    CU_ASSERT_FATAL(found != NULL && strlen(from) == strlen(to));
    memcpy(found, to, strlen(to));
    put_file(scratch("c.gguf"), bytes, n);
    free(bytes);
    return convert(scratch("c.gguf"), scratch("c.h5"), NULL);
}

static void an_unknown_part_of_a_gguf_is_refused_by_name(void)
{
    static const char *const changes[][3] = {
        {"llama.rope.freq_base", "llama.rope.freq_bass", "key llama.rope.freq_bass"},
        {"llama.attention.head_count_kv", "llama.attention.head_count_kw", "head_count_kw"},
        {"blk.0.attn_q.weight", "blk.0.attn_x.weight", "'blk.0.attn_x.weight'"},
        {"blk.0.ffn_up.weight", "blk.1.ffn_up.weight", "'blk.1.ffn_up.weight'"},
        {"token_embd.weight", "token_embx.weight", "token_embd.weight"},
        {"smollm", "smollx", "smollx"},
    };
    struct status st = gguf_changed("smollm", "smollm");
    CU_ASSERT_EQUAL(st.code, STATUS_OK);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        st = gguf_changed(changes[i][0], changes[i][1]);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
        if (strstr(st.text, changes[i][2]) == NULL) {
            fprintf(stderr, "expected '%s', found '%s'\n", changes[i][2], st.text);
            CU_FAIL("another sentence");
        }
    }
    CU_ASSERT_EQUAL(convert(GOLDEN "types.gguf", scratch("t.h5"), NULL).code, STATUS_INPUT);
    CU_ASSERT_NOT_EQUAL(access(scratch("t.h5"), F_OK), 0);
    scratch_clear();
}

/* ---- inspect ---- */

static struct status inspect(const char *path, char *out, size_t n_max)
{
    const struct inspect_options options = {.tensors = true, .verify = true};
    FILE *file = fmemopen(out, n_max, "w");
    const struct status st = inspect_run(path, &options, file);
    fclose(file);
    return st;
}

static void inspect_says_what_is_there_and_finds_damage(void)
{
    char text[16384];
    convert(GOLDEN "llama/hf", scratch("i.h5"), NULL);
    CU_ASSERT_EQUAL(inspect(scratch("i.h5"), text, sizeof text).code, STATUS_OK);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "model_type: \"llama\""));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "model.layers.0.self_attn.o_proj.weight f16 [32, 32]"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "leaf 8, grid 2^-32"));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "every checksum is right"));
    size_t n;
    char *bytes = get_file(scratch("i.h5"), &n);
    struct ckpt *c = NULL;
    CU_ASSERT_EQUAL_FATAL(ckpt_open(scratch("i.h5"), &c).code, STATUS_OK);
    char *norm = tensor_bytes(c, ckpt_find(c, "model.norm.weight"));
    ckpt_close(&c);
    char *there = memmem(bytes, n, norm, 32 * sizeof(float));
    CU_ASSERT_PTR_NOT_NULL_FATAL(there);
    *there ^= 1;
    put_file(scratch("i.h5"), bytes, n);
    const struct status st = inspect(scratch("i.h5"), text, sizeof text);
    CU_ASSERT(st.code == STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "tensor model.norm.weight: block 0 of 1 is damaged"));
    free(norm);
    free(bytes);
    scratch_clear();
}

static struct status choose_formats(void *policy, struct ckpt *list, struct ckpt_tensor_spec *specs)
{
    return quantize_specs(list, policy, specs);
}

static struct status convert_int4(void)
{
    struct quantize_policy policy;
    TRY(quantize_policy_parse("int4", NULL, &policy));
    const struct convert_options o = {.source = SOURCE_DIR "/tests/golden/models/gpt-oss-mxfp4/hf",
                                      .path = scratch("a.h5"),
                                      .keep_dtype = true,
                                      .keep_codes = true,
                                      .choose = choose_formats,
                                      .choose_ctx = &policy};
    return convert_run(&o, NULL, NULL);
}

static void every_failed_allocation_while_rounding_is_a_status(void)
{
    mem_fail_after(0);
    CU_ASSERT_EQUAL(convert_int4().code, STATUS_OK);
    const uint64_t n = mem_fail_after(0);
    unlink(scratch("a.h5"));
    CU_ASSERT(n > 50);
    unsigned n_wrong = 0;
    for (uint64_t i = 1; i <= n; i += 1 + i / 16) {
        mem_fail_after(i);
        const struct status st = convert_int4();
        mem_fail_after(0);
        n_wrong += st.code != STATUS_MEMORY || access(scratch("a.h5"), F_OK) == 0;
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    scratch_clear();
}

static void every_failed_allocation_is_a_status(void)
{
    mem_fail_after(0);
    CU_ASSERT_EQUAL(convert(GOLDEN "qwen3moe/model.gguf", scratch("a.h5"), NULL).code, STATUS_OK);
    const uint64_t n = mem_fail_after(0);
    unlink(scratch("a.h5"));
    CU_ASSERT(n > 50);
    unsigned n_wrong = 0;
    for (uint64_t i = 1; i <= n; i++) {
        mem_fail_after(i);
        const struct status st = convert(GOLDEN "qwen3moe/model.gguf", scratch("a.h5"), NULL);
        mem_fail_after(0);
        n_wrong += st.code != STATUS_MEMORY;
        if (i + 1 < n) n_wrong += access(scratch("a.h5"), F_OK) == 0;
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    scratch_clear();
}

/* ---- counts ---- */

static void keep_progress(void *last, const char *tensor, uint64_t done_bytes, uint64_t total_bytes)
{
    CU_ASSERT(strlen(tensor) > 0 && done_bytes <= total_bytes);
    ((uint64_t *)last)[0] = done_bytes;
    ((uint64_t *)last)[1] = total_bytes;
}

/* The bytes that convert reports are those of the file's weights: floats, and quantized values with
 * scales and zero points, whose rows do not fill whole cache lines. */
static void bytes_are_those_of_the_weights(void)
{
    static const char *const sources[] = {"models/mixtral/hf", "imports/ct-int8-asym/hf",
                                          "models/gpt-oss-mxfp4/hf"};
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        char source[256];
        uint64_t last[2] = {0}, n_bytes = 0;
        struct ckpt *c = NULL;
        struct convert_result result;
        snprintf(source, sizeof source, SOURCE_DIR "/tests/golden/%s", sources[i]);
        const struct convert_options o = {.source = source,
                                          .path = scratch("bytes.h5"),
                                          .keep_dtype = true,
                                          .keep_codes = true,
                                          .progress = keep_progress,
                                          .progress_ctx = last};
        CU_ASSERT_EQUAL_FATAL(convert_run(&o, NULL, &result).code, STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(ckpt_open(o.path, &c).code, STATUS_OK);
        for (size_t t = 0; t < ckpt_tensor_count(c); t++) n_bytes += ckpt_tensor_at(c, t)->n_bytes;
        CU_ASSERT_EQUAL(result.n_bytes, n_bytes);
        CU_ASSERT_EQUAL(last[0], n_bytes);
        CU_ASSERT_EQUAL(last[1], n_bytes);
        ckpt_close(&c);
    }
    scratch_clear();
}

/* ---- disk ---- */

static struct status ten_kilobytes(const char *path, uint64_t *n_free)
{
    (void)path;
    *n_free = 10000;
    return status_ok();
}

static uint64_t room_of_file(const struct ckpt *c, uint64_t *n_datasets)
{
    uint64_t n = 0;
    for (int i = 0; i < CKPT_TEXT_COUNT; i++) {
        size_t n_text = 0;
        (void)ckpt_text(c, (enum ckpt_text)i, &n_text);
        n += n_text;
    }
    *n_datasets = 0;
    for (size_t i = 0; i < ckpt_tensor_count(c); i++) {
        const struct ckpt_tensor *t = ckpt_tensor_at(c, i);
        struct ckpt_tensor_spec spec = {.dtype = t->dtype, .n_dims = t->n_dims, .quant = t->quant};
        memcpy(spec.dims, t->dims, sizeof spec.dims);
        CU_ASSERT_EQUAL(ckpt_spec_bytes(&spec), t->n_bytes);
        n += ckpt_room_needed(&spec, 1, 0);
        *n_datasets += t->quant.kind == QUANT_NONE ? 1u : 2u + t->quant.has_zeros;
    }
    return n;
}

/* The bytes that convert counts before it writes are those of the file, except for names and
 * attributes, for floats and for three kinds of quantized values. If the file system has less room,
 * nothing is written. */
static void room_is_counted_before(void)
{
    static const char *const sources[] = {"models/deepseek-v3-fp8/hf", "models/mixtral/hf",
                                          "imports/ct-int8-asym/hf", "models/gpt-oss-mxfp4/hf"};
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        char source[256];
        struct ckpt *c = NULL;
        uint64_t n_datasets;
        snprintf(source, sizeof source, SOURCE_DIR "/tests/golden/%s", sources[i]);
        struct convert_options o = {
            .source = source, .path = scratch("room.h5"), .keep_dtype = true, .keep_codes = true};
        o.free_bytes = ten_kilobytes;
        const struct status st = convert_run(&o, NULL, NULL);
        CU_ASSERT_EQUAL(st.code, STATUS_IO);
        CU_ASSERT_PTR_NOT_NULL(strstr(st.text, "has 0.01 MB free"));
        CU_ASSERT_NOT_EQUAL(access(o.path, F_OK), 0);
        o.free_bytes = NULL;
        CU_ASSERT_EQUAL_FATAL(convert_run(&o, NULL, NULL).code, STATUS_OK);
        CU_ASSERT_EQUAL_FATAL(ckpt_open(o.path, &c).code, STATUS_OK);
        const uint64_t n_needed = room_of_file(c, &n_datasets), n_file = ckpt_file_bytes(c);
        CU_ASSERT_TRUE(n_needed < n_file + CKPT_ROOM_SLACK * n_datasets);
        CU_ASSERT_TRUE(n_file < n_needed + CKPT_ROOM_SLACK * n_datasets);
        ckpt_close(&c);
        scratch_clear();
    }
    uint64_t n_free;
    CU_ASSERT_EQUAL(ckpt_room_free("/nowhere/at/all.h5", &n_free).code, STATUS_OK);
    CU_ASSERT_TRUE(n_free == UINT64_MAX);
    CU_ASSERT_EQUAL(ckpt_room_free(SOURCE_DIR "/new.h5", &n_free).code, STATUS_OK);
    CU_ASSERT_TRUE(n_free < UINT64_MAX);
    CU_ASSERT_EQUAL(ckpt_room_check("a.h5", 5, 5).code, STATUS_OK);
    CU_ASSERT_EQUAL(ckpt_room_check("a.h5", 6, 5).code, STATUS_IO);
}

void suite_convert(CU_pSuite suite);
void suite_convert(CU_pSuite suite)
{
    CU_add_test(suite, "bytes are those of the weights", bytes_are_those_of_the_weights);
    CU_add_test(suite, "room is counted before", room_is_counted_before);
    CU_add_test(suite, "every failed allocation while rounding is a status",
                every_failed_allocation_while_rounding_is_a_status);
    CU_add_test(suite, "a directory and a GGUF give the same model",
                a_directory_and_a_gguf_give_the_same_model);
    CU_add_test(suite, "experts are merged in their order", experts_are_merged_in_their_order);
    CU_add_test(suite, "types change when asked for", types_change_when_asked_for);
    CU_add_test(suite, "the same source makes the same bytes",
                the_same_source_makes_the_same_bytes);
    CU_add_test(suite, "what cannot be converted is a sentence and leaves nothing",
                what_cannot_be_converted_is_a_sentence_and_leaves_nothing);
    CU_add_test(suite, "an unknown part of a GGUF is refused by name",
                an_unknown_part_of_a_gguf_is_refused_by_name);
    CU_add_test(suite, "inspect says what is there and finds damage",
                inspect_says_what_is_there_and_finds_damage);
    CU_add_test(suite, "every failed allocation is a status", every_failed_allocation_is_a_status);
}
