/* Target: lines of shoal embed and shoal rank, which are parsed, split into their inputs, and
 * answered by result rows of made-up sums. Bodies of /v1/rerank need a model with one score. */
#include "base/json.h"
#include "base/mem.h"
#include "fuzz/fuzz.h"
#include "serve/output/result_row.h"
#include "serve/request/request.h"
#include "serve/request/request_choice.h"
#include "serve/request/request_embed.h"
#include "unit/util_serve.h"

#include <string.h>

enum { VOCAB = 257, MODEL_LEN = 128, WIDTH = 8 };

static const char *const words[] = {"\"custom_id\":",
                                    "\"input\":",
                                    "\"input\":[",
                                    "\"prompt\":[",
                                    "\"prompt_token_ids\":[",
                                    "\"dimensions\":",
                                    "\"encoding_format\":\"base64\"",
                                    "\"prompt_name\":\"query\"",
                                    "\"query\":",
                                    "\"documents\":[",
                                    "\"instruction\":",
                                    "\"method\":\"POST\"",
                                    "\"url\":\"/v1/embeddings\"",
                                    "\"url\":\"/v1/rerank\"",
                                    "\"top_n\":",
                                    "\"return_documents\":true",
                                    "{\"text\":",
                                    "\"body\":{",
                                    "\"priority\":",
                                    "\"messages\":[",
                                    "[[1,2],[3]]",
                                    "\"a\",[1],",
                                    "<|end|>",
                                    "{document}",
                                    "\\ud83d",
                                    "1e309",
                                    NULL};

static struct embed_rules embeds, ranks, asks;
static struct request_rules embedding, ranking, asking;

static float halve(float x)
{
    return x < 0 ? 0.5f : 1;
}

/* Gives r's inputs their sums, as the scheduler does. */
static void finish(struct request *r)
{
    static const int64_t sums[WIDTH] = {1, -2, INT64_C(1) << 40, 0, -5, 6, 7, 8};
    struct status st;
    if (r->ask->n_choices == 1) {
        st = request_take_pool(r, sums, WIDTH);
        FUZZ_CHECK(!status_failed(&st), "%s", st.text);
        return;
    }
    st = mem_alloc(&r->choices.at, (size_t)r->ask->n_choices, sizeof(struct request *), "choices");
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    r->choices.capacity = (size_t)r->ask->n_choices;
    size_t n_tokens = 0;
    for (uint32_t i = 0; i < r->choices.capacity; i++) {
        st = request_create_choice(r, i, &r->choices.at[i]);
        FUZZ_CHECK(!status_failed(&st), "%s", st.text);
        const struct request *c = r->choices.at[i];
        FUZZ_CHECK(c->n_prompt > 0 && c->n_prompt <= MODEL_LEN, "%zu tokens", c->n_prompt);
        n_tokens += c->n_prompt;
        st = request_take_pool(r->choices.at[i], sums, WIDTH);
        FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    }
    FUZZ_CHECK(n_tokens == r->n_prompt, "%zu tokens of %zu", n_tokens, r->n_prompt);
}

static bool answer(const struct request_rules *rules, const char *bytes, size_t n)
{
    struct request *r = NULL;
    struct strbuf row;
    struct js_doc *doc = NULL;
    struct status st = request_create(rules, 1, bytes, n, &r);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    const bool served = r->error.code == NULL;
    for (size_t i = 0; served && i < r->n_tokens; i++)
        FUZZ_CHECK(r->tokens[i] >= 0 && r->tokens[i] < VOCAB, "token %d", r->tokens[i]);
    FUZZ_CHECK(!served || (r->ask->dimensions > 0 && r->ask->dimensions <= WIDTH), "dimensions %d",
               r->ask->dimensions);
    if (served) finish(r);
    strbuf_init(&row);
    st = result_row_write(r, rules, NULL, &row);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    FUZZ_CHECK(memchr(row.data, '\n', row.n) == row.data + row.n - 1, "a row of several lines");
    st = js_parse(row.data, row.n, "row", &doc);
    FUZZ_CHECK(!status_failed(&st), "%s in %s", st.text, row.data);
    FUZZ_CHECK((js_type(js_get(js_root(doc), "error")) == JS_OBJECT) != served, "%s", row.data);
    js_destroy(&doc);
    strbuf_fini(&row);
    request_destroy(&r);
    return served;
}

static struct request_rules rules_of(const struct embed_rules *embed, struct tokenizer *t)
{
    struct request_rules rules = {
        .tokenizer = t, .vocab_size = VOCAB, .max_model_len = MODEL_LEN, .embed = embed};
    request_defaults_init(&rules.defaults);
    return rules;
}

static bool run(const char *bytes, size_t n)
{
    const bool embedded = answer(&embedding, bytes, n), ranked = answer(&ranking, bytes, n);
    return answer(&asking, bytes, n) || ranked || embedded;
}

static const char *const lines[] = {
    "{\"custom_id\":\"a\",\"input\":\"Once upon\",\"dimensions\":3,\"prompt_name\":\"query\"}",
    "{\"input\":[\"a\",[1,2,255],\"<|end|>\"],\"encoding_format\":\"base64\",\"priority\":-2}",
    "{\"custom_id\":\"c\",\"method\":\"POST\",\"url\":\"/v1/embeddings\",\"body\":{\"model\":\"m\","
    "\"input\":[\"a\",\"b\"],\"user\":\"u\"}}",
    "{\"prompt_token_ids\":[1,2,3]}",
    "{\"query\":\"q\",\"documents\":[\"one\",\"<|end|> {query}\"],\"instruction\":\"why\"}",
    "{\"query\":\"\",\"documents\":[\"\"]}",
    "{\"custom_id\":\"r\",\"method\":\"POST\",\"url\":\"/v1/rerank\",\"body\":{\"query\":\"q\","
    "\"documents\":[\"one\",{\"text\":\"two\\u0000\"},\"one\"],\"top_n\":2,"
    "\"return_documents\":true}}"};

static void begin(struct fuzz_seeds *seeds)
{
    static const char prompts[] = "{\"query\":\"find: \",\"document\":\"\"}";
    static const float head[3 * WIDTH] = {1, 2, -3};
    static struct js_doc *doc;
    const struct status st = js_parse(prompts, sizeof prompts - 1, "prompts", &doc);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    embeds = (struct embed_rules){.pool = POOL_MEAN,
                                  .normalizes = true,
                                  .width = WIDTH,
                                  .dimensions = WIDTH,
                                  .prompts = js_root(doc)};
    ranks =
        (struct embed_rules){.pool = POOL_LAST,
                             .width = WIDTH,
                             .dimensions = WIDTH,
                             .rank = {.head = head,
                                      .n_labels = 3,
                                      .scale = 1,
                                      .activation = RANK_SOFTMAX,
                                      .exponential = halve,
                                      .pair_template = "<|end|>{instruction}{query}: {document}{",
                                      .instruction = "rank"}};
    asks = ranks;
    asks.rank.n_labels = 2;
    asks.rank.is_yes_no = true;
    asks.rank.activation = RANK_SIGMOID;
    struct tokenizer *t = util_byte_tokenizer();
    embedding = rules_of(&embeds, t);
    ranking = rules_of(&ranks, t);
    asking = rules_of(&asks, t);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        fuzz_seed_add(seeds, lines[i], strlen(lines[i]));
}

extern const struct fuzz_target fuzz_embed;
const struct fuzz_target fuzz_embed = {"embed", words, begin, run};
