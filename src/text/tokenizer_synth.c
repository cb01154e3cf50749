/* A tokenizer.json out of GGUF arrays. */
#include "text/tokenizer_synth.h"

#include "base/utf8.h"

#include <assert.h>
#include <string.h>

/* What a GGUF's "pre" stands for, as the families' own tokenizer.json files have it. */
struct family {
    const char *pre;
    const char *normalizer;
    const char *pre_tokenizer;
    bool ignore_merges;
    bool add_bos; /* when the file does not say */
};

#define BYTE_LEVEL(regex)                                                                          \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_"              \
    "regex\":" regex "}"
#define SEQUENCE(first, regex)                                                                     \
    "{\"type\":\"Sequence\",\"pretokenizers\":[" first "," BYTE_LEVEL(regex) "]}"
#define SPLIT(digits)                                                                              \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"                   \
    "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|" digits "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|" \
    "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},\"behavior\":\"Isolated\",\"invert\":false}"
#define DIGITS "{\"type\":\"Digits\",\"individual_digits\":true}"

#define GPT2   BYTE_LEVEL("true")
#define SMOLLM SEQUENCE(DIGITS, "true")
#define LLAMA3 SEQUENCE(SPLIT("\\\\p{N}{1,3}"), "false")
#define QWEN2  SEQUENCE(SPLIT("\\\\p{N}"), "false")
#define NFC    "{\"type\":\"NFC\"}"

static const struct family FAMILIES[] = {
    {"gpt-2", "null", GPT2, false, false},          {"smollm", "null", SMOLLM, false, false},
    {"llama-bpe", "null", LLAMA3, true, true},      {"llama3", "null", LLAMA3, true, true},
    {"llama-v3", "null", LLAMA3, true, true},       {"qwen2", NFC, QWEN2, false, false},
    {"deepseek-r1-qwen", NFC, QWEN2, false, false},
};

static struct status find_family(const struct gguf_vocab *v, const struct family **out)
{
    if (v->model == NULL || strcmp(v->model, "gpt2") != 0) {
        return status_make(STATUS_INPUT,
                           "tokenizer.ggml.model is '%.40s', expected 'gpt2' (byte-level BPE)",
                           v->model != NULL ? v->model : "(missing)");
    }
    for (size_t i = 0; i < sizeof FAMILIES / sizeof FAMILIES[0]; i++) {
        if (v->pre == NULL || strcmp(FAMILIES[i].pre, v->pre) != 0) continue;
        *out = &FAMILIES[i];
        return status_ok();
    }
    return status_make(STATUS_INPUT,
                       "tokenizer.ggml.pre is '%.40s', expected gpt-2, smollm, llama-bpe or qwen2",
                       v->pre != NULL ? v->pre : "(missing)");
}

static int32_t type_of(const struct gguf_vocab *v, size_t i)
{
    return v->token_types != NULL ? v->token_types[i] : GGUF_TOKEN_NORMAL;
}

static struct status check_tokens(const struct gguf_vocab *v)
{
    if (v->n_tokens == 0 || v->n_tokens > INT32_MAX) {
        return status_make(STATUS_INPUT, "tokenizer.ggml.tokens has %zu tokens", v->n_tokens);
    }
    for (size_t i = 0; i < v->n_tokens; i++) {
        size_t bad_at;
        const struct gguf_text *t = &v->tokens[i];
        if (!utf8_valid(t->bytes, t->n, &bad_at) || memchr(t->bytes, '\0', t->n) != NULL) {
            return status_make(STATUS_INPUT,
                               "tokenizer.ggml.tokens: token %zu is not UTF-8 or holds a NUL", i);
        }
        const int32_t type = type_of(v, i);
        if (type < GGUF_TOKEN_NORMAL || type > GGUF_TOKEN_UNUSED) {
            return status_make(STATUS_INPUT,
                               "tokenizer.ggml.token_type: token %zu has type %d, expected 1 to 5",
                               i, (int)type);
        }
    }
    return status_ok();
}

static void put_added(const struct gguf_vocab *v, struct strbuf *out)
{
    const char *comma = "";
    strbuf_puts(out, "\"added_tokens\":[");
    for (size_t i = 0; i < v->n_tokens; i++) {
        const int32_t type = type_of(v, i);
        const bool special = type == GGUF_TOKEN_CONTROL || type == GGUF_TOKEN_UNKNOWN;
        if ((!special && type != GGUF_TOKEN_USER_DEFINED) || v->tokens[i].n == 0) continue;
        strbuf_printf(out, "%s\n{\"id\":%zu,\"content\":", comma, i);
        strbuf_json_string(out, v->tokens[i].bytes, v->tokens[i].n);
        strbuf_printf(out,
                      ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                      "\"normalized\":false,\"special\":%s}",
                      special ? "true" : "false");
        comma = ",";
    }
    strbuf_puts(out, "],\n");
}

