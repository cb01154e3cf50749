/* The server and its clients in one process, over loopback: a thread stands in for the lead; many
 * clients call at once, send a body in parts, or leave early. Also runs under ThreadSanitizer. */
#include "serve/http/http_server.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "serve/http/http_server_private.h"

#include <CUnit/CUnit.h>
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *const models[] = {"model", NULL};

enum {
    CLIENTS = 12,
    CALLS = 40,
    PIECES = 20,
    ANSWER_MAX = 1 << 16,
    WAIT_NS = 20000000,
    BODY_MAX = 1 << 16
};

struct bench {
    struct http_server *server;
    uint16_t port;
    pthread_t lead;
    atomic_bool ends;
    atomic_int n_taken, n_gone, n_wrong;
    uint64_t began_ns;
    atomic_int n_untimely; /* calls that arrived before began_ns or after they were taken */
};

/* ---- the lead: answers with the body, whole or in pieces ---- */

static void answer(struct bench *b, struct exchange *x)
{
    struct strbuf s;
    size_t n;
    const char *body = exchange_body(x, &n);
    strbuf_init(&s);
    (void)b;
    if (n > 0 && body[0] == 's') {
        for (int i = 0; i < PIECES; i++) {
            strbuf_add(&s, body, n);
            exchange_write(x, &s);
        }
        exchange_end(x);
    } else {
        strbuf_add(&s, body, n);
        exchange_answer(x, HTTP_OK, "text/plain", &s);
    }
    strbuf_fini(&s);
}

/* Sends the body as the first piece of a stream that does not end. */
static void begin_answer(struct bench *b, struct exchange *x)
{
    struct strbuf s;
    size_t n;
    const char *body = exchange_body(x, &n);
    strbuf_init(&s);
    strbuf_add(&s, body, n);
    exchange_write(x, &s);
    http_server_send(b->server, clock_ns());
    strbuf_fini(&s);
}

/* Ends the calls whose clients have gone. Calls that begin with 'w' or 'p' wait for that. */
static void end_gone(struct bench *b)
{
    struct strbuf s;
    strbuf_init(&s);
    http_server_look(b->server);
    for (struct exchange *x; (x = http_server_take_gone(b->server)) != NULL;) {
        atomic_fetch_add(&b->n_gone, 1);
        exchange_answer(x, HTTP_CLIENT_GONE, "text/plain", &s);
    }
    strbuf_fini(&s);
}

static void *lead(void *user)
{
    struct bench *b = user;
    while (!atomic_load(&b->ends)) {
        struct exchange *x = http_server_take(b->server, WAIT_NS);
        end_gone(b);
        if (x == NULL) continue;
        const uint64_t arrived_ns = exchange_arrived_ns(x);
        if (arrived_ns < b->began_ns || arrived_ns > clock_ns())
            atomic_fetch_add(&b->n_untimely, 1);
        size_t n;
        const char *body = exchange_body(x, &n);
        atomic_fetch_add(&b->n_taken, 1);
        if (n > 0 && (body[0] == 'w' || body[0] == 'p')) {
            exchange_keep(x, b);
            if (body[0] == 'p') begin_answer(b, x);
        } else {
            answer(b, x);
        }
    }
    return NULL;
}

static void start(struct bench *b, const struct http_flags *more)
{
    struct http_flags f = *more;
    *b = (struct bench){.began_ns = clock_ns()};
    f.host = "127.0.0.1";
    f.max_body_bytes = BODY_MAX;
    f.timeout_s = 60;
    f.max_connections = 64;
    struct status st = http_server_create(&f, models, &b->server);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    b->port = http_server_port(b->server);
    st = http_server_start(b->server);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    CU_ASSERT_EQUAL_FATAL(pthread_create(&b->lead, NULL, lead, b), 0);
}

static void stop(struct bench *b)
{
    atomic_store(&b->ends, true);
    pthread_join(b->lead, NULL);
    CU_ASSERT_EQUAL(atomic_load(&b->n_untimely), 0);
    http_server_destroy(&b->server);
}

