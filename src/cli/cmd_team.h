/* The compute threads of a command that loads no model. Called by convert, quantize and pack. */
#ifndef SHOAL_CLI_CMD_TEAM_H
#define SHOAL_CLI_CMD_TEAM_H

#include "base/config.h"
#include "base/team.h"
#include "parallel/comm/comm.h"

/* **Collective (world)**; with comm NULL Local. Makes a team of n_wanted threads (0: as many as
 * OMP_NUM_THREADS says, or, if that is not set, one for each core of this rank's share of its host)
 * and binds them to the cores of that share. *out is freed with team_destroy. Errors:
 * STATUS_MEMORY, and those of reading the topology. */
struct status cmd_team_create(uint32_t n_wanted, struct config env, struct comm *comm,
                              struct team **out);

#endif
