/* Runs the statements of a template. */
#include "text/chat/jinja_run.h"

#include "base/mem.h"

#include <string.h>

enum flow { FLOW_FAILED, FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

static enum flow run_statements(struct jrun *r, struct jscope *s, const struct jnode *first);

struct jscope *jscope_new(struct jrun *r, struct jscope *parent)
{
    struct jscope *s = jget(r, 1, sizeof *s);
    if (s != NULL) s->parent = parent;
    return s;
}

bool jscope_set(struct jrun *r, struct jscope *s, const struct jname *name,
                const struct jvalue *value)
{
    for (struct jbinding *b = s->first; b != NULL; b = b->next) {
        if (b->name != name) continue;
        b->value = *value;
        return true;
    }
    struct jbinding *b = jget(r, 1, sizeof *b);
    if (b == NULL || !jsteps(r, 1)) return false;
    *b = (struct jbinding){.name = name, .value = *value, .next = s->first};
    s->first = b;
    return true;
}

const struct jvalue *jscope_get(const struct jscope *s, const struct jname *name)
{
    for (; s != NULL; s = s->parent) {
        for (const struct jbinding *b = s->first; b != NULL; b = b->next) {
            if (b->name == name) return &b->value;
        }
    }
    return NULL;
}

static bool set_attribute(struct jrun *r, struct jscope *s, const struct jnode *target,
                          const struct jvalue *value)
{
    const struct jvalue *object = jscope_get(s, target->a->name);
    if (object == NULL || object->type != JV_NAMESPACE) {
        return jfail(r, "'%.60s' is no namespace, so its attributes cannot be set",
                     target->a->name->z);
    }
    if (target->name->text.n > 0 && target->name->text.p[0] == '_') {
        return jfail(r, "a namespace cannot have the attribute '%.60s'", target->name->z);
    }
    const struct jvalue key = {.type = JV_TEXT, .u.text = &target->name->text};
    return jdict_put(r, object->u.dict, &key, value);
}

static bool jinja_run_assign(struct jrun *r, struct jscope *s, const struct jnode *target,
                             const struct jvalue *value)
{
    if (target->kind == JN_NAME) return jscope_set(r, s, target->name, value);
    if (target->kind == JN_ATTR) return set_attribute(r, s, target, value);
    const struct jvalue *items;
    size_t n, want = 0;
    if (!jiterate(r, value, &items, &n)) return false;
    for (const struct jnode *t = target->list; t != NULL; t = t->next) want++;
    if (n != want) return jfail(r, "%zu values for %zu names", n, want);
    bool ok = true;
    for (const struct jnode *t = target->list; t != NULL && ok; t = t->next) {
        ok = jinja_run_assign(r, s, t, items++);
    }
    return ok;
}

/* Runs a list of nodes and captures its output as a text value. */
static enum flow capture(struct jrun *r, struct jscope *s, const struct jnode *first,
                         struct jvalue *out)
{
    struct jbuild b, *before = r->out;
    jbuild_init(&b, r);
    r->out = &b;
    const enum flow flow = run_statements(r, s, first);
    r->out = before;
    if (flow == FLOW_FAILED || !jbuild_end(&b, out)) return FLOW_FAILED;
    return flow;
}

/* Applies a block's filters to the text that the block printed. */
static bool filter_captured(struct jrun *r, struct jscope *s, const struct jnode *filters,
                            const struct jvalue *caught, struct jvalue *out)
{
    struct jscope *inner = jscope_new(r, s);
    if (inner == NULL) return false;
    inner->first = jget(r, 1, sizeof *inner->first);
    if (inner->first == NULL) return false;
    *inner->first = (struct jbinding){.name = NULL, .value = *caught}; /* the binding that
                                                                          JN_CAPTURED reads */
    return jeval(r, inner, filters, out);
}

static enum flow run_block(struct jrun *r, struct jscope *s, const struct jnode *n)
{
    struct jvalue caught, value;
    struct jscope *inner = jscope_new(r, s);
    if (inner == NULL) return FLOW_FAILED;
    const enum flow flow = capture(r, inner, n->list, &caught);
    if (flow != FLOW_NEXT) return flow;
    if (!filter_captured(r, s, n->b, &caught, &value)) return FLOW_FAILED;
    const bool ok =
        n->kind == JN_SET_BLOCK ? jinja_run_assign(r, s, n->a, &value) : jprint(r->out, &value);
    return ok ? FLOW_NEXT : FLOW_FAILED;
}

static enum flow run_if(struct jrun *r, struct jscope *s, const struct jnode *n)
{
    for (const struct jnode *branch = n->list; branch != NULL; branch = branch->next) {
        struct jvalue test = jbool(true);
        if (branch->a != NULL && !jeval(r, s, branch->a, &test)) return FLOW_FAILED;
        if (jtruth(&test)) return run_statements(r, s, branch->list);
    }
    return FLOW_NEXT;
}

/* Keeps the items that pass the `if` in the loop's head. */
static bool filter_items(struct jrun *r, struct jscope *s, const struct jnode *n,
                         const struct jvalue **items, size_t *n_items)
{
    struct jvalue *kept, list, test;
    size_t n_kept = 0;
    if (!jseq_new(r, JV_LIST, *n_items, &kept, &list)) return false;
    for (size_t i = 0; i < *n_items; i++) {
        struct jscope *inner = jscope_new(r, s);
        if (inner == NULL || !jinja_run_assign(r, inner, n->a, &(*items)[i])) return false;
        if (!jeval(r, inner, n->c, &test)) return false;
        if (jtruth(&test)) kept[n_kept++] = (*items)[i];
    }
    *items = kept;
    *n_items = n_kept;
    return true;
}

static enum flow run_for(struct jrun *r, struct jscope *s, const struct jnode *n)
{
    struct jvalue value;
    const struct jvalue *items;
    size_t n_items;
    if (!jeval(r, s, n->b, &value) || !jiterate(r, &value, &items, &n_items)) return FLOW_FAILED;
    if (n->c != NULL && !filter_items(r, s, n, &items, &n_items)) return FLOW_FAILED;
    struct jloop *loop = jget(r, 1, sizeof *loop);
    if (loop == NULL) return FLOW_FAILED;
    *loop = (struct jloop){.v = items, .n = n_items};
    const struct jvalue handle = {.type = JV_LOOP, .u.loop = loop};
    const struct jname *name = jname_find(r->tpl, "loop", 4);
    bool completed = false; /* true once a pass has run to its end; otherwise `else` runs */
    for (; loop->index0 < n_items; loop->index0++) {
        struct jscope *inner = jscope_new(r, s);
        if (inner == NULL || !jsteps(r, 1)) return FLOW_FAILED;
        if (name != NULL && !jscope_set(r, inner, name, &handle)) return FLOW_FAILED;
        if (!jinja_run_assign(r, inner, n->a, &items[loop->index0])) return FLOW_FAILED;
        const enum flow flow = run_statements(r, inner, n->list);
        if (flow == FLOW_FAILED) return flow;
        if (flow == FLOW_BREAK) break;
        if (flow == FLOW_NEXT) completed = true;
    }
    if (completed || n->d == NULL) return FLOW_NEXT;
    struct jscope *inner = jscope_new(r, s);
    return inner == NULL ? FLOW_FAILED : run_statements(r, inner, n->d->list);
}

static enum flow run_with(struct jrun *r, struct jscope *s, const struct jnode *n)
{
    struct jscope *inner = jscope_new(r, s);
    if (inner == NULL) return FLOW_FAILED;
    for (const struct jnode *set = n->d->list; set != NULL; set = set->next) {
        struct jvalue value;
        if (!jeval(r, s, set->b, &value) || !jinja_run_assign(r, inner, set->a, &value))
            return FLOW_FAILED;
    }
    return run_statements(r, inner, n->list);
}

static bool define_macro(struct jrun *r, struct jscope *s, const struct jnode *n)
{
    struct jmacro *m = jget(r, 1, sizeof *m);
    if (m == NULL) return false;
    *m = (struct jmacro){.node = n, .scope = s};
    const struct jvalue value = {.type = JV_MACRO, .u.macro = m};
    return jscope_set(r, s, n->name, &value);
}

static enum flow run_one(struct jrun *r, struct jscope *s, const struct jnode *n)
{
    struct jvalue value;
    struct jscope *inner;
    bool ok = true;
    switch (n->kind) {
    case JN_DATA:
        ok = jprint(r->out, &n->value);
        break;
    case JN_PRINT:
        ok = jeval(r, s, n->a, &value) && jprint(r->out, &value);
        break;
    case JN_SET:
        ok = jeval(r, s, n->b, &value) && jinja_run_assign(r, s, n->a, &value);
        break;
    case JN_MACRO:
        ok = define_macro(r, s, n);
        break;
    case JN_IF:
        return run_if(r, s, n);
    case JN_FOR:
        return run_for(r, s, n);
    case JN_WITH:
        return run_with(r, s, n);
    case JN_SET_BLOCK:
    case JN_FILTER_BLOCK:
        return run_block(r, s, n);
    case JN_BREAK:
        return FLOW_BREAK;
    case JN_CONTINUE:
        return FLOW_CONTINUE;
    default: /* JN_SCOPE */
        inner = jscope_new(r, s);
        return inner == NULL ? FLOW_FAILED : run_statements(r, inner, n->list);
    }
    return ok ? FLOW_NEXT : FLOW_FAILED;
}

static enum flow run_statements(struct jrun *r, struct jscope *s, const struct jnode *first)
{
    if (!jenter(r)) return FLOW_FAILED;
    enum flow flow = FLOW_NEXT;
    for (const struct jnode *n = first; n != NULL && flow == FLOW_NEXT; n = n->next) {
        r->line = n->line;
        flow = jsteps(r, 1) ? run_one(r, s, n) : FLOW_FAILED;
    }
    jleave(r);
    return flow;
}

/* Binds a macro's parameter to its argument, given by position or by name; without one, to its
 * default; without a default, to undefined. */
static bool bind_param(struct jrun *r, struct jscope *s, const struct jnode *param, size_t i,
                       const struct jargs *args, size_t *n_named)
{
    struct jvalue value = jundefined(param->name->z);
    bool given = i < args->n;
    if (given) value = args->v[i];
    for (size_t k = 0; k < args->n_named; k++) {
        if (!jtext_same(&args->named[k].name, &param->name->text)) continue;
        if (given) return jfail(r, "'%.60s' is given twice", param->name->z);
        given = true;
        value = args->named[k].value;
        (*n_named)++;
    }
    if (!given && param->a != NULL && !jeval(r, s, param->a, &value)) return false;
    return jscope_set(r, s, param->name, &value);
}

bool jmacro_call(struct jrun *r, const struct jmacro *m, const struct jargs *args,
                 struct jvalue *out)
{
    struct jscope *s = jscope_new(r, m->scope);
    if (s == NULL) return false;
    size_t i = 0, n_named = 0;
    for (const struct jnode *p = m->node->c->list; p != NULL; p = p->next, i++) {
        if (!bind_param(r, s, p, i, args, &n_named)) return false;
    }
    if (args->n > i || n_named < args->n_named) {
        return jfail(r, "the macro '%.60s' is given an argument that it does not have",
                     m->node->name->z);
    }
    const int line = r->line;
    const enum flow flow = capture(r, s, m->node->list, out);
    r->line = line;
    return flow != FLOW_FAILED;
}

static bool set_vars(struct jrun *r, struct jscope *s)
{
    for (size_t i = 0; i < r->n_vars; i++) {
        const struct jinja_var *v = &r->vars[i];
        const struct jname *name = jname_find(r->tpl, v->name, strlen(v->name));
        if (name == NULL) continue; /* the template never reads this variable */
        struct jvalue value = jnone();
        const struct jtext text = {.p = v->text, .n = v->n_text};
        bool ok = true;
        if (v->kind == JINJA_VAR_BOOL) value = jbool(v->flag);
        if (v->kind == JINJA_VAR_TEXT) ok = jtext_cut(r, &text, 0, text.n, &value);
        if (v->kind == JINJA_VAR_JSON) ok = jfrom_json(r, v->node, &value);
        if (!ok || !jscope_set(r, s, name, &value)) return false;
    }
    return true;
}

static bool set_globals(struct jrun *r, struct jscope *s)
{
    for (const struct jfunction *f = JINJA_GLOBALS; f->name != NULL; f++) {
        const struct jname *name = jname_find(r->tpl, f->name, strlen(f->name));
        const struct jvalue value = {.type = JV_FUNCTION, .u.fn = f};
        if (name != NULL && !jscope_set(r, s, name, &value)) return false;
    }
    return true;
}

static struct status take_output(const struct jbuild *b, struct jinja_output *out)
{
    TRY(mem_alloc(&out->bytes, b->n, 1, "chat text"));
    const struct status st = mem_alloc(&out->user, b->n, 1, "chat text");
    if (status_failed(&st)) {
        mem_free(&out->bytes);
        return st;
    }
    if (b->n > 0) memcpy(out->bytes, b->p, b->n);
    if (b->n > 0 && b->user != NULL) memcpy(out->user, b->user, b->n);
    out->n = b->n;
    return status_ok();
}

static struct jinja_limits limits_of(const struct jinja_limits *given)
{
    struct jinja_limits l = {0};
    if (given != NULL) l = *given;
    if (l.max_steps == 0) l.max_steps = JINJA_STEPS_MAX;
    if (l.max_memory_bytes == 0) l.max_memory_bytes = (size_t)256 << 20;
    if (l.max_output_bytes == 0) l.max_output_bytes = (size_t)64 << 20;
    if (l.max_depth == 0) l.max_depth = 400;
    return l;
}

struct status jinja_render(const struct jinja *t, const struct jinja_var *vars, size_t n_vars,
                           const struct jinja_date *now, const struct jinja_limits *limits,
                           struct jinja_output *out)
{
    *out = (struct jinja_output){0};
    struct jrun r = {.tpl = t,
                     .st = status_ok(),
                     .now = now,
                     .limits = limits_of(limits),
                     .vars = vars,
                     .n_vars = n_vars};
    r.arena.limit = r.limits.max_memory_bytes;
    struct jbuild b;
    jbuild_init(&b, &r);
    r.out = &b;
    struct jscope *globals = jscope_new(&r, NULL);
    struct jscope *top = globals == NULL ? NULL : jscope_new(&r, globals);
    if (top != NULL && set_globals(&r, globals) && set_vars(&r, globals) &&
        run_statements(&r, top, t->body) != FLOW_FAILED) {
        r.st = take_output(&b, out);
    }
    out->n_steps = r.steps;
    jarena_fini(&r.arena);
    return r.st;
}

bool jhas_var(const struct jrun *r, const char *name)
{
    return jname_find(r->tpl, name, strlen(name)) != NULL;
}

void jinja_output_fini(struct jinja_output *o)
{
    mem_free(&o->bytes);
    mem_free(&o->user);
    o->n = 0;
}
