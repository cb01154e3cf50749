/* Binds, starts and stops the server; has the callbacks for libmicrohttpd. */
#include "serve/http/http_server.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "serve/http/http_server_private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* ALL_BODIES_MAX bounds the sum of all bodies in memory; a single body may exceed it. A body over
 * the limit (--max-body-mib) is read and dropped, until it is DROPPED_LIMITS times as long. */
enum {
    HEADER_BYTES_MAX = 32 << 10,
    STREAM_BLOCK_BYTES = 16 << 10,
    ALL_BODIES_MAX = 256 << 20,
    DROPPED_LIMITS = 2,
    BACKLOG = 1024
};

/* ---- answers ---- */

static void add_header(struct MHD_Response *r, const char *name, const char *value)
{
    (void)MHD_add_response_header(r, name, value);
}

/* Returns the seconds (1 to 60) after which a refused client should try again: about the mean time
 * between the ends of two calls. */
static unsigned retry_after_s(const struct http_server *s)
{
    const uint64_t seconds = s->mean_end_ns / 1000000000u + 1;
    return seconds < 60 ? (unsigned)seconds : 60;
}

static void add_headers(const struct exchange *x, struct MHD_Response *r)
{
    char seconds[16];
    add_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, x->type);
    if (x->id[0] != '\0') add_header(r, "X-Request-Id", x->id);
    if (x->is_stream) add_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    if (x->status == HTTP_UNAUTHORIZED) add_header(r, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (x->status == HTTP_BAD_METHOD)
        add_header(r, MHD_HTTP_HEADER_ALLOW, http_methods_of(x->endpoint));
    if (x->status != HTTP_TOO_MANY && x->status != HTTP_UNAVAILABLE) return;
    snprintf(seconds, sizeof seconds, "%u", retry_after_s(x->server));
    add_header(r, MHD_HTTP_HEADER_RETRY_AFTER, seconds);
}

static enum MHD_Result reply(struct exchange *x)
{
    struct http_server *s = x->server;
    struct MHD_Response *r;
    pthread_mutex_lock(&s->lock);
    if (x->is_stream) {
        exchange_cork(x, true); /* headers and first piece leave together */
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, exchange_read,
                                              x, NULL);
    } else if (x->file >= 0) {
        r = MHD_create_response_from_fd64(x->n_file, x->file);
        if (r != NULL) x->file = -1; /* the response closes it */
    } else {
        r = MHD_create_response_from_buffer(x->out.n, x->out.n > 0 ? x->out.data : (void *)"",
                                            MHD_RESPMEM_MUST_COPY);
        strbuf_fini(&x->out);
    }
    if (r != NULL) add_headers(x, r);
    const unsigned status = (unsigned)x->status;
    pthread_mutex_unlock(&s->lock);
    if (r == NULL) return MHD_NO;
    const enum MHD_Result queued = MHD_queue_response(x->connection, status, r);
    MHD_destroy_response(r);
    return queued;
}

static enum MHD_Result refuse(struct exchange *x, enum http_status status, const char *code,
                              const char *message)
{
    exchange_set_error(x, status, code, message);
    return reply(x);
}

/* ---- calls ---- */

