/* Shared by the files of the emulated driver: its streams, its device memory and its record of
 * work. Included only by driver_emulated.c, streams_emulated.c and graphs_emulated.c. */
#ifndef SHOAL_TESTS_STATE_EMULATED_H
#define SHOAL_TESTS_STATE_EMULATED_H

#include "driver_emulated.h"
#include "kernels/cuda/driver.h"

#include <pthread.h>
#include <stdio.h>

/* The unit in which device memory is made accessible, a huge page: with pages of 4 KiB, a launch on
 * 100 MB would change 25,000 of them, which takes longer than the kernels. */
enum { EMULATED_PAGE = 2 << 20 };

struct cuda_block {
    uint32_t x, y, z;
};

typedef void run_block(const void *a, struct cuda_block b, void *shared);

/* By enum cuda_kernel: the function of one block, and the size of its arguments. */
extern run_block *const emulated_kernels[CUDA_KERNEL_COUNT];
extern const size_t emulated_args_bytes[CUDA_KERNEL_COUNT];

struct stream;

/* A point in a stream: after its at-th piece of work. */
struct event {
    struct stream *stream; /* NULL: nothing to wait for */
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
    size_t head, n, capacity; /* [head, n) has not run yet */
    struct event launched;    /* for a graph: the end of its last launch */
};

/* A stream. Copies to the device on other streams than the first run at once (unless they must
 * wait), or only when an event is queried, as emulated.copies says. So a missing wait shows in one
 * of the two ways. */
struct stream {
    struct queue q;
    uint64_t n_done; /* pieces run so far; with those in q: pieces queued */
    size_t n_calls;  /* of these: calls of NCCL, which its thread runs with the work before them */
    bool has_thread, is_side;
    unsigned number; /* in the order of creation, for the record */
    struct stream *next;
};

struct emulated_state {
    struct emulated e;
    bool is_read, is_open; /* e is set; device memory is accessible to the work that runs */
    char *region;
    size_t used, n_arrays; /* n_arrays are allocated and not released */
    const void *fresh;     /* the latest array, until work is queued: its bytes are zeros, so that
                              filling it with zeros costs nothing */
    uint64_t n_calls, n_launches, n_bad_launches, n_side;
    struct stream *streams; /* all streams */
    unsigned n_streams;     /* streams created so far */
    struct queue *graph;    /* the graph that is being recorded, or NULL */
    FILE *record;           /* lists which work was queued where; NULL: not requested */
};
extern struct emulated_state all;

extern pthread_mutex_t emulated_lock; /* of the streams and of device memory */

/* Counts a call of the driver. Returns 0, or the error that the device is lost. */
int emulated_called(void);

/* Whether every device accepts the grid. */
bool emulated_fits(struct cuda_grid grid);

/* Ends the process if a graph is being recorded. Called by the driver's entries that a real device
 * refuses at such a time. */
void emulated_not_recording(void);

/* Append work to a stream, whose lock the caller holds, or to a queue. */
void emulated_put(struct stream *s, const struct work *w);
void emulated_append(struct queue *q, const struct work *w);

/* Appends work for a call of the driver: takes the lock; while a graph is recorded, the work goes
 * into it. Returns the driver's error. */
int emulated_enqueue(void *stream, const struct work *w);

/* Runs all work before the event, and the work of other streams that this work waits for. The
 * caller holds the lock. Returns false if a call must end first, which its stream's thread runs. */
bool emulated_run_until(struct event e);

/* The same for all work of all streams. */
bool emulated_run_streams(void);

/* The end of the work that a stream has now. */
struct event emulated_all_of(struct stream *s);

/* Makes device memory inaccessible again. Called by the thread that ran work, before it releases
 * the lock. */
void emulated_close_region(void);

/* Makes the pages that hold [begin, end) of the region accessible, or inaccessible. */
void emulated_open(size_t begin, size_t end, bool on);

/* The driver's entries of these names. */
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
