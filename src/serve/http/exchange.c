/* A call and its answer. Two threads share them: the HTTP thread writes the call and reads the
 * answer; the lead's thread reads the call and writes the answer. */
#include "base/clock.h"
#include "base/mem.h"
#include "serve/http/http_server_private.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LOOK_AT_ONCE = 128 }; /* connections that one poll() looks at */
static const uint64_t stream_gap_ns = 1000000, longest_gap_ns = 100000000;

const char http_json[] = "application/json";

void exchange_drop_body(struct exchange *x)
{
    x->server->body_bytes -= x->body.n;
    strbuf_fini(&x->body);
}

static void exchange_free(struct exchange *x)
{
    exchange_drop_body(x);
    strbuf_fini(&x->out);
    if (x->file >= 0) close(x->file);
    mem_free(&x);
}

/* Frees x if neither the connection nor the lead holds it. */
static void exchange_let_go(struct exchange *x)
{
    if (x->connection == NULL && !x->is_posted) exchange_free(x);
}

/* Wakes the connection if it is waiting for more of the answer. */
static void wake(struct exchange *x)
{
    if (!x->is_suspended) return;
    x->is_suspended = false;
    MHD_resume_connection(x->connection);
}

/* While a socket is corked, the kernel gathers short sends into one packet, for 200 ms at most. */
void exchange_cork(struct exchange *x, bool is_corked)
{
    const int on = is_corked;
    if (x->is_corked == is_corked) return;
    x->is_corked = is_corked;
    (void)setsockopt(x->fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
}

static void move_bytes(struct strbuf *to, struct strbuf *from)
{
    strbuf_add(to, from->data, from->n);
    strbuf_clear(from);
}

void exchange_post(struct exchange *x)
{
    struct http_server *s = x->server;
    x->is_posted = true;
    x->arrived_ns = clock_ns();
    x->next = s->first;
    if (s->first != NULL) s->first->prev = x;
    s->first = x;
    *(s->last_waiting != NULL ? &s->last_waiting->next_waiting : &s->first_waiting) = x;
    s->last_waiting = x;
    s->n_open++;
    s->n_connected++;
    x->was_posted = true;
    x->is_suspended = true;
    MHD_suspend_connection(x->connection);
    pthread_cond_signal(&s->arrived);
}

void exchange_lose_connection(struct exchange *x)
{
    x->connection = NULL;
    x->is_suspended = false;
    exchange_cork(x, false);
    if (x->was_posted) x->server->n_connected--;
    x->is_gone = x->is_gone || !x->has_ended;
    pthread_cond_broadcast(&x->server->sent);
    exchange_let_go(x);
}

static void list_unsent(struct exchange *x)
{
    struct exchange **first = &x->server->first_unsent;
    x->is_unsent = true;
    x->prev_unsent = NULL;
    x->next_unsent = *first;
    if (*first != NULL) (*first)->prev_unsent = x;
    *first = x;
}

static void unlist_unsent(struct exchange *x)
{
    if (!x->is_unsent) return;
    x->is_unsent = false;
    *(x->prev_unsent != NULL ? &x->prev_unsent->next_unsent : &x->server->first_unsent) =
        x->next_unsent;
    if (x->next_unsent != NULL) x->next_unsent->prev_unsent = x->prev_unsent;
}

/* Ends a posted call: its answer is complete, it leaves the server's list, and its connection is
 * woken. May free x. */
static void unpost(struct exchange *x)
{
    struct http_server *s = x->server;
    const uint64_t now = clock_ns();
    *(x->prev != NULL ? &x->prev->next : &s->first) = x->next;
    if (x->next != NULL) x->next->prev = x->prev;
    unlist_unsent(x);
    if (s->last_end_ns > 0) s->mean_end_ns = (7 * s->mean_end_ns + (now - s->last_end_ns)) / 8;
    s->last_end_ns = now;
    s->n_open--;
    x->is_posted = false;
    x->has_ended = true;
    wake(x);
    exchange_let_go(x);
}

void exchange_set(struct exchange *x, enum http_status status, const char *type,
                  struct strbuf *body)
{
    x->status = status;
    x->type = type;
    x->has_ended = true;
    move_bytes(&x->out, body);
}

void exchange_set_error(struct exchange *x, enum http_status status, const char *code,
                        const char *message)
{
    struct strbuf body;
    strbuf_init(&body);
    http_error(status, code, message, &body);
    exchange_set(x, status, http_json, &body);
    strbuf_fini(&body);
}

ssize_t exchange_read(void *user, uint64_t pos, char *bytes, size_t n)
{
    struct exchange *x = user;
    struct http_server *s = x->server;
    (void)pos;
    pthread_mutex_lock(&s->lock);
    const size_t left = x->out.n - x->n_sent;
    ssize_t got = (ssize_t)(n < left ? n : left);
    if (got > 0) memcpy(bytes, x->out.data + x->n_sent, (size_t)got);
    x->n_sent += (size_t)got;
    if (x->n_sent == x->out.n) {
        strbuf_clear(&x->out);
        x->n_sent = 0;
    }
    if (got > 0 && x->has_ended) exchange_cork(x, true); /* until the chunk that ends the body */
    if (got == 0 && x->has_ended) {
        got = x->is_gone ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
    } else if (got == 0) {
        exchange_cork(x, false);
        x->is_suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&s->lock);
    return got;
}

/* ---- the lead's side ---- */

enum http_endpoint exchange_endpoint(const struct exchange *x)
{
    return x->endpoint;
}

const char *exchange_id(const struct exchange *x)
{
    return x->id;
}

const char *exchange_item(const struct exchange *x)
{
    return x->item;
}

const char *exchange_content_type(const struct exchange *x)
{
    return x->content_type;
}

const char *exchange_body(const struct exchange *x, size_t *n)
{
    *n = x->body.n;
    return x->body.n > 0 ? x->body.data : "";
}

uint64_t exchange_arrived_ns(const struct exchange *x)
{
    return x->arrived_ns;
}

void exchange_forget_body(struct exchange *x)
{
    pthread_mutex_lock(&x->server->lock);
    exchange_drop_body(x);
    pthread_mutex_unlock(&x->server->lock);
}

void exchange_keep(struct exchange *x, void *state)
{
    x->state = state;
}

void *exchange_state(const struct exchange *x)
{
    return x->state;
}

void exchange_answer(struct exchange *x, enum http_status status, const char *type,
                     struct strbuf *body)
{
    struct http_server *s = x->server;
    pthread_mutex_lock(&s->lock);
    if (!x->has_ended) exchange_set(x, status, type, body);
    unpost(x);
    pthread_mutex_unlock(&s->lock);
}

void exchange_answer_file(struct exchange *x, int fd, uint64_t n_bytes)
{
    struct http_server *s = x->server;
    pthread_mutex_lock(&s->lock);
    if (x->has_ended) {
        close(fd);
    } else {
        x->file = fd;
        x->n_file = n_bytes;
        x->status = HTTP_OK;
        x->type = "application/octet-stream";
    }
    unpost(x);
    pthread_mutex_unlock(&s->lock);
}

bool exchange_has_begun(const struct exchange *x)
{
    return x->is_stream;
}

void exchange_write(struct exchange *x, struct strbuf *events)
{
    struct http_server *s = x->server;
    pthread_mutex_lock(&s->lock);
    if (!x->has_ended && events->n > 0) {
        x->status = HTTP_OK;
        x->type = "text/event-stream; charset=utf-8";
        x->is_stream = true;
        move_bytes(&x->out, events);
        if (!x->is_unsent) list_unsent(x);
    }
    pthread_mutex_unlock(&s->lock);
}

/* The next step is expected to take as long as the last one. */
bool exchange_is_due(const struct exchange *x, size_t n_streams, uint64_t now_ns)
{
    const struct http_server *s = x->server;
    const uint64_t asked_ns = n_streams * stream_gap_ns;
    const uint64_t gap_ns = asked_ns < longest_gap_ns ? asked_ns : longest_gap_ns;
    const uint64_t next_ns = now_ns + (s->sent_ns > 0 ? now_ns - s->sent_ns : 0);
    return x->sent_ns == 0 || x->sent_ns + gap_ns <= next_ns;
}

void http_server_send(struct http_server *s, uint64_t now_ns)
{
    pthread_mutex_lock(&s->lock);
    for (struct exchange *x; (x = s->first_unsent) != NULL;) {
        x->sent_ns = now_ns;
        if (x->out.n > x->n_sent) wake(x);
        unlist_unsent(x);
    }
    s->sent_ns = now_ns;
    pthread_mutex_unlock(&s->lock);
}

void exchange_end(struct exchange *x)
{
    struct http_server *s = x->server;
    pthread_mutex_lock(&s->lock);
    unpost(x);
    pthread_mutex_unlock(&s->lock);
}

static void wait_until(struct http_server *s, pthread_cond_t *cond, uint64_t ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec += (long)(ns % 1000000000u);
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_cond_timedwait(cond, &s->lock, &until);
}

struct exchange *http_server_take(struct http_server *s, uint64_t wait_ns)
{
    pthread_mutex_lock(&s->lock);
    if (s->first_waiting == NULL && wait_ns > 0) wait_until(s, &s->arrived, wait_ns);
    struct exchange *x = s->first_waiting;
    if (x != NULL) s->first_waiting = x->next_waiting;
    if (s->first_waiting == NULL) s->last_waiting = NULL;
    pthread_mutex_unlock(&s->lock);
    return x;
}

/* Sets is_gone of each of n waiting calls: whether its client has closed its side. */
static void mark_gone(struct exchange *const *calls, size_t n)
{
    struct pollfd p[LOOK_AT_ONCE];
    for (size_t i = 0; i < n; i++) p[i] = (struct pollfd){.fd = calls[i]->fd, .events = POLLRDHUP};
    if (n == 0 || poll(p, (nfds_t)n, 0) < 1) return;
    for (size_t i = 0; i < n; i++)
        calls[i]->is_gone = (p[i].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void http_server_look(struct http_server *s)
{
    struct exchange *calls[LOOK_AT_ONCE];
    size_t n = 0;
    pthread_mutex_lock(&s->lock);
    for (struct exchange *x = s->first; x != NULL; x = x->next) {
        if (!x->is_suspended || x->is_gone) continue;
        calls[n++] = x;
        if (n == LOOK_AT_ONCE) mark_gone(calls, n);
        if (n == LOOK_AT_ONCE) n = 0;
    }
    mark_gone(calls, n);
    pthread_mutex_unlock(&s->lock);
}

struct exchange *http_server_take_gone(struct http_server *s)
{
    struct exchange *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (struct exchange *x = s->first; x != NULL && found == NULL; x = x->next) {
        if (!x->is_gone || x->is_gone_told || x->state == NULL) continue;
        x->is_gone_told = true;
        found = x;
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

void http_server_refuse(struct http_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->refuses = true;
    pthread_mutex_unlock(&s->lock);
}

size_t http_server_n_open(struct http_server *s)
{
    pthread_mutex_lock(&s->lock);
    const size_t n = s->n_open;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void http_server_flush(struct http_server *s, uint64_t wait_ns)
{
    const uint64_t until = clock_ns() + wait_ns;
    pthread_mutex_lock(&s->lock);
    for (uint64_t now = clock_ns(); s->n_connected > 0 && now < until; now = clock_ns())
        wait_until(s, &s->sent, until - now);
    pthread_mutex_unlock(&s->lock);
}

void http_server_fail_all(struct http_server *s, const char *message)
{
    struct strbuf error;
    strbuf_init(&error);
    pthread_mutex_lock(&s->lock);
    s->refuses = true;
    for (struct exchange *x = s->first; x != NULL; x = x->next) {
        if (x->has_ended) continue;
        strbuf_clear(&error);
        if (x->is_stream) strbuf_puts(&error, "data: ");
        http_error(HTTP_UNAVAILABLE, "server_ends", message, &error);
        if (x->is_stream) strbuf_puts(&error, "\n\n");
        if (x->is_stream) move_bytes(&x->out, &error);
        if (!x->is_stream) exchange_set(x, HTTP_UNAVAILABLE, http_json, &error);
        x->has_ended = true;
        wake(x);
    }
    pthread_mutex_unlock(&s->lock);
    strbuf_fini(&error);
}
