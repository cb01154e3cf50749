/* Reads the scored lines of evaluations: a context and its continuation, or a whole text, as text
 * or as token ids. Tokens are divided as lm-evaluation-harness divides them (its
 * TemplateLM._encode_pair and utils.get_rolling_token_windows), so that its numbers can be
 * compared. */
#include "base/mem.h"
#include "serve/request/request_parse.h"

#include <string.h>

/* A scored line: its texts, and the tokens found so far. */
struct scored {
    const char *context; /* this and `continuation`: NULL if the line gives token ids */
    const char *continuation;
    size_t n_context, n_continuation;
    bool adds_special;
    int32_t prefix_id;
    struct token_list before, after; /* tokens without log-probabilities; tokens with them */
};

/* Returns the length of the white space at the end of a text, as Python's str.rstrip finds it. */
static size_t n_blank_end(const char *text, size_t n)
{
    static const char *const wide[] = {"\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80",
                                       "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF",
                                       "\xE2\x81\x9F", "\xE3\x80\x80"};
    size_t end = n;
    for (size_t before = end + 1; end != before;) {
        before = end;
        const unsigned char last = end > 0 ? (unsigned char)text[end - 1] : 'a';
        if (last == ' ' || (last >= 9 && last <= 13) || (last >= 28 && last <= 31)) end--;
        for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
            const size_t m = strlen(wide[i]);
            if (end >= m && memcmp(text + end - m, wide[i], m) == 0) end -= m;
        }
        /* U+2000 to U+200A */
        if (end >= 3 && memcmp(text + end - 3, "\xE2\x80", 2) == 0 &&
            (unsigned char)text[end - 1] >= 0x80 && (unsigned char)text[end - 1] <= 0x8A)
            end -= 3;
    }
    return n - end;
}

static struct status need_prefix(struct request_parser *p, const struct scored *s)
{
    if (s->prefix_id >= 0) return status_ok();
    return request_bad(p, "invalid_request",
                       "prefix_token_id: expected one, because this model has neither bos_token "
                       "nor eos_token to stand before the text");
}

static struct status append_ids(struct token_list *list, const int32_t *ids, size_t n)
{
    TRY(token_list_reserve(list, n));
    if (n > 0) memcpy(list->ids + list->n, ids, n * sizeof *ids);
    list->n += n;
    return status_ok();
}

/* Appends a text's tokens, with those that the tokenizer's post-processor adds if the line wants
 * them and the text does not itself begin with the prefix token. */
static struct status encode_scored(struct request_parser *p, const struct scored *s,
                                   const char *text, size_t n, struct token_list *out)
{
    size_t m;
    const char *prefix = tokenizer_token_bytes(p->rules->tokenizer, s->prefix_id, &m);
    const bool begins = prefix != NULL && n >= m && memcmp(text, prefix, m) == 0;
    const unsigned flags = s->adds_special && !begins ? TOKENIZER_ADD_SPECIAL : 0;
    return request_encode(p, text, n, flags, out);
}

/* Encodes the context alone, then context and continuation together. If the context alone has n
 * tokens, the tokens after the first n belong to the continuation. White space at the end of the
 * context belongs to the continuation. */
static struct status encode_pair(struct request_parser *p, struct scored *s)
{
    struct token_list whole = {0};
    struct strbuf text;
    strbuf_init(&text);
    strbuf_add(&text, s->context, s->n_context);
    strbuf_add(&text, s->continuation, s->n_continuation);
    struct status st = strbuf_status(&text);
    const size_t n_blank = n_blank_end(s->context, s->n_context);
    if (!status_failed(&st))
        st = encode_scored(p, s, s->context, s->n_context - n_blank, &s->before);
    if (!status_failed(&st)) st = encode_scored(p, s, text.data, text.n, &whole);
    if (!status_failed(&st) && whole.n > s->before.n)
        st = append_ids(&s->after, whole.ids + s->before.n, whole.n - s->before.n);
    token_list_fini(&whole);
    strbuf_fini(&text);
    return st;
}

/* Makes the prefix token the context of a continuation that has none. If the continuation itself
 * begins with that token, its first token becomes the context. */
static struct status begin_with_prefix(struct request_parser *p, struct scored *s)
{
    TRY(need_prefix(p, s));
    TRY(append_ids(&s->before, &s->prefix_id, 1));
    if (s->after.n == 0 || s->after.ids[0] != s->prefix_id) return status_ok();
    s->after.n--;
    memmove(s->after.ids, s->after.ids + 1, s->after.n * sizeof *s->after.ids);
    return status_ok();
}

/* Takes the pair's tokens; a context that is too long loses its beginning. */
static struct status take_pair(struct request_parser *p, struct scored *s)
{
    const size_t most = (size_t)p->rules->max_model_len;
    if (s->after.n == 0) {
        return request_bad(p, "invalid_request",
                           "continuation: it has no tokens of its own, expected at least one");
    }
    if (s->after.n >= most) {
        return request_bad(p, "context_length_exceeded",
                           "continuation: it has %zu tokens, expected at most %zu: the context "
                           "holds %zu, and one is needed before it",
                           s->after.n, most - 1, most);
    }
    const size_t n_all = s->before.n + s->after.n;
    p->r->n_cut = n_all > most ? n_all - most : 0;
    TRY(request_add_tokens(p, s->before.ids + p->r->n_cut, s->before.n - p->r->n_cut));
    p->r->logprobs.score_from = p->r->n_tokens;
    return request_add_tokens(p, s->after.ids, s->after.n);
}

