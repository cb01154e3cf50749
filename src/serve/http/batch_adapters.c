/* Compares settings line by line, and finds the adapters that they name. */
#include "serve/http/batch_adapters.h"

#include "base/mem.h"

#include <string.h>

static const char FLAG[] = "--adapter ";

static bool is_adapter_line(const char *line)
{
    return strncmp(line, FLAG, sizeof FLAG - 1) == 0;
}

/* Returns the bytes of the line at `text`, with its newline. */
static size_t line_bytes(const char *text)
{
    const char *end = strchr(text, '\n');
    return end != NULL ? (size_t)(end - text) + 1 : strlen(text);
}

bool batch_adapters_agree(const char *was, const char *is)
{
    while (*is != '\0') {
        const size_t n = line_bytes(is);
        if (n == line_bytes(was) && memcmp(was, is, n) == 0)
            was += n;
        else if (!is_adapter_line(is))
            return false;
        is += n;
    }
    return *was == '\0';
}

static bool has_adapter(const char *settings, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = settings; *at != '\0'; at += line_bytes(at)) {
        if (!is_adapter_line(at)) continue;
        const char *other = at + sizeof FLAG - 1;
        if (strncmp(other, name, n) == 0 && other[n] == '=') return true;
    }
    return false;
}

struct status batch_adapters_hide(const struct request_rules *rules, const char *settings,
                                  struct request_adapter **out)
{
    TRY(mem_alloc(out, rules->n_adapters + 1, sizeof **out, "adapters of a batch"));
    for (size_t i = 0; i < rules->n_adapters; i++) {
        (*out)[i] = rules->adapters[i];
        if (!has_adapter(settings, rules->adapters[i].name)) (*out)[i].name = NULL;
    }
    return status_ok();
}
