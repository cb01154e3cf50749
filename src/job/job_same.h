/* Checks that all ranks run the same program with the same flags. Sends the first message between
 * ranks, so that different versions are found before any other message. Called by the jobs right
 * after MPI's start. */
#ifndef SHOAL_JOB_JOB_SAME_H
#define SHOAL_JOB_JOB_SAME_H

#include "base/status.h"
#include "parallel/comm/comm.h"

/* **Collective (world)**. Compares XXH3-64 digests of the program's file and of argv[argc], and
 * returns the same status on every rank. Errors: STATUS_INPUT names the first rank whose program
 * differs from rank 0's; STATUS_USAGE names the first rank whose flags differ, and the flag;
 * STATUS_MEMORY. Ends the job if a rank lacks the memory to take part in the first message. */
struct status job_same(struct comm *c, int argc, char **argv);

#endif
