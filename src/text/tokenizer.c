/* Encoding: added tokens, then normalization, pieces and merges between them. */
#include "text/tokenizer.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "text/json_read.h"
#include "text/tokenizer_internal.h"
#include "text/unicode.h"

#include <assert.h>
#include <string.h>

enum { JSON_MAX_BYTES = 1 << 29 };

struct status token_list_reserve(struct token_list *l, size_t n_more)
{
    size_t want;
    if (!mem_add(l->n, n_more, &want)) return status_make(STATUS_MEMORY, "too many tokens");
    if (want <= l->capacity) return status_ok();
    size_t capacity = l->capacity < 64 ? 64 : l->capacity;
    while (capacity < want) {
        if (!mem_add(capacity, capacity / 2, &capacity)) capacity = want;
    }
    TRY(mem_grow(&l->ids, l->n, capacity, sizeof l->ids[0], "token ids"));
    l->capacity = capacity;
    return status_ok();
}

void token_list_fini(struct token_list *l)
{
    mem_free(&l->ids);
    memset(l, 0, sizeof *l);
}

static struct status token_list_add(struct token_list *l, const int32_t *ids, size_t n)
{
    TRY(token_list_reserve(l, n));
    if (n > 0) memcpy(l->ids + l->n, ids, n * sizeof ids[0]);
    l->n += n;
    return status_ok();
}

char *tokenizer_arena_add(struct tokenizer *t, const char *bytes, size_t n)
{
    assert(n <= t->arena_bytes - t->n_arena);
    char *p = t->arena + t->n_arena;
    if (n > 0) memcpy(p, bytes, n);
    t->n_arena += n;
    return p;
}

static struct status load(struct tokenizer *t, const struct js_node *root, const char *what);

struct status tokenizer_create(const char *json, size_t n, const char *what, struct tokenizer **out)
{
    *out = NULL;
    if (n > JSON_MAX_BYTES) {
        return status_make(STATUS_INPUT, "%s: %zu bytes, expected at most %d", what, n,
                           (int)JSON_MAX_BYTES);
    }
    struct js_doc *doc;
    struct tokenizer *t = NULL;
    TRY(js_parse(json, n, what, &doc));
    struct status st;
    TRY_GOTO(st, mem_alloc(&t, 1, sizeof *t, "tokenizer"), done);
    strbuf_init(&t->valid);
    strbuf_init(&t->normalized);
    strbuf_init(&t->marks);
    strbuf_init(&t->normalized_marks);
    byte_alphabet_init(&t->alphabet);
    st = load(t, js_root(doc), what);
done:
    js_destroy(&doc);
    if (status_failed(&st)) tokenizer_destroy(&t);
    *out = t;
    return st;
}

void tokenizer_destroy(struct tokenizer **t)
{
    struct tokenizer *p = *t;
    if (p == NULL) return;
    mem_free(&p->arena);
    mem_free(&p->tokens);
    str_map_fini(&p->keys);
    str_map_fini(&p->bytes);
    bpe_fini(&p->bpe);
    pretokenizer_fini(&p->pretokenizer);
    mem_free(&p->added);
    token_list_fini(&p->prefix);
    token_list_fini(&p->suffix);
    strbuf_fini(&p->valid);
    strbuf_fini(&p->normalized);
    strbuf_fini(&p->marks);
    strbuf_fini(&p->normalized_marks);
    mem_free(t);
}

static struct status load_normalizer(struct tokenizer *t, const struct js_node *node,
                                     const char *what, int depth)
{
    static const char *const KNOWN[] = {"type", "normalizers", NULL};
    if (js_type(node) == JS_NULL) return status_ok();
    const char *type;
    TRY(status_wrap(json_known_fields(node, "normalizer", KNOWN), "%s", what));
    TRY(status_wrap(json_type_field(node, "normalizer", &type), "%s", what));
    const struct js_node *list = js_get(node, "normalizers");
    if (strcmp(type, "NFC") == 0 && list == NULL) {
        t->nfc = true;
        return status_ok();
    }
    if (strcmp(type, "Sequence") != 0 || js_type(list) != JS_ARRAY || depth > 4) {
        return status_make(STATUS_INPUT,
                           "%s: normalizer: '%.40s' is not supported; expected NFC or a Sequence "
                           "of it",
                           what, type);
    }
    for (size_t i = 0; i < js_count(list); i++) {
        if (js_type(js_at(list, i)) == JS_NULL) {
            return status_make(STATUS_INPUT, "%s: normalizer: a null in a Sequence", what);
        }
        TRY(load_normalizer(t, js_at(list, i), what, depth + 1));
    }
    return status_ok();
}

