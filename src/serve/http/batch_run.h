/* Runs the lines of one uploaded batch file through the lead, at the lowest priority. Reads lines
 * while the scheduler wants more, writes their rows in input order, and keeps a journal, so that a
 * later server can go on. The rows are those of a job with the server's task (generate, embed or
 * rank). Only whole rows are kept; an unfinished line begins anew. Called by batches.c, on the
 * lead's thread. */
#ifndef SHOAL_SERVE_HTTP_BATCH_RUN_H
#define SHOAL_SERVE_HTTP_BATCH_RUN_H

#include "serve/http/batch_store.h"
#include "serve/lead/lead_port.h"

struct batch_run;

/* Local. Opens the files of b. settings: all flags that change a row's bytes
 * (serve/journal/journal.h). A batch that an earlier server began keeps its adapters
 * (batch_adapters.h). Errors: journal_open's, and STATUS_INPUT if the input is no regular file of
 * text. */
struct status batch_run_create(const struct batch_store *store, struct batch *b,
                               const char *settings, struct batch_run **out);

/* Local. Closes the files. The lead must have none of the run's requests any more. Accepts NULL. */
void batch_run_destroy(struct batch_run **r);

/* Local. Does some work before a step: first takes over rows of an earlier server, then reads lines
 * and passes their requests to the lead. *failure says why the batch cannot go on: create's errors,
 * and STATUS_INPUT (the input has changed, or is damaged). Errors: those of lead_take. */
struct status batch_run_read(struct batch_run *r, struct lead *l, struct status *failure);

/* Local. True while batch_run_read still takes over rows of an earlier server. A batch that is
 * cancelled meanwhile keeps these rows. */
bool batch_run_resumes(const struct batch_run *r);

/* Local. Takes the answer to a line of the run. Errors: as create. */
struct status batch_run_put(struct batch_run *r, struct lead *l, const struct request *request);

/* Local. Makes finished rows durable and writes them to the output: when a commit is due, or at
 * once with `now`. Errors: as create. */
struct status batch_run_commit(struct batch_run *r, bool now);

/* Local. Cancels the lines that the lead has, as far as it can. Rows that are put later are
 * dropped. Errors: as lead_cancel. */
struct status batch_run_cancel(struct batch_run *r, struct lead *l);

/* Local. True when every line has its row. */
bool batch_run_is_done(const struct batch_run *r);

/* Local. Returns the number of lines whose requests the lead has. */
size_t batch_run_n_open(const struct batch_run *r);

/* Local. Commits all rows, makes the output durable and closes it. Errors: as create. */
struct status batch_run_close(struct batch_run *r);

/* Local, any thread: makes the journal's last commit before the process ends. */
void batch_run_save(struct batch_run *r);

#endif
