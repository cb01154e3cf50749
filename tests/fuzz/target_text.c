/* Targets: tokenizer.json, tiktoken.model, a chat template, config.json. */
#include "arch/arch.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "checkpoint/convert/published.h"
#include "fuzz/fuzz.h"
#include "parallel/layout/layout.h"
#include "text/chat/chat.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/tiktoken.h"
#include "text/tokenizer/tokenizer.h"
#include "unit/small_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tokenizer.json ---- */

static const char *const tokenizer_words[] = {"\"type\":\"ByteLevel\"",
                                              "\"Split\"",
                                              "\"Regex\"",
                                              "\\\\p{N}",
                                              "(?i:",
                                              "(?=",
                                              "\"Digits\"",
                                              "\"Sequence\"",
                                              "\"NFC\"",
                                              "\"Replace\"",
                                              "\"Prepend\"",
                                              "\"Metaspace\"",
                                              "\"Unigram\"",
                                              "\"ByteFallback\"",
                                              "\"byte_fallback\":true",
                                              "\"merges\"",
                                              "\"vocab\"",
                                              "\"added_tokens\"",
                                              "\"special\":true",
                                              "\"lstrip\":true",
                                              "\"normalized\":true",
                                              "\"id\":",
                                              "\"content\":\"",
                                              "\"single_word\":true",
                                              "\"unk_token\"",
                                              "\"ignore_merges\"",
                                              "\"TemplateProcessing\"",
                                              "{1,1000}",
                                              "\\u0120",
                                              "<0x0A>",
                                              "(a*)*",
                                              NULL};

static const char *const texts[] = {
    "ab ab <s>  e\xCC\x81\xFF 12 xxab abababababababababababab",
    "Hello, world!\r\n\t It's 12345 <|end|> \xF0\x9F\x98\x80 \xE6\x97\xA5\xE6\x9C\xAC", "",
    "                                                        a",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"};

/* Checks that ids are in the vocabulary, that encoding twice gives the same ids, and that they
 * decode. */
static void encode_text(struct tokenizer *t, const char *text, unsigned flags)
{
    const size_t n = strlen(text);
    struct token_list once = {0}, twice = {0};
    const struct status st = tokenizer_encode(t, text, n, flags, &once);
    const struct status again = tokenizer_encode(t, text, n, flags, &twice);
    FUZZ_CHECK(st.code == again.code, "%s, then %s", st.text, again.text);
    if (status_failed(&st)) (void)fuzz_refused(&st);
    FUZZ_CHECK(once.n == twice.n &&
                   (once.n == 0 || memcmp(once.ids, twice.ids, once.n * sizeof *once.ids) == 0),
               "%zu ids, then %zu others", once.n, twice.n);
    struct detokenizer d;
    struct strbuf out;
    detokenizer_init(&d, false);
    strbuf_init(&out);
    for (size_t i = 0; i < once.n; i++) {
        FUZZ_CHECK(once.ids[i] >= 0 && once.ids[i] < tokenizer_vocab_size(t), "id %d", once.ids[i]);
        const struct status fed = detokenizer_feed(&d, t, once.ids[i], &out);
        FUZZ_CHECK(!status_failed(&fed), "%s", fed.text);
    }
    const struct status flushed = detokenizer_flush(&d, t, &out);
    size_t bad_at;
    FUZZ_CHECK(!status_failed(&flushed), "%s", flushed.text);
    FUZZ_CHECK(out.n == 0 || utf8_valid(out.data, out.n, &bad_at), "text that is not UTF-8");
    detokenizer_fini(&d);
    detokenizer_fini(&d);
    strbuf_fini(&out);
    token_list_fini(&twice);
    token_list_fini(&once);
}

static void use_tokenizer(struct tokenizer *t)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        encode_text(t, texts[i], 0);
        encode_text(t, texts[i], TOKENIZER_ADD_SPECIAL | TOKENIZER_PARSE_SPECIAL);
    }
    size_t n_bytes;
    FUZZ_CHECK(tokenizer_token_bytes(t, tokenizer_vocab_size(t), &n_bytes) == NULL,
               "a token behind the vocabulary");
    FUZZ_CHECK(tokenizer_token_bytes(t, -1, &n_bytes) == NULL, "a token before the vocabulary");
}

