/* Evaluates the expressions of a template. */
#include "text/chat/jinja_run.h"

#include <math.h>
#include <string.h>

static size_t jinja_eval_count(const struct jnode *first)
{
    size_t n = 0;
    for (; first != NULL; first = first->next) n++;
    return n;
}

static bool eval_seq(struct jrun *r, struct jscope *s, const struct jnode *n, struct jvalue *out)
{
    struct jvalue *v;
    if (!jseq_new(r, n->kind == JN_LIST ? JV_LIST : JV_TUPLE, jinja_eval_count(n->list), &v, out))
        return false;
    for (const struct jnode *item = n->list; item != NULL; item = item->next) {
        if (!jeval(r, s, item, v++)) return false;
    }
    return true;
}

static bool eval_dict(struct jrun *r, struct jscope *s, const struct jnode *n, struct jvalue *out)
{
    if (!jdict_new(r, jinja_eval_count(n->list), JV_DICT, out)) return false;
    for (const struct jnode *item = n->list; item != NULL; item = item->next) {
        struct jvalue key, value;
        if (!jeval(r, s, item->a, &key) || !jeval(r, s, item->b, &value)) return false;
        if (!jdict_put(r, out->u.dict, &key, &value)) return false;
    }
    return true;
}

static bool eval_args(struct jrun *r, struct jscope *s, const struct jnode *first,
                      struct jargs *out)
{
    *out = (struct jargs){0};
    if (first == NULL) return true;
    const size_t n = jinja_eval_count(first);
    struct jvalue *v = jget(r, n, sizeof *v);
    struct jnamed *named = jget(r, n, sizeof *named);
    if (v == NULL || named == NULL) return false;
    for (const struct jnode *arg = first; arg != NULL; arg = arg->next) {
        if (arg->kind == JN_KEYWORD) {
            struct jnamed *to = &named[out->n_named++];
            to->name = arg->name->text;
            if (!jeval(r, s, arg->a, &to->value)) return false;
        } else if (!jeval(r, s, arg, &v[out->n++])) {
            return false;
        }
    }
    out->v = v;
    out->named = named;
    return true;
}

static bool eval_call(struct jrun *r, struct jscope *s, const struct jnode *n, struct jvalue *out)
{
    struct jvalue callee;
    struct jargs args;
    if (!jeval(r, s, n->a, &callee) || !eval_args(r, s, n->list, &args)) return false;
    r->line = n->line;
    return jcall(r, &callee, &args, out);
}

/* Applies a filter or a test. */
static bool eval_applied(struct jrun *r, struct jscope *s, const struct jnode *n,
                         struct jvalue *out)
{
    struct jvalue self;
    struct jargs args;
    if (!jeval(r, s, n->a, &self) || !eval_args(r, s, n->list, &args)) return false;
    r->line = n->line;
    if (n->fn == NULL) {
        return jfail(r, "there is no %s named '%.60s'", n->kind == JN_TEST ? "test" : "filter",
                     n->name->z);
    }
    return jcall_function(r, n->fn, &self, &args, out);
}

static bool eval_concat(struct jrun *r, struct jscope *s, const struct jnode *n, struct jvalue *out)
{
    struct jbuild b;
    jbuild_init(&b, r);
    for (const struct jnode *part = n->list; part != NULL; part = part->next) {
        struct jvalue v;
        if (!jeval(r, s, part, &v) || !jprint(&b, &v)) return false;
    }
    return jbuild_end(&b, out);
}

static bool compare_once(struct jrun *r, int op, const struct jvalue *a, const struct jvalue *b,
                         bool *out)
{
    int order = 0;
    bool ok;
    switch (op) {
    case JOP2('=', '='):
    case JOP2('!', '='):
        ok = jequal(r, a, b, out);
        if (op == JOP2('!', '=')) *out = !*out;
        return ok;
    case JOP_IN:
    case JOP_NOT_IN:
        ok = jcontains(r, b, a, out);
        if (op == JOP_NOT_IN) *out = !*out;
        return ok;
    default:
        break;
    }
    if (!jcompare(r, a, b, &order)) return false;
    *out = op == '<'              ? order < 0
           : op == '>'            ? order > 0
           : op == JOP2('<', '=') ? order <= 0
                                  : order >= 0;
    return true;
}

static bool eval_compare(struct jrun *r, struct jscope *s, const struct jnode *n,
                         struct jvalue *out)
{
    struct jvalue left, right;
    bool truth = true;
    if (!jeval(r, s, n->a, &left)) return false;
    for (const struct jnode *o = n->list; o != NULL && truth; o = o->next) {
        if (!jeval(r, s, o->a, &right)) return false;
        if (!compare_once(r, o->op, &left, &right, &truth)) return false;
        left = right;
    }
    *out = jbool(truth);
    return true;
}

