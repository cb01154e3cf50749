/* Finds the thoughts of an answer by their tags. */
#include "serve/output/reasoning.h"

#include <string.h>

static const char open_tag[] = CHAT_OPEN_THOUGHT, close_tag[] = CHAT_CLOSE_THOUGHT;
enum { OPEN_BYTES = sizeof open_tag - 1, CLOSE_BYTES = sizeof close_tag - 1 };

static bool is_blank_text(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t skip_blanks(const char *text, size_t at, size_t n)
{
    while (at < n && is_blank_text(text[at])) at++;
    return at;
}

/* Returns the length of the longest suffix of text [n] that is a proper prefix of the closing tag.
 */
static size_t begun_tag(const char *text, size_t n)
{
    size_t k = n < CLOSE_BYTES - 1 ? n : CLOSE_BYTES - 1;
    while (k > 0 && memcmp(text + n - k, close_tag, k) != 0) k--;
    return k;
}

/* Finds the end of thoughts that begin at `at`, and the content after them. */
static struct reasoning close_thoughts(const char *text, size_t at, size_t n, bool is_whole)
{
    struct reasoning r = {.begin = skip_blanks(text, at, n), .end = n, .content = n};
    const char *close = memmem(text + at, n - at, close_tag, CLOSE_BYTES);
    if (close != NULL) {
        r.end = (size_t)(close - text);
        r.content = skip_blanks(text, r.end + CLOSE_BYTES, n);
    } else if (!is_whole) {
        r.end -= begun_tag(text + at, n - at);
    }
    if (r.begin > r.end) r.begin = r.end;
    while (r.end > r.begin && is_blank_text(text[r.end - 1])) r.end--;
    return r;
}

struct reasoning reasoning_of(const struct request *c)
{
    const char *text = c->text.n > 0 ? c->text.data : "";
    const size_t n = c->text.n, at = skip_blanks(text, 0, n);
    const size_t n_tag = n - at < OPEN_BYTES ? n - at : OPEN_BYTES;
    const bool is_whole = c->finish != REQUEST_UNFINISHED;
    const bool may_open = memcmp(text + at, open_tag, n_tag) == 0;
    if (c->ask->thoughts == THOUGHTS_STAY) return (struct reasoning){.content = 0};
    if (may_open && n_tag == OPEN_BYTES) return close_thoughts(text, at + OPEN_BYTES, n, is_whole);
    if (may_open && !is_whole) return (struct reasoning){.content = n};
    if (c->ask->thoughts == THOUGHTS_BEGUN) return close_thoughts(text, 0, n, is_whole);
    return (struct reasoning){.content = 0};
}

void reasoning_write(const struct request *c, size_t begin, size_t end, struct strbuf *out)
{
    strbuf_puts(out, "\"reasoning_content\":");
    strbuf_json_string(out, c->text.data + begin, end - begin);
}
