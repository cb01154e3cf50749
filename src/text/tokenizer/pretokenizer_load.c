/* Reads tokenizer.json's "pre_tokenizer" into steps. */
#include "text/tokenizer/pretokenizer.h"

#include "text/grammar/json_read.h"
#include "text/unicode/unicode.h"

#include <string.h>

enum { SEQUENCE_DEPTH_MAX = 8 };

/* GPT-2's pattern, by which "ByteLevel" splits the text unless its "use_regex" is false. */
static const char GPT2_PATTERN[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* In Hugging Face's library, "Digits" uses Rust's char::is_numeric, whose Unicode is one version
 * newer than that of \p{N} in patterns. The two ranges are the numbers that the newer version
 * adds. */
static const char DIGITS_PATTERN[] = "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]";

static struct status pretokenizer_load_step_add(struct pretokenizer *p, struct pretoken_step step,
                                                const char *where)
{
    const bool rewrites = step.kind == PRETOKEN_BLANK || step.kind == PRETOKEN_METASPACE;
    if (p->n_steps == PRETOKEN_STEPS_MAX || (rewrites && p->rewrites)) {
        pattern_destroy(&step.pattern);
        return status_make(STATUS_INPUT,
                           "%s: more than %d pre-tokenizer steps, or two that put blanks", where,
                           (int)PRETOKEN_STEPS_MAX);
    }
    if (rewrites) p->rewrites = true;
    p->steps[p->n_steps++] = step;
    return status_ok();
}

static struct status load_byte_level(struct pretokenizer *p, const struct js_node *node,
                                     const char *where)
{
    static const char *const KNOWN[] = {"type", "add_prefix_space", "trim_offsets", "use_regex",
                                        NULL};
    bool blank, use_regex;
    TRY(json_known_fields(node, where, KNOWN));
    TRY(json_bool_field(node, "add_prefix_space", where, true, &blank));
    TRY(json_bool_field(node, "use_regex", where, true, &use_regex));
    if (blank)
        TRY(pretokenizer_load_step_add(p, (struct pretoken_step){.kind = PRETOKEN_BLANK}, where));
    p->byte_level = true;
    if (!use_regex) return status_ok();
    struct pretoken_step step = {.behavior = SPLIT_ISOLATED};
    TRY(pattern_create(GPT2_PATTERN, sizeof GPT2_PATTERN - 1, false, where, &step.pattern));
    return pretokenizer_load_step_add(p, step, where);
}

static struct status load_digits(struct pretokenizer *p, const struct js_node *node,
                                 const char *where)
{
    static const char *const KNOWN[] = {"type", "individual_digits", NULL};
    bool individual;
    TRY(json_known_fields(node, where, KNOWN));
    TRY(json_bool_field(node, "individual_digits", where, false, &individual));
    struct pretoken_step step = {.behavior = individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS};
    TRY(pattern_create(DIGITS_PATTERN, sizeof DIGITS_PATTERN - 1, false, where, &step.pattern));
    return pretokenizer_load_step_add(p, step, where);
}

static struct status parse_behavior(const struct js_node *node, const char *where,
                                    enum split_behavior *out)
{
    static const char *const NAMES[SPLIT_COUNT] = {
        [SPLIT_REMOVED] = "Removed",
        [SPLIT_ISOLATED] = "Isolated",
        [SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
        [SPLIT_CONTIGUOUS] = "Contiguous",
    };
    const char *name;
    size_t n;
    TRY(json_string_field(node, "behavior", where, &name, &n));
    for (int i = 0; i < SPLIT_COUNT; i++) {
        if (strcmp(NAMES[i], name) != 0) continue;
        *out = (enum split_behavior)i;
        return status_ok();
    }
    return status_make(STATUS_INPUT, "%s: the behavior '%.40s' is not known", where, name);
}

static struct status load_split(struct pretokenizer *p, const struct js_node *node,
                                const char *where)
{
    static const char *const KNOWN[] = {"type", "pattern", "behavior", "invert", NULL};
    static const char *const KINDS[] = {"Regex", "String", NULL};
    TRY(json_known_fields(node, where, KNOWN));
    const struct js_node *pattern = js_get(node, "pattern");
    TRY(json_known_fields(pattern, where, KINDS));
    if (js_count(pattern) != 1) {
        return status_make(STATUS_INPUT, "%s: 'pattern' must hold either Regex or String", where);
    }
    struct pretoken_step step = {0};
    TRY(json_bool_field(node, "invert", where, false, &step.invert));
    TRY(parse_behavior(node, where, &step.behavior));
    const bool literal = js_get(pattern, "String") != NULL;
    const char *text;
    size_t n;
    TRY(json_string_field(pattern, literal ? "String" : "Regex", where, &text, &n));
    TRY(pattern_create(text, n, literal, where, &step.pattern));
    return pretokenizer_load_step_add(p, step, where);
}

static struct status pretokenizer_load_metaspace(struct pretokenizer *p, const struct js_node *node,
                                                 const char *where)
{
    struct pretoken_step step = {.kind = PRETOKEN_METASPACE};
    TRY(json_metaspace_fields(node, where, &step.metaspace));
    if (step.metaspace.prepend == JSON_PREPEND_FIRST && p->n_steps > 0 && p->normalized) {
        return status_make(STATUS_INPUT,
                           "%s: Metaspace with 'first' behind others is not supported beside a "
                           "normalizer",
                           where);
    }
    TRY(pretokenizer_load_step_add(p, step, where));
    if (!step.metaspace.split) return status_ok();
    struct pretoken_step split = {.behavior = SPLIT_MERGED_WITH_NEXT};
    TRY(pattern_create(step.metaspace.blank, step.metaspace.n_blank, true, where, &split.pattern));
    return pretokenizer_load_step_add(p, split, where);
}

static struct status load_whitespace_split(struct pretokenizer *p, const struct js_node *node,
                                           const char *where)
{
    static const char *const KNOWN[] = {"type", NULL};
    struct pretoken_step step = {.behavior = SPLIT_REMOVED};
    TRY(json_known_fields(node, where, KNOWN));
    TRY(pattern_create("\\s", 2, false, where, &step.pattern));
    return pretokenizer_load_step_add(p, step, where);
}

static struct status load_bert_split(struct pretokenizer *p, const struct js_node *node,
                                     const char *where)
{
    static const char *const KNOWN[] = {"type", NULL};
    TRY(json_known_fields(node, where, KNOWN));
    return pretokenizer_load_step_add(p, (struct pretoken_step){.kind = PRETOKEN_BERT}, where);
}

static struct status pretokenizer_load_step(struct pretokenizer *p, const struct js_node *node,
                                            const char *where, int depth);

static struct status pretokenizer_load_sequence(struct pretokenizer *p, const struct js_node *node,
                                                const char *where, int depth)
{
    static const char *const KNOWN[] = {"type", "pretokenizers", NULL};
    TRY(json_known_fields(node, where, KNOWN));
    const struct js_node *list = js_get(node, "pretokenizers");
    if (js_type(list) != JS_ARRAY || depth >= SEQUENCE_DEPTH_MAX) {
        return status_make(STATUS_INPUT, "%s: a Sequence without a list, or nested too deeply",
                           where);
    }
    for (size_t i = 0; i < js_count(list); i++) {
        TRY(pretokenizer_load_step(p, js_at(list, i), where, depth + 1));
    }
    return status_ok();
}

static struct status pretokenizer_load_step(struct pretokenizer *p, const struct js_node *node,
                                            const char *where, int depth)
{
    const char *type;
    TRY(json_type_field(node, where, &type));
    if (strcmp(type, "Sequence") == 0) return pretokenizer_load_sequence(p, node, where, depth);
    if (p->byte_level) {
        return status_make(STATUS_INPUT, "%s: '%.40s' behind ByteLevel is not supported", where,
                           type);
    }
    if (strcmp(type, "ByteLevel") == 0) return load_byte_level(p, node, where);
    if (strcmp(type, "Digits") == 0) return load_digits(p, node, where);
    if (strcmp(type, "Split") == 0) return load_split(p, node, where);
    if (strcmp(type, "Metaspace") == 0) return pretokenizer_load_metaspace(p, node, where);
    if (strcmp(type, "BertPreTokenizer") == 0) return load_bert_split(p, node, where);
    if (strcmp(type, "WhitespaceSplit") == 0) return load_whitespace_split(p, node, where);
    return status_make(STATUS_INPUT,
                       "%s: '%.40s' is not supported; expected ByteLevel, Metaspace, Split, "
                       "Digits, WhitespaceSplit, BertPreTokenizer or Sequence",
                       where, type);
}

static bool has_metaspace(const struct pretokenizer *p)
{
    for (size_t i = 0; i < p->n_steps; i++) {
        if (p->steps[i].kind == PRETOKEN_METASPACE) return true;
    }
    return false;
}

struct status pretokenizer_init(struct pretokenizer *p, const struct js_node *node, bool normalized,
                                const char *what)
{
    memset(p, 0, sizeof *p);
    p->normalized = normalized;
    strbuf_init(&p->text);
    if (js_type(node) == JS_NULL) return status_ok();
    struct status st = pretokenizer_load_step(p, node, "pre_tokenizer", 0);
    if (!status_failed(&st) && p->byte_level && has_metaspace(p)) {
        st = status_make(STATUS_INPUT, "pre_tokenizer: Metaspace with ByteLevel is not supported");
    }
    if (status_failed(&st)) pretokenizer_fini(p);
    return status_wrap(st, "%s", what);
}
