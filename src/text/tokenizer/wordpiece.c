/* Greedy: the longest piece first, as in Hugging Face's library. */
#include "text/tokenizer/wordpiece.h"

#include "base/utf8.h"

static bool has_more_chars(const char *word, size_t n, size_t most)
{
    size_t n_chars = 0, step;
    for (size_t at = 0; at < n && n_chars <= most; at += step, n_chars++)
        utf8_decode(word + at, n - at, &step);
    return n_chars > most;
}

/* Finds the longest piece of the vocabulary at the beginning of word[at, n). Returns its id and
 * sets *end to its end; -1 if there is none, or if w->key has failed. */
static int32_t longest_piece(struct wordpiece *w, const char *word, size_t at, size_t n,
                             size_t *end)
{
    const size_t n_prefix = at > 0 ? w->n_prefix : 0;
    const size_t most = w->n_key_max > n_prefix ? w->n_key_max - n_prefix : 0;
    size_t length = n - at < most ? n - at : most;
    strbuf_clear(&w->key);
    strbuf_add(&w->key, w->prefix, n_prefix);
    strbuf_add(&w->key, word + at, length);
    if (w->key.failed) return -1;
    for (; length > 0; length--) {
        const bool is_whole = at + length == n || ((unsigned char)word[at + length] & 0xC0) != 0x80;
        if (!is_whole) continue; /* inside a character */
        const int32_t id = str_map_get(&w->vocab, w->key.data, n_prefix + length);
        *end = at + length;
        if (id >= 0) return id;
    }
    return -1;
}

struct status wordpiece_encode(struct wordpiece *w, const char *word, size_t n,
                               struct token_list *out)
{
    const size_t n_before = out->n;
    bool is_unknown = has_more_chars(word, n, w->n_chars_max);
    for (size_t at = 0, end = 0; at < n && !is_unknown; at = end) {
        const int32_t id = longest_piece(w, word, at, n, &end);
        is_unknown = id < 0;
        if (is_unknown) break;
        TRY(token_list_reserve(out, 1));
        out->ids[out->n++] = id;
    }
    TRY(strbuf_status(&w->key));
    if (!is_unknown) return status_ok();
    out->n = n_before;
    TRY(token_list_reserve(out, 1));
    out->ids[out->n++] = w->unk_id;
    return status_ok();
}
