/* The team's threads. A new generation number announces a job. Each thread has one atomic word, its
 * claim, with the range of its parts that no thread has begun:
 *
 *     claim of thread i:  [first ........ end)
 *                          ^ the thread itself takes from the front
 *                                         ^ other threads take from the back */
#include "base/team.h"

#include "base/clock.h"
#include "base/mem.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>

enum {
    SPINS = 64,        /* a few microseconds: the gap between two ops */
    YIELD_NS = 300000, /* longer than an exchange between ranks, too short to be noticed */
    LATE_NS = 20000,   /* a yield that takes longer has given the core to another process */
    WAKE_NS = 40000,   /* the extra cost of a sleep over a yield */
    LATE_MOST_NS = 4 << 20,
    HURRY_MOST = 64,
    CALM_YIELDS = 64,
    CLAIM_END = 1 << 15, /* a claim is first + end * CLAIM_END, plus flags */
    SPAN = 2             /* a span is one SPAN-th of the remaining parts */
};

/* Flags of a claim. */
static const uint32_t OWNER_ONLY = 1u << 30; /* other threads take none of the parts */
static const uint32_t SPANS = 1u << 31;      /* the owner takes several parts at once */

/* The parts [first, end) of one thread that no thread has begun. Their owner takes the first part,
 * or a span of them, so that it reads memory in order; other threads take the last one. A thread
 * that claims a part may read the job: the job stays valid until every claimed part is done. */
struct claim {
    _Alignas(MEM_ALIGN) _Atomic uint32_t left;
};

struct worker {
    _Alignas(MEM_ALIGN) struct team *team;
    uint32_t index;
    uint32_t n_hurried; /* waits left that sleep without yielding first */
    uint32_t hurry;     /* factor on n_hurried; doubled by each late yield, halved after CALM_YIELDS
                           yields in time */
    uint32_t n_calm;    /* waits that yielded in time since `hurry` last changed */
    pthread_t thread;
};

struct team {
    /* the current job; written while no job runs */
    team_span_fn *fn;
    void *job;
    uint32_t parts_each, n_threads;
    _Atomic uint32_t n_used;
    struct claim *claims;    /* owned [n_threads] */
    struct worker *workers;  /* owned [n_threads]; [0]: the thread that made the team, its owner */
    bool is_running;         /* read and written by the owner: a job must not start another job */
    void (*poll)(void *ctx); /* called by the owner after each part or span; NULL: none */
    void *poll_ctx;
    /* read by all threads while they wait */
    _Alignas(MEM_ALIGN) _Atomic uint32_t generation;
    _Atomic bool stops;
    _Alignas(MEM_ALIGN) _Atomic uint32_t n_undone;
    /* sleeping */
    _Alignas(MEM_ALIGN) _Atomic uint32_t n_asleep; /* sleeping workers */
    _Atomic bool owner_asleep;
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
};

static void team_pause_once(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

/* Makes this thread's next waits sleep at once, because a yield gave its core away for `late_ns`:
 * the scheduler runs a woken thread before threads that compute, but a yielding thread after them.
 * The number of these waits is chosen so that their sleeps cost as much as the yield lost, and it
 * doubles each time that the next yield is late again. So a core that is seldom taken away costs
 * little, and a core on which other processes compute is seldom yielded. */
static void hurry(struct worker *me, uint64_t late_ns)
{
    const uint64_t lost_ns = late_ns < LATE_MOST_NS ? late_ns : LATE_MOST_NS;
    if (me->hurry < HURRY_MOST) me->hurry = me->hurry == 0 ? 1 : 2 * me->hurry;
    me->n_hurried = (uint32_t)(lost_ns * me->hurry / WAKE_NS) + 1;
    me->n_calm = 0;
}

static void calm(struct worker *me)
{
    if (me->hurry == 0 || ++me->n_calm < CALM_YIELDS) return;
    me->n_calm = 0;
    me->hurry /= 2;
}

/* Returns how often the scheduler has given this thread's core to another thread of this machine. A
 * late yield without such a switch lost the core to the host of this virtual machine; a sleep would
 * lose it as well and cost a wake-up. */
static uint64_t times_switched(void)
{
    struct rusage u;
    getrusage(RUSAGE_THREAD, &u);
    return (uint64_t)u.ru_nivcsw + (uint64_t)u.ru_nvcsw;
}

/* Spins and yields until *what differs from `was`. False when the caller should sleep instead: a
 * yield was late, waits still sleep because of an earlier one, or YIELD_NS are over. */
static bool changed_soon(struct worker *me, _Atomic uint32_t *what, uint32_t was)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(what, memory_order_acquire) != was) return true;
        team_pause_once();
    }
    if (me->n_hurried > 0) {
        me->n_hurried--;
        return false;
    }
    const uint64_t n_switched = times_switched(), start = clock_ns();
    for (uint64_t now = start, before = start; now - start < YIELD_NS; before = now) {
        sched_yield();
        now = clock_ns();
        const bool is_late = now - before > LATE_NS && times_switched() != n_switched;
        if (is_late) hurry(me, now - before);
        if (atomic_load_explicit(what, memory_order_acquire) != was) {
            if (!is_late) calm(me);
            return true;
        }
        if (is_late) return false;
    }
    return false;
}

