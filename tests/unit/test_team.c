/* Teams of threads: each part runs once, on any thread; teams end; there may be more threads than
 * cores. */
#include "base/team.h"

#include "base/mem.h"

#include <CUnit/CUnit.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { MOST = 64 }; /* parts */

struct seen {
    _Atomic uint32_t n[MOST];
    pthread_t by[MOST];
};

static void see(void *job, uint32_t part)
{
    struct seen *s = job;
    s->n[part]++;
    s->by[part] = pthread_self();
}

static struct team *made(uint32_t n)
{
    struct team *t;
    CU_ASSERT_EQUAL_FATAL(team_create(n, &t).code, STATUS_OK);
    return t;
}

static uint32_t n_wrong(const struct seen *s, uint32_t n_parts, uint32_t times)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < MOST; i++) n += s->n[i] != (i < n_parts ? times : 0);
    return n;
}

static void every_part_is_done_once(void)
{
    for (uint32_t threads = 1; threads <= 5; threads++) {
        struct team *t = made(threads);
        CU_ASSERT_EQUAL(team_size(t), threads);
        for (uint32_t each = 1; each <= 4; each++) {
            struct seen s = {0};
            for (int i = 0; i < 2000; i++) team_run(t, each, see, &s);
            CU_ASSERT_EQUAL(n_wrong(&s, threads * each, 2000), 0);
        }
        team_destroy(&t);
        CU_ASSERT_PTR_NULL(t);
    }
}

struct spans_seen {
    struct seen seen;
    uint32_t each;
    _Atomic uint32_t n_spans, n_across;
};

static void see_span(void *job, uint32_t first, uint32_t n)
{
    struct spans_seen *s = job;
    s->n_spans++;
    if (n == 0 || first / s->each != (first + n - 1) / s->each) s->n_across++;
    for (uint32_t i = first; i < first + n; i++) see(&s->seen, i);
}

/* A span lies within the parts of one thread. A team of one thread gets all its parts as one span;
 * two threads with 32 parts each get fewer spans than parts. */
static void spans_are_neighbours(void)
{
    for (uint32_t threads = 1; threads <= 4; threads++) {
        struct team *t = made(threads);
        for (uint32_t each = 1; each <= 16; each++) {
            struct spans_seen s = {.each = each};
            for (int i = 0; i < 200; i++) team_run_spans(t, each, see_span, &s);
            CU_ASSERT_EQUAL(n_wrong(&s.seen, threads * each, 200), 0);
            CU_ASSERT_EQUAL(s.n_across, 0);
            CU_ASSERT(s.n_spans <= 200 * threads * each);
            if (threads == 1) CU_ASSERT_EQUAL(s.n_spans, 200);
        }
        team_destroy(&t);
    }
    struct team *t = made(2);
    struct spans_seen s = {.each = 32};
    team_run_spans(t, 32, see_span, &s);
    CU_ASSERT(s.n_spans < 64);
    team_destroy(&t);
}

static void without_a_team_the_caller_does_all(void)
{
    struct seen s = {0};
    team_run(NULL, 3, see, &s);
    CU_ASSERT_EQUAL(n_wrong(&s, 3, 1), 0);
    team_run_each(NULL, see, &s);
    CU_ASSERT(s.n[0] == 2 && s.n[1] == 1);
    CU_ASSERT_EQUAL(team_size(NULL), 1);
    CU_ASSERT(pthread_equal(s.by[2], pthread_self()));
    struct team *none = NULL;
    team_destroy(&none);
}

/* Thread i runs part i, also after the threads fell asleep, and when only some threads are used. */
static void each_thread_does_its_own(void)
{
    struct team *t = made(4);
    const struct timespec nap = {.tv_nsec = 3000000};
    struct seen first = {0};
    team_run_each(t, see, &first);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t k = 0; k < i; k++) CU_ASSERT(!pthread_equal(first.by[i], first.by[k]));
    CU_ASSERT(pthread_equal(first.by[0], pthread_self()));
    for (uint32_t round = 0; round < 40; round++) {
        const uint32_t n = 1 + round % 4;
        struct seen s = {0};
        if (round % 5 == 0) nanosleep(&nap, NULL);
        team_use(t, n);
        team_run_each(t, see, &s);
        CU_ASSERT_EQUAL(n_wrong(&s, n, 1), 0);
        for (uint32_t i = 0; i < n; i++) CU_ASSERT(pthread_equal(s.by[i], first.by[i]));
    }
    team_destroy(&t);
}

