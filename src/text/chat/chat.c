/* Sets the variables of chat templates, runs them and finds the spans of their output. */
#include "text/chat/chat.h"

#include "base/mem.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* The special tokens for which a template may have a variable. */
static const char *const TOKENS[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                     "pad_token", "cls_token", "mask_token"};

enum { N_TOKENS = sizeof TOKENS / sizeof TOKENS[0], N_EXTRA_MAX = 64 };

struct chat {
    struct jinja *template; /* owned */
    char *tokens[N_TOKENS]; /* owned; NULL: not set */
    size_t n_tokens[N_TOKENS];
    struct jinja_date date; /* CHAT_DATE_DEFAULT, for callers without a date */
    enum chat_tool_form tool_form;
    bool has_thoughts;
};

struct status chat_set_token(struct chat *c, const char *name, const char *text, size_t n)
{
    for (size_t i = 0; i < N_TOKENS; i++) {
        if (strcmp(TOKENS[i], name) != 0) continue;
        char *copy;
        TRY(mem_strndup(&copy, text, n));
        mem_free(&c->tokens[i]);
        c->tokens[i] = copy;
        c->n_tokens[i] = n;
        return status_ok();
    }
    return status_make(STATUS_INPUT, "chat template: '%.60s' is no special token's name", name);
}

static struct status take_tokens(struct chat *c, const struct js_node *config)
{
    for (size_t i = 0; i < N_TOKENS; i++) {
        const struct js_node *node = js_get(config, TOKENS[i]);
        if (js_type(node) == JS_OBJECT) node = js_get(node, "content");
        size_t n;
        const char *text = js_string(node, &n);
        if (text != NULL) TRY(chat_set_token(c, TOKENS[i], text, n));
    }
    return status_ok();
}

struct status chat_create(const char *source, size_t n, const struct js_node *tokens,
                          const char *what, struct chat **out)
{
    *out = NULL;
    struct chat *c = NULL;
    struct status st;
    TRY(mem_alloc(&c, 1, sizeof *c, "chat template"));
    TRY_GOTO(st, jinja_create(source, n, what, &c->template), failed);
    const bool is_tagged = memmem(source, n, "<tool_call>", 11) != NULL;
    c->tool_form = is_tagged ? CHAT_TOOLS_TAGGED : CHAT_TOOLS_JSON;
    c->has_thoughts = memmem(source, n, CHAT_CLOSE_THOUGHT, sizeof CHAT_CLOSE_THOUGHT - 1) != NULL;
    TRY_GOTO(st, take_tokens(c, tokens), failed);
    TRY_GOTO(st, chat_date_parse(CHAT_DATE_DEFAULT, &c->date), failed);
    *out = c;
    return st;
failed:
    chat_destroy(&c);
    return st;
}

enum chat_tool_form chat_tool_form(const struct chat *c)
{
    return c->tool_form;
}

bool chat_has_thoughts(const struct chat *c)
{
    return c->has_thoughts;
}

void chat_destroy(struct chat **c)
{
    if (*c == NULL) return;
    jinja_destroy(&(*c)->template);
    for (size_t i = 0; i < N_TOKENS; i++) mem_free(&(*c)->tokens[i]);
    mem_free(c);
}

/* True when the text has this shape; a 0 in the shape stands for any digit. */
static bool is_shaped(const char *text, const char *shape)
{
    for (; *shape != '\0'; text++, shape++) {
        if (*shape == '0' ? *text < '0' || *text > '9' : *text != *shape) return false;
    }
    return *text == '\0';
}

