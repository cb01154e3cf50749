/* The driver of a build with the CUDA toolkit: the table of driver.h over CUDA's runtime and
 * cuBLASLt. C++ only because nvcc compiles it. Holds no state of its own. */
#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "kernels/cuda/driver.h"
#include "kernels/cuda/toolkit/gemm_cublas.h"

#define X(name, args) const void *cuda_entry_##name(void);
CUDA_KERNELS(X)
#undef X
}

static cudaStream_t stream_of(void *stream)
{
    return (cudaStream_t)stream;
}

static int drv_device_count(int *n)
{
    return cudaGetDeviceCount(n);
}

static int drv_device_facts(int device, struct cuda_facts *out)
{
    cudaDeviceProp p;
    const cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error != cudaSuccess) return error;
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, p.name);
    snprintf(out->pci, sizeof out->pci, "%04x:%02x:%02x.0", (unsigned)p.pciDomainID,
             (unsigned)p.pciBusID, (unsigned)p.pciDeviceID);
    out->memory_bytes = p.totalGlobalMem;
    out->major = (uint32_t)p.major;
    out->minor = (uint32_t)p.minor;
    out->n_processors = (uint32_t)p.multiProcessorCount;
    return 0;
}

/* Sets the device. Its memory pool then keeps released memory, so that later allocations are
 * quick. */
static int drv_device_use(int device)
{
    cudaError_t error = cudaSetDevice(device);
    cudaMemPool_t pool;
    if (error == cudaSuccess) error = cudaDeviceGetDefaultMemPool(&pool, device);
    uint64_t keep = UINT64_MAX;
    if (error == cudaSuccess)
        error = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
    return error;
}

static int drv_memory(struct cuda_memory *out)
{
    size_t n = 0, total = 0;
    int device = 0;
    cudaMemPool_t pool;
    uint64_t used = 0, reserved = 0;
    cudaError_t error = cudaMemGetInfo(&n, &total);
    if (error == cudaSuccess) error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetDefaultMemPool(&pool, device);
    if (error == cudaSuccess)
        error = cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved);
    if (error == cudaSuccess)
        error = cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used);
    out->free = n;
    out->used = used;
    out->idle = reserved > used ? reserved - used : 0;
    return error;
}

static int drv_alloc(void **out, size_t n_bytes, void *stream)
{
    const cudaError_t error = cudaMallocAsync(out, n_bytes, stream_of(stream));
    if (error == cudaErrorMemoryAllocation)
        (void)cudaGetLastError(); /* clears the error, which
                                     would otherwise be
                                     reported again */
    return error;
}

static int drv_release(void *p, void *stream)
{
    return cudaFreeAsync(p, stream_of(stream));
}

static int drv_alloc_pinned(void **out, size_t n_bytes)
{
    return cudaHostAlloc(out, n_bytes, cudaHostAllocPortable);
}

static int drv_release_pinned(void *p)
{
    return cudaFreeHost(p);
}

static int drv_stream_create(void **out)
{
    return cudaStreamCreateWithFlags((cudaStream_t *)out, cudaStreamNonBlocking);
}

static int drv_stream_destroy(void *stream)
{
    return cudaStreamDestroy(stream_of(stream));
}

static int drv_event_create(void **out)
{
    return cudaEventCreateWithFlags((cudaEvent_t *)out, cudaEventDisableTiming);
}

static int drv_event_destroy(void *event)
{
    return cudaEventDestroy((cudaEvent_t)event);
}

static int drv_event_record(void *event, void *stream)
{
    return cudaEventRecord((cudaEvent_t)event, stream_of(stream));
}

static int drv_event_query(void *event, bool *done)
{
    const cudaError_t error = cudaEventQuery((cudaEvent_t)event);
    *done = error == cudaSuccess;
    return error == cudaErrorNotReady ? cudaSuccess : error;
}

static int drv_stream_await(void *stream, void *event)
{
    return cudaStreamWaitEvent(stream_of(stream), (cudaEvent_t)event, 0);
}

static int drv_copy(void *to, const void *from, size_t n_bytes, enum cuda_copy kind, void *stream)
{
    const cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                    cudaMemcpyDeviceToDevice};
    return cudaMemcpyAsync(to, from, n_bytes, kinds[kind], stream_of(stream));
}

static int drv_fill(void *p, int byte, size_t n_bytes, void *stream)
{
    return cudaMemsetAsync(p, byte, n_bytes, stream_of(stream));
}

static const void *entry_of(enum cuda_kernel kernel)
{
    static const void *(*const entries[CUDA_KERNEL_COUNT])(void) = {
#define X(name, args) cuda_entry_##name,
        CUDA_KERNELS(X)
#undef X
    };
    return entries[kernel]();
}

/* Swaps x and y (struct cuda_grid). */
static dim3 blocks_of(struct cuda_grid grid)
{
    return dim3(grid.y, grid.x, grid.z);
}

/* Permits a kernel more shared memory than the default, which CUDA requires before the launch. */
static int allow_shared(enum cuda_kernel kernel, uint32_t n_bytes)
{
    if (n_bytes <= CUDA_SHARED_PLAIN) return 0;
    return cudaFuncSetAttribute(entry_of(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                CUDA_SHARED_MAX);
}

static int drv_launch(enum cuda_kernel kernel, struct cuda_grid grid, const void *args,
                      void *stream)
{
    void *list[] = {(void *)args};
    const int error = allow_shared(kernel, grid.shared_bytes);
    if (error != 0) return error;
    return cudaLaunchKernel(entry_of(kernel), blocks_of(grid), dim3(CUDA_THREADS), list,
                            grid.shared_bytes, stream_of(stream));
}

/* --- graphs: captured from the stream ------------------------------------------------------- */

struct cuda_graph {
    cudaGraph_t graph; /* owns the nodes that are passed to graph_change */
    cudaGraphExec_t exec;
};

/* Captures only this thread's calls: other threads, such as NCCL's, may call CUDA meanwhile. */
static int drv_graph_begin(void *stream)
{
    return cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal);
}

