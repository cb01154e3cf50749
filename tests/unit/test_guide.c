/* Grammar constraints: which texts patterns accept, which patterns are refused, and which tokens
 * are allowed. */
#include "serve/request/guide.h"

#include "base/mem.h"
#include "serve/request/request.h"
#include "serve/request/request_answer.h"
#include "serve/request/request_guide.h"
#include "text/grammar/automaton.h"
#include "util_forms.h"
#include "util_serve.h"
#include "util_tokenizer.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

/* The result of request_allow: one bit for each token. */
static uint32_t allowed[8192];

static const struct util_form patterns[] = {
    {"abc", {"abc"}, {"ab", "abcd", "", "xabc"}},
    {"^abc$", {"abc"}, {"abc$", "^abc"}},
    {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
    {"(ab|c)*d", {"d", "ababcd", "cd"}, {"ab", "acd", "dd"}},
    {"a+b?", {"a", "aaab"}, {"", "b", "abb"}},
    {"a{2,4}", {"aa", "aaaa"}, {"a", "aaaaa"}},
    {"(ab){2}", {"abab"}, {"ab", "ababab"}},
    {"a{2,}", {"aa", "aaaaaaa"}, {"a", ""}},
    {"a{0}b", {"b"}, {"ab"}},
    {"a{0,2}?b", {"b", "ab", "aab"}, {"aaab"}},
    {"(a*)*b", {"b", "aaab"}, {"a"}},
    {"[a-c_-]+", {"ab-_c", "-"}, {"d", ""}},
    {"[^a-c]", {"d", "\n", "\xC3\xA9", "\xF0\x9F\x99\x82"}, {"a", "\xC3", "dd"}},
    {".",
     {"x", "\xE2\x82\xAC", "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF"},
     {"\n", "\xED\xA0\x80", "\xC0\x80", "\x80", "\xF4\x90\x80\x80", "\xE0\x80\x80"}},
    {"[\\w.]+@\\d{2}\\s", {"a_Z.9@12 ", "a@00\t"}, {"a@1 ", "\xC3\xA9@12 "}},
    {"\\D\\W\\S", {"a b", "\xC3\xA9 b"}, {"1 b", "aab", "a  "}},
    {"\\x41\\u00e9\\.\\n\\\\", {"A\xC3\xA9.\n\\"}, {"A\xC3\xA9x\n\\"}},
    {"[\xCE\xB1-\xCF\x89]+", {"\xCE\xB1\xCF\x89\xCE\xBB"}, {"a", "\xCE\x91"}},
    {"[\\u0000-\\uffff]", {"a", "\xEF\xBF\xBF"}, {"\xF0\x90\x80\x80", "\xED\xA0\x80"}},
    {"(?:a|(b))c", {"ac", "bc"}, {"c"}},
};

static void patterns_take_their_texts(void)
{
    util_expect_forms(util_of_pattern, patterns, sizeof patterns / sizeof *patterns);
}

static void what_is_not_understood_is_named(void)
{
    static const char *const bad_patterns[][2] = {{"(a", "not closed"},
                                                  {"a)", "not opened"},
                                                  {"[a", "not closed"},
                                                  {"[]", "empty class"},
                                                  {"*a", "nothing to repeat"},
                                                  {"a**", "nothing to repeat"},
                                                  {"a{2", "not closed"},
                                                  {"a{x}", "expected a count"},
                                                  {"a{3,2}", "below its start"},
                                                  {"a{99999}", "too large"},
                                                  {"(?=a)", "look-around"},
                                                  {"(?P<x>a)", "names"},
                                                  {"\\1", "not supported"},
                                                  {"\\bx", "not supported"},
                                                  {"a\\", "backslash"},
                                                  {"a^b", "start and the end"},
                                                  {"(a$)", "start and the end"},
                                                  {"[b-a]", "backwards"},
                                                  {"[a-\\d]", "ends with a set"},
                                                  {"\\ud800", "surrogate"},
                                                  {"\xFF", "UTF-8"},
                                                  {"\\xg0", "hexadecimal"},
                                                  {"[^\\s\\S]", "no text can match"},
                                                  {"((((a{999}){999}){999}){999})", "too large"},
                                                  {"(a|b)*a(a|b){18}", "too large"}};
    util_expect_refused(util_of_pattern, bad_patterns, sizeof bad_patterns / sizeof *bad_patterns);
}

/* With a vocabulary of bytes, compares the tokens that are allowed at each step with the bytes that
 * the pattern accepts there. */
static void tokens_fit_where_their_bytes_do(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = util_request_rules(t);
    CU_ASSERT_EQUAL(guides_create(t, rules.vocab_size, &rules.guides).code, STATUS_OK);
    struct request *r = util_request_parse(
        &rules, "{\"prompt\":\"a\",\"guided_regex\":\"x(yz|[p-r]{1,2})?\",\"max_tokens\":9}");
    CU_ASSERT_PTR_NOT_NULL_FATAL(r->ask->guide);
    static const char *const next[] = {"x", "ypqr|", "z", "|"}; /* | is the end token */
    static const char tokens[] = "xyz";
    for (size_t step = 0; step < 3; step++) {
        CU_ASSERT_EQUAL(request_allow(r, &rules, NULL, allowed).code, STATUS_OK);
        for (int32_t id = 0; id < rules.vocab_size; id++) {
            const char c = id == 256 ? '|' : (char)id;
            const bool fits = c != '\0' && id < 257 && (id < 128 || id == 256) &&
                              strchr(next[step], c) != NULL && id != '|';
            CU_ASSERT_EQUAL((allowed[id / 32] >> (id % 32) & 1) != 0, fits);
        }
        CU_ASSERT_EQUAL(r->finish, REQUEST_UNFINISHED);
        CU_ASSERT_EQUAL(request_take_token(r, &rules, tokens[step]).code, STATUS_OK);
    }
    CU_ASSERT_EQUAL(r->finish, REQUEST_STOP); /* nothing can follow */
    CU_ASSERT_NSTRING_EQUAL(r->text.data, "xyz", 3);
    request_destroy(&r);
    guides_destroy(&rules.guides);
    tokenizer_destroy(&t);
}

static bool may_draw(int32_t id)
{
    return (allowed[id / 32] >> (id % 32) & 1) != 0;
}

static void take(struct request *r, const struct request_rules *rules, int32_t token)
{
    CU_ASSERT_EQUAL(request_take_token(r, rules, token).code, STATUS_OK);
    CU_ASSERT_EQUAL(request_allow(r, rules, NULL, allowed).code, STATUS_OK);
}

/* A forbidden word's last token is not allowed after its other tokens, if those were sampled;
 * tokens of the prompt do not count. Lists of allowed tokens are respected. */
static void lists_of_tokens_and_words_are_kept_to(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = util_request_rules(t);
    struct request *r = util_request_parse(
        &rules, "{\"prompt\":\"ab\",\"bad_words\":[\" abc\",\"x\"],\"max_tokens\":9,"
                "\"min_tokens\":3}");
    CU_ASSERT_PTR_NULL_FATAL(r->error.code);
    CU_ASSERT_EQUAL(request_allow(r, &rules, NULL, allowed).code, STATUS_OK);
    CU_ASSERT(may_draw('a') && may_draw('c') && !may_draw('x') && !may_draw(256));
    take(r, &rules, 'a');
    take(r, &rules, 'b');
    CU_ASSERT(may_draw('a') && !may_draw('c') && !may_draw('x') && !may_draw(256));
    take(r, &rules, 'a');
    CU_ASSERT(may_draw('c') && may_draw(256));
    request_destroy(&r);
    r = util_request_parse(&rules, "{\"prompt\":\"ab\",\"bad_words\":[\"ab\"],\"max_tokens\":9,"
                                   "\"allowed_token_ids\":[97,98,97]}");
    CU_ASSERT_PTR_NULL_FATAL(r->error.code);
    CU_ASSERT_EQUAL(request_allow(r, &rules, NULL, allowed).code, STATUS_OK);
    for (int32_t id = 0; id < rules.vocab_size; id++)
        CU_ASSERT_EQUAL(may_draw(id), id == 'a' || id == 'b');
    CU_ASSERT_NOT_EQUAL(request_words_hash(r), 0);
    take(r, &rules, 'a');
    CU_ASSERT(may_draw('a') && !may_draw('b'));
    request_destroy(&r);
    tokenizer_destroy(&t);
}

/* Counts the allocations for encoding a word with and without a space before it. */
static uint64_t n_of_encoding(struct tokenizer *t, const char *word)
{
    (void)mem_fail_after(0);
    for (int i = 0; i < 2; i++) {
        struct token_list list = {0};
        CU_ASSERT_EQUAL(
            tokenizer_encode(t, word + i, strlen(word + i), TOKENIZER_PARSE_SPECIAL, &list).code,
            STATUS_OK);
        token_list_fini(&list);
    }
    return mem_fail_after(0);
}

/* Adding a word does not copy the words before it. */
static void words_are_gathered_without_copying_them_all_each_time(void)
{
    enum { WORDS = 512 };
    struct tokenizer *t = util_byte_tokenizer();
    const struct request_rules rules = util_request_rules(t);
    struct strbuf line;
    strbuf_init(&line);
    strbuf_puts(&line, "{\"prompt\":\"q\",\"bad_words\":[\"wordy\"");
    for (int i = 1; i < WORDS; i++) strbuf_puts(&line, ",\"wordy\"");
    strbuf_puts(&line, "]}");
    (void)n_of_encoding(t, " wordy"); /* puts the word into the tokenizer's cache */
    const uint64_t n_each = n_of_encoding(t, " wordy");
    struct request *r = NULL;
    (void)mem_fail_after(0);
    CU_ASSERT_EQUAL(request_create(&rules, 1, line.data, line.n, &r).code, STATUS_OK);
    const uint64_t n = mem_fail_after(0);
    CU_ASSERT_PTR_NULL_FATAL(r->error.code);
    CU_ASSERT(r->ask->words.n_banned >= WORDS * 6);
    CU_ASSERT(n_each > 0 && n < WORDS * n_each + WORDS / 2);
    request_destroy(&r);
    strbuf_fini(&line);
    tokenizer_destroy(&t);
}

/* When no token is allowed, the answer ends if the text satisfies its grammar; otherwise it becomes
 * an error row. */
static void no_token_left_ends_an_answer(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = util_request_rules(t);
    CU_ASSERT_EQUAL(guides_create(t, rules.vocab_size, &rules.guides).code, STATUS_OK);
    static const char *const lines[] = {
        "{\"prompt\":\"q\",\"bad_words\":[\"ab\"],\"guided_regex\":\"a(bc)?\",\"ignore_eos\":true}",
        "{\"prompt\":\"q\",\"bad_words\":[\"ab\"],\"guided_regex\":\"abc\"}"};
    for (int i = 0; i < 2; i++) {
        struct request *r = util_request_parse(&rules, lines[i]);
        CU_ASSERT_PTR_NULL_FATAL(r->error.code);
        CU_ASSERT_EQUAL(request_take_token(r, &rules, 'a').code, STATUS_OK);
        CU_ASSERT_EQUAL(r->finish, REQUEST_STOP);
        CU_ASSERT_EQUAL(r->error.code != NULL, i == 1);
        CU_ASSERT(i == 0 || strcmp(r->error.code, "no_token_left") == 0);
        request_destroy(&r);
    }
    guides_destroy(&rules.guides);
    tokenizer_destroy(&t);
}

/* Appends random allowed tokens; the complete text, as the decoder makes it, must match. */
static void expect_walks(const char *path, const char *line, const struct dfa *d)
{
    struct tokenizer *t = NULL;
    const struct status opened = util_tokenizer_open(path, &t);
    CU_ASSERT_FATAL(!status_failed(&opened));
    struct request_rules rules = util_request_rules(t);
    rules.vocab_size = tokenizer_vocab_size(t);
    rules.max_model_len = 400;
    rules.n_end_ids = 0;
    CU_ASSERT_EQUAL(guides_create(t, rules.vocab_size, &rules.guides).code, STATUS_OK);
    uint64_t state = 5;
    for (int walk = 0; walk < 40; walk++) {
        struct request *r = util_request_parse(&rules, line);
        if (r->ask->guide == NULL) printf("\n  %s: %s\n", path, r->error.message);
        CU_ASSERT_FATAL(r->ask->guide != NULL);
        while (r->finish == REQUEST_UNFINISHED) {
            CU_ASSERT_EQUAL_FATAL(request_allow(r, &rules, NULL, allowed).code, STATUS_OK);
            state = state * 6364136223846793005u + 1442695040888963407u;
            int32_t id = (int32_t)((state >> 33) % (uint64_t)rules.vocab_size);
            while ((allowed[id / 32] >> (id % 32) & 1) == 0) id = (id + 1) % rules.vocab_size;
            CU_ASSERT_EQUAL_FATAL(request_take_token(r, &rules, id).code, STATUS_OK);
        }
        const uint16_t end = dfa_run(d, DFA_START, r->text.data, r->text.n);
        const bool is_whole = r->error.code == NULL && (d->flags[end] & DFA_ACCEPTS) != 0;
        if (!is_whole) printf("\n  %s: %.*s\n", path, (int)r->text.n, r->text.data);
        CU_ASSERT(is_whole);
        request_destroy(&r);
    }
    guides_destroy(&rules.guides);
    tokenizer_destroy(&t);
}

/* The tokenizers include some whose decoder removes a space at the start, and some with tokens for
 * bytes. */
static void texts_of_every_decoder_match(void)
{
    static const char *const names[] = {"llama2", "mistral", "gemma",         "spm", "legacy",
                                        "first",  "unigram", "unigram_bytes", "gpt2"};
    static const char PATTERN[] = "( [a-f]|7)[a-z ,]{2,9}(\xC3\xA9| x)[0-9 ]{1,3}\\.";
    struct dfa *d = NULL;
    char path[512], line[256];
    CU_ASSERT_EQUAL_FATAL(util_compile(util_of_pattern, PATTERN, &d).code, STATUS_OK);
    snprintf(line, sizeof line,
             "{\"prompt_token_ids\":[3],\"max_tokens\":90,\"guided_regex\":\"%s\"}",
             "( [a-f]|7)[a-z ,]{2,9}(\xC3\xA9| x)[0-9 ]{1,3}\\\\.");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, TEST_DATA_DIR "/golden/tokenizer/%s.json", names[i]);
        expect_walks(path, line, d);
    }
    dfa_destroy(&d);
}

