/* The background thread and its one job. */
#include "base/background.h"

#include "base/mem.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

struct background {
    pthread_t thread;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    background_fn *fn; /* NULL: no job, or the job is done */
    void *job;
    struct status status; /* status of the last job */
    bool is_over;
};

static void *background_main(void *arg)
{
    struct background *b = arg;
    pthread_mutex_lock(&b->lock);
    while (true) {
        while (b->fn == NULL && !b->is_over) pthread_cond_wait(&b->changed, &b->lock);
        if (b->fn == NULL) break;
        pthread_mutex_unlock(&b->lock);
        const struct status st = b->fn(b->job);
        pthread_mutex_lock(&b->lock);
        b->status = st;
        b->fn = NULL;
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

struct status background_create(struct background **out)
{
    struct background *b = NULL;
    sigset_t all, before;
    *out = NULL;
    TRY(mem_alloc(&b, 1, sizeof *b, "a thread's job"));
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    b->status = status_ok();
    sigfillset(&all); /* the main thread handles signals */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&b->thread, NULL, background_main, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) {
        *out = b;
        return status_ok();
    }
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    mem_free(&b);
    return status_make(STATUS_MEMORY, "a thread could not be started: %s", strerror(error));
}

void background_destroy(struct background **b_)
{
    struct background *b = *b_;
    if (b == NULL) return;
    pthread_mutex_lock(&b->lock);
    b->is_over = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    pthread_join(b->thread, NULL);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    mem_free(b_);
}

void background_start(struct background *b, background_fn *fn, void *job)
{
    pthread_mutex_lock(&b->lock);
    assert(b->fn == NULL);
    b->fn = fn;
    b->job = job;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

struct status background_wait(struct background *b)
{
    pthread_mutex_lock(&b->lock);
    while (b->fn != NULL) pthread_cond_wait(&b->changed, &b->lock);
    const struct status st = b->status;
    b->status = status_ok();
    pthread_mutex_unlock(&b->lock);
    return st;
}
