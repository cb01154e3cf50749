/* Encodes: finds added tokens, and normalizes, splits and merges the text between them. */
#include "text/tokenizer/tokenizer.h"

#include "base/mem.h"
#include "base/utf8.h"
#include "text/grammar/json_read.h"
#include "text/tokenizer/tokenizer_private.h"

#include <assert.h>
#include <string.h>

enum { JSON_MAX_BYTES = 1 << 29 };

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

static struct status tokenizer_load(struct tokenizer *t, const struct js_node *root,
                                    const char *what);

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
    strbuf_init(&t->marks);
    strbuf_init(&t->spoken);
    strbuf_init(&t->wordpiece.key);
    byte_alphabet_init(&t->alphabet);
    st = tokenizer_load(t, js_root(doc), what);
    /* a pattern of the file has reached its match limit on a token of the file */
    if (st.code == STATUS_REQUEST) st.code = STATUS_INPUT;
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
    unigram_fini(&p->unigram);
    normalizer_fini(&p->normalizer);
    decoder_fini(&p->decoder);
    strbuf_fini(&p->spoken);
    strbuf_fini(&p->wordpiece.key);
    str_map_fini(&p->wordpiece.vocab);
    pretokenizer_fini(&p->pretokenizer);
    for (size_t i = 0; p->normal_contents != NULL && i < p->n_added; i++) {
        mem_free(&p->normal_contents[i]);
    }
    mem_free(&p->normal_contents);
    mem_free(&p->added);
    token_list_fini(&p->prefix);
    token_list_fini(&p->suffix);
    token_list_fini(&p->joint.before);
    token_list_fini(&p->joint.between);
    token_list_fini(&p->joint.behind);
    strbuf_fini(&p->valid);
    strbuf_fini(&p->marks);
    mem_free(t);
}

/* Refuses a tokenizer of which one part works on bytes and another on characters. */
static struct status check_level(const struct tokenizer *t, const char *what)
{
    const bool decodes_bytes = t->decoder.kind == DECODER_BYTE_LEVEL;
    if (t->byte_level && t->is_unigram) {
        return status_make(STATUS_INPUT,
                           "%s: Unigram with a ByteLevel pre_tokenizer is not "
                           "supported",
                           what);
    }
    if (t->byte_level == decodes_bytes) return status_ok();
    return status_make(STATUS_INPUT, "%s: the %s is ByteLevel, but there is no ByteLevel %s", what,
                       decodes_bytes ? "decoder" : "pre_tokenizer",
                       decodes_bytes ? "pre_tokenizer" : "decoder");
}

static struct status tokenizer_load(struct tokenizer *t, const struct js_node *root,
                                    const char *what)
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
    const char *type = js_string(js_get(model, "type"), NULL);
    t->is_unigram = type != NULL && strcmp(type, "Unigram") == 0;
    t->is_wordpiece = type != NULL && strcmp(type, "WordPiece") == 0;
    t->is_tiktoken = type != NULL && strcmp(type, "Tiktoken") == 0;
    TRY(normalizer_init(&t->normalizer, js_get(root, "normalizer"), what));
    TRY(decoder_init(&t->decoder, js_get(root, "decoder"), what));
    const bool normalized = t->normalizer.n_steps > 0;
    TRY(pretokenizer_init(&t->pretokenizer, js_get(root, "pre_tokenizer"), normalized, what));
    t->byte_level = t->pretokenizer.byte_level;
    TRY(check_level(t, what));
    TRY(tokenizer_load_vocab(t, model, added, what));
    TRY(t->is_unigram     ? tokenizer_load_unigram(t, model, what)
        : t->is_wordpiece ? tokenizer_load_wordpiece(t, model, what)
        : t->is_tiktoken  ? tokenizer_load_ranks(t, what)
                          : tokenizer_load_merges(t, model, what));
    TRY(tokenizer_load_added(t, added, what));
    if (!t->byte_level) TRY(tokenizer_load_spoken(t, what));
    return tokenizer_load_post_processor(t, js_get(root, "post_processor"), what);
}

