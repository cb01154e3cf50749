/* Reads the environment; nothing else in shoal calls getenv.
 *   SHOAL_KERNELS     "ref", "avx2", "avx512" or "amx": the instruction set (default: the best)
 *   SHOAL_CPU         the same names: instruction sets above the named one count as absent (tests)
 *   OMP_NUM_THREADS   compute threads per rank, the first number of a list such as "8,2"
 *                     (default: this rank's share of its cores)
 *   SLURM_JOB_ID      the Slurm job; shoal drains before its time limit
 *   PBS_JOBID, LSB_JOBID, FLUX_JOB_ID, COBALT_JOBID, OAR_JOB_ID, JOB_ID   the batch job's id,
 *                     shown, like SLURM_JOB_ID, to a second job on the same output
 *   OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID and
 *   OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_STEP_NUM_TASKS, SLURM_NTASKS,
 *   OMPI_COMM_WORLD_LOCAL_SIZE, SLURM_STEP_NUM_NODES   set by launchers
 *   OMPI_MCA_pml, OMPI_MCA_ess_singleton_isolated, OMPI_MCA_orte_create_session_dirs
 *                     set by config_spare_mpi, if the user has not set them */
#ifndef SHOAL_BASE_CONFIG_H
#define SHOAL_BASE_CONFIG_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct config {
    const char *kernels;   /* NULL: not set */
    const char *cpu;       /* NULL: not set */
    uint32_t n_threads;    /* 0: not set */
    const char *slurm_job; /* NULL: not in a Slurm job */
    char job[72];          /* "Slurm job 17", "PBS job 17.head"; empty: not in a batch job */
    bool is_launched;      /* an MPI launcher started this process */
    int32_t launcher_pid;  /* the parent process at start, if it is a launcher; 0: none */
    /* from the launcher's variables, so known before MPI starts: */
    uint32_t launcher_rank; /* this process's rank; 0 without a launcher */
    uint32_t launcher_size; /* all ranks, as the variables say; 1 when none gives the number */
};

/* Local. Fills *out; its strings are borrowed from the environment. Errors: STATUS_USAGE when
 * OMP_NUM_THREADS is no number of threads. */
struct status config_read(struct config *out);

/* Local. Call before MPI starts. Shortens MPI's start by Open MPI variables, unless the user has
 * set them: without a launcher no daemon is started (only spawning needs one) and no session folder
 * is made; if all ranks are on one host, no networks are searched for. */
void config_spare_mpi(void);

#endif