static void put_vocab(const struct gguf_vocab *v, struct strbuf *out)
{
    const char *comma = "";
    strbuf_puts(out, "\"vocab\":{");
    for (size_t i = 0; i < v->n_tokens; i++) {
        if (type_of(v, i) == GGUF_TOKEN_UNUSED) continue;
        strbuf_printf(out, "%s\n", comma);
        strbuf_json_string(out, v->tokens[i].bytes, v->tokens[i].n);
        strbuf_printf(out, ":%zu", i);
        comma = ",";
    }
    strbuf_puts(out, "},\n");
}

static struct status put_merges(const struct gguf_vocab *v, struct strbuf *out)
{
    strbuf_puts(out, "\"merges\":[");
    for (size_t i = 0; i < v->n_merges; i++) {
        const struct gguf_text *m = &v->merges[i];
        size_t bad_at;
        const char *blank = m->n > 1 ? memchr(m->bytes + 1, ' ', m->n - 1) : NULL;
        if (blank == NULL || !utf8_valid(m->bytes, m->n, &bad_at)) {
            return status_make(STATUS_INPUT,
                               "tokenizer.ggml.merges: merge %zu is not two tokens in UTF-8", i);
        }
        const size_t n_left = (size_t)(blank - m->bytes);
        strbuf_puts(out, i > 0 ? ",\n[" : "\n[");
        strbuf_json_string(out, m->bytes, n_left);
        strbuf_puts(out, ",");
        strbuf_json_string(out, blank + 1, m->n - n_left - 1);
        strbuf_puts(out, "]");
    }
    strbuf_puts(out, "]");
    return status_ok();
}

/* A beginning or end token of the template, and its entry among the special tokens. */
static struct status check_special(const struct gguf_vocab *v, int64_t id, const char *key)
{
    if (id >= 0 && (uint64_t)id < v->n_tokens && type_of(v, (size_t)id) != GGUF_TOKEN_UNUSED) {
        return status_ok();
    }
    return status_make(STATUS_INPUT, "tokenizer.ggml.%s is %lld, expected one of %zu tokens", key,
                       (long long)id, v->n_tokens);
}

static void put_piece(const struct gguf_vocab *v, int64_t id, struct strbuf *out)
{
    strbuf_puts(out, "{\"SpecialToken\":{\"id\":");
    strbuf_json_string(out, v->tokens[id].bytes, v->tokens[id].n);
    strbuf_puts(out, ",\"type_id\":0}}");
}

static void put_entry(const struct gguf_vocab *v, int64_t id, struct strbuf *out)
{
    strbuf_json_string(out, v->tokens[id].bytes, v->tokens[id].n);
    strbuf_puts(out, ":{\"id\":");
    strbuf_json_string(out, v->tokens[id].bytes, v->tokens[id].n);
    strbuf_printf(out, ",\"ids\":[%lld],\"tokens\":[", (long long)id);
    strbuf_json_string(out, v->tokens[id].bytes, v->tokens[id].n);
    strbuf_puts(out, "]}");
}

static struct status put_post_processor(const struct gguf_vocab *v, bool bos, bool eos,
                                        struct strbuf *out)
{
    if (!bos && !eos) {
        strbuf_puts(out, "\"post_processor\":null,\n");
        return status_ok();
    }
    if (bos) TRY(check_special(v, v->bos_id, "bos_token_id"));
    if (eos) TRY(check_special(v, v->eos_id, "eos_token_id"));
    strbuf_puts(out, "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    if (bos) {
        put_piece(v, v->bos_id, out);
        strbuf_puts(out, ",");
    }
    strbuf_puts(out, "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}");
    if (eos) {
        strbuf_puts(out, ",");
        put_piece(v, v->eos_id, out);
    }
    strbuf_puts(out, "],\"pair\":[{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},"
                     "{\"Sequence\":{\"id\":\"B\",\"type_id\":1}}],\"special_tokens\":{");
    if (bos) put_entry(v, v->bos_id, out);
    if (bos && eos && v->bos_id != v->eos_id) strbuf_puts(out, ",");
    if (eos && !(bos && v->bos_id == v->eos_id)) put_entry(v, v->eos_id, out);
    strbuf_puts(out, "}},\n");
    return status_ok();
}

struct status tokenizer_json_from_gguf(const struct gguf_vocab *v, struct strbuf *out)
{
    const struct family *f = NULL;
    TRY(find_family(v, &f));
    assert(f != NULL);
    TRY(check_tokens(v));
    const bool bos = v->add_bos > 0 || (v->add_bos < 0 && f->add_bos && v->bos_id >= 0);
    strbuf_puts(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    put_added(v, out);
    strbuf_printf(out, "\"normalizer\":%s,\n\"pre_tokenizer\":%s,\n", f->normalizer,
                  f->pre_tokenizer);
    TRY(put_post_processor(v, bos, v->add_eos > 0, out));
    strbuf_printf(
        out,
        "\"decoder\":" BYTE_LEVEL(
            "true") ",\n\"model\":{\"type\":\"BPE\","
                    "\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
                    "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,"
                    "\"ignore_merges\":%s,\n",
        f->ignore_merges ? "true" : "false");
    put_vocab(v, out);
    TRY(put_merges(v, out));
    strbuf_puts(out, "}}\n");
    return strbuf_status(out);
}
