/* Makes a request of its own for each of several answers to a line. These requests run, wait and
 * are preempted like any others. Through the prefix cache the answers share their prompt's KV
 * blocks, except the last block. Called by the lead, beam.c, the scheduler and serve/output.
 *
 * Why the last block is not copied: each answer computes its rows, at most 64, again. Copying would
 * need a new kind of plan for all ranks and layers, and bookkeeping for blocks with several
 * writers; the bytes would be the same. */
#ifndef SHOAL_SERVE_REQUEST_REQUEST_CHOICE_H
#define SHOAL_SERVE_REQUEST_REQUEST_CHOICE_H

#include "serve/request/request.h"

/* Local. Creates the request for answer number `choice` to r. It borrows r's lists, so r must
 * outlive it. It draws its own random numbers. Only the first answer to a prompt has the prompt's
 * log-probabilities. Owner of *out: the caller. Errors: STATUS_MEMORY. */
struct status request_create_choice(struct request *r, uint32_t choice, struct request **out);

/* Local. As request_create_choice, but with the values of `ask`, a changed copy of r's ask, which
 * is copied. Errors: STATUS_MEMORY. */
struct status request_create_variant(struct request *r, uint32_t choice,
                                     const struct request_ask *ask, struct request **out);

/* Local. Returns the number of answers to each of a line's prompts. */
static inline int32_t request_n_each(const struct request *line)
{
    return line->ask->n_choices / line->ask->n_prompts;
}

/* Local. Returns the prompt of answer number `choice` to a line that has a list of prompts. */
static inline const struct request_prompt *request_prompt_of(const struct request *line,
                                                             uint32_t choice)
{
    return &line->prompts[choice / (uint32_t)request_n_each(line)];
}

/* Local. Returns the tokens whose hidden rows are saved with r itself, [begin, end); `end` may be
 * beyond r's tokens. Only the first answer to a prompt has the rows of the prompt's tokens before
 * the last. */
struct request_span {
    size_t begin, end;
};
struct request_span request_hidden_span(const struct request *r, const struct request_rules *rules);

#endif
