/* Finds tool calls in the text of an answer, writes them as JSON and replaces their ids. */
#include "serve/output/tool_calls.h"

#include "base/json.h"
#include "base/mem.h"
#include "serve/output/reasoning.h"

#include <string.h>
#include <xxhash.h>

static const char open_tag[] = "<tool_call>", close_tag[] = "</tool_call>";
enum { OPEN_BYTES = sizeof open_tag - 1, CLOSE_BYTES = sizeof close_tag - 1 };

/* A part of a text. */
struct piece {
    const char *text;
    size_t n;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static struct piece trimmed(struct piece p)
{
    while (p.n > 0 && is_space(p.text[p.n - 1])) p.n--;
    while (p.n > 0 && is_space(p.text[0])) p.text++, p.n--;
    return p;
}

/* True when the request names this tool. In the request's list each name ends with a NUL. */
static bool is_known_tool(const struct request *c, const char *name, size_t n)
{
    const struct request_bytes *all = &c->ask->tools;
    for (size_t at = 0; at < all->n; at += strlen(all->bytes + at) + 1)
        if (strlen(all->bytes + at) == n && memcmp(all->bytes + at, name, n) == 0) return true;
    return false;
}

/* Adds the call that a JSON object holds. *ok: it holds a call. */
static struct status add_call(const struct request *c, const struct js_node *node,
                              struct tool_calls *out, bool *ok)
{
    size_t n_name = 0;
    const char *name = js_string(js_get(node, "name"), &n_name);
    const struct js_node *arguments = js_get(node, "arguments");
    if (js_type(arguments) == JS_NULL) arguments = js_get(node, "parameters");
    const bool has_none = js_type(arguments) == JS_NULL;
    *ok = name != NULL && is_known_tool(c, name, n_name) && out->n < TOOL_CALLS_MAX &&
          (has_none || js_type(arguments) == JS_OBJECT);
    if (!*ok) return status_ok();
    if (out->calls == NULL)
        TRY(mem_alloc(&out->calls, TOOL_CALLS_MAX, sizeof *out->calls, "tool calls"));
    struct tool_call *call = &out->calls[out->n++];
    TRY(mem_strndup(&call->name, name, n_name));
    if (!has_none) return js_dump(arguments, &call->arguments, &call->n_arguments);
    call->n_arguments = 2;
    return mem_strndup(&call->arguments, "{}", 2);
}

/* Adds the call, or the list of calls, that a text holds as JSON. *ok: it holds nothing but calls.
 */
static struct status keep_text(const struct request *c, struct piece p, struct tool_calls *out,
                               bool *ok)
{
    struct js_doc *doc = NULL;
    bool is_rounded;
    struct status st = js_parse_rounding(p.text, p.n, "call", &doc, &is_rounded);
    *ok = !status_failed(&st) && !is_rounded;
    if (st.code == STATUS_INPUT) return status_ok();
    const struct js_node *root = js_root(doc);
    if (*ok && js_type(root) != JS_ARRAY) {
        st = add_call(c, root, out, ok);
    } else if (*ok) {
        *ok = js_count(root) > 0;
        for (size_t i = 0; i < js_count(root) && *ok && !status_failed(&st); i++)
            st = add_call(c, js_at(root, i), out, ok);
    }
    js_destroy(&doc);
    return st;
}

static const char *find_mark(struct piece p, const char *tag)
{
    return memmem(p.text, p.n, tag, strlen(tag));
}

/* Finds the calls between tags. The last one may lack its closing tag, as after max_tokens. */
static struct status find_tagged(const struct request *c, struct piece all, struct tool_calls *out,
                                 bool *ok)
{
    const char *end = all.text + all.n, *at = find_mark(all, open_tag);
    *ok = at != NULL;
    out->n_content = at != NULL ? (size_t)(at - all.text) : all.n;
    while (*ok && at != NULL) {
        const char *begin = at + OPEN_BYTES;
        const struct piece rest = {begin, (size_t)(end - begin)};
        const char *close = find_mark(rest, close_tag);
        const struct piece call = {begin, (size_t)((close != NULL ? close : end) - begin)};
        TRY(keep_text(c, trimmed(call), out, ok));
        const char *next = close != NULL ? close + CLOSE_BYTES : end;
        at = find_mark((struct piece){next, (size_t)(end - next)}, open_tag);
    }
    return status_ok();
}

/* Returns the length of the JSON object or list at the beginning of a text, found by its brackets;
 * the length of the whole text if they do not close. */
static size_t value_length(struct piece p)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < p.n; i++) {
        const char b = p.text[i];
        if (in_string && b == '\\') {
            i++;
        } else if (b == '"') {
            in_string = !in_string;
        } else if (!in_string) {
            depth += (b == '{' || b == '[') - (b == '}' || b == ']');
            if (depth == 0) return i + 1;
        }
    }
    return p.n;
}

/* Finds the calls of a text that consists of calls only. */
static struct status find_json(const struct request *c, struct piece all, struct tool_calls *out,
                               bool *ok)
{
    struct piece left = trimmed(all);
    *ok = left.n > 0 && (left.text[0] == '{' || left.text[0] == '[');
    out->n_content = 0;
    while (*ok && left.n > 0) {
        const size_t n = value_length(left);
        TRY(keep_text(c, (struct piece){left.text, n}, out, ok));
        left = trimmed((struct piece){left.text + n, left.n - n});
        if (left.n > 0 && left.text[0] == ';')
            left = trimmed((struct piece){left.text + 1, left.n - 1});
    }
    return status_ok();
}

