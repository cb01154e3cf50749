/* Routes, errors and keys. */
#include "serve/http/http_api.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/request/request.h"

#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static const struct route {
    const char *path; /* "*" stands for an item */
    const char *method, *methods;
    bool is_open;
    bool has_dots; /* an item may have dots; those of files and batches become file names */
} routes[HTTP_ENDPOINT_COUNT] = {
    [HTTP_COMPLETIONS] = {"/v1/completions", "POST", "POST", false},
    [HTTP_CHAT] = {"/v1/chat/completions", "POST", "POST", false},
    [HTTP_EMBEDDINGS] = {"/v1/embeddings", "POST", "POST", false},
    [HTTP_RERANK] = {"/v1/rerank", "POST", "POST", false},
    [HTTP_MODELS] = {"/v1/models", "GET", "GET", false},
    [HTTP_MODEL_GET] = {"/v1/models/*", "GET", "GET", false, .has_dots = true},
    [HTTP_HEALTH] = {"/health", "GET", "GET", true},
    [HTTP_METRICS] = {"/metrics", "GET", "GET", false},
    [HTTP_TOKENIZE] = {"/tokenize", "POST", "POST", false},
    [HTTP_DETOKENIZE] = {"/detokenize", "POST", "POST", false},
    [HTTP_FILE_ADD] = {"/v1/files", "POST", "GET, POST", false},
    [HTTP_FILE_LIST] = {"/v1/files", "GET", "GET, POST", false},
    [HTTP_FILE_GET] = {"/v1/files/*", "GET", "GET, DELETE", false},
    [HTTP_FILE_DELETE] = {"/v1/files/*", "DELETE", "GET, DELETE", false},
    [HTTP_FILE_CONTENT] = {"/v1/files/*/content", "GET", "GET", false},
    [HTTP_BATCH_ADD] = {"/v1/batches", "POST", "GET, POST", false},
    [HTTP_BATCH_LIST] = {"/v1/batches", "GET", "GET, POST", false},
    [HTTP_BATCH_GET] = {"/v1/batches/*", "GET", "GET", false},
    [HTTP_BATCH_CANCEL] = {"/v1/batches/*/cancel", "POST", "POST", false},
};

/* True when the path matches a route. Copies its item, which has letters, digits, '-' and '_',
 * and dots if the route allows them. */
static bool matches(const char *path, const struct route *route, char item[HTTP_ITEM_MAX])
{
    static const char letters[] = ".abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789-_";
    const char *star = strchr(route->path, '*');
    item[0] = '\0';
    if (star == NULL) return strcmp(path, route->path) == 0;
    const size_t n_before = (size_t)(star - route->path);
    if (strncmp(path, route->path, n_before) != 0) return false;
    const char *name = path + n_before;
    const size_t n = strspn(name, route->has_dots ? letters : letters + 1);
    if (n == 0 || n >= HTTP_ITEM_MAX || strcmp(name + n, star + 1) != 0) return false;
    memcpy(item, name, n);
    item[n] = '\0';
    return true;
}

enum http_status http_route(const char *method, const char *path, enum http_endpoint *out,
                            char item[HTTP_ITEM_MAX])
{
    enum http_status found = HTTP_NOT_FOUND;
    for (int i = 0; i < HTTP_ENDPOINT_COUNT; i++) {
        if (!matches(path, &routes[i], item)) continue;
        *out = (enum http_endpoint)i;
        if (strcmp(method, routes[i].method) == 0) return HTTP_OK;
        found = HTTP_BAD_METHOD;
    }
    return found;
}

const char *http_methods_of(enum http_endpoint endpoint)
{
    return routes[endpoint].methods;
}

bool http_is_open(enum http_endpoint endpoint)
{
    return routes[endpoint].is_open;
}

bool http_runs_model(enum http_endpoint endpoint)
{
    return endpoint == HTTP_COMPLETIONS || endpoint == HTTP_CHAT || endpoint == HTTP_EMBEDDINGS ||
           endpoint == HTTP_RERANK;
}

