/* Answers the calls of /v1/files and /v1/batches, and runs the batches one at a time, the oldest
 * first, at the lowest priority. Called by http_port.c, on the lead's thread. */
#ifndef SHOAL_SERVE_HTTP_BATCHES_H
#define SHOAL_SERVE_HTTP_BATCHES_H

#include "serve/http/http_server.h"
#include "serve/lead/lead_port.h"

struct batches;
struct file_claims;

/* Local. Claims the folder and finds the batches that an earlier server left. folder NULL: every
 * call is refused. settings: all flags that change a row's bytes; copied. endpoints: those that a
 * batch may name, NULL at the end; borrowed. claims: borrowed; NULL: none. Errors: those of
 * batch_store_open. */
struct status batches_create(const char *folder, const char *settings, const char *const *endpoints,
                             struct file_claims *claims, struct batches **out);

/* Local. Closes everything; call it once the lead has no requests any more. Accepts NULL. */
void batches_destroy(struct batches **b);

/* Local. True when calls of this endpoint go to batches_call. */
bool batches_has(enum http_endpoint endpoint);

/* Local. Answers and ends a call. Errors: STATUS_MEMORY. */
struct status batches_call(struct batches *b, struct exchange *x);

/* Local. True when a batch runs or waits to run; false after batches_stop. */
bool batches_has_work(const struct batches *b);

/* Local. Goes on with the running batch, or begins the next one. A batch that cannot go on fails,
 * and the server goes on; a batch that lacks memory waits for the server's next start. Errors:
 * STATUS_IO (another server has taken over the folder), and those of lead_take and lead_cancel. */
struct status batches_read(struct batches *b, struct lead *l);

/* Local. Takes the answer to a line of a batch. */
void batches_put(struct batches *b, struct lead *l, const struct request *r);

/* Local. Called after each step. When a commit of the journal is due (journal_is_due), makes the
 * finished rows of the running batch durable and writes them to its output. */
void batches_commit(struct batches *b);

/* Local. Stops reading lines; unfinished ones are left to the next server. */
void batches_stop(struct batches *b);

/* Local. Makes the finished rows durable and writes them to the output. */
void batches_close(struct batches *b);

/* Local, any thread: makes the finished rows durable in the journal, just before the process
 * ends. */
void batches_save(struct batches *b);

#endif
