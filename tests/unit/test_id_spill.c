/* A set of more ids than stay in memory: all ids are found, new ids are new, and memory is bounded.
 */
#include "serve/journal/id_set.h"

#include "base/mem.h"
#include "util_serve.h"

#include <CUnit/CUnit.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_IDS = 430000 }; /* two sorted runs in the file, and a rest in memory */

/* Adds the ids of the numbers from, from + step, ... below `to`. Returns how many were not fresh
 * although want_fresh, or the reverse. */
static unsigned add(struct id_set *s, int from, int to, int step, bool want_fresh)
{
    unsigned n_wrong = 0;
    char id[32];
    for (int i = from; i < to; i += step) {
        const int n = snprintf(id, sizeof id, "request-%d", i);
        bool fresh;
        const struct status st = id_set_add(s, id, (size_t)n, &fresh);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
        n_wrong += fresh != want_fresh;
    }
    return n_wrong;
}

static void ids_on_disk_are_known(void)
{
    struct id_set s = {0};
    char path[UTIL_PATH_MAX], id[32];
    bool fresh;
    util_file_create(path, "", 0);
    id_set_spill_beside(&s, path);
    CU_ASSERT_EQUAL(add(&s, 0, N_IDS, 1, true), 0);
    CU_ASSERT_PTR_NOT_NULL_FATAL(s.spill);
    CU_ASSERT_EQUAL(s.spill->n_runs, 2);
    CU_ASSERT(s.n_slots <= 1 << 18);
    CU_ASSERT_EQUAL(add(&s, 0, N_IDS, 37, false), 0);
    CU_ASSERT_EQUAL(add(&s, N_IDS, N_IDS + 50000, 1, true), 0);
    /* the id is the number of the line that repeats it, two lines later */
    const uint64_t line = s.n_lines + 3;
    const int n = snprintf(id, sizeof id, "%llu", (unsigned long long)line);
    struct status st = id_set_add(&s, id, (size_t)n, &fresh);
    CU_ASSERT(!status_failed(&st) && fresh);
    CU_ASSERT_EQUAL(add(&s, 0, 1, 1, false), 0);
    st = id_set_add(&s, id, (size_t)n, &fresh);
    CU_ASSERT(!status_failed(&st) && !fresh);
    CU_ASSERT_EQUAL(s.n_lines, line);
    id_set_fini(&s);
    util_file_remove(path);
}

/* If no file can be created, the ids stay in memory. */
static void without_a_file_ids_stay_in_memory(void)
{
    struct id_set s = {0};
    id_set_spill_beside(&s, "/nonexistent/folder/x");
    CU_ASSERT_EQUAL(add(&s, 0, 300000, 1, true), 0);
    CU_ASSERT_EQUAL(s.n, 300000);
    CU_ASSERT_EQUAL(add(&s, 0, 300000, 11, false), 0);
    id_set_fini(&s);
}

/* Makes the file of s refuse further writes, as a full disk does. */
static void refuse_writes(const struct id_spill *s)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", s->fd);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    CU_ASSERT_FATAL(fd >= 0);
    CU_ASSERT_EQUAL_FATAL(dup2(fd, s->fd), s->fd);
    close(fd);
}

/* If the file can take no more, its ids are still found, and later ids stay in memory. */
static void a_full_disk_loses_no_ids(void)
{
    struct id_set s = {0};
    char path[UTIL_PATH_MAX];
    util_file_create(path, "", 0);
    id_set_spill_beside(&s, path);
    CU_ASSERT_EQUAL(add(&s, 0, 200000, 1, true), 0);
    CU_ASSERT_PTR_NOT_NULL_FATAL(s.spill);
    refuse_writes(s.spill);
    CU_ASSERT_EQUAL(add(&s, 200000, N_IDS, 1, true), 0);
    CU_ASSERT_PTR_NULL(s.spill_path);
    CU_ASSERT_EQUAL(s.spill->n_runs, 1);
    CU_ASSERT_EQUAL(add(&s, 0, N_IDS, 7, false), 0);
    CU_ASSERT_EQUAL(add(&s, N_IDS, N_IDS + 50000, 1, true), 0);
    id_set_fini(&s);
    util_file_remove(path);
}

/* If memory is missing when ids move to the file, all ids are found as before, and can move
 * later. */
static void missing_memory_loses_no_ids(void)
{
    enum { N_FULL = 196608 }; /* one id more, and these move to the file */
    struct id_set s = {0};
    char path[UTIL_PATH_MAX];
    bool fresh = false, passed = false;
    util_file_create(path, "", 0);
    id_set_spill_beside(&s, path);
    CU_ASSERT_EQUAL(add(&s, 0, N_FULL, 1, true), 0);
    CU_ASSERT_PTR_NULL(s.spill);
    for (uint64_t n = 1; n < 30 && !passed; n++) {
        (void)mem_fail_after(n);
        const struct status st = id_set_add(&s, "new", 3, &fresh);
        passed = mem_fail_after(0) < n;
        CU_ASSERT_EQUAL(st.code, passed ? STATUS_OK : STATUS_MEMORY);
        CU_ASSERT_EQUAL(add(&s, 0, N_FULL, 37, false), 0);
    }
    CU_ASSERT(passed && fresh);
    CU_ASSERT_PTR_NOT_NULL_FATAL(s.spill);
    CU_ASSERT_EQUAL(s.spill->n_runs, 1);
    id_set_fini(&s);
    util_file_remove(path);
}

static void pages_and_runs_of_any_size_are_searched(void)
{
    char path[UTIL_PATH_MAX];
    util_file_create(path, "", 0);
    struct id_spill s;
    struct status st = id_spill_init(&s, path);
    CU_ASSERT_FALSE_FATAL(status_failed(&st));
    uint64_t x = 4;
    static struct id_hash all[8][1000], sorted[1000];
    const size_t sizes[8] = {1, 2, 255, 256, 257, 511, 513, 1000};
    for (int k = 0; k < 8; k++) {
        for (size_t i = 0; i < sizes[k]; i++)
            all[k][i] = (struct id_hash){fake_random(&x), fake_random(&x)};
        memcpy(sorted, all[k], sizeof sorted);
        st = id_spill_add(&s, sorted, sizes[k]);
        CU_ASSERT_FALSE_FATAL(status_failed(&st));
    }
    unsigned n_lost = 0, n_made_up = 0;
    for (int k = 0; k < 8; k++) {
        for (size_t i = 0; i < sizes[k]; i++) {
            bool found;
            st = id_spill_find(&s, all[k][i], &found);
            n_lost += status_failed(&st) || !found;
            const struct id_hash other = {all[k][i].low, all[k][i].high + 1};
            st = id_spill_find(&s, other, &found);
            n_made_up += status_failed(&st) || found;
        }
    }
    CU_ASSERT_EQUAL(n_lost, 0);
    CU_ASSERT_EQUAL(n_made_up, 0);
    id_spill_fini(&s);
    util_file_remove(path);
}

void suite_id_spill(CU_pSuite suite);
void suite_id_spill(CU_pSuite suite)
{
    CU_add_test(suite, "ids on disk are known", ids_on_disk_are_known);
    CU_add_test(suite, "without a file ids stay in memory", without_a_file_ids_stay_in_memory);
    CU_add_test(suite, "a full disk loses no ids", a_full_disk_loses_no_ids);
    CU_add_test(suite, "missing memory loses no ids", missing_memory_loses_no_ids);
    CU_add_test(suite, "pages and runs of any size are searched",
                pages_and_runs_of_any_size_are_searched);
}