static struct piece content_of(const struct request *c, size_t content)
{
    return (struct piece){c->text.n > 0 ? c->text.data + content : "", c->text.n - content};
}

struct status tool_calls_find(const struct request *c, struct tool_calls *out)
{
    const size_t content = reasoning_of(c).content;
    const struct piece all = content_of(c, content);
    bool ok = false;
    *out = (struct tool_calls){.content = content, .n_content = all.n};
    if (c->ask->tools.n == 0) return status_ok();
    const struct status st = c->ask->tool_form == CHAT_TOOLS_TAGGED ? find_tagged(c, all, out, &ok)
                                                                    : find_json(c, all, out, &ok);
    if (status_failed(&st) || !ok) {
        tool_calls_fini(out);
        out->n_content = all.n;
        return st;
    }
    while (out->n_content > 0 && is_space(all.text[out->n_content - 1])) out->n_content--;
    return st;
}

void tool_calls_fini(struct tool_calls *t)
{
    for (size_t i = 0; i < t->n; i++) {
        mem_free(&t->calls[i].name);
        mem_free(&t->calls[i].arguments);
    }
    mem_free(&t->calls);
    t->n = 0;
}

/* Returns the number of bytes before the first opening tag, or before a suffix of the text that may
 * become one, or of the whole text; without blanks at their end. */
static size_t n_sure_tagged(struct piece all)
{
    const char *at = find_mark(all, open_tag);
    size_t n = at != NULL ? (size_t)(at - all.text) : all.n;
    if (at == NULL) {
        const size_t most = all.n < OPEN_BYTES - 1 ? all.n : OPEN_BYTES - 1;
        for (size_t k = most; k > 0; k--) {
            if (memcmp(all.text + all.n - k, open_tag, k) != 0) continue;
            n = all.n - k;
            break;
        }
    }
    while (n > 0 && is_space(all.text[n - 1])) n--;
    return n;
}

size_t tool_calls_n_sure(const struct request *c, size_t content)
{
    const struct piece all = content_of(c, content);
    if (c->ask->tools.n == 0) return all.n;
    if (c->ask->tool_form == CHAT_TOOLS_TAGGED) return n_sure_tagged(all);
    const struct piece text = trimmed(all);
    return text.n == 0 || text.text[0] == '{' || text.text[0] == '[' ? 0 : all.n;
}

/* Ids are call_ID_K: ID is a hash of the custom_id and the place of the answer, K the place of the
 * call in the answer. */
#define CALL_START   "{\"id\":\"call_"
#define ANSWER_START "{\"index\":"
enum { ID_DIGITS = 16 };

static void add_call_id(const char *custom_id, size_t n, uint64_t answer, struct strbuf *out)
{
    const unsigned long long id = XXH3_64bits_withSeed(custom_id, n, answer);
    strbuf_printf(out, "%016llx", id);
}

void tool_calls_write(const struct tool_calls *t, const struct request *c, bool indexed,
                      struct strbuf *out)
{
    const struct request *line = c->parent != NULL ? c->parent : c;
    strbuf_puts(out, "\"tool_calls\":[");
    for (size_t i = 0; i < t->n; i++) {
        const struct tool_call *call = &t->calls[i];
        if (i > 0) strbuf_puts(out, ",");
        if (indexed)
            strbuf_printf(out, "{\"index\":%zu,\"id\":\"call_", i);
        else
            strbuf_puts(out, CALL_START);
        add_call_id(line->custom_id.bytes, line->custom_id.n, c->choice, out);
        strbuf_printf(out, "_%zu\",\"type\":\"function\",\"function\":{\"name\":", i);
        strbuf_json_string(out, call->name, strlen(call->name));
        strbuf_puts(out, ",\"arguments\":");
        strbuf_json_string(out, call->arguments, call->n_arguments);
        strbuf_puts(out, "}}");
    }
    strbuf_puts(out, "]");
}

static bool piece_starts(struct piece p, const char *start)
{
    return p.n >= strlen(start) && memcmp(p.text, start, strlen(start)) == 0;
}

/* Moves the first n bytes of *p to `out`; drops them if `out` is NULL. */
static void move(struct piece *p, size_t n, struct strbuf *out)
{
    if (n > p->n) n = p->n;
    if (out != NULL) strbuf_add(out, p->text, n);
    p->text += n;
    p->n -= n;
}

/* The starts of answers and calls do not occur inside a JSON string, because a quote in a string
 * has a backslash before it. */
void tool_calls_rename(const char *text, size_t n, const char *custom_id, struct strbuf *out)
{
    struct piece p = {text, n};
    uint64_t answer = 0;
    while (p.n > 0) {
        const char *brace = memchr(p.text, '{', p.n);
        move(&p, brace == NULL ? p.n : (size_t)(brace - p.text), out);
        if (piece_starts(p, ANSWER_START)) {
            move(&p, strlen(ANSWER_START), out);
            for (answer = 0; p.n > 0 && p.text[0] >= '0' && p.text[0] <= '9'; move(&p, 1, out))
                answer = answer * 10 + (uint64_t)(p.text[0] - '0');
        } else if (piece_starts(p, CALL_START)) {
            move(&p, strlen(CALL_START), out);
            move(&p, ID_DIGITS, NULL);
            add_call_id(custom_id, strlen(custom_id), answer, out);
        } else {
            move(&p, 1, out);
        }
    }
}
