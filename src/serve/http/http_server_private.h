/* Inside the server: exchange.c (a call and its answer, between two threads) and http_server.c
 * (libmicrohttpd's callbacks). */
#ifndef SHOAL_SERVE_HTTP_HTTP_SERVER_PRIVATE_H
#define SHOAL_SERVE_HTTP_HTTP_SERVER_PRIVATE_H

#include "serve/http/http_server.h"

#include <microhttpd.h>
#include <pthread.h>

enum { HTTP_ID_MAX = 128 };

/* A call. The connection holds it until libmicrohttpd says that the call is over, and the lead from
 * the time it is posted until it ends it; then it is freed. */
struct exchange {
    struct http_server *server;
    /* the HTTP thread's until the call is posted, then constant */
    enum http_endpoint endpoint;
    char id[HTTP_ID_MAX];
    struct strbuf body;
    enum http_status refusal; /* HTTP_OK: none; else the body is dropped */
    int fd;
    /* the lead's */
    void *state;
    /* under the server's lock */
    struct MHD_Connection *connection; /* NULL: it has ended */
    struct strbuf out;                 /* the answer's bytes; [0, n_sent) were taken */
    size_t n_sent;
    enum http_status status;
    const char *type; /* Content-Type; NULL: the answer has not begun */
    bool is_stream, has_ended, is_suspended, is_gone, is_gone_told;
    bool was_posted, is_posted;   /* is: the lead has it, or it is in the queue */
    struct exchange *prev, *next; /* in the server's list of posted calls */
    struct exchange *next_waiting;
};

struct http_server {
    struct http_flags flags;
    const char *model_name;
    struct http_keys keys;
    int listen_fd;
    struct MHD_Daemon *daemon;
    pthread_mutex_t lock;
    pthread_cond_t arrived, sent;
    struct exchange *first;                        /* of the posted calls */
    struct exchange *first_waiting, *last_waiting; /* of those that were not taken */
    size_t n_open;                                 /* posted, and not ended by the lead */
    size_t n_connected;                            /* posted, and not yet sent in full */
    size_t body_bytes;                             /* of all calls that the lead has not read */
    bool refuses;
    uint64_t last_end_ns, mean_end_ns; /* the last call that ended, and the mean time between two */
};

extern const char http_json[];

/* exchange.c. All of these are Local, with the server's lock held. */

/* Puts a call into the queue and suspends its connection. */
void exchange_post(struct exchange *x);

/* Frees a call's body, and takes it out of the server's count. */
void exchange_drop_body(struct exchange *x);

/* The connection has ended: x may be freed. */
void exchange_lose_connection(struct exchange *x);

/* exchange.c. Local, without the lock: a call that is not posted gets its whole answer. */
void exchange_set(struct exchange *x, enum http_status status, const char *type,
                  struct strbuf *body);
void exchange_set_error(struct exchange *x, enum http_status status, const char *code,
                        const char *message);

/* exchange.c. Local. Takes up to n bytes of the answer (libmicrohttpd's content reader). */
ssize_t exchange_read(void *x, uint64_t pos, char *bytes, size_t n);

#endif
