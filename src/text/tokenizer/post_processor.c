/* Reads tokenizer.json's "post_processor": the ids to put before and after a text, and around two
 * joined texts. */
#include "text/tokenizer/tokenizer_private.h"

#include "base/mem.h"
#include "text/grammar/json_read.h"

#include <string.h>

enum { SEQUENCE_DEPTH_MAX = 8, AROUND_MAX = 64 };

static const char WHERE[] = "post_processor";

static struct status post_processor_push(struct token_list *l, int32_t id)
{
    if (l->n == AROUND_MAX) {
        return status_make(STATUS_INPUT, "%s: more than %d ids around a text", WHERE,
                           (int)AROUND_MAX);
    }
    TRY(token_list_reserve(l, 1));
    l->ids[l->n++] = id;
    return status_ok();
}

/* Appends the ids that a template's {"SpecialToken": {"id": name}} stands for. */
static struct status special_ids(const struct tokenizer *t, const struct js_node *template,
                                 const struct js_node *piece, struct token_list *out)
{
    size_t n;
    const char *name = js_string(js_get(piece, "id"), &n);
    if (name == NULL || strlen(name) != n) {
        return status_make(STATUS_INPUT, "%s: a SpecialToken without an id", WHERE);
    }
    const struct js_node *ids = js_get(js_get(js_get(template, "special_tokens"), name), "ids");
    if (js_type(ids) != JS_ARRAY) {
        return status_make(STATUS_INPUT, "%s: '%.40s' is not among its special_tokens", WHERE,
                           name);
    }
    for (size_t i = 0; i < js_count(ids); i++) {
        int64_t id;
        if (!js_int(js_at(ids, i), &id) || id < 0 || (size_t)id >= t->n_tokens) {
            return status_make(STATUS_INPUT, "%s: '%.40s' has an id that is no token", WHERE, name);
        }
        TRY(post_processor_push(out, (int32_t)id));
    }
    return status_ok();
}

/* Puts `prefix` before t->prefix, and `suffix` after t->suffix. */
static struct status wrap(struct tokenizer *t, const struct token_list *prefix,
                          const struct token_list *suffix)
{
    struct token_list both = {0};
    struct status st = status_ok();
    for (size_t i = 0; i < prefix->n; i++)
        TRY_GOTO(st, post_processor_push(&both, prefix->ids[i]), fail);
    for (size_t i = 0; i < t->prefix.n; i++)
        TRY_GOTO(st, post_processor_push(&both, t->prefix.ids[i]), fail);
    for (size_t i = 0; i < suffix->n; i++)
        TRY_GOTO(st, post_processor_push(&t->suffix, suffix->ids[i]), fail);
    token_list_fini(&t->prefix);
    t->prefix = both;
    return status_ok();
fail:
    token_list_fini(&both);
    return st;
}

static struct status read_single(struct tokenizer *t, const struct js_node *node,
                                 struct token_list *prefix, struct token_list *suffix)
{
    const struct js_node *single = js_get(node, "single");
    bool seen = false;
    for (size_t i = 0; i < js_count(single); i++) {
        const struct js_node *special = js_get(js_at(single, i), "SpecialToken");
        const struct js_node *sequence = js_get(js_at(single, i), "Sequence");
        if (special != NULL) {
            TRY(special_ids(t, node, special, seen ? suffix : prefix));
            continue;
        }
        const char *name = js_string(js_get(sequence, "id"), NULL);
        if (name == NULL || strcmp(name, "A") != 0 || seen) {
            return status_make(STATUS_INPUT, "%s: a template that does not hold sequence A once",
                               WHERE);
        }
        seen = true;
    }
    if (!seen) return status_make(STATUS_INPUT, "%s: a template without sequence A", WHERE);
    return status_ok();
}

/* Reads into t->joint how a template joins two texts. The joint is supported (is_known) if the
 * template has sequence A and then B, once each; if either no piece has type 1, or B and all pieces
 * after it have and no others; and if no earlier post-processor puts tokens around two texts. */
static struct status read_joint(struct tokenizer *t, const struct js_node *node)
{
    const struct js_node *pair = js_get(node, "pair");
    struct token_joint *j = &t->joint;
    struct token_list *const lists[] = {&j->before, &j->between, &j->behind};
    size_t n_texts = 0, n_second = 0, n_typed = 0;
    bool is_usual = j->before.n + j->between.n + j->behind.n == 0;
    for (size_t i = 0; is_usual && i < js_count(pair); i++) {
        static const char *const names[] = {"A", "B"};
        const struct js_node *special = js_get(js_at(pair, i), "SpecialToken");
        const struct js_node *sequence = js_get(js_at(pair, i), "Sequence");
        const struct js_node *piece = special != NULL ? special : sequence;
        const char *name = js_string(js_get(piece, "id"), NULL);
        int64_t type = 0;
        (void)js_int(js_get(piece, "type_id"), &type);
        if (special != NULL) TRY(special_ids(t, node, special, lists[n_texts]));
        if (special == NULL)
            is_usual = n_texts < 2 && name != NULL && strcmp(name, names[n_texts++]) == 0;
        n_second += n_texts == 2;
        n_typed += type == 1;
        is_usual = is_usual && (type == 0 || (type == 1 && n_texts == 2));
    }
    j->is_known = is_usual && n_texts == 2 && (n_typed == 0 || n_typed == n_second);
    j->has_types = n_typed > 0;
    return status_ok();
}

