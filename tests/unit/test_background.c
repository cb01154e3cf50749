/* The background thread: jobs run one after the other on another thread, and each job's status
 * comes back once. */
#include "base/background.h"

#include <CUnit/CUnit.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

struct seen {
    unsigned n;
    pthread_t by;
    bool fails;
};

static struct status see(void *job)
{
    struct seen *s = job;
    usleep(1000);
    s->n++;
    s->by = pthread_self();
    return s->fails ? status_make(STATUS_IO, "job %u", s->n) : status_ok();
}

static void jobs_run_on_another_thread(void)
{
    struct background *b = NULL;
    struct seen s = {.n = 0};
    CU_ASSERT_EQUAL_FATAL(background_create(&b).code, STATUS_OK);
    CU_ASSERT_EQUAL(background_wait(b).code, STATUS_OK); /* no job yet */
    for (unsigned i = 0; i < 20; i++) {
        s.fails = i % 2 != 0;
        background_start(b, see, &s);
        const struct status st = background_wait(b);
        CU_ASSERT_EQUAL(st.code, s.fails ? STATUS_IO : STATUS_OK);
        CU_ASSERT_EQUAL(s.n, i + 1);
        CU_ASSERT_FALSE(pthread_equal(s.by, pthread_self()));
    }
    CU_ASSERT_EQUAL(background_wait(b).code, STATUS_OK); /* a status comes once */
    background_destroy(&b);
    CU_ASSERT_PTR_NULL(b);
    background_destroy(&b);
}

static void the_last_job_is_waited_for(void)
{
    struct background *b = NULL;
    struct seen s = {.n = 0};
    CU_ASSERT_EQUAL_FATAL(background_create(&b).code, STATUS_OK);
    background_start(b, see, &s);
    background_destroy(&b);
    CU_ASSERT_EQUAL(s.n, 1);
}

void suite_background(CU_pSuite suite);
void suite_background(CU_pSuite suite)
{
    CU_add_test(suite, "jobs run on another thread", jobs_run_on_another_thread);
    CU_add_test(suite, "the last job is waited for", the_last_job_is_waited_for);
}
