/* Runs a chat template over conversations. Input: one JSON object per line with messages and
 * optionally tools, documents, extra, prompt, bos_token, eos_token. Prints {"text"} or {"error"}
 * per line, or with --user the text in which users' parts are enclosed in [[ and ]]. Called by
 * make_chat_goldens.py --try, and by hand. */
#include "base/strbuf.h"
#include "text/chat/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_spans(const struct chat_text *text)
{
    for (size_t i = 0; i < text->n_spans; i++) {
        const struct text_span *s = &text->spans[i];
        printf(s->is_user ? "[[%.*s]]" : "%.*s", (int)(s->end - s->begin), text->bytes + s->begin);
    }
    puts("");
}

static struct status run_line(const char *source, size_t n_source, const char *line, size_t n,
                              bool user)
{
    struct js_doc *doc;
    struct chat *chat = NULL;
    struct chat_text text = {0};
    bool prompt = true;
    struct status st;
    TRY(js_parse(line, n, "line", &doc));
    const struct js_node *root = js_root(doc);
    js_bool(js_get(root, "prompt"), &prompt);
    const struct chat_options options = {.no_generation_prompt = !prompt,
                                         .tools = js_get(root, "tools"),
                                         .documents = js_get(root, "documents"),
                                         .extra = js_get(root, "extra")};
    TRY_GOTO(st, chat_create(source, n_source, root, "template", &chat), done);
    TRY_GOTO(st, chat_render(chat, js_get(root, "messages"), &options, &text), done);
    if (user) {
        print_spans(&text);
    } else {
        struct strbuf out;
        strbuf_init(&out);
        strbuf_json_string(&out, text.bytes, text.n);
        printf("{\"text\": %s}\n", out.data);
        strbuf_fini(&out);
    }
done:
    chat_text_fini(&text);
    chat_destroy(&chat);
    js_destroy(&doc);
    return st;
}

int main(int argc, char **argv)
{
    const bool user = argc == 3 && strcmp(argv[1], "--user") == 0;
    if (argc != 2 && !user) {
        fprintf(stderr, "usage: tool_chat [--user] TEMPLATE.jinja < CONVERSATIONS.jsonl\n");
        return 2;
    }
    struct strbuf source;
    strbuf_init(&source);
    FILE *f = fopen(argv[argc - 1], "rb");
    if (f == NULL) {
        fprintf(stderr, "%s cannot be opened\n", argv[argc - 1]);
        return 3;
    }
    for (int c = getc(f); c != EOF; c = getc(f)) {
        const char byte = (char)c;
        strbuf_add(&source, &byte, 1);
    }
    fclose(f);
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t n; (n = getline(&line, &capacity, stdin)) > 0;) {
        const struct status st =
            run_line(source.n > 0 ? source.data : "", source.n, line, (size_t)n, user);
        if (!status_failed(&st)) continue;
        struct strbuf out;
        strbuf_init(&out);
        strbuf_json_string(&out, st.text, strlen(st.text));
        printf("{\"error\": %s}\n", out.data);
        strbuf_fini(&out);
    }
    free(line);
    strbuf_fini(&source);
    return 0;
}
