/* The compute threads of a command that loads no model. Called by convert and quantize. */
#ifndef SHOAL_CLI_CMD_TEAM_H
#define SHOAL_CLI_CMD_TEAM_H

#include "base/config.h"
#include "base/team.h"
#include "parallel/comm/comm.h"

/* **Collective (world)**; local with comm NULL. A team of `n_wanted` threads; 0: what
 * OMP_NUM_THREADS says, else this rank's share of its host's cores. They are bound to these cores.
 * *out: team_destroy. Errors: STATUS_MEMORY, and what the topology says. */
struct status cmd_team_create(uint32_t n_wanted, struct config env, struct comm *comm,
                              struct team **out);

#endif
