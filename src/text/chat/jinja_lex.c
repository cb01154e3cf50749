/* Splits a template's source into tokens: data, delimiters (which may remove the blanks around
 * them), names, literals and operators. */
#include "text/chat/jinja_parse.h"

#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

struct lexer {
    struct jparse *p;
    const char *s; /* [n] */
    size_t n, at;
    size_t line_at; /* the position for which `line` is the line number */
    int line;
    bool line_starting; /* a line begins where the last tag ended, or at the source's start */
    size_t capacity;
    char open[256]; /* the closing bracket for each bracket that is open in this tag */
    size_t n_open;
};

static int jinja_lex_line_of(struct lexer *x, size_t at)
{
    for (; x->line_at < at; x->line_at++) x->line += x->s[x->line_at] == '\n';
    return x->line;
}

static bool fail_at(struct lexer *x, size_t at, const char *sentence)
{
    return jparse_fail(x->p, jinja_lex_line_of(x, at), "%s", sentence);
}

/* Appends a token. Returns NULL after a failure. */
static struct jtoken *jinja_lex_emit(struct lexer *x, enum jtoken_type type, size_t at)
{
    struct jparse *p = x->p;
    if (p->n_tokens == x->capacity) {
        const size_t capacity = x->capacity < 256 ? 256 : x->capacity * 2;
        struct jtoken *fresh = jarena_get(&p->scratch, capacity * sizeof *fresh);
        if (fresh == NULL) {
            p->st = status_make(STATUS_MEMORY, "%s: no memory for %zu tokens", p->what, capacity);
            return NULL;
        }
        if (p->n_tokens > 0) memcpy(fresh, p->tokens, p->n_tokens * sizeof *fresh);
        p->tokens = fresh;
        x->capacity = capacity;
    }
    struct jtoken *token = &p->tokens[p->n_tokens++];
    *token = (struct jtoken){.type = type, .line = jinja_lex_line_of(x, at)};
    return token;
}

static bool starts(const struct lexer *x, size_t at, const char *text)
{
    const size_t n = strlen(text);
    return at <= x->n && x->n - at >= n && memcmp(x->s + at, text, n) == 0;
}

static size_t skip_space(const struct lexer *x, size_t at)
{
    size_t step;
    while (at < x->n && jspace(utf8_decode(x->s + at, x->n - at, &step))) at += step;
    return at;
}

/* Returns the whitespace sign (+, - or '\0' for none) at *at, directly after an opening delimiter,
 * and moves *at past the sign. */
static char sign_at(const struct lexer *x, size_t *at)
{
    if (*at < x->n && (x->s[*at] == '-' || x->s[*at] == '+')) return x->s[(*at)++];
    return '\0';
}

/* Emits the data up to `end`, without the whitespace that the opening delimiter at `end` removes.
 * sign: the delimiter's whitespace sign. variable: the delimiter is {{. */
static bool emit_data(struct lexer *x, size_t end, char sign, bool variable)
{
    size_t to = end;
    const size_t from = x->at;
    if (sign == '-') {
        while (to > from) {
            size_t at = to - 1, step;
            while (at > from && ((unsigned char)x->s[at] & 0xC0) == 0x80) at--;
            if (!jspace(utf8_decode(x->s + at, to - at, &step))) break;
            to = at;
        }
    } else if (sign == '\0' && !variable) {
        size_t line = to;
        while (line > from && x->s[line - 1] != '\n') line--;
        if ((line > from || x->line_starting) && skip_space(x, line) >= end) to = line;
    }
    if (to == from) return true;
    struct jtoken *token = jinja_lex_emit(x, JT_DATA, from);
    if (token == NULL) return false;
    token->text = (struct jtext){.p = x->s + from, .n = to - from};
    return true;
}

/* Moves past a closing delimiter that ends at `at`, and past the whitespace that it removes. trims:
 * without a sign it removes one line end. */
static void close_tag(struct lexer *x, size_t at, char sign, bool trims)
{
    if (sign == '-') {
        at = skip_space(x, at);
    } else if (sign == '\0' && trims && at < x->n && x->s[at] == '\n') {
        at++;
    }
    x->at = at;
    x->line_starting = at > 0 && x->s[at - 1] == '\n';
}

/* True when the closing delimiter `mark`, possibly behind a whitespace sign, is at `at`. plus: the
 * sign may be +. */
static bool closes(const struct lexer *x, size_t at, const char *mark, bool plus, char *sign)
{
    *sign = '\0';
    if (starts(x, at, mark)) return true;
    if (at >= x->n || !(x->s[at] == '-' || (plus && x->s[at] == '+'))) return false;
    *sign = x->s[at];
    return starts(x, at + 1, mark);
}

static bool lex_comment(struct lexer *x, size_t at)
{
    for (size_t end = at; end < x->n; end++) {
        char sign;
        if (!closes(x, end, "#}", true, &sign)) continue;
        close_tag(x, end + 2 + (sign != '\0'), sign, true);
        return true;
    }
    return fail_at(x, at, "a comment that does not end");
}

