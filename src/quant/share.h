/* A loop whose turns are independent, shared by the threads of a team. The floating-point
 * environment is set for every piece (numerics law, rule 8), so that results depend neither on the
 * threads nor on what they did before. Called by this room's loops over rows. */
#ifndef SHOAL_QUANT_SHARE_H
#define SHOAL_QUANT_SHARE_H

#include "base/team.h"

#include <stddef.h>

/* Does turns [begin, end) of a loop, on any thread. */
typedef void share_fn(void *ctx, size_t begin, size_t end);

/* Local, by the thread that made the team, not from within a piece. Runs fn over pieces of `piece`
 * turns (the last may be shorter) that cover [0, n), on the threads of the team (NULL: the
 * caller's alone). */
void share_run(struct team *team, size_t n, size_t piece, share_fn *fn, void *ctx);

#endif
