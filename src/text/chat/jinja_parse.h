/* Tokens and nodes of a template. Included only by jinja*.c and jinja_run.h. Nodes and names are in
 * the template's arena and never change once parsed; tokens live as long as the parser. All
 * functions are Local. A function that fails returns false (or NULL), and jparse.st keeps the first
 * failure: STATUS_INPUT, which names template and line, or STATUS_MEMORY. */
#ifndef SHOAL_TEXT_CHAT_JINJA_PARSE_H
#define SHOAL_TEXT_CHAT_JINJA_PARSE_H

#include "text/chat/jinja_value.h"

enum jtoken_type {
    JT_DATA,
    JT_VARIABLE_BEGIN,
    JT_VARIABLE_END,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_NAME,
    JT_STRING,
    JT_INTEGER,
    JT_FLOAT,
    JT_OPERATOR, /* jtoken.op says which */
    JT_EOF,
};

/* A two-character operator holds both bytes: '=' << 8 | '='. */
#define JOP2(a, b) ((a) << 8 | (b))

struct jtoken {
    enum jtoken_type type;
    int line;
    int op;              /* OPERATOR: its character, or JOP2 of its two */
    struct jtext text;   /* DATA, NAME, STRING: the value */
    struct jvalue value; /* INTEGER, FLOAT */
};

struct jname {
    struct jtext text; /* there is one object per spelling, so pointers can be compared */
    char *z;           /* the same text, NUL-terminated */
    struct jname *next;
};

enum jnode_kind {
    JN_CONST,
    JN_NAME,
    JN_LIST,  /* list */
    JN_TUPLE, /* list */
    JN_DICT,  /* list of JN_PAIR a: b */
    JN_PAIR,
    JN_ATTR,    /* a.name */
    JN_ITEM,    /* a[b] */
    JN_SLICE,   /* a[b : c : d] */
    JN_CALL,    /* a(list) */
    JN_KEYWORD, /* name=a, in a list of arguments */
    JN_FILTER,  /* a | name(list); fn NULL when unknown */
    JN_TEST,    /* a is name(list); fn NULL when unknown */
    JN_COND,    /* b if a else c (NULL: undefined) */
    JN_OR,
    JN_AND,
    JN_NOT,
    JN_NEG,
    JN_POS,
    JN_BINARY,  /* a op b */
    JN_CONCAT,  /* list */
    JN_COMPARE, /* a, then list of JN_OPERAND op a */
    JN_OPERAND,
    JN_CAPTURED, /* the output captured by a block set or filter block */

    JN_DATA,         /* value */
    JN_PRINT,        /* a */
    JN_IF,           /* list of JN_BRANCH */
    JN_BRANCH,       /* a (NULL: else), list */
    JN_FOR,          /* for target a in b if c: list; d's list if no pass reaches the end of list */
    JN_SET,          /* target a = b */
    JN_SET_BLOCK,    /* target a = filters b of JN_CAPTURED, which is the output of list */
    JN_MACRO,        /* name, params c's list, body list */
    JN_PARAM,        /* name, default a */
    JN_WITH,         /* d's list of JN_SET, body list */
    JN_SCOPE,        /* list, in a scope of its own */
    JN_FILTER_BLOCK, /* print filters b of JN_CAPTURED, which is the output of list */
    JN_BREAK,
    JN_CONTINUE,
};

enum { JOP_IN = 1, JOP_NOT_IN = 2 };

struct jnode {
    enum jnode_kind kind;
    int line;
    int op; /* the operator: one character, two as JOP2, JOP_IN or JOP_NOT_IN */
    const struct jname *name;
    const struct jfunction *fn;
    struct jvalue value;
    struct jnode *a, *b, *c, *d;
    struct jnode *list; /* the first of any number of children */
    struct jnode *next; /* the next child in its parent's list */
};

enum { JNAME_BUCKETS = 4096 };

struct jinja {
    struct jarena arena;
    char *source; /* line ends normalized */
    size_t n_source;
    struct jname *names[JNAME_BUCKETS]; /* buckets by hash */
    struct jnode *body;
};

/* Shared by the lexer and the parser. */
struct jparse {
    struct jinja *t;
    const char *what;
    struct status st;
    struct jarena scratch; /* memory for the tokens */
    struct jtoken *tokens; /* [n_tokens], the last is JT_EOF */
    size_t n_tokens;
    size_t at; /* the current token */
    int depth;
    int loops; /* open loops of the current macro, generation block or template */
};

/* Local. Records the first failure. Always returns false. */
bool jparse_fail(struct jparse *p, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Local. Returns zeroed memory of the template's arena; NULL after a failure. */
void *jparse_get(struct jparse *p, size_t n, size_t elem_bytes);

/* Local. Copies the source with normalized line ends into p->t and splits it into tokens. */
bool jinja_lex(struct jparse *p, const char *source, size_t n);

/* Local. Reads the value of a string literal from the text between its quotes. */
bool jinja_unescape(struct jparse *p, int line, const char *s, size_t n, struct jtext *out);

/* ---- parser ---- */

static inline const struct jtoken *jtok(const struct jparse *p)
{
    return &p->tokens[p->at];
}
/* Local. jtok_is_...: true when the current token is this one. jtok_skip_...: the same, and moves
 * past the token if it is. jtok_expect_...: moves past it, or fails. */
bool jtok_is_op(const struct jparse *p, int op);
bool jtok_is_name(const struct jparse *p, const char *name);
bool jtok_skip_op(struct jparse *p, int op);
bool jtok_skip_name(struct jparse *p, const char *name);
bool jtok_expect_op(struct jparse *p, int op);
const struct jname *jtok_expect_name(struct jparse *p); /* NULL on failure */
/* Local. Fails with a sentence that names the current token and `expected`. Always returns false.
 */
bool jtok_unexpected(struct jparse *p, const char *expected);
/* Local. Returns a node on the line of the current token. */
struct jnode *jnode_new(struct jparse *p, enum jnode_kind kind);
/* Local. Returns the name with this spelling; creates it if it is new. */
const struct jname *jname_of(struct jparse *p, const struct jtext *text);
/* Local. Returns the name with this spelling; NULL if the template does not contain it. */
const struct jname *jname_find(const struct jinja *t, const char *text, size_t n);

/* A list under construction. */
struct jlist {
    struct jnode *first, *last;
};
void jlist_add(struct jlist *l, struct jnode *node);

/* Local. Each parses one construct and returns NULL on failure. */
struct jnode *jparse_expression(struct jparse *p);
/* Parses an expression, or a tuple without parentheses. cond: allows `x if y`. */
struct jnode *jparse_tuple(struct jparse *p, bool cond);
/* Parses the left side of an assignment: names, possibly in parentheses. with_attr: outside of
 * parentheses also attributes of names. */
struct jnode *jparse_target(struct jparse *p, bool with_attr);
/* Parses filters, each after a `|`, and applies them to node. first: no `|` stands before the first
 * filter. */
struct jnode *jparse_filters(struct jparse *p, struct jnode *node, bool first);

#endif
