/* Writes a tokenizer.json from the arrays of a GGUF file. */
#include "text/tokenizer/tokenizer_synth.h"

#include "base/mem.h"
#include "base/str_map.h"
#include "base/utf8.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A value of GGUF's "pre", and the parts of a tokenizer.json that it implies. */
struct family {
    const char *pre;
    const char *normalizer;
    const char *pre_tokenizer;
    bool ignore_merges;
    bool add_bos; /* used when the file has no add_bos_token */
};

/* Normalizers of SentencePiece's BPE: both replace each blank by U+2581; BLANK_BEFORE also puts a
 * U+2581 before the text. */
#define BLANKS_OUT                                                                                 \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}"
#define BLANK_BEFORE                                                                               \
    "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"                   \
    "\"\xE2\x96\x81\"}," BLANKS_OUT "]}"
#define SPM_DECODER(strip)                                                                         \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"          \
    "\"\xE2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}" strip   \
    "]}"
#define STRIP ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"

static const struct family SPM = {"", BLANK_BEFORE, "null", false, true};
static const struct family SPM_BARE = {"", BLANKS_OUT, "null", false, true};

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

#define SPLIT_AT(pattern)                                                                          \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern                                        \
    "\"},\"behavior\":\"Isolated\",\"invert\":false}"

/* Parts of the patterns of o200k, Tekken and Kimi-K2: the letters that may begin a word, the
 * letters that may follow them, an optional character before a word, English endings, words, and
 * whitespace. */
#define UPPER        "\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}"
#define LOWER        "\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}"
#define BEFORE_WORD  "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define WORDS(besides, endings)                                                                    \
    BEFORE_WORD "[" UPPER besides "]*[" LOWER besides "]+" endings "|" BEFORE_WORD                 \
                "[" UPPER besides "]+[" LOWER besides "]*" endings
#define BLANKS "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

#define O200K                                                                                      \
    SEQUENCE(                                                                                      \
        SPLIT_AT(WORDS(                                                                            \
            "", CONTRACTIONS) "|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*" BLANKS),  \
        "false")
#define TEKKEN                                                                                     \
    SEQUENCE(SPLIT_AT(WORDS("", "") "|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*" BLANKS), \
             "false")
#define KIMI                                                                                       \
    SEQUENCE(SPLIT_AT("[\\\\p{Han}]+|" WORDS(                                                      \
                 "&&[^\\\\p{Han}]",                                                                \
                 CONTRACTIONS) "|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*" BLANKS),  \
             "false")
#define DEEPSEEK                                                                                   \
    SEQUENCE(SPLIT_AT("\\\\p{N}{1,3}") "," SPLIT_AT(                                               \
                 "[\\\\u4e00-\\\\u9fa5\\\\u3040-\\\\u309f\\\\u30a0-"                               \
                 "\\\\u30ff]+") "," SPLIT_AT("[!\\\"#$%&'()*+,\\\\-./"                             \
                                             ":;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|"         \
                                             "[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}"     \
                                             "\\\\p{M}]+|"                                         \
                                             " ?[\\\\p{P}\\\\p{S}]+[\\\\r\\\\n]*" BLANKS),         \
             "false")

#define GPT2   BYTE_LEVEL("true")
#define SMOLLM SEQUENCE(DIGITS, "true")
#define LLAMA3 SEQUENCE(SPLIT("\\\\p{N}{1,3}"), "false")
#define QWEN2  SEQUENCE(SPLIT("\\\\p{N}"), "false")
#define NFC    "{\"type\":\"NFC\"}"

static const struct family FAMILIES[] = {
    {"gpt-2", "null", GPT2, false, false},
    {"smollm", "null", SMOLLM, false, false},
    {"olmo", NFC, GPT2, false, false},
    {"starcoder", "null", SMOLLM, false, false},
    {"refact", "null", SMOLLM, false, false},
    {"llama-bpe", "null", LLAMA3, true, true},
    {"llama3", "null", LLAMA3, true, true},
    {"llama-v3", "null", LLAMA3, true, true},
    {"chatglm-bpe", "null", LLAMA3, false, false},
    {"glm4", "null", LLAMA3, false, false},
    {"dbrx", "null", LLAMA3, false, false},
    {"qwen2", NFC, QWEN2, false, false},
    {"deepseek-r1-qwen", NFC, QWEN2, false, false},
    {"gpt-4o", "null", O200K, false, false},
    {"tekken", "null", TEKKEN, true, true},
    {"kimi-k2", "null", KIMI, true, false},
    {"deepseek-v3", "null", DEEPSEEK, false, false},
};

static bool is_spm(const struct gguf_vocab *v)
{
    return v->model != NULL && strcmp(v->model, "llama") == 0;
}