/* Requests with equal specs share a guide, also after 500 other guides were made and lost their
 * users, and 500 others were refused. */
static void equal_specs_share_a_guide(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = util_request_rules(t);
    CU_ASSERT_EQUAL(guides_create(t, rules.vocab_size, &rules.guides).code, STATUS_OK);
    static const char LINE[] = "{\"prompt\":\"a\",\"guided_choice\":[\"yes\",\"no\"]}";
    struct request *a = util_request_parse(&rules, LINE), *b = util_request_parse(&rules, LINE);
    struct request *c =
        util_request_parse(&rules, "{\"prompt\":\"a\",\"guided_choice\":[\"yes\"]}");
    CU_ASSERT_PTR_NOT_NULL_FATAL(a->ask->guide);
    CU_ASSERT_PTR_EQUAL(a->ask->guide, b->ask->guide);
    CU_ASSERT_PTR_NOT_EQUAL(a->ask->guide, c->ask->guide);
    CU_ASSERT_NOT_EQUAL(guide_hash(a->ask->guide), guide_hash(c->ask->guide));
    for (int i = 0; i < 1000; i++) {
        char line[96];
        snprintf(line, sizeof line, "{\"prompt\":\"a\",\"guided_regex\":\"%d%s\"}", i,
                 i % 2 == 0 ? "" : "(");
        struct request *r = util_request_parse(&rules, line);
        CU_ASSERT_EQUAL(r->error.code != NULL, i % 2 == 1);
        request_destroy(&r);
    }
    request_destroy(&b);
    b = util_request_parse(&rules, LINE);
    CU_ASSERT_PTR_EQUAL(a->ask->guide, b->ask->guide);
    request_destroy(&a);
    request_destroy(&b);
    request_destroy(&c);
    guides_destroy(&rules.guides);
    tokenizer_destroy(&t);
}

