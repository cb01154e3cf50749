/* The time that Slurm leaves to this job. Called by job.c on the launcher's first process, before
 * MPI starts (no process is started from a rank that talks to the network already). */
#ifndef SHOAL_JOB_SLURM_H
#define SHOAL_JOB_SLURM_H

#include <stdbool.h>
#include <stdint.h>

/* Local. Seconds that job `job_id` may still run, asked of squeue; false when there is no limit, no
 * squeue, or no answer within ten seconds. */
bool slurm_time_left(const char *job_id, uint64_t *seconds);

#endif