/* Part 0 waits until the other seven parts are finished, so the thread that runs it needs another
 * thread to take over its remaining parts. */
static void wait_for_others(void *job, uint32_t part)
{
    struct seen *s = job;
    const struct timespec nap = {.tv_nsec = 1000000};
    for (uint32_t n = 0; part == 0 && n < 7;) {
        n = 0;
        for (uint32_t i = 1; i < 8; i++) n += s->n[i] > 0;
        if (n < 7) nanosleep(&nap, NULL);
    }
    see(job, part);
}

static void idle_threads_take_over(void)
{
    struct team *t = made(2);
    struct seen s = {0};
    team_run(t, 4, wait_for_others, &s);
    CU_ASSERT_EQUAL(n_wrong(&s, 8, 1), 0);
    team_destroy(&t);
}

static void failures_leave_nothing_behind(void)
{
    for (uint64_t n = 1; n <= 3; n++) {
        struct team *t;
        (void)mem_fail_after(n);
        const struct status st = team_create(3, &t);
        (void)mem_fail_after(0);
        CU_ASSERT_EQUAL(st.code, STATUS_MEMORY);
        CU_ASSERT_PTR_NULL(t);
    }
}

static void bind_apart(void *job, uint32_t thread)
{
    const cpu_set_t *all = job;
    cpu_set_t one;
    CPU_ZERO(&one);
    uint32_t n = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, all) && n++ == thread % (uint32_t)CPU_COUNT(all)) CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

/* Each thread is bound to a CPU of its own, as far as there are enough. */
static void the_cpus_of_all_threads_are_known(void)
{
    cpu_set_t all, found;
    struct team *t = made(3);
    CU_ASSERT_EQUAL_FATAL(sched_getaffinity(0, sizeof all, &all), 0);
    team_run_each(t, bind_apart, &all);
    CU_ASSERT_EQUAL(team_cpus(t, &found).code, STATUS_OK);
    CU_ASSERT_EQUAL(CPU_COUNT(&found), CPU_COUNT(&all) < 3 ? CPU_COUNT(&all) : 3);
    (void)sched_setaffinity(0, sizeof all, &all);
    team_destroy(&t);
    CU_ASSERT_EQUAL(team_cpus(NULL, &found).code, STATUS_OK);
    CU_ASSERT(CPU_EQUAL(&found, &all));
}

struct polled {
    pthread_t by;
    uint32_t n, n_elsewhere; /* calls, and calls by another thread */
};

static void count_poll(void *ctx)
{
    struct polled *p = ctx;
    p->n++;
    p->n_elsewhere += !pthread_equal(pthread_self(), p->by);
}

/* The calling thread polls after each part that it has run, and no other thread polls. */
static void the_caller_polls_between_parts(void)
{
    for (uint32_t threads = 1; threads <= 3; threads++) {
        struct team *t = made(threads);
        struct polled polled = {.by = pthread_self()};
        struct seen s = {0};
        uint32_t n_mine = 0;
        team_poll_with(t, count_poll, &polled);
        CU_ASSERT(team_polls(t));
        team_run(t, 8, see, &s);
        for (uint32_t i = 0; i < threads * 8; i++) n_mine += pthread_equal(s.by[i], polled.by) != 0;
        CU_ASSERT_EQUAL(polled.n, n_mine);
        CU_ASSERT_EQUAL(polled.n_elsewhere, 0);
        CU_ASSERT(threads > 1 || polled.n == 8);
        team_poll_with(t, NULL, NULL);
        CU_ASSERT(!team_polls(t));
        team_run(t, 8, see, &s);
        CU_ASSERT_EQUAL(polled.n, n_mine);
        team_destroy(&t);
    }
    team_poll_with(NULL, count_poll, NULL);
    CU_ASSERT(!team_polls(NULL));
}

void suite_team(CU_pSuite suite);
void suite_team(CU_pSuite suite)
{
    CU_add_test(suite, "every part is done once", every_part_is_done_once);
    CU_add_test(suite, "the CPUs of all threads are known", the_cpus_of_all_threads_are_known);
    CU_add_test(suite, "spans are neighbours", spans_are_neighbours);
    CU_add_test(suite, "without a team the caller does all", without_a_team_the_caller_does_all);
    CU_add_test(suite, "each thread does its own", each_thread_does_its_own);
    CU_add_test(suite, "the caller polls between parts", the_caller_polls_between_parts);
    CU_add_test(suite, "idle threads take over", idle_threads_take_over);
    CU_add_test(suite, "failures leave nothing behind", failures_leave_nothing_behind);
}
