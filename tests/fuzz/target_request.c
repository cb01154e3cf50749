/* Target: lines of an input file, which are read, parsed and answered by result rows. */
#include "base/json.h"
#include "base/mem.h"
#include "fuzz/fuzz.h"
#include "serve/input/line_reader.h"
#include "serve/output/result_row.h"
#include "serve/request/request.h"
#include "serve/request/request_answer.h"
#include "unit/util_serve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MOST = 4096, VOCAB = 257, MODEL_LEN = 128 };

static const char *const words[] = {"\"custom_id\":",
                                    "\"prompt\":",
                                    "\"messages\":[",
                                    "\"prompt_token_ids\":[",
                                    "\"max_tokens\":",
                                    "\"temperature\":",
                                    "\"top_p\":",
                                    "\"top_k\":",
                                    "\"min_p\":",
                                    "\"seed\":",
                                    "\"stop\":[",
                                    "\"n\":",
                                    "\"priority\":",
                                    "\"logprobs\":",
                                    "\"top_logprobs\":",
                                    "\"prompt_logprobs\":",
                                    "\"presence_penalty\":",
                                    "\"repetition_penalty\":",
                                    "\"stop_token_ids\":[",
                                    "\"min_tokens\":",
                                    "\"ignore_eos\":true",
                                    "\"use_beam_search\":true",
                                    "\"logit_bias\":{",
                                    "\"method\":\"POST\"",
                                    "\"url\":\"/v1/chat/completions\"",
                                    "\"url\":\"/v1/completions\"",
                                    "\"body\":{",
                                    "\"role\":\"user\"",
                                    "\"content\":",
                                    "\"stream\":true",
                                    "\"guided_regex\":\"(a|[b-c]{2,3})*\\\\d\"",
                                    "\"guided_choice\":[",
                                    "\"allowed_token_ids\":[97,98,256",
                                    "\"bad_words\":[\"ab\",\"c\"",
                                    "\"prefixItems\":[{\"$ref\":\"#\"}",
                                    "\"guided_json\":{\"type\":",
                                    "\"allOf\":[{\"minimum\":0.5},",
                                    "\"properties\":{\"a\":{\"anyOf\":[",
                                    "\"array\",\"items\":{\"$ref\":\"#\",\"maxItems\":",
                                    "\"pattern\":\"",
                                    "\"max_completion_tokens\":",
                                    "<|end|>",
                                    "\xEF\xBB\xBF",
                                    "\r\n",
                                    "\n",
                                    "\"a\":[[[[[[[[[[[[[[[[",
                                    "\\ud83d",
                                    "1e309",
                                    NULL};

static struct request_rules rules;

static void check_request(const struct request *r)
{
    if (r->error.code != NULL) {
        const struct status st = status_make(STATUS_REQUEST, "%s", r->error.message);
        (void)fuzz_refused(&st);
        return;
    }
    FUZZ_CHECK(r->n_prompt > 0 && r->n_tokens == r->n_prompt, "%zu tokens", r->n_tokens);
    for (int32_t i = 0; i < r->ask->n_prompts; i++) {
        const size_t begin = i > 0 ? r->prompts[i - 1].end : 0;
        const size_t end = r->ask->n_prompts > 1 ? r->prompts[i].end : r->n_prompt;
        FUZZ_CHECK(end > begin && end - begin <= MODEL_LEN, "a prompt of %zu tokens", end - begin);
    }
    for (size_t i = 0; i < r->n_tokens; i++) {
        FUZZ_CHECK(r->tokens[i] >= 0 && r->tokens[i] < VOCAB, "token %d", r->tokens[i]);
    }
    const int32_t fewest = r->ask->echo || r->ask->n_prompt_logprobs >= 0 ? 0 : 1;
    FUZZ_CHECK(r->ask->max_tokens >= fewest, "max_tokens %d", r->ask->max_tokens);
    FUZZ_CHECK(r->ask->temperature >= 0 && isfinite(r->ask->temperature), "temperature %g",
               (double)r->ask->temperature);
    FUZZ_CHECK(r->ask->top_p > 0 && r->ask->top_p <= 1, "top_p %g", (double)r->ask->top_p);
    FUZZ_CHECK(r->ask->min_p >= 0 && r->ask->min_p <= 1, "min_p %g", (double)r->ask->min_p);
    FUZZ_CHECK(r->ask->top_k >= 0, "top_k %d", r->ask->top_k);
}

/* A token that r may draw next: the first allowed one from `token` on, cyclically. */
static int32_t allowed_from(struct request *r, int32_t token)
{
    uint32_t allowed[(VOCAB + 31) / 32];
    if (!request_is_narrowed(r)) return token;
    const struct status st = request_allow(r, &rules, NULL, allowed);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    for (int32_t i = 0; i < VOCAB; i++, token = (token + 1) % VOCAB)
        if (allowed[token / 32] >> (token % 32) & 1) return token;
    FUZZ_CHECK(false, "no token is allowed behind %zu", r->n_tokens);
    return token;
}

