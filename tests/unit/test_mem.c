/* Mapped memory is aligned and zeroed, and mapping fails when it should. The peak of memory. */
#include "base/mem.h"

#include <CUnit/CUnit.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void mapped_memory_is_aligned_and_zeroed(void)
{
    static const size_t sizes[] = {0, 1, 4096, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 7 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *p;
        CU_ASSERT_EQUAL_FATAL(mem_map(&p, sizes[i], "test").code, STATUS_OK);
        CU_ASSERT_EQUAL((uintptr_t)p % (2 << 20), 0);
        size_t n_set = 0;
        for (size_t k = 0; k < sizes[i]; k += 511) n_set += p[k] != 0;
        if (sizes[i] > 0) p[sizes[i] - 1] = 1;
        CU_ASSERT_EQUAL(n_set, 0);
        mem_unmap(&p, sizes[i]);
        CU_ASSERT_PTR_NULL(p);
        mem_unmap(&p, sizes[i]);
    }
}

static void what_cannot_be_mapped_is_an_error(void)
{
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - (2 << 20), SIZE_MAX / 2};
    void *p;
    for (size_t i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(mem_map(&p, sizes[i], "test").code, STATUS_MEMORY);
        CU_ASSERT_PTR_NULL(p);
    }
    (void)mem_fail_after(1);
    CU_ASSERT_EQUAL(mem_map(&p, 1, "test").code, STATUS_MEMORY);
    (void)mem_fail_after(0);
}

/* Runs this suite once more as another process; true when it passes. */
static bool suite_passes_again(void)
{
    char *const argv[] = {"unit", "mem", NULL};
    posix_spawn_file_actions_t quiet;
    pid_t child = -1;
    int status = -1;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    const int error = posix_spawn(&child, "/proc/self/exe", &quiet, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&quiet);
    return error == 0 && waitpid(child, &status, 0) == child && status == 0;
}

/* A program that a large process starts has a peak of its own. */
static void the_peak_is_not_the_starters(void)
{
    enum { N = 256 << 20 };
    char *p;
    if (getenv("SHOAL_TEST_PEAK") != NULL) { /* started below */
        CU_ASSERT(mem_peak_bytes() > 0 && mem_peak_bytes() < N / 2);
        return;
    }
    CU_ASSERT_EQUAL_FATAL(mem_map(&p, N, "test").code, STATUS_OK);
    memset(p, 1, N);
    CU_ASSERT(mem_peak_bytes() >= N && mem_resident_bytes() >= N);
    setenv("SHOAL_TEST_PEAK", "1", 1);
    CU_ASSERT_TRUE(suite_passes_again());
    unsetenv("SHOAL_TEST_PEAK");
    mem_unmap(&p, N);
    CU_ASSERT(mem_peak_bytes() >= N && mem_resident_bytes() < N);
}

void suite_mem(CU_pSuite suite);
void suite_mem(CU_pSuite suite)
{
    CU_add_test(suite, "the peak is not the starter's", the_peak_is_not_the_starters);
    CU_add_test(suite, "mapped memory is aligned and zeroed", mapped_memory_is_aligned_and_zeroed);
    CU_add_test(suite, "what cannot be mapped is an error", what_cannot_be_mapped_is_an_error);
}