static struct status encode_piece(struct tokenizer *t, const char *piece, size_t n,
                                  struct token_list *out)
{
    if (t->is_unigram) return unigram_encode(&t->unigram, piece, n, out);
    if (t->is_wordpiece) return wordpiece_encode(&t->wordpiece, piece, n, out);
    if (t->ignore_merges) {
        const int32_t id =
            t->byte_level ? str_map_get(&t->bytes, piece, n) : tokenizer_model_id(t, piece, n);
        if (id >= 0) return token_list_add(out, &id, 1);
    }
    return bpe_encode(&t->bpe, piece, n, out);
}

/* Encodes text without added tokens; at_start: the whole text begins with this text. */
static struct status encode_plain(struct tokenizer *t, const char *text, size_t n, bool at_start,
                                  struct token_list *out)
{
    const char *cut;
    TRY(pretokenizer_cut(&t->pretokenizer, text, n, at_start, &cut));
    const struct span_list *pieces = &t->pretokenizer.spans;
    for (size_t i = 0; i < pieces->n; i++) {
        TRY(encode_piece(t, cut + pieces->spans[i].start, pieces->spans[i].n, out));
    }
    return status_ok();
}

/* Encodes text between the added tokens that were found in raw text: normalizes it, then finds the
 * added tokens that are searched for in normalized text. text.user is NULL, or marks the bytes in
 * which special tokens are plain text. */
static struct status encode_raw(struct tokenizer *t, struct normal_text text, bool parse_special,
                                struct token_list *out)
{
    TRY(normalizer_run(&t->normalizer, &text));
    struct added_walk walk;
    struct added_piece piece;
    added_walk_init(&walk, text.bytes, text.n, parse_special);
    walk.user = text.user;
    while (added_next(&t->normalized_set, &walk, &piece)) {
        if (piece.id >= 0) {
            TRY(token_list_add(out, &piece.id, 1));
        } else {
            TRY(encode_plain(t, text.bytes + piece.start, piece.n,
                             text.at_start && piece.start == 0, out));
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
            const struct normal_text raw = {.bytes = text + piece.start,
                                            .user = user == NULL ? NULL : user + piece.start,
                                            .n = piece.n,
                                            .at_start = piece.start == 0};
            TRY(encode_raw(t, raw, parse_special, out));
        }
    }
    if (add_special) TRY(token_list_add(out, t->suffix.ids, t->suffix.n));
    return status_ok();
}

/* Copies the text, with each maximal ill-formed part replaced by U+FFFD. */
static struct status make_valid(const char *text, size_t n, struct strbuf *out)
{
    strbuf_clear(out);
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
    strbuf_clear(&t->marks);
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

bool tokenizer_joins(const struct tokenizer *t)
{
    return t->joint.is_known;
}

struct status tokenizer_encode_joined(struct tokenizer *t, const struct text_bytes texts[2],
                                      struct token_list *out, size_t *n_first)
{
    const struct token_joint *j = &t->joint;
    const size_t n_before = out->n;
    assert(j->is_known);
    struct status st = token_list_add(out, j->before.ids, j->before.n);
    if (!status_failed(&st)) st = tokenizer_encode(t, texts[0].bytes, texts[0].n, 0, out);
    if (!status_failed(&st)) st = token_list_add(out, j->between.ids, j->between.n);
    *n_first = out->n - n_before;
    if (!status_failed(&st)) st = tokenizer_encode(t, texts[1].bytes, texts[1].n, 0, out);
    if (!status_failed(&st)) st = token_list_add(out, j->behind.ids, j->behind.n);
    if (status_failed(&st)) out->n = n_before;
    if (!j->has_types) *n_first = out->n - n_before;
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

int32_t tokenizer_model_id(const struct tokenizer *t, const char *key, size_t n)
{
    const int32_t id = str_map_get(&t->keys, key, n);
    return id >= 0 && t->tokens[id].in_model ? id : -1;
}
