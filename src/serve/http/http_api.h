/* The parts of the server's interface that need no connection: routes, errors as JSON, and keys.
 * Called by the other files of this room. */
#ifndef SHOAL_SERVE_HTTP_HTTP_API_H
#define SHOAL_SERVE_HTTP_HTTP_API_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stddef.h>

enum http_endpoint {
    HTTP_COMPLETIONS,
    HTTP_CHAT,
    HTTP_EMBEDDINGS,
    HTTP_RERANK,
    HTTP_MODELS,
    HTTP_MODEL_GET,
    HTTP_HEALTH,
    HTTP_METRICS,
    HTTP_TOKENIZE,
    HTTP_DETOKENIZE,
    HTTP_FILE_ADD,
    HTTP_FILE_LIST,
    HTTP_FILE_GET,
    HTTP_FILE_DELETE,
    HTTP_FILE_CONTENT,
    HTTP_BATCH_ADD,
    HTTP_BATCH_LIST,
    HTTP_BATCH_GET,
    HTTP_BATCH_CANCEL,
    HTTP_ENDPOINT_COUNT
};

enum http_status {
    HTTP_OK = 200,
    HTTP_BAD_REQUEST = 400,
    HTTP_UNAUTHORIZED = 401,
    HTTP_NOT_FOUND = 404,
    HTTP_BAD_METHOD = 405,
    HTTP_CONFLICT = 409,
    HTTP_TOO_LARGE = 413,
    HTTP_TOO_MANY = 429,
    HTTP_CLIENT_GONE = 499, /* the client has gone and will not read the answer */
    HTTP_INTERNAL = 500,
    HTTP_UNAVAILABLE = 503,
};

/* The error codes of calls that a draining server refuses or cancels, and of calls for which there
 * is no memory. */
#define HTTP_DRAINING_CODE "draining"
#define HTTP_MEMORY_CODE   "out_of_memory"

enum { HTTP_ITEM_MAX = 128 };

/* Local. Finds the endpoint of a call. Returns HTTP_OK, HTTP_NOT_FOUND (*out stays), or
 * HTTP_BAD_METHOD (*out = an endpoint of the path). With HTTP_OK, `item` becomes the part of the
 * path that names a file, a batch or a model, or "" without one; otherwise it is undefined. */
enum http_status http_route(const char *method, const char *path, enum http_endpoint *out,
                            char item[HTTP_ITEM_MAX]);

/* Local. http_methods_of returns the methods that the path of an endpoint has ("GET, POST");
 * http_is_open returns whether the endpoint needs no key. */
const char *http_methods_of(enum http_endpoint endpoint);
bool http_is_open(enum http_endpoint endpoint);

/* Local. True when a call runs the model; only such calls are refused because --max-requests are
 * open or the server drains. */
bool http_runs_model(enum http_endpoint endpoint);

/* Local. Returns the HTTP status of a call whose request has the error `code`
 * (serve/request/request.h). */
enum http_status http_status_of(const char *code);

/* Local. Appends {"error":{"message","type","param","code"}} as OpenAI writes it. Errors stay in
 * `out` (strbuf_status). */
void http_error(enum http_status status, const char *code, const char *message, struct strbuf *out);

/* The keys of --api-key-file. All zeros: there are none, and every call is allowed. */
enum { HTTP_KEY_MAX = 256 };
struct http_keys {
    char (*keys)[HTTP_KEY_MAX]; /* [n], padded with zeros; owned */
    size_t n;
};

/* Local. Reads one key from each line; skips blank lines and lines that begin with #. Errors:
 * STATUS_INPUT (no such file, no key, a key that is too long or has spaces), STATUS_MEMORY. */
struct status http_keys_read(struct http_keys *k, const char *path);
void http_keys_fini(struct http_keys *k);

/* Local. True when `authorization`, the value of the Authorization header (NULL: none), has one of
 * the keys, or there are no keys. The time that a comparison takes depends only on the number of
 * keys. */
bool http_keys_allow(const struct http_keys *k, const char *authorization);

#endif
