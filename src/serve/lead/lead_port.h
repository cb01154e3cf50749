/* A port: where the lead's requests come from, and where their answers go. There are two: the lines
 * of a file with their output and journal (lead_lines.c), and the server (serve/http). The lead's
 * loop is the same for both. */
#ifndef SHOAL_SERVE_LEAD_LEAD_PORT_H
#define SHOAL_SERVE_LEAD_LEAD_PORT_H

#include "base/status.h"

#include <stdint.h>

struct lead;
struct request;
struct request_rules;
struct progress_view; /* serve/output/progress.h */
struct serve_summary; /* serve/schedule/stats.h */

/* All functions are Local; the lead's thread calls them, except save. `user` is the port's. Errors,
 * unless more is said: STATUS_IO, STATUS_MEMORY, STATUS_DRAINED (the output is a pipe whose reader
 * has gone); they end the run. */
struct lead_port {
    void *user;

    /* Before a step: passes new requests to lead_take, and may cancel others (lead_cancel). Waits
     * for a request, at most a fifth of a second, if lead_is_idle. Errors: also STATUS_INPUT. */
    struct status (*read)(void *user, struct lead *l);

    /* True when no more requests will come; the run then ends with the last answer. */
    bool (*is_at_end)(const void *user);

    /* Takes the answers to r, or its error. The lead owns r, which is valid until the function
     * returns. */
    struct status (*put)(void *user, struct lead *l, const struct request *r);

    /* Called each time a replica's result for a step of `group` has been committed. */
    struct status (*commit)(void *user, struct lead *l, int32_t group);

    /* Called before each step once the job has been asked to drain, until it returns true: no more
     * steps are to be planned. */
    bool (*may_stop)(void *user, struct lead *l);

    /* Called when the run ends early and no plan is in flight. Saves or ends unfinished requests.
     */
    struct status (*drain)(void *user, struct lead *l);

    /* Called when the process is about to end after the loss of another rank. Saves what it can.
     * Runs on any thread, at any moment, while the lead's thread may go on; the process ends after
     * two seconds at the latest. */
    void (*save)(void *user);

    /* Returns how many seconds before a time limit the drain must begin. */
    double (*end_s)(const void *user);

    /* Called after the last step: completes and closes what the port has open. */
    struct status (*close)(void *user);

    /* Set the counts of rows and lines for the progress display and for the summary. */
    void (*view)(const void *user, struct progress_view *v);
    void (*sum)(const void *user, struct serve_summary *s);
};

/* Takes ownership of the new request r, and runs it, or ends it if it has an error. The port's put
 * gets r when it is finished, possibly before this function returns. Errors: STATUS_MEMORY, and
 * those of put. */
struct status lead_take(struct lead *l, struct request *r);

/* Sorts the requests taken since the last call (--order) and hands them to the scheduler. lead_take
 * calls it when a quarter of the window is full; with --order input, each time. Errors:
 * STATUS_MEMORY. */
struct status lead_order(struct lead *l);

/* Ends the request r, which put has not had yet, as an error row with this code (a constant) and
 * message. put gets r at once or, if a step with r is in flight, with that step's result. Does
 * not cancel a request that waits for an equal one. Errors: as lead_take. */
struct status lead_cancel(struct lead *l, const struct request *r, const char *code,
                          const char *message);

/* True when no request runs or waits. */
bool lead_is_idle(const struct lead *l);

/* True while more waiting requests would be useful. */
bool lead_wants_more(const struct lead *l);

/* Calls visit for each request that runs in `group` or waits after a preemption; for a request with
 * several answers, once for each answer. Returns visit's first error. */
struct status lead_visit(struct lead *l, int32_t group,
                         struct status (*visit)(void *user, struct request *r), void *user);

/* Returns the rules by which the lead checks requests; borrowed. */
const struct request_rules *lead_rules(const struct lead *l);

#endif
