#include "util_forms.h"

#include "base/json.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/regex.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

struct status util_of_pattern(struct nfa *n, uint32_t from, const char *spec, uint32_t *end)
{
    const struct regex_options options = {.in_string = false, .searches = false};
    return regex_add(n, from, spec, strlen(spec), options, end);
}

struct status util_of_schema(struct nfa *n, uint32_t from, const char *spec, uint32_t *end)
{
    struct js_doc *doc = NULL;
    TRY(js_parse(spec, strlen(spec), "schema", &doc));
    const struct status st = json_schema_add(n, from, js_root(doc), end);
    js_destroy(&doc);
    return st;
}

struct status util_compile(util_add_paths *add, const char *spec, struct dfa **out)
{
    struct grammar_work work = {.n_bytes = strlen(spec)};
    return util_compile_counting(add, spec, &work, out);
}

struct status util_compile_counting(util_add_paths *add, const char *spec,
                                    struct grammar_work *work, struct dfa **out)
{
    struct nfa n;
    uint32_t end;
    *out = NULL;
    nfa_init(&n, work);
    const uint32_t start = nfa_state(&n);
    struct status st = add(&n, start, spec, &end);
    if (!status_failed(&st)) st = dfa_create(&n, start, end, out);
    nfa_fini(&n);
    return st;
}

bool util_accepts(const struct dfa *d, const char *text)
{
    return (d->flags[dfa_run(d, DFA_START, text, strlen(text))] & DFA_ACCEPTS) != 0;
}

void util_expect_forms(util_add_paths *add, const struct util_form *forms, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct dfa *d = NULL;
        const struct status st = util_compile(add, forms[i].spec, &d);
        if (status_failed(&st)) printf("\n  %s: %s\n", forms[i].spec, st.text);
        CU_ASSERT_FATAL(d != NULL);
        for (size_t k = 0; k < UTIL_TEXTS_MAX; k++) {
            const char *fit = forms[i].fit[k], *other = forms[i].other[k];
            if (fit != NULL && !util_accepts(d, fit))
                printf("\n  %s refuses %s\n", forms[i].spec, fit);
            if (other != NULL && util_accepts(d, other))
                printf("\n  %s takes %s\n", forms[i].spec, other);
            CU_ASSERT(fit == NULL || util_accepts(d, fit));
            CU_ASSERT(other == NULL || !util_accepts(d, other));
        }
        dfa_destroy(&d);
    }
}

void util_expect_refused(util_add_paths *add, const char *const (*specs)[2], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct dfa *d = NULL;
        const struct status st = util_compile(add, specs[i][0], &d);
        const bool is_right = st.code == STATUS_REQUEST && strstr(st.text, specs[i][1]) != NULL;
        if (!is_right)
            printf("\n  %s: \"%s\", expected \"%s\"\n", specs[i][0], st.text, specs[i][1]);
        CU_ASSERT(is_right);
        dfa_destroy(&d);
    }
}
