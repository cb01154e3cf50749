/* Shared by exchange.c (a call and its answer, between two threads) and http_server.c
 * (libmicrohttpd's callbacks). */
#ifndef SHOAL_SERVE_HTTP_HTTP_SERVER_PRIVATE_H
#define SHOAL_SERVE_HTTP_HTTP_SERVER_PRIVATE_H

#include "serve/http/http_server.h"

#include <microhttpd.h>
#include <pthread.h>

enum { HTTP_ID_MAX = 128, HTTP_TYPE_MAX = 256 };

/* A call. Two owners hold it: the connection, until libmicrohttpd reports that the call is over;
 * and the lead, from the call's posting until the lead ends it. It is freed when neither holds it.
 */
struct exchange {
    struct http_server *server;
    /* written by the HTTP thread until the call is posted; then constant, but the lead may free the
     * body */
    enum http_endpoint endpoint;
    char id[HTTP_ID_MAX], item[HTTP_ITEM_MAX], content_type[HTTP_TYPE_MAX];
    struct strbuf body;
    uint64_t arrived_ns;      /* when it was posted */
    uint64_t n_received;      /* bytes of the body so far */
    enum http_status refusal; /* HTTP_OK: not refused; otherwise further bytes of the body are
                                 dropped */
    int fd;
    /* used by the lead's thread alone */
    void *state;
    /* used under the server's lock */
    struct MHD_Connection *connection; /* NULL: the connection has ended */
    struct strbuf out; /* the answer's bytes, of which libmicrohttpd has copied [0, n_sent); emptied
                          when it has copied all */
    size_t n_sent;
    uint64_t sent_ns; /* when http_server_send last sent pieces of this stream; 0: not yet */
    int file;         /* the first n_file bytes of this file are the answer; -1: none */
    uint64_t n_file;
    enum http_status status;
    const char *type; /* Content-Type; NULL: the answer has not begun */
    bool is_stream, has_ended, is_suspended, is_gone, is_gone_told;
    bool was_posted, is_posted;   /* is_posted: the call is in the queue, or the lead has it */
    struct exchange *prev, *next; /* in the server's list of posted calls */
    struct exchange *next_waiting;
    struct exchange *prev_unsent, *next_unsent; /* in the list of streams with unsent bytes */
    bool is_unsent;                             /* the stream is in that list */
    bool is_corked;                             /* used by the HTTP thread alone */
};

struct http_server {
    struct http_flags flags;
    const char *const *models;
    struct http_keys keys;
    int listen_fd;
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock;
    pthread_cond_t arrived, sent;
    struct exchange *first;                        /* list of the posted calls */
    struct exchange *first_waiting, *last_waiting; /* list of the posted calls that the lead has
                                                      not taken */
    size_t n_open;                                 /* calls posted and not ended by the lead */
    size_t n_connected;                            /* calls posted and still connected */
    size_t body_bytes;             /* bytes of all bodies that have not been freed */
    struct exchange *first_unsent; /* list of the streams to which exchange_write has added bytes
                                      that http_server_send has not sent */
    uint64_t sent_ns;              /* time of the last http_server_send; 0: none */
    bool refuses;
    uint64_t last_end_ns, mean_end_ns; /* the last end of a call; mean time between recent ends */
};

extern const char http_json[];

/* exchange.c. All of these are Local, with the server's lock held. */

/* Puts a call into the queue and suspends its connection. */
void exchange_post(struct exchange *x);

/* Frees a call's body and subtracts it from the server's body_bytes. */
void exchange_drop_body(struct exchange *x);

/* Marks the connection as ended; may free x. */
void exchange_lose_connection(struct exchange *x);

/* Makes the kernel gather what is sent to the connection, or send what it has gathered. */
void exchange_cork(struct exchange *x, bool is_corked);

/* exchange.c. Local. Set the whole answer of a call. If the call is posted, the caller holds the
 * server's lock. */
void exchange_set(struct exchange *x, enum http_status status, const char *type,
                  struct strbuf *body);
void exchange_set_error(struct exchange *x, enum http_status status, const char *code,
                        const char *message);

/* exchange.c. Local, without the lock; libmicrohttpd's content reader. Copies up to n bytes of the
 * answer; suspends the connection if none are ready. */
ssize_t exchange_read(void *x, uint64_t pos, char *bytes, size_t n);

#endif
