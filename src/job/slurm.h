/* Finds out how much time Slurm leaves this job. job.c calls it in the launcher's first process
 * before MPI starts, because starting a process is unsafe once a rank uses the network. */
#ifndef SHOAL_JOB_SLURM_H
#define SHOAL_JOB_SLURM_H

#include <stdbool.h>
#include <stdint.h>

/* Local. Sets *seconds to the time that job `job_id` may still run, according to squeue; false if
 * there is no limit, no squeue, or no answer within ten seconds. */
bool slurm_time_left(const char *job_id, uint64_t *seconds);

#endif