static const char *header_value(const struct exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

/* Copies the client's id if it is short and printable; ignores any other. */
static void take_request_id(struct exchange *x)
{
    const char *id = header_value(x, "X-Request-Id");
    if (id == NULL || strlen(id) >= sizeof x->id) return;
    for (const char *c = id; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c > 0x7E) return;
    strcpy(x->id, id);
}

/* Checks the length that the call announces. True: the answer need not wait for the body, because
 * the client asked before sending it, or because it is far too long to be read. */
static bool judge_length(struct exchange *x)
{
    const uint64_t limit = x->server->flags.max_body_bytes;
    const char *length = header_value(x, MHD_HTTP_HEADER_CONTENT_LENGTH);
    const uint64_t n = length != NULL ? strtoull(length, NULL, 10) : 0;
    if (n <= limit) return false;
    x->refusal = HTTP_TOO_LARGE;
    return n > DROPPED_LIMITS * limit || header_value(x, MHD_HTTP_HEADER_EXPECT) != NULL;
}

/* Decides by method, path and key whether the call is refused. The body of a refused call is read
 * anyway, because a client that is still writing might not see the answer. */
static void judge(struct exchange *x, const char *method, const char *path)
{
    const enum http_status found = http_route(method, path, &x->endpoint, x->item);
    const char *key = header_value(x, MHD_HTTP_HEADER_AUTHORIZATION);
    const bool is_open = found == HTTP_OK && http_is_open(x->endpoint);
    if (!is_open && !http_keys_allow(&x->server->keys, key)) {
        x->refusal = HTTP_UNAUTHORIZED;
    } else {
        x->refusal = found;
    }
}

static enum MHD_Result refuse_judged(struct exchange *x)
{
    if (x->refusal == HTTP_UNAUTHORIZED)
        return refuse(x, HTTP_UNAUTHORIZED, "invalid_api_key",
                      "expected a key of this server in \"Authorization: Bearer KEY\"");
    if (x->refusal == HTTP_TOO_MANY)
        return refuse(x, HTTP_TOO_MANY, "too_many_requests",
                      "the bodies of other calls fill the memory; try again later");
    if (x->refusal == HTTP_TOO_LARGE)
        return refuse(x, HTTP_TOO_LARGE, "body_too_large",
                      "the body is longer than --max-body-mib allows");
    if (x->refusal == HTTP_BAD_METHOD)
        return refuse(x, HTTP_BAD_METHOD, "method_not_allowed",
                      "this path does not take this method");
    return refuse(x, HTTP_NOT_FOUND, "not_found", "there is no such path");
}

static enum MHD_Result begin_call(struct http_server *s, struct MHD_Connection *c,
                                  const char *method, const char *path, void **con)
{
    struct exchange *x = NULL;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    const struct status st = mem_alloc(&x, 1, sizeof *x, "call");
    if (status_failed(&st)) return MHD_NO;
    x->server = s;
    x->connection = c;
    x->fd = info != NULL ? info->connect_fd : -1;
    strbuf_init(&x->body);
    strbuf_init(&x->out);
    x->file = -1;
    *con = x;
    take_request_id(x);
    const char *type = header_value(x, MHD_HTTP_HEADER_CONTENT_TYPE);
    if (type != NULL && strlen(type) < sizeof x->content_type) strcpy(x->content_type, type);
    judge(x, method, path);
    return judge_length(x) ? refuse_judged(x) : MHD_YES;
}

/* Takes a part of the body. Checks its length again, because a chunked body does not announce
 * it. A refused call frees the part that it has: its client may send the rest slowly. */
static enum MHD_Result take_body(struct exchange *x, const char *bytes, size_t *n)
{
    struct http_server *s = x->server;
    const size_t got = *n;
    *n = 0;
    x->n_received += got;
    if (x->n_received > DROPPED_LIMITS * s->flags.max_body_bytes) return MHD_NO;
    if (x->n_received > s->flags.max_body_bytes && x->refusal == HTTP_OK)
        x->refusal = HTTP_TOO_LARGE;
    pthread_mutex_lock(&s->lock);
    const bool is_full = s->body_bytes > x->body.n && s->body_bytes + got > ALL_BODIES_MAX;
    if (is_full && x->refusal == HTTP_OK) x->refusal = HTTP_TOO_MANY;
    if (x->refusal == HTTP_OK) {
        const size_t before = x->body.n;
        strbuf_add(&x->body, bytes, got);
        s->body_bytes += x->body.n - before;
    } else {
        exchange_drop_body(x);
    }
    pthread_mutex_unlock(&s->lock);
    return MHD_YES;
}

static void put_model(struct strbuf *body, const char *name)
{
    strbuf_puts(body, "{\"id\":");
    strbuf_json_string(body, name, strlen(name));
    strbuf_puts(body, ",\"object\":\"model\",\"created\":0,\"owned_by\":\"shoal\"}");
}

static enum MHD_Result answer_models(struct exchange *x)
{
    struct strbuf body;
    strbuf_init(&body);
    strbuf_puts(&body, "{\"object\":\"list\",\"data\":[");
    for (const char *const *name = x->server->models; *name != NULL; name++) {
        if (name != x->server->models) strbuf_puts(&body, ",");
        put_model(&body, *name);
    }
    strbuf_puts(&body, "]}");
    exchange_set(x, HTTP_OK, "application/json", &body);
    strbuf_fini(&body);
    return reply(x);
}

static enum MHD_Result answer_model(struct exchange *x)
{
    struct strbuf body;
    const char *const *name = x->server->models;
    while (*name != NULL && strcmp(*name, x->item) != 0) name++;
    if (*name == NULL)
        return refuse(x, HTTP_NOT_FOUND, "model_not_found",
                      "no such model; GET /v1/models lists the names");
    strbuf_init(&body);
    put_model(&body, *name);
    exchange_set(x, HTTP_OK, "application/json", &body);
    strbuf_fini(&body);
    return reply(x);
}

static enum MHD_Result answer_health(struct exchange *x)
{
    struct strbuf body;
    pthread_mutex_lock(&x->server->lock);
    const bool refuses = x->server->refuses;
    pthread_mutex_unlock(&x->server->lock);
    if (refuses) return refuse(x, HTTP_UNAVAILABLE, HTTP_DRAINING_CODE, "the server is ending");
    strbuf_init(&body);
    strbuf_puts(&body, "{\"status\":\"ok\"}");
    exchange_set(x, HTTP_OK, "application/json", &body);
    strbuf_fini(&body);
    return reply(x);
}

/* Posts the call, or refuses it and says why. A call that does not run the model is refused only
 * for lack of memory, not by a full or draining server, because it is answered between two steps.
 */
static enum MHD_Result post_exchange(struct exchange *x)
{
    struct http_server *s = x->server;
    const struct status memory = strbuf_status(&x->body);
    const bool runs = http_runs_model(x->endpoint);
    pthread_mutex_lock(&s->lock);
    const bool lacks = status_failed(&memory), refuses = runs && s->refuses;
    const bool is_full = runs && s->n_open >= s->flags.max_requests;
    if (!lacks && !refuses && !is_full) exchange_post(x);
    pthread_mutex_unlock(&s->lock);
    if (lacks)
        return refuse(x, HTTP_UNAVAILABLE, HTTP_MEMORY_CODE,
                      "there is no memory for the body of this call; try again later");
    if (refuses) return refuse(x, HTTP_UNAVAILABLE, HTTP_DRAINING_CODE, "the server is ending");
    if (is_full)
        return refuse(x, HTTP_TOO_MANY, "too_many_requests",
                      "as many calls run and wait as --max-requests allows; try again later");
    return MHD_YES;
}

static enum MHD_Result on_call(void *cls, struct MHD_Connection *c, const char *path,
                               const char *method, const char *version, const char *bytes,
                               size_t *n, void **con)
{
    struct http_server *s = cls;
    struct exchange *x = *con;
    (void)version;
    if (x == NULL) return begin_call(s, c, method, path, con);
    if (*n > 0) return take_body(x, bytes, n);
    pthread_mutex_lock(&s->lock);
    const bool is_answered = x->type != NULL;
    pthread_mutex_unlock(&s->lock);
    if (is_answered) return reply(x);
    if (x->refusal != HTTP_OK) return refuse_judged(x);
    if (x->endpoint == HTTP_HEALTH) return answer_health(x);
    if (x->endpoint == HTTP_MODELS) return answer_models(x);
    if (x->endpoint == HTTP_MODEL_GET) return answer_model(x);
    return post_exchange(x);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **con,
                         enum MHD_RequestTerminationCode how)
{
    struct http_server *s = cls;
    struct exchange *x = *con;
    (void)c;
    (void)how;
    if (x == NULL) return;
    *con = NULL;
    pthread_mutex_lock(&s->lock);
    exchange_lose_connection(x);
    pthread_mutex_unlock(&s->lock);
}

/* ---- the server ---- */

static struct status bind_to(const struct addrinfo *a, const struct http_flags *f, int *out)
{
    const int on = 1;
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool ok = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                    bind(fd, a->ai_addr, a->ai_addrlen) == 0;
    *out = fd;
    if (ok) return status_ok();
    return status_make(STATUS_USAGE, "--host %s --port %u: cannot be used: %s", f->host, f->port,
                       strerror(errno));
}

static struct status open_socket(struct http_server *s)
{
    char port[16];
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    snprintf(port, sizeof port, "%u", s->flags.port);
    const int rc = getaddrinfo(s->flags.host, port, &hints, &found);
    if (rc != 0)
        return status_make(STATUS_USAGE, "--host %s: not an address of this host: %s",
                           s->flags.host, gai_strerror(rc));
    const struct status st = bind_to(found, &s->flags, &s->listen_fd);
    freeaddrinfo(found);
    return st;
}

struct status http_server_create(const struct http_flags *flags, const char *const *models,
                                 struct http_server **out)
{
    struct http_server *s = NULL;
    pthread_condattr_t monotonic;
    *out = NULL;
    TRY(mem_alloc(&s, 1, sizeof *s, "server"));
    s->flags = *flags;
    s->models = models;
    s->listen_fd = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&s->arrived, &monotonic);
    pthread_cond_init(&s->sent, &monotonic);
    pthread_condattr_destroy(&monotonic);
    struct status st = status_ok();
    if (flags->key_file != NULL) st = http_keys_read(&s->keys, flags->key_file);
    if (!status_failed(&st)) st = open_socket(s);
    if (status_failed(&st)) http_server_destroy(&s);
    *out = s;
    return st;
}