/* Finds the last node of the capture. There is exactly one, because only one stream is captured. */
static int drv_graph_node(void *stream, void **node)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaGraphNode_t *last = NULL;
    size_t n = 0;
#if CUDART_VERSION >= 13000
    const cudaError_t error =
        cudaStreamGetCaptureInfo(stream_of(stream), &status, NULL, NULL, &last, NULL, &n);
#else
    const cudaError_t error =
        cudaStreamGetCaptureInfo_v2(stream_of(stream), &status, NULL, NULL, &last, &n);
#endif
    if (error != cudaSuccess) return error;
    if (status != cudaStreamCaptureStatusActive || n != 1) return cudaErrorStreamCaptureInvalidated;
    *node = last[0];
    return 0;
}

static int drv_graph_destroy(void *graph)
{
    struct cuda_graph *g = (struct cuda_graph *)graph;
    cudaError_t error = cudaSuccess;
    if (g->exec != NULL) error = cudaGraphExecDestroy(g->exec);
    if (g->graph != NULL) {
        const cudaError_t last = cudaGraphDestroy(g->graph);
        if (error == cudaSuccess) error = last;
    }
    free(g);
    return error;
}

static int drv_graph_end(void *stream, void **graph)
{
    cudaGraph_t captured = NULL;
    cudaError_t error = cudaStreamEndCapture(stream_of(stream), &captured);
    struct cuda_graph *g = (struct cuda_graph *)calloc(1, sizeof *g);
    *graph = NULL;
    if (error == cudaSuccess && g == NULL) error = cudaErrorMemoryAllocation;
    if (g == NULL) {
        if (captured != NULL) (void)cudaGraphDestroy(captured);
        return error;
    }
    g->graph = captured;
    if (error == cudaSuccess) error = cudaGraphInstantiateWithFlags(&g->exec, captured, 0);
    if (error == cudaSuccess) {
        *graph = g;
        return 0;
    }
    (void)drv_graph_destroy(g);
    (void)cudaGetLastError(); /* clears the error, which would otherwise be reported again */
    return error;
}

static int drv_graph_change(void *graph, void *node, enum cuda_kernel kernel, struct cuda_grid grid,
                            const void *args)
{
    const struct cuda_graph *g = (const struct cuda_graph *)graph;
    void *list[] = {(void *)args};
    const int error = allow_shared(kernel, grid.shared_bytes);
    if (error != 0) return error;
    cudaKernelNodeParams p = {};
    p.func = (void *)entry_of(kernel);
    p.gridDim = blocks_of(grid);
    p.blockDim = dim3(CUDA_THREADS);
    p.sharedMemBytes = grid.shared_bytes;
    p.kernelParams = list;
    return cudaGraphExecKernelNodeSetParams(g->exec, (cudaGraphNode_t)node, &p);
}

static int drv_graph_launch(void *graph, void *stream)
{
    return cudaGraphLaunch(((const struct cuda_graph *)graph)->exec, stream_of(stream));
}

static const char *drv_error_text(int error)
{
    return error >= GEMM_ERROR_BASE ? gemm_cublas_error_text(error)
                                    : cudaGetErrorString((cudaError_t)error);
}

static enum status_code drv_error_class(int error)
{
    if (error >= GEMM_ERROR_BASE) return gemm_cublas_error_class(error);
    switch (error) {
    case cudaErrorMemoryAllocation:
        return STATUS_MEMORY;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
        return STATUS_USAGE;
    default:
        return STATUS_LOST;
    }
}

static const struct cuda_driver driver = {
    .name = "cpu, cuda " SHOAL_CUDA_VERSION " (" SHOAL_CUDA_ARCHITECTURES ")",
    .device_count = drv_device_count,
    .device_facts = drv_device_facts,
    .device_use = drv_device_use,
    .memory = drv_memory,
    .alloc = drv_alloc,
    .release = drv_release,
    .alloc_pinned = drv_alloc_pinned,
    .release_pinned = drv_release_pinned,
    .stream_create = drv_stream_create,
    .stream_destroy = drv_stream_destroy,
    .event_create = drv_event_create,
    .event_destroy = drv_event_destroy,
    .event_record = drv_event_record,
    .event_query = drv_event_query,
    .stream_await = drv_stream_await,
    .copy = drv_copy,
    .fill = drv_fill,
    .launch = drv_launch,
    .graph_begin = drv_graph_begin,
    .graph_node = drv_graph_node,
    .graph_end = drv_graph_end,
    .graph_change = drv_graph_change,
    .graph_launch = drv_graph_launch,
    .graph_destroy = drv_graph_destroy,
    .gemm_open = gemm_cublas_open,
    .gemm_close = gemm_cublas_close,
    .gemm_run = gemm_cublas_run,
    .error_text = drv_error_text,
    .error_class = drv_error_class,
};

extern "C" const struct cuda_driver *cuda_driver_here(void)
{
    return &driver;
}
