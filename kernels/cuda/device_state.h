/* The state of a CUDA device and the functions that its files share: device_cuda.c (opening,
 * memory, waiting), copies.c, graphs.c, the files that launch kernels (*_cuda.c), and
 * src/collective/, which puts collectives on the device's streams. */
#ifndef SHOAL_KERNELS_CUDA_DEVICE_STATE_H
#define SHOAL_KERNELS_CUDA_DEVICE_STATE_H

#include "kernels/cuda/driver.h"
#include "kernels/device.h"

enum {
    STAGE_BYTES = 8 << 20,   /* of each pinned staging buffer */
    N_STAGES = 2,            /* one is filled while the other is copied, or used */
    CALL_BYTES = 4 << 20,    /* arguments on their way to the device */
    RESULT_BYTES = 1 << 20,  /* results that are fetched together, */
    DEVICE_GETS = 16,        /* and how many */
    STATES_BYTES = 64 << 20, /* attention states of a step's tiles; partials of a product */
    GEMM_X_BYTES = 32 << 20, /* a product's rows */
    DEVICE_ALGORITHMS = 64,  /* kinds of products */
};

/* Pinned memory that goes to the device piece by piece. */
struct device_stage {
    void *pinned, *event;
    bool busy; /* the event says when not any more */
};

/* Positions and block tables of a step's rows (struct cuda_rows), in device memory and in pinned
 * host memory. There are two, because a step may begin before the last one has ended. */
struct device_rows {
    int32_t *words, *pinned; /* [n_words] on the device, in host memory */
    size_t n_words;
    void *sent, *used;   /* events: copied; read for the last time */
    bool busy, was_used; /* they were recorded and not waited for */
};

struct device_get {
    void *to;
    const void *from;
    size_t n_bytes, at; /* in device.results */
};

/* Host memory that collectives are staged in. */
enum device_wire { DEVICE_WIRE_OUT, DEVICE_WIRE_IN, DEVICE_WIRES };

struct graphs;
struct device_ops;

/* Communicators between GPUs (src/collective/links.c), kept by the device for a room above. The
 * hooks are called where the device waits or ends. */
struct links;
struct device_hooks {
    /* Called again and again while the host waits. Ends the job when a peer has failed. */
    void (*check)(struct device *d);
    /* All work on the compute stream has ended. */
    void (*waited)(struct device *d);
    /* Writes the operations that have not ended, for a sentence, as " (all-reduce over tp with rank
     * 1 on node2)"; "" where there are none. */
    void (*name_waiting)(const struct device *d, char *out, size_t n);
    /* The device did not answer in time: ends the job. */
    void (*leave)(struct device *d);
    /* The device is about to be closed; it may have failed. */
    void (*close)(struct device *d);
};

/* The library's algorithm for products of a type and a number of inputs. */
struct device_algorithm {
    enum dtype dtype;
    bool batched;
    size_t k;
    uint32_t algorithm; /* CUDA_GEMM_FREE: none passed */
};

/* Rows that stand in device_gemm.x. */
struct device_rounded {
    const float *x; /* NULL: none */
    size_t n;
    uint32_t stride;
    enum dtype dtype;
    int order; /* the library's 0; own kernels' by kind of weight, 1 and more */
};

struct device_gemm {
    void *library;
    char name[64];
    void *x;          /* [GEMM_X_BYTES] rows as the library, or tensor cores, read them */
    int32_t *differs; /* words found to differ */
    struct device_algorithm algorithms[DEVICE_ALGORITHMS];
    uint32_t n_algorithms;
    struct packed checked[64]; /* shapes that held */
    uint32_t n_checked;
    struct device_rounded rounded; /* until an op ends */
};

