/* The one place that reads the environment. */
#include "base/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_LAUNCHERS = 4 };

static const char *const rank_names[N_LAUNCHERS] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                                    "SLURM_PROCID"};

/* The number in the first of the variables that is set. */
static uint32_t launcher_number(const char *const names[N_LAUNCHERS], uint32_t otherwise)
{
    for (size_t i = 0; i < N_LAUNCHERS; i++) {
        const char *text = getenv(names[i]);
        if (text != NULL) return (uint32_t)strtoul(text, NULL, 10);
    }
    return otherwise;
}

static bool is_launched(void)
{
    for (size_t i = 0; i < N_LAUNCHERS; i++) {
        if (getenv(rank_names[i]) != NULL) return true;
    }
    return false;
}

/* The batch system's name of this job, for people. */
static void read_job(char *out, size_t n_bytes)
{
    static const char *const names[][2] = {{"SLURM_JOB_ID", "Slurm"},  {"PBS_JOBID", "PBS"},
                                           {"LSB_JOBID", "LSF"},       {"FLUX_JOB_ID", "Flux"},
                                           {"COBALT_JOBID", "Cobalt"}, {"OAR_JOB_ID", "OAR"},
                                           {"JOB_ID", "Grid Engine"}};
    out[0] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof names[0] && out[0] == '\0'; i++) {
        const char *id = getenv(names[i][0]);
        if (id != NULL && id[0] != '\0') snprintf(out, n_bytes, "%s job %s", names[i][1], id);
    }
}

struct config config_read(void)
{
    static const char *const sizes[N_LAUNCHERS] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                                   "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};
    struct config c = {.kernels = getenv("SHOAL_KERNELS"), .slurm_job = getenv("SLURM_JOB_ID")};
    if (c.kernels != NULL && c.kernels[0] == '\0') c.kernels = NULL;
    c.cpu = getenv("SHOAL_CPU");
    if (c.cpu != NULL && c.cpu[0] == '\0') c.cpu = NULL;
    const char *threads = getenv("OMP_NUM_THREADS");
    if (threads != NULL) {
        const long n = strtol(threads, NULL, 10);
        if (n > 0 && n < 4096) c.n_threads = (uint32_t)n;
    }
    read_job(c.job, sizeof c.job);
    c.is_launched = is_launched();
    c.launcher_rank = launcher_number(rank_names, 0);
    c.launcher_size = launcher_number(sizes, 1);
    return c;
}

/* True when the launcher's variables say that all ranks are on one host. */
static bool is_one_host(void)
{
    const char *all = getenv("OMPI_COMM_WORLD_SIZE"), *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (all != NULL && here != NULL) return strcmp(all, here) == 0;
    const char *hosts = getenv("SLURM_STEP_NUM_NODES");
    return hosts != NULL && strcmp(hosts, "1") == 0;
}

void config_spare_mpi(void)
{
    const bool launched = is_launched();
    if (!launched) {
        setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
        const bool isolated = strcmp(getenv("OMPI_MCA_ess_singleton_isolated"), "1") == 0;
        if (isolated) setenv("OMPI_MCA_orte_create_session_dirs", "0", 0);
    }
    if (!launched || is_one_host()) setenv("OMPI_MCA_pml", "ob1", 0);
}