static struct status read_pair(struct request_parser *p, struct scored *s,
                               const struct js_node *context, const struct js_node *continuation)
{
    s->context = js_string(context, &s->n_context);
    s->continuation = js_string(continuation, &s->n_continuation);
    const bool is_text = s->context != NULL && s->continuation != NULL;
    if (!is_text && (js_type(context) != JS_ARRAY || js_type(continuation) != JS_ARRAY)) {
        return request_bad(p, "invalid_request",
                           "context, continuation: expected two strings or two lists of token ids");
    }
    if (is_text && s->n_context > 0) {
        TRY(encode_pair(p, s));
    } else if (is_text) { /* the prefix token takes the place of all special tokens */
        TRY(request_encode(p, s->continuation, s->n_continuation, 0, &s->after));
    } else {
        TRY(request_read_ids(p, context, "context", &s->before));
        TRY(request_read_ids(p, continuation, "continuation", &s->after));
    }
    if (s->before.n == 0) TRY(begin_with_prefix(p, s));
    p->ask->score = REQUEST_SCORE_PAIR;
    /* the most likely token tells whether a scored token is greedy */
    p->ask->n_prompt_logprobs = p->ask->n_prompt_tops = 1;
    return take_pair(p, s);
}

/* Divides the text into windows of as many tokens as the context holds, each a prompt of the line:
 *
 *   prefix t0 t1 t2 t3 | t3 t4 t5 t6 t7 | t6 t7 t8 t9 t10      the context holds 5 tokens;
 *          -----------      -----------         ---------      underlined: with log-probabilities
 */
static struct status take_windows(struct request_parser *p, const struct scored *s)
{
    const size_t most = (size_t)p->rules->max_model_len - 1, n = s->after.n;
    const size_t n_windows = (n + most - 1) / most;
    struct request *r = p->r;
    if (n_windows > REQUEST_PROMPTS_MAX) {
        return request_bad(p, "context_length_exceeded",
                           "text: it has %zu tokens, expected at most %zu: %d windows of %zu", n,
                           REQUEST_PROMPTS_MAX * most, REQUEST_PROMPTS_MAX, most);
    }
    TRY(mem_alloc(&r->prompts, n_windows, sizeof *r->prompts, "request"));
    p->ask->n_prompts = p->ask->n_choices = (int32_t)n_windows;
    TRY(request_add_tokens(p, &s->prefix_id, 1));
    for (size_t i = 0; i < n_windows; i++) {
        const size_t begin = i * most, end = begin + most < n ? begin + most : n;
        const size_t from = i == 0 ? 0 : end - most - 1;
        TRY(request_add_tokens(p, s->after.ids + from, end - from));
        r->prompts[i].end = r->n_tokens;
        r->prompts[i].score_from = i == 0 ? 1 : begin - from;
    }
    r->logprobs.score_from = 1;
    return status_ok();
}

static struct status read_whole_text(struct request_parser *p, struct scored *s,
                                     const struct js_node *text)
{
    size_t n;
    const char *bytes = js_string(text, &n);
    if (bytes == NULL && js_type(text) != JS_ARRAY) {
        return request_bad(p, "invalid_request",
                           "text: expected a string or a list of token ids, found %s",
                           request_type_name(text));
    }
    TRY(bytes != NULL ? encode_scored(p, s, bytes, n, &s->after)
                      : request_read_ids(p, text, "text", &s->after));
    TRY(need_prefix(p, s));
    if (s->after.n == 0) return request_bad(p, "invalid_request", "text: it has no tokens");
    p->ask->score = REQUEST_SCORE_TEXT;
    return take_windows(p, s);
}

static struct status read_options(struct request_parser *p, const struct js_node *fields,
                                  struct scored *s)
{
    int64_t id = p->rules->prefix_id;
    s->adds_special = true;
    TRY(request_read_bool(p, fields, "add_special_tokens", &s->adds_special));
    TRY(request_read_int(p, fields, "prefix_token_id", 0, p->rules->vocab_size - 1, &id));
    s->prefix_id = (int32_t)id;
    return status_ok();
}

struct status request_read_scored(struct request_parser *p, const struct js_node *fields,
                                  bool *is_read)
{
    static const char *const others[] = {"prompt", "prompt_token_ids", "messages"};
    const struct js_node *context = js_get(fields, "context"), *text = js_get(fields, "text");
    const struct js_node *continuation = js_get(fields, "continuation");
    const bool is_pair = js_type(context) != JS_NULL || js_type(continuation) != JS_NULL;
    const bool is_text = js_type(text) != JS_NULL;
    struct scored s = {0};
    *is_read = is_pair || is_text;
    for (int i = 0; i < 3; i++) /* in a line with a prompt these fields have no effect */
        *is_read = *is_read && js_type(js_get(fields, others[i])) == JS_NULL;
    if (!*is_read) return status_ok();
    if (is_pair && is_text) {
        return request_bad(p, "invalid_request",
                           "expected either context and continuation, or text, found both");
    }
    if (p->rules->tokenizer == NULL && js_type(is_pair ? continuation : text) == JS_STRING) {
        return request_bad(p, "unsupported",
                           "%s: this model has no tokenizer; give lists of token ids",
                           is_pair ? "continuation" : "text");
    }
    struct status st = read_options(p, fields, &s);
    if (!status_failed(&st))
        st = is_pair ? read_pair(p, &s, context, continuation) : read_whole_text(p, &s, text);
    token_list_fini(&s.before);
    token_list_fini(&s.after);
    return st;
}
