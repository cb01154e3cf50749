/* The tokenizer against goldens that the Python package `tokenizers` made of the same lines: from
 * tokenizer.json, from tiktoken.model and from the arrays of GGUF files. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_synth.h"
#include "unit/util_tokenizer.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN TEST_DATA_DIR "/golden/tokenizer/"

enum { FILE_MAX = 1 << 26, LINES_MIN = 2000 };

static const char *const NAMES[] = {
    "gpt2",   "smollm",  "llama3", "qwen2",  "odd",     "deepseek3",     "o200k",      "kimi",
    "llama2", "mistral", "gemma",  "folded", "unigram", "unigram_bytes", "spm",        "tekken",
    "glm4",   "olmo",    "legacy", "first",  "minimax", "bert",          "bert_cased", "xlmr"};

enum { N_NAMES = sizeof NAMES / sizeof NAMES[0] };

static char *read_json(const char *name, size_t *n)
{
    char path[512], *json = NULL;
    snprintf(path, sizeof path, GOLDEN "%s.json", name);
    const struct status st = file_read(path, FILE_MAX, &json, n);
    if (status_failed(&st)) CU_FAIL_FATAL(st.text);
    return json;
}

static struct tokenizer *open_golden(const char *name)
{
    char path[512];
    struct tokenizer *t = NULL;
    snprintf(path, sizeof path, GOLDEN "%s%s", name, strcmp(name, "tiktoken") == 0 ? "" : ".json");
    const struct status st = util_tokenizer_open(path, &t);
    if (status_failed(&st)) printf("%s\n", st.text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    return t;
}

static void check_lines(const char *name)
{
    char path[512];
    size_t n_lines, n_wrong;
    snprintf(path, sizeof path, GOLDEN "%s.golden", name);
    struct tokenizer *t = open_golden(name);
    const struct status st =
        util_check_golden(t, GOLDEN "lines.jsonl", path, 5, &n_lines, &n_wrong);
    if (status_failed(&st)) printf("%s\n", st.text);
    CU_ASSERT(!status_failed(&st));
    CU_ASSERT(n_lines >= LINES_MIN);
    CU_ASSERT_EQUAL(n_wrong, 0);
    tokenizer_destroy(&t);
}

#define LINES(name)                                                                                \
    static void name##_lines(void)                                                                 \
    {                                                                                              \
        check_lines(#name);                                                                        \
    }
LINES(gpt2)
LINES(smollm)
LINES(llama3)
LINES(qwen2)
LINES(odd)
LINES(deepseek3)
LINES(o200k)
LINES(kimi)
LINES(llama2)
LINES(mistral)
LINES(gemma)
LINES(folded)
LINES(unigram)
LINES(bert)
LINES(bert_cased)
LINES(xlmr)
LINES(unigram_bytes)
LINES(spm)
LINES(tiktoken)
LINES(tekken)
LINES(glm4)
LINES(olmo)
LINES(legacy)
LINES(first)
LINES(minimax)

/* The arrays of a vocabulary in a GGUF file. */
struct arrays {
    struct gguf_vocab v;
    struct gguf_text *tokens, *merges; /* owned */
    int32_t *types;                    /* owned */
    float *scores;                     /* owned */
};

static void arrays_init(struct arrays *a, size_t n_tokens, size_t n_merges)
{
    *a = (struct arrays){
        .v = {.bos_id = -1, .eos_id = -1, .add_bos = -1, .add_eos = -1, .add_blank = -1}};
    struct status st = mem_alloc(&a->tokens, n_tokens, sizeof a->tokens[0], "test");
    if (!status_failed(&st)) st = mem_alloc(&a->merges, n_merges, sizeof a->merges[0], "test");
    if (!status_failed(&st)) st = mem_alloc(&a->types, n_tokens, sizeof a->types[0], "test");
    if (!status_failed(&st)) st = mem_alloc(&a->scores, n_tokens, sizeof a->scores[0], "test");
    CU_ASSERT_FATAL(!status_failed(&st));
    a->v.tokens = a->tokens;
    a->v.merges = a->merges;
    a->v.token_types = a->types;
    a->v.n_tokens = n_tokens;
    a->v.n_merges = n_merges;
}

