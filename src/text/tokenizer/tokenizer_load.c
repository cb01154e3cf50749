/* Loads the "model" of tokenizer.json into a tokenizer, and makes the texts to which the tokens
 * decode. */
#include "text/tokenizer/tokenizer_private.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "text/grammar/json_read.h"

#include <stdio.h>
#include <string.h>

enum { TOKEN_BYTES_MAX = 1 << 20, SPOKEN_BYTES_MAX = 1 << 30, RANKED_BYTES_MAX = 1 << 10 };

/* The sizes that the vocabulary and the added tokens need, counted before anything is stored. */
struct sizes {
    size_t n_vocab, n_added;
    size_t key_bytes; /* bytes of the tokens in the vocabulary and of the added tokens */
    int64_t id_max;
};

/* A walk over the vocabulary: an object {token: id}, or Unigram's list [[token, score], ..] in
 * which the index is the id. */
struct vocab_walk {
    const struct js_node *vocab;
    const void *it;
    int64_t n;
};

/* Reads the next token; false at the end. *id is -1 when the file's id is no integer of at least 0.
 * *key is NULL when an element of the list does not begin with a string. */
static bool vocab_next(struct vocab_walk *w, const char **key, size_t *n, int64_t *id)
{
    const struct js_node *value;
    if (js_type(w->vocab) == JS_ARRAY) {
        *id = w->n;
        *key = js_string(js_at(js_at(w->vocab, (size_t)w->n), 0), n);
        return w->n++ < (int64_t)js_count(w->vocab);
    }
    if (!js_next(w->vocab, &w->it, key, &value)) return false;
    *n = strlen(*key);
    if (!js_int(value, id) || *id < 0) *id = -1;
    return true;
}

