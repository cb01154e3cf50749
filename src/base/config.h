/* The environment, read once at start; nothing else in shoal calls getenv.
 *   SHOAL_KERNELS     "ref", "avx2", "avx512" or "amx": the instruction set (default: the best)
 *   OMP_NUM_THREADS   compute threads per rank (default: this rank's share of its cores)
 *   SLURM_JOB_ID      the job whose time limit is asked for
 *   OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK, SLURM_PROCID and
 *   OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_STEP_NUM_TASKS, SLURM_NTASKS,
 *   OMPI_COMM_WORLD_LOCAL_SIZE, SLURM_STEP_NUM_NODES   set by launchers
 *   OMPI_MCA_pml, OMPI_MCA_ess_singleton_isolated, OMPI_MCA_orte_create_session_dirs
 *                     given a value where they have none */
#ifndef SHOAL_BASE_CONFIG_H
#define SHOAL_BASE_CONFIG_H

#include <stdint.h>

struct config {
    const char *kernels;   /* NULL: not set */
    uint32_t n_threads;    /* 0: not set */
    const char *slurm_job; /* NULL: not in a Slurm job */
    /* by the launcher's own variables, before MPI starts: */
    uint32_t launcher_rank; /* this process's rank; 0 without a launcher */
    uint32_t launcher_size; /* how many ranks it started; 1 when it does not say */
};

/* Local. Values are borrowed from the environment. */
struct config config_read(void);

/* Local. Before MPI starts: spares Open MPI what took most of a short run's time. A process that no
 * launcher started gets no daemon, which only spawning needs. Where all ranks are on one host,
 * networks are not searched for. Both are variables of Open MPI, which keep a value that they
 * have. */
void config_spare_mpi(void);

#endif
