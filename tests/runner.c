/* Runs one suite by name, or all, in this process, so that gdb sees a failing test. The suites come
 * from the folder's test_*.c files; CMake writes the list. A suite that this machine cannot run
 * prints "skipped: " with the reason, adds no test and is reported as skipped. */
#include <CUnit/Basic.h>
#include <CUnit/CUnit.h>
#include <stdio.h>
#include <string.h>

#ifdef RUNNER_MPI
#include <mpi.h>
#endif

#define SUITE(name) void suite_##name(CU_pSuite suite);
#include SUITES_INC
#undef SUITE

struct suite_entry {
    const char *name;
    void (*add)(CU_pSuite suite);
};

static const struct suite_entry suites[] = {
#define SUITE(name) {#name, suite_##name},
#include SUITES_INC
#undef SUITE
};

enum { SKIPPED = 77 }; /* ctest's SKIP_RETURN_CODE */

static int suites_run(int argc, char **argv)
{
    size_t n_added = 0;
    if (CU_initialize_registry() != CUE_SUCCESS) return 1;
    for (size_t i = 0; i < sizeof suites / sizeof suites[0]; i++) {
        if (argc > 1 && strcmp(argv[1], suites[i].name) != 0) continue;
        suites[i].add(CU_add_suite(suites[i].name, NULL, NULL));
        n_added++;
    }
    if (n_added == 0) {
        fprintf(stderr, "no suite is named '%s'\n", argc > 1 ? argv[1] : "");
        return 2;
    }
    if (n_added == 1 && CU_get_registry()->uiNumberOfTests == 0) return SKIPPED;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    const unsigned n_failed = CU_get_number_of_failures();
    const unsigned n_run = CU_get_number_of_asserts();
    CU_cleanup_registry();
    return n_failed > 0 || n_run == 0;
}

int main(int argc, char **argv)
{
#ifdef RUNNER_MPI
    MPI_Init(&argc, &argv);
#endif
    const int result = suites_run(argc, argv);
#ifdef RUNNER_MPI
    MPI_Finalize();
#endif
    return result;
}