/* If the tag `{% name %}` is at `at`, returns the offset after it (but before the blanks that it
 * removes) and sets *open and *close to its whitespace signs; otherwise returns 0. */
static size_t word_tag(const struct lexer *x, size_t at, const char *name, char *open, char *close)
{
    if (!starts(x, at, "{%")) return 0;
    at += 2;
    *open = sign_at(x, &at);
    at = skip_space(x, at);
    if (!starts(x, at, name)) return 0;
    at = skip_space(x, at + strlen(name));
    if (!closes(x, at, "%}", true, close)) return 0;
    return at + 2 + (*close != '\0');
}

static bool lex_raw(struct lexer *x)
{
    for (size_t at = x->at; at < x->n; at++) {
        char open, close;
        const size_t end = word_tag(x, at, "endraw", &open, &close);
        if (end == 0) continue;
        if (!emit_data(x, at, open, false)) return false;
        close_tag(x, end, close, true);
        return true;
    }
    return fail_at(x, x->at, "a raw block that does not end");
}

static bool lex_string(struct lexer *x)
{
    const char quote = x->s[x->at];
    size_t end = x->at + 1;
    while (end < x->n && x->s[end] != quote) end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n) return fail_at(x, x->at, "a string that does not end");
    struct jtoken *token = jinja_lex_emit(x, JT_STRING, x->at);
    if (token == NULL) return false;
    const size_t from = x->at + 1;
    x->at = end + 1;
    return jinja_unescape(x->p, token->line, x->s + from, end - from, &token->text);
}

static bool is_digit(const struct lexer *x, size_t at)
{
    return at < x->n && x->s[at] >= '0' && x->s[at] <= '9';
}

static size_t skip_digits_at(const struct lexer *x, size_t at)
{
    while (is_digit(x, at) || (at < x->n && x->s[at] == '_' && is_digit(x, at + 1))) at++;
    return at;
}

/* Returns the end of the float that starts at x->at, or x->at if none does. */
static size_t float_end(const struct lexer *x)
{
    if (x->at > 0 && x->s[x->at - 1] == '.') return x->at;
    size_t end = skip_digits_at(x, x->at);
    bool is_float = false;
    if (starts(x, end, ".") && is_digit(x, end + 1)) {
        end = skip_digits_at(x, end + 1);
        is_float = true;
    }
    if (end < x->n && (x->s[end] == 'e' || x->s[end] == 'E')) {
        size_t digits = end + 1;
        if (digits < x->n && (x->s[digits] == '+' || x->s[digits] == '-')) digits++;
        if (is_digit(x, digits)) return skip_digits_at(x, digits);
    }
    return is_float ? end : x->at;
}

static size_t integer_end(const struct lexer *x, int *base)
{
    const char second = x->at + 1 < x->n ? (char)(x->s[x->at + 1] | 0x20) : '\0';
    *base = 10;
    if (x->s[x->at] != '0') return skip_digits_at(x, x->at);
    if (second == 'x' || second == 'o' || second == 'b') {
        *base = second == 'x' ? 16 : second == 'o' ? 8 : 2;
        size_t end = x->at + 2;
        while (end < x->n && strchr("0123456789abcdefABCDEF_", x->s[end]) != NULL) end++;
        return end;
    }
    size_t end = x->at + 1;
    while (end < x->n && (x->s[end] == '0' || x->s[end] == '_')) end++;
    return end;
}

static bool lex_number(struct lexer *x)
{
    int base = 10;
    const size_t end_float = float_end(x);
    const bool is_float = end_float > x->at;
    const size_t end = is_float ? end_float : integer_end(x, &base);
    char digits[64];
    size_t n = 0;
    for (size_t i = x->at + (base == 10 ? 0 : 2); i < end; i++) {
        if (x->s[i] == '_') continue;
        if (n + 1 >= sizeof digits) return fail_at(x, x->at, "a number that is too long");
        digits[n++] = x->s[i];
    }
    digits[n] = '\0';
    struct jtoken *token = jinja_lex_emit(x, is_float ? JT_FLOAT : JT_INTEGER, x->at);
    if (token == NULL) return false;
    x->at = end;
    char *rest = digits;
    if (is_float) {
        token->value = jfloat(strtod(digits, &rest));
    } else {
        const unsigned long long value = strtoull(digits, &rest, base);
        if (value > INT64_MAX) return jparse_fail(x->p, token->line, "an integer beyond 64 bits");
        token->value = jint((int64_t)value);
    }
    if (n == 0 || *rest != '\0') return jparse_fail(x->p, token->line, "a malformed number");
    return true;
}

static bool is_name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           ((unsigned char)c & 0x80) != 0;
}

