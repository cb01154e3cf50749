/* Shared by the files of the emulated driver: its streams, its device memory, what is recorded.
 * Included by driver_emulated.c, streams_emulated.c and graphs_emulated.c alone. */
#ifndef SHOAL_TESTS_STATE_EMULATED_H
#define SHOAL_TESTS_STATE_EMULATED_H

#include "driver_emulated.h"
#include "kernels/cuda/driver.h"

#include <pthread.h>
#include <stdio.h>

struct cuda_block {
    uint32_t x, y, z;
};

typedef void run_block(const void *a, struct cuda_block b, void *shared);

/* By enum cuda_kernel: a block of it, and its arguments' bytes. */
extern run_block *const emulated_kernels[CUDA_KERNEL_COUNT];
extern const size_t emulated_args_bytes[CUDA_KERNEL_COUNT];

struct stream;

/* Work of a stream up to its at-th piece. */
struct event {
    struct stream *stream; /* NULL: nothing */
    uint64_t at;
};

enum work_kind { WORK_LAUNCH, WORK_COPY, WORK_FILL, WORK_GEMM, WORK_CALL, WORK_AWAIT };
struct work {
    enum work_kind kind;
    enum cuda_kernel kernel;
    struct cuda_grid grid;
    char args[sizeof(struct attention_work_cuda)];
    struct cuda_gemm gemm;
    void *to;
    const void *from;
    size_t n_bytes;
    int byte;
    void (*call)(void *arg);
    void *arg;
    struct event event;
};

struct queue {
    struct work *work;
    size_t head, n, capacity; /* [head, n) is still to be run */
    struct event launched;    /* of a graph: the end of its last launch */
};

/* Copies to the device on another stream than the first run at once (unless it has something to do
 * before), or only when somebody waits for them: emulated.copies. A missing wait shows one way or
 * the other. */
struct stream {
    struct queue q;
    uint64_t n_done; /* pieces run so far; with those in q, pieces put */
    size_t n_calls;  /* among these: its thread's, with what stands before them */
    bool has_thread, is_side;
    unsigned number; /* in the order of making, for the record */
    struct stream *next;
};

struct emulated_state {
    struct emulated e;
    bool is_read, is_open; /* open: device memory, to the work that runs */
    char *region;
    size_t used, n_arrays; /* n_arrays were given out and not taken back */
    const void *fresh;     /* given out last and not touched: zeros, whose pages cost nothing */
    uint64_t n_calls, n_launches, n_bad_launches, n_side;
    struct stream *streams; /* all */
    unsigned n_streams;     /* made so far */
    struct queue *graph;    /* NULL, or what is recorded now */
    FILE *record;           /* of what was put where; NULL: nobody asked */
};
extern struct emulated_state all;

extern pthread_mutex_t emulated_lock; /* of the streams and of device memory */

/* Counts a call of the driver: 0, or that the device is gone. */
int emulated_called(void);

/* A grid that every device takes. */
bool emulated_fits(struct cuda_grid grid);

/* Ends the process while a stream is recorded: what a real device refuses then. */
void emulated_not_recording(void);

/* Puts work at a stream's end, under the lock; into q without one. */
void emulated_put(struct stream *s, const struct work *w);
void emulated_append(struct queue *q, const struct work *w);

/* The same with all that comes with a call of the driver: it takes the lock, and what is recorded
 * goes into the graph. Returns its error. */
int emulated_enqueue(void *stream, const struct work *w);

/* Runs what stands before the event, in other streams too where something awaits it, under the
 * lock; false when a thread has something to do first. */
bool emulated_run_until(struct event e);

/* The same for all there is, and the end of running. */
bool emulated_run_streams(void);

/* The end of what a stream has now. */
struct event emulated_all_of(struct stream *s);

/* Called by the thread that ran something, before it gives up the lock. */
void emulated_close_region(void);

/* The driver's functions of these names. */
int emulated_stream_create(void **out);
int emulated_stream_destroy(void *stream);
int emulated_stream_await(void *stream, void *event);
int emulated_event_create(void **out);
int emulated_event_destroy(void *event);
int emulated_event_record(void *event, void *stream);
int emulated_event_query(void *event, bool *done);
int emulated_graph_begin(void *stream);
int emulated_graph_node(void *stream, void **node);
int emulated_graph_end(void *stream, void **graph);
int emulated_graph_change(void *graph, void *node, enum cuda_kernel kernel, struct cuda_grid grid,
                          const void *args);
int emulated_graph_launch(void *graph, void *stream);
int emulated_graph_destroy(void *graph);

#endif
