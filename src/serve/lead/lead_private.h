/* The lead's internals, shared by lead.c (requests and results), lead_choices.c (several answers to
 * one line), and the port of a file of lines: lead_lines.c (rows, journal), lead_input.c (lines)
 * and lead_partial.c (unfinished rows). */
#ifndef SHOAL_SERVE_LEAD_LEAD_PRIVATE_H
#define SHOAL_SERVE_LEAD_LEAD_PRIVATE_H

#include "serve/input/line_reader.h"
#include "serve/journal/id_set.h"
#include "serve/journal/journal.h"
#include "serve/lead/lead.h"
#include "serve/lead/lead_port.h"
#include "serve/output/progress.h"
#include "serve/output/result_cache.h"
#include "serve/output/result_writer.h"
#include "serve/request/request_list.h"

/* Requests that were read and not yet ordered. They go to the scheduler in batches of a quarter of
 * the writer's window, so that a later batch runs alongside the last rows of the one before. */
struct order_window {
    struct request **requests; /* [n] of capacity; the array and the requests are owned */
    size_t n, capacity, bytes; /* bytes: bounds the memory of the requests */
};

enum { LEAD_ERRORS_SHOWN = 3 };

/* The rows of this run, without those that earlier runs finished. */
struct lead_rows {
    uint64_t n, n_errors;
    struct strbuf shown[LEAD_ERRORS_SHOWN]; /* a sentence for each of the first error rows */
};

/* The port of a file of lines. */
struct lead_lines {
    const struct input_files *input;
    struct input_files one_input; /* `input` points to it if the options name one file */
    struct line_reader *reader;
    struct result_writer *writer;
    struct journal *journal;    /* NULL: none */
    struct logprobs_part *part; /* what --save-logprobs saves; NULL: nothing */
    struct id_set ids;
    struct lead_rows rows;
    uint64_t n_read;
    uint64_t n_template_steps; /* steps of the chat templates of all lines read */
    bool all_read;
    bool failed;      /* journal or output could not be written */
    bool is_complete; /* an earlier run finished the job */
};

struct lead {
    struct lead_options o;
    struct request_rules rules;
    struct request_warnings warnings;
    struct lead_port port;
    struct lead_lines lines; /* all zeros with another port */
    struct scheduler *scheduler;
    struct order_window window;
    struct result_cache *results; /* NULL: off */
    struct request_list parents; /* unfinished lines with several answers or a beam search; owned */
    struct strbuf row;           /* scratch */
    struct progress progress;
    struct serve_summary stats;
    uint64_t start_ns;
    uint64_t n_ordered; /* order numbers given out so far */
};

/* All of these are Local. Errors, unless more is said: STATUS_IO of journal and output,
 * STATUS_MEMORY. */

/* --- lead.c --- */

/* Gives the finished request r to the port. */
struct status lead_put(struct lead *l, const struct request *r);

/* As lead_take (lead_port.h). hit: what an earlier run saved of r's line; NULL: nothing. */
struct status lead_take_new(struct lead *l, struct request *r, const struct journal_hit *hit);

/* Adds a request to the window of requests that wait to be ordered. Calls lead_order when the
 * window is full; with --order input, each time. The request must be unfinished, and
 * must not have to wait for an equal one (result_cache_ask). */
struct status lead_add_request(struct lead *l, struct request *r);

/* Takes ownership of r. If r has several answers or is a beam search, calls lead_open_choices.
 * Otherwise restores saved tokens (hit; NULL: none) and asks the result cache; then ends r, lets it
 * wait for an equal request, or calls lead_add_request. */
struct status lead_take_request(struct lead *l, struct request *r, const struct journal_hit *hit);

/* --- lead_lines.c --- */

/* Makes the lines of the input the lead's port. Errors: lead_create's. lead_lines_close frees
 * what the port holds; it does nothing if the lead has another port. */
struct status lead_lines_open(struct lead *l);
void lead_lines_close(struct lead *l);

/* If all rows of the run are error rows, logs the first errors; never in an audit. */
void lead_lines_report(const struct lead *l);

/* The scheduler's store_rows: writes the rows to the part of --save-logprobs. Errors:
 * file_claims_check's and logprobs_part_put_rows's. */
struct status lead_store_rows(void *user, const char *rows, size_t n_bytes, uint64_t *at);

/* Commits the journal if a commit is due or `now` is true, then writes the committed rows to the
 * output. So a row that a reader has seen in the output is never lost. Without a journal, only
 * writes the rows. Errors: also STATUS_DRAINED (result_writer_flush). */
struct status lead_flush(struct lead *l, bool now);

/* --- lead_choices.c --- */

/* Makes and submits the requests for the answers to p, which has several answers or is a beam
 * search. hit: the tokens that an earlier run saved; NULL: none. The lead owns p. */
struct status lead_open_choices(struct lead *l, struct request *p, const struct journal_hit *hit);

/* Takes ownership of the finished request r and gives it to the port. If r is one of several
 * answers, stores it instead; the last one advances the line's beam search, or gives the line's
 * request to the port. */
struct status lead_end_request(struct lead *l, struct request *r);

/* --- lead_partial.c: saves unfinished rows in the journal and restores them; does nothing without
 * a journal --- */

/* Saves the tokens that r sampled since it was last saved, if there are at least n_least of them.
 * Does nothing for an error row or a probe of a beam search. */
struct status lead_save_tokens(struct lead *l, struct request *r, size_t n_least);

/* Saves p's beam search if it has made at least n_least steps since it was last saved. */
struct status lead_save_search(struct lead *l, struct request *p, size_t n_least);

/* Saves all unfinished requests and searches, and the finished answers of unfinished lines. */
struct status lead_save_all(struct lead *l);

/* Gives r the tokens that an earlier run saved (hit; NULL: none), but not the last one if r needs
 * the prompt's log-probabilities or hidden rows, which are then computed again. If the tokens do
 * not belong to r, r starts from its prompt. Errors: STATUS_INPUT for a token outside the
 * vocabulary, STATUS_MEMORY. */
struct status lead_take_tokens(struct lead *l, struct request *r, const struct journal_hit *hit);

/* As lead_take_tokens, for the beam search of p, which has just been made. Errors: STATUS_INPUT if
 * the saved bytes are not the state of such a search, STATUS_MEMORY. */
struct status lead_take_search(struct lead *l, struct request *p, const struct journal_hit *hit);

/* --- lead_input.c --- */

/* Reads some lines before a step, few enough not to delay the step for long. Errors of this and the
 * next function: STATUS_INPUT (the input is not the one that an earlier run saw, or its compressed
 * data are damaged), STATUS_IO, STATUS_MEMORY. */
struct status lead_read_lines(struct lead *l);

/* Hands to the writer the rows that earlier runs finished, up to the first missing one. The writer
 * adds those that the output lacks. */
struct status lead_take_finished_rows(struct lead *l);

#endif