static void empty_fields_ask_for_nothing(void)
{
    static const char *const fields[] = {"guided_regex", "guided_choice", "guided_json",
                                         "structured_outputs", "response_format"};
    static const char *const values[] = {"null", "false", "\"\"", "[]"};
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = util_request_rules(t);
    CU_ASSERT_EQUAL(guides_create(t, rules.vocab_size, &rules.guides).code, STATUS_OK);
    for (int i = 0; i < 5 * 4; i++) {
        char line[96];
        snprintf(line, sizeof line, "{\"prompt\":\"a\",\"%s\":%s}", fields[i / 4], values[i % 4]);
        struct request *r = util_request_parse(&rules, line);
        CU_ASSERT_PTR_NULL(r->ask->guide);
        CU_ASSERT_EQUAL(r->error.code == NULL, i <= 16); /* only null switches response_format
                                                            off */
        request_destroy(&r);
    }
    guides_destroy(&rules.guides);
    tokenizer_destroy(&t);
}

/* A value of another type is refused, not ignored or taken for true. If two members exclude each
 * other, the error names both. */
static void values_of_other_types_are_named(void)
{
    static const char *const cases[][2] = {
        {"\"guided_json_object\":\"yes\"",
         "guided_json_object: expected a boolean, found a string"},
        {"\"guided_json_object\":1", "guided_json_object: expected a boolean, found an integer"},
        {"\"structured_outputs\":{\"json_object\":0}",
         "structured_outputs.json_object: expected a boolean, found an integer"},
        {"\"structured_outputs\":\"json\"",
         "structured_outputs: expected an object, found a string"},
        {"\"structured_outputs\":[1]", "structured_outputs: expected an object, found a list"},
        {"\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"b\"]}",
         "structured_outputs.choice: expected one grammar constraint, found "
         "structured_outputs.regex too"},
    };
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = util_request_rules(t);
    CU_ASSERT_EQUAL(guides_create(t, rules.vocab_size, &rules.guides).code, STATUS_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[128];
        snprintf(line, sizeof line, "{\"prompt\":\"a\",%s}", cases[i][0]);
        struct request *r = util_request_parse(&rules, line);
        CU_ASSERT_PTR_NOT_NULL_FATAL(r->error.message);
        CU_ASSERT_STRING_EQUAL(r->error.message, cases[i][1]);
        request_destroy(&r);
    }
    guides_destroy(&rules.guides);
    tokenizer_destroy(&t);
}