/* ---- clients ---- */

static int connect_to(const struct bench *b)
{
    const struct sockaddr_in a = {.sin_family = AF_INET,
                                  .sin_port = htons(b->port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&a, sizeof a) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static bool send_call(int fd, const char *body, const char *headers)
{
    char head[512];
    const int n = snprintf(head, sizeof head,
                           "POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                           "Content-Length: %zu\r\n%s\r\n",
                           strlen(body), headers);
    return send(fd, head, (size_t)n, MSG_NOSIGNAL) == n &&
           send(fd, body, strlen(body), MSG_NOSIGNAL) == (ssize_t)strlen(body);
}

/* Reads until the server closes the connection. Returns the number of bytes; answer_bytes is
 * NUL-terminated. */
static size_t read_all(int fd, char answer_bytes[ANSWER_MAX])
{
    size_t n = 0;
    for (ssize_t got = 1; got > 0 && n < ANSWER_MAX - 1;) {
        got = recv(fd, answer_bytes + n, ANSWER_MAX - 1 - n, 0);
        if (got > 0) n += (size_t)got;
    }
    answer_bytes[n] = '\0';
    return n;
}

/* Makes one call with this body. Returns the status; *n_found: how often the answer contains the
 * body. */
static int call(const struct bench *b, const char *body, const char *headers, int *n_found)
{
    static _Thread_local char bytes[ANSWER_MAX];
    const int fd = connect_to(b);
    int status = 0;
    *n_found = 0;
    if (fd < 0) return 0;
    if (send_call(fd, body, headers)) {
        (void)read_all(fd, bytes);
        (void)sscanf(bytes, "HTTP/1.1 %d", &status);
        for (const char *at = bytes; (at = strstr(at, body)) != NULL; at++) ++*n_found;
    }
    close(fd);
    return status;
}

struct client {
    struct bench *b;
    int number;
    pthread_t thread;
};

/* Makes calls of three kinds in turn: one gets a whole answer, one a stream, and one leaves without
 * its answer. */
static void *client(void *user)
{
    const struct client *c = user;
    for (int i = 0; i < CALLS; i++) {
        char body[64];
        int n_found, status;
        snprintf(body, sizeof body, "%c<client %d call %d>", "osw"[i % 3], c -> number, i);
        if (i % 3 == 2) {
            const int fd = connect_to(c->b);
            if (fd < 0 || !send_call(fd, body, "")) atomic_fetch_add(&c->b->n_wrong, 1);
            if (fd >= 0) close(fd);
            continue;
        }
        status = call(c->b, body, "", &n_found);
        if (status != 200 || n_found != (i % 3 == 1 ? PIECES : 1))
            atomic_fetch_add(&c->b->n_wrong, 1);
    }
    return NULL;
}

static void clients_get_their_own_answers(void)
{
    const struct http_flags f = {.max_requests = 1000};
    struct bench b;
    struct client clients[CLIENTS];
    start(&b, &f);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){.b = &b, .number = i};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&clients[i].thread, NULL, client, &clients[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) pthread_join(clients[i].thread, NULL);
    const uint64_t until = clock_ns() + 20000000000u;
    while (http_server_n_open(b.server) > 0 && clock_ns() < until) usleep(1000);
    CU_ASSERT_EQUAL(http_server_n_open(b.server), 0);
    CU_ASSERT_EQUAL(atomic_load(&b.n_wrong), 0);
    /* a client may have left before its call was whole */
    CU_ASSERT(atomic_load(&b.n_gone) > 0 && atomic_load(&b.n_taken) >= CLIENTS * CALLS * 2 / 3);
    stop(&b);
}

/* The client reads the first piece of a stream that never ends, and leaves. */
static void a_piece_comes_before_the_end(void)
{
    const struct http_flags f = {.max_requests = 1};
    const struct timeval limit = {.tv_sec = 60};
    struct bench b;
    char found[1024] = "";
    size_t n = 0;
    start(&b, &f);
    const int fd = connect_to(&b);
    CU_ASSERT_FATAL(fd >= 0 && send_call(fd, "piece of a stream", ""));
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    for (ssize_t got = 1; got > 0 && strstr(found, "piece of a stream") == NULL;) {
        got = recv(fd, found + n, sizeof found - 1 - n, 0);
        if (got > 0) n += (size_t)got;
        found[n] = '\0';
    }
    CU_ASSERT_PTR_NOT_NULL(strstr(found, "piece of a stream"));
    close(fd);
    const uint64_t until = clock_ns() + 20000000000u;
    while (http_server_n_open(b.server) > 0 && clock_ns() < until) usleep(1000);
    CU_ASSERT_EQUAL(atomic_load(&b.n_gone), 1);
    stop(&b);
}

/* Streams that were last sent at several times, while steps take 30 ms. */
static void text_of_many_streams_waits_for_more(void)
{
    const uint64_t ms = 1000000, now = 5000 * ms;
    struct http_server s = {.sent_ns = now - 30 * ms};
    struct exchange x = {.server = &s};
    CU_ASSERT(exchange_is_due(&x, 2000, now)); /* its first text */
    x.sent_ns = now - 60 * ms;
    CU_ASSERT_FALSE(exchange_is_due(&x, 2000, now)); /* the next step is in time for 100 ms */
    x.sent_ns = now - 70 * ms;
    CU_ASSERT(exchange_is_due(&x, 2000, now));
    x.sent_ns = now - 30 * ms;
    CU_ASSERT_FALSE(exchange_is_due(&x, 61, now));
    CU_ASSERT(exchange_is_due(&x, 60, now)); /* few streams: each step's text */
}

/* Two streams with pieces, one without. No connection is behind them. */
static void written_pieces_are_sent_once(void)
{
    struct http_server s = {.sent_ns = 1};
    struct exchange x[3];
    struct strbuf piece;
    pthread_mutex_init(&s.lock, NULL);
    strbuf_init(&piece);
    for (int i = 0; i < 3; i++) {
        x[i] = (struct exchange){.server = &s};
        strbuf_init(&x[i].out);
        if (i < 2) strbuf_puts(&piece, "piece");
        exchange_write(&x[i], &piece);
        exchange_write(&x[i], &piece); /* empty */
        CU_ASSERT_EQUAL(exchange_has_begun(&x[i]), i < 2);
    }
    for (uint64_t now = 5; now < 7; now++) {
        http_server_send(&s, now);
        CU_ASSERT(x[0].sent_ns == 5 && x[1].sent_ns == 5 && x[2].sent_ns == 0);
        CU_ASSERT(s.sent_ns == now && s.first_unsent == NULL);
    }
    for (int i = 0; i < 3; i++) strbuf_fini(&x[i].out);
    strbuf_fini(&piece);
    pthread_mutex_destroy(&s.lock);
}

/* Waits until the lead has taken n calls. */
static void await_taken(const struct bench *b, int n)
{
    const uint64_t until = clock_ns() + 20000000000u;
    while (atomic_load(&b->n_taken) < n && clock_ns() < until) usleep(1000);
}

static void bounds_and_refusals_hold(void)
{
    const struct http_flags f = {.max_requests = 2};
    struct bench b;
    char bytes[1 << 12];
    int n_found, waiting[2];
    start(&b, &f);
    for (int i = 0; i < 2; i++) {
        waiting[i] = connect_to(&b);
        CU_ASSERT(waiting[i] >= 0 && send_call(waiting[i], "wait", ""));
    }
    await_taken(&b, 2);
    CU_ASSERT_EQUAL(call(&b, "one more", "", &n_found), 429);
    CU_ASSERT_EQUAL(call(&b, "one more", "X-Request-Id: a\r\n", &n_found), 429);
    http_server_refuse(b.server);
    CU_ASSERT_EQUAL(call(&b, "one more", "", &n_found), 503);
    http_server_fail_all(b.server, "the end");
    for (int i = 0; i < 2; i++) {
        const ssize_t n = recv(waiting[i], bytes, sizeof bytes - 1, 0);
        CU_ASSERT_FATAL(n > 0);
        bytes[n] = '\0';
        CU_ASSERT_EQUAL(strncmp(bytes, "HTTP/1.1 503", 12), 0);
        close(waiting[i]);
    }
    http_server_flush(b.server, 5000000000u);
    stop(&b);
}

/* Sends `head` and n blanks, with in_chunks as chunks of 1 KiB. Returns the status of the answer;
 * 0: the connection was closed without one. */
static int send_blanks(const struct bench *b, const char *head, size_t n, bool in_chunks)
{
    char bytes[ANSWER_MAX], chunk[1100];
    int status = 0;
    const int fd = connect_to(b);
    CU_ASSERT_FATAL(fd >= 0);
    const int n_chunk = in_chunks ? snprintf(chunk, sizeof chunk, "400\r\n%1024s\r\n", "")
                                  : snprintf(chunk, sizeof chunk, "%1024s", "");
    bool is_open = send(fd, head, strlen(head), MSG_NOSIGNAL) == (ssize_t)strlen(head);
    for (size_t i = 0; i < n && is_open; i += 1024)
        is_open = send(fd, chunk, (size_t)n_chunk, MSG_NOSIGNAL) == n_chunk;
    if (in_chunks && is_open) (void)send(fd, "0\r\n\r\n", 5, MSG_NOSIGNAL);
    (void)read_all(fd, bytes);
    (void)sscanf(bytes, "HTTP/1.1 %d", &status);
    CU_ASSERT(status != 413 || strstr(bytes, "--max-body-mib") != NULL);
    close(fd);
    return status;
}

#define HEAD "POST /v1/files HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"

/* A client gets 413 whether it announces the length or sends chunks. Only if chunks go on far
 * beyond the limit, the server closes the connection without an answer. */
static void long_bodies_are_refused(void)
{
    const struct http_flags f = {.max_requests = 2};
    const char *const chunks = HEAD "Transfer-Encoding: chunked\r\n\r\n";
    const size_t limit = BODY_MAX;
    struct bench b;
    start(&b, &f);
    CU_ASSERT_EQUAL(send_blanks(&b, HEAD "Content-Length: 65536\r\n\r\n", limit, false), 200);
    CU_ASSERT_EQUAL(send_blanks(&b, HEAD "Content-Length: 66560\r\n\r\n", limit + 1024, false),
                    413);
    CU_ASSERT_EQUAL(send_blanks(&b, HEAD "Content-Length: 131072\r\n\r\n", 2 * limit, false), 413);
    CU_ASSERT_EQUAL(send_blanks(&b, HEAD "Content-Length: 1000000000\r\n\r\n", 0, false), 413);
    CU_ASSERT_EQUAL(
        send_blanks(&b, HEAD "Content-Length: 65537\r\nExpect: 100-continue\r\n\r\n", 0, false),
        413);
    CU_ASSERT_EQUAL(send_blanks(&b, chunks, limit, true), 200);
    CU_ASSERT_EQUAL(send_blanks(&b, chunks, limit + 1024, true), 413);
    CU_ASSERT_EQUAL(send_blanks(&b, chunks, 8 * limit, true), 0);
    CU_ASSERT_EQUAL(atomic_load(&b.n_taken), 2);
    stop(&b);
}

static void a_body_without_memory_is_refused(void)
{
    const struct http_flags f = {.max_requests = 2};
    struct bench b;
    char bytes[ANSWER_MAX];
    start(&b, &f);
    const int fd = connect_to(&b);
    (void)mem_fail_after(2); /* the first allocation is for the call, the second for its body */
    CU_ASSERT(fd >= 0 && send_call(fd, "one more", ""));
    (void)read_all(fd, bytes);
    (void)mem_fail_after(0);
    CU_ASSERT_EQUAL(strncmp(bytes, "HTTP/1.1 503", 12), 0);
    CU_ASSERT_PTR_NOT_NULL(strstr(bytes, "\"out_of_memory\""));
    CU_ASSERT_PTR_NULL(strstr(bytes, "ending"));
    CU_ASSERT_EQUAL(atomic_load(&b.n_taken), 0);
    close(fd);
    stop(&b);
}

/* Adds n to the bytes of all bodies, as other calls do. Returns the new number. */
static size_t add_bodies(struct http_server *s, int64_t n)
{
    pthread_mutex_lock(&s->lock);
    s->body_bytes += (size_t)n;
    const size_t now = s->body_bytes;
    pthread_mutex_unlock(&s->lock);
    return now;
}

static bool await_bodies(struct http_server *s, size_t n)
{
    const uint64_t until = clock_ns() + 20000000000u;
    while (add_bodies(s, 0) != n && clock_ns() < until) usleep(1000);
    return add_bodies(s, 0) == n;
}

/* A call is refused in the middle of its body, because the bodies of other calls fill the memory.
 * The server keeps nothing of the part that it had received, although the client sends the rest
 * later. */
static void a_refused_call_keeps_no_body(void)
{
    enum { PART = 1000, OTHERS = 256 << 20 };
    const struct http_flags f = {.max_requests = 2};
    static const char head[] = HEAD "Content-Length: 3000\r\n\r\n";
    char part[PART], bytes[ANSWER_MAX];
    struct bench b;
    start(&b, &f);
    memset(part, ' ', PART);
    const int fd = connect_to(&b);
    CU_ASSERT_FATAL(fd >= 0);
    CU_ASSERT(send(fd, head, sizeof head - 1, MSG_NOSIGNAL) == (ssize_t)sizeof head - 1);
    CU_ASSERT(send(fd, part, PART, MSG_NOSIGNAL) == PART);
    CU_ASSERT(await_bodies(b.server, PART));
    (void)add_bodies(b.server, OTHERS);
    CU_ASSERT(send(fd, part, PART, MSG_NOSIGNAL) == PART);
    CU_ASSERT(await_bodies(b.server, OTHERS));
    (void)add_bodies(b.server, -OTHERS);
    CU_ASSERT(send(fd, part, PART, MSG_NOSIGNAL) == PART);
    (void)read_all(fd, bytes);
    CU_ASSERT_EQUAL(strncmp(bytes, "HTTP/1.1 429", 12), 0);
    CU_ASSERT_EQUAL(add_bodies(b.server, 0), 0);
    CU_ASSERT_EQUAL(atomic_load(&b.n_taken), 0);
    close(fd);
    stop(&b);
}

static void a_port_in_use_is_refused(void)
{
    const struct http_flags more = {.max_requests = 1};
    struct bench b;
    struct http_server *second = NULL;
    start(&b, &more);
    const struct http_flags f = {.host = "127.0.0.1", .port = b.port, .max_requests = 1};
    struct status st = http_server_create(&f, models, &second);
    CU_ASSERT(st.code == STATUS_USAGE && second == NULL);
    const struct http_flags nowhere = {.host = "203.0.113.1", .port = 0};
    st = http_server_create(&nowhere, models, &second);
    CU_ASSERT(st.code == STATUS_USAGE && second == NULL);
    stop(&b);
}

void suite_http_server(CU_pSuite suite);
void suite_http_server(CU_pSuite suite)
{
    CU_add_test(suite, "clients get their own answers", clients_get_their_own_answers);
    CU_add_test(suite, "a piece comes before the end", a_piece_comes_before_the_end);
    CU_add_test(suite, "text of many streams waits for more", text_of_many_streams_waits_for_more);
    CU_add_test(suite, "written pieces are sent once", written_pieces_are_sent_once);
    CU_add_test(suite, "bounds and refusals hold", bounds_and_refusals_hold);
    CU_add_test(suite, "long bodies are refused", long_bodies_are_refused);
    CU_add_test(suite, "a body without memory is refused", a_body_without_memory_is_refused);
    CU_add_test(suite, "a refused call keeps no body", a_refused_call_keeps_no_body);
    CU_add_test(suite, "a port in use is refused", a_port_in_use_is_refused);
}
