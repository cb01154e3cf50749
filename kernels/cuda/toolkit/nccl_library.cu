/* NCCL behind the table of nccl_table.h. The library is loaded when a job needs it, so that the
 * program also starts where NCCL is missing. C++ only because nvcc compiles it. */
#include <nccl.h>

#include <dlfcn.h>
#include <string.h>

extern "C" {
#include "kernels/cuda/nccl_table.h"
}

#define TEXT_OF(x) #x
#define NUMBER(x)  TEXT_OF(x)
#define NCCL_HERE  NUMBER(NCCL_MAJOR) "." NUMBER(NCCL_MINOR) "." NUMBER(NCCL_PATCH)

/* shoal's own error numbers, besides those of NCCL */
enum { NOT_LOADED = -1, TOO_OLD = -2, OLDEST = 21400 /* has non-blocking communicators */ };

static_assert(NCCL_UNIQUE_ID_BYTES == NCCL_ID_BYTES, "the size of an id");

#define NCCL_FUNCTIONS(X)                                                                          \
    X(ncclGetVersion)                                                                              \
    X(ncclGetUniqueId)                                                                             \
    X(ncclCommInitRankConfig)                                                                      \
    X(ncclCommGetAsyncError)                                                                       \
    X(ncclCommFinalize)                                                                            \
    X(ncclCommDestroy)                                                                             \
    X(ncclCommAbort)                                                                               \
    X(ncclGroupStart)                                                                              \
    X(ncclGroupEnd)                                                                                \
    X(ncclAllReduce)                                                                               \
    X(ncclReduceScatter)                                                                           \
    X(ncclAllGather)                                                                               \
    X(ncclSend)                                                                                    \
    X(ncclRecv)                                                                                    \
    X(ncclGetErrorString)

/* Filled once by lib_load, which must be called first. */
static struct {
#define X(name) decltype(&name) p_##name;
    NCCL_FUNCTIONS(X)
#undef X
    bool is_loaded;
} lib;

static int lib_load(void)
{
    if (lib.is_loaded) return 0;
    /* first the system's library or that of LD_LIBRARY_PATH, then the one found at build time */
    void *handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) handle = dlopen(SHOAL_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) return NOT_LOADED;
#define X(name)                                                                                    \
    lib.p_##name = (decltype(&name))dlsym(handle, #name);                                          \
    if (lib.p_##name == NULL) return TOO_OLD;
    NCCL_FUNCTIONS(X)
#undef X
    int version = 0;
    if (lib.p_ncclGetVersion(&version) != ncclSuccess || version < OLDEST) return TOO_OLD;
    lib.is_loaded = true;
    return 0;
}

/* Returns the error of a call; one that is still in progress has not failed. */
static int begun(ncclResult_t result)
{
    return result == ncclInProgress ? 0 : (int)result;
}

static int lib_new_id(char id[NCCL_ID_BYTES])
{
    ncclUniqueId made;
    const ncclResult_t result = lib.p_ncclGetUniqueId(&made);
    memcpy(id, made.internal, NCCL_ID_BYTES);
    return (int)result;
}

static int lib_open(void **comm, int n_ranks, const char id[NCCL_ID_BYTES], int rank)
{
    ncclUniqueId given;
    memcpy(given.internal, id, NCCL_ID_BYTES);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return begun(lib.p_ncclCommInitRankConfig((ncclComm_t *)comm, n_ranks, given, rank, &config));
}

static int lib_poll(void *comm, bool *busy)
{
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = lib.p_ncclCommGetAsyncError((ncclComm_t)comm, &state);
    *busy = result == ncclSuccess && state == ncclInProgress;
    return result != ncclSuccess ? (int)result : begun(state);
}

static int lib_finish(void *comm)
{
    return begun(lib.p_ncclCommFinalize((ncclComm_t)comm));
}

static int lib_destroy(void *comm)
{
    return begun(lib.p_ncclCommDestroy((ncclComm_t)comm));
}

static int lib_abort(void *comm)
{
    return begun(lib.p_ncclCommAbort((ncclComm_t)comm));
}

static int lib_group_begin(void)
{
    return (int)lib.p_ncclGroupStart();
}

static int lib_group_end(void)
{
    return begun(lib.p_ncclGroupEnd());
}

static int lib_sum_i64(void *buf, size_t n, void *comm, void *stream)
{
    return begun(lib.p_ncclAllReduce(buf, buf, n, ncclInt64, ncclSum, (ncclComm_t)comm,
                                     (cudaStream_t)stream));
}

static int lib_sum_part_i64(int64_t *parts, size_t n, int rank, void *comm, void *stream)
{
    return begun(lib.p_ncclReduceScatter(parts, parts + (size_t)rank * n, n, ncclInt64, ncclSum,
                                         (ncclComm_t)comm, (cudaStream_t)stream));
}

static int lib_max_u32(void *buf, size_t n, void *comm, void *stream)
{
    return begun(lib.p_ncclAllReduce(buf, buf, n, ncclUint32, ncclMax, (ncclComm_t)comm,
                                     (cudaStream_t)stream));
}

static int lib_gather(void *all, size_t n_bytes, int rank, void *comm, void *stream)
{
    const char *mine = (const char *)all + (size_t)rank * n_bytes;
    return begun(
        lib.p_ncclAllGather(mine, all, n_bytes, ncclUint8, (ncclComm_t)comm, (cudaStream_t)stream));
}

static int lib_send(const void *buf, size_t n_bytes, int to, void *comm, void *stream)
{
    return begun(
        lib.p_ncclSend(buf, n_bytes, ncclUint8, to, (ncclComm_t)comm, (cudaStream_t)stream));
}

static int lib_receive(void *buf, size_t n_bytes, int from, void *comm, void *stream)
{
    return begun(
        lib.p_ncclRecv(buf, n_bytes, ncclUint8, from, (ncclComm_t)comm, (cudaStream_t)stream));
}

static const char *lib_error_text(int error)
{
    if (error == NOT_LOADED) return "libnccl.so.2 is not found";
    if (error == TOO_OLD) return "libnccl.so.2 is older than 2.14";
    return lib.p_ncclGetErrorString((ncclResult_t)error);
}

static const struct nccl_table table = {
    .name = "NCCL " NCCL_HERE,
    .load = lib_load,
    .new_id = lib_new_id,
    .open = lib_open,
    .poll = lib_poll,
    .finish = lib_finish,
    .destroy = lib_destroy,
    .abort = lib_abort,
    .group_begin = lib_group_begin,
    .group_end = lib_group_end,
    .sum_i64 = lib_sum_i64,
    .sum_part_i64 = lib_sum_part_i64,
    .max_u32 = lib_max_u32,
    .gather = lib_gather,
    .send = lib_send,
    .receive = lib_receive,
    .error_text = lib_error_text,
};

extern "C" const struct nccl_table *nccl_table_here(void)
{
    return &table;
}