uint16_t http_server_port(const struct http_server *s)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } a = {.any.sa_family = AF_UNSPEC};
    socklen_t n = sizeof a;
    if (getsockname(s->listen_fd, &a.any, &n) != 0) return 0;
    return ntohs(a.any.sa_family == AF_INET6 ? a.v6.sin6_port : a.v4.sin_port);
}

/* Raises the limit of open files: each connection needs one, and the soft limit is often 1,024. */
static void allow_files(uint32_t n_connections)
{
    const rlim_t n_wanted = (rlim_t)n_connections + 256;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= n_wanted) return;
    limit.rlim_cur = n_wanted < limit.rlim_max ? n_wanted : limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < n_wanted)
        log_line(LOG_WARN, "--max-connections %u: this host allows %llu open files", n_connections,
                 (unsigned long long)limit.rlim_cur);
}

static void log_address(const struct http_server *s)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[256], port[32], name[256] = "";
    if (getsockname(s->listen_fd, (struct sockaddr *)&a, &n) != 0) return;
    if (getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return;
    (void)gethostname(name, sizeof name - 1);
    const bool is_6 = a.ss_family == AF_INET6;
    const bool is_local = a.ss_family == AF_INET && strncmp(host, "127.", 4) == 0;
    if (!is_local && s->keys.n == 0)
        log_line(LOG_WARN, "no --api-key-file: everyone who reaches %s may use the model", host);
    log_line(LOG_INFO, "serving http://%s%s%s:%s on %s%s", is_6 ? "[" : "", host, is_6 ? "]" : "",
             port, name, s->keys.n > 0 ? ", with keys" : "");
}