/* The automaton has more states than masks are kept for. A mask that is computed again must be the
 * same. */
static void masks_are_made_again(void)
{
    enum { VOCAB = 1 << 20, STATES = 600 }; /* a mask takes 128 KiB */
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = util_request_rules(t);
    rules.vocab_size = VOCAB;
    CU_ASSERT_EQUAL(guides_create(t, VOCAB, &rules.guides).code, STATUS_OK);
    struct request *r =
        util_request_parse(&rules, "{\"prompt\":\"q\",\"guided_regex\":\"([a-c][d-h]){300}\"}");
    CU_ASSERT_PTR_NOT_NULL_FATAL(r->ask->guide);
    for (int pass = 0; pass < 2; pass++) {
        uint16_t state = GUIDE_START;
        for (int i = 0; i < STATES; i++) {
            const uint32_t *mask;
            size_t n_tokens, n_bits = 0;
            CU_ASSERT_EQUAL(guide_mask(r->ask->guide, state, i == 0, &mask, &n_tokens).code,
                            STATUS_OK);
            for (int32_t id = 0; id < VOCAB; id += 32) n_bits += mask[id / 32] != 0;
            CU_ASSERT_EQUAL(n_tokens, i % 2 == 0 ? 3 : 5);
            CU_ASSERT_EQUAL(mask['a' / 32], i % 2 == 0 ? 0xEu : 0x1F0u);
            CU_ASSERT_EQUAL(n_bits, 1);
            state = guide_next(r->ask->guide, state, i % 2 == 0 ? 'b' : 'e', i == 0);
        }
        CU_ASSERT(guide_accepts(r->ask->guide, state));
    }
    request_destroy(&r);
    guides_destroy(&rules.guides);
    tokenizer_destroy(&t);
}

