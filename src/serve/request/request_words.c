/* Masks of the vocabulary, a bit for each token. */
#include "serve/request/request_words.h"

#include "base/mem.h"
#include "serve/request/request_guide.h"
#include "serve/request/request_parse.h"

#include <string.h>
#include <xxhash.h>

static bool has_any(const struct request_words *w)
{
    return w->kept != NULL || w->n_banned > 0;
}

static struct status read_kept(struct request *r, const struct request_rules *rules,
                               const struct js_node *list)
{
    const size_t n_words = ((size_t)rules->vocab_size + 31) / 32;
    if (js_type(list) == JS_NULL) return status_ok();
    if (js_type(list) != JS_ARRAY || js_count(list) == 0) {
        return request_bad(r, "invalid_request",
                           "allowed_token_ids: expected a list of token ids, found %s",
                           js_type(list) == JS_ARRAY ? "none" : request_type_name(list));
    }
    TRY(mem_alloc(&r->words.kept, n_words, sizeof *r->words.kept, "request"));
    r->words.n_kept_words = n_words;
    for (size_t i = 0; i < js_count(list); i++) {
        int32_t id;
        TRY(request_read_id(r, rules, "allowed_token_ids", js_at(list, i), &id));
        r->words.kept[id / 32] |= (uint32_t)1 << (id % 32);
    }
    return status_ok();
}

/* Appends a word: the number of its tokens, then the tokens. A word with a token outside the
 * model's vocabulary is left out. */
