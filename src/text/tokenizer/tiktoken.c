/* Writes a tokenizer.json from tiktoken's ranks. */
#include "text/tokenizer/tiktoken.h"

#include "base/base64.h"
#include "base/utf8.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/tokenizer_synth.h"

#include <stdio.h>
#include <string.h>

enum { N_SPECIAL = 256, RANKS_MAX = 1 << 26 };

/* Appends bytes as a JSON string of the characters that represent them in byte-level
 * vocabularies. */
static struct status tiktoken_put_token(const struct byte_alphabet *alphabet,
                                        const struct strbuf *bytes, struct strbuf *key,
                                        struct strbuf *out)
{
    char c[4];
    strbuf_clear(key);
    for (size_t i = 0; i < bytes->n; i++) {
        strbuf_add(key, c, utf8_encode(alphabet->char_of[(unsigned char)bytes->data[i]], c));
    }
    TRY(strbuf_status(key));
    strbuf_json_string(out, key->data, key->n);
    return status_ok();
}

struct rank_walk {
    const char *text;
    size_t n, at;
    size_t entry; /* number of the line last read, from 1; empty lines do not count */
    struct strbuf bytes;
};

/* Reads the next line's token into w->bytes, and its rank; *found is false at the end. */
static struct status next_token_rank(struct rank_walk *w, uint64_t *rank, bool *found)
{
    while (w->at < w->n && (w->text[w->at] == '\n' || w->text[w->at] == '\r')) w->at++;
    *found = w->at < w->n;
    if (!*found) return status_ok();
    w->entry++;
    const char *line = w->text + w->at;
    const char *end = memchr(line, '\n', w->n - w->at);
    size_t n = end != NULL ? (size_t)(end - line) : w->n - w->at;
    w->at += n;
    if (n > 0 && line[n - 1] == '\r') n--;
    const char *blank = memchr(line, ' ', n);
    size_t at = blank != NULL ? (size_t)(blank - line) + 1 : n;
    strbuf_clear(&w->bytes);
    bool ok = at < n && base64_decode(line, at - 1, &w->bytes);
    for (*rank = 0; ok && at < n; at++) {
        ok = line[at] >= '0' && line[at] <= '9' && *rank < RANKS_MAX;
        if (ok) *rank = *rank * 10 + (uint64_t)(line[at] - '0');
    }
    if (!ok) {
        return status_make(STATUS_INPUT, "tiktoken.model: entry %zu is no token in base64 and rank",
                           w->entry);
    }
    return strbuf_status(&w->bytes);
}

/* Appends the members "token":rank of the vocabulary's object, and sets *n_ranks to their number.
 * Refuses ranks whose maximum is not *n_ranks - 1; the loader refuses repeated ranks. */
static struct status tiktoken_put_ranks(struct rank_walk *w, struct strbuf *key, struct strbuf *out,
                                        uint64_t *n_ranks)
{
    struct byte_alphabet alphabet;
    uint64_t rank, rank_max = 0;
    bool found;
    byte_alphabet_init(&alphabet);
    for (*n_ranks = 0;; ++*n_ranks) {
        TRY(next_token_rank(w, &rank, &found));
        if (!found) break;
        if (rank > rank_max) rank_max = rank;
        strbuf_puts(out, *n_ranks > 0 ? ",\n" : "\n");
        TRY(tiktoken_put_token(&alphabet, &w->bytes, key, out));
        strbuf_printf(out, ":%llu", (unsigned long long)rank);
    }
    if (*n_ranks == 0 || rank_max != *n_ranks - 1) {
        return status_make(STATUS_INPUT,
                           "tiktoken.model: %llu ranks, the largest is %llu, expected 0 to the "
                           "number of ranks - 1, each once",
                           (unsigned long long)*n_ranks, (unsigned long long)rank_max);
    }
    return status_ok();
}

static void put_special(const struct js_node *named, uint64_t id, bool first, struct strbuf *out)
{
    char text[64];
    size_t n;
    bool special = true;
    snprintf(text, sizeof text, "%llu", (unsigned long long)id);
    const struct js_node *token = js_get(named, text);
    const char *content = js_string(js_get(token, "content"), &n);
    if (content != NULL) {
        special = false;
        js_bool(js_get(token, "special"), &special);
    } else {
        n = (size_t)snprintf(text, sizeof text, "<|reserved_token_%llu|>", (unsigned long long)id);
        content = text;
    }
    strbuf_printf(out, "%s\n{\"id\":%llu,\"content\":", first ? "" : ",", (unsigned long long)id);
    strbuf_json_string(out, content, n);
    strbuf_printf(out,
                  ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
                  "\"special\":%s}",
                  special ? "true" : "false");
}

/* Refuses a tokenizer_class other than Kimi-K2's, because the pre-tokenizer of another class is
 * unknown; accepts a missing one. */
static struct status check_class(const struct js_node *config)
{
    const char *name = js_string(js_get(config, "tokenizer_class"), NULL);
    if (name == NULL || strcmp(name, "TikTokenTokenizer") == 0) return status_ok();
    return status_make(STATUS_INPUT,
                       "tiktoken.model: the tokenizer_class is '%.40s', expected Kimi-K2's "
                       "TikTokenTokenizer",
                       name);
}

struct status tokenizer_json_from_tiktoken(const char *ranks, size_t n_bytes,
                                           const struct js_node *config, struct strbuf *out)
{
    struct rank_walk walk = {.text = ranks, .n = n_bytes};
    struct strbuf key;
    uint64_t n_ranks = 0;
    TRY(check_class(config));
    strbuf_init(&walk.bytes);
    strbuf_init(&key);
    strbuf_puts(out,
                "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"normalizer\":null,"
                "\n\"pre_tokenizer\":");
    strbuf_puts(out, tokenizer_synth_kimi());
    strbuf_puts(out, ",\n\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\n\"model\":"
                     "{\"type\":\"Tiktoken\",\"vocab\":{");
    const struct status st = tiktoken_put_ranks(&walk, &key, out, &n_ranks);
    strbuf_fini(&walk.bytes);
    strbuf_fini(&key);
    TRY(st);
    strbuf_puts(out, "}},\n\"added_tokens\":[");
    const struct js_node *named = js_get(config, "added_tokens_decoder");
    for (uint64_t i = 0; i < N_SPECIAL; i++) put_special(named, n_ranks + i, i == 0, out);
    strbuf_puts(out, "]}\n");
    return strbuf_status(out);
}
