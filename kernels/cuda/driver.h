/* The few calls through which shoal reaches a GPU: CUDA's runtime behind one table. A build
 * without the toolkit compiles the same code against the table, and tests install their own
 * driver, which runs kernels on the CPU, fails on demand and keeps host code off device memory.
 * Entries of type int return 0 or the driver's own error number. Called by kernels/cuda and
 * src/collective. */
#ifndef SHOAL_KERNELS_CUDA_DRIVER_H
#define SHOAL_KERNELS_CUDA_DRIVER_H

#include "base/status.h"
#include "kernels/cuda/launch.h"

struct cuda_facts {
    char name[128], pci[32]; /* "0000:3b:00.0" */
    uint64_t memory_bytes;
    uint32_t major, minor; /* compute capability */
    uint32_t n_processors;
};

/* Memory of the device, in bytes. */
struct cuda_memory {
    uint64_t free; /* free for all processes */
    uint64_t used; /* allocated by `alloc` and not yet released */
    uint64_t idle; /* released by this process, but kept in its pool for reuse */
};

enum cuda_copy { CUDA_COPY_IN, CUDA_COPY_OUT, CUDA_COPY_WITHIN };

/* One product of a library: y[rows, n] (f32) = x[rows, k] * w[n, k]^T, with x and w of `dtype` and
 * sums in f32. It is repeated `batch` times; x_step, w_step and y_step lead from one repetition to
 * the next. Strides and steps are in elements. `algorithm` is an index into the library's list for
 * (dtype, k), which depends on no other size; no algorithm of the list splits a sum. From
 * CUDA_GEMM_MANY on it is an index into a second such list, which is made for many rows.
 * CUDA_GEMM_FREE: the library's best choice for this shape, which may split sums. */
struct cuda_gemm {
    enum dtype dtype;
    const void *x, *w;
    float *y;
    size_t rows, n, k, x_stride, w_stride, y_stride;
    size_t batch, x_step, w_step, y_step;
    uint32_t algorithm;
};
enum { CUDA_GEMM_NONE = -1 }; /* gemm_run: no such algorithm, or none for this shape */
#define CUDA_GEMM_FREE UINT32_MAX
#define CUDA_GEMM_MANY 256u

struct cuda_driver {
    const char *name; /* for --version */
    int (*device_count)(int *n);
    int (*device_facts)(int device, struct cuda_facts *out);
    int (*device_use)(int device); /* sets the calling thread's device */
    int (*memory)(struct cuda_memory *out);

    int (*alloc)(void **out, size_t n_bytes, void *stream);
    int (*release)(void *p, void *stream);
    int (*alloc_pinned)(void **out, size_t n_bytes);
    int (*release_pinned)(void *p);

    int (*stream_create)(void **out);
    int (*stream_destroy)(void *stream);
    int (*event_create)(void **out);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_query)(void *event, bool *done);
    /* Work put on the stream from now on waits until the event is reached. */
    int (*stream_await)(void *stream, void *event);

    int (*copy)(void *to, const void *from, size_t n_bytes, enum cuda_copy kind, void *stream);
    int (*fill)(void *p, int byte, size_t n_bytes, void *stream);
    int (*launch)(enum cuda_kernel kernel, struct cuda_grid grid, const void *args, void *stream);

    /* Between graph_begin and graph_end, work put on the stream does not run but becomes part of a
     * graph. graph_node returns the node of the last launch. graph_end also ends a capture that
     * failed; *graph is then NULL. graph_change sets a node's grid and arguments for later
     * launches of the graph; earlier launches keep theirs. graph_destroy requires that the graph
     * is not running. */
    int (*graph_begin)(void *stream);
    int (*graph_node)(void *stream, void **node);
    int (*graph_end)(void *stream, void **graph);
    int (*graph_change)(void *graph, void *node, enum cuda_kernel kernel, struct cuda_grid grid,
                        const void *args);
    int (*graph_launch)(void *graph, void *stream);
    int (*graph_destroy)(void *graph);

    /* A library for dense products on one stream. gemm_open writes the library's name and version
     * to `library` (n bytes). If it fails or an entry is NULL, there is no library. */
    int (*gemm_open)(void *stream, void **out, char *library, size_t n);
    int (*gemm_close)(void *gemm);
    int (*gemm_run)(void *gemm, const struct cuda_gemm *g);

    const char *(*error_text)(int error);
    enum status_code (*error_class)(int error); /* the class: MEMORY, USAGE or LOST */
};

/* Local. Returns the driver that this program was linked with; NULL: built without CUDA. */
const struct cuda_driver *cuda_driver_here(void);

#endif
