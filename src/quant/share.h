/* Divides a loop with independent iterations among the threads of a team. The floating-point
 * environment is set for every part (numerics law, rule 8), so results do not depend on the threads
 * or on their earlier work. Called by the other files of this room. */
#ifndef SHOAL_QUANT_SHARE_H
#define SHOAL_QUANT_SHARE_H

#include "base/team.h"

#include <stddef.h>

/* Runs iterations [begin, end), on any thread. */
typedef void share_fn(void *ctx, size_t begin, size_t end);

/* Local; call it only on the thread that made the team, and not from within a piece. Runs fn over
 * pieces of `piece` iterations (the last may be shorter) that cover [0, n), on the threads of the
 * team (NULL: on the calling thread). */
void share_run(struct team *team, size_t n, size_t piece, share_fn *fn, void *ctx);

#endif
