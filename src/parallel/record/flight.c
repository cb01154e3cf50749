/* The ring of the flight recorder. There is one writer; a reader checks an event's number before
 * and after it copies the event. */
#include "parallel/record/flight.h"

#include <stdio.h>
#include <string.h>

static const char *const op_names[FLIGHT_OP_COUNT] = {
#define X(name, text) text,
    FLIGHT_OPS(X)
#undef X
};

void flight_init(struct flight *f)
{
    memset(f, 0, sizeof *f);
    atomic_store(&f->step, FLIGHT_NO_STEP);
    atomic_store(&f->layer, FLIGHT_NO_LAYER);
}

static uint64_t relaxed(const _Atomic uint64_t *word)
{
    return atomic_load_explicit(word, memory_order_relaxed);
}

void flight_begin(struct flight *f, enum flight_op op, uint32_t axis, uint64_t count,
                  uint64_t now_ns)
{
    const uint64_t number = relaxed(&f->n_events) + 1;
    const int64_t layer = atomic_load_explicit(&f->layer, memory_order_relaxed);
    struct flight_slot *s = &f->slots[number % FLIGHT_EVENTS];
    atomic_store_explicit(&s->number, 0, memory_order_relaxed);
    /* a reader that sees the new words must also see the 0 */
    atomic_thread_fence(memory_order_release);
    const uint64_t kind = (uint64_t)op | (uint64_t)axis << 8 | (uint64_t)(uint32_t)layer << 32;
    atomic_store_explicit(&s->kind, kind, memory_order_relaxed);
    atomic_store_explicit(&s->count, count, memory_order_relaxed);
    atomic_store_explicit(&s->step, relaxed(&f->step), memory_order_relaxed);
    atomic_store_explicit(&s->begin_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&s->end_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&s->number, number, memory_order_release);
    atomic_store_explicit(&f->n_events, number, memory_order_release);
}

void flight_end(struct flight *f, uint64_t now_ns)
{
    struct flight_slot *s = &f->slots[relaxed(&f->n_events) % FLIGHT_EVENTS];
    atomic_store_explicit(&s->end_ns, now_ns, memory_order_relaxed);
}

bool flight_read(const struct flight *f, uint64_t number, struct flight_event *out)
{
    const struct flight_slot *s = &f->slots[number % FLIGHT_EVENTS];
    if (number == 0) return false;
    if (atomic_load_explicit(&s->number, memory_order_acquire) != number) return false;
    const uint64_t kind = relaxed(&s->kind);
    *out = (struct flight_event){.number = number,
                                 .op = (enum flight_op)(kind & 0xff),
                                 .axis = (uint32_t)(kind >> 8 & 0xff),
                                 .count = relaxed(&s->count),
                                 .step = relaxed(&s->step),
                                 .layer = (int32_t)(uint32_t)(kind >> 32),
                                 .begin_ns = relaxed(&s->begin_ns),
                                 .end_ns = relaxed(&s->end_ns)};
    atomic_thread_fence(memory_order_acquire);
    return relaxed(&s->number) == number;
}

struct flight_event flight_last(const struct flight *f)
{
    struct flight_event e;
    /* tries again when the writer overwrites the event while it is read */
    for (int i = 0; i < 100; i++) {
        const uint64_t n = atomic_load_explicit(&f->n_events, memory_order_acquire);
        if (n == 0) break;
        if (flight_read(f, n, &e)) return e;
        if (n > 1 && flight_read(f, n - 1, &e)) return e;
    }
    return (struct flight_event){.number = 0};
}

const char *flight_op_name(uint32_t op)
{
    return op < FLIGHT_OP_COUNT ? op_names[op] : "unknown";
}

int flight_print(const struct flight_event *e, const char *axis_name, char *out, size_t out_bytes)
{
    if (e->number == 0) return snprintf(out, out_bytes, "no communication yet");
    char step[32] = "before the first step", layer[32] = "";
    if (e->step != FLIGHT_NO_STEP) {
        snprintf(step, sizeof step, "step %llu", (unsigned long long)e->step);
    }
    if (e->layer != FLIGHT_NO_LAYER) snprintf(layer, sizeof layer, ", layer %d", e->layer);
    return snprintf(out, out_bytes, "%s over %s, count %llu, %s%s (event %llu, %s)",
                    flight_op_name(e->op), axis_name, (unsigned long long)e->count, step, layer,
                    (unsigned long long)e->number, e->end_ns == 0 ? "inside" : "done");
}
