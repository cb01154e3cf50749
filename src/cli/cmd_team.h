/* The compute threads of a command that loads no model. Called by convert, quantize and pack. */
#ifndef SHOAL_CLI_CMD_TEAM_H
#define SHOAL_CLI_CMD_TEAM_H

#include "base/config.h"
#include "base/team.h"
#include "parallel/comm/comm.h"

/* **Collective (world)**; with comm NULL Local. Makes a team of n_wanted threads (0: as many as
 * OMP_NUM_THREADS says, or, if that is not set, as topo_threads says) and binds them as
 * topo_bind_threads does. *out is freed with team_destroy. Errors: STATUS_MEMORY, and those of
 * reading the topology. */
struct status cmd_team_create(uint32_t n_wanted, struct config env, struct comm *comm,
                              struct team **out);

#endif
