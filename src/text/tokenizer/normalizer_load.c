/* Reads tokenizer.json's "normalizer" into steps. */
#include "text/tokenizer/normalizer.h"

#include "base/mem.h"
#include "text/grammar/json_read.h"

#include <string.h>

enum { SEQUENCE_DEPTH_MAX = 8 };

static const char WHERE[] = "normalizer";

static struct status normalizer_load_step_add(struct normalizer *z, struct normalizer_step step)
{
    if (z->n_steps == NORMALIZER_STEPS_MAX) {
        replacer_fini(&step.replacer);
        precompiled_fini(&step.precompiled);
        return status_make(STATUS_INPUT, "%s: more than %d steps", WHERE,
                           (int)NORMALIZER_STEPS_MAX);
    }
    z->steps[z->n_steps++] = step;
    return status_ok();
}

static struct status normalizer_load_strip(struct normalizer *z, const struct js_node *node)
{
    static const char *const KNOWN[] = {"type", "strip_left", "strip_right", NULL};
    struct normalizer_step step = {.kind = NORMALIZER_STRIP};
    TRY(json_known_fields(node, WHERE, KNOWN));
    TRY(json_bool_field(node, "strip_left", WHERE, false, &step.left));
    TRY(json_bool_field(node, "strip_right", WHERE, false, &step.right));
    return normalizer_load_step_add(z, step);
}

static struct status load_prepend(struct normalizer *z, const struct js_node *node)
{
    static const char *const KNOWN[] = {"type", "prepend", NULL};
    struct normalizer_step step = {.kind = NORMALIZER_PREPEND};
    const char *text;
    TRY(json_known_fields(node, WHERE, KNOWN));
    TRY(json_string_field(node, "prepend", WHERE, &text, &step.replacer.n_content));
    if (step.replacer.n_content > REPLACER_BYTES_MAX) {
        return status_make(STATUS_INPUT, "%s: Prepend of %zu bytes, expected at most %d", WHERE,
                           step.replacer.n_content, (int)REPLACER_BYTES_MAX);
    }
    TRY(mem_strndup(&step.replacer.content, text, step.replacer.n_content));
    return normalizer_load_step_add(z, step);
}

static struct status load_replace(struct normalizer *z, const struct js_node *node)
{
    struct normalizer_step step = {.kind = NORMALIZER_REPLACE};
    TRY(replacer_load(&step.replacer, node, WHERE));
    return normalizer_load_step_add(z, step);
}

static struct status load_precompiled(struct normalizer *z, const struct js_node *node)
{
    struct normalizer_step step = {.kind = NORMALIZER_PRECOMPILED};
    TRY(precompiled_load(&step.precompiled, node, WHERE));
    return normalizer_load_step_add(z, step);
}

/* Adds the steps that the four switches of BERT's normalizer select. strip_accents selects two. */
static struct status load_bert_steps(struct normalizer *z, const struct js_node *node)
{
    static const char *const KNOWN[] = {"type",          "clean_text", "handle_chinese_chars",
                                        "strip_accents", "lowercase",  NULL};
    bool cleans, isolates, lowers, strips;
    TRY(json_known_fields(node, WHERE, KNOWN));
    TRY(json_bool_field(node, "clean_text", WHERE, true, &cleans));
    TRY(json_bool_field(node, "handle_chinese_chars", WHERE, true, &isolates));
    TRY(json_bool_field(node, "lowercase", WHERE, true, &lowers));
    strips = lowers; /* the default when strip_accents is missing or null */
    if (js_type(js_get(node, "strip_accents")) != JS_NULL)
        TRY(json_bool_field(node, "strip_accents", WHERE, lowers, &strips));
    const struct {
        bool is_on;
        struct normalizer_step step;
    } steps[] = {{cleans, {.kind = NORMALIZER_BERT_CLEAN}},
                 {isolates, {.kind = NORMALIZER_BERT_IDEOGRAPHS}},
                 {strips, {.kind = NORMALIZER_FORM, .form = UNICODE_NFD}},
                 {strips, {.kind = NORMALIZER_BERT_ACCENTS}},
                 {lowers, {.kind = NORMALIZER_LOWERCASE}}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (steps[i].is_on) TRY(normalizer_load_step_add(z, steps[i].step));
    return status_ok();
}

/* The normalizers that have no field but "type". */
static const struct {
    const char *type;
    struct normalizer_step step;
} PLAIN[] = {
    {"NFC", {.kind = NORMALIZER_FORM, .form = UNICODE_NFC}},
    {"NFD", {.kind = NORMALIZER_FORM, .form = UNICODE_NFD}},
    {"NFKC", {.kind = NORMALIZER_FORM, .form = UNICODE_NFKC}},
    {"NFKD", {.kind = NORMALIZER_FORM, .form = UNICODE_NFKD}},
    {"Lowercase", {.kind = NORMALIZER_LOWERCASE}},
    {"StripAccents", {.kind = NORMALIZER_STRIP_ACCENTS}},
};

static struct status normalizer_load_step(struct normalizer *z, const struct js_node *node,
                                          int depth);

static struct status normalizer_load_sequence(struct normalizer *z, const struct js_node *node,
                                              int depth)
{
    static const char *const KNOWN[] = {"type", "normalizers", NULL};
    const struct js_node *list = js_get(node, "normalizers");
    TRY(json_known_fields(node, WHERE, KNOWN));
    if (js_type(list) != JS_ARRAY || depth >= SEQUENCE_DEPTH_MAX) {
        return status_make(STATUS_INPUT, "%s: a Sequence without a list, or nested too deeply",
                           WHERE);
    }
    for (size_t i = 0; i < js_count(list); i++)
        TRY(normalizer_load_step(z, js_at(list, i), depth + 1));
    return status_ok();
}

static struct status normalizer_load_step(struct normalizer *z, const struct js_node *node,
                                          int depth)
{
    static const char *const KNOWN[] = {"type", NULL};
    const char *type;
    TRY(json_type_field(node, WHERE, &type));
    if (strcmp(type, "Sequence") == 0) return normalizer_load_sequence(z, node, depth);
    if (strcmp(type, "Strip") == 0) return normalizer_load_strip(z, node);
    if (strcmp(type, "Prepend") == 0) return load_prepend(z, node);
    if (strcmp(type, "Replace") == 0) return load_replace(z, node);
    if (strcmp(type, "BertNormalizer") == 0) return load_bert_steps(z, node);
    if (strcmp(type, "Precompiled") == 0) return load_precompiled(z, node);
    for (size_t i = 0; i < sizeof PLAIN / sizeof PLAIN[0]; i++) {
        if (strcmp(PLAIN[i].type, type) != 0) continue;
        TRY(json_known_fields(node, WHERE, KNOWN));
        return normalizer_load_step_add(z, PLAIN[i].step);
    }
    return status_make(
        STATUS_INPUT,
        "%s: '%.40s' is not supported; expected NFC, NFD, NFKC, NFKD, Lowercase, "
        "Strip, StripAccents, Replace, Prepend, BertNormalizer, Precompiled or Sequence",
        WHERE, type);
}

struct status normalizer_init(struct normalizer *z, const struct js_node *node, const char *what)
{
    memset(z, 0, sizeof *z);
    if (js_type(node) == JS_NULL) return status_ok();
    struct status st = normalizer_load_step(z, node, 0);
    if (status_failed(&st)) normalizer_fini(z);
    return status_wrap(st, "%s", what);
}
