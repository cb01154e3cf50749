/* Which of Open MPI's variables shoal sets before MPI starts. */
#include "base/config.h"

#include <CUnit/CUnit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void suite_config(CU_pSuite suite);

enum { N_NAMES = 11, N_SET = 3 };

static const char *const names[N_NAMES] = {"OMPI_COMM_WORLD_RANK",
                                           "PMIX_RANK",
                                           "PMI_RANK",
                                           "SLURM_PROCID",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                                           "SLURM_STEP_NUM_NODES",
                                           "SLURM_NTASKS",
                                           "OMPI_MCA_pml",
                                           "OMPI_MCA_ess_singleton_isolated",
                                           "OMPI_MCA_orte_create_session_dirs"};

static char *kept[N_NAMES];

/* Saves the variables, because a launcher may have started this process. */
static void keep_all(void)
{
    for (size_t i = 0; i < N_NAMES; i++) {
        const char *value = getenv(names[i]);
        kept[i] = value != NULL ? strdup(value) : NULL;
    }
}

static void restore_all(void)
{
    for (size_t i = 0; i < N_NAMES; i++) {
        if (kept[i] != NULL) {
            setenv(names[i], kept[i], 1);
        } else {
            unsetenv(names[i]);
        }
        free(kept[i]);
    }
}

/* `settings` holds names and values alternately and ends with NULL. */
static void check(const char *const *settings, const char *pml, const char *isolated,
                  const char *folders)
{
    keep_all();
    for (size_t i = 0; i < N_NAMES; i++) unsetenv(names[i]);
    for (; *settings != NULL; settings += 2) setenv(settings[0], settings[1], 1);
    config_spare_mpi();
    const char *wanted[N_SET] = {pml, isolated, folders};
    for (int i = 0; i < N_SET; i++) {
        const char *found = getenv(names[N_NAMES - N_SET + i]);
        if (wanted[i] == NULL) {
            CU_ASSERT_PTR_NULL(found);
        } else {
            CU_ASSERT(found != NULL && strcmp(found, wanted[i]) == 0);
        }
    }
    restore_all();
}

static void test_alone(void)
{
    check((const char *const[]){NULL}, "ob1", "1", "0");
    check((const char *const[]){"OMPI_MCA_pml", "ucx", NULL}, "ucx", "1", "0");
    check((const char *const[]){"OMPI_MCA_ess_singleton_isolated", "0", NULL}, "ob1", "0", NULL);
    check((const char *const[]){"OMPI_MCA_orte_create_session_dirs", "1", NULL}, "ob1", "1", "1");
}

static void test_one_host(void)
{
    check((const char *const[]){"OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2",
                                "OMPI_COMM_WORLD_LOCAL_SIZE", "2", NULL},
          "ob1", NULL, NULL);
    check((const char *const[]){"PMIX_RANK", "0", "SLURM_STEP_NUM_NODES", "1", NULL}, "ob1", NULL,
          NULL);
}

static void test_several_hosts(void)
{
    check((const char *const[]){"OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "4",
                                "OMPI_COMM_WORLD_LOCAL_SIZE", "2", NULL},
          NULL, NULL, NULL);
    check((const char *const[]){"PMIX_RANK", "0", "SLURM_STEP_NUM_NODES", "2", NULL}, NULL, NULL,
          NULL);
    check((const char *const[]){"PMI_RANK", "0", NULL}, NULL, NULL, NULL);
    check((const char *const[]){"SLURM_PROCID", "0", NULL}, NULL, NULL, NULL);
}

void suite_config(CU_pSuite suite)
{
    CU_add_test(suite, "a process that no launcher started", test_alone);
    CU_add_test(suite, "all ranks on one host", test_one_host);
    CU_add_test(suite, "several hosts, or nobody says", test_several_hosts);
}