static struct status check_decoder(const struct js_node *node, const char *what)
{
    const char *type;
    if (js_type(node) == JS_NULL) {
        return status_make(STATUS_INPUT, "%s: no decoder, expected ByteLevel", what);
    }
    TRY(status_wrap(json_type_field(node, "decoder", &type), "%s", what));
    const struct js_node *list = js_get(node, "decoders");
    if (strcmp(type, "Sequence") == 0 && js_count(list) == 1) {
        TRY(status_wrap(json_type_field(js_at(list, 0), "decoder", &type), "%s", what));
    }
    if (strcmp(type, "ByteLevel") == 0) return status_ok();
    return status_make(STATUS_INPUT, "%s: decoder: '%.40s' is not supported; expected ByteLevel",
                       what, type);
}

static struct status load(struct tokenizer *t, const struct js_node *root, const char *what)
{
    static const char *const KNOWN[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    TRY(json_known_fields(root, what, KNOWN));
    const char *version = js_string(js_get(root, "version"), NULL);
    if (js_get(root, "version") != NULL && (version == NULL || strcmp(version, "1.0") != 0)) {
        return status_make(STATUS_INPUT, "%s: the version is not \"1.0\"", what);
    }
    const struct js_node *added = js_get(root, "added_tokens");
    const struct js_node *model = js_get(root, "model");
    TRY(load_normalizer(t, js_get(root, "normalizer"), what, 0));
    TRY(check_decoder(js_get(root, "decoder"), what));
    TRY(pretokenizer_init(&t->pretokenizer, js_get(root, "pre_tokenizer"), what));
    TRY(tokenizer_load_vocab(t, model, added, what));
    TRY(tokenizer_load_merges(t, model, what));
    TRY(tokenizer_load_added(t, added, what));
    return tokenizer_load_post_processor(t, js_get(root, "post_processor"), what);
}

/* Encodes text without added tokens. */
static struct status encode_plain(struct tokenizer *t, const char *text, size_t n,
                                  struct token_list *out)
{
    const char *cut;
    TRY(pretokenizer_cut(&t->pretokenizer, text, n, &cut));
    const struct span_list *pieces = &t->pretokenizer.spans;
    for (size_t i = 0; i < pieces->n; i++) {
        const char *piece = cut + pieces->spans[i].start;
        const size_t n_piece = pieces->spans[i].n;
        const int32_t id = t->ignore_merges ? str_map_get(&t->bytes, piece, n_piece) : -1;
        if (id >= 0) {
            TRY(token_list_add(out, &id, 1));
        } else {
            TRY(bpe_encode(&t->bpe, piece, n_piece, out));
        }
    }
    return status_ok();
}

/* Empties scratch memory; a failed allocation of an earlier text must not stick to this one. */
static void scratch_clear(struct strbuf *s)
{
    if (s->failed) {
        strbuf_fini(s);
        strbuf_init(s);
    }
    strbuf_clear(s);
}

/* Where the piece that starts at `from` ends: ASCII that nothing behind composes with, or one
 * character of it and what is not ASCII behind. Nothing composes across the front of an ASCII
 * character, so pieces are normalized one by one. */
static size_t nfc_piece(const char *text, size_t from, size_t n)
{
    size_t to = from;
    while (to < n && (unsigned char)text[to] < 0x80) to++;
    if (to == n) return n;
    if (to > from + 1) return to - 1;
    while (to < n && (unsigned char)text[to] >= 0x80) to++;
    return to;
}

struct status tokenizer_nfc_marked(struct tokenizer *t, const char *text, const unsigned char *user,
                                   size_t n)
{
    scratch_clear(&t->normalized_marks);
    scratch_clear(&t->normalized);
    for (size_t from = 0, to; from < n; from = to) {
        to = nfc_piece(text, from, n);
        if ((unsigned char)text[to - 1] < 0x80) {
            strbuf_add(&t->normalized, text + from, to - from);
            strbuf_add(&t->normalized_marks, (const char *)user + from, to - from);
            continue;
        }
        const size_t before = t->normalized.n;
        TRY(unicode_nfc(text + from, to - from, &t->normalized));
        const char mark = memchr(user + from, 1, to - from) != NULL;
        for (size_t i = before; i < t->normalized.n; i++)
            strbuf_add(&t->normalized_marks, &mark, 1);
    }
    TRY(strbuf_status(&t->normalized_marks));
    return strbuf_status(&t->normalized);
}

/* Encodes text between the added tokens of raw text: normalizes, then looks for the others. `user`
 * is NULL or marks the bytes in which special tokens are plain text. */
static struct status encode_raw(struct tokenizer *t, const char *text, const unsigned char *user,
                                size_t n, bool parse_special, struct token_list *out)
{
    if (t->nfc && !unicode_is_plain(text, n)) {
        scratch_clear(&t->normalized);
        TRY(user != NULL ? tokenizer_nfc_marked(t, text, user, n)
                         : unicode_nfc(text, n, &t->normalized));
        if (user != NULL) user = (const unsigned char *)t->normalized_marks.data;
        text = t->normalized.data;
        n = t->normalized.n;
    }
    struct added_walk walk;
    struct added_piece piece;
    added_walk_init(&walk, text, n, parse_special);
    walk.user = user;
    while (added_next(&t->normalized_set, &walk, &piece)) {
        if (piece.id >= 0) {
            TRY(token_list_add(out, &piece.id, 1));
        } else {
            TRY(encode_plain(t, text + piece.start, piece.n, out));
        }
    }
    return status_ok();
}

static struct status encode_text(struct tokenizer *t, const char *text, const unsigned char *user,
                                 size_t n, unsigned flags, struct token_list *out)
{
    const bool parse_special = (flags & TOKENIZER_PARSE_SPECIAL) != 0;
    const bool add_special = (flags & TOKENIZER_ADD_SPECIAL) != 0;
    if (add_special) TRY(token_list_add(out, t->prefix.ids, t->prefix.n));
    struct added_walk walk;
    struct added_piece piece;
    added_walk_init(&walk, text, n, parse_special);
    walk.user = user;
    while (added_next(&t->raw_set, &walk, &piece)) {
        if (piece.id >= 0) {
            TRY(token_list_add(out, &piece.id, 1));
        } else {
            TRY(encode_raw(t, text + piece.start, user == NULL ? NULL : user + piece.start, piece.n,
                           parse_special, out));
        }
    }
    if (add_special) TRY(token_list_add(out, t->suffix.ids, t->suffix.n));
    return status_ok();
}

/* Replaces every maximal ill-formed part by U+FFFD. */
static struct status make_valid(const char *text, size_t n, struct strbuf *out)
{
    scratch_clear(out);
    size_t good = 0, step;
    for (size_t i = 0; i < n; i += step) {
        if (utf8_sequence(text + i, n - i, &step)) continue;
        strbuf_add(out, text + good, i - good);
        strbuf_add(out, "\xEF\xBF\xBD", 3);
        good = i + step;
    }
    strbuf_add(out, text + good, n - good);
    return strbuf_status(out);
}

struct status tokenizer_encode(struct tokenizer *t, const char *text, size_t n_bytes,
                               unsigned flags, struct token_list *out)
{
    const size_t n_before = out->n;
    size_t bad_at;
    if (!utf8_valid(text, n_bytes, &bad_at)) {
        TRY(make_valid(text, n_bytes, &t->valid));
        text = t->valid.data;
        n_bytes = t->valid.n;
    }
    const struct status st = encode_text(t, text, NULL, n_bytes, flags, out);
    if (status_failed(&st)) out->n = n_before;
    return st;
}

struct status tokenizer_encode_spans(struct tokenizer *t, const char *text, size_t n_bytes,
                                     const struct text_span *spans, size_t n_spans, unsigned flags,
                                     struct token_list *out)
{
    const size_t n_before = out->n;
    size_t bad_at, covered = 0;
    if (!utf8_valid(text, n_bytes, &bad_at)) {
        return status_make(STATUS_REQUEST, "byte %zu of the chat text is not UTF-8", bad_at);
    }
    scratch_clear(&t->marks);
    for (size_t i = 0; i < n_spans; i++) {
        assert(spans[i].begin == covered && spans[i].end >= covered);
        const char mark = spans[i].is_user;
        for (; covered < spans[i].end; covered++) strbuf_add(&t->marks, &mark, 1);
    }
    assert(covered == n_bytes);
    TRY(strbuf_status(&t->marks));
    const struct status st = encode_text(t, text, (const unsigned char *)t->marks.data, n_bytes,
                                         flags | TOKENIZER_PARSE_SPECIAL, out);
    if (status_failed(&st)) out->n = n_before;
    return st;
}

int32_t tokenizer_vocab_size(const struct tokenizer *t)
{
    return (int32_t)t->n_tokens;
}

static const struct token_info *info_of(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (size_t)id < t->n_tokens ? &t->tokens[id] : NULL;
}

const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *n)
{
    const struct token_info *info = info_of(t, id);
    *n = info != NULL ? info->n : 0;
    return info != NULL ? info->bytes : NULL;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    const struct token_info *info = info_of(t, id);
    return info != NULL && info->special;
}

int32_t tokenizer_token_id(const struct tokenizer *t, const char *content, size_t n)
{
    return str_map_get(&t->keys, content, n);
}