static bool eval_sign(struct jrun *r, struct jscope *s, const struct jnode *n, struct jvalue *out)
{
    struct jvalue v;
    int64_t i;
    if (!jeval(r, s, n->a, &v)) return false;
    if (v.type == JV_FLOAT) {
        *out = jfloat(n->kind == JN_NEG ? -v.u.f : v.u.f);
    } else if (!jas_int(&v, &i)) {
        return jfail(r, "a sign before %s", jtype_name(&v));
    } else {
        if (n->kind == JN_NEG && i == INT64_MIN) return jfail(r, "an integer beyond 64 bits");
        *out = jint(n->kind == JN_NEG ? -i : i);
    }
    out->user = v.user;
    return true;
}

static bool eval_slice(struct jrun *r, struct jscope *s, const struct jnode *n, struct jvalue *out)
{
    struct jvalue v, part[3];
    const struct jnode *const from[3] = {n->b, n->c, n->d};
    if (!jeval(r, s, n->a, &v)) return false;
    for (size_t i = 0; i < 3; i++) {
        part[i] = jnone();
        if (from[i] != NULL && !jeval(r, s, from[i], &part[i])) return false;
    }
    return jslice(r, &v, part, out);
}

static bool eval_item(struct jrun *r, struct jscope *s, const struct jnode *n, struct jvalue *out)
{
    struct jvalue v, key;
    if (!jeval(r, s, n->a, &v)) return false;
    if (n->kind == JN_ATTR) {
        r->line = n->line;
        return jattr(r, &v, &n->name->text, out);
    }
    if (!jeval(r, s, n->b, &key)) return false;
    r->line = n->line;
    return jitem(r, &v, &key, out);
}

static bool eval_name(const struct jscope *s, const struct jnode *n, struct jvalue *out)
{
    const struct jvalue *v = jscope_get(s, n->name);
    *out = v != NULL ? *v : jundefined(n->name->z);
    return true;
}

static bool eval_branch(struct jrun *r, struct jscope *s, const struct jnode *n, struct jvalue *out)
{
    if (!jeval(r, s, n->a, out)) return false;
    const bool truth = jtruth(out);
    if (n->kind == JN_OR) return truth || jeval(r, s, n->b, out);
    if (n->kind == JN_AND) return !truth || jeval(r, s, n->b, out);
    if (truth) return jeval(r, s, n->b, out);
    if (n->c != NULL) return jeval(r, s, n->c, out);
    *out = jundefined("an inline if without else");
    return true;
}

static bool eval_node(struct jrun *r, struct jscope *s, const struct jnode *n, struct jvalue *out)
{
    struct jvalue a, b;
    switch (n->kind) {
    case JN_CONST:
        *out = n->value;
        return true;
    case JN_NAME:
        return eval_name(s, n, out);
    case JN_CAPTURED:
        *out = *jscope_get(s, NULL);
        return true;
    case JN_LIST:
    case JN_TUPLE:
        return eval_seq(r, s, n, out);
    case JN_DICT:
        return eval_dict(r, s, n, out);
    case JN_ATTR:
    case JN_ITEM:
        return eval_item(r, s, n, out);
    case JN_SLICE:
        return eval_slice(r, s, n, out);
    case JN_CALL:
        return eval_call(r, s, n, out);
    case JN_FILTER:
    case JN_TEST:
        return eval_applied(r, s, n, out);
    case JN_COND:
    case JN_OR:
    case JN_AND:
        return eval_branch(r, s, n, out);
    case JN_NOT:
        if (!jeval(r, s, n->a, &a)) return false;
        *out = jbool(!jtruth(&a));
        return true;
    case JN_NEG:
    case JN_POS:
        return eval_sign(r, s, n, out);
    case JN_BINARY:
        if (!jeval(r, s, n->a, &a) || !jeval(r, s, n->b, &b)) return false;
        r->line = n->line;
        return jbinary(r, n->op, &a, &b, out);
    case JN_CONCAT:
        return eval_concat(r, s, n, out);
    case JN_COMPARE:
        return eval_compare(r, s, n, out);
    default:
        return jfail(r, "a node that is no expression");
    }
}

bool jeval(struct jrun *r, struct jscope *s, const struct jnode *n, struct jvalue *out)
{
    if (!jenter(r)) return false;
    const bool ok = jsteps(r, 1) && eval_node(r, s, n, out);
    jleave(r);
    return ok;
}
