/* tokenizer.json files that must be refused with an error that names the cause; damaged files that
 * must not crash; texts that must not take long; failing allocations; and the notation of patterns.
 */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "text/grammar/pattern.h"
#include "text/tokenizer/tiktoken.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_synth.h"
#include "unit/small_tokenizer.h"

#include <CUnit/CUnit.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct refusal {
    const char *find, *put; /* the first `find` in SMALL_TOKENIZER is replaced by `put` */
    const char *says;       /* a part of the error; NULL: the file is accepted */
};

static const struct refusal REFUSALS[] = {
    {"\"1.0\"", "\"1.0\"", NULL},
    {"\"1.0\"", "\"2.0\"", "version"},
    {"\"padding\"", "\"stuffing\"", "'stuffing'"},
    {"\"NFC\"", "\"NFKC\"", NULL},
    {"\"NFC\"", "\"Nmt\"", "'Nmt'"},
    {"\"NFC\"", "\"Precompiled\"", "'precompiled_charsmap'"},
    {"\"NFC\"}", "\"Precompiled\",\"precompiled_charsmap\":\"?\"}", "expected base64"},
    {"\"NFC\"}", "\"Precompiled\",\"precompiled_charsmap\":\"BAA=\"}", "a trie of 0 bytes"},
    {"\"NFC\"}", "\"Precompiled\",\"precompiled_charsmap\":\"CAAAAAAAAAA=\"}", "a trie of 8"},
    {"\"NFC\"}", "\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAAAAD/\"}", "not UTF-8"},
    {"\"NFC\"}", "\"Precompiled\",\"precompiled_charsmap\":\"BAAAAAAAAAA=\"}", NULL},
    {"\"NFC\"", "\"ByteLevel\"", "'ByteLevel'"},
    {"\"NFC\"", "\"Prepend\"", "'prepend'"},
    {"\"NFC\"}", "\"Prepend\",\"prepend\":\"x\"}", NULL},
    {"\"NFC\"}", "\"Replace\",\"pattern\":\"x\",\"content\":\"\"}", "expected an object"},
    {"\"NFC\"}", "\"Replace\",\"pattern\":{\"String\":\"\"},\"content\":\"\"}", "0 bytes"},
    {"\"NFC\"}", "\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}", "not end"},
    {"\"NFC\"}", "\"Replace\",\"pattern\":{\"String\":\"\xC3\xA9\"},\"content\":\"\"}",
     "nothing is left"},
    {"{\"type\":\"NFC\"}", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}", NULL},
    {"{\"type\":\"NFC\"}", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Strip\"}]}", NULL},
    {"\"type\":\"Split\"", "\"type\":\"Whitespace\"", "'Whitespace'"},
    {"\"type\":\"Split\"", "\"type\":\"CharDelimiterSplit\"", "'CharDelimiterSplit'"},
    {"\"pretokenizers\":[", "\"pretokenizers\":[{\"type\":\"Metaspace\",\"replacement\":\"_\"},",
     "Metaspace with ByteLevel"},
    {"\"pretokenizers\":[", "\"pretokenizers\":[{\"type\":\"Metaspace\",\"replacement\":\"__\"},",
     "one character"},
    {"\"pretokenizers\":[",
     "\"pretokenizers\":[{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}"
     ",",
     "'last'"},
    {"\"pretokenizers\":[",
     "\"pretokenizers\":[{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false}"
     ",",
     "prepend_scheme is not"},
    {"\"pretokenizers\":[", "\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},", NULL},
    {"\"pretokenizers\":[",
     "\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":\"Metaspace\",\"replacement\":\"_"
     "\","
     "\"prepend_scheme\":\"first\"},",
     "beside a normalizer"},
    {"\"invert\":false", "\"inverted\":false", "'inverted'"},
    {"\"invert\":false", "\"invert\":3", "'invert'"},
    {"\"Isolated\"", "\"Scattered\"", "'Scattered'"},
    {"\"Regex\":\"\\\\p{N}|x+?\"", "\"Regex\":\"(a\"", "group that does not end"},
    {"\"Regex\":\"\\\\p{N}|x+?\"", "\"Regex\":\"\\\\w\"", "escape"},
    {"\"Regex\":\"\\\\p{N}|x+?\"", "\"String\":\"(a\"", NULL},
    {"{\"type\":\"ByteLevel\",\"add", "{\"type\":\"Digits\",\"add", "'add_prefix_space'"},
    {"\"use_regex\":true}]", "\"use_regex\":true},{\"type\":\"Digits\"}]", "behind ByteLevel"},
    {",{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}]", "]",
     "no ByteLevel pre_tokenizer"},
    {"\"TemplateProcessing\"", "\"BertProcessing\"", "'single'"},
    {"\"TemplateProcessing\"", "\"PairProcessing\"", "'PairProcessing'"},
    {"\"type\":\"TemplateProcessing\",",
     "\"type\":\"Sequence\",\"processors\":[{\"type\":\"BertProcessing\",\"sep\":[\"b\",99],"
     "\"cls\":[\"b\",1]}],",
     "'single'"},
    {"\"ids\":[5]", "\"ids\":[500]", "no token"},
    {"{\"<s>\":{\"id\"", "{\"<t>\":{\"id\"", "'<s>'"},
    {"\"id\":\"A\"", "\"id\":\"B\"", "sequence A"},
    {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":null", "decoder"},
    {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":{\"type\":\"CTC\"}", "CTC"},
    {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":{\"type\":\"Fuse\"}",
     "no ByteLevel decoder"},
    {"\"decoder\":{\"type\":\"ByteLevel\"}",
     "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"ByteLevel\"}"
     "]}",
     "behind others"},
    {"\"decoder\":{\"type\":\"ByteLevel\"}",
     "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"WordPiece\",\"prefix\":\"##\"},"
     "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"b\"}]}",
     "behind WordPiece"},
    {"\"decoder\":{\"type\":\"ByteLevel\"}",
     "\"decoder\":{\"type\":\"Strip\",\"content\":\" \",\"start\":0,\"stop\":1}", "end of a text"},
    {"\"decoder\":{\"type\":\"ByteLevel\"}",
     "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":"
     "\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"\"}]}",
     "behind ByteFallback"},
    {"\"BPE\"", "\"Unigram\"", "Unigram with a ByteLevel"},
    {"\"BPE\"", "\"WordLevel\"", "'WordLevel'"},
    {"\"dropout\":null", "\"dropout\":0.1", "dropout"},
    {"\"dropout\":null", "\"dropout\":0.0", NULL},
    {"\"dropout\":null", "\"end_of_word_suffix\":\"</w>\"", "end_of_word_suffix"},
    {"\"dropout\":null", "\"end_of_word_suffix\":\"\"", NULL},
    {"\"dropout\":null", "\"temperature\":1", "'temperature'"},
    {"\"unk_token\":null", "\"unk_token\":\"?\"", "unk_token"},
    {"\"unk_token\":null", "\"unk_token\":\"a\"", NULL},
    {"\"byte_fallback\":false", "\"byte_fallback\":true", "byte_fallback"},
    {"\"ab\":2", "\"ab\":1", "two tokens have the id 1"},
    {"\"ab\":2", "\"ab\":-2", "'ab'"},
    {"\"ab\":2", "\"ab\":2.0", "'ab'"},
    {"\"ab\":2", "\"ab\":2000000000", "2000000000"},
    {"\"ab\":2", "\"a\":2", "duplicate"},
    {"[\"a b\"", "[\"a c\"", "merge 0"},
    {"[\"a b\"", "[\"ab\"", "merge 0"},
    {"[\"a b\"", "[\"a b \"", "merge 0"},
    {"[\"a b\"", "[[\"a\",\"b\"]", "merge 1"},
    {"[\"a b\"", "[\"#version: 0.2\",\"a b\"", NULL},
    {"\"id\":6", "\"id\":7", "expected 6"},
    {"\"id\":6", "\"id\":5", "expected 6"},
    {"\"id\":5,", "\"id\":\"5\",", "added token 0"},
    {"\"content\":\"<s>\"", "\"content\":\"\xC3\xA9\"", "expected"},
    {"\"content\":\"<s>\"", "\"content\":\"ab\"", "'ab'"},
    {"\"rstrip\":true", "\"rstrip\":1", "'rstrip'"},
    {"\"rstrip\":true", "\"bold\":true", "'bold'"},
    {"\"model\"", "\"madel\"", "'madel'"},
};