static bool run_tokenizer(const char *bytes, size_t n)
{
    struct tokenizer *t = NULL;
    const struct status st = tokenizer_create(bytes, n, "tokenizer.json", &t);
    if (status_failed(&st)) return fuzz_refused(&st);
    use_tokenizer(t);
    tokenizer_destroy(&t);
    return true;
}

/* A vocabulary of characters instead of bytes: a chain of normalizers, Metaspace, byte fallback, a
 * chain of decoders. */
static const char SMALL_CHARS[] =
    "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},"
    "{\"id\":9,\"content\":\"E\xCC\x81x\",\"normalized\":true,\"lstrip\":true,\"special\":false}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKD\"},{\"type\":"
    "\"StripAccents\"},{\"type\":\"Lowercase\"},{\"type\":\"Strip\",\"strip_left\":true,"
    "\"strip_right\":true},{\"type\":\"NFC\"},{\"type\":\"Replace\",\"pattern\":{\"Regex\":"
    "\"x{2,}\"},\"content\":\"b\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\"  \"},"
    "\"content\":\" \"},{\"type\":\"Prepend\",\"prepend\":\"a\"}]},\"pre_tokenizer\":{\"type\":"
    "\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"first\",\"split\":true},"
    "\"post_processor\":{\"type\":\"RobertaProcessing\",\"sep\":[\"b\",3],\"cls\":[\"a\",2]},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
    "\"String\":"
    "\"\xE2\x96\x81\"},\"content\":\" "
    "\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":"
    "\"Strip\",\"content\":\" "
    "\",\"start\":1,\"stop\":0}]},\"model\":{\"type\":\"BPE\",\"unk_token\":"
    "\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,\"vocab\":{\"<unk>\":0,\"<0x21>\":1,\"a\":"
    "2,"
    "\"b\":3,\"ab\":4,\"\xE2\x96\x81\":5,\"\xE2\x96\x81"
    "ab\":6,\"<0xC3>\":7,\"<0xA9>\":8},\"merges\":[[\"a\",\"b\"],[\"\xE2\x96\x81\",\"ab\"]]}}";