static struct status measure_vocab(const struct js_node *vocab, struct sizes *s, const char *what)
{
    struct vocab_walk walk = {.vocab = vocab};
    const char *key;
    size_t n;
    int64_t id;
    while (vocab_next(&walk, &key, &n, &id)) {
        if (key == NULL) {
            return status_make(STATUS_INPUT, "%s: vocabulary entry %lld is no [token, score]", what,
                               (long long)id);
        }
        if (id < 0) {
            return status_make(STATUS_INPUT, "%s: the id of token '%.40s' is no count", what, key);
        }
        s->n_vocab++;
        s->key_bytes += n;
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

static struct status tokenizer_load_measure(const struct js_node *vocab,
                                            const struct js_node *added, struct sizes *s,
                                            const char *what)
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

/* Allocates memory for the tokens, the added tokens, and their keys and bytes, as counted in *s. */
static struct status tokenizer_load_make_room(struct tokenizer *t, const struct sizes *s)
{
    t->n_tokens = (size_t)s->id_max + 1;
    t->n_vocab = s->n_vocab;
    t->arena_bytes = 2 * s->key_bytes + 1;
    TRY(mem_alloc(&t->arena, t->arena_bytes, 1, "vocabulary"));
    TRY(mem_alloc(&t->tokens, t->n_tokens, sizeof t->tokens[0], "vocabulary"));
    TRY(mem_alloc(&t->added, s->n_added, sizeof t->added[0], "added tokens"));
    TRY(mem_alloc(&t->normal_contents, s->n_added, sizeof t->normal_contents[0], "added tokens"));
    TRY(str_map_init(&t->keys, s->n_vocab + s->n_added));
    if (!t->byte_level && !t->is_unigram && !t->is_wordpiece)
        TRY(str_map_init(&t->bpe.chars, s->n_vocab));
    if (t->byte_level && t->ignore_merges) TRY(str_map_init(&t->bytes, s->n_vocab));
    return status_ok();
}

bool tokenizer_set_bytes(const struct tokenizer *t, struct token_info *info, const char *key,
                         size_t n, char *to)
{
    size_t n_bytes = n;
    const bool byte_level = byte_alphabet_decode(&t->alphabet, key, n, to, &n_bytes);
    if (!byte_level && n > 0) memcpy(to, key, n);
    info->bytes = to;
    info->n = (uint32_t)(byte_level ? n_bytes : n);
    return byte_level;
}

/* At the byte level: sets the token's bytes. Unless the key has a character outside the byte
 * alphabet, enters the bytes into t->bytes (with ignore_merges), and sets the id of a single byte,
 * from which BPE starts. */
static void store_bytes(struct tokenizer *t, struct token_info *info, const char *key, size_t n,
                        int32_t id)
{
    if (!tokenizer_set_bytes(t, info, key, n, tokenizer_arena_add(t, key, n))) return;
    if (t->ignore_merges) str_map_add(&t->bytes, info->bytes, info->n, id);
    if (info->n == 1) t->bpe.byte_id[(unsigned char)info->bytes[0]] = id;
}

/* At the character level: if the token is a single character, sets the character's id, from which
 * BPE starts. */
static void store_char(struct tokenizer *t, const char *key, size_t n, int32_t id)
{
    size_t step;
    if (t->is_unigram || t->is_wordpiece || n == 0 || !utf8_sequence(key, n, &step) || step != n)
        return;
    if (n == 1) {
        t->bpe.ascii_id[(unsigned char)key[0]] = id;
    } else {
        str_map_add(&t->bpe.chars, key, n, id);
    }
}

static struct status store_vocab(struct tokenizer *t, const struct js_node *vocab, const char *what)
{
    struct vocab_walk walk = {.vocab = vocab};
    const char *text;
    size_t n;
    int64_t id;
    while (vocab_next(&walk, &text, &n, &id)) {
        struct token_info *info = &t->tokens[id];
        if (info->in_model) {
            return status_make(STATUS_INPUT, "%s: two tokens have the id %lld, one is '%.40s'",
                               what, (long long)id, text);
        }
        info->in_model = true;
        info->key = tokenizer_arena_add(t, text, n);
        info->n_key = (uint32_t)n;
        info->byte = -1;
        if (!str_map_add(&t->keys, info->key, n, (int32_t)id)) {
            return status_make(STATUS_INPUT, "%s: two tokens are '%.40s'", what, text);
        }
        if (t->byte_level) {
            store_bytes(t, info, info->key, n, (int32_t)id);
        } else {
            store_char(t, info->key, n, (int32_t)id);
        }
    }
    return status_ok();
}

static bool tokenizer_load_is_empty(const struct js_node *node)
{
    size_t n;
    return js_type(node) == JS_NULL || (js_string(node, &n) != NULL && n == 0);
}

/* Refuses fields of a BPE model that are unknown or would have an effect that is not supported. */
static struct status check_bpe(const struct js_node *model, const char *what)
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
                           "BPE, Unigram or WordPiece",
                           what, name != NULL ? name : "(no string)");
    }
    TRY(status_wrap(json_known_fields(model, "model", KNOWN), "%s", what));
    for (size_t i = 0; i < 2; i++) {
        if (tokenizer_load_is_empty(js_get(model, MUST_BE_EMPTY[i]))) continue;
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

/* Checks the fields of a Unigram model. */
static struct status check_unigram(const struct js_node *model, const char *what)
{
    static const char *const KNOWN[] = {"type", "unk_id", "vocab", "byte_fallback", NULL};
    TRY(status_wrap(json_known_fields(model, "model", KNOWN), "%s", what));
    if (js_type(js_get(model, "vocab")) == JS_ARRAY) return status_ok();
    return status_make(STATUS_INPUT, "%s: the Unigram model has no list 'vocab'", what);
}

/* Checks the fields of a WordPiece model. */
static struct status check_wordpiece(const struct tokenizer *t, const struct js_node *model,
                                     const char *what)
{
    static const char *const KNOWN[] = {
        "type",  "unk_token", "continuing_subword_prefix", "max_input_chars_per_word",
        "vocab", NULL};
    TRY(status_wrap(json_known_fields(model, "model", KNOWN), "%s", what));
    if (!t->byte_level && js_type(js_get(model, "vocab")) == JS_OBJECT) return status_ok();
    return status_make(STATUS_INPUT, "%s: WordPiece without vocab, or with ByteLevel", what);
}

/* Fills byte_id with the ids of <0x00> to <0xFF>, -1 for those that the vocabulary lacks. */
static void load_fallback_bytes(const struct tokenizer *t, int32_t byte_id[256])
{
    for (int i = 0; i < 256; i++) {
        char key[8];
        const int n = snprintf(key, sizeof key, "<0x%02X>", i);
        byte_id[i] = str_map_get(&t->keys, key, (size_t)n);
    }
}

/* Checks the fields of a Tiktoken model. */
static struct status check_tiktoken(const struct tokenizer *t, const struct js_node *model,
                                    const char *what)
{
    static const char *const KNOWN[] = {"type", "vocab", NULL};
    TRY(status_wrap(json_known_fields(model, "model", KNOWN), "%s", what));
    if (t->byte_level && js_type(js_get(model, "vocab")) == JS_OBJECT) return status_ok();
    return status_make(STATUS_INPUT, "%s: Tiktoken without vocab or ByteLevel", what);
}

/* Sets how bytes or characters that the vocabulary lacks are encoded. */
static struct status load_unknown(struct tokenizer *t, const struct js_node *model,
                                  const char *what)
{
    bool fallback;
    TRY(status_wrap(json_bool_field(model, "byte_fallback", "model", false, &fallback), "%s",
                    what));
    TRY(status_wrap(json_bool_field(model, "fuse_unk", "model", false, &t->bpe.fuse_unk), "%s",
                    what));
    if (!t->byte_level) {
        t->bpe.by_char = true;
        t->bpe.byte_fallback = fallback;
        load_fallback_bytes(t, t->bpe.byte_id);
    }
    bool complete = t->byte_level;
    for (int i = 0; i < 256; i++) complete = complete && t->bpe.byte_id[i] >= 0;
    if (t->is_tiktoken && !complete) {
        return status_make(STATUS_INPUT, "%s: the vocabulary lacks bytes", what);
    }
    if (t->byte_level && fallback && !complete) {
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
    TRY(t->is_tiktoken    ? check_tiktoken(t, model, what)
        : t->is_unigram   ? check_unigram(model, what)
        : t->is_wordpiece ? check_wordpiece(t, model, what)
                          : check_bpe(model, what));
    TRY(status_wrap(
        json_bool_field(model, "ignore_merges", "model", t->is_tiktoken, &t->ignore_merges), "%s",
        what));
    TRY(bpe_init(&t->bpe));
    TRY(tokenizer_load_measure(js_get(model, "vocab"), added, &sizes, what));
    TRY(tokenizer_load_make_room(t, &sizes));
    TRY(store_vocab(t, js_get(model, "vocab"), what));
    return t->is_unigram || t->is_wordpiece ? status_ok() : load_unknown(t, model, what);
}

struct status tokenizer_load_unigram(struct tokenizer *t, const struct js_node *model,
                                     const char *what)
{
    struct unigram *u = &t->unigram;
    const struct js_node *vocab = js_get(model, "vocab");
    const struct js_node *unk = js_get(model, "unk_id");
    int64_t unk_id = -1;
    if (js_type(unk) != JS_NULL &&
        (!js_int(unk, &unk_id) || unk_id < 0 || (size_t)unk_id >= t->n_vocab)) {
        return status_make(STATUS_INPUT, "%s: the unk_id is none of %zu tokens", what, t->n_vocab);
    }
    TRY(unigram_init(u, t->n_vocab, t->n_arena));
    u->unk_id = (int32_t)unk_id;
    TRY(status_wrap(json_bool_field(model, "byte_fallback", "model", false, &u->byte_fallback),
                    "%s", what));
    load_fallback_bytes(t, u->byte_id);
    for (size_t i = 0; i < t->n_vocab; i++) {
        const struct js_node *entry = js_at(vocab, i);
        const struct token_info *info = &t->tokens[i];
        double score;
        if (js_count(entry) != 2 || !js_number(js_at(entry, 1), &score)) {
            return status_make(STATUS_INPUT, "%s: vocabulary entry %zu is no [token, score]", what,
                               i);
        }
        if (info->n_key > UNIGRAM_TOKEN_BYTES_MAX) {
            return status_make(STATUS_INPUT, "%s: token %zu has %u bytes, expected at most %d",
                               what, i, info->n_key, (int)UNIGRAM_TOKEN_BYTES_MAX);
        }
        unigram_add(u, info->key, info->n_key, (int32_t)i, score);
    }
    return status_ok();
}

struct status tokenizer_load_wordpiece(struct tokenizer *t, const struct js_node *model,
                                       const char *what)
{
    struct wordpiece *w = &t->wordpiece;
    const struct js_node *most = js_get(model, "max_input_chars_per_word");
    size_t n_unk = 0, n_prefix = 0;
    int64_t n_chars = 100;
    const char *unk = js_string(js_get(model, "unk_token"), &n_unk);
    const char *prefix = js_string(js_get(model, "continuing_subword_prefix"), &n_prefix);
    w->unk_id = unk != NULL ? str_map_get(&t->keys, unk, n_unk) : -1;
    if (w->unk_id < 0 || prefix == NULL || n_prefix > sizeof w->prefix)
        return status_make(STATUS_INPUT,
                           "%s: WordPiece: expected an unk_token of the vocabulary, and a "
                           "continuing_subword_prefix of at most %zu bytes",
                           what, sizeof w->prefix);
    if (most != NULL && (!js_int(most, &n_chars) || n_chars < 1 || n_chars > 1 << 16))
        return status_make(STATUS_INPUT, "%s: max_input_chars_per_word: expected 1 to %d", what,
                           1 << 16);
    memcpy(w->prefix, prefix, n_prefix);
    w->n_prefix = n_prefix;
    w->n_chars_max = (size_t)n_chars;
    TRY(str_map_init(&w->vocab, t->n_vocab));
    for (size_t i = 0; i < t->n_tokens; i++) {
        const struct token_info *info = &t->tokens[i];
        if (!info->in_model) continue;
        if (info->n_key > w->n_key_max) w->n_key_max = info->n_key;
        str_map_add(&w->vocab, info->key, info->n_key, (int32_t)i);
    }
    return status_ok();
}

/* Finds the two halves of a merge: "left right" or ["left", "right"]. */
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

/* Returns the id of the token that left and right make together, or -1. The caller checks whether
 * `join`, which is scratch, has failed. */
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
    TRY(bpe_merges_init(&t->bpe, js_count(merges), false));
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

/* Returns the number of ways to split token `id` into two tokens. With `add`, adds a merge for
 * each. */
static size_t each_split(struct tokenizer *t, int32_t id, bool add)
{
    const struct token_info *info = &t->tokens[id];
    size_t n = 0;
    for (size_t at = 1; at < info->n; at++) {
        const int32_t left = str_map_get(&t->bytes, info->bytes, at);
        const int32_t right =
            left >= 0 ? str_map_get(&t->bytes, info->bytes + at, info->n - at) : -1;
        if (right < 0) continue;
        if (add) bpe_add_merge(&t->bpe, left, right, id);
        n++;
    }
    return n;
}

struct status tokenizer_load_ranks(struct tokenizer *t, const char *what)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_tokens; i++) {
        if (t->tokens[i].n > RANKED_BYTES_MAX) {
            return status_make(STATUS_INPUT, "%s: token %zu has %u bytes, expected at most %d",
                               what, i, t->tokens[i].n, (int)RANKED_BYTES_MAX);
        }
        n += each_split(t, (int32_t)i, false);
    }
    TRY(bpe_merges_init(&t->bpe, n, true));
    for (size_t i = 0; i < t->n_tokens; i++) each_split(t, (int32_t)i, true);
    return status_ok();
}

struct status tokenizer_load_spoken(struct tokenizer *t, const char *what)
{
    size_t *starts;
    TRY(mem_alloc(&starts, t->n_tokens, sizeof starts[0], "vocabulary"));
    struct status st = status_ok();
    for (size_t i = 0; i < t->n_tokens && !status_failed(&st); i++) {
        struct token_info *info = &t->tokens[i];
        int byte;
        starts[i] = t->spoken.n;
        if (info->key == NULL) continue;
        st = decoder_token(&t->decoder, info->key, info->n_key, &t->spoken, &byte);
        info->byte = (int16_t)byte;
        info->n = (uint32_t)(t->spoken.n - starts[i]);
        if (t->spoken.n > SPOKEN_BYTES_MAX) {
            st = status_make(STATUS_INPUT, "the decoder makes more than %d bytes of the vocabulary",
                             (int)SPOKEN_BYTES_MAX);
        }
    }
    for (size_t i = 0; i < t->n_tokens && !status_failed(&st); i++) {
        if (t->tokens[i].key != NULL) t->tokens[i].bytes = t->spoken.data + starts[i];
    }
    mem_free(&starts);
    return status_wrap(st, "%s", what);
}
