/* Parses expressions with the precedence levels of Jinja 3.1's own parser. */
#include "text/chat/jinja_parse.h"

#include <string.h>

enum { MAX_NESTING = 100 };

static struct jnode *parse_unary(struct jparse *p, bool with_filters);

static struct jnode *constant(struct jparse *p, struct jvalue value)
{
    struct jnode *n = jnode_new(p, JN_CONST);
    if (n != NULL) n->value = value;
    return n;
}

/* Returns a node with the operands a and b, on the line of a; NULL if an operand is NULL. */
static struct jnode *pair(struct jparse *p, enum jnode_kind kind, int op, struct jnode *a,
                          struct jnode *b)
{
    if (a == NULL || b == NULL) return NULL;
    struct jnode *n = jnode_new(p, kind);
    if (n == NULL) return NULL;
    n->line = a->line;
    n->op = op;
    n->a = a;
    n->b = b;
    return n;
}

static struct jnode *parse_string(struct jparse *p)
{
    size_t n = 0, n_tokens = 0;
    for (; jtok(p)[n_tokens].type == JT_STRING; n_tokens++) n += jtok(p)[n_tokens].text.n;
    struct jtext *text = jparse_get(p, 1, sizeof *text);
    char *bytes = jparse_get(p, n, 1);
    if (text == NULL || bytes == NULL) return NULL;
    *text = (struct jtext){.p = bytes, .n = n};
    struct jnode *node = constant(p, (struct jvalue){.type = JV_TEXT, .u.text = text});
    for (; n_tokens > 0; n_tokens--, p->at++) {
        if (jtok(p)->text.n > 0) memcpy(bytes, jtok(p)->text.p, jtok(p)->text.n);
        bytes += jtok(p)->text.n;
    }
    return node;
}

static struct jnode *parse_name(struct jparse *p)
{
    struct jnode *n = jnode_new(p, JN_NAME);
    if (n == NULL) return NULL;
    struct jvalue value = {.type = JV_ABSENT};
    if (jtok_is_name(p, "true") || jtok_is_name(p, "True")) value = jbool(true);
    if (jtok_is_name(p, "false") || jtok_is_name(p, "False")) value = jbool(false);
    if (jtok_is_name(p, "none") || jtok_is_name(p, "None")) value = jnone();
    n->name = jtok_expect_name(p);
    if (value.type != JV_ABSENT) {
        n->kind = JN_CONST;
        n->value = value;
    }
    return n->name == NULL ? NULL : n;
}

static struct jnode *parse_list(struct jparse *p)
{
    struct jnode *node = jnode_new(p, JN_LIST);
    struct jlist list = {0};
    p->at++;
    while (node != NULL && !jtok_is_op(p, ']')) {
        if (list.first != NULL && !jtok_expect_op(p, ',')) return NULL;
        if (jtok_is_op(p, ']')) break;
        struct jnode *item = jparse_expression(p);
        if (item == NULL) return NULL;
        jlist_add(&list, item);
    }
    p->at++;
    if (node != NULL) node->list = list.first;
    return node;
}

static struct jnode *parse_dict(struct jparse *p)
{
    struct jnode *node = jnode_new(p, JN_DICT);
    struct jlist list = {0};
    p->at++;
    while (node != NULL && !jtok_is_op(p, '}')) {
        if (list.first != NULL && !jtok_expect_op(p, ',')) return NULL;
        if (jtok_is_op(p, '}')) break;
        struct jnode *key = jparse_expression(p);
        if (key == NULL || !jtok_expect_op(p, ':')) return NULL;
        struct jnode *item = pair(p, JN_PAIR, 0, key, jparse_expression(p));
        if (item == NULL) return NULL;
        jlist_add(&list, item);
    }
    p->at++;
    if (node != NULL) node->list = list.first;
    return node;
}

static bool is_tuple_end(const struct jparse *p)
{
    const enum jtoken_type type = jtok(p)->type;
    return type == JT_VARIABLE_END || type == JT_BLOCK_END || jtok_is_op(p, ')');
}

/* Parses elements separated by commas, each with `parse`. Returns the element itself if there is
 * one without a comma, otherwise a JN_TUPLE; NULL on failure. */
static struct jnode *elements(struct jparse *p, struct jnode *(*parse)(struct jparse *p, bool flag),
                              bool flag, bool may_be_empty)
{
    struct jlist list = {0};
    bool is_tuple = false;
    struct jnode *node = jnode_new(p, JN_TUPLE);
    if (node == NULL) return NULL;
    for (;;) {
        if (list.first != NULL && !jtok_expect_op(p, ',')) return NULL;
        if (is_tuple_end(p) || (list.first != NULL && jtok_is_name(p, "in"))) break;
        struct jnode *item = parse(p, flag);
        if (item == NULL) return NULL;
        jlist_add(&list, item);
        if (!jtok_is_op(p, ',')) break;
        is_tuple = true;
    }
    if (!is_tuple && list.first != NULL) return list.first;
    if (!is_tuple && !may_be_empty) {
        jtok_unexpected(p, "an expression");
        return NULL;
    }
    node->list = list.first;
    return node;
}

