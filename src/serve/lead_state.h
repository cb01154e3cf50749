/* The lead's inside, shared by lead.c (rows, journal, results) and lead_input.c (lines). */
#ifndef SHOAL_SERVE_LEAD_STATE_H
#define SHOAL_SERVE_LEAD_STATE_H

#include "serve/id_set.h"
#include "serve/journal.h"
#include "serve/lead.h"
#include "serve/line_reader.h"
#include "serve/progress.h"
#include "serve/result_writer.h"

struct lead {
    struct lead_options o;
    struct request_rules rules;
    struct line_reader *reader;
    struct result_writer *writer;
    struct journal *journal; /* NULL: none */
    struct scheduler *scheduler;
    struct id_set ids;
    struct strbuf row; /* scratch */
    struct progress progress;
    struct serve_summary stats;
    uint64_t n_read, start_ns;
    bool all_read;
    bool failed;      /* journal or output could not be written */
    bool is_complete; /* by an earlier run */
};

/* lead.c; all Local. */

/* Hands a finished request's line to the journal and the writer. */
struct status lead_put_row(struct lead *l, const struct request *r);

/* Rows reach the output when the journal has them, so that no row that was seen there is ever taken
 * back; commits wait until they are due, or do not (now). */
struct status lead_flush(struct lead *l, bool now);

/* lead_input.c; all Local. */

/* Reads on. A step is not held up by reading for long: what does not fit waits for the next one. */
struct status lead_read_lines(struct lead *l);

/* Rows of earlier runs, up to the first that is missing, go to the output where they are not there
 * yet. */
struct status lead_take_finished_rows(struct lead *l);

#endif