struct device {
    const struct device_ops *ops;
    const struct cuda_driver *driver;
    int index;
    uint32_t n_sharers;
    uint64_t deadline_ns;
    enum device_arithmetic arithmetic;
    struct cuda_facts facts;
    struct status failed;
    void *stream, *waits; /* of computing, reached by device_compute; event of device_wait */
    struct graphs *graphs;
    void *copies, *copied; /* stream; event of what launches read */
    bool copies_sent;      /* since the compute stream waited for them */
    struct device_stage stages[N_STAGES];
    uint32_t next_stage;
    char *calls, *calls_pinned; /* [CALL_BYTES] a ring */
    size_t calls_at, calls_sent;
    struct device_get gets[DEVICE_GETS]; /* results wanted with the next wait */
    uint32_t n_gets;
    size_t gets_bytes;
    void *results;           /* [RESULT_BYTES] pinned */
    float *states;           /* [STATES_BYTES] */
    void *landing;           /* [STAGE_BYTES] device memory for weights before they are packed */
    struct device_gemm gemm; /* library NULL: own kernels alone */
    struct device_rows row_slots[N_STAGES];
    uint32_t row_slot;          /* of the step */
    bool rows_in_use;           /* by launches that may not have ended */
    struct cuda_rows step_rows; /* of the step, in its slot */
    struct cuda_rows rows;      /* of the part of the step that ops work on */
    size_t n_rows;
    uint32_t n_tiles_max; /* of a row of the step */
    struct {
        void *data;
        size_t n_bytes;
    } wires[DEVICE_WIRES];
    const struct device_hooks *hooks; /* set where links are */
    struct links *links;              /* owned, ended by hooks->close; NULL: none */
};

/* Local. Keeps the first failure; `what` was tried. Returns true when the call failed. */
bool device_failed(struct device *d, int error, const char *what);
static inline bool device_is_lost(const struct device *d)
{
    return status_failed(&d->failed);
}

/* Local. The compute stream, for those who put work on it themselves: what was launched before is
 * on it first. Asked for at each use, never kept. */
void *device_compute(struct device *d);

struct status device_alloc(struct device *d, void **out, size_t n_bytes, const char *what);
void device_release(struct device *d, void **inout);

/* Local. A copy of n bytes of the host's, for the launch that comes next. n is at most CALL_BYTES.
 * NULL after a failure. device_send_calls: what is put on the compute stream from now on sees them.
 */
void *device_call(struct device *d, const void *from, size_t n_bytes);
void device_send_calls(struct device *d);

/* Local. A step's rows: n pinned words to fill, then their place on the device. NULL after a
 * failure. */
int32_t *device_rows_fill(struct device *d, size_t n_words);
const int32_t *device_rows_send(struct device *d, size_t n_words);

/* copies.c, for device_cuda.c. Local. close goes on after failures. */
struct status device_copies_open(struct device *d);
void device_copies_close(struct device *d);
void device_gets_start(struct device *d);
void device_gets_end(struct device *d);

/* Local. Until an event was reached; until all of the compute stream has ended. Both within the
 * deadline. device_wait (device.h) also brings results and starts the ring of calls anew. */
void device_await(struct device *d, void *event);
void device_wait_put(struct device *d); /* of what was put there; graphs.c holds back some */
void device_wait_stream(struct device *d);

/* Local. A pinned buffer of STAGE_BYTES that nothing is copied from any more, and the copy of its
 * first n bytes. NULL after a failure. */
struct device_stage *device_stage_next(struct device *d);
void device_stage_send(struct device *d, struct device_stage *s, void *to, size_t n_bytes);

/* Local. At least n bytes of a wire, which may move and forgets its content. STATUS_MEMORY. */
struct status device_wire_reserve(struct device *d, enum device_wire which, size_t n_bytes);

/* gemm_cuda.c. Local. Opens the library, unless the device's arithmetic is the CPU's or there is
 * none; its failure is none of the device's. */
struct status device_gemm_open(struct device *d);
void device_gemm_close(struct device *d);

/* Local. A linear of one group with a flat weight, with leaves or without. */
void device_gemm_run(struct device *d, const struct linear_args *a, bool leafy);

void device_put(struct device *d, void *to, const void *from, size_t n_bytes);
void device_get(struct device *d, void *to, const void *from, size_t n_bytes);
void device_get_later(struct device *d, void *to, const void *from, size_t n_bytes);

/* graphs.c. Local. On the compute stream, now or with others as one graph. product: false where the
 * library has none of this shape. */
void device_launch(struct device *d, enum cuda_kernel kernel, struct cuda_grid grid,
                   const void *args);
/* On another stream, at once. */
void device_launch_on(struct device *d, void *stream, enum cuda_kernel kernel,
                      struct cuda_grid grid, const void *args);

void device_fill(struct device *d, void *p, int byte, size_t n_bytes); /* p: a multiple of 4 */
bool device_product(struct device *d, const struct cuda_gemm *p);

#endif
