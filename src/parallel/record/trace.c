/* Keeps the timeline in a ring. */
#include "parallel/record/trace.h"

#include "base/clock.h"
#include "base/mem.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

struct trace {
    _Atomic uint64_t n_added; /* written by the one writer; read by a thread that copies events */
    size_t capacity;
    struct trace_event *events; /* [capacity] */
};

struct status trace_create(uint32_t n_ranks, struct trace **out)
{
    assert(n_ranks > 0 && n_ranks <= TRACE_EVENTS_ALL);
    *out = NULL;
    struct trace *t = NULL;
    TRY(mem_alloc(&t, 1, sizeof *t, "trace"));
    t->capacity = TRACE_EVENTS_ALL / n_ranks;
    if (t->capacity > TRACE_EVENTS_MAX) t->capacity = TRACE_EVENTS_MAX;
    struct status st = mem_alloc(&t->events, t->capacity, sizeof *t->events, "trace");
    if (status_failed(&st)) trace_destroy(&t);
    *out = t;
    return st;
}

void trace_destroy(struct trace **t)
{
    if (*t == NULL) return;
    mem_free(&(*t)->events);
    mem_free(t);
}

void trace_add(struct trace *t, const struct trace_event *e)
{
    if (t == NULL) return;
    const uint64_t n = atomic_load_explicit(&t->n_added, memory_order_relaxed);
    t->events[n % t->capacity] = *e;
    atomic_store_explicit(&t->n_added, n + 1, memory_order_release);
}

void trace_add_comm(struct trace *t, const struct flight *f)
{
    if (t == NULL) return;
    const struct flight_event e = flight_last(f);
    if (e.number == 0 || e.op == FLIGHT_WAIT || e.op == FLIGHT_PROBE) return;
    trace_add(t, &(struct trace_event){.begin_ns = e.begin_ns,
                                       .end_ns = e.end_ns,
                                       .step = e.step,
                                       .counts = {e.count},
                                       .kind = TRACE_COMM,
                                       .op = (uint8_t)e.op,
                                       .axis = (uint8_t)e.axis,
                                       .layer = e.layer});
}

uint64_t trace_cpu_ns(const struct trace *t)
{
    return t != NULL ? clock_thread_ns() : 0;
}

size_t trace_capacity(const struct trace *t)
{
    return t->capacity;
}

size_t trace_count(const struct trace *t)
{
    const uint64_t n = t->n_added;
    return n < t->capacity ? (size_t)n : t->capacity;
}

uint64_t trace_n_lost(const struct trace *t)
{
    return t->n_added - trace_count(t);
}

void trace_copy(const struct trace *t, struct trace_event *out)
{
    const size_t n = trace_count(t), first = (size_t)(trace_n_lost(t) % t->capacity);
    const size_t n_end = n < t->capacity - first ? n : t->capacity - first;
    memcpy(out, t->events + first, n_end * sizeof *out);
    memcpy(out + n_end, t->events, (n - n_end) * sizeof *out);
}

size_t trace_copy_beside(const struct trace *t, struct trace_event *out, uint64_t *n_lost)
{
    const uint64_t end = atomic_load_explicit(&t->n_added, memory_order_acquire);
    uint64_t first = end > t->capacity ? end - t->capacity : 0;
    for (uint64_t i = first; i < end; i++) out[i - first] = t->events[i % t->capacity];
    atomic_thread_fence(memory_order_acquire);
    const uint64_t now = atomic_load_explicit(&t->n_added, memory_order_relaxed) + 1;
    const uint64_t kept = now > t->capacity ? now - t->capacity : 0;
    const uint64_t n_torn = kept <= first ? 0 : (kept < end ? kept : end) - first;
    memmove(out, out + n_torn, (size_t)(end - first - n_torn) * sizeof *out);
    *n_lost = first + n_torn;
    return (size_t)(end - first - n_torn);
}
