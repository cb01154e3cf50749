/* The state of a CUDA device, and the functions that its files share: device_cuda.c (opening,
 * memory, waiting), copies.c, graphs.c, the files that launch kernels (*_cuda.c, gemm_trials.c),
 * and src/collective/, which puts collectives on the device's streams. */
#ifndef SHOAL_KERNELS_CUDA_DEVICE_STATE_H
#define SHOAL_KERNELS_CUDA_DEVICE_STATE_H

#include "kernels/cuda/driver.h"
#include "kernels/device.h"

enum {
    STAGE_BYTES = 8 << 20,    /* bytes of each pinned staging buffer */
    N_STAGES = 2,             /* one buffer is filled while the other is copied or used */
    CALL_BYTES = 4 << 20,     /* bytes of the ring of arguments (device_call) */
    RESULT_BYTES = 1 << 20,   /* bytes of results fetched in one wait */
    DEVICE_GETS = 16,         /* most results fetched in one wait */
    STATES_BYTES = 128 << 20, /* attention states of tiles; partial sums of products */
    GEMM_LEAVES_BYTES =
        STATES_BYTES / 2, /* the part for partial sums when the rest holds integer sums */
    GEMM_SUMS_BYTES = STATES_BYTES - GEMM_LEAVES_BYTES,
    GEMM_X_BYTES = 32 << 20, /* bytes of rows rounded for products */
    DEVICE_ALGORITHMS = 64,  /* most entries of device_gemm.algorithms */
};

/* A pinned staging buffer for copies to or from the device. */
struct device_stage {
    void *pinned, *event;
    bool busy; /* a copy may be under way; the event tells when it has ended */
};

/* Positions and block tables of a step's rows (struct cuda_rows), in device memory and in pinned
 * host memory. There are two of them, because a step may begin before the previous one has ended.
 */
struct device_rows {
    int32_t *words, *pinned; /* [n_words] on the device, in host memory */
    size_t n_words;
    void *sent, *used;   /* events: the copy ended; the last launch that reads the words ended */
    bool busy, was_used; /* whether `sent`, `used` were recorded and not yet waited for */
};

struct device_get {
    void *to;
    const void *from;
    size_t n_bytes, at; /* in device.results */
};

/* Host memory through which collectives are staged. */
enum device_wire { DEVICE_WIRE_OUT, DEVICE_WIRE_IN, DEVICE_WIRES };

struct graphs;
struct device_ops;

/* Communicators between GPUs (src/collective/links.c). The device keeps them for src/collective,
 * and calls the hooks when it waits or closes. */
struct links;
struct device_hooks {
    /* Called repeatedly while the host waits. Ends the job when a peer has failed. */
    void (*check)(struct device *d);
    /* Called when all work on the compute stream has ended. */
    void (*waited)(struct device *d);
    /* Writes the operations that have not ended, for a sentence, as " (all-reduce over tp with
     * rank 1 on node2)"; "" if there are none. */
    void (*name_waiting)(const struct device *d, char *out, size_t n);
    /* Called when the device did not answer in time: ends the job. */
    void (*leave)(struct device *d);
    /* Called when the device is about to be closed; it may have failed. */
    void (*close)(struct device *d);
};

/* The library's algorithm for products of one element type and number of inputs, batched or not. */
struct device_algorithm {
    enum dtype dtype;
    bool batched;
    size_t k;
    uint32_t algorithm; /* CUDA_GEMM_FREE: none passed the trials */
    uint32_t many; /* for many rows: as `algorithm`, or one of the library's list for many rows that
                      gives the same bits */
    bool few;      /* for few rows: the kernel gemm_few gives the same bits */
};

/* Describes the rows that device_gemm.x holds. */
struct device_rounded {
    const float *x; /* NULL: none */
    size_t n;
    uint32_t stride;
    enum dtype dtype;
    int order; /* 0: the library's order; 1 + kind of weight: the order of shoal's own kernels */
};

struct device_gemm {
    void *library;
    char name[64];
    void *x;          /* [GEMM_X_BYTES] rows rounded for the library or for tensor cores */
    int32_t *differs; /* number of words that differed in trials */
    struct device_algorithm algorithms[DEVICE_ALGORITHMS];
    uint32_t n_algorithms;
    struct packed checked[64]; /* weight shapes that passed their trial, the latest 64 */
    uint32_t n_checked;
    struct device_rounded rounded; /* what x holds; reset when the op ends */
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
    void *stream, *waits; /* the compute stream (use device_compute); the event of device_wait */
    struct graphs *graphs;
    void *copies, *copied; /* the copy stream; the event of its last copy */
    bool copies_sent; /* something was copied since the compute stream last waited for copies */
    struct device_stage stages[N_STAGES];
    uint32_t next_stage;
    char *calls, *calls_pinned; /* [CALL_BYTES] a ring of arguments */
    size_t calls_at, calls_sent;
    struct device_get gets[DEVICE_GETS]; /* results to fetch at the next wait */
    uint32_t n_gets;
    size_t gets_bytes;
    void *results;           /* [RESULT_BYTES] pinned */
    float *states;           /* [STATES_BYTES] */
    void *landing;           /* [STAGE_BYTES] device memory for weights before they are packed */
    struct device_gemm gemm; /* library NULL: only shoal's own kernels multiply */
    struct device_rows row_slots[N_STAGES];
    uint32_t row_slot;          /* slot of the current step */
    bool rows_in_use;           /* launches that may not have ended read the slot */
    struct cuda_rows step_rows; /* all rows of the step */
    struct cuda_rows rows;      /* the part of the step's rows that ops work on now */
    size_t n_rows;
    uint32_t n_tiles_max; /* the most tiles that any row of the step sees */
    struct {
        void *data;
        size_t n_bytes;
    } wires[DEVICE_WIRES];
    const struct device_hooks *hooks; /* set with links */
    struct links *links;              /* owned, closed by hooks->close; NULL: none */
};

