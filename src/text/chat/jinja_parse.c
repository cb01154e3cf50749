/* Parses the statements of a template. Defines the functions that jinja_parse_expr.c shares. */
#include "text/chat/jinja_parse.h"

#include "base/mem.h"
#include "base/str_map.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SOURCE_BYTES = 1 << 20, ARENA_BYTES = 1 << 30, MAX_NESTING = 60 };

bool jparse_fail(struct jparse *p, int line, const char *format, ...)
{
    if (status_failed(&p->st)) return false;
    char text[STATUS_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->st = status_make(STATUS_INPUT, "%s, line %d: %s", p->what, line, text);
    return false;
}

void *jparse_get(struct jparse *p, size_t n, size_t elem_bytes)
{
    size_t n_bytes;
    void *m = mem_mul(n, elem_bytes, &n_bytes) ? jarena_get(&p->t->arena, n_bytes) : NULL;
    if (m == NULL && !status_failed(&p->st)) {
        p->st = status_make(STATUS_MEMORY, "%s: could not allocate %zu bytes", p->what, n_bytes);
    }
    return m;
}

bool jtok_is_op(const struct jparse *p, int op)
{
    return jtok(p)->type == JT_OPERATOR && jtok(p)->op == op;
}

static bool token_is_name(const struct jtoken *t, const char *name)
{
    return t->type == JT_NAME && t->text.n == strlen(name) &&
           memcmp(t->text.p, name, t->text.n) == 0;
}

bool jtok_is_name(const struct jparse *p, const char *name)
{
    return token_is_name(jtok(p), name);
}

bool jtok_skip_op(struct jparse *p, int op)
{
    const bool is = jtok_is_op(p, op);
    p->at += is;
    return is;
}

bool jtok_skip_name(struct jparse *p, const char *name)
{
    const bool is = jtok_is_name(p, name);
    p->at += is;
    return is;
}

bool jtok_unexpected(struct jparse *p, const char *expected)
{
    static const char *const NAMES[] = {"text",
                                        "'{{'",
                                        "'}}'",
                                        "'{%'",
                                        "'%}'",
                                        "a name",
                                        "a string",
                                        "an integer",
                                        "a float",
                                        "an operator",
                                        "the end of the template"};
    const struct jtoken *t = jtok(p);
    if (t->type == JT_NAME) {
        return jparse_fail(p, t->line, "'%.*s' where %s is expected",
                           (int)(t->text.n < 40 ? t->text.n : 40), t->text.p, expected);
    }
    if (t->type == JT_OPERATOR) {
        const char op[3] = {(char)(t->op > 255 ? t->op >> 8 : t->op),
                            (char)(t->op > 255 ? t->op & 255 : 0), 0};
        return jparse_fail(p, t->line, "'%s' where %s is expected", op, expected);
    }
    return jparse_fail(p, t->line, "%s where %s is expected", NAMES[t->type], expected);
}

bool jtok_expect_op(struct jparse *p, int op)
{
    if (jtok_skip_op(p, op)) return true;
    const char text[4] = {'\'', (char)op, '\'', 0};
    return jtok_unexpected(p, text);
}

static bool expect(struct jparse *p, enum jtoken_type type, const char *what)
{
    if (jtok(p)->type != type) return jtok_unexpected(p, what);
    p->at++;
    return true;
}

static size_t jinja_parse_bucket_of(const char *text, size_t n)
{
    return str_hash(text, n) % JNAME_BUCKETS;
}

const struct jname *jname_find(const struct jinja *t, const char *text, size_t n)
{
    const struct jname *name = t->names[jinja_parse_bucket_of(text, n)];
    while (name != NULL && !(name->text.n == n && memcmp(name->text.p, text, n) == 0)) {
        name = name->next;
    }
    return name;
}

const struct jname *jname_of(struct jparse *p, const struct jtext *text)
{
    const struct jname *known = jname_find(p->t, text->p, text->n);
    if (known != NULL) return known;
    struct jname *name = jparse_get(p, 1, sizeof *name);
    if (name == NULL) return NULL;
    name->z = jparse_get(p, text->n + 1, 1);
    if (name->z == NULL) return NULL;
    if (text->n > 0) memcpy(name->z, text->p, text->n);
    name->text = (struct jtext){.p = name->z, .n = text->n};
    struct jname **bucket = &p->t->names[jinja_parse_bucket_of(text->p, text->n)];
    name->next = *bucket;
    *bucket = name;
    return name;
}

const struct jname *jtok_expect_name(struct jparse *p)
{
    if (jtok(p)->type != JT_NAME) {
        jtok_unexpected(p, "a name");
        return NULL;
    }
    return jname_of(p, &p->tokens[p->at++].text);
}

struct jnode *jnode_new(struct jparse *p, enum jnode_kind kind)
{
    struct jnode *n = jparse_get(p, 1, sizeof *n);
    if (n == NULL) return NULL;
    n->kind = kind;
    n->line = jtok(p)->line;
    return n;
}

void jlist_add(struct jlist *l, struct jnode *node)
{
    if (l->last != NULL) {
        l->last->next = node;
    } else {
        l->first = node;
    }
    l->last = node;
}

static bool body(struct jparse *p, const char *const ends[], struct jnode **out);

/* Parses the end of the opening tag, then a body up to the tag named `end`, and reads that name. */
static bool body_to(struct jparse *p, const char *end, struct jnode **out)
{
    const char *const ends[] = {end, NULL};
    if (!expect(p, JT_BLOCK_END, "'%}'") || !body(p, ends, out)) return false;
    p->at++; /* past the name of the end tag */
    return true;
}

static bool parse_if(struct jparse *p, struct jnode *node)
{
    static const char *const ENDS[] = {"elif", "else", "endif", NULL};
    struct jlist branches = {0};
    for (;;) {
        struct jnode *branch = jnode_new(p, JN_BRANCH);
        if (branch == NULL) return false;
        jlist_add(&branches, branch);
        node->list = branches.first;
        branch->a = jparse_tuple(p, false);
        if (branch->a == NULL || !expect(p, JT_BLOCK_END, "'%}'")) return false;
        if (!body(p, ENDS, &branch->list)) return false;
        if (jtok_skip_name(p, "endif")) return true;
        if (jtok_skip_name(p, "else")) break;
        p->at++; /* past elif */
    }
    struct jnode *branch = jnode_new(p, JN_BRANCH);
    if (branch == NULL) return false;
    jlist_add(&branches, branch);
    return body_to(p, "endif", &branch->list);
}

static bool parse_for(struct jparse *p, struct jnode *node)
{
    static const char *const ENDS[] = {"else", "endfor", NULL};
    node->a = jparse_target(p, false);
    if (node->a == NULL) return false;
    if (!jtok_skip_name(p, "in")) return jtok_unexpected(p, "'in'");
    node->b = jparse_tuple(p, false);
    if (node->b == NULL) return false;
    if (jtok_skip_name(p, "if")) {
        node->c = jparse_expression(p);
        if (node->c == NULL) return false;
    }
    if (jtok_is_name(p, "recursive")) {
        return jparse_fail(p, node->line, "recursive loops are not supported");
    }
    if (!expect(p, JT_BLOCK_END, "'%}'")) return false;
    p->loops++;
    const bool ok = body(p, ENDS, &node->list);
    p->loops--;
    if (!ok) return false;
    if (jtok_skip_name(p, "endfor")) return true;
    p->at++; /* past else */
    node->d = jnode_new(p, JN_SCOPE);
    return node->d != NULL && body_to(p, "endfor", &node->d->list);
}

static bool parse_set(struct jparse *p, struct jnode *node)
{
    node->a = jparse_target(p, true);
    if (node->a == NULL) return false;
    if (jtok_skip_op(p, '=')) {
        node->b = jparse_tuple(p, true);
        return node->b != NULL;
    }
    node->kind = JN_SET_BLOCK;
    struct jnode *caught = jnode_new(p, JN_CAPTURED);
    if (caught == NULL) return false;
    node->b = jparse_filters(p, caught, false);
    return node->b != NULL && body_to(p, "endset", &node->list);
}

static bool parse_macro(struct jparse *p, struct jnode *node)
{
    struct jlist params = {0};
    bool defaults = false;
    node->name = jtok_expect_name(p);
    if (node->name == NULL || !jtok_expect_op(p, '(')) return false;
    while (!jtok_is_op(p, ')')) {
        if (params.first != NULL && !jtok_expect_op(p, ',')) return false;
        struct jnode *param = jnode_new(p, JN_PARAM);
        if (param == NULL || (param->name = jtok_expect_name(p)) == NULL) return false;
        if (jtok_skip_op(p, '=')) {
            defaults = true;
            if ((param->a = jparse_expression(p)) == NULL) return false;
        } else if (defaults) {
            return jparse_fail(p, param->line,
                               "a parameter without a default after one with a default");
        }
        jlist_add(&params, param);
    }
    p->at++;
    node->c = jnode_new(p, JN_LIST);
    if (node->c == NULL) return false;
    node->c->list = params.first;
    const int loops = p->loops;
    p->loops = 0;
    const bool ok = body_to(p, "endmacro", &node->list);
    p->loops = loops;
    return ok;
}

static bool parse_with(struct jparse *p, struct jnode *node)
{
    struct jlist sets = {0};
    while (jtok(p)->type != JT_BLOCK_END) {
        if (sets.first != NULL && !jtok_expect_op(p, ',')) return false;
        struct jnode *set = jnode_new(p, JN_SET);
        if (set == NULL || (set->a = jparse_target(p, false)) == NULL) return false;
        if (!jtok_expect_op(p, '=') || (set->b = jparse_expression(p)) == NULL) return false;
        jlist_add(&sets, set);
    }
    node->d = jnode_new(p, JN_LIST);
    if (node->d == NULL) return false;
    node->d->list = sets.first;
    return body_to(p, "endwith", &node->list);
}

static bool parse_filter_block(struct jparse *p, struct jnode *node)
{
    struct jnode *caught = jnode_new(p, JN_CAPTURED);
    if (caught == NULL) return false;
    node->b = jparse_filters(p, caught, true);
    return node->b != NULL && body_to(p, "endfilter", &node->list);
}

static bool parse_generation(struct jparse *p, struct jnode *node)
{
    const int loops = p->loops;
    /* loops around the block do not count, because transformers compiles its body as a separate
     * function */
    p->loops = 0;
    const bool ok = body_to(p, "endgeneration", &node->list);
    p->loops = loops;
    return ok;
}

static bool parse_jump(struct jparse *p, struct jnode *node)
{
    if (p->loops > 0) return true;
    return jparse_fail(p, node->line, "a break or continue outside of a loop");
}

struct statement {
    const char *name;
    enum jnode_kind kind;
    bool (*parse)(struct jparse *p, struct jnode *node);
};

static const struct statement STATEMENTS[] = {
    {"if", JN_IF, parse_if},
    {"for", JN_FOR, parse_for},
    {"set", JN_SET, parse_set},
    {"macro", JN_MACRO, parse_macro},
    {"with", JN_WITH, parse_with},
    {"filter", JN_FILTER_BLOCK, parse_filter_block},
    {"generation", JN_SCOPE, parse_generation},
    {"break", JN_BREAK, parse_jump},
    {"continue", JN_CONTINUE, parse_jump},
};

static struct jnode *statement(struct jparse *p)
{
    const struct jtoken *t = jtok(p);
    for (size_t i = 0; i < sizeof STATEMENTS / sizeof STATEMENTS[0]; i++) {
        if (!token_is_name(t, STATEMENTS[i].name)) continue;
        struct jnode *node = jnode_new(p, STATEMENTS[i].kind);
        p->at++;
        if (node == NULL || !STATEMENTS[i].parse(p, node)) return NULL;
        return expect(p, JT_BLOCK_END, "'%}'") ? node : NULL;
    }
    if (t->type == JT_NAME) {
        jparse_fail(p, t->line, "the tag '%.*s' is not supported here",
                    (int)(t->text.n < 40 ? t->text.n : 40), t->text.p);
    } else {
        jtok_unexpected(p, "the name of a tag");
    }
    return NULL;
}

/* Parses one node of a body: text, a `{{ }}` or a statement. */
static struct jnode *body_part(struct jparse *p)
{
    const struct jtoken *t = jtok(p);
    struct jnode *node = NULL;
    if (t->type == JT_DATA) {
        node = jnode_new(p, JN_DATA);
        struct jtext *text = jparse_get(p, 1, sizeof *text);
        if (node == NULL || text == NULL) return NULL;
        *text = t->text;
        node->value = (struct jvalue){.type = JV_TEXT, .u.text = text};
        p->at++;
    } else if (t->type == JT_VARIABLE_BEGIN) {
        node = jnode_new(p, JN_PRINT);
        p->at++;
        if (node == NULL || (node->a = jparse_tuple(p, true)) == NULL) return NULL;
        if (!expect(p, JT_VARIABLE_END, "'}}'")) return NULL;
    } else {
        p->at++; /* past the opening delimiter */
        node = statement(p);
    }
    return node;
}

/* Parses up to a tag whose name is in `ends`; that name is then the current token. With ends NULL:
 * up to the end of the template. */
static bool body(struct jparse *p, const char *const ends[], struct jnode **out)
{
    struct jlist list = {0};
    if (p->depth >= MAX_NESTING) {
        return jparse_fail(p, jtok(p)->line, "tags nested more than %d deep", MAX_NESTING);
    }
    p->depth++;
    while (jtok(p)->type != JT_EOF) {
        for (size_t i = 0; ends != NULL && ends[i] != NULL; i++) {
            const struct jtoken *t = jtok(p);
            if (t->type != JT_BLOCK_BEGIN || !token_is_name(t + 1, ends[i])) continue;
            p->at++;
            p->depth--;
            *out = list.first;
            return true;
        }
        struct jnode *node = body_part(p);
        if (node == NULL) return false;
        jlist_add(&list, node);
    }
    p->depth--;
    *out = list.first;
    if (ends == NULL) return true;
    return jparse_fail(p, jtok(p)->line, "the template ends before '%s'", ends[0]);
}

struct status jinja_create(const char *source, size_t n, const char *what, struct jinja **out)
{
    size_t bad_at;
    *out = NULL;
    if (n > MAX_SOURCE_BYTES) {
        return status_make(STATUS_INPUT, "%s: %zu bytes, expected at most %d", what, n,
                           (int)MAX_SOURCE_BYTES);
    }
    if (!utf8_valid(source, n, &bad_at)) {
        return status_make(STATUS_INPUT, "%s: byte %zu is not UTF-8", what, bad_at);
    }
    struct jinja *t = NULL;
    TRY(mem_alloc(&t, 1, sizeof *t, "chat template"));
    t->arena.limit = ARENA_BYTES;
    struct jparse p = {.t = t, .what = what, .st = status_ok(), .scratch.limit = ARENA_BYTES};
    if (!jinja_lex(&p, source, n) || !body(&p, NULL, &t->body)) jinja_destroy(&t);
    jarena_fini(&p.scratch);
    *out = t;
    return p.st;
}

void jinja_destroy(struct jinja **t)
{
    if (*t == NULL) return;
    jarena_fini(&(*t)->arena);
    mem_free(t);
}