/* Each allocation fails once: the result is an error, without a leak (under AddressSanitizer). */
static void failing_allocations_are_statuses(void)
{
    struct tokenizer *t = util_byte_tokenizer();
    struct request_rules rules = util_request_rules(t);
    static const char LINE[] =
        "{\"prompt\":\"a\",\"guided_json\":{\"type\":\"array\",\"items\":{"
        "\"anyOf\":[{\"enum\":[1,2],\"type\":\"number\",\"minimum\":2},{\"type\":\"string\","
        "\"pattern\":\"^a\",\"format\":\"date\",\"maxLength\":2}]},"
        "\"minItems\":1},\"bad_words\":[\"x\"],"
        "\"allowed_token_ids\":[91]}";
    bool passed = false;
    for (uint64_t n = 1; n < 2000 && !passed; n++) {
        struct request *r = NULL;
        (void)mem_fail_after(n);
        struct status st = guides_create(t, rules.vocab_size, &rules.guides);
        if (!status_failed(&st)) st = request_create(&rules, 1, LINE, sizeof LINE - 1, &r);
        if (!status_failed(&st)) st = request_allow(r, &rules, NULL, allowed);
        passed = mem_fail_after(0) < n;
        CU_ASSERT_EQUAL(st.code, passed ? STATUS_OK : STATUS_MEMORY);
        if (passed) CU_ASSERT_PTR_NOT_NULL(r->ask->guide);
        request_destroy(&r);
        guides_destroy(&rules.guides);
    }
    CU_ASSERT(passed);
    tokenizer_destroy(&t);
}

void suite_guide(CU_pSuite suite);
void suite_guide(CU_pSuite suite)
{
    CU_ADD_TEST(suite, patterns_take_their_texts);
    CU_ADD_TEST(suite, what_is_not_understood_is_named);
    CU_ADD_TEST(suite, tokens_fit_where_their_bytes_do);
    CU_ADD_TEST(suite, lists_of_tokens_and_words_are_kept_to);
    CU_ADD_TEST(suite, words_are_gathered_without_copying_them_all_each_time);
    CU_ADD_TEST(suite, no_token_left_ends_an_answer);
    CU_ADD_TEST(suite, texts_of_every_decoder_match);
    CU_ADD_TEST(suite, equal_specs_share_a_guide);
    CU_ADD_TEST(suite, empty_fields_ask_for_nothing);
    CU_ADD_TEST(suite, values_of_other_types_are_named);
    CU_ADD_TEST(suite, masks_are_made_again);
    CU_ADD_TEST(suite, failing_allocations_are_statuses);
}
