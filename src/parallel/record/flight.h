/* The flight recorder: a ring of this rank's last communication events, which is printed when a
 * rank is lost. One thread writes. Any thread, or another process that maps the same memory, may
 * read at any time without a lock. It never waits and never allocates. */
#ifndef SHOAL_PARALLEL_RECORD_FLIGHT_H
#define SHOAL_PARALLEL_RECORD_FLIGHT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FLIGHT_EVENTS = 256 }; /* a power of two */

enum { FLIGHT_NO_LAYER = -1 };
#define FLIGHT_NO_STEP UINT64_MAX

#define FLIGHT_OPS(X)                                                                              \
    X(NONE, "nothing")                                                                             \
    X(SPLIT, "split")                                                                              \
    X(ALL_REDUCE, "all-reduce")                                                                    \
    X(REDUCE_SCATTER, "reduce-scatter")                                                            \
    X(ALL_GATHER, "all-gather")                                                                    \
    X(ALL_TO_ALL, "all-to-all")                                                                    \
    X(BROADCAST, "broadcast")                                                                      \
    X(BARRIER, "barrier")                                                                          \
    X(SEND, "send")                                                                                \
    X(RECEIVE, "receive")                                                                          \
    X(WAIT, "wait")                                                                                \
    X(PROBE, "probe")

enum flight_op {
#define X(name, text) FLIGHT_##name,
    FLIGHT_OPS(X)
#undef X
        FLIGHT_OP_COUNT
};

/* One event, as a reader gets it. */
struct flight_event {
    uint64_t number; /* 1, 2, ... in the order in which events begin; 0: no event */
    enum flight_op op;
    uint32_t axis;             /* an enum comm_axis */
    uint64_t count;            /* elements, or bytes where an operation moves bytes */
    uint64_t step;             /* FLIGHT_NO_STEP: before the first step */
    int32_t layer;             /* FLIGHT_NO_LAYER: outside the layers */
    uint64_t begin_ns, end_ns; /* clock_ns; end 0: the operation has not returned */
};

/* An event in memory; `number` is 0 while flight_begin writes the other members. flight_end sets
 * end_ns alone, and leaves `number`. */
struct flight_slot {
    _Alignas(64) _Atomic uint64_t number;
    _Atomic uint64_t kind; /* op, axis << 8, layer << 32 */
    _Atomic uint64_t count, step, begin_ns, end_ns;
};

/* Holds no pointers, so it may lie in memory that processes share. */
struct flight {
    _Atomic uint64_t n_events;
    _Atomic uint64_t step; /* the step that the rank works on, also outside communication */
    _Atomic int64_t layer;
    struct flight_slot slots[FLIGHT_EVENTS];
};

/* Local. Makes an empty ring in the caller's memory. */
void flight_init(struct flight *f);

/* Local, writer. flight_mark_step sets the step of the events that follow, outside the layers;
 * flight_mark_layer sets their layer. */
static inline void flight_mark_step(struct flight *f, uint64_t step)
{
    atomic_store_explicit(&f->step, step, memory_order_relaxed);
    atomic_store_explicit(&f->layer, FLIGHT_NO_LAYER, memory_order_relaxed);
}

static inline void flight_mark_layer(struct flight *f, int32_t layer)
{
    atomic_store_explicit(&f->layer, layer, memory_order_relaxed);
}

/* Local, writer. Begins an event, which ends at the next flight_end. Events do not nest. */
void flight_begin(struct flight *f, enum flight_op op, uint32_t axis, uint64_t count,
                  uint64_t now_ns);
void flight_end(struct flight *f, uint64_t now_ns);

/* Local, reader, any thread. Reads the event with this number; false when it was overwritten, is
 * being written or does not exist yet. */
bool flight_read(const struct flight *f, uint64_t number, struct flight_event *out);

/* Local, reader, any thread. Returns the newest event or, while that is being written, the one
 * before it; number 0 when there is none. */
struct flight_event flight_last(const struct flight *f);

/* Local. Returns the name of an enum flight_op, for messages; any number is accepted. */
const char *flight_op_name(uint32_t op);

/* Local. Prints, for example, "all-reduce over tp, count 4160, step 17, layer 3 (event 9, done)";
 * axis_name comes from comm. Returns the length as snprintf does. */
int flight_print(const struct flight_event *e, const char *axis_name, char *out, size_t out_bytes);

#endif
