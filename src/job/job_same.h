/* Checks that all ranks run the same program with the same flags. This is the first message between
 * ranks, so that ranks with different versions are found before any other message. Called by the
 * jobs right after MPI's start. */
#ifndef SHOAL_JOB_JOB_SAME_H
#define SHOAL_JOB_JOB_SAME_H

#include "base/status.h"
#include "parallel/comm/comm.h"

/* **Collective (world)**. Compares XXH3-64 digests of the program's file and of argv[argc]; the
 * same status on every rank. Errors: STATUS_INPUT names the first rank that runs another program
 * than rank 0, STATUS_USAGE the first one with other flags and the flag that differs. Ends the job
 * when there is no memory. */
struct status job_same(struct comm *c, int argc, char **argv);

#endif