static bool is_day(const struct jinja_date *d)
{
    static const int DAYS[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (d->year < 1 || d->month < 1 || d->month > 12) return false;
    const bool leap = (d->year % 4 == 0 && d->year % 100 != 0) || d->year % 400 == 0;
    return d->day >= 1 && d->day <= DAYS[d->month - 1] + (leap && d->month == 2);
}

struct status chat_date_parse(const char *text, struct jinja_date *out)
{
    struct jinja_date d = {0};
    const bool shaped = is_shaped(text, "0000-00-00") || is_shaped(text, "0000-00-00T00:00:00");
    if (shaped) {
        sscanf(text, "%d-%d-%dT%d:%d:%d", &d.year, &d.month, &d.day, &d.hour, &d.minute, &d.second);
    }
    if (!shaped || !is_day(&d) || d.hour > 23 || d.minute > 59 || d.second > 59) {
        return status_make(STATUS_USAGE,
                           "'%.40s' is no date; expected YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS", text);
    }
    *out = d;
    return status_ok();
}

/* Returns an error unless the node is an array of objects (or null, if `optional`). */
static struct status check_objects(const struct js_node *node, const char *name, bool optional)
{
    if (optional && js_type(node) == JS_NULL) return status_ok();
    if (js_type(node) != JS_ARRAY) {
        return status_make(STATUS_REQUEST, "%s: expected a list", name);
    }
    for (size_t i = 0; i < js_count(node); i++) {
        if (js_type(js_at(node, i)) != JS_OBJECT) {
            return status_make(STATUS_REQUEST, "%s[%zu]: expected an object", name, i);
        }
    }
    return status_ok();
}

struct vars {
    struct jinja_var v[5 + N_TOKENS + N_EXTRA_MAX];
    size_t n;
};

static void add_json(struct vars *vars, const char *name, const struct js_node *node)
{
    vars->v[vars->n++] = (struct jinja_var){
        .name = name,
        .kind = js_type(node) == JS_NULL ? JINJA_VAR_NONE : JINJA_VAR_JSON,
        .node = node,
    };
}

/* Adds the user's variables. All other variables are added later, so they win: of variables with
 * the same name the last one counts. */
static struct status add_extra(struct vars *vars, const struct js_node *extra)
{
    const void *it = NULL;
    const char *name;
    const struct js_node *value;
    if (js_type(extra) == JS_NULL) return status_ok();
    if (js_type(extra) != JS_OBJECT || js_count(extra) > N_EXTRA_MAX) {
        return status_make(STATUS_REQUEST,
                           "chat_template_kwargs: expected an object of at most %d members",
                           (int)N_EXTRA_MAX);
    }
    while (js_next(extra, &it, &name, &value)) add_json(vars, name, value);
    return status_ok();
}

static struct status spans_of(const struct jinja_output *made, struct chat_text *out)
{
    size_t n = 0;
    for (size_t i = 0; i < made->n; i++) n += i == 0 || made->user[i] != made->user[i - 1];
    TRY(mem_alloc(&out->spans, n, sizeof out->spans[0], "chat text"));
    for (size_t i = 0; i < made->n; i++) {
        if (i == 0 || made->user[i] != made->user[i - 1]) {
            out->spans[out->n_spans++] = (struct text_span){.begin = i, .is_user = made->user[i]};
        }
        out->spans[out->n_spans - 1].end = i + 1;
    }
    assert(out->n_spans == n);
    return status_ok();
}

/* Runs the template; of variables with the same name the last one counts. */
static struct status render(const struct chat *c, const struct jinja_var *vars, size_t n_vars,
                            const struct jinja_date *date, const struct jinja_limits *limits,
                            struct chat_text *out)
{
    struct jinja_output made = {0};
    const struct jinja_date *now = date->year > 0 ? date : &c->date;
    struct status st = jinja_render(c->template, vars, n_vars, now, limits, &made);
    out->n_steps = made.n_steps;
    if (!status_failed(&st)) st = spans_of(&made, out);
    if (!status_failed(&st)) {
        out->bytes = made.bytes;
        out->n = made.n;
        made.bytes = NULL;
    }
    jinja_output_fini(&made);
    return st;
}

struct status chat_render(const struct chat *c, const struct js_node *messages,
                          const struct chat_options *options, struct chat_text *out)
{
    *out = (struct chat_text){0};
    struct vars vars = {.n = 0};
    TRY(check_objects(messages, "messages", false));
    TRY(check_objects(options->tools, "tools", true));
    TRY(check_objects(options->documents, "documents", true));
    TRY(add_extra(&vars, options->extra));
    for (size_t i = 0; i < N_TOKENS; i++) {
        if (c->tokens[i] == NULL) continue;
        vars.v[vars.n++] = (struct jinja_var){.name = TOKENS[i],
                                              .kind = JINJA_VAR_TEXT,
                                              .text = c->tokens[i],
                                              .n_text = c->n_tokens[i]};
    }
    add_json(&vars, "messages", messages);
    add_json(&vars, "tools", options->tools);
    add_json(&vars, "documents", options->documents);
    vars.v[vars.n++] = (struct jinja_var){.name = "add_generation_prompt",
                                          .kind = JINJA_VAR_BOOL,
                                          .flag = !options->no_generation_prompt};
    return render(c, vars.v, vars.n, &options->date, &options->limits, out);
}

struct status chat_render_members(const struct chat *c, const struct js_node *object,
                                  const struct jinja_date *date, struct chat_text *out)
{
    static const struct jinja_limits limits = {.is_strict = true};
    struct jinja_var *vars = NULL;
    size_t n = 0;
    const void *it = NULL;
    const char *name;
    const struct js_node *value;
    *out = (struct chat_text){0};
    TRY(mem_alloc(&vars, js_count(object) + 1, sizeof *vars, "prompt template"));
    vars[n++] = (struct jinja_var){.name = "line", .kind = JINJA_VAR_JSON, .node = object};
    while (js_next(object, &it, &name, &value)) {
        if (js_type(value) == JS_NULL) continue;
        vars[n++] = (struct jinja_var){.name = name, .kind = JINJA_VAR_JSON, .node = value};
    }
    const struct status st = render(c, vars, n, date, &limits, out);
    mem_free(&vars);
    return st;
}

/* Runs the template over messages in JSON. *ok: it ran without a failure. Only STATUS_MEMORY is
 * returned as an error. */
static struct status render_text(const struct chat *c, const char *json, struct chat_text *out,
                                 bool *ok)
{
    static const struct chat_options options = {.no_generation_prompt = true};
    struct js_doc *doc = NULL;
    TRY(js_parse(json, strlen(json), "messages", &doc));
    const struct status st = chat_render(c, js_root(doc), &options, out);
    js_destroy(&doc);
    *ok = !status_failed(&st);
    return st.code == STATUS_MEMORY ? st : status_ok();
}

struct status chat_takes_parts(const struct chat *c, bool *takes)
{
    struct chat_text string = {0}, part = {0};
    bool has_string = false, has_part = false;
    *takes = false;
    struct status st =
        render_text(c, "[{\"role\":\"user\",\"content\":\"some text\"}]", &string, &has_string);
    if (!status_failed(&st) && has_string) {
        st = render_text(c,
                         "[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
                         "\"text\":\"some text\"}]}]",
                         &part, &has_part);
        *takes = has_part && part.n == string.n && memcmp(part.bytes, string.bytes, part.n) == 0;
    }
    chat_text_fini(&part);
    chat_text_fini(&string);
    return st;
}

void chat_text_fini(struct chat_text *t)
{
    mem_free(&t->bytes);
    mem_free(&t->spans);
    *t = (struct chat_text){0};
}

bool chat_text_begins_thoughts(const struct chat_text *t)
{
    static const char open[] = CHAT_OPEN_THOUGHT, close[] = CHAT_CLOSE_THOUGHT;
    bool is_open = false;
    if (t->n_spans == 0 || t->spans[t->n_spans - 1].is_user) return false;
    for (size_t i = t->spans[t->n_spans - 1].begin; i < t->n; i++) {
        const size_t left = t->n - i;
        if (left >= sizeof open - 1 && memcmp(t->bytes + i, open, sizeof open - 1) == 0)
            is_open = true;
        if (left >= sizeof close - 1 && memcmp(t->bytes + i, close, sizeof close - 1) == 0)
            is_open = false;
    }
    return is_open;
}

struct status chat_encode(struct tokenizer *t, const struct chat_text *text, struct token_list *out)
{
    return tokenizer_encode_spans(t, text->bytes, text->n, text->spans, text->n_spans, 0, out);
}
