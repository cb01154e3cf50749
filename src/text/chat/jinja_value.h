/* The values of a running template, their memory and operations. Included only by jinja*.c and
 * jinja*.h. Values are in the arena of the run (constants in the template's) and never
 * change, except namespaces, loops and iterators. All functions are Local. A function that fails
 * returns false (or NULL), and jrun.st keeps the first failure: STATUS_REQUEST for a template's
 * mistake or a limit that is exceeded, STATUS_MEMORY. */
#ifndef SHOAL_TEXT_CHAT_JINJA_VALUE_H
#define SHOAL_TEXT_CHAT_JINJA_VALUE_H

#include "text/chat/jinja.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct jarena {
    struct jchunk *chunks; /* owned */
    size_t used, limit;    /* bytes */
};

/* Local. Returns n_bytes zeroed bytes, 16-byte aligned, which jarena_fini frees. NULL: the arena
 * would exceed its limit, or memory ran out. */
void *jarena_get(struct jarena *a, size_t n_bytes);
void jarena_fini(struct jarena *a);

enum jvalue_type {
    JV_ABSENT, /* an argument that was not given; never a template's value */
    JV_UNDEFINED,
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_FLOAT,
    JV_TEXT,
    JV_LIST,
    JV_TUPLE,
    JV_RANGE,
    JV_VIEW,     /* the result of dict.keys(), values() and items() */
    JV_ITERATOR, /* can be walked once; always true; has no length */
    JV_DICT,
    JV_NAMESPACE,
    JV_LOOP,
    JV_MACRO,
    JV_FUNCTION,
    JV_METHOD,
    JV_COUNT
};

struct jtext {
    const char *p;             /* [n], borrowed or in an arena; not NUL-terminated */
    const unsigned char *user; /* [n]: 1 for a byte that came from a user; NULL: none did */
    size_t n;
};

struct jvalue {
    uint8_t type;  /* enum jvalue_type */
    bool user;     /* NONE, BOOL, INT, FLOAT: came from a user */
    bool markup;   /* TEXT: marked safe; + escapes the operand that is not */
    uint32_t json; /* the number (jfrom_json) of the JSON value from which this came; UNDEFINED: of
                      the object that lacks the member; 0: none */
    union {
        bool b;
        int64_t i;
        double f;
        const struct jtext *text;
        struct jseq *seq;           /* LIST, TUPLE, RANGE, VIEW, ITERATOR */
        struct jdict *dict;         /* DICT, NAMESPACE */
        const struct jloop *loop;   /* LOOP */
        const struct jmacro *macro; /* MACRO */
        const struct jfunction *fn; /* FUNCTION */
        const struct jmethod *method;
        const char *name; /* UNDEFINED: for messages, the name that was not found */
    } u;
};

struct jseq {
    const struct jvalue *v; /* [n] */
    size_t n;
    size_t at; /* ITERATOR: items already taken */
};

struct jpair {
    struct jvalue key, value;
};

struct jdict {
    struct jpair *pairs; /* [n] of capacity, in the order of insertion */
    size_t n, capacity;
};

struct jnamed {
    struct jtext name;
    struct jvalue value;
};

struct jargs {
    const struct jvalue *v; /* [n] */
    size_t n;
    const struct jnamed *named; /* [n_named] */
    size_t n_named;
};

struct jrun;

enum { JFUNCTION_PARAMS = 5 };

/* A filter, test, method or global function. Arguments are bound to parameters by position or name;
 * a `raw` function gets them unbound. */
struct jfunction {
    const char *name;
    bool (*fn)(struct jrun *r, const struct jvalue *self, const struct jvalue *a,
               struct jvalue *out); /* a[JFUNCTION_PARAMS]; arguments not given are ABSENT */
    bool (*raw)(struct jrun *r, const struct jvalue *self, const struct jargs *args,
                struct jvalue *out);
    const char *params[JFUNCTION_PARAMS];
    int n_required;
    unsigned types; /* methods: the types of self, each as the bit 1 << enum jvalue_type */
};

struct jmethod {
    const struct jfunction *fn;
    struct jvalue self;
};

struct jloop {
    const struct jvalue *v; /* [n] */
    size_t n, index0;
};

/* A text under construction. */
struct jbuild {
    struct jrun *r;
    char *p;
    unsigned char *user; /* [n]: 1 for a byte that came from a user; NULL: none did */
    size_t n, capacity;
};