static struct status tokenizer_synth_find_family(const struct gguf_vocab *v,
                                                 const struct family **out)
{
    if (is_spm(v)) {
        *out = v->add_blank != 0 ? &SPM : &SPM_BARE;
        return status_ok();
    }
    if (v->model == NULL || strcmp(v->model, "gpt2") != 0) {
        return status_make(STATUS_INPUT,
                           "tokenizer.ggml.model is '%.40s', expected 'gpt2' (byte-level BPE) or "
                           "'llama' (SentencePiece's BPE)",
                           v->model != NULL ? v->model : "(missing)");
    }
    for (size_t i = 0; i < sizeof FAMILIES / sizeof FAMILIES[0]; i++) {
        if (v->pre == NULL || strcmp(FAMILIES[i].pre, v->pre) != 0) continue;
        *out = &FAMILIES[i];
        return status_ok();
    }
    return status_make(STATUS_INPUT,
                       "tokenizer.ggml.pre is '%.40s', expected gpt-2, smollm, olmo, starcoder, "
                       "refact, llama-bpe, glm4, dbrx, qwen2, gpt-4o, tekken, kimi-k2 or "
                       "deepseek-v3",
                       v->pre != NULL ? v->pre : "(missing)");
}

static int32_t tokenizer_synth_type_of(const struct gguf_vocab *v, size_t i)
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
        const int32_t type = tokenizer_synth_type_of(v, i);
        const int32_t last = is_spm(v) ? GGUF_TOKEN_BYTE : GGUF_TOKEN_UNUSED;
        if (type < GGUF_TOKEN_NORMAL || type > last) {
            return status_make(STATUS_INPUT,
                               "tokenizer.ggml.token_type: token %zu has type %d, expected 1 to %d",
                               i, (int)type, (int)last);
        }
    }
    return status_ok();
}

static void put_added(const struct gguf_vocab *v, struct strbuf *out)
{
    const char *comma = "";
    strbuf_puts(out, "\"added_tokens\":[");
    for (size_t i = 0; i < v->n_tokens; i++) {
        const int32_t type = tokenizer_synth_type_of(v, i);
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
        if (tokenizer_synth_type_of(v, i) == GGUF_TOKEN_UNUSED) continue;
        strbuf_printf(out, "%s\n", comma);
        strbuf_json_string(out, v->tokens[i].bytes, v->tokens[i].n);
        strbuf_printf(out, ":%zu", i);
        comma = ",";
    }
    strbuf_puts(out, "},\n");
}

static void put_merge(const char *left, size_t n_left, const char *right, size_t n_right,
                      bool first, struct strbuf *out)
{
    strbuf_puts(out, first ? "\n[" : ",\n[");
    strbuf_json_string(out, left, n_left);
    strbuf_puts(out, ",");
    strbuf_json_string(out, right, n_right);
    strbuf_puts(out, "]");
}

static struct status put_merges(const struct gguf_vocab *v, struct strbuf *out)
{
    for (size_t i = 0; i < v->n_merges; i++) {
        const struct gguf_text *m = &v->merges[i];
        size_t bad_at;
        const char *blank = m->n > 1 ? memchr(m->bytes + 1, ' ', m->n - 1) : NULL;
        if (blank == NULL || !utf8_valid(m->bytes, m->n, &bad_at)) {
            return status_make(STATUS_INPUT,
                               "tokenizer.ggml.merges: merge %zu is not two tokens in UTF-8", i);
        }
        const size_t n_left = (size_t)(blank - m->bytes);
        put_merge(m->bytes, n_left, blank + 1, m->n - n_left - 1, i == 0, out);
    }
    return status_ok();
}

/* One way to make an ordinary token from two. */
struct spm_merge {
    float score;
    uint32_t token;
    uint32_t n_left;                /* bytes of the left part */
    uint32_t left_chars, all_chars; /* characters of the left part, and of the whole token */
};

static int compare_merges(const void *a, const void *b)
{
    const struct spm_merge *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->left_chars != y->left_chars) return x->left_chars > y->left_chars ? -1 : 1;
    if (x->all_chars != y->all_chars) return x->all_chars > y->all_chars ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

/* Writes all splits of token i into two ordinary tokens to `merges`; returns their number. */
static size_t split_token(const struct gguf_vocab *v, const struct str_map *ordinary, size_t i,
                          struct spm_merge *merges)
{
    const struct gguf_text *t = &v->tokens[i];
    size_t n = 0, n_chars = 0, step;
    for (size_t at = 0; at < t->n; at += step) {
        utf8_sequence(t->bytes + at, t->n - at, &step);
        if (at > 0 && str_map_get(ordinary, t->bytes, at) >= 0 &&
            str_map_get(ordinary, t->bytes + at, t->n - at) >= 0) {
            merges[n++] = (struct spm_merge){.score = v->scores[i],
                                             .token = (uint32_t)i,
                                             .n_left = (uint32_t)at,
                                             .left_chars = (uint32_t)n_chars};
        }
        n_chars++;
    }
    for (size_t k = 0; k < n; k++) merges[k].all_chars = (uint32_t)n_chars;
    return n;
}