/* Reads the line as shoal score does, and writes its row, unless it is refused or has several
 * prompts or windows. */
static bool score_line(const struct line *line)
{
    struct request_rules scoring = rules;
    struct request *r = NULL;
    struct strbuf row;
    scoring.score = scoring.takes_pairs = true;
    scoring.prefix_id = 256;
    scoring.guides = NULL;
    struct status st = request_create(&scoring, line->number, line->text, line->n, &r);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    check_request(r);
    if (r->error.code == NULL && r->ask->n_choices == 1) {
        FUZZ_CHECK(r->logprobs.score_from >= 1 && r->logprobs.score_from <= r->n_prompt, "from %zu",
                   r->logprobs.score_from);
        r->finish = REQUEST_SCORED;
        strbuf_init(&row);
        st = result_row_write(r, &scoring, NULL, &row);
        FUZZ_CHECK(!status_failed(&st), "%s", st.text);
        struct js_doc *doc = NULL;
        st = js_parse(row.data, row.n, "row", &doc);
        FUZZ_CHECK(!status_failed(&st), "%s in %s", st.text, row.data);
        js_destroy(&doc);
        strbuf_fini(&row);
    }
    const bool scored = r->error.code == NULL;
    request_destroy(&r);
    return scored;
}

/* Serves a line for some tokens, or makes its error row; either row is one line of JSON. Makes no
 * row for several answers, beams or scores of the prompt. */
static bool serve_line(const struct line *line)
{
    struct request *r = NULL;
    struct status st =
        line->kind == LINE_TOO_LONG
            ? request_create_failed(line->number, "line_too_long", "the line is too long", &r)
            : request_create(&rules, line->number, line->text, line->n, &r);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    check_request(r);
    const bool served = r->error.code == NULL;
    if (served &&
        (r->ask->n_choices > 1 || r->ask->beam.width > 0 || r->ask->n_prompt_logprobs >= 0)) {
        request_destroy(&r); /* the scheduler fills in what its row needs */
        return true;
    }
    for (int32_t i = 0; served && r->finish == REQUEST_UNFINISHED && i < 40; i++) {
        struct plan_top tops[32] = {{.id = 0}};
        FUZZ_CHECK(r->ask->n_logprobs <= 32, "%d alternatives", r->ask->n_logprobs);
        if (r->ask->n_logprobs >= 0) st = request_take_logprob(r, -0.5f, tops);
        FUZZ_CHECK(!status_failed(&st), "%s", st.text);
        st = request_take_token(r, &rules, allowed_from(r, 'a' + i % 26));
        FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    }
    struct strbuf row;
    struct js_doc *doc = NULL;
    strbuf_init(&row);
    st = result_row_write(r, &rules, NULL, &row);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    FUZZ_CHECK(memchr(row.data, '\n', row.n) == row.data + row.n - 1, "a row of several lines");
    st = js_parse(row.data, row.n, "row", &doc);
    FUZZ_CHECK(!status_failed(&st), "%s in %s", st.text, row.data);
    const bool failed = r->error.code != NULL; /* bad words may leave a grammar without a token */
    FUZZ_CHECK((js_type(js_get(js_root(doc), "error")) == JS_OBJECT) == failed, "%s", row.data);
    js_destroy(&doc);
    strbuf_fini(&row);
    request_destroy(&r);
    return served;
}

static bool run(const char *bytes, size_t n)
{
    struct line_reader *reader = NULL;
    struct line line = {.kind = LINE_OK};
    uint64_t n_lines = 0, n_served = 0;
    const char *path = fuzz_scratch("in.jsonl");
    fuzz_write(path, bytes, n);
    struct status st = line_reader_create(path, LINE_MOST, &reader);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    for (;;) {
        st = line_reader_next(reader, true, &line);
        FUZZ_CHECK(!status_failed(&st), "%s", st.text);
        if (line.kind == LINE_END) break;
        FUZZ_CHECK(line.kind != LINE_WAIT, "a file that must be waited for");
        FUZZ_CHECK(line.number == ++n_lines, "line %llu", (unsigned long long)line.number);
        const bool scored = line.kind == LINE_OK && score_line(&line);
        n_served += serve_line(&line) || scored;
    }
    uint64_t n_ends = 0;
    for (size_t i = 0; i < n; i++) n_ends += bytes[i] == '\n';
    FUZZ_CHECK(n_lines == n_ends || n_lines == n_ends + 1, "%llu lines, %llu line ends",
               (unsigned long long)n_lines, (unsigned long long)n_ends);
    line_reader_destroy(&reader);
    return n_lines > 0 && n_served == n_lines;
}