static struct status create(const char *json, size_t n)
{
    struct tokenizer *t;
    const struct status st = tokenizer_create(json, n, "base.json", &t);
    CU_ASSERT_EQUAL(t == NULL, status_failed(&st));
    tokenizer_destroy(&t);
    return st;
}

/* Makes SMALL_TOKENIZER with the first r->find replaced. */
static void refusal_text(const struct refusal *r, struct strbuf *json)
{
    const char *at = strstr(SMALL_TOKENIZER, r->find);
    CU_ASSERT_PTR_NOT_NULL_FATAL(at);
    strbuf_init(json);
    strbuf_add(json, SMALL_TOKENIZER, (size_t)(at - SMALL_TOKENIZER));
    strbuf_puts(json, r->put);
    strbuf_puts(json, at + strlen(r->find));
}

/* Loads each file of REFUSALS with every allocation failing in turn. AddressSanitizer would report
 * leaks. */
static void refusals_live_without_memory(void)
{
    for (size_t i = 0; i < sizeof REFUSALS / sizeof REFUSALS[0]; i++) {
        struct strbuf json;
        uint64_t n = 1;
        refusal_text(&REFUSALS[i], &json);
        for (; n < 1000; n++) {
            mem_fail_after(n);
            const struct status st = create(json.data, json.n);
            if (mem_fail_after(0) < n) break;
            const bool refused = REFUSALS[i].says != NULL && st.code == STATUS_INPUT;
            CU_ASSERT(st.code == STATUS_MEMORY || refused);
        }
        CU_ASSERT(n < 1000);
        strbuf_fini(&json);
    }
}