struct jrun {
    const struct jinja *tpl;
    struct jarena arena;
    struct status st; /* the first failure */
    struct jinja_limits limits;
    const struct jinja_date *now;
    uint64_t steps;
    unsigned depth;
    int line;                     /* line of the current node */
    const struct jinja_var *vars; /* [n_vars], borrowed */
    size_t n_vars;
    uint32_t n_json; /* JSON values read so far */
    struct jbuild *out;
    const unsigned char *ones; /* [n_ones] */
    size_t n_ones;
};

/* ---- jinja_value.c ---- */

/* Local. Records a STATUS_REQUEST with the current line, if it is the first failure. Always returns
 * false. */
bool jfail(struct jrun *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Local. Returns zeroed memory of the arena; NULL after a failure, which is recorded. */
void *jget(struct jrun *r, size_t n, size_t elem_bytes);

/* Local. Counts n steps of work. False: the limit is exceeded. */
bool jsteps(struct jrun *r, size_t n);
/* Local. Enters a nested evaluation. False: the limit is reached. After true the caller must call
 * jleave. */
bool jenter(struct jrun *r);
static inline void jleave(struct jrun *r)
{
    r->depth--;
}

/* Local. jundefined: name must outlive the value. */
struct jvalue jundefined(const char *name);
struct jvalue jnone(void);
struct jvalue jbool(bool b);
struct jvalue jint(int64_t i);
struct jvalue jfloat(double f);

/* Local. jtext_literal makes a text of a literal, which must outlive the run. jtext_cut makes a
 * text that shares the bytes [from, to) of t. */
bool jtext_literal(struct jrun *r, const char *text, struct jvalue *out);
bool jtext_cut(struct jrun *r, const struct jtext *t, size_t from, size_t to, struct jvalue *out);
bool jtext_is(const struct jvalue *v, const char *text);
bool jtext_same(const struct jtext *a, const struct jtext *b);
/* Local. Returns at least n ones, the marks of a user's text; NULL after a failure. */
const unsigned char *jones(struct jrun *r, size_t n);
static inline bool jtext_user(const struct jtext *t, size_t i)
{
    return t->user != NULL && t->user[i] != 0;
}

/* Local. These functions build a text. After a failure jbuild_end fails too. jbuild_add: user [n]
 * marks the user's bytes; NULL: no byte is a user's. */
void jbuild_init(struct jbuild *b, struct jrun *r);
bool jbuild_add(struct jbuild *b, const char *p, const unsigned char *user, size_t n);
bool jbuild_puts(struct jbuild *b, const char *text, bool user);
bool jbuild_text(struct jbuild *b, const struct jtext *t);
bool jbuild_cut(struct jbuild *b, const struct jtext *t, size_t from, size_t to);
bool jbuild_end(struct jbuild *b, struct jvalue *out);

/* Local. Makes a sequence of n elements (type LIST, TUPLE, ...), to be filled through *v. */
bool jseq_new(struct jrun *r, enum jvalue_type type, size_t n, struct jvalue **v,
              struct jvalue *out);
static inline bool jis_seq(const struct jvalue *v)
{
    return v->type == JV_LIST || v->type == JV_TUPLE || v->type == JV_RANGE;
}

/* Local. Dictionaries. jdict_put replaces the value of an existing key. jdict_get returns NULL for
 * a missing key, and after a failure. */
bool jdict_new(struct jrun *r, size_t capacity, enum jvalue_type type, struct jvalue *out);
bool jdict_put(struct jrun *r, struct jdict *d, const struct jvalue *key,
               const struct jvalue *value);
const struct jvalue *jdict_get(struct jrun *r, const struct jdict *d, const struct jvalue *key);

/* Local. Python's truthiness, equality, order and `in`. jcompare: *out is negative, 0 or positive
 * as a is less than, equal to or greater than b. */
bool jtruth(const struct jvalue *v);
bool jequal(struct jrun *r, const struct jvalue *a, const struct jvalue *b, bool *out);
bool jcompare(struct jrun *r, const struct jvalue *a, const struct jvalue *b, int *out);
bool jcontains(struct jrun *r, const struct jvalue *whole, const struct jvalue *part, bool *out);
bool jis_number(const struct jvalue *v); /* BOOL, INT, FLOAT */
double jas_float(const struct jvalue *v);
bool jas_int(const struct jvalue *v, int64_t *out); /* BOOL, INT */
/* Returns the name of v's type with its article, for a message. */
const char *jtype_name(const struct jvalue *v);

/* Local. Sets *items [*n] to the values that a loop over v visits; an iterator is used up. Fails
 * for values that cannot be iterated. */
bool jiterate(struct jrun *r, const struct jvalue *v, const struct jvalue **items, size_t *n);

/* ---- jinja_print.c ---- */

/* Local. jprint appends str(v): for an undefined value nothing, or a failure if limits.is_strict.
 * jrepr appends repr(v). jas_text sets *out to a text's own bytes, or to str(v). */
bool jprint(struct jbuild *b, const struct jvalue *v);
bool jrepr(struct jbuild *b, const struct jvalue *v);
bool jas_text(struct jrun *r, const struct jvalue *v, const struct jtext **out);
/* Local. Writes Python's repr of a float, NUL-terminated. */
void jfloat_text(double f, char out[48]);
/* Local. Formats v[n] like Python's operator % on strings, such as "%s and %d" % (a, b). */
bool jformat(struct jrun *r, const struct jtext *format, const struct jvalue *v, size_t n,
             struct jvalue *out);

/* ---- jinja_json.c ---- */

/* Local. Sets *out to the value of a JSON node. This value and the values inside it get numbers
 * (jvalue.json) in the order of the JSON text, after the numbers that the run gave before. */
bool jfrom_json(struct jrun *r, const struct js_node *node, struct jvalue *out);

/* ---- jinja_field.c ---- */

/* Local. Call it when v has the wrong type: the template needs the type of `other`. If v came from
 * the request, records a failure that names v's field, and returns true. Otherwise, and if JSON has
 * no name for one of the types or `other` is none or undefined, returns false and records nothing.
 */
bool jfail_field(struct jrun *r, const struct jvalue *v, const struct jvalue *other);

/* ---- jinja_run.c ---- */

/* Local. True when this name occurs in the template; otherwise its variable is not set. */
bool jhas_var(const struct jrun *r, const char *name);

/* ---- jinja_string.c: characters as Python sees them ---- */

/* Local. jspace: Python's str.isspace for one character. */
bool jspace(uint32_t c);
size_t jchars(const struct jtext *t);                  /* the number of characters */
size_t jchar_at(const struct jtext *t, size_t i_char); /* byte offset; t->n beyond the end */
/* TITLE: str.title. WORDS: the filter `title`. */
enum jcase { JCASE_UPPER, JCASE_LOWER, JCASE_TITLE, JCASE_CAPITALIZE, JCASE_WORDS };
bool jcased(struct jrun *r, const struct jtext *t, enum jcase how, struct jvalue *out);
/* Local. jstrip removes the characters of `chars` (NULL: blanks) at the left end, the right end or
 * both. jreplace replaces the first `count` occurrences of `old`; negative: all. */
bool jstrip(struct jrun *r, const struct jtext *t, const struct jtext *chars, bool left, bool right,
            struct jvalue *out);
bool jreplace(struct jrun *r, const struct jtext *t, const struct jtext *old,
              const struct jtext *new, int64_t count, struct jvalue *out);
/* Returns the byte offset of the first `part` at or after `from`, or SIZE_MAX. */
size_t jfind(const struct jtext *t, size_t from, const struct jtext *part);
bool jsplit_lines(struct jrun *r, const struct jtext *t, bool keep_ends, struct jvalue *out);

/* ---- tables, each ended by a NULL name ---- */

extern const struct jfunction JINJA_TEXT_FILTERS[], JINJA_SEQ_FILTERS[], JINJA_TESTS[],
    JINJA_TEXT_METHODS[], JINJA_METHODS[], JINJA_GLOBALS[];
/* Local. Return NULL for an unknown name. types: bits as in jfunction.types, of which one must
 * match; 0: any function matches. */
const struct jfunction *jfunction_find(const struct jfunction *table, const char *name, size_t n,
                                       unsigned types);
const struct jfunction *jfilter_find(const char *name, size_t n);

/* ---- jinja_access.c ---- */

/* Local. Set *out to v.name, to v[key] (both undefined if v lacks it) or to the slice
 * v[part[0] : part[1] : part[2]], whose parts are integers or none. Fail if v is undefined. */
bool jattr(struct jrun *r, const struct jvalue *v, const struct jtext *name, struct jvalue *out);
bool jitem(struct jrun *r, const struct jvalue *v, const struct jvalue *key, struct jvalue *out);
bool jslice(struct jrun *r, const struct jvalue *v, const struct jvalue part[3],
            struct jvalue *out);

/* ---- jinja_call.c ---- */

/* Local. Binds the arguments to fn's parameters and calls fn. self NULL: a global function. */
bool jcall_function(struct jrun *r, const struct jfunction *fn, const struct jvalue *self,
                    const struct jargs *args, struct jvalue *out);
/* Local. Calls a function, method or macro; fails for other values. */
bool jcall(struct jrun *r, const struct jvalue *callee, const struct jargs *args,
           struct jvalue *out);

#endif