static bool balance(struct lexer *x, char c)
{
    if (c == '(' || c == '[' || c == '{') {
        if (x->n_open == sizeof x->open) return fail_at(x, x->at, "brackets nested too deep");
        x->open[x->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (x->n_open == 0 || x->open[x->n_open - 1] != c) {
            return fail_at(x, x->at, "a closing bracket without its opening one");
        }
        x->n_open--;
    }
    return true;
}

static bool lex_operator(struct lexer *x)
{
    static const char *const TWO[] = {"//", "**", "==", "!=", ">=", "<="};
    const char c = x->s[x->at];
    int op = strchr("+-/*%~[](){}><=.:|,;", c) != NULL ? c : 0;
    size_t n = 1;
    for (size_t i = 0; i < sizeof TWO / sizeof TWO[0]; i++) {
        if (!starts(x, x->at, TWO[i])) continue;
        op = JOP2(TWO[i][0], TWO[i][1]);
        n = 2;
    }
    if (op == 0) {
        return jparse_fail(x->p, jinja_lex_line_of(x, x->at),
                           "an unexpected character (byte 0x%02x)", (unsigned char)c);
    }
    if (!balance(x, c)) return false;
    struct jtoken *token = jinja_lex_emit(x, JT_OPERATOR, x->at);
    if (token == NULL) return false;
    token->op = op;
    x->at += n;
    return true;
}

/* Reads one token inside a tag. */
static bool lex_token(struct lexer *x)
{
    const char c = x->s[x->at];
    if (c == '"' || c == '\'') return lex_string(x);
    if (c >= '0' && c <= '9') return lex_number(x);
    if (!is_name_byte(c)) return lex_operator(x);
    struct jtoken *token = jinja_lex_emit(x, JT_NAME, x->at);
    if (token == NULL) return false;
    const size_t from = x->at;
    while (x->at < x->n && is_name_byte(x->s[x->at])) x->at++;
    token->text = (struct jtext){.p = x->s + from, .n = x->at - from};
    return true;
}

/* Splits the inside of a tag into tokens and reads the tag's end. */
static bool lex_tag(struct lexer *x, bool variable)
{
    const size_t begin = x->at;
    x->n_open = 0;
    for (;;) {
        char sign;
        x->at = skip_space(x, x->at);
        if (x->at >= x->n) {
            return fail_at(x, begin, "a tag that does not end");
        }
        if (x->n_open == 0 && closes(x, x->at, variable ? "}}" : "%}", !variable, &sign)) {
            if (jinja_lex_emit(x, variable ? JT_VARIABLE_END : JT_BLOCK_END, x->at) == NULL)
                return false;
            close_tag(x, x->at + 2 + (sign != '\0'), sign, !variable);
            return true;
        }
        if (!lex_token(x)) return false;
    }
}

/* Returns the position of the next tag, or the end of the source. */
static size_t find_tag(const struct lexer *x)
{
    for (size_t at = x->at; at + 1 < x->n; at++) {
        if (x->s[at] == '{' && memchr("{%#", x->s[at + 1], 3) != NULL) return at;
    }
    return x->n;
}

/* Emits the data before the next tag, then that tag's tokens. */
static bool lex_part(struct lexer *x)
{
    const size_t at = find_tag(x);
    if (at == x->n) {
        const bool ok = emit_data(x, x->n, '+', false);
        x->at = x->n;
        return ok;
    }
    char open, close;
    const size_t raw = word_tag(x, at, "raw", &open, &close);
    if (raw > 0 && close != '+') {
        if (!emit_data(x, at, open, false)) return false;
        close_tag(x, raw, close, false);
        return lex_raw(x);
    }
    const char kind = x->s[at + 1];
    size_t inside = at + 2;
    const char sign = sign_at(x, &inside);
    if (!emit_data(x, at, sign, kind == '{')) return false;
    if (kind == '#') return lex_comment(x, inside);
    if (jinja_lex_emit(x, kind == '{' ? JT_VARIABLE_BEGIN : JT_BLOCK_BEGIN, at) == NULL)
        return false;
    x->at = inside;
    return lex_tag(x, kind == '{');
}

/* Copies the source into p->t; turns \r\n and \r into \n, and drops a line end at the source's
 * end. */
static bool normalize(struct jparse *p, const char *source, size_t n)
{
    struct jinja *t = p->t;
    t->source = jparse_get(p, n + 1, 1);
    if (t->source == NULL) return false;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\n' && i > 0 && source[i - 1] == '\r') continue;
        t->source[t->n_source++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (t->n_source > 0 && t->source[t->n_source - 1] == '\n') t->n_source--;
    return true;
}

bool jinja_lex(struct jparse *p, const char *source, size_t n)
{
    if (!normalize(p, source, n)) return false;
    struct lexer x = {.p = p, .s = p->t->source, .n = p->t->n_source, .line = 1};
    x.line_starting = true;
    while (x.at < x.n) {
        if (!lex_part(&x)) return false;
    }
    return jinja_lex_emit(&x, JT_EOF, x.n) != NULL;
}
