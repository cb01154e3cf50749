/* Reads allowed_token_ids and bad_words of a line. */
#include "base/mem.h"
#include "serve/request/request_answer.h"
#include "serve/request/request_parse.h"

#include <string.h>

static struct status read_kept(struct request_parser *p, const struct js_node *list)
{
    const size_t n_words = ((size_t)p->rules->vocab_size + 31) / 32;
    if (js_type(list) == JS_NULL) return status_ok();
    if (js_type(list) != JS_ARRAY || js_count(list) == 0) {
        return request_bad(p, "invalid_request",
                           "allowed_token_ids: expected a list of token ids, found %s",
                           js_type(list) == JS_ARRAY ? "none" : request_type_name(list));
    }
    TRY(mem_alloc(&p->ask->words.kept, n_words, sizeof *p->ask->words.kept, "request"));
    p->ask->words.n_kept_words = n_words;
    for (size_t i = 0; i < js_count(list); i++) {
        int32_t id;
        TRY(request_read_id(p, "allowed_token_ids", js_at(list, i), &id));
        p->ask->words.kept[id / 32] |= (uint32_t)1 << (id % 32);
    }
    return status_ok();
}

/* Appends a word: the number of its tokens, then the tokens. A word with a token outside the
 * model's vocabulary is left out. */
static struct status add_tokens(struct request_parser *p, const struct token_list *list)
{
    struct request_words *w = &p->ask->words;
    for (size_t i = 0; i < list->n; i++)
        if (list->ids[i] < 0 || list->ids[i] >= p->rules->vocab_size) return status_ok();
    const size_t n_needed = w->n_banned + 1 + list->n;
    if (n_needed > w->banned_capacity) {
        TRY(mem_grow(&w->banned, w->n_banned, 2 * n_needed, sizeof *w->banned, "request"));
        w->banned_capacity = 2 * n_needed;
    }
    w->banned[w->n_banned] = (int32_t)list->n;
    memcpy(w->banned + w->n_banned + 1, list->ids, list->n * sizeof *list->ids);
    w->n_banned = n_needed;
    return status_ok();
}

/* Bans the word. Also bans it with a blank before it if that has the same number of tokens and
 * another first token, because then it is the word's spelling inside a text. Otherwise the blank is
 * likely a token of its own. */
static struct status add_word(struct request_parser *p, const char *text, size_t n)
{
    char spaced[REQUEST_STOP_BYTES_MAX + 1] = " ";
    struct token_list plain = {0}, inner = {0};
    memcpy(spaced + 1, text, n);
    struct status st =
        tokenizer_encode(p->rules->tokenizer, text, n, TOKENIZER_PARSE_SPECIAL, &plain);
    if (!status_failed(&st)) {
        st = tokenizer_encode(p->rules->tokenizer, spaced, n + 1, TOKENIZER_PARSE_SPECIAL, &inner);
    }
    if (st.code == STATUS_REQUEST) p->r->error.code = "invalid_request";
    if (!status_failed(&st) && plain.n > 0) st = add_tokens(p, &plain);
    const bool is_other = plain.n > 0 && inner.n == plain.n && inner.ids[0] != plain.ids[0];
    if (!status_failed(&st) && is_other) st = add_tokens(p, &inner);
    token_list_fini(&plain);
    token_list_fini(&inner);
    return st;
}

static struct status read_banned(struct request_parser *p, const struct js_node *list)
{
    if (js_type(list) == JS_NULL || (js_type(list) == JS_ARRAY && js_count(list) == 0))
        return status_ok();
    if (js_type(list) != JS_ARRAY || js_count(list) > REQUEST_BAD_WORDS_MAX) {
        return request_bad(
            p, "invalid_request", "bad_words: expected a list of at most %d strings, found %s",
            REQUEST_BAD_WORDS_MAX, js_type(list) == JS_ARRAY ? "more" : request_type_name(list));
    }
    if (p->rules->tokenizer == NULL) {
        return request_bad(p, "unsupported",
                           "bad_words: this model has no tokenizer, so it gives no text");
    }
    for (size_t i = 0; i < js_count(list); i++) {
        size_t n = 0, n_blank = 0;
        const char *text = js_string(js_at(list, i), &n);
        if (n == 0 || n > REQUEST_STOP_BYTES_MAX) {
            return request_bad(p, "invalid_request", "bad_words: expected strings of 1 to %d bytes",
                               REQUEST_STOP_BYTES_MAX);
        }
        while (n_blank < n && text[n_blank] != '\0' && strchr(" \t\r\n", text[n_blank]) != NULL)
            n_blank++;
        if (n_blank == n) n_blank = 0; /* the word consists of blanks */
        TRY(add_word(p, text + n_blank, n - n_blank));
    }
    return status_ok();
}

struct status request_read_words(struct request_parser *p, const struct js_node *fields)
{
    if (p->rules->score) return status_ok();
    TRY(read_kept(p, js_get(fields, "allowed_token_ids")));
    TRY(read_banned(p, js_get(fields, "bad_words")));
    if (p->ask->words.kept == NULL && p->ask->words.n_banned == 0) return status_ok();
    if (p->ask->beam.width > 0) {
        return request_bad(p, "unsupported", "%s: not supported together with beam search",
                           p->ask->words.kept != NULL ? "allowed_token_ids" : "bad_words");
    }
    bool none;
    TRY(request_allows_none(p->r, p->rules, &none));
    if (!none) return status_ok();
    return request_bad(
        p, "invalid_request",
        "allowed_token_ids, bad_words and the other limits of the line leave no token "
        "to begin with");
}