enum http_status http_status_of(const char *code)
{
    if (strcmp(code, REQUEST_NUMERIC_CODE) == 0) return HTTP_INTERNAL;
    if (strcmp(code, REQUEST_CANCELLED_CODE) == 0) return HTTP_CLIENT_GONE;
    if (strcmp(code, HTTP_DRAINING_CODE) == 0) return HTTP_UNAVAILABLE;
    return HTTP_BAD_REQUEST;
}

static const char *type_of(enum http_status status)
{
    if (status == HTTP_UNAUTHORIZED) return "authentication_error";
    if (status == HTTP_TOO_MANY) return "rate_limit_error";
    return status >= HTTP_INTERNAL ? "server_error" : "invalid_request_error";
}

void http_error(enum http_status status, const char *code, const char *message, struct strbuf *out)
{
    strbuf_puts(out, "{\"error\":{\"message\":");
    strbuf_json_string(out, message, strlen(message));
    strbuf_printf(out, ",\"type\":\"%s\",\"param\":null,\"code\":\"%s\"}}", type_of(status), code);
}

/* ---- keys ---- */

enum { KEY_FILE_MAX = 1 << 20 };

static struct status add_key(struct http_keys *k, const char *path, const char *line, size_t n)
{
    while (n > 0 && strchr(" \t\r", line[n - 1]) != NULL) n--;
    while (n > 0 && strchr(" \t", line[0]) != NULL) line++, n--;
    if (n == 0 || line[0] == '#') return status_ok();
    if (n >= HTTP_KEY_MAX || memchr(line, ' ', n) != NULL || memchr(line, '\0', n) != NULL) {
        return status_make(STATUS_INPUT,
                           "--api-key-file %s: key %zu: expected up to %d bytes without blanks",
                           path, k->n + 1, HTTP_KEY_MAX - 1);
    }
    TRY(mem_grow(&k->keys, k->n, k->n + 1, sizeof *k->keys, "keys"));
    memcpy(k->keys[k->n++], line, n);
    return status_ok();
}

struct status http_keys_read(struct http_keys *k, const char *path)
{
    char *text = NULL;
    size_t n;
    struct stat info;
    TRY(status_wrap(file_read(path, KEY_FILE_MAX, &text, &n), "--api-key-file"));
    if (stat(path, &info) == 0 && (info.st_mode & (S_IRGRP | S_IROTH)) != 0)
        log_line(LOG_WARN, "--api-key-file %s: others may read it; chmod 600 keeps it secret",
                 path);
    struct status st = status_ok();
    for (size_t at = 0; at < n && !status_failed(&st);) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t length = end != NULL ? (size_t)(end - (text + at)) : n - at;
        st = add_key(k, path, text + at, length);
        at += length + 1;
    }
    mem_free(&text);
    if (!status_failed(&st) && k->n == 0)
        st = status_make(STATUS_INPUT, "--api-key-file %s: expected a key on a line, found none",
                         path);
    return st;
}

void http_keys_fini(struct http_keys *k)
{
    mem_free(&k->keys);
    k->n = 0;
}

/* Compares all bytes in any case, so that the time does not show how many are right. */
static bool is_key(const char key[HTTP_KEY_MAX], const char given[HTTP_KEY_MAX])
{
    volatile unsigned char differs = 0;
    for (int i = 0; i < HTTP_KEY_MAX; i++)
        differs = (unsigned char)(differs | ((unsigned char)key[i] ^ (unsigned char)given[i]));
    return differs == 0;
}

bool http_keys_allow(const struct http_keys *k, const char *authorization)
{
    static const char scheme[] = "Bearer ";
    char given[HTTP_KEY_MAX] = "";
    bool allowed = false;
    if (k->n == 0) return true;
    if (authorization == NULL || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
        return false;
    const char *key = authorization + sizeof scheme - 1;
    while (*key == ' ') key++;
    if (*key == '\0' || strlen(key) >= HTTP_KEY_MAX) return false;
    memcpy(given, key, strlen(key));
    for (size_t i = 0; i < k->n; i++) allowed = is_key(k->keys[i], given) || allowed;
    return allowed;
}
