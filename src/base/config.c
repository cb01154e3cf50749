/* The one place that reads the environment. */
#include "base/config.h"

#include <stdlib.h>

static uint32_t launcher_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text != NULL) return (uint32_t)strtoul(text, NULL, 10);
    }
    return 0;
}

struct config config_read(void)
{
    struct config c = {.kernels = getenv("SHOAL_KERNELS"), .slurm_job = getenv("SLURM_JOB_ID")};
    if (c.kernels != NULL && c.kernels[0] == '\0') c.kernels = NULL;
    const char *threads = getenv("OMP_NUM_THREADS");
    if (threads != NULL) {
        const long n = strtol(threads, NULL, 10);
        if (n > 0 && n < 4096) c.n_threads = (uint32_t)n;
    }
    c.launcher_rank = launcher_rank();
    return c;
}
