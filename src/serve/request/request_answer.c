/* Finds the tokens that may come next, and takes the tokens of the answer one by one. */
#include "serve/request/request_answer.h"

#include "base/mem.h"
#include "serve/request/request_guide.h"

#include <string.h>
#include <xxhash.h>

static bool has_any(const struct request_words *w)
{
    return w->kept != NULL || w->n_banned > 0;
}

struct status request_allows_none(struct request *r, const struct request_rules *rules, bool *none)
{
    const size_t n_words = ((size_t)rules->vocab_size + 31) / 32;
    if (r->allowed == NULL) TRY(mem_alloc(&r->allowed, n_words, sizeof *r->allowed, "request"));
    TRY(request_allow(r, rules, NULL, r->allowed));
    *none = true;
    for (size_t i = 0; i < n_words; i++) *none = *none && r->allowed[i] == 0;
    return status_ok();
}

static void forbid(const struct request_rules *rules, int32_t id, uint32_t *allowed)
{
    if (id >= 0 && id < rules->vocab_size) allowed[id / 32] &= ~((uint32_t)1 << (id % 32));
}

/* Returns token i of r's tokens followed by the drafts. */
static int32_t token_at(const struct request *r, const struct request_ahead *ahead, size_t i)
{
    return i < r->n_tokens ? r->tokens[i] : ahead->tokens[i - r->n_tokens];
}

/* True when the n tokens of `word` stand directly before position `end`. */
static bool stands_before(const struct request *r, const struct request_ahead *ahead, size_t end,
                          const int32_t *word, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (token_at(r, ahead, end - n + i) != word[i]) return false;
    return true;
}

static void request_answer_narrow(const struct request *r, const struct request_rules *rules,
                                  const struct request_ahead *ahead, uint32_t *allowed)
{
    const struct request_words *w = &r->ask->words;
    const size_t n_tokens = r->n_tokens + (ahead != NULL ? ahead->n : 0);
    const size_t n_sampled = n_tokens - r->n_prompt;
    for (size_t i = 0; i < w->n_kept_words; i++) allowed[i] &= w->kept[i];
    for (size_t i = 0; i < w->n_banned; i += 1 + (size_t)w->banned[i]) {
        const int32_t *word = w->banned + i + 1;
        const size_t n_before = (size_t)w->banned[i] - 1;
        if (n_before > n_sampled || !stands_before(r, ahead, n_tokens, word, n_before)) continue;
        forbid(rules, word[n_before], allowed);
    }
    if (n_sampled >= (size_t)r->ask->min_tokens) return;
    /* before min_tokens, end tokens are forbidden */
    for (size_t i = 0; i < rules->n_end_ids; i++) forbid(rules, rules->end_ids[i], allowed);
    for (size_t i = 0; i < r->ask->n_stop_ids; i++) forbid(rules, r->ask->stop_ids[i], allowed);
}

bool request_is_narrowed(const struct request *r)
{
    return r->ask->guide != NULL || has_any(&r->ask->words);
}

struct status request_allow(const struct request *r, const struct request_rules *rules,
                            const struct request_ahead *ahead, uint32_t *allowed)
{
    const size_t n_words = ((size_t)rules->vocab_size + 31) / 32;
    const int n_last = rules->vocab_size % 32;
    if (r->ask->guide != NULL) {
        TRY(request_guide_allow(r, rules, ahead, allowed));
    } else {
        memset(allowed, 0xFF, n_words * sizeof *allowed);
        if (n_last > 0) allowed[n_words - 1] = ((uint32_t)1 << n_last) - 1;
    }
    if (has_any(&r->ask->words)) request_answer_narrow(r, rules, ahead, allowed);
    return status_ok();
}

/* Checks r after a token that did not end it, if r has allowed_token_ids or bad_words. If no token
 * may follow, sets *is_done when r's guide accepts the text; otherwise makes r an error row.
 * request_guide_take checks a guide alone. */
static struct status check_left(struct request *r, const struct request_rules *rules, bool *is_done)
{
    *is_done = false;
    if (!has_any(&r->ask->words)) return status_ok();
    bool none;
    TRY(request_allows_none(r, rules, &none));
    if (!none) return status_ok();
    *is_done = r->ask->guide != NULL && guide_accepts(r->ask->guide, r->guide_state);
    if (*is_done) return status_ok();
    return request_fail(
        r, REQUEST_NO_TOKEN_CODE,
        "allowed_token_ids, bad_words and the other limits of the line leave no token "
        "to continue with");
}