static struct jnode *parse_or(struct jparse *p);

static struct jnode *expression_of(struct jparse *p, bool cond)
{
    return cond ? jparse_expression(p) : parse_or(p);
}

struct jnode *jparse_tuple(struct jparse *p, bool cond)
{
    return elements(p, expression_of, cond, false);
}

/* Parses one target of an assignment: a name, targets in parentheses or, if with_attr, a name's
 * attribute. */
static struct jnode *target_of(struct jparse *p, bool with_attr)
{
    if (p->depth >= MAX_NESTING) {
        jparse_fail(p, jtok(p)->line, "brackets nested too deep");
        return NULL;
    }
    if (jtok_skip_op(p, '(')) {
        p->depth++;
        struct jnode *inner = elements(p, target_of, false, false);
        p->depth--;
        return inner != NULL && jtok_expect_op(p, ')') ? inner : NULL;
    }
    struct jnode *n = jnode_new(p, JN_NAME);
    if (n == NULL || (n->name = jtok_expect_name(p)) == NULL) return NULL;
    if (!with_attr || !jtok_skip_op(p, '.')) return n;
    struct jnode *attr = jnode_new(p, JN_ATTR);
    if (attr == NULL || (attr->name = jtok_expect_name(p)) == NULL) return NULL;
    attr->a = n;
    return attr;
}

struct jnode *jparse_target(struct jparse *p, bool with_attr)
{
    return elements(p, target_of, with_attr, false);
}

static struct jnode *parse_primary(struct jparse *p)
{
    const struct jtoken *t = jtok(p);
    if (t->type == JT_NAME) return parse_name(p);
    if (t->type == JT_STRING) return parse_string(p);
    if (t->type == JT_INTEGER || t->type == JT_FLOAT) {
        struct jnode *n = constant(p, t->value);
        p->at++;
        return n;
    }
    if (jtok_skip_op(p, '(')) {
        struct jnode *inner = elements(p, expression_of, true, true);
        return inner != NULL && jtok_expect_op(p, ')') ? inner : NULL;
    }
    if (jtok_is_op(p, '[')) return parse_list(p);
    if (jtok_is_op(p, '{')) return parse_dict(p);
    jtok_unexpected(p, "an expression");
    return NULL;
}

/* Parses the arguments of a call, with both parentheses. */
static bool parse_args(struct jparse *p, struct jnode **out)
{
    struct jlist list = {0};
    bool keywords = false;
    p->at++;
    while (!jtok_is_op(p, ')')) {
        if (list.first != NULL && !jtok_expect_op(p, ',')) return false;
        if (jtok_is_op(p, ')')) break;
        const struct jtoken *t = jtok(p);
        if (jtok_is_op(p, '*') || jtok_is_op(p, JOP2('*', '*'))) {
            return jparse_fail(p, t->line, "arguments unpacked with * are not supported");
        }
        struct jnode *arg;
        if (t->type == JT_NAME && t[1].type == JT_OPERATOR && t[1].op == '=') {
            arg = jnode_new(p, JN_KEYWORD);
            if (arg == NULL || (arg->name = jtok_expect_name(p)) == NULL) return false;
            p->at++;
            if ((arg->a = jparse_expression(p)) == NULL) return false;
            keywords = true;
        } else {
            if (keywords) return jparse_fail(p, t->line, "an argument after a named one");
            if ((arg = jparse_expression(p)) == NULL) return false;
        }
        jlist_add(&list, arg);
    }
    p->at++;
    *out = list.first;
    return true;
}

/* Parses [ ] after a: an index into a, or a slice of a. */
static struct jnode *parse_subscript(struct jparse *p, struct jnode *a)
{
    struct jnode *part[3] = {NULL, NULL, NULL};
    bool slice = false;
    p->at++;
    for (size_t i = 0; i < 3; i++) {
        if (!jtok_is_op(p, ':') && !jtok_is_op(p, ']')) {
            part[i] = jparse_expression(p);
            if (part[i] == NULL) return NULL;
        }
        if (i == 2 || !jtok_is_op(p, ':')) break;
        p->at++;
        slice = true;
    }
    if (!slice && part[0] == NULL) {
        jtok_unexpected(p, "an expression");
        return NULL;
    }
    if (!jtok_expect_op(p, ']')) return NULL;
    if (!slice) return pair(p, JN_ITEM, 0, a, part[0]);
    struct jnode *n = jnode_new(p, JN_SLICE);
    if (n == NULL) return NULL;
    n->a = a;
    n->b = part[0];
    n->c = part[1];
    n->d = part[2];
    return n;
}

