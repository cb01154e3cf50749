/* Reads the tools of an OpenAI chat: the names that its answers may call. */
#include "serve/request/request_parse.h"

#include "base/mem.h"

#include <string.h>

/* Appends a name and a NUL to the list. */
static struct status add_name(struct request_bytes *all, const char *name, size_t n)
{
    TRY(mem_grow(&all->bytes, all->n, all->n + n + 1, 1, "tools"));
    memcpy(all->bytes + all->n, name, n + 1);
    all->n += n + 1;
    return status_ok();
}

static struct status read_tool(struct request_parser *p, const struct js_node *tool, size_t i)
{
    const char *type = js_string(js_get(tool, "type"), NULL);
    size_t n = 0;
    const char *name = js_string(js_get(js_get(tool, "function"), "name"), &n);
    if (type == NULL || strcmp(type, "function") != 0 || name == NULL || n == 0 ||
        strlen(name) != n) {
        return request_bad(p, "invalid_request",
                           "tools[%zu]: expected {\"type\": \"function\", \"function\": {\"name\": "
                           "..}}",
                           i);
    }
    return add_name(&p->ask->tools, name, n);
}

struct status request_read_tools(struct request_parser *p, const struct js_node *fields)
{
    const struct js_node *tools = js_get(fields, "tools");
    const char *choice = js_string(js_get(fields, "tool_choice"), NULL);
    if (p->ask->format == REQUEST_PLAIN || js_type(tools) == JS_NULL || js_count(tools) == 0)
        return status_ok();
    if (p->ask->format != REQUEST_OPENAI_CHAT)
        return request_bad(p, "unsupported", "tools: only /v1/chat/completions takes them");
    if (js_type(tools) != JS_ARRAY)
        return request_bad(p, "invalid_request", "tools: expected a list, found %s",
                           request_type_name(tools));
    if (p->rules->chat != NULL) p->ask->tool_form = chat_tool_form(p->rules->chat);
    for (size_t i = 0; i < js_count(tools); i++) TRY(read_tool(p, js_at(tools, i), i));
    if (choice != NULL && strcmp(choice, "none") == 0) {
        mem_free(&p->ask->tools.bytes); /* the model sees the tools, but its answers stay text */
        p->ask->tools.n = 0;
    }
    return status_ok();
}