static void unknown_things_are_refused_by_name(void)
{
    for (size_t i = 0; i < sizeof REFUSALS / sizeof REFUSALS[0]; i++) {
        const struct refusal *r = &REFUSALS[i];
        struct strbuf json;
        refusal_text(r, &json);
        const struct status st = create(json.data, json.n);
        const bool right = r->says == NULL
                               ? !status_failed(&st)
                               : st.code == STATUS_INPUT && strstr(st.text, r->says) != NULL &&
                                     strstr(st.text, "base.json") != NULL;
        if (!right) printf("refusal %zu: '%s', expected '%s'\n", i, st.text, r->says);
        CU_ASSERT(right);
        strbuf_fini(&json);
    }
}

/* A pattern that reaches its match limit while the file is loaded makes the file unusable. (A
 * STATUS_REQUEST would end the program with exit status 0.) */
static void patterns_that_give_up_while_loading_are_refused(void)
{
    static const struct refusal SLOW = {
        "\"content\":\"\xC3\xA9\",\"normalized\":true,\"special\":false}],\"normalizer\":{\"type\":"
        "\"NFC\"}",
        "\"content\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\","
        "\"normalized\":"
        "true,\"special\":false}],\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":"
        "\"(a|aa)+[^a]\"},\"content\":\"\"}",
        "gave up"};
    struct strbuf json;
    refusal_text(&SLOW, &json);
    const struct status st = create(json.data, json.n);
    CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    CU_ASSERT_PTR_NOT_NULL(strstr(st.text, SLOW.says));
    strbuf_fini(&json);
}

