/* Scopes, and the functions that run the nodes of a template. Included only by jinja*.c. Functions
 * fail as in jinja_value.h. */
#ifndef SHOAL_TEXT_CHAT_JINJA_RUN_H
#define SHOAL_TEXT_CHAT_JINJA_RUN_H

#include "text/chat/jinja_parse.h"
#include "text/chat/jinja_value.h"

struct jbinding {
    const struct jname *name;
    struct jvalue value;
    struct jbinding *next;
};

struct jscope {
    struct jscope *parent;
    struct jbinding *first;
};

struct jmacro {
    const struct jnode *node;
    struct jscope *scope; /* in which the macro was defined */
};

/* Local. jscope_new returns a new scope; NULL on failure. jscope_set binds a name in this scope.
 * jscope_get also searches the parents; NULL: no scope binds the name. */
struct jscope *jscope_new(struct jrun *r, struct jscope *parent);
bool jscope_set(struct jrun *r, struct jscope *s, const struct jname *name,
                const struct jvalue *value);
const struct jvalue *jscope_get(const struct jscope *s, const struct jname *name);

/* Local. Sets *out to the value of an expression. */
bool jeval(struct jrun *r, struct jscope *s, const struct jnode *n, struct jvalue *out);

/* Local. Sets *out to a op b, for Python's arithmetic operators. op: the operator's character,
 * or JOP2 (jinja_parse.h) of the two characters of ** or //. */
bool jbinary(struct jrun *r, int op, const struct jvalue *a, const struct jvalue *b,
             struct jvalue *out);

/* Local. Calls a macro and sets *out to the text that it prints. */
bool jmacro_call(struct jrun *r, const struct jmacro *m, const struct jargs *args,
                 struct jvalue *out);

#endif