/* Makes a tokenizer from the arrays and compares it with a golden. */
static void check_arrays(struct arrays *a, const char *name)
{
    char path[512];
    struct strbuf json;
    struct tokenizer *t = NULL;
    size_t n_lines = 0, n_wrong = 0;
    strbuf_init(&json);
    snprintf(path, sizeof path, GOLDEN "%s.golden", name);
    struct status st = tokenizer_json_from_gguf(&a->v, &json);
    if (!status_failed(&st)) st = tokenizer_create(json.data, json.n, name, &t);
    if (!status_failed(&st)) {
        st = util_check_golden(t, GOLDEN "lines.jsonl", path, 5, &n_lines, &n_wrong);
    }
    if (status_failed(&st)) printf("%s\n", st.text);
    CU_ASSERT(!status_failed(&st) && n_lines >= LINES_MIN && n_wrong == 0);
    strbuf_fini(&json);
    tokenizer_destroy(&t);
    mem_free(&a->tokens);
    mem_free(&a->merges);
    mem_free(&a->types);
    mem_free(&a->scores);
}

static void spm_of_gguf(void)
{
    size_t n;
    char *json = read_json("spm_gguf", &n);
    struct js_doc *doc = NULL;
    const struct status st = js_parse(json, n, "spm_gguf.json", &doc);
    CU_ASSERT_FATAL(!status_failed(&st));
    const struct js_node *tokens = js_get(js_root(doc), "tokens");
    struct arrays a;
    arrays_init(&a, js_count(tokens), 0);
    for (size_t i = 0; i < a.v.n_tokens; i++) {
        int64_t type = 0;
        double score = 0;
        a.tokens[i].bytes = js_string(js_at(tokens, i), &a.tokens[i].n);
        js_int(js_at(js_get(js_root(doc), "types"), i), &type);
        js_number(js_at(js_get(js_root(doc), "scores"), i), &score);
        a.types[i] = (int32_t)type;
        a.scores[i] = (float)score;
    }
    a.v.model = "llama";
    a.v.scores = a.scores;
    a.v.bos_id = 1;
    check_arrays(&a, "spm");
    js_destroy(&doc);
    mem_free(&json);
}

/* Puts the tokens of a golden into arrays; the strings are borrowed from the document. */
static void fill_tokens(struct arrays *a, const struct js_node *root)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value, *added = js_get(root, "added_tokens");
    int64_t id;
    while (js_next(js_get(js_get(root, "model"), "vocab"), &it, &key, &value)) {
        js_int(value, &id);
        a->tokens[id] = (struct gguf_text){.bytes = key, .n = strlen(key)};
        a->types[id] = GGUF_TOKEN_NORMAL;
    }
    for (size_t i = 0; i < js_count(added); i++) {
        bool special = false;
        js_int(js_get(js_at(added, i), "id"), &id);
        js_bool(js_get(js_at(added, i), "special"), &special);
        a->tokens[id].bytes = js_string(js_get(js_at(added, i), "content"), &a->tokens[id].n);
        a->types[id] = special ? GGUF_TOKEN_CONTROL : GGUF_TOKEN_USER_DEFINED;
    }
}

/* Writes the merges to `text`, as lines "left right", and points a->merges at them. */
static void fill_merges(struct arrays *a, const struct js_node *merges, struct strbuf *text)
{
    for (size_t i = 0; i < a->v.n_merges; i++) {
        const char *both = js_string(js_at(merges, i), NULL); /* older files store a merge as one
                                                                 string */
        strbuf_puts(text, both != NULL ? both : js_string(js_at(js_at(merges, i), 0), NULL));
        if (both == NULL) {
            strbuf_puts(text, " ");
            strbuf_puts(text, js_string(js_at(js_at(merges, i), 1), NULL));
        }
        strbuf_puts(text, "\n");
    }
    const char *at = text->data;
    for (size_t i = 0; i < a->v.n_merges; i++) {
        const char *end = strchr(at, '\n');
        a->merges[i] = (struct gguf_text){.bytes = at, .n = (size_t)(end - at)};
        at = end + 1;
    }
}

