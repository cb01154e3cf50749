/* Finds the leftmost, longest token by bisection in the sorted tokens. */
#include "text/tokenizer/added.h"

#include "base/utf8.h"
#include "text/unicode/unicode.h"

#include <stdlib.h>
#include <string.h>

static int added_compare(const void *a, const void *b)
{
    const struct added_token *x = a, *y = b;
    const size_t n = x->n < y->n ? x->n : y->n;
    const int c = memcmp(x->content, y->content, n);
    if (c != 0) return c;
    return (x->n > y->n) - (x->n < y->n);
}

size_t added_set_init(struct added_set *s, struct added_token *tokens, size_t n_tokens)
{
    memset(s, 0, sizeof *s);
    if (n_tokens > 1) qsort(tokens, n_tokens, sizeof tokens[0], added_compare);
    s->tokens = tokens;
    s->n_tokens = n_tokens;
    for (size_t i = 0; i < n_tokens; i++) {
        if (tokens[i].n > 0) s->starts[(unsigned char)tokens[i].content[0]] = true;
    }
    for (size_t i = 1; i < n_tokens; i++) {
        if (added_compare(&tokens[i - 1], &tokens[i]) == 0) return i;
    }
    return n_tokens;
}

/* Returns the index of the first token in [low, high) whose byte at `depth` is at least `byte`, or
 * high. The tokens in [low, high) share the bytes before depth, and tokens that end at depth come
 * first. */
static size_t lower_bound(const struct added_set *s, size_t low, size_t high, size_t depth,
                          int byte)
{
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const struct added_token *t = &s->tokens[mid];
        const int b = t->n <= depth ? -1 : (unsigned char)t->content[depth];
        if (b < byte) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

/* Returns how many of n bytes come from a user. */
static size_t n_user(const unsigned char *user, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += user[i];
    return count;
}

/* Returns the longest token that starts at `at`, or NULL. If a special token's bytes come only
 * partly from a user, the next shorter token is tried, so that a user's text cannot consume text of
 * the template. A special token whose bytes all come from a user is still returned: added_find
 * makes it plain text and skips the shorter tokens inside it. */
static const struct added_token *longest_at(const struct added_set *s, const struct added_walk *w,
                                            size_t at)
{
    const struct added_token *best = NULL;
    size_t low = 0, high = s->n_tokens;
    for (size_t depth = 0; depth < w->n - at && low < high; depth++) {
        const int byte = (unsigned char)w->text[at + depth];
        low = lower_bound(s, low, high, depth, byte);
        high = lower_bound(s, low, high, depth, byte + 1);
        if (low >= high || s->tokens[low].n != depth + 1) continue;
        const size_t user =
            w->user != NULL && s->tokens[low].special ? n_user(w->user + at, depth + 1) : 0;
        if (user == 0 || user == depth + 1) best = &s->tokens[low];
    }
    return best;
}

static bool word_before(const char *text, size_t end)
{
    if (end == 0) return false;
    size_t at = end - 1, step;
    while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80) at--;
    return unicode_is_word(utf8_decode(text + at, end - at, &step));
}

static bool word_behind(const char *text, size_t start, size_t n)
{
    size_t step;
    return start < n && unicode_is_word(utf8_decode(text + start, n - start, &step));
}

/* Returns the start of the run of whitespace that ends at `end`, but at least `floor`. */
static size_t blanks_before(const char *text, size_t floor, size_t end)
{
    while (end > floor) {
        size_t at = end - 1, step;
        while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80) at--;
        if (!unicode_is_space(utf8_decode(text + at, end - at, &step))) break;
        end = at;
    }
    return end;
}

/* Returns the end of the run of whitespace that starts at `start`. Remembers the last run.
 * Otherwise, in a long run of tokens that are whitespace themselves, each token with rstrip would
 * scan the rest of the run again. */
static size_t blanks_behind(struct added_walk *w, size_t start)
{
    if (start >= w->run_start && start < w->run_end) return w->run_end;
    size_t end = start, step;
    while (end < w->n && unicode_is_space(utf8_decode(w->text + end, w->n - end, &step))) {
        end += step;
    }
    w->run_start = start;
    w->run_end = end;
    return end;
}

void added_walk_init(struct added_walk *w, const char *text, size_t n, bool parse_special)
{
    *w = (struct added_walk){.text = text, .n = n, .token_id = -1, .parse_special = parse_special};
}

/* Finds the next added token that may become an id here; false: none. Excluded are special tokens
 * that are plain text here, and single_word tokens beside a word character. As in Hugging Face's
 * library, an excluded token still hides the tokens inside it. */
static bool added_find(const struct added_set *s, struct added_walk *w,
                       const struct added_token **token, size_t *start, size_t *end)
{
    while (s->n_tokens > 0 && w->search_at < w->n) {
        const size_t at = w->search_at;
        const struct added_token *t = NULL;
        if (s->starts[(unsigned char)w->text[at]]) t = longest_at(s, w, at);
        if (t == NULL) {
            w->search_at++;
            continue;
        }
        w->search_at = at + t->n;
        if (t->special && (!w->parse_special || (w->user != NULL && w->user[at] != 0))) continue;
        if (t->single_word && (word_before(w->text, at) || word_behind(w->text, at + t->n, w->n))) {
            continue;
        }
        *token = t;
        *start = at;
        *end = at + t->n;
        return true;
    }
    return false;
}

bool added_next(const struct added_set *s, struct added_walk *w, struct added_piece *out)
{
    if (w->token_id < 0) {
        const struct added_token *t;
        size_t start, end;
        const bool found = added_find(s, w, &t, &start, &end);
        if (!found) start = w->n;
        if (found && t->lstrip) start = blanks_before(w->text, w->emitted, start);
        if (found && t->rstrip) end = blanks_behind(w, end);
        const size_t from = w->emitted;
        if (found) {
            w->token_id = t->id;
            w->token_end = end;
        }
        if (start > from) {
            *out = (struct added_piece){.start = from, .n = start - from, .id = -1};
            w->emitted = start;
            return true;
        }
        if (!found) return false;
    }
    *out = (struct added_piece){.id = w->token_id};
    w->emitted = w->token_end; /* may move back over whitespace that an earlier token took in */
    w->token_id = -1;
    return true;
}
