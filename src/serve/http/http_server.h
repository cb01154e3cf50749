/* Handles connections: reads calls, hands them to the lead, and sends answers, whole or in pieces.
 * A thread of libmicrohttpd serves all connections. It answers some calls itself (health, models,
 * and all that it refuses) and posts the others; the lead's thread takes and ends these. Knows
 * HTTP, not requests. Called by http_port.c and batches.c. */
#ifndef SHOAL_SERVE_HTTP_HTTP_SERVER_H
#define SHOAL_SERVE_HTTP_HTTP_SERVER_H

#include "serve/http/http_api.h"
#include "serve/http/http_flags.h"

#include <stdint.h>

struct http_server;
struct exchange; /* a call and its answer */

/* Local. Binds the address, but does not listen yet, so that a port in use ends a job before it
 * loads anything. models: the names that /v1/models lists, NULL at the end. All is borrowed.
 * Errors: STATUS_USAGE (the address cannot be used), STATUS_INPUT (keys), STATUS_MEMORY. */
struct status http_server_create(const struct http_flags *flags, const char *const *models,
                                 struct http_server **out);

/* Local. Returns the port that was bound; 0: unknown. */
uint16_t http_server_port(const struct http_server *s);

/* Local. Begins to serve, and logs the address. Errors: STATUS_IO. */
struct status http_server_start(struct http_server *s);

/* Local. Ends all connections, and with an error all calls that the lead has not ended; the lead
 * may not use them afterwards. Accepts NULL. */
void http_server_destroy(struct http_server **s);

/* ---- the lead's side; Local, for the lead's thread; http_server_fail_all and http_server_flush
 * may also be called by the thread that is about to end the process ---- */

/* Returns the next posted call in order of arrival; waits for one at most wait_ns. NULL: none came.
 * The caller must end the call. */
struct exchange *http_server_take(struct http_server *s, uint64_t wait_ns);

/* Finds the clients that have closed their connections. libmicrohttpd does not notice it while
 * their calls wait. */
void http_server_look(struct http_server *s);

/* Returns a call whose client is known to have gone, which has not ended, and which has a state
 * (exchange_keep). Returns each call once. NULL: none. */
struct exchange *http_server_take_gone(struct http_server *s);

/* Makes the server refuse calls that run the model with 503 from now on; /health then also answers
 * 503. */
void http_server_refuse(struct http_server *s);

/* Returns the number of posted calls that the lead has not ended. */
size_t http_server_n_open(struct http_server *s);

/* Waits until every posted call has been answered in full or has lost its connection, at most
 * wait_ns. */
void http_server_flush(struct http_server *s, uint64_t wait_ns);

/* Ends every posted call with an error, even in the middle of a stream, because the process is
 * about to end. Drops what the lead writes afterwards. */
void http_server_fail_all(struct http_server *s, const char *message);

/* Return the parts of a taken call. exchange_id returns the X-Request-Id header; "" if the call has
 * none, or one of 128 bytes or more, or one that is not printable. */
enum http_endpoint exchange_endpoint(const struct exchange *x);
const char *exchange_id(const struct exchange *x);
const char *exchange_item(const struct exchange *x);         /* the item of the path (http_route) */
const char *exchange_content_type(const struct exchange *x); /* "": none, or 256 bytes or more */
const char *exchange_body(const struct exchange *x, size_t *n);
uint64_t exchange_arrived_ns(const struct exchange *x); /* clock_ns() when its body was complete */

/* Frees the body; call it once the body has been read. */
void exchange_forget_body(struct exchange *x);

/* Store and return a pointer that the lead keeps with a call; NULL at first. */
void exchange_keep(struct exchange *x, void *state);
void *exchange_state(const struct exchange *x);

/* Sends the whole answer and ends the call; the caller may not use x afterwards. `type` is the
 * Content-Type, a constant. The bytes are taken from `body`, which is then empty. */
void exchange_answer(struct exchange *x, enum http_status status, const char *type,
                     struct strbuf *body);

/* As exchange_answer, with the first n_bytes of the open file fd as the body. Closes the file once
 * they are sent. */
void exchange_answer_file(struct exchange *x, int fd, uint64_t n_bytes);

/* Send an answer in pieces (server-sent events): any number of exchange_write, which take the bytes
 * of `events`, and exchange_end. The answer has begun with the first piece; before it, the call may
 * still get a whole answer. A written piece may wait for http_server_send or exchange_end. The
 * caller may not use x after exchange_end. */
bool exchange_has_begun(const struct exchange *x);
void exchange_write(struct exchange *x, struct strbuf *events);
void exchange_end(struct exchange *x);

/* Returns whether new text of this stream should be written now; otherwise the caller lets it wait
 * for more. A stream's first text never waits. Later text waits until 1 ms times n_streams, the
 * number of open streams, but at most 100 ms, have passed since the stream's last send, or would
 * have passed after the next step: a send takes the HTTP thread and a client on this host tens of
 * us. now_ns: clock_ns(). For the thread that calls http_server_send. */
bool exchange_is_due(const struct exchange *x, size_t n_streams, uint64_t now_ns);

/* Sends what has been written to the streams; call it once in each step, after all writes, because
 * the HTTP thread walks all waiting connections each time that it wakes. now_ns: clock_ns(). */
void http_server_send(struct http_server *s, uint64_t now_ns);

#endif
