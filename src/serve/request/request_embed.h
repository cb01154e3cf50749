/* Makes vectors or scores from the pooled rows of a line's inputs; request_embed.c also reads the
 * inputs (request_parse.h). Called by the scheduler and by result_embed.c. */
#ifndef SHOAL_SERVE_REQUEST_REQUEST_EMBED_H
#define SHOAL_SERVE_REQUEST_REQUEST_EMBED_H

#include "serve/request/request.h"

/* Local. Adds sums [width] of pooled rows (plan/step_plan.h) to r's own sums. Errors:
 * STATUS_MEMORY. */
struct status request_take_pool(struct request *r, const int64_t *sums, size_t width);

/* Local. Writes the vector of one finished text to out [r->ask->dimensions]. Rounds each value
 * once, from a double. The sum of squares for the length adds the dimensions in ascending order. */
void request_vector(const struct request *r, const struct embed_rules *rules, float *out);

/* Local. Writes the scores of one finished text to out [rules->rank.n_labels]. Returns their
 * number. Each sum is a double, added in ascending order, and rounded before the activation. */
size_t request_scores(const struct request *r, const struct embed_rules *rules, float *out);

#endif
