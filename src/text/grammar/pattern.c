/* Compiles and runs patterns with PCRE2. */
#include "text/grammar/pattern.h"

#include "base/mem.h"
#include "base/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

enum {
    MATCH_LIMIT = 50 * 1000 * 1000, /* backtracking steps of one search */
    HEAP_LIMIT_KIB = 256 * 1024,
    JIT_STACK_MIN = 32 * 1024,
    JIT_STACK_MAX = 8 * 1024 * 1024,
    NOTATION_MAX = 64 * 1024,
};

struct pattern {
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *jit_stack; /* NULL when PCRE2 has no JIT here */
};

static struct status pattern_compile(struct pattern *p, const char *text, size_t n, bool literal,
                                     const char *what)
{
    int error = 0;
    PCRE2_SIZE at = 0;
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    p->code = pcre2_compile((PCRE2_SPTR)text, n, literal ? PCRE2_UTF | PCRE2_LITERAL : options,
                            &error, &at, NULL);
    if (p->code == NULL) {
        PCRE2_UCHAR why[128] = "";
        pcre2_get_error_message(error, why, sizeof why);
        return status_make(STATUS_INPUT, "%s: the pattern does not compile at byte %zu: %s", what,
                           (size_t)at, (const char *)why);
    }
    return status_ok();
}

/* Makes room for a match, sets the limits, and compiles for the JIT if the machine has one. */
static struct status pattern_prepare(struct pattern *p)
{
    p->data = pcre2_match_data_create(1, NULL);
    p->context = pcre2_match_context_create(NULL);
    if (p->data == NULL || p->context == NULL) {
        return status_make(STATUS_MEMORY, "no memory for a pattern's match data");
    }
    pcre2_set_match_limit(p->context, MATCH_LIMIT);
    pcre2_set_heap_limit(p->context, HEAP_LIMIT_KIB);
    if (pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0) {
        p->jit_stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL);
        if (p->jit_stack != NULL) pcre2_jit_stack_assign(p->context, NULL, p->jit_stack);
    }
    return status_ok();
}

struct status pattern_create(const char *notation, size_t n, bool literal, const char *what,
                             struct pattern **out)
{
    *out = NULL;
    if (n == 0 || n > NOTATION_MAX) {
        return status_make(STATUS_INPUT, "%s: a pattern of %zu bytes, expected 1 to %d", what, n,
                           (int)NOTATION_MAX);
    }
    struct strbuf translated;
    strbuf_init(&translated);
    struct pattern *p = NULL;
    struct status st = status_ok();
    if (literal) {
        strbuf_add(&translated, notation, n);
        st = strbuf_status(&translated);
    } else {
        st = pattern_translate(notation, n, what, &translated);
    }
    if (status_failed(&st)) goto done;
    TRY_GOTO(st, mem_alloc(&p, 1, sizeof *p, "pattern"), done);
    TRY_GOTO(st, pattern_compile(p, translated.data, translated.n, literal, what), done);
    st = pattern_prepare(p);
done:
    strbuf_fini(&translated);
    if (status_failed(&st)) {
        pattern_destroy(&p);
    }
    *out = p;
    return st;
}

void pattern_destroy(struct pattern **p)
{
    if (*p == NULL) return;
    pcre2_jit_stack_free((*p)->jit_stack);
    pcre2_match_context_free((*p)->context);
    pcre2_match_data_free((*p)->data);
    pcre2_code_free((*p)->code);
    mem_free(p);
}

void pattern_walk_init(struct pattern_walk *w, const char *text, size_t n)
{
    *w = (struct pattern_walk){.text = text, .n = n, .at = 0, .last_end = n + 1};
}

struct status pattern_next(struct pattern *p, struct pattern_walk *w, size_t *start, size_t *end,
                           bool *found)
{
    *found = false;
    while (w->at <= w->n) {
        const int rc = pcre2_match(p->code, (PCRE2_SPTR)w->text, w->n, w->at, PCRE2_NO_UTF_CHECK,
                                   p->data, p->context);
        if (rc == PCRE2_ERROR_NOMATCH) return status_ok();
        if (rc < 0) {
            PCRE2_UCHAR why[128] = "";
            pcre2_get_error_message(rc, why, sizeof why);
            return status_make(STATUS_REQUEST,
                               "a pattern of the tokenizer gave up at byte %zu of %zu: %s", w->at,
                               w->n, (const char *)why);
        }
        const PCRE2_SIZE *match = pcre2_get_ovector_pointer(p->data);
        *start = match[0];
        *end = match[1];
        if (*start == *end && *end == w->last_end) {
            size_t step = 1;
            if (w->at < w->n) utf8_sequence(w->text + w->at, w->n - w->at, &step);
            w->at += step;
            continue;
        }
        w->at = *end;
        w->last_end = *end;
        *found = true;
        return status_ok();
    }
    return status_ok();
}