static const char *const lines[] = {
    "{\"custom_id\":\"a1\",\"prompt\":\"Once upon\",\"max_tokens\":16,\"temperature\":0.7,"
    "\"top_p\":0.9,\"top_k\":40,\"min_p\":0.05,\"seed\":7,\"stop\":[\"abc\",\"z\"]}\n",
    "{\"prompt_token_ids\":[1,2,3,255],\"max_tokens\":4,\"temperature\":0}\n"
    "{\"custom_id\":\"\\u00e9\",\"prompt\":\"<|end|>x\",\"stop\":\"q\",\"priority\":-3}\r\n",
    "{\"custom_id\":\"o\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"model\":"
    "\"m\",\"prompt\":\"Hi\",\"max_tokens\":5,\"temperature\":0}}",
    "{\"custom_id\":\"c\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"model\":"
    "\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"Be.\"},{\"role\":\"user\",\"content\":"
    "\"\xF0\x9F\x98\x80 <|end|>\"}],\"max_tokens\":5}}\n",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"line\\none\\\"\"}],\"max_tokens\":1}\n",
    "{\"prompt\":\"a "
    "b\",\"max_tokens\":9,\"logprobs\":3,\"presence_penalty\":0.5,\"frequency_penalty\":"
    "-0.5,\"repetition_penalty\":1.1,\"logit_bias\":{\"97\":-100,\"98\":2.5},\"stop_token_ids\":[5]"
    ","
    "\"min_tokens\":2}\n",
    "{\"prompt\":\"a b\",\"max_tokens\":9,\"n\":3,\"best_of\":3,\"ignore_eos\":true}\n",
    "{\"prompt\":\"a b\",\"max_tokens\":4,\"prompt_logprobs\":2}\n",
    "{\"context\":\"a b \\u3000\",\"continuation\":\" "
    "c\"}\n{\"context\":[1],\"continuation\":[2,3]}\n"
    "{\"text\":\"abc<|end|>\",\"add_special_tokens\":false,\"prefix_token_id\":7}\n",
    "{\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"prompt\":[\"a\",\"bc\"],"
    "\"echo\":true,\"logprobs\":1,\"max_tokens\":0}}\n",
    "{\"prompt\":\"a\",\"guided_regex\":\"^(ab?|[^x-z]{2,3})*(?:\\\\d+|\\\\u00e9)$\"}\n"
    "{\"prompt\":\"a\",\"guided_choice\":[\"ab\",\"\\u00e9\"],\"logprobs\":1}\n",
    "{\"prompt\":\"a\",\"guided_json\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":"
    "\"string\",\"maxLength\":3},\"b\":{\"type\":\"array\",\"items\":{\"type\":\"integer\","
    "\"minimum\":-3},\"maxItems\":2}},\"required\":[\"a\"]}}\n"
    "{\"prompt\":\"a\",\"guided_json\":{\"allOf\":[{\"type\":\"number\",\"minimum\":-1.5},{"
    "\"maximum\":1e3}],"
    "\"anyOf\":[{\"type\":\"integer\"},{\"enum\":[0.5,7]},{\"$ref\":\"#\"}]}}\n"
    "{\"prompt\":\"a\",\"guided_json\":{\"type\":\"string\",\"pattern\":\"a\",\"maxLength\":4}}\n"
    "{\"prompt\":\"a\",\"guided_json\":{\"properties\":{\"a\":{\"prefixItems\":[{\"$ref\":"
    "\"#\"}]}}},\"bad_words\":[\"a\",\" bc\"],\"allowed_token_ids\":[34,91,93,97,123,125]}\n"};

static void begin(struct fuzz_seeds *seeds)
{
    static const char TEMPLATE[] = "{% for m in messages %}<|end|>{{ m.role }}: {{ m.content }}\n"
                                   "{% endfor %}";
    struct chat *chat = NULL;
    struct status st = chat_create(TEMPLATE, sizeof TEMPLATE - 1, NULL, "chat template", &chat);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    static const int32_t end_ids[] = {256};
    rules = (struct request_rules){.tokenizer = util_byte_tokenizer(),
                                   .chat = chat,
                                   .end_ids = end_ids,
                                   .n_end_ids = 1,
                                   .vocab_size = VOCAB,
                                   .max_model_len = MODEL_LEN};
    request_defaults_init(&rules.defaults);
    st = guides_create(rules.tokenizer, VOCAB, &rules.guides);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        fuzz_seed_add(seeds, lines[i], strlen(lines[i]));
    }
}

extern const struct fuzz_target fuzz_request;
const struct fuzz_target fuzz_request = {"request", words, begin, run};