static struct status load_template(struct tokenizer *t, const struct js_node *node)
{
    static const char *const KNOWN[] = {"type", "single", "pair", "special_tokens", NULL};
    struct token_list prefix = {0}, suffix = {0};
    TRY(json_known_fields(node, WHERE, KNOWN));
    struct status st = read_single(t, node, &prefix, &suffix);
    if (!status_failed(&st)) st = read_joint(t, node);
    if (!status_failed(&st)) st = wrap(t, &prefix, &suffix);
    token_list_fini(&prefix);
    token_list_fini(&suffix);
    return st;
}

/* Appends the id of a field such as ["</s>", 2] of BertProcessing and RobertaProcessing. */
static struct status post_processor_push_pair(const struct tokenizer *t, const struct js_node *node,
                                              const char *key, struct token_list *out)
{
    const struct js_node *pair = js_get(node, key);
    int64_t id;
    if (js_count(pair) != 2 || js_type(js_at(pair, 0)) != JS_STRING ||
        !js_int(js_at(pair, 1), &id) || id < 0 || (size_t)id >= t->n_tokens) {
        return status_make(STATUS_INPUT, "%s: '%s' is not [token, id]", WHERE, key);
    }
    return post_processor_push(out, (int32_t)id);
}

/* BERT puts one token between two texts; the second text and the token after it have type 1.
 * RoBERTa puts two tokens between the texts, and all ids have type 0. */
static struct status join_bert(struct tokenizer *t, const struct token_list *prefix,
                               const struct token_list *suffix, bool is_roberta)
{
    struct token_joint *j = &t->joint;
    j->is_known = j->before.n + j->between.n + j->behind.n == 0;
    j->has_types = !is_roberta;
    TRY(post_processor_push(&j->before, prefix->ids[0]));
    for (int i = 0; i <= is_roberta; i++) TRY(post_processor_push(&j->between, suffix->ids[0]));
    return post_processor_push(&j->behind, suffix->ids[0]);
}

static struct status load_bert(struct tokenizer *t, const struct js_node *node, bool is_roberta)
{
    static const char *const KNOWN[] = {"type", "sep", "cls", "trim_offsets", "add_prefix_space",
                                        NULL};
    struct token_list prefix = {0}, suffix = {0};
    TRY(json_known_fields(node, WHERE, KNOWN));
    struct status st = post_processor_push_pair(t, node, "cls", &prefix);
    if (!status_failed(&st)) st = post_processor_push_pair(t, node, "sep", &suffix);
    if (!status_failed(&st)) st = join_bert(t, &prefix, &suffix, is_roberta);
    if (!status_failed(&st)) st = wrap(t, &prefix, &suffix);
    token_list_fini(&prefix);
    token_list_fini(&suffix);
    return st;
}

static struct status load_processor(struct tokenizer *t, const struct js_node *node, int depth)
{
    static const char *const KNOWN_BYTE_LEVEL[] = {"type", "add_prefix_space", "trim_offsets",
                                                   "use_regex", NULL};
    static const char *const KNOWN_SEQUENCE[] = {"type", "processors", NULL};
    const char *type;
    TRY(json_type_field(node, WHERE, &type));
    if (strcmp(type, "TemplateProcessing") == 0) return load_template(t, node);
    if (strcmp(type, "BertProcessing") == 0) return load_bert(t, node, false);
    if (strcmp(type, "RobertaProcessing") == 0) return load_bert(t, node, true);
    if (strcmp(type, "ByteLevel") == 0) return json_known_fields(node, WHERE, KNOWN_BYTE_LEVEL);
    const struct js_node *list = js_get(node, "processors");
    if (strcmp(type, "Sequence") != 0 || js_type(list) != JS_ARRAY || depth > SEQUENCE_DEPTH_MAX) {
        return status_make(STATUS_INPUT,
                           "%s: '%.40s' is not supported; expected TemplateProcessing, ByteLevel, "
                           "BertProcessing, RobertaProcessing or a Sequence of them",
                           WHERE, type);
    }
    TRY(json_known_fields(node, WHERE, KNOWN_SEQUENCE));
    for (size_t i = 0; i < js_count(list); i++) TRY(load_processor(t, js_at(list, i), depth + 1));
    return status_ok();
}

struct status tokenizer_load_post_processor(struct tokenizer *t, const struct js_node *node,
                                            const char *what)
{
    if (js_type(node) == JS_NULL) return status_ok();
    return status_wrap(load_processor(t, node, 0), "%s", what);
}
