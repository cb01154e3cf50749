/* tokenizer.json's "model", "added_tokens" and "post_processor" into a tokenizer. */
#include "text/tokenizer_internal.h"

#include "base/mem.h"
#include "text/json_read.h"
#include "text/unicode.h"

#include <stdio.h>
#include <string.h>

enum { TOKEN_BYTES_MAX = 1 << 20 };

/* What the vocabulary and the added tokens need, found before anything is stored. */
struct sizes {
    size_t n_vocab, n_added;
    size_t key_bytes; /* of both */
    int64_t id_max;
};

static struct status measure_vocab(const struct js_node *vocab, struct sizes *s, const char *what)
{
    const void *it = NULL;
    const char *key;
    const struct js_node *value;
    while (js_next(vocab, &it, &key, &value)) {
        int64_t id;
        if (!js_int(value, &id) || id < 0) {
            return status_make(STATUS_INPUT, "%s: the id of token '%.40s' is no count", what, key);
        }
        s->n_vocab++;
        s->key_bytes += strlen(key);
        if (id > s->id_max) s->id_max = id;
    }
    return status_ok();
}

static struct status measure_added(const struct js_node *list, struct sizes *s, const char *what)
{
    if (js_type(list) != JS_NULL && js_type(list) != JS_ARRAY) {
        return status_make(STATUS_INPUT, "%s: 'added_tokens' is no list", what);
    }
    s->n_added = js_type(list) == JS_ARRAY ? js_count(list) : 0;
    for (size_t i = 0; i < s->n_added; i++) {
        const struct js_node *token = js_at(list, i);
        int64_t id;
        size_t n;
        if (!js_int(js_get(token, "id"), &id) || id < 0 ||
            js_string(js_get(token, "content"), &n) == NULL || n > TOKEN_BYTES_MAX) {
            return status_make(STATUS_INPUT, "%s: added token %zu has no id or no content", what,
                               i);
        }
        s->key_bytes += n;
        if (id > s->id_max) s->id_max = id;
    }
    return status_ok();
}

static struct status measure(const struct js_node *vocab, const struct js_node *added,
                             struct sizes *s, const char *what)
{
    *s = (struct sizes){.id_max = -1};
    TRY(measure_vocab(vocab, s, what));
    TRY(measure_added(added, s, what));
    const size_t n = s->n_vocab + s->n_added;
    if (s->n_vocab == 0) return status_make(STATUS_INPUT, "%s: the vocabulary is empty", what);
    if (s->id_max > INT32_MAX / 2 || (size_t)s->id_max > 2 * n + 65536) {
        return status_make(STATUS_INPUT, "%s: %zu tokens, but an id of %lld", what, n,
                           (long long)s->id_max);
    }
    return status_ok();
}

/* Room for everything that s counted; keys, bytes, and the normalized form of added tokens. */
static struct status make_room(struct tokenizer *t, const struct sizes *s)
{
    t->n_tokens = (size_t)s->id_max + 1;
    t->n_vocab = s->n_vocab;
    t->arena_bytes = 8 * s->key_bytes + 1;
    TRY(mem_alloc(&t->arena, t->arena_bytes, 1, "vocabulary"));
    TRY(mem_alloc(&t->tokens, t->n_tokens, sizeof t->tokens[0], "vocabulary"));
    TRY(mem_alloc(&t->added, s->n_added, sizeof t->added[0], "added tokens"));
    TRY(str_map_init(&t->keys, s->n_vocab + s->n_added));
    if (t->ignore_merges) TRY(str_map_init(&t->bytes, s->n_vocab));
    return status_ok();
}

/* The bytes that a key stands for: decoded when all of it is byte-level, else as it is. */
static void set_bytes(struct tokenizer *t, struct token_info *info, const char *key, size_t n,
                      bool *byte_level)
{
    char *to = tokenizer_arena_add(t, key, n);
    size_t n_bytes = n;
    *byte_level = byte_alphabet_decode(&t->alphabet, key, n, to, &n_bytes);
    if (!*byte_level && n > 0) memcpy(to, key, n);
    info->bytes = to;
    info->n = (uint32_t)(*byte_level ? n_bytes : n);
}