/* Makes GGUF arrays of the golden's tokenizer.json, with `pre` as the pre-tokenizer's name, and
 * compares their tokenizer with the golden. */
static void check_pre(const char *name, const char *pre)
{
    size_t n;
    char *json = read_json(name, &n);
    struct js_doc *doc = NULL;
    const struct status st = js_parse(json, n, name, &doc);
    CU_ASSERT_FATAL(!status_failed(&st));
    const struct js_node *merges = js_get(js_get(js_root(doc), "model"), "merges");
    struct tokenizer *t = open_golden(name);
    struct arrays a;
    struct strbuf text;
    strbuf_init(&text);
    arrays_init(&a, (size_t)tokenizer_vocab_size(t), js_count(merges));
    fill_tokens(&a, js_root(doc));
    fill_merges(&a, merges, &text);
    a.v.model = "gpt2";
    a.v.pre = pre;
    check_arrays(&a, name);
    strbuf_fini(&text);
    tokenizer_destroy(&t);
    js_destroy(&doc);
    mem_free(&json);
}

static void byte_level_of_gguf(void)
{
    check_pre("gpt2", "gpt-2");
    check_pre("olmo", "olmo");
    check_pre("smollm", "smollm");
    check_pre("smollm", "starcoder");
    check_pre("smollm", "refact");
    check_pre("tekken", "tekken");
    check_pre("glm4", "glm4");
    check_pre("glm4", "chatglm-bpe");
    check_pre("glm4", "dbrx");
    check_pre("qwen2", "qwen2");
    check_pre("qwen2", "deepseek-r1-qwen");
    check_pre("deepseek3", "deepseek-v3");
    check_pre("o200k", "gpt-4o");
    check_pre("kimi", "kimi-k2");
}

static void another_vocabulary_differs(void)
{
    size_t n_lines, n_wrong;
    struct tokenizer *t = open_golden("smollm");
    const struct status st =
        util_check_golden(t, GOLDEN "lines.jsonl", GOLDEN "gpt2.golden", 0, &n_lines, &n_wrong);
    CU_ASSERT(!status_failed(&st));
    CU_ASSERT(n_wrong > n_lines / 10);
    tokenizer_destroy(&t);
}

static size_t from_hex(const char *hex, size_t n, char *out)
{
    for (size_t i = 0; i + 1 < n; i += 2) {
        const char byte[3] = {hex[i], hex[i + 1], '\0'};
        out[i / 2] = (char)strtoul(byte, NULL, 16);
    }
    return n / 2;
}

static bool same_ids(const struct token_list *ids, const struct js_node *want)
{
    if (ids->n != js_count(want)) return false;
    for (size_t i = 0; i < ids->n; i++) {
        int64_t id;
        if (!js_int(js_at(want, i), &id) || id != ids->ids[i]) return false;
    }
    return true;
}

static bool encode_case(struct tokenizer *t, const struct js_node *row)
{
    char text[4096];
    size_t n;
    int64_t turn = 0;
    const char *hex = js_string(js_get(row, "hex"), &n);
    js_int(js_get(row, "turn"), &turn);
    if (hex == NULL || n > sizeof text) return false;
    n = from_hex(hex, n, text);
    struct token_list ids = {0};
    const struct status st = tokenizer_encode(t, text, n, util_line_flags((size_t)turn), &ids);
    const bool same = !status_failed(&st) && same_ids(&ids, js_get(row, "ids"));
    token_list_fini(&ids);
    return same;
}

static bool decode_case(struct tokenizer *t, const struct js_node *row)
{
    struct token_list ids = {0};
    const struct js_node *list = js_get(row, "ids");
    struct status st = token_list_reserve(&ids, js_count(list));
    for (size_t i = 0; i < js_count(list); i++) {
        int64_t id = -1;
        js_int(js_at(list, i), &id);
        ids.ids[ids.n++] = (int32_t)id;
    }
    bool skip = false, split = true;
    js_bool(js_get(row, "skip"), &skip);
    struct strbuf text;
    strbuf_init(&text);
    if (!status_failed(&st)) st = util_decode(t, &ids, skip, &text, &split);
    size_t n;
    const char *want = js_string(js_get(row, "decoded"), &n);
    const bool same = !status_failed(&st) && !split && want != NULL && text.n == n &&
                      (n == 0 || memcmp(text.data, want, n) == 0);
    strbuf_fini(&text);
    token_list_fini(&ids);
    return same;
}