static struct status add_tokens(struct request *r, const struct request_rules *rules,
                                const struct token_list *list)
{
    struct request_words *w = &r->words;
    for (size_t i = 0; i < list->n; i++)
        if (list->ids[i] < 0 || list->ids[i] >= rules->vocab_size) return status_ok();
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

/* Adds the word, and the word with a blank before it if that has as many tokens and another first
 * one: then it is the same word inside a text. Otherwise the blank is a token of its own. */
static struct status add_word(struct request *r, const struct request_rules *rules,
                              const char *text, size_t n)
{
    char spaced[REQUEST_STOP_BYTES_MAX + 1] = " ";
    struct token_list plain = {0}, inner = {0};
    memcpy(spaced + 1, text, n);
    struct status st = tokenizer_encode(rules->tokenizer, text, n, TOKENIZER_PARSE_SPECIAL, &plain);
    if (!status_failed(&st)) {
        st = tokenizer_encode(rules->tokenizer, spaced, n + 1, TOKENIZER_PARSE_SPECIAL, &inner);
    }
    if (st.code == STATUS_REQUEST) r->error_code = "invalid_request";
    if (!status_failed(&st) && plain.n > 0) st = add_tokens(r, rules, &plain);
    const bool is_other = plain.n > 0 && inner.n == plain.n && inner.ids[0] != plain.ids[0];
    if (!status_failed(&st) && is_other) st = add_tokens(r, rules, &inner);
    token_list_fini(&plain);
    token_list_fini(&inner);
    return st;
}

static struct status read_banned(struct request *r, const struct request_rules *rules,
                                 const struct js_node *list)
{
    if (js_type(list) == JS_NULL || (js_type(list) == JS_ARRAY && js_count(list) == 0))
        return status_ok();
    if (js_type(list) != JS_ARRAY || js_count(list) > REQUEST_BAD_WORDS_MAX) {
        return request_bad(
            r, "invalid_request", "bad_words: expected a list of at most %d strings, found %s",
            REQUEST_BAD_WORDS_MAX, js_type(list) == JS_ARRAY ? "more" : request_type_name(list));
    }
    if (rules->tokenizer == NULL) {
        return request_bad(r, "unsupported",
                           "bad_words: this model has no tokenizer, so it says none");
    }
    for (size_t i = 0; i < js_count(list); i++) {
        size_t n = 0, n_blank = 0;
        const char *text = js_string(js_at(list, i), &n);
        if (n == 0 || n > REQUEST_STOP_BYTES_MAX) {
            return request_bad(r, "invalid_request", "bad_words: expected strings of 1 to %d bytes",
                               REQUEST_STOP_BYTES_MAX);
        }
        while (n_blank < n && text[n_blank] != '\0' && strchr(" \t\r\n", text[n_blank]) != NULL)
            n_blank++;
        if (n_blank == n) n_blank = 0; /* blanks alone are the word */
        TRY(add_word(r, rules, text + n_blank, n - n_blank));
    }
    return status_ok();
}

/* Brings r->allowed up to date; *none: no token is in it. */
static struct status look_ahead(struct request *r, const struct request_rules *rules, bool *none)
{
    const size_t n_words = ((size_t)rules->vocab_size + 31) / 32;
    if (r->allowed == NULL) TRY(mem_alloc(&r->allowed, n_words, sizeof *r->allowed, "request"));
    TRY(request_allow(r, rules, NULL, r->allowed));
    *none = true;
    for (size_t i = 0; i < n_words; i++) *none = *none && r->allowed[i] == 0;
    return status_ok();
}

struct status request_read_words(struct request *r, const struct request_rules *rules,
                                 const struct js_node *fields)
{
    if (rules->score) return status_ok();
    TRY(read_kept(r, rules, js_get(fields, "allowed_token_ids")));
    TRY(read_banned(r, rules, js_get(fields, "bad_words")));
    if (!has_any(&r->words)) return status_ok();
    if (r->beam.width > 0) {
        return request_bad(r, "unsupported", "%s: not supported together with beam search",
                           r->words.kept != NULL ? "allowed_token_ids" : "bad_words");
    }
    bool none;
    TRY(look_ahead(r, rules, &none));
    if (!none) return status_ok();
    return request_bad(
        r, "invalid_request",
        "allowed_token_ids, bad_words and what else the line asks for leave no token "
        "to begin with");
}

static void forbid(const struct request_rules *rules, int32_t id, uint32_t *allowed)
{
    if (id >= 0 && id < rules->vocab_size) allowed[id / 32] &= ~((uint32_t)1 << (id % 32));
}

/* Token i of r's, and of the drafts behind them. */
static int32_t token_at(const struct request *r, const struct request_ahead *ahead, size_t i)
{
    return i < r->n_tokens ? r->tokens[i] : ahead->tokens[i - r->n_tokens];
}

/* True when the n tokens of `word` stand before token `end`. */
static bool stands_before(const struct request *r, const struct request_ahead *ahead, size_t end,
                          const int32_t *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (token_at(r, ahead, end - n + i) != word[i]) return false;
    return true;
}

static void narrow(const struct request *r, const struct request_rules *rules,
                   const struct request_ahead *ahead, uint32_t *allowed)
{
    const struct request_words *w = &r->words;
    const size_t n_tokens = r->n_tokens + (ahead != NULL ? ahead->n : 0);
    const size_t n_sampled = n_tokens - r->n_prompt;
    for (size_t i = 0; i < w->n_kept_words; i++) allowed[i] &= w->kept[i];
    for (size_t i = 0; i < w->n_banned; i += 1 + (size_t)w->banned[i]) {
        const int32_t *word = w->banned + i + 1;
        const size_t n_before = (size_t)w->banned[i] - 1;
        if (n_before > n_sampled || !stands_before(r, ahead, n_tokens, word, n_before)) continue;
        forbid(rules, word[n_before], allowed);
    }
    if (n_sampled >= (size_t)r->min_tokens) return; /* end tokens may not come yet */
    for (size_t i = 0; i < rules->n_end_ids; i++) forbid(rules, rules->end_ids[i], allowed);
    for (size_t i = 0; i < r->n_stop_ids; i++) forbid(rules, r->stop_ids[i], allowed);
}

bool request_is_narrowed(const struct request *r)
{
    return r->guide != NULL || has_any(&r->words);
}

struct status request_allow(const struct request *r, const struct request_rules *rules,
                            const struct request_ahead *ahead, uint32_t *allowed)
{
    const size_t n_words = ((size_t)rules->vocab_size + 31) / 32;
    const int n_last = rules->vocab_size % 32;
    if (r->guide != NULL) {
        TRY(request_guide_allow(r, rules, ahead, allowed));
    } else {
        memset(allowed, 0xFF, n_words * sizeof *allowed);
        if (n_last > 0) allowed[n_words - 1] = ((uint32_t)1 << n_last) - 1;
    }
    if (has_any(&r->words)) narrow(r, rules, ahead, allowed);
    return status_ok();
}

struct status request_words_check(struct request *r, const struct request_rules *rules,
                                  bool *is_done)
{
    *is_done = false;
    if (!has_any(&r->words)) return status_ok();
    bool none;
    TRY(look_ahead(r, rules, &none));
    if (!none) return status_ok();
    *is_done = r->guide != NULL && guide_accepts(r->guide, r->guide_state);
    if (*is_done) return status_ok();
    return request_fail(
        r, REQUEST_NO_TOKEN_CODE,
        "allowed_token_ids, bad_words and what else the line asks for leave no token "
        "to go on with");
}

uint64_t request_words_hash(const struct request *r)
{
    const struct request_words *w = &r->words;
    if (!has_any(w)) return 0;
    const uint64_t kept = XXH3_64bits(w->kept, w->n_kept_words * sizeof *w->kept);
    return XXH3_64bits_withSeed(w->banned, w->n_banned * sizeof *w->banned, kept);
}

size_t request_words_bytes(const struct request *r)
{
    const struct request_words *w = &r->words;
    return w->n_kept_words * sizeof *w->kept + w->banned_capacity * sizeof *w->banned;
}

void request_words_fini(struct request_words *words)
{
    mem_free(&words->kept);
    mem_free(&words->banned);
}