uint64_t request_words_hash(const struct request *r)
{
    const struct request_words *w = &r->ask->words;
    if (!has_any(w)) return 0;
    const uint64_t kept = XXH3_64bits(w->kept, w->n_kept_words * sizeof *w->kept);
    return XXH3_64bits_withSeed(w->banned, w->n_banned * sizeof *w->banned, kept);
}

/* ---- taking a token ---- */

/* Appends to the text `piece`, which comes from the detokenizer; after the first min_tokens tokens
 * only up to a stop string. *stopped: a stop string was found. */
static struct status add_text(struct request *r, const struct strbuf *piece, bool *stopped)
{
    *stopped = false;
    TRY(strbuf_status(piece));
    const bool may_stop = r->n_tokens > r->n_prompt + (size_t)r->ask->min_tokens;
    if (r->stop != NULL && may_stop) {
        return stop_feed(r->stop, piece->data, piece->n, &r->text, stopped);
    }
    strbuf_add(&r->text, piece->data, piece->n);
    return strbuf_status(&r->text);
}

/* True when the text would end in a stop string if no more tokens came. */
static bool stops_ahead(struct request *r, const struct request_rules *rules)
{
    if (r->stop == NULL) return false;
    size_t n;
    const char *text = detokenizer_pending(&r->detokenizer, rules->tokenizer, &n);
    return n > 0 && stop_peek(r->stop, text, n);
}

/* Feeds one token to the detokenizer. With `last`, ignores the token and ends the text. */
static struct status feed_text(struct request *r, const struct request_rules *rules, int32_t token,
                               bool last, bool *stopped)
{
    *stopped = false;
    if (rules->tokenizer == NULL) return status_ok();
    struct strbuf piece;
    strbuf_init(&piece);
    struct status st = last ? detokenizer_flush(&r->detokenizer, rules->tokenizer, &piece)
                            : detokenizer_feed(&r->detokenizer, rules->tokenizer, token, &piece);
    if (!status_failed(&st) && piece.n > 0) st = add_text(r, &piece, stopped);
    if (!status_failed(&st) && !last && !*stopped && stops_ahead(r, rules)) {
        strbuf_clear(&piece);
        st = detokenizer_flush(&r->detokenizer, rules->tokenizer, &piece);
        if (!status_failed(&st)) st = add_text(r, &piece, stopped);
    }
    if (!status_failed(&st) && last && r->stop != NULL) st = stop_flush(r->stop, &r->text);
    strbuf_fini(&piece);
    return st;
}

static bool has_id(const int32_t *ids, size_t n, int32_t id)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

static bool is_end_id(const struct request *r, const struct request_rules *rules, int32_t token)
{
    return (!r->ask->ignore_eos && has_id(rules->end_ids, rules->n_end_ids, token)) ||
           has_id(r->ask->stop_ids, r->ask->n_stop_ids, token);
}

struct status request_take_token(struct request *r, const struct request_rules *rules,
                                 int32_t token)
{
    if (r->n_tokens == r->tokens_capacity) {
        const size_t grown = r->tokens_capacity + r->tokens_capacity / 2 + 64;
        TRY(mem_grow(&r->tokens, r->n_tokens, grown, sizeof *r->tokens, "request tokens"));
        r->tokens_capacity = grown;
    }
    r->tokens[r->n_tokens++] = token;
    bool stopped = is_end_id(r, rules, token);
    const bool ended = stopped;
    bool is_done = false;
    if (!ended) TRY(feed_text(r, rules, token, false, &stopped));
    if (!ended) TRY(request_guide_take(r, token, &is_done));
    if (stopped || is_done || r->error.code != NULL) {
        r->finish = REQUEST_STOP;
    } else if (r->n_tokens - r->n_prompt >= (size_t)r->ask->max_tokens ||
               r->n_tokens >= (size_t)rules->max_model_len) {
        r->finish = REQUEST_LENGTH;
    } else {
        TRY(check_left(r, rules, &is_done));
        if (is_done || r->error.code != NULL) r->finish = REQUEST_STOP;
    }
    if (r->finish == REQUEST_UNFINISHED || (stopped && !ended)) return status_ok();
    bool ignored;
    return feed_text(r, rules, -1, true, &ignored);
}