/* Waits for the next generation; false when the team ends. Memory orders are sequentially
 * consistent where a sleeping and a waking thread each write one word and read the other's. */
static bool next_work(struct worker *me, uint32_t *seen)
{
    struct team *t = me->team;
    if (!changed_soon(me, &t->generation, *seen)) {
        pthread_mutex_lock(&t->mutex);
        atomic_fetch_add(&t->n_asleep, 1);
        while (atomic_load(&t->generation) == *seen) pthread_cond_wait(&t->work, &t->mutex);
        atomic_fetch_sub(&t->n_asleep, 1);
        pthread_mutex_unlock(&t->mutex);
    }
    *seen = atomic_load(&t->generation);
    return !atomic_load(&t->stops);
}

static void tell_workers(struct team *t)
{
    atomic_fetch_add(&t->generation, 1);
    if (atomic_load(&t->n_asleep) == 0) return;
    pthread_mutex_lock(&t->mutex);
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->mutex);
}

static void wait_done(struct team *t)
{
    uint32_t n;
    while ((n = atomic_load_explicit(&t->n_undone, memory_order_acquire)) != 0) {
        if (changed_soon(&t->workers[0], &t->n_undone, n)) continue;
        pthread_mutex_lock(&t->mutex);
        atomic_store(&t->owner_asleep, true);
        while (atomic_load(&t->n_undone) != 0) pthread_cond_wait(&t->done, &t->mutex);
        atomic_store(&t->owner_asleep, false);
        pthread_mutex_unlock(&t->mutex);
    }
}

static void parts_done(struct team *t, uint32_t n)
{
    if (atomic_fetch_sub(&t->n_undone, n) != n || !atomic_load(&t->owner_asleep)) return;
    pthread_mutex_lock(&t->mutex);
    pthread_cond_signal(&t->done);
    pthread_mutex_unlock(&t->mutex);
}

static void poll_once(const struct team *t)
{
    if (t != NULL && t->poll != NULL) t->poll(t->poll_ctx);
}

/* Runs parts of thread `owner` on thread `me` until none is left. */
static void run_parts_of(struct team *t, uint32_t owner, uint32_t me)
{
    const bool mine = owner == me;
    _Atomic uint32_t *claim = &t->claims[owner].left;
    uint32_t was = atomic_load_explicit(claim, memory_order_relaxed);
    for (;;) {
        const uint32_t first = was % CLAIM_END, end = was % OWNER_ONLY / CLAIM_END;
        if (first == end || ((was & OWNER_ONLY) != 0 && !mine)) return;
        const uint32_t n = mine && (was & SPANS) != 0 ? (end - first + SPAN - 1) / SPAN : 1;
        if (!atomic_compare_exchange_weak_explicit(claim, &was, mine ? was + n : was - CLAIM_END,
                                                   memory_order_acq_rel, memory_order_relaxed))
            continue;
        t->fn(t->job, owner * t->parts_each + (mine ? first : end - 1), n);
        parts_done(t, n);
        if (me == 0) poll_once(t);
        was = atomic_load_explicit(claim, memory_order_relaxed);
    }
}

static void run_parts(struct team *t, uint32_t me)
{
    if (me >= atomic_load_explicit(&t->n_used, memory_order_relaxed)) return;
    for (uint32_t i = 0; i < t->n_threads; i++) run_parts_of(t, (me + i) % t->n_threads, me);
}

static void *worker_main(void *worker_)
{
    struct worker *w = worker_;
    uint32_t seen = 0;
    while (next_work(w, &seen)) run_parts(w->team, w->index);
    return NULL;
}

static void run_spans(struct team *t, uint32_t parts_each, uint32_t flags, team_span_fn *fn,
                      void *job)
{
    assert(!t->is_running && parts_each < CLAIM_END);
    t->is_running = true;
    t->fn = fn;
    t->job = job;
    t->parts_each = parts_each;
    atomic_store_explicit(&t->n_undone, t->n_used * parts_each, memory_order_relaxed);
    for (uint32_t i = 0; i < t->n_used; i++)
        atomic_store_explicit(&t->claims[i].left, parts_each * CLAIM_END | flags,
                              memory_order_release);
    tell_workers(t);
    run_parts(t, 0);
    wait_done(t);
    t->is_running = false;
}