static const char SMALL_UNIGRAM[] =
    "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":{\"type\":\"NFKC\"},\"pre_tokenizer\":"
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":"
    "\"Metaspace\","
    "\"replacement\":\"_\",\"prepend_scheme\":\"always\"}]},\"post_processor\":{\"type\":"
    "\"BertProcessing\",\"sep\":[\"a\",1],\"cls\":[\"b\",2]},\"decoder\":{\"type\":\"Metaspace\","
    "\"replacement\":\"_\",\"prepend_scheme\":\"always\"},\"model\":{\"type\":\"Unigram\",\"unk_"
    "id\":0,"
    "\"byte_fallback\":true,\"vocab\":[[\"<unk>\",0],[\"a\",-1.5],[\"b\",-2],[\"ab\",-2.25],[\"_\","
    "-3],"
    "[\"_ab\",-4.5],[\"<0x21>\",-9],[\"aaaa\",-5]]}}";

static void begin_tokenizer(struct fuzz_seeds *seeds)
{
    /* small seeds get more weight: a change of a large one mostly changes its vocabulary */
    for (int i = 0; i < 3; i++) {
        fuzz_seed_add(seeds, SMALL_TOKENIZER, sizeof SMALL_TOKENIZER - 1);
        fuzz_seed_add(seeds, SMALL_CHARS, sizeof SMALL_CHARS - 1);
        fuzz_seed_add(seeds, SMALL_UNIGRAM, sizeof SMALL_UNIGRAM - 1);
        fuzz_seed_file(seeds, "golden/models/llama-gqa/hf/tokenizer.json");
        fuzz_seed_file(seeds, "golden/models/qwen3-moe-mixed/hf/tokenizer.json");
    }
    fuzz_seed_file(seeds, "golden/models/smollm-tied/hf/tokenizer.json");
    fuzz_seed_file(seeds, "golden/tokenizer/odd.json");
    fuzz_seed_file(seeds, "golden/tokenizer/mistral.json");
    fuzz_seed_file(seeds, "golden/tokenizer/unigram_bytes.json");
    fuzz_seed_file(seeds, "golden/tokenizer/legacy.json");
    fuzz_seed_file(seeds, "golden/tokenizer/first.json");
}

/* ---- tiktoken.model ---- */

static const char *const tiktoken_words[] = {
    "YWI= ", "YQ== 0\n", "AAA= 999999999\n", "=", "\r\n", "\n", " 256\n", " 0\n", NULL};

static struct js_doc *kimi_config;

static bool run_tiktoken(const char *bytes, size_t n)
{
    struct tokenizer *t = NULL;
    struct strbuf json;
    strbuf_init(&json);
    struct status st = tokenizer_json_from_tiktoken(bytes, n, js_root(kimi_config), &json);
    if (!status_failed(&st)) st = tokenizer_create(json.data, json.n, "tiktoken.model", &t);
    strbuf_fini(&json);
    if (status_failed(&st)) return fuzz_refused(&st);
    use_tokenizer(t);
    tokenizer_destroy(&t);
    return true;
}

static void begin_tiktoken(struct fuzz_seeds *seeds)
{
    struct fuzz_bytes config = fuzz_read("golden/tokenizer/tiktoken/tokenizer_config.json");
    const struct status st = js_parse(config.bytes, config.n, "config", &kimi_config);
    FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    free(config.bytes);
    struct fuzz_bytes ranks = fuzz_read("golden/tokenizer/tiktoken/tiktoken.model");
    size_t n_lines = 0, n = 0;
    while (n_lines < 270) n_lines += ranks.bytes[n++] == '\n'; /* the 256 bytes and a few more */
    for (int i = 0; i < 3; i++) fuzz_seed_add(seeds, ranks.bytes, n);
    fuzz_seed_add(seeds, ranks.bytes, ranks.n);
    free(ranks.bytes);
}

/* ---- a chat template ---- */

static const char *const chat_words[] = {"{%- if ",
                                         "{% for m in messages %}",
                                         "{% endfor %}",
                                         "{% endif %}",
                                         "{%- else %}",
                                         "{{ ",
                                         " }}",
                                         "{% set ",
                                         "namespace(",
                                         "{% macro f(x) %}",
                                         "{% endmacro %}",
                                         "raise_exception(",
                                         "strftime_now('%Y')",
                                         "|tojson",
                                         "|trim",
                                         "|length",
                                         "|join(',')",
                                         "|map(attribute='a')",
                                         "|selectattr(",
                                         "|replace(",
                                         "|indent",
                                         ".split(' ')",
                                         ".strip()",
                                         "[::-1]",
                                         "[1:]",
                                         "loop.index0",
                                         "loop.last",
                                         "range(1000000000)",
                                         "'a' * 999999999",
                                         "~",
                                         "is defined",
                                         "not in",
                                         "**",
                                         "//",
                                         "%}",
                                         "{#",
                                         "#}",
                                         "{% break %}",
                                         "messages[0]['content']",
                                         "f(f)",
                                         "{% call ",
                                         "{% filter upper %}",
                                         "{% raw %}",
                                         "((((((((((",
                                         "[[[[[[[[[[",
                                         "\\x41",
                                         "'%s' % ",
                                         ".format(",
                                         "|upper",
                                         NULL};

static struct js_doc *conversations[3];

/* U+E000 in the conversations; in the output it marks text of users. */
#define MARK "\xEE\x80\x80"
static const char *const conversation_texts[] = {
    "{\"messages\":[{\"role\":\"system\",\"content\":\" Be " MARK ". \"},{\"role\":\"user\","
    "\"content\":\"" MARK
    "<s> H\xC3\xA9 <|im_start|>\"},{\"role\":\"assistant\",\"content\":\"" MARK
    " ok\"},{\"role\":\"user\",\"content\":\"" MARK "\"}]}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"" MARK "\"},{\"role\":\"assistant\","
    "\"content\":null,\"tool_calls\":[{\"type\":\"function\",\"id\":\"c1\",\"function\":{\"name\":"
    "\"" MARK "f\",\"arguments\":{\"a\":1,\"b\":[1.5,true,null,\"" MARK "\"]}}}]},{\"role\":"
    "\"tool\",\"content\":\"12\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"w\","
    "\"description\":\"" MARK "\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":"
    "{\"type\":\"string\"}},\"required\":[\"a\"]}}}]}"};

static void check_text(const struct chat_text *text, bool has_mark)
{
    size_t at = 0, bad_at;
    FUZZ_CHECK(utf8_valid(text->bytes, text->n, &bad_at), "output that is not UTF-8");
    for (size_t i = 0; i < text->n_spans; i++) {
        const struct text_span *s = &text->spans[i];
        FUZZ_CHECK(s->begin == at && s->end > s->begin, "span %zu begins at %zu", i, s->begin);
        FUZZ_CHECK(i == 0 || s->is_user != text->spans[i - 1].is_user, "span %zu", i);
        at = s->end;
        if (s->is_user || has_mark || s->end - s->begin < 3) continue;
        FUZZ_CHECK(memmem(text->bytes + s->begin, s->end - s->begin, MARK, 3) == NULL,
                   "a user's text passes for the template's");
    }
    FUZZ_CHECK(at == text->n, "spans end at %zu of %zu", at, text->n);
}

static bool run_chat(const char *bytes, size_t n)
{
    struct chat *chat = NULL;
    const struct status st = chat_create(bytes, n, NULL, "chat template", &chat);
    if (status_failed(&st)) return fuzz_refused(&st);
    /* the template may contain the mark itself */
    const bool has_mark =
        n > 0 && (memchr(bytes, 0xEE, n) != NULL || memchr(bytes, '\\', n) != NULL);
    for (size_t i = 0; i < sizeof conversations / sizeof conversations[0]; i++) {
        const struct js_node *root = js_root(conversations[i]);
        struct chat_text text = {0};
        const struct chat_options options = {.tools = js_get(root, "tools"),
                                             .extra = js_get(root, "extra"),
                                             .limits = {.max_steps = 300000,
                                                        .max_memory_bytes = 8 << 20,
                                                        .max_output_bytes = 1 << 20}};
        const struct status done = chat_render(chat, js_get(root, "messages"), &options, &text);
        if (status_failed(&done)) {
            (void)fuzz_refused(&done);
        } else {
            check_text(&text, has_mark);
        }
        chat_text_fini(&text);
    }
    chat_destroy(&chat);
    return true;
}

static void begin_chat(struct fuzz_seeds *seeds)
{
    static const char *const names[] = {"channel", "chatml", "header", "inst", "observe",  "odd",
                                        "plain",   "roles",  "state",  "sys",  "thinking", "turn"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "golden/chat/%s.jinja", names[i]);
        fuzz_seed_file(seeds, path);
    }
    struct fuzz_bytes features = fuzz_read("golden/chat/features_chat.json");
    for (size_t i = 0; i < 3; i++) {
        const char *text = i < 2 ? conversation_texts[i] : features.bytes;
        const struct status st = js_parse(text, strlen(text), "conversation", &conversations[i]);
        FUZZ_CHECK(!status_failed(&st), "%s", st.text);
    }
    free(features.bytes);
    /* small templates with features of all kinds, one per line; those that compile become seeds */
    struct fuzz_bytes lines = fuzz_read("golden/chat/features.jsonl");
    for (char *line = strtok(lines.bytes, "\n"); line != NULL && seeds->n < FUZZ_SEEDS_MAX / 2;
         line = strtok(NULL, "\n")) {
        struct js_doc *doc = NULL;
        const struct status st = js_parse(line, strlen(line), "feature", &doc);
        size_t n = 0;
        const char *template =
            status_failed(&st) ? NULL : js_string(js_get(js_root(doc), "template"), &n);
        struct chat *chat = NULL;
        const struct status made =
            template == NULL ? st : chat_create(template, n, NULL, "feature", &chat);
        if (template != NULL && !status_failed(&made)) fuzz_seed_add(seeds, template, n);
        chat_destroy(&chat);
        js_destroy(&doc);
    }
    free(lines.bytes);
}