struct status http_server_start(struct http_server *s)
{
    allow_files(s->flags.max_connections);
    if (listen(s->listen_fd, BACKLOG) != 0)
        return status_make(STATUS_IO, "--port %u: cannot listen: %s", s->flags.port,
                           strerror(errno));
    s->daemon = MHD_start_daemon(
        MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL,
        on_call, s, MHD_OPTION_LISTEN_SOCKET, (MHD_socket)s->listen_fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)s->flags.max_connections, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)s->flags.timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADER_BYTES_MAX,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_END);
    if (s->daemon == NULL)
        return status_make(STATUS_IO, "--port %u: the server cannot be started", s->flags.port);
    log_address(s);
    return status_ok();
}

/* Ends the posted calls that the lead did not take or did not end. Their connections are suspended,
 * so libmicrohttpd could not close them. */
static void end_rest(struct http_server *s)
{
    for (;;) {
        struct strbuf body;
        pthread_mutex_lock(&s->lock);
        struct exchange *x = s->first;
        pthread_mutex_unlock(&s->lock);
        if (x == NULL) return;
        strbuf_init(&body);
        http_error(HTTP_UNAVAILABLE, HTTP_DRAINING_CODE, "the server has ended", &body);
        exchange_answer(x, HTTP_UNAVAILABLE, "application/json", &body);
        strbuf_fini(&body);
    }
}

void http_server_destroy(struct http_server **server)
{
    struct http_server *s = *server;
    if (s == NULL) return;
    end_rest(s);
    if (s->daemon != NULL) MHD_stop_daemon(s->daemon); /* closes listen_fd */
    if (s->daemon == NULL && s->listen_fd >= 0) close(s->listen_fd);
    pthread_cond_destroy(&s->sent);
    pthread_cond_destroy(&s->arrived);
    pthread_mutex_destroy(&s->lock);
    http_keys_fini(&s->keys);
    mem_free(server);
}