/* Adapts a function for one part to a function for spans. */
struct single {
    team_fn *fn;
    void *job;
};

static void run_single(void *single_, uint32_t first, uint32_t n)
{
    const struct single *s = single_;
    for (uint32_t i = first; i < first + n; i++) s->fn(s->job, i);
}

void team_run(struct team *t, uint32_t parts_each, team_fn *fn, void *job)
{
    struct single s = {fn, job};
    if (team_size(t) > 1) {
        run_spans(t, parts_each, 0, run_single, &s);
        return;
    }
    for (uint32_t i = 0; i < parts_each; i++) {
        fn(job, i);
        poll_once(t);
    }
}

void team_run_spans(struct team *t, uint32_t parts_each, team_span_fn *fn, void *job)
{
    if (team_size(t) > 1)
        run_spans(t, parts_each, SPANS, fn, job);
    else if (parts_each > 0)
        fn(job, 0, parts_each);
}

void team_run_each(struct team *t, team_fn *fn, void *job)
{
    struct single s = {fn, job};
    if (team_size(t) > 1)
        run_spans(t, 1, OWNER_ONLY, run_single, &s);
    else
        fn(job, 0);
}

void team_poll_with(struct team *t, void (*poll)(void *ctx), void *ctx)
{
    if (t == NULL) return;
    assert(!t->is_running);
    t->poll = poll;
    t->poll_ctx = ctx;
}

bool team_polls(const struct team *t)
{
    return t != NULL && t->poll != NULL;
}

uint32_t team_size(const struct team *t)
{
    return t != NULL ? t->n_used : 1;
}

bool team_is_calm(const struct team *t)
{
    return t == NULL || (atomic_load_explicit(&t->n_asleep, memory_order_relaxed) == 0 &&
                         t->workers[0].hurry == 0);
}

void team_use(struct team *t, uint32_t n)
{
    assert(n > 0 && n <= t->n_threads && !t->is_running);
    t->n_used = n;
}

/* Ends and joins workers [1, n). */
static void stop_workers(struct team *t, uint32_t n)
{
    atomic_store(&t->stops, true);
    tell_workers(t);
    for (uint32_t i = 1; i < n; i++) pthread_join(t->workers[i].thread, NULL);
}

/* Starts the workers with all signals blocked, so that the main thread handles signals. */
static struct status start_workers(struct team *t)
{
    sigset_t all, before;
    uint32_t n = 1;
    int error = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; n < t->n_threads && error == 0; n++) {
        t->workers[n] = (struct worker){.team = t, .index = n};
        error = pthread_create(&t->workers[n].thread, NULL, worker_main, &t->workers[n]);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) return status_ok();
    stop_workers(t, n - 1);
    return status_make(STATUS_MEMORY, "thread %u of %u could not be started: %s", n - 1,
                       t->n_threads, strerror(error));
}

struct status team_create(uint32_t n_threads, struct team **out)
{
    assert(n_threads > 0 && n_threads < 1 << 16);
    struct team *t;
    struct status st;
    *out = NULL;
    TRY(mem_alloc(&t, 1, sizeof *t, "team of threads"));
    t->n_threads = n_threads;
    t->n_used = n_threads;
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->done, NULL);
    TRY_GOTO(st, mem_alloc(&t->claims, n_threads, sizeof *t->claims, "claims"), free_team);
    TRY_GOTO(st, mem_alloc(&t->workers, n_threads, sizeof *t->workers, "workers"), free_claims);
    TRY_GOTO(st, start_workers(t), free_workers);
    *out = t;
    return st;
free_workers:
    mem_free(&t->workers);
free_claims:
    mem_free(&t->claims);
free_team:
    mem_free(&t);
    return st;
}

void team_destroy(struct team **t_)
{
    struct team *t = *t_;
    if (t == NULL) return;
    stop_workers(t, t->n_threads);
    pthread_cond_destroy(&t->done);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->mutex);
    mem_free(&t->workers);
    mem_free(&t->claims);
    mem_free(t_);
}

/* Records where a thread may run, in masks [threads]. */
static void note_cpus(void *masks, uint32_t thread)
{
    cpu_set_t *mine = (cpu_set_t *)masks + thread;
    if (sched_getaffinity(0, sizeof *mine, mine) != 0) CPU_ZERO(mine);
}

struct status team_cpus(struct team *t, cpu_set_t *out)
{
    cpu_set_t *masks = NULL;
    const uint32_t n = team_size(t);
    TRY(mem_alloc(&masks, n, sizeof *masks, "threads' places"));
    team_run_each(t, note_cpus, masks);
    CPU_ZERO(out);
    for (uint32_t i = 0; i < n; i++) CPU_OR(out, out, &masks[i]);
    mem_free(&masks);
    return status_ok();
}
