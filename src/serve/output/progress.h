/* Shows on stderr how far a job is: a bar on a terminal, otherwise a log line every few seconds.
 * Called by the lead, whose port fills in a part of the view. */
#ifndef SHOAL_SERVE_OUTPUT_PROGRESS_H
#define SHOAL_SERVE_OUTPUT_PROGRESS_H

#include "base/strbuf.h"
#include "serve/schedule/scheduler.h"

struct progress {
    bool quiet, is_terminal, drawn;
    uint64_t start_ns, last_ns;
    uint64_t last_prompt, last_generated; /* token counts when last shown */
    uint64_t first_ns;                    /* time of the first view; 0: no view so far */
    double first_fraction; /* the fraction of the job that was done at the first view; negative:
                              unknown */
    double left_s;         /* estimated time left when last shown; 0: unknown */
};

struct progress_view {
    uint64_t n_done, n_read; /* rows written, and read */
    uint64_t n_waiting;      /* finished rows that wait until an earlier row is written */
    bool all_read;
    double read_fraction; /* fraction of the input's bytes that has been read; negative if the
                             size is unknown */
    uint64_t n_prompt_tokens, n_generated_tokens;
    struct scheduler_load load;
};

/* Local. Starts the clock. */
void progress_init(struct progress *p, bool quiet);

/* Local. Shows the view if it is due: 5 times a second on a terminal, otherwise every 5 s.
 * Does nothing if quiet. */
void progress_update(struct progress *p, const struct progress_view *v);

/* Local. Shows the view one last time, with the rates of the whole run, and ends the bar's line.
 * Does nothing if quiet. */
void progress_end(struct progress *p, const struct progress_view *v);

/* Local. Sets p->left_s from the part of the job done since the first view. Called before a view is
 * shown; public for tests. */
void progress_estimate(struct progress *p, const struct progress_view *v, uint64_t now_ns);

/* Local. Appends the text of a view; public for tests. Rates are over `seconds`, the time since the
 * view whose token counts p has. bar: the text begins with a bar of '#' if the fraction done is
 * known. */
void progress_text(const struct progress *p, const struct progress_view *v, double seconds,
                   bool bar, struct strbuf *out);

#endif
