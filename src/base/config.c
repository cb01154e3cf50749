/* The one place that reads the environment. */
#include "base/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_LAUNCHERS = 4, THREADS_MAX = 4096 };

static const char *const rank_names[N_LAUNCHERS] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                                    "SLURM_PROCID"};

/* Returns the number in the first variable that is set; `otherwise` when none is. */
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

/* Writes the batch system's name and id of this job, for people; "" outside a batch job. */
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

static struct status read_threads(const char *text, uint32_t *out)
{
    char *end;
    if (text == NULL || *text == '\0') return status_ok();
    const long n = strtol(text, &end, 10);
    if (n < 1 || n > THREADS_MAX || (*end != '\0' && *end != ',')) {
        return status_make(STATUS_USAGE,
                           "OMP_NUM_THREADS: expected an integer from 1 to %d, found \"%s\"",
                           THREADS_MAX, text);
    }
    *out = (uint32_t)n;
    return status_ok();
}

struct status config_read(struct config *out)
{
    static const char *const sizes[N_LAUNCHERS] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                                   "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};
    *out = (struct config){.kernels = getenv("SHOAL_KERNELS"),
                           .cpu = getenv("SHOAL_CPU"),
                           .slurm_job = getenv("SLURM_JOB_ID"),
                           .is_launched = is_launched(),
                           .launcher_pid = is_launched() ? (int32_t)getppid() : 0,
                           .launcher_rank = launcher_number(rank_names, 0),
                           .launcher_size = launcher_number(sizes, 1)};
    if (out->kernels != NULL && out->kernels[0] == '\0') out->kernels = NULL;
    if (out->cpu != NULL && out->cpu[0] == '\0') out->cpu = NULL;
    read_job(out->job, sizeof out->job);
    return read_threads(getenv("OMP_NUM_THREADS"), &out->n_threads);
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