/* Compares all cases of a file: at least n_encode texts, some of them not UTF-8, with their ids,
 * and at least n_decode lists of random ids with their texts. */
static void check_cases(const char *file, size_t n_encode, size_t n_decode)
{
    struct tokenizer *t[N_NAMES];
    size_t n, n_cases[2] = {0, 0}, n_wrong = 0;
    for (size_t i = 0; i < N_NAMES; i++) t[i] = open_golden(NAMES[i]);
    char *json = read_json(file, &n);
    struct js_doc *doc = NULL;
    const struct status st = js_parse(json, n, file, &doc);
    CU_ASSERT_FATAL(!status_failed(&st));
    for (size_t i = 0; i < js_count(js_root(doc)); i++) {
        const struct js_node *row = js_at(js_root(doc), i);
        const bool decode = js_get(row, "decoded") != NULL;
        const char *name = js_string(js_get(row, "tokenizer"), NULL);
        size_t k = 0;
        while (k < N_NAMES && strcmp(NAMES[k], name) != 0) k++;
        CU_ASSERT_FATAL(k < N_NAMES);
        n_cases[decode]++;
        if (decode ? decode_case(t[k], row) : encode_case(t[k], row)) continue;
        if (n_wrong++ < 5) printf("case %zu of %s differs\n", i, name);
    }
    CU_ASSERT_EQUAL(n_wrong, 0);
    CU_ASSERT(n_cases[0] >= n_encode);
    CU_ASSERT(n_cases[1] >= n_decode);
    js_destroy(&doc);
    mem_free(&json);
    for (size_t i = 0; i < N_NAMES; i++) tokenizer_destroy(&t[i]);
}

static void cases(void)
{
    check_cases("cases", 500, 250);
}

static void more_cases(void)
{
    check_cases("cases_more", 1000, 900);
}

static void tokens_by_id_and_content(void)
{
    struct tokenizer *t = open_golden("llama3");
    const char begin[] = "<|begin_of_text|>";
    const int32_t id = tokenizer_token_id(t, begin, strlen(begin));
    size_t n;
    CU_ASSERT(id >= 0 && tokenizer_is_special(t, id));
    const char *bytes = tokenizer_token_bytes(t, id, &n);
    CU_ASSERT(n == strlen(begin) && memcmp(bytes, begin, n) == 0);
    const int32_t blank = tokenizer_token_id(t, "\xC4\xA0", 2); /* U+0120 represents the space */
    CU_ASSERT(blank >= 0 && !tokenizer_is_special(t, blank));
    bytes = tokenizer_token_bytes(t, blank, &n);
    CU_ASSERT(n == 1 && bytes[0] == ' ');
    CU_ASSERT_EQUAL(tokenizer_token_id(t, "no such token", 13), -1);
    CU_ASSERT_PTR_NULL(tokenizer_token_bytes(t, -1, &n));
    CU_ASSERT_PTR_NULL(tokenizer_token_bytes(t, tokenizer_vocab_size(t), &n));
    CU_ASSERT_EQUAL(n, 0);
    CU_ASSERT(!tokenizer_is_special(t, tokenizer_vocab_size(t)));
    tokenizer_destroy(&t);
}

/* An added token that stands only for a whole word (single_word) is not used for a part of a word.
 */
static void added_tokens_are_no_pieces(void)
{
    static const char json[] =
        "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":4,\"content\":\"covid\",\"single_word\":"
        "true,"
        "\"normalized\":false}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":"
        "\"BertPreTokenizer\"},\"post_processor\":null,\"decoder\":{\"type\":\"WordPiece\","
        "\"prefix\":\"##\"},\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\","
        "\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":100,\"vocab\":"
        "{\"[UNK]\":0,\"##x\":1,\"co\":2,\"##vid\":3}}}";
    static const int32_t want[] = {2, 3, 1, 4};
    struct tokenizer *t = NULL;
    struct token_list ids = {0};
    struct status st = tokenizer_create(json, strlen(json), "added.json", &t);
    CU_ASSERT_FATAL(!status_failed(&st));
    st = tokenizer_encode(t, "covidx covid", 12, 0, &ids);
    CU_ASSERT(!status_failed(&st) && ids.n == 4);
    if (ids.n == 4) CU_ASSERT(memcmp(ids.ids, want, sizeof want) == 0);
    token_list_fini(&ids);
    tokenizer_destroy(&t);
}

