/* Shows on stderr how far a job is: a bar on a terminal, else a log line every few seconds. Called
 * by the lead. */
#ifndef SHOAL_SERVE_OUTPUT_PROGRESS_H
#define SHOAL_SERVE_OUTPUT_PROGRESS_H

#include "base/strbuf.h"
#include "serve/schedule/scheduler.h"

struct progress {
    bool quiet, is_terminal, drawn;
    uint64_t start_ns, last_ns;
    uint64_t last_prompt, last_generated; /* token counts when last shown */
    uint64_t first_ns;                    /* of the first view; 0: there was none */
    double first_fraction;                /* the part that earlier runs had done; negative:
                                             unknown */
    double left_s;                        /* when last shown; 0: unknown */
};

struct progress_view {
    uint64_t n_done, n_read; /* rows written, and read */
    uint64_t n_waiting;      /* rows that are done and wait for an earlier one to be written */
    bool all_read;
    double read_fraction; /* of the input's bytes; negative if its size is unknown */
    uint64_t n_prompt_tokens, n_generated_tokens;
    struct scheduler_load load;
};

/* Local. Starts the clock. */
void progress_init(struct progress *p, bool quiet);

/* Local. Shows the view if it is due: 5 times a second on a terminal, else every 5 s. */
void progress_update(struct progress *p, const struct progress_view *v);

/* Local. Shows the view a last time, with the rates of the whole run, and ends the bar's line. */
void progress_end(struct progress *p, const struct progress_view *v);

/* Local. Estimates the time left from the part of the job done since the first view.
 * progress_update does this before it makes the text; public for tests. */
void progress_estimate(struct progress *p, const struct progress_view *v, uint64_t now_ns);

/* Local. The text of a view, for tests: the rates are over `seconds`, the time since the view
 * before, whose token counts p has; bar: with a bar of '#'. */
void progress_text(const struct progress *p, const struct progress_view *v, double seconds,
                   bool bar, struct strbuf *out);

#endif