static void every_truncation_is_refused(void)
{
    const size_t n = sizeof SMALL_TOKENIZER - 1;
    for (size_t i = 0; i < n; i++) {
        const struct status st = create(SMALL_TOKENIZER, i);
        CU_ASSERT_EQUAL(st.code, STATUS_INPUT);
    }
    const struct status st = create(SMALL_TOKENIZER, n);
    CU_ASSERT_EQUAL(st.code, STATUS_OK);
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* A randomly changed file is refused or works; it must not crash. */
static void mutations_do_not_crash(void)
{
    uint64_t state = 1;
    size_t n_accepted = 0, n_refused = 0;
    for (int round = 0; round < 20000; round++) {
        char json[sizeof SMALL_TOKENIZER];
        memcpy(json, SMALL_TOKENIZER, sizeof SMALL_TOKENIZER);
        const size_t n_changes = 1 + next_random(&state) % 3;
        for (size_t i = 0; i < n_changes; i++) {
            const size_t at = next_random(&state) % (sizeof SMALL_TOKENIZER - 1);
            const size_t from = next_random(&state) % (sizeof SMALL_TOKENIZER - 1);
            const bool copied = next_random(&state) % 2 == 0;
            json[at] = copied ? SMALL_TOKENIZER[from] : (char)next_random(&state);
        }
        struct tokenizer *t;
        struct token_list ids = {0};
        struct status st = tokenizer_create(json, sizeof SMALL_TOKENIZER - 1, "mutated", &t);
        n_accepted += t != NULL;
        n_refused += t == NULL;
        if (t != NULL) st = tokenizer_encode(t, "ab <s> \xCC\x81 x12 ab", 16, 3, &ids);
        CU_ASSERT(status_failed(&st) ? ids.n == 0 : t != NULL);
        token_list_fini(&ids);
        tokenizer_destroy(&t);
    }
    CU_ASSERT(n_accepted > 100);
    CU_ASSERT(n_refused > 100);
}

static void golden_truncations_are_refused(void)
{
    char *json = NULL;
    size_t n;
    const struct status st =
        file_read(TEST_DATA_DIR "/golden/tokenizer/llama3.json", 1 << 26, &json, &n);
    CU_ASSERT_FATAL(!status_failed(&st));
    for (size_t i = 0; i + 2 < n; i += 211) {
        const struct status cut = create(json, i);
        CU_ASSERT_EQUAL(cut.code, STATUS_INPUT);
    }
    mem_free(&json);
}

static struct status create_and_encode(void)
{
    static const char TEXT[] = "ab ab <s>  e\xCC\x81\xFF 12 xxab abababababababababababab";
    struct tokenizer *t;
    struct token_list ids = {0};
    TRY(tokenizer_create(SMALL_TOKENIZER, sizeof SMALL_TOKENIZER - 1, "base.json", &t));
    const struct status st = tokenizer_encode(t, TEXT, sizeof TEXT - 1, 3, &ids);
    CU_ASSERT(status_failed(&st) ? ids.n == 0 : ids.n > 10);
    token_list_fini(&ids);
    tokenizer_destroy(&t);
    return st;
}

static void every_failed_allocation_is_a_status(void)
{
    uint64_t n = 1;
    for (; n < 1000; n++) {
        mem_fail_after(n);
        const struct status st = create_and_encode();
        mem_fail_after(0);
        if (!status_failed(&st)) break;
        CU_ASSERT_EQUAL(st.code, STATUS_MEMORY);
    }
    CU_ASSERT(n > 10 && n < 1000);
}

/* Makes a tokenizer from a tiktoken.model (the 256 bytes at ranks 0 to 255, then `more`) and a
 * tokenizer_config.json (NULL: none). */
static struct status from_ranks(const char *more, const char *config_text)
{
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct strbuf ranks, json;
    struct js_doc *config = NULL;
    struct tokenizer *t = NULL;
    strbuf_init(&ranks);
    strbuf_init(&json);
    for (unsigned b = 0; b < 256; b++) {
        strbuf_printf(&ranks, "%c%c== %u\n", DIGITS[b >> 2], DIGITS[(b & 3) << 4], b);
    }
    strbuf_puts(&ranks, more);
    struct status st;
    TRY_GOTO(st, strbuf_status(&ranks), done);
    if (config_text != NULL) {
        TRY_GOTO(st, js_parse(config_text, strlen(config_text), "config", &config), done);
    }
    TRY_GOTO(st, tokenizer_json_from_tiktoken(ranks.data, ranks.n, js_root(config), &json), done);
    TRY_GOTO(st, tokenizer_create(json.data, json.n, "tiktoken.model", &t), done);
    CU_ASSERT_EQUAL(tokenizer_vocab_size(t) % 256, 2);
    tokenizer_destroy(&t);
done:
    js_destroy(&config);
    strbuf_fini(&json);
    strbuf_fini(&ranks);
    return st;
}

static void bad_ranks_are_refused(void)
{
    static const struct {
        const char *more, *config, *says; /* says NULL: accepted */
    } CASES[] = {
        {"YWI= 256\nYWFi 257", NULL, NULL},
        {"YWI= 256\r\n\r\nYWFi 257\r\n", NULL, NULL},
        {"YWI= 256\nYWFi 257\n",
         "{\"tokenizer_class\":\"TikTokenTokenizer\",\"added_tokens_decoder\":{\"258\":{"
         "\"content\":\"[BOS]\",\"special\":true},\"9999\":{\"content\":\"far\"}}}",
         NULL},
        {"YWI= 256\nYWFi 257\n", "{\"tokenizer_class\":\"QWenTokenizer\"}", "QWenTokenizer"},
        {"YWI= 256\nYWFi 257\n",
         "{\"added_tokens_decoder\":{\"258\":{\"content\":\"xx\"},\"259\":{\"content\":\"xx\"}}}",
         "259"},
        {"YWI= 256\nYWFi 259\n", NULL, "the largest is 259"},
        {"YWI= 256\nYWFi 256\nYWJh 258\n", NULL, "the id 256"},
        {"YWI= 256\nYWI= 257\n", NULL, "duplicate"},
        {"YWI 256\n", NULL, "entry 257"},
        {"YW=I 256\n", NULL, "entry 257"},
        {"=== 256\n", NULL, "entry 257"},
        {"==== 256\n", NULL, "entry 257"},
        {"Y\xC3\xA9W 256\n", NULL, "entry 257"},
        {"YWI=256\n", NULL, "entry 257"},
        {"YWI= \n", NULL, "entry 257"},
        {" 256\n", NULL, "entry 257"},
        {"YWI= -1\n", NULL, "entry 257"},
        {"YWI= 256 1\n", NULL, "entry 257"},
        {"YWI= 99999999999999999999999\n", NULL, "entry 257"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        const struct status st = from_ranks(CASES[i].more, CASES[i].config);
        const bool right = CASES[i].says == NULL
                               ? !status_failed(&st)
                               : st.code == STATUS_INPUT && strstr(st.text, CASES[i].says) != NULL;
        if (!right) printf("ranks %zu: '%s'\n", i, st.text);
        CU_ASSERT(right);
    }
    struct strbuf json;
    strbuf_init(&json);
    struct status st = tokenizer_json_from_tiktoken("YQ== 0\n", 7, NULL, &json);
    if (!status_failed(&st)) st = create(json.data, json.n);
    CU_ASSERT(st.code == STATUS_INPUT && strstr(st.text, "lacks bytes") != NULL);
    strbuf_fini(&json);
}

static void ranks_live_without_memory(void)
{
    uint64_t n = 1;
    for (; n < 2000; n++) {
        mem_fail_after(n);
        const struct status st = from_ranks("YWI= 256\nYWFi 257\n", "{\"a\":1}");
        const bool passed = mem_fail_after(0) < n;
        if (passed) {
            CU_ASSERT(!status_failed(&st));
            break;
        }
        CU_ASSERT_EQUAL(st.code, STATUS_MEMORY);
    }
    CU_ASSERT(n > 10 && n < 2000);
}

/* Processor time of this process in seconds, independent of the load of the machine. */
static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Texts of 400 kB that are hard for patterns, merges, marks and added tokens take less than five
 * seconds each. */
static void hostile_texts_stay_fast(void)
{
    static const char *const PARTS[] = {
        " ", "a",    "\n", "\r\n ", "e\xCC\x81",    "\xCC\x81\xCC\xA3",
        "'", "<s> ", "<",  "1",     "\xE3\x80\x80", "!\n"};
    static const char *const NAMES[] = {"odd",  "qwen2",  "llama3", "deepseek3", "o200k",
                                        "kimi", "llama2", "folded", "unigram"};
    for (size_t k = 0; k < sizeof NAMES / sizeof NAMES[0]; k++) {
        char path[512], *json = NULL;
        size_t n;
        struct tokenizer *t = NULL;
        snprintf(path, sizeof path, TEST_DATA_DIR "/golden/tokenizer/%s.json", NAMES[k]);
        struct status st = file_read(path, 1 << 26, &json, &n);
        if (!status_failed(&st)) st = tokenizer_create(json, n, path, &t);
        mem_free(&json);
        CU_ASSERT_PTR_NOT_NULL_FATAL(t);
        for (size_t i = 0; i < sizeof PARTS / sizeof PARTS[0]; i++) {
            struct strbuf text;
            struct token_list ids = {0};
            strbuf_init(&text);
            while (text.n < 400 * 1000) strbuf_puts(&text, PARTS[i]);
            const double start = cpu_s();
            st = tokenizer_encode(t, text.data, text.n, 3, &ids);
            const double s = cpu_s() - start;
            if (s > 5) printf("%s: part %zu took %.1f s\n", NAMES[k], i, s);
            CU_ASSERT(!status_failed(&st) && s < 5); /* quadratic time would take minutes */
            token_list_fini(&ids);
            strbuf_fini(&text);
        }
        tokenizer_destroy(&t);
    }
}

static void notation_is_translated_or_refused(void)
{
    static const struct {
        const char *notation, *out; /* out NULL: refused */
    } CASES[] = {
        {"a|b+?", "a|b+?"},
        {"(?:x){2,3}", "(?:x){2,3}"},
        {"[^\\r\\n]", "[^\\r\\n]"},
        {"\\p{Lt}", "[\\p{Lt}]"},
        {"\\P{Lt}", "[^\\p{Lt}]"},
        {"[\\u4e00-\\x{9fa5}]", "[\\x{4e00}-\\x{9fa5}]"},
        {"(?i:'s|'re)", "(?i:'s|'re)"},
        {"(?i:ss)", NULL},
        {"(?i:\xC3\xA9)", NULL},
        {"^a", NULL},
        {"a$", NULL},
        {"\\bx", NULL},
        {"\\h", NULL},
        {"(?<name>a)", NULL},
        {"(?i)a", NULL},
        {"(*UTF)", NULL},
        {"a{2}+", NULL},
        {"a{,3}", NULL},
        {"[a[b]]", NULL},
        {"[a&&b]", NULL},
        {"[a&&[^b]]+", "(?:(?=[^b])[a])+"},
        {"[^a&&[b]]", NULL},
        {"[&&[b]]", NULL},
        {"[a&&[b]c]", NULL},
        {"[a&&[b&&[c]]]", NULL},
        {"\\p{Greek}", NULL},
        {"[a-\\s]", NULL},
        {"[\\s-z]", NULL},
        {"[]a]", NULL},
        {"[a", NULL},
        {"a)", NULL},
        {"\\p{L", NULL},
        {"\\", NULL},
        {"\\x41", NULL},
        {"\\x{}", NULL},
        {"\xFF", NULL},
        {"\\p{C}", NULL},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        struct strbuf out;
        strbuf_init(&out);
        const struct status st =
            pattern_translate(CASES[i].notation, strlen(CASES[i].notation), "pre_tokenizer", &out);
        const bool right = CASES[i].out == NULL
                               ? st.code == STATUS_INPUT
                               : !status_failed(&st) && strcmp(out.data, CASES[i].out) == 0;
        if (!right) printf("notation %s: '%s' '%s'\n", CASES[i].notation, out.data, st.text);
        CU_ASSERT(right);
        strbuf_fini(&out);
    }
}

/* U+2B739 is a Han character since Unicode 15. PCRE2 10.42 does not know it. */
static void han_has_the_characters_of_unicode_15(void)
{
    static const char TEXT[] = "\xF0\xAB\x9C\xB9";
    struct pattern *p = NULL;
    const struct status made = pattern_create("\\p{Han}", 7, false, "pre_tokenizer", &p);
    CU_ASSERT_FATAL(!status_failed(&made));
    struct pattern_walk w;
    size_t start, end;
    bool found = false;
    pattern_walk_init(&w, TEXT, strlen(TEXT));
    const struct status st = pattern_next(p, &w, &start, &end, &found);
    CU_ASSERT(!status_failed(&st) && found && start == 0 && end == strlen(TEXT));
    pattern_destroy(&p);
}

static struct gguf_text text_of(const char *s)
{
    return (struct gguf_text){.bytes = s, .n = strlen(s)};
}

static void gguf_arrays_become_a_tokenizer(void)
{
    const struct gguf_text tokens[] = {text_of("<s>"), text_of("a"),      text_of("b"),
                                       text_of("ab"),  text_of("[PAD4]"), text_of("<t>")};
    const struct gguf_text merges[] = {text_of("a b")};
    const int32_t types[] = {3, 1, 1, 1, 5, 4};
    struct gguf_vocab v = {.model = "gpt2",
                           .pre = "llama-bpe",
                           .tokens = tokens,
                           .token_types = types,
                           .n_tokens = 6,
                           .merges = merges,
                           .n_merges = 1,
                           .bos_id = 0,
                           .eos_id = 5,
                           .add_bos = -1,
                           .add_eos = 1};
    struct strbuf json;
    struct tokenizer *t;
    struct token_list ids = {0};
    strbuf_init(&json);
    struct status st = tokenizer_json_from_gguf(&v, &json);
    CU_ASSERT_FATAL(!status_failed(&st));
    st = tokenizer_create(json.data, json.n, "synthesized", &t);
    if (status_failed(&st)) printf("%s\n", st.text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    st = tokenizer_encode(t, "ab<t>ba<s>", 10, 3, &ids);
    static const int32_t WANT[] = {0, 3, 5, 2, 1, 0, 5};
    CU_ASSERT(ids.n == 7 && memcmp(ids.ids, WANT, sizeof WANT) == 0);
    CU_ASSERT(tokenizer_is_special(t, 0) && !tokenizer_is_special(t, 5));
    size_t n;
    CU_ASSERT_PTR_NULL(tokenizer_token_bytes(t, 4, &n));
    token_list_fini(&ids);
    tokenizer_destroy(&t);
    strbuf_fini(&json);
}

static void bad_gguf_arrays_are_refused(void)
{
    const struct gguf_text tokens[] = {text_of("a"), text_of("b"), text_of("\xFF")};
    const struct gguf_text merges[] = {text_of("ab")};
    const int32_t types[] = {1, 9, 1};
    const struct gguf_vocab good = {.model = "gpt2",
                                    .pre = "qwen2",
                                    .tokens = tokens,
                                    .n_tokens = 2,
                                    .bos_id = -1,
                                    .eos_id = -1};
    struct {
        struct gguf_vocab v;
        const char *says;
    } cases[11] = {{good, NULL},
                   {good, "'t5'"},
                   {good, "'mystery'"},
                   {good, "(missing)"},
                   {good, "token 2"},
                   {good, "type 9"},
                   {good, "merge 0"},
                   {good, "bos_token_id"},
                   {good, "scores is missing"},
                   {good, "token 1 has no finite"},
                   {good, "expected 1 to 6"}};
    cases[1].v.model = "t5";
    cases[2].v.pre = "mystery";
    cases[3].v.pre = NULL;
    cases[4].v.n_tokens = 3;
    cases[5].v.token_types = types;
    cases[6].v.merges = merges;
    cases[6].v.n_merges = 1;
    cases[7].v.add_bos = 1;
    const float scores[] = {0, NAN};
    const int32_t byte_types[] = {1, 7};
    for (size_t i = 8; i < 11; i++) cases[i].v.model = "llama";
    cases[9].v.scores = cases[10].v.scores = scores;
    cases[10].v.token_types = byte_types;
    for (size_t i = 0; i < 11; i++) {
        struct strbuf json;
        strbuf_init(&json);
        const struct status st = tokenizer_json_from_gguf(&cases[i].v, &json);
        CU_ASSERT_EQUAL(st.code, cases[i].says == NULL ? STATUS_OK : STATUS_INPUT);
        if (cases[i].says != NULL) CU_ASSERT_PTR_NOT_NULL(strstr(st.text, cases[i].says));
        strbuf_fini(&json);
    }
}

void suite_tokenizer_bad(CU_pSuite suite);
void suite_tokenizer_bad(CU_pSuite suite)
{
    CU_add_test(suite, "unknown things are refused by name", unknown_things_are_refused_by_name);
    CU_add_test(suite, "patterns that give up while loading are refused",
                patterns_that_give_up_while_loading_are_refused);
    CU_add_test(suite, "every truncation is refused", every_truncation_is_refused);
    CU_add_test(suite, "mutations do not crash", mutations_do_not_crash);
    CU_add_test(suite, "truncations of a golden are refused", golden_truncations_are_refused);
    CU_add_test(suite, "every failed allocation is a status", every_failed_allocation_is_a_status);
    CU_add_test(suite, "refusals live without memory", refusals_live_without_memory);
    CU_add_test(suite, "bad ranks are refused", bad_ranks_are_refused);
    CU_add_test(suite, "ranks live without memory", ranks_live_without_memory);
    CU_add_test(suite, "hostile texts stay fast", hostile_texts_stay_fast);
    CU_add_test(suite, "notation is translated or refused", notation_is_translated_or_refused);
    CU_add_test(suite, "Han has the characters of Unicode 15",
                han_has_the_characters_of_unicode_15);
    CU_add_test(suite, "GGUF arrays become a tokenizer", gguf_arrays_become_a_tokenizer);
    CU_add_test(suite, "bad GGUF arrays are refused", bad_gguf_arrays_are_refused);
}