static void encode_appends(void)
{
    struct tokenizer *t = open_golden("gpt2");
    struct token_list once = {0}, twice = {0};
    struct status st = tokenizer_encode(t, "To be", 5, 0, &once);
    CU_ASSERT(!status_failed(&st) && once.n > 0);
    for (int i = 0; i < 2; i++) st = tokenizer_encode(t, "To be", 5, 0, &twice);
    CU_ASSERT_EQUAL(twice.n, 2 * once.n);
    CU_ASSERT(memcmp(twice.ids + once.n, once.ids, once.n * sizeof once.ids[0]) == 0);
    token_list_fini(&once);
    token_list_fini(&twice);
    tokenizer_destroy(&t);
}

void suite_tokenizer(CU_pSuite suite);
void suite_tokenizer(CU_pSuite suite)
{
    CU_add_test(suite, "GPT-2: every line as the tokenizers package", gpt2_lines);
    CU_add_test(suite, "SmolLM2: every line as the tokenizers package", smollm_lines);
    CU_add_test(suite, "Llama-3: every line as the tokenizers package", llama3_lines);
    CU_add_test(suite, "Qwen2: every line as the tokenizers package", qwen2_lines);
    CU_add_test(suite, "the other features: every line as the package", odd_lines);
    CU_add_test(suite, "DeepSeek-V3: every line as the package", deepseek3_lines);
    CU_add_test(suite, "o200k: every line as the package", o200k_lines);
    CU_add_test(suite, "Kimi-K2: every line as the package", kimi_lines);
    CU_add_test(suite, "Llama 2: every line as the package", llama2_lines);
    CU_add_test(suite, "Mistral: every line as the package", mistral_lines);
    CU_add_test(suite, "blanks replaced, none put: every line as the package", gemma_lines);
    CU_add_test(suite, "folding normalizers: every line as the package", folded_lines);
    CU_add_test(suite, "BERT: every line as the package", bert_lines);
    CU_add_test(suite, "BERT with case: every line as the package", bert_cased_lines);
    CU_add_test(suite, "XLM-RoBERTa: every line as the package", xlmr_lines);
    CU_add_test(suite, "Unigram: every line as the package", unigram_lines);
    CU_add_test(suite, "Unigram with bytes: every line as the package", unigram_bytes_lines);
    CU_add_test(suite, "SentencePiece's BPE: every line as the package", spm_lines);
    CU_add_test(suite, "tiktoken's ranks (Kimi-K2): every line as the package", tiktoken_lines);
    CU_add_test(suite, "Tekken: every line as the package", tekken_lines);
    CU_add_test(suite, "GLM-4: every line as the package", glm4_lines);
    CU_add_test(suite, "OLMo: every line as the package", olmo_lines);
    CU_add_test(suite, "special tokens in normalized text: every line as the package",
                legacy_lines);
    CU_add_test(suite, "a blank before the first piece alone: every line as the package",
                first_lines);
    CU_add_test(suite, "MiniMax-M2: every line as the package", minimax_lines);
    CU_add_test(suite, "SentencePiece's BPE out of GGUF arrays", spm_of_gguf);
    CU_add_test(suite, "pre-tokenizers of GGUF names", byte_level_of_gguf);
    CU_add_test(suite, "another vocabulary fails the line check", another_vocabulary_differs);
    CU_add_test(suite, "cases: ids, broken UTF-8, decodings", cases);
    CU_add_test(suite, "cases of the other vocabularies", more_cases);
    CU_add_test(suite, "tokens by id and content", tokens_by_id_and_content);
    CU_add_test(suite, "added tokens are no pieces", added_tokens_are_no_pieces);
    CU_add_test(suite, "encode appends", encode_appends);
}
