/* A doubly linked list of requests, through their members prev and next, and the order in which
 * requests run. Called by the scheduler, the lead and the result cache. */
#ifndef SHOAL_SERVE_REQUEST_REQUEST_LIST_H
#define SHOAL_SERVE_REQUEST_REQUEST_LIST_H

#include "serve/request/request.h"

/* Local. True when a runs before b: by priority, then by order. */
static inline bool request_is_before(const struct request *a, const struct request *b)
{
    return a->ask->priority != b->ask->priority ? a->ask->priority < b->ask->priority
                                                : a->order < b->order;
}

/* Empty when zero-initialised. Does not own its requests. */
struct request_list {
    struct request *head, *tail; /* NULL: empty */
    size_t n;
};

/* Local. Puts r before `next` (NULL: at the tail). */
static inline void request_list_put(struct request_list *l, struct request *r, struct request *next)
{
    r->next = next;
    r->prev = next != NULL ? next->prev : l->tail;
    *(r->prev != NULL ? &r->prev->next : &l->head) = r;
    *(next != NULL ? &next->prev : &l->tail) = r;
    l->n++;
}

/* Local. Removes r from the list. */
static inline void request_list_take(struct request_list *l, struct request *r)
{
    *(r->prev != NULL ? &r->prev->next : &l->head) = r->next;
    *(r->next != NULL ? &r->next->prev : &l->tail) = r->prev;
    r->prev = r->next = NULL;
    l->n--;
}

/* Local. Destroys every request of the list. */
static inline void request_list_clear(struct request_list *l)
{
    while (l->head != NULL) {
        struct request *r = l->head;
        request_list_take(l, r);
        request_destroy(&r);
    }
}

/* Local. Insert r at its place in the running order (request_is_before). One function searches from
 * the head, the other from the tail. */
static inline void request_list_put_from_head(struct request_list *l, struct request *r)
{
    struct request *next = l->head;
    while (next != NULL && request_is_before(next, r)) next = next->next;
    request_list_put(l, r, next);
}

static inline void request_list_put_from_tail(struct request_list *l, struct request *r)
{
    struct request *prev = l->tail;
    while (prev != NULL && request_is_before(r, prev)) prev = prev->prev;
    request_list_put(l, r, prev != NULL ? prev->next : l->head);
}

#endif
