/* The lead's inside, shared by lead.c (rows, journal, results), lead_input.c (lines),
 * lead_choices.c (several answers to one line) and lead_partial.c (unfinished rows). */
#ifndef SHOAL_SERVE_LEAD_LEAD_PRIVATE_H
#define SHOAL_SERVE_LEAD_LEAD_PRIVATE_H

#include "serve/input/line_reader.h"
#include "serve/journal/id_set.h"
#include "serve/journal/journal.h"
#include "serve/lead/lead.h"
#include "serve/output/progress.h"
#include "serve/output/result_cache.h"
#include "serve/output/result_writer.h"
#include "serve/request/request_list.h"

/* Requests that were read and are not ordered yet. The scheduler gets them a quarter of the
 * writer's window at a time: while one quarter's last rows run, the next quarters can. */
struct order_window {
    struct request **requests; /* [n] of capacity; owned, and so are they */
    size_t n, capacity, bytes; /* bytes: what they may come to hold */
};

enum { LEAD_ERRORS_SHOWN = 3 };

/* The rows of this run, without those that earlier runs finished. */
struct lead_rows {
    uint64_t n, n_errors;
    struct strbuf shown[LEAD_ERRORS_SHOWN]; /* a sentence for each of the first error rows */
};

struct lead {
    struct lead_options o;
    struct request_rules rules;
    struct request_warnings warnings;
    struct line_reader *reader;
    struct result_writer *writer;
    struct journal *journal; /* NULL: none */
    struct scheduler *scheduler;
    struct order_window window;
    struct result_cache *results; /* NULL: off */
    struct request_list parents;  /* lines with several answers, until all are there; owned */
    struct id_set ids;
    struct strbuf row; /* scratch */
    struct progress progress;
    struct serve_summary stats;
    struct lead_rows rows;
    uint64_t n_read, start_ns;
    uint64_t n_ordered; /* order numbers given out */
    bool all_read;
    bool failed;      /* journal or output could not be written */
    bool is_complete; /* by an earlier run */
};

/* All of these are Local. Errors, unless more is said: STATUS_IO of journal and output,
 * STATUS_MEMORY. */

/* --- lead.c --- */

/* Hands a finished request's line to the journal and the writer. */
struct status lead_put_row(struct lead *l, const struct request *r);

/* Commits the journal, at once (now) or when a commit is due, and then writes to the output the
 * rows that it holds: no row that was seen in the output is ever taken back. */
struct status lead_flush(struct lead *l, bool now);

/* --- lead_choices.c --- */

/* Makes the requests that find p's answers, as far as earlier runs came with them (hit NULL: none).
 * Owner of p: the lead. */
struct status lead_open_choices(struct lead *l, struct request *p, const struct journal_hit *hit);

/* r is finished and nobody else's: its row, or a place among its line's answers. */
struct status lead_end_request(struct lead *l, struct request *r);

/* --- lead_partial.c: what of unfinished rows goes to the journal, and comes back; nothing without
 * one --- */

/* Saves what r sampled since it was last saved, n_least tokens or more. */
struct status lead_save_tokens(struct lead *l, struct request *r, size_t n_least);

/* Saves a search, n_least steps or more since it was last saved. */
struct status lead_save_search(struct lead *l, struct request *p, size_t n_least);

/* Saves all that is not finished. */
struct status lead_save_all(struct lead *l);

/* Gives r, or a search just made, what an earlier run saved of it. What is not of r's form is left:
 * r begins anew. Errors: STATUS_INPUT for tokens outside the vocabulary, STATUS_MEMORY. */
struct status lead_take_tokens(struct lead *l, struct request *r, const struct journal_hit *hit);
struct status lead_take_search(struct lead *l, struct request *p, const struct journal_hit *hit);

/* --- lead_input.c --- */

/* A request that is not finished, and that no equal one runs for, waits to be ordered. */
struct status lead_add_request(struct lead *l, struct request *r);

/* Several answers: lead_open_choices. Else takes what an earlier run sampled (hit; NULL: nothing),
 * asks the result cache, then: a row, a wait, or lead_add_request. Owner of r: the lead. */
struct status lead_take_request(struct lead *l, struct request *r, const struct journal_hit *hit);

/* Reads on. A step is not held up by reading for long: what does not fit waits for the next one.
 * Errors: STATUS_INPUT, too, where the input is not what an earlier run saw; likewise the next. */
struct status lead_read_lines(struct lead *l);

/* Rows of earlier runs, up to the first that is missing, go to the output where they are not there
 * yet. */
struct status lead_take_finished_rows(struct lead *l);

#endif