/* ---- config.json ---- */

static const char *const config_words[] = {"\"num_hidden_layers\":",
                                           "\"hidden_size\":",
                                           "\"num_attention_heads\":",
                                           "\"num_key_value_heads\":",
                                           "\"head_dim\":",
                                           "\"vocab_size\":",
                                           "\"intermediate_size\":",
                                           "\"max_position_embeddings\":",
                                           "\"rope_theta\":",
                                           "\"rope_scaling\":{\"rope_type\":\"yarn\"}",
                                           "\"sliding_window\":",
                                           "\"num_local_experts\":",
                                           "\"num_experts_per_tok\":",
                                           "\"num_experts\":",
                                           "\"moe_intermediate_size\":",
                                           "\"decoder_sparse_step\":",
                                           "\"mlp_only_layers\":[",
                                           "\"norm_topk_prob\":",
                                           "\"tie_word_embeddings\":",
                                           "\"rms_norm_eps\":",
                                           "\"eos_token_id\":[",
                                           "\"LlamaForCausalLM\"",
                                           "\"MixtralForCausalLM\"",
                                           "\"Qwen3MoeForCausalLM\"",
                                           "\"GraniteMoeHybridForCausalLM\"",
                                           "\"NemotronHForCausalLM\"",
                                           "\"hybrid_override_pattern\":\"M-*E\"",
                                           "\"time_step_limit\":[0,Infinity]",
                                           "\"num_local_experts\":0",
                                           "\"architectures\":[",
                                           "\"hidden_act\":\"silu\"",
                                           "\"use_sliding_window\":true",
                                           NULL};