static struct jnode *parse_dot(struct jparse *p, struct jnode *a)
{
    p->at++;
    if (jtok(p)->type == JT_INTEGER) {
        struct jnode *key = constant(p, jtok(p)->value);
        p->at++;
        return pair(p, JN_ITEM, 0, a, key);
    }
    struct jnode *n = jnode_new(p, JN_ATTR);
    if (n == NULL || (n->name = jtok_expect_name(p)) == NULL) return NULL;
    n->a = a;
    return n;
}

static struct jnode *parse_call(struct jparse *p, struct jnode *a)
{
    struct jnode *n = jnode_new(p, JN_CALL);
    if (n == NULL || !parse_args(p, &n->list)) return NULL;
    n->a = a;
    return n;
}

static struct jnode *parse_postfix(struct jparse *p, struct jnode *n)
{
    while (n != NULL) {
        if (jtok_is_op(p, '.')) {
            n = parse_dot(p, n);
        } else if (jtok_is_op(p, '[')) {
            n = parse_subscript(p, n);
        } else if (jtok_is_op(p, '(')) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}

struct jnode *jparse_filters(struct jparse *p, struct jnode *node, bool first)
{
    while (node != NULL && (first || jtok_is_op(p, '|'))) {
        if (!first) p->at++;
        first = false;
        struct jnode *n = jnode_new(p, JN_FILTER);
        if (n == NULL || (n->name = jtok_expect_name(p)) == NULL) return NULL;
        n->fn = jfilter_find(n->name->text.p, n->name->text.n);
        n->a = node;
        if (jtok_is_op(p, '(') && !parse_args(p, &n->list)) return NULL;
        node = n;
    }
    return node;
}

/* True when the current token can begin a test's argument that has no parentheses. */
static bool argument_follows(const struct jparse *p)
{
    const enum jtoken_type type = jtok(p)->type;
    if (type == JT_STRING || type == JT_INTEGER || type == JT_FLOAT) return true;
    if (type == JT_OPERATOR) return jtok_is_op(p, '[') || jtok_is_op(p, '{');
    return type == JT_NAME && !jtok_is_name(p, "else") && !jtok_is_name(p, "or") &&
           !jtok_is_name(p, "and");
}

static struct jnode *parse_test(struct jparse *p, struct jnode *a)
{
    p->at++; /* past `is` */
    const bool negated = jtok_skip_name(p, "not");
    struct jnode *n = jnode_new(p, JN_TEST);
    if (n == NULL || (n->name = jtok_expect_name(p)) == NULL) return NULL;
    n->fn = jfunction_find(JINJA_TESTS, n->name->text.p, n->name->text.n, 0);
    n->a = a;
    if (jtok_is_op(p, '(')) {
        if (!parse_args(p, &n->list)) return NULL;
    } else if (argument_follows(p)) {
        if (jtok_is_name(p, "is")) {
            jtok_unexpected(p, "the argument of a test");
            return NULL;
        }
        n->list = parse_postfix(p, parse_primary(p));
        if (n->list == NULL) return NULL;
    }
    if (!negated) return n;
    struct jnode *not = jnode_new(p, JN_NOT);
    if (not != NULL) not ->a = n;
    return not ;
}

static struct jnode *parse_unary(struct jparse *p, bool with_filters)
{
    if (p->depth >= MAX_NESTING) {
        jparse_fail(p, jtok(p)->line, "an expression nested more than %d deep", MAX_NESTING);
        return NULL;
    }
    p->depth++;
    struct jnode *n;
    if (jtok_is_op(p, '-') || jtok_is_op(p, '+')) {
        n = jnode_new(p, jtok_is_op(p, '-') ? JN_NEG : JN_POS);
        p->at++;
        if (n != NULL && (n->a = parse_unary(p, false)) == NULL) n = NULL;
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    while (n != NULL && with_filters) {
        if (jtok_is_op(p, '|')) {
            n = jparse_filters(p, n, false);
        } else if (jtok_is_name(p, "is")) {
            n = parse_test(p, n);
        } else if (jtok_is_op(p, '(')) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    p->depth--;
    return n;
}

static struct jnode *parse_pow(struct jparse *p)
{
    struct jnode *n = parse_unary(p, true);
    while (n != NULL && jtok_skip_op(p, JOP2('*', '*'))) {
        n = pair(p, JN_BINARY, JOP2('*', '*'), n, parse_unary(p, true));
    }
    return n;
}

static struct jnode *parse_product(struct jparse *p)
{
    struct jnode *n = parse_pow(p);
    while (n != NULL) {
        const int op = jtok(p)->type == JT_OPERATOR ? jtok(p)->op : 0;
        if (op != '*' && op != '/' && op != '%' && op != JOP2('/', '/')) break;
        p->at++;
        n = pair(p, JN_BINARY, op, n, parse_pow(p));
    }
    return n;
}

static struct jnode *parse_concat(struct jparse *p)
{
    struct jnode *n = parse_product(p);
    if (n == NULL || !jtok_is_op(p, '~')) return n;
    struct jnode *concat = jnode_new(p, JN_CONCAT);
    struct jlist list = {0};
    if (concat == NULL) return NULL;
    jlist_add(&list, n);
    while (jtok_skip_op(p, '~')) {
        if ((n = parse_product(p)) == NULL) return NULL;
        jlist_add(&list, n);
    }
    concat->list = list.first;
    return concat;
}

static struct jnode *parse_sum(struct jparse *p)
{
    struct jnode *n = parse_concat(p);
    while (n != NULL && (jtok_is_op(p, '+') || jtok_is_op(p, '-'))) {
        const int op = jtok(p)->op;
        p->at++;
        n = pair(p, JN_BINARY, op, n, parse_concat(p));
    }
    return n;
}

/* Returns the comparison operator at the current token and moves past it; 0 if there is none. */
static int comparison(struct jparse *p)
{
    const struct jtoken *t = jtok(p);
    if (jtok_skip_name(p, "in")) return JOP_IN;
    if (jtok_is_name(p, "not") && t[1].type == JT_NAME && t[1].text.n == 2 &&
        memcmp(t[1].text.p, "in", 2) == 0) {
        p->at += 2;
        return JOP_NOT_IN;
    }
    if (t->type != JT_OPERATOR) return 0;
    if (t->op != '<' && t->op != '>' && t->op != JOP2('=', '=') && t->op != JOP2('!', '=') &&
        t->op != JOP2('<', '=') && t->op != JOP2('>', '=')) {
        return 0;
    }
    p->at++;
    return t->op;
}

static struct jnode *parse_compare(struct jparse *p)
{
    struct jnode *n = parse_sum(p);
    struct jlist list = {0};
    if (n == NULL) return NULL;
    for (;;) {
        const int op = comparison(p);
        if (op == 0) break;
        struct jnode *right = parse_sum(p);
        struct jnode *operand = pair(p, JN_OPERAND, op, right, right);
        if (operand == NULL) return NULL;
        jlist_add(&list, operand);
    }
    if (list.first == NULL) return n;
    struct jnode *compare = pair(p, JN_COMPARE, 0, n, n);
    if (compare != NULL) compare->list = list.first;
    return compare;
}

static struct jnode *parse_not(struct jparse *p)
{
    size_t n_not = 0;
    while (jtok_skip_name(p, "not")) n_not++;
    struct jnode *n = parse_compare(p);
    if (n_not > MAX_NESTING) {
        jparse_fail(p, jtok(p)->line, "more than %d times 'not'", MAX_NESTING);
        return NULL;
    }
    for (; n != NULL && n_not > 0; n_not--) {
        struct jnode *not = jnode_new(p, JN_NOT);
        if (not != NULL) not ->a = n;
        n = not ;
    }
    return n;
}

static struct jnode *parse_and(struct jparse *p)
{
    struct jnode *n = parse_not(p);
    while (n != NULL && jtok_skip_name(p, "and")) n = pair(p, JN_AND, 0, n, parse_not(p));
    return n;
}

static struct jnode *parse_or(struct jparse *p)
{
    struct jnode *n = parse_and(p);
    while (n != NULL && jtok_skip_name(p, "or")) n = pair(p, JN_OR, 0, n, parse_and(p));
    return n;
}

struct jnode *jparse_expression(struct jparse *p)
{
    if (p->depth >= MAX_NESTING) {
        jparse_fail(p, jtok(p)->line, "an expression nested more than %d deep", MAX_NESTING);
        return NULL;
    }
    p->depth++;
    struct jnode *n = parse_or(p);
    while (n != NULL && jtok_skip_name(p, "if")) {
        struct jnode *cond = pair(p, JN_COND, 0, parse_or(p), n);
        if (cond != NULL && jtok_skip_name(p, "else") && (cond->c = jparse_expression(p)) == NULL) {
            cond = NULL;
        }
        n = cond;
    }
    p->depth--;
    return n;
}