/* Local. If error is not 0, records it as the failure of the action `what`, unless an earlier
 * failure is recorded, and returns true. */
bool device_failed(struct device *d, int error, const char *what);
static inline bool device_is_lost(const struct device *d)
{
    return status_failed(&d->failed);
}

/* Local. Returns the compute stream, for callers that put work on it themselves. First flushes the
 * launches that were held back. Ask for it at each use; never keep it. */
void *device_compute(struct device *d);

/* Local. Allocates n bytes of device memory, filled with zeros; `what` names them in the error. The
 * caller owns them; device_release frees them and sets *inout to NULL. Errors: STATUS_MEMORY, or
 * the device's first failure. */
struct status device_alloc(struct device *d, void **out, size_t n_bytes, const char *what);
void device_release(struct device *d, void **inout);

/* Local. Copies n bytes of host memory to the device for the next launch, and returns their
 * address there. n is at most CALL_BYTES. NULL after a failure. Work put on the compute stream
 * after device_send_calls sees the copies. */
void *device_call(struct device *d, const void *from, size_t n_bytes);
void device_send_calls(struct device *d);

/* Local. device_rows_fill returns pinned memory for n words of a step's rows; once they are filled,
 * device_rows_send returns their address on the device. NULL after a failure. */
int32_t *device_rows_fill(struct device *d, size_t n_words);
const int32_t *device_rows_send(struct device *d, size_t n_words);

/* copies.c, for device_cuda.c. Local. device_copies_close continues after failures. */
struct status device_copies_open(struct device *d);
void device_copies_close(struct device *d);
void device_gets_start(struct device *d);
void device_gets_end(struct device *d);

/* Local. Wait, within the deadline, until an event was reached, or until all work of the compute
 * stream has ended. device_wait (device.h) also fetches results and restarts the ring of
 * arguments. */
void device_await(struct device *d, void *event);
void device_wait_put(struct device *d); /* does not flush what graphs.c holds back */
void device_wait_stream(struct device *d);

/* Local. device_stage_next returns a pinned buffer of STAGE_BYTES that no copy reads any more; NULL
 * after a failure. device_stage_send copies its first n bytes to the device. */
struct device_stage *device_stage_next(struct device *d);
void device_stage_send(struct device *d, struct device_stage *s, void *to, size_t n_bytes);

/* Local. Makes a staging buffer hold at least n bytes. It may move, and then loses its content.
 * Errors: STATUS_MEMORY. */
struct status device_wire_reserve(struct device *d, enum device_wire which, size_t n_bytes);

/* gemm_cuda.c. Local. Opens the library, unless the device uses the CPU's arithmetic. If there is
 * no library, or if it fails to open, shoal's own kernels multiply. */
struct status device_gemm_open(struct device *d);
void device_gemm_close(struct device *d);

/* Local. Runs n linears without leaves (K-blocks), of the same rows, which are rounded once. For
 * this and the next two functions, each linear has one group, with row-major weights (w->flat). */
void device_gemm_columns(struct device *d, const struct linear_args *a, size_t n);

/* Local. Runs a linear with leaves whose integer sums are wanted (a->sums). */
void device_gemm_leaves(struct device *d, const struct linear_args *a);

/* Local. Runs a linear with leaves whose values are wanted (a->sums NULL). False, with y unchanged:
 * the library lacks a product, or the partial sums of one row do not fit the memory. */
bool device_gemm_sums(struct device *d, const struct linear_args *a);

/* copies.c. Local. As mem_ops_put, mem_ops_get and mem_ops_get_later (device.h). */
void device_put(struct device *d, void *to, const void *from, size_t n_bytes);
void device_get(struct device *d, void *to, const void *from, size_t n_bytes);
void device_get_later(struct device *d, void *to, const void *from, size_t n_bytes);

/* graphs.c. Local. Put work on the compute stream, at once, or later together with other work as
 * one graph. device_product returns false when the library has no product of this shape. */
void device_launch(struct device *d, enum cuda_kernel kernel, struct cuda_grid grid,
                   const void *args);
/* Local. Launches at once, on another stream. */
void device_launch_on(struct device *d, void *stream, enum cuda_kernel kernel,
                      struct cuda_grid grid, const void *args);

void device_fill(struct device *d, void *p, int byte, size_t n_bytes); /* p: a multiple of 4 */
bool device_product(struct device *d, const struct cuda_gemm *p);

#endif