static bool run_config(const char *bytes, size_t n)
{
    struct arch m;
    struct strbuf text; /* as convert reads it */
    strbuf_init(&text);
    strbuf_add(&text, bytes, n);
    struct status st = published_finite_config(&text);
    if (!status_failed(&st)) st = arch_parse(text.data, text.n, "config.json", &m);
    strbuf_fini(&text);
    if (status_failed(&st)) return fuzz_refused(&st);
    for (uint32_t l = 0; l < m.n_layers; l++)
        FUZZ_CHECK(!m.layer.lacks_mixer[l] || !m.layer.lacks_ffn[l], "layer %u is empty", l);
    FUZZ_CHECK(m.delta.n_key_heads == 0 || m.delta.n_value_heads % m.delta.n_key_heads == 0,
               "%u and %u recurrent heads", m.delta.n_value_heads, m.delta.n_key_heads);
    FUZZ_CHECK(m.attn.n_heads > 0 && m.attn.n_kv_heads > 0 &&
                   m.attn.n_heads % m.attn.n_kv_heads == 0,
               "%u and %u heads", m.attn.n_heads, m.attn.n_kv_heads);
    FUZZ_CHECK(m.n_layers > 0 && m.n_layers <= ARCH_LAYERS_MAX && m.attn.head_dim > 0, "%u layers",
               m.n_layers);
    FUZZ_CHECK(m.moe.n_chosen <= m.moe.n_experts, "%u of %u experts", m.moe.n_chosen,
               m.moe.n_experts);
    FUZZ_CHECK(m.n_eos_ids <= sizeof m.eos_ids / sizeof m.eos_ids[0], "%u end ids", m.n_eos_ids);
    struct layout_model shape;
    struct layout *layout = malloc(sizeof *layout);
    layout_describe(&m, 2, &shape);
    const struct layout_flags flags = {.tp = 2, .pp = 1};
    st = layout_build(&shape, 4, &flags, layout);
    if (status_failed(&st)) {
        (void)fuzz_refused(&st);
    } else {
        const struct layout_memory memory =
            layout_memory_of(layout, layout_place_of(layout, 3), (struct layout_kv){2, 0}, 512);
        FUZZ_CHECK(memory.weights_bytes < 1ull << 62, "%llu bytes",
                   (unsigned long long)memory.weights_bytes);
    }
    free(layout);
    return true;
}

static void begin_config(struct fuzz_seeds *seeds)
{
    static const char *const names[] = {
        "models/llama-gqa/hf",     "models/mixtral/hf",         "models/qwen3-moe/hf",
        "models/smollm-tied/hf",   "models/qwen3-moe-mixed/hf", "configs/mixtral-8x7b",
        "configs/qwen3-235b-a22b", "models/qwen3-next/hf",      "models/granite4/hf",
        "models/granite4-moe/hf",  "models/nemotron-h/hf",      "models/nemotron-h-moe/hf",
        "models/kimi-linear/hf",   "models/kimi-linear-odd/hf", "models/ling3/hf",
        "models/ling3-odd/hf",     "models/deepseek-v4/hf",     "models/deepseek-v4-odd/hf"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128];
        snprintf(path, sizeof path, "golden/%s/config.json", names[i]);
        fuzz_seed_file(seeds, path);
    }
}

extern const struct fuzz_target fuzz_tokenizer, fuzz_tiktoken, fuzz_chat, fuzz_config;
const struct fuzz_target fuzz_tokenizer = {"tokenizer", tokenizer_words, begin_tokenizer,
                                           run_tokenizer};
const struct fuzz_target fuzz_tiktoken = {"tiktoken", tiktoken_words, begin_tiktoken, run_tiktoken};
const struct fuzz_target fuzz_chat = {"chat", chat_words, begin_chat, run_chat};
const struct fuzz_target fuzz_config = {"config", config_words, begin_config, run_config};