/* Fills `ordinary` with the tokens of type NORMAL, and allocates *merges for all splits of them, at
 * most one for each byte. */
static struct status alloc_splits(const struct gguf_vocab *v, struct str_map *ordinary,
                                  struct spm_merge **merges)
{
    size_t n_bytes = 0;
    TRY(str_map_init(ordinary, v->n_tokens));
    for (size_t i = 0; i < v->n_tokens; i++) {
        if (tokenizer_synth_type_of(v, i) != GGUF_TOKEN_NORMAL) continue;
        n_bytes += v->tokens[i].n;
        if (v->tokens[i].n > 0)
            str_map_add(ordinary, v->tokens[i].bytes, v->tokens[i].n, (int32_t)i);
    }
    return mem_alloc(merges, n_bytes, sizeof **merges, "merges");
}

/* Writes merges that have the same effect as the scores. */
static struct status put_spm_merges(const struct gguf_vocab *v, struct strbuf *out)
{
    struct str_map ordinary = {0};
    struct spm_merge *merges = NULL;
    size_t n = 0;
    struct status st = alloc_splits(v, &ordinary, &merges);
    if (status_failed(&st)) goto done;
    for (size_t i = 0; i < v->n_tokens; i++) {
        if (tokenizer_synth_type_of(v, i) != GGUF_TOKEN_NORMAL) continue;
        if (!isfinite(v->scores[i])) {
            st = status_make(STATUS_INPUT, "tokenizer.ggml.scores: token %zu has no finite score",
                             i);
            goto done;
        }
        n += split_token(v, &ordinary, i, merges + n);
    }
    if (n > 1) qsort(merges, n, sizeof merges[0], compare_merges);
    for (size_t k = 0; k < n; k++) {
        const struct gguf_text *t = &v->tokens[merges[k].token];
        const size_t n_left = merges[k].n_left;
        put_merge(t->bytes, n_left, t->bytes + n_left, t->n - n_left, k == 0, out);
    }
done:
    mem_free(&merges);
    str_map_fini(&ordinary);
    return st;
}

/* Returns an error unless the id of a beginning or end token belongs to a token in use. */
static struct status check_special(const struct gguf_vocab *v, int64_t id, const char *key)
{
    if (id >= 0 && (uint64_t)id < v->n_tokens &&
        tokenizer_synth_type_of(v, (size_t)id) != GGUF_TOKEN_UNUSED) {
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

static void put_model_head(const struct gguf_vocab *v, const struct family *f, struct strbuf *out)
{
    const char *yes = is_spm(v) ? "true" : "false";
    size_t unk = 0;
    while (unk < v->n_tokens && tokenizer_synth_type_of(v, unk) != GGUF_TOKEN_UNKNOWN) unk++;
    strbuf_puts(out, "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (is_spm(v) && unk < v->n_tokens) {
        strbuf_json_string(out, v->tokens[unk].bytes, v->tokens[unk].n);
    } else {
        strbuf_puts(out, "null");
    }
    strbuf_printf(out,
                  ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                  "\"fuse_unk\":%s,\"byte_fallback\":%s,\"ignore_merges\":%s,\n",
                  yes, yes, f->ignore_merges ? "true" : "false");
}

static const char *decoder_of(const struct gguf_vocab *v, const struct family *f)
{
    if (!is_spm(v)) return BYTE_LEVEL("true");
    return f == &SPM ? SPM_DECODER(STRIP) : SPM_DECODER("");
}

struct status tokenizer_json_from_gguf(const struct gguf_vocab *v, struct strbuf *out)
{
    const struct family *f = NULL;
    TRY(tokenizer_synth_find_family(v, &f));
    assert(f != NULL);
    TRY(check_tokens(v));
    if (is_spm(v) && v->scores == NULL) {
        return status_make(STATUS_INPUT, "tokenizer.ggml.scores is missing, the model is 'llama'");
    }
    const bool bos = v->add_bos > 0 || (v->add_bos < 0 && f->add_bos && v->bos_id >= 0);
    strbuf_puts(out, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    put_added(v, out);
    strbuf_printf(out, "\"normalizer\":%s,\n\"pre_tokenizer\":%s,\n", f->normalizer,
                  f->pre_tokenizer);
    TRY(put_post_processor(v, bos, v->add_eos > 0, out));
    strbuf_printf(out, "\"decoder\":%s,\n", decoder_of(v, f));
    put_model_head(v, f, out);
    put_vocab(v, out);
    strbuf_puts(out, "\"merges\":[");
    TRY(is_spm(v) ? put_spm_merges(v, out) : put_merges(v, out));
    strbuf_puts(out, "]}}\n");
    return strbuf_status(out);
}

const char *tokenizer_synth_kimi(void)
{
    return KIMI;
}