static struct status store_vocab(struct tokenizer *t, const struct js_node *vocab, const char *what)
{
    const void *it = NULL;
    const char *text;
    const struct js_node *value;
    while (js_next(vocab, &it, &text, &value)) {
        int64_t id;
        js_int(value, &id);
        struct token_info *info = &t->tokens[id];
        if (info->in_model) {
            return status_make(STATUS_INPUT, "%s: two tokens have the id %lld, one is '%.40s'",
                               what, (long long)id, text);
        }
        const size_t n = strlen(text);
        const char *key = tokenizer_arena_add(t, text, n);
        bool byte_level;
        set_bytes(t, info, key, n, &byte_level);
        info->in_model = true;
        str_map_add(&t->keys, key, n, (int32_t)id);
        if (t->ignore_merges && byte_level) {
            str_map_add(&t->bytes, info->bytes, info->n, (int32_t)id);
        }
        if (byte_level && info->n == 1) t->bpe.byte_id[(unsigned char)info->bytes[0]] = (int32_t)id;
    }
    return status_ok();
}

static bool is_empty(const struct js_node *node)
{
    size_t n;
    return js_type(node) == JS_NULL || (js_string(node, &n) != NULL && n == 0);
}

/* Fields of the model that must have no effect. */
static struct status check_model(const struct js_node *model, const char *what)
{
    static const char *const KNOWN[] = {"type",
                                        "dropout",
                                        "unk_token",
                                        "continuing_subword_prefix",
                                        "end_of_word_suffix",
                                        "fuse_unk",
                                        "byte_fallback",
                                        "ignore_merges",
                                        "vocab",
                                        "merges",
                                        NULL};
    static const char *const MUST_BE_EMPTY[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const struct js_node *type = js_get(model, "type");
    const char *name = js_string(type, NULL);
    if (type != NULL && (name == NULL || strcmp(name, "BPE") != 0)) {
        return status_make(STATUS_INPUT,
                           "%s: the model type '%.40s' is not supported; expected "
                           "BPE",
                           what, name != NULL ? name : "(no string)");
    }
    TRY(status_wrap(json_known_fields(model, "model", KNOWN), "%s", what));
    for (size_t i = 0; i < 2; i++) {
        if (is_empty(js_get(model, MUST_BE_EMPTY[i]))) continue;
        return status_make(STATUS_INPUT, "%s: a model with %s is not supported", what,
                           MUST_BE_EMPTY[i]);
    }
    const struct js_node *dropout = js_get(model, "dropout");
    double rate = 0;
    if (js_type(dropout) != JS_NULL && (!js_number(dropout, &rate) || rate != 0)) {
        return status_make(STATUS_INPUT, "%s: a model with dropout is not supported", what);
    }
    if (js_type(js_get(model, "vocab")) != JS_OBJECT ||
        js_type(js_get(model, "merges")) != JS_ARRAY) {
        return status_make(STATUS_INPUT, "%s: the model has no vocab or no merges", what);
    }
    return status_ok();
}

/* What becomes of bytes that the vocabulary lacks. */
static struct status load_unknown(struct tokenizer *t, const struct js_node *model,
                                  const char *what)
{
    bool fallback;
    TRY(status_wrap(json_bool_field(model, "byte_fallback", "model", false, &fallback), "%s",
                    what));
    TRY(status_wrap(json_bool_field(model, "fuse_unk", "model", false, &t->bpe.fuse_unk), "%s",
                    what));
    bool complete = true;
    for (int i = 0; i < 256; i++) complete = complete && t->bpe.byte_id[i] >= 0;
    if (fallback && !complete) {
        return status_make(STATUS_INPUT,
                           "%s: byte_fallback with a vocabulary that lacks bytes is "
                           "not supported",
                           what);
    }
    const struct js_node *unk = js_get(model, "unk_token");
    if (js_type(unk) == JS_NULL || complete) return status_ok();
    size_t n;
    const char *name = js_string(unk, &n);
    t->bpe.unk_id = name != NULL ? str_map_get(&t->keys, name, n) : -1;
    if (t->bpe.unk_id >= 0) return status_ok();
    return status_make(STATUS_INPUT, "%s: the unk_token is not in the vocabulary", what);
}

struct status tokenizer_load_vocab(struct tokenizer *t, const struct js_node *model,
                                   const struct js_node *added, const char *what)
{
    struct sizes sizes;
    TRY(check_model(model, what));
    TRY(status_wrap(json_bool_field(model, "ignore_merges", "model", false, &t->ignore_merges),
                    "%s", what));
    TRY(bpe_init(&t->bpe, js_count(js_get(model, "merges"))));
    TRY(measure(js_get(model, "vocab"), added, &sizes, what));
    TRY(make_room(t, &sizes));
    TRY(store_vocab(t, js_get(model, "vocab"), what));
    return load_unknown(t, model, what);
}

/* The two halves of a merge: "left right" or ["left", "right"]. */
static bool merge_halves(const struct js_node *node, const char **left, size_t *n_left,
                         const char **right, size_t *n_right)
{
    if (js_type(node) == JS_ARRAY && js_count(node) == 2) {
        *left = js_string(js_at(node, 0), n_left);
        *right = js_string(js_at(node, 1), n_right);
        return *left != NULL && *right != NULL;
    }
    size_t n;
    *left = js_string(node, &n);
    const char *blank = *left != NULL ? memchr(*left, ' ', n) : NULL;
    if (blank == NULL) return false;
    *n_left = (size_t)(blank - *left);
    *right = blank + 1;
    *n_right = n - *n_left - 1;
    return memchr(*right, ' ', *n_right) == NULL;
}

/* The id of left and right put together, or -1 (also when `join` has failed). */
static int32_t joined_id(const struct tokenizer *t, const char *left, size_t n_left,
                         const char *right, size_t n_right, struct strbuf *join)
{
    strbuf_clear(join);
    strbuf_add(join, left, n_left);
    strbuf_add(join, right, n_right);
    return join->data != NULL ? str_map_get(&t->keys, join->data, join->n) : -1;
}

static struct status load_merge(struct tokenizer *t, const struct js_node *node, size_t i,
                                struct strbuf *join, const char *what)
{
    const char *left, *right;
    size_t n_left, n_right;
    if (!merge_halves(node, &left, &n_left, &right, &n_right)) {
        return status_make(STATUS_INPUT, "%s: merge %zu is not a pair of tokens", what, i);
    }
    const int32_t left_id = str_map_get(&t->keys, left, n_left);
    const int32_t right_id = str_map_get(&t->keys, right, n_right);
    const int32_t id = joined_id(t, left, n_left, right, n_right, join);
    TRY(strbuf_status(join));
    if (left_id < 0 || right_id < 0 || id < 0) {
        return status_make(STATUS_INPUT,
                           "%s: merge %zu ('%.40s', '%.40s') names or makes a token "
                           "that the vocabulary lacks",
                           what, i, left, right);
    }
    bpe_add_merge(&t->bpe, left_id, right_id, id);
    return status_ok();
}

struct status tokenizer_load_merges(struct tokenizer *t, const struct js_node *model,
                                    const char *what)
{
    const struct js_node *merges = js_get(model, "merges");
    const bool legacy = js_string(js_at(merges, 0), NULL) != NULL;
    struct strbuf join;
    strbuf_init(&join);
    struct status st = status_ok();
    for (size_t i = 0; i < js_count(merges) && !status_failed(&st); i++) {
        const struct js_node *node = js_at(merges, i);
        const char *text = js_string(node, NULL);
        if ((text != NULL) != legacy) {
            st = status_make(STATUS_INPUT, "%s: merge %zu is not of the kind of merge 0", what, i);
        } else if (text == NULL || strncmp(text, "#version", 8) != 0) {
            st = load_merge(t, node, i, &join, what);
        }
    }
    strbuf_fini(&join);
    return st;
}

/* One added token; *next_id is the id that a token new to the vocabulary must have. */
static struct status read_added(struct tokenizer *t, const struct js_node *node,
                                struct added_token *token, int64_t *next_id)
{
    static const char *const KNOWN[] = {"id",     "content",    "single_word", "lstrip",
                                        "rstrip", "normalized", "special",     NULL};
    const char *content = js_string(js_get(node, "content"), &token->n);
    char where[80];
    snprintf(where, sizeof where, "added token '%.40s'", content);
    TRY(json_known_fields(node, where, KNOWN));
    TRY(json_bool_field(node, "special", where, false, &token->special));
    TRY(json_bool_field(node, "single_word", where, false, &token->single_word));
    TRY(json_bool_field(node, "lstrip", where, false, &token->lstrip));
    TRY(json_bool_field(node, "rstrip", where, false, &token->rstrip));
    TRY(json_bool_field(node, "normalized", where, !token->special, &token->normalized));
    int64_t id;
    js_int(js_get(node, "id"), &id);
    const int32_t known = str_map_get(&t->keys, content, token->n);
    const int64_t expected = known >= 0 ? known : (*next_id)++;
    if (id != expected || t->tokens[id].added || (known < 0 && t->tokens[id].in_model)) {
        return status_make(STATUS_INPUT, "%s: the id is %lld, expected %lld, given once", where,
                           (long long)id, (long long)expected);
    }
    token->id = (int32_t)id;
    token->content = tokenizer_arena_add(t, content, token->n);
    if (known < 0) str_map_add(&t->keys, token->content, token->n, (int32_t)id);
    return status_ok();
}

/* Normalizes what is searched in normalized text, and sets what the token stands for. */
static struct status finish_added(struct tokenizer *t, struct added_token *token)
{
    struct token_info *info = &t->tokens[token->id];
    info->added = true;
    info->special = token->special;
    if (token->normalized && t->nfc && !unicode_is_plain(token->content, token->n)) {
        struct strbuf nfc;
        strbuf_init(&nfc);
        struct status st = unicode_nfc(token->content, token->n, &nfc);
        if (!status_failed(&st) && nfc.n > 3 * token->n) {
            st = status_make(STATUS_BUG, "NFC made %zu bytes of %zu", nfc.n, token->n);
        }
        if (!status_failed(&st)) {
            token->content = tokenizer_arena_add(t, nfc.data, nfc.n);
            token->n = nfc.n;
        }
        strbuf_fini(&nfc);
        if (status_failed(&st)) return st;
    }
    if (token->special) {
        info->bytes = token->content;
        info->n = (uint32_t)token->n;
        return status_ok();
    }
    bool byte_level;
    set_bytes(t, info, token->content, token->n, &byte_level);
    return status_ok();
}

/* Those for raw text to the front. Returns how many. */
static size_t raw_first(struct added_token *tokens, size_t n)
{
    size_t n_raw = 0;
    for (size_t i = 0; i < n; i++) {
        if (tokens[i].normalized) continue;
        const struct added_token swap = tokens[n_raw];
        tokens[n_raw++] = tokens[i];
        tokens[i] = swap;
    }
    return n_raw;
}

static struct status set_init(struct added_set *s, struct added_token *tokens, size_t n,
                              const char *what)
{
    const size_t twice = added_set_init(s, tokens, n);
    if (twice == n) return status_ok();
    return status_make(STATUS_INPUT, "%s: two added tokens are '%.*s'", what,
                       tokens[twice].n < 40 ? (int)tokens[twice].n : 40, tokens[twice].content);
}

struct status tokenizer_load_added(struct tokenizer *t, const struct js_node *list,
                                   const char *what)
{
    const size_t n = js_type(list) == JS_ARRAY ? js_count(list) : 0;
    int64_t next_id = (int64_t)t->n_vocab;
    for (size_t i = 0; i < n; i++) {
        struct added_token *token = &t->added[t->n_added];
        size_t n_content;
        js_string(js_get(js_at(list, i), "content"), &n_content);
        if (n_content == 0) continue; /* the reference passes over these, too */
        TRY(status_wrap(read_added(t, js_at(list, i), token, &next_id), "%s", what));
        TRY(finish_added(t, token));
        t->n_added++;
    }
    const size_t n_raw = raw_first(t->added, t->n_added);
    TRY(set_init(&t->raw_set, t->added, n_raw, what));
    return set_init(&t->normalized_set, t->added + n_raw, t->n_added - n_raw, what);
}
