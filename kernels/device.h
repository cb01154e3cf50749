/* The device that a kernel table's ops run on, and the memory that they work in. NULL is the CPU:
 * then all below is plain host memory and memcpy, so that the rooms above are written once.
 *
 * With a device (kernels/cuda), every op of ops.h takes device memory where it says "array", puts
 * its work in the compute stream and returns; what runs is ordered by that stream. Arguments that
 * are structures (groups, sequences, slots lists) stay host memory and are copied by the op. The
 * host sees a result only through mem_ops_get. A failure sticks: later calls do nothing, and
 * device_status tells; inside a step it means that the rank is lost. */
#ifndef SHOAL_KERNELS_DEVICE_H
#define SHOAL_KERNELS_DEVICE_H

#include "kernels/kern.h"

struct device;
struct topo_node;

/* How the order of a device's floating sums is chosen. */
enum device_arithmetic {
    DEVICE_LAW,   /* fixed, so that rows, batch and layout change no byte on one type of device */
    DEVICE_EXACT, /* the CPU's own: its bytes (--exact-across-devices) */
    DEVICE_FREE,  /* by libraries as they like: bytes may depend on batch and layout
                     (--fast-reductions) */
};

struct device_options {
    const char *name;    /* "cuda" */
    uint32_t local_rank; /* among the ranks of this host */
    uint32_t n_local_ranks;
    const struct topo_node *node; /* this host, with its GPUs */
    const int32_t *numas; /* [n_local_ranks] NUMA node of each rank of the host; -1: several */
    uint32_t deadline_s;  /* a wait longer than this means a lost device; 0: 600 */
    enum device_arithmetic arithmetic;
    bool no_graphs; /* each kernel is launched by itself; no result depends on it */
};

/* Local. Which device this rank will open, without touching it: the only one that it sees, else by
 * gpu_place (parallel/topology/gpu_place.h). Its bus id, "0000:3b:00.0". Errors as device_open. */
struct status device_locate(const struct device_options *o, char pci[32]);

/* Local. Opens this rank's device. Errors: STATUS_USAGE (built without, no driver, no device, an
 * architecture that was not built), STATUS_MEMORY. close accepts NULL. */
struct status device_open(const struct device_options *o, struct device **out);
void device_close(struct device **d);

/* Local. "cpu", or "cpu, cuda 13.0 (80 86 89 90 + PTX)": what --version shows. */
const char *device_backends(void);

/* Local. One line for the log: which device, how many ranks share it. */
void device_describe(const struct device *d, char *out, size_t n);

/* Local. In which order floats are added here, for journals: "the CPU's", also without a device;
 * else what decides it, such as "NVIDIA H100 PCIe, cublasLt 130002". */
void device_sums(const struct device *d, char *out, size_t n);

/* Local. Ranks that use the same device (known from device_comm_open on, 1 before); the device's
 * number, as this rank sees devices. */
uint32_t device_n_sharers(const struct device *d);
uint32_t device_index(const struct device *d);

/* Local. The first failure, as a status of the class of the error; OK without a device. */
struct status device_status(const struct device *d);

/* Local. Bytes that the device could still give to this rank. */
uint64_t device_free_bytes(const struct device *d);

/* Local. Waits until all that was asked for is done. A device that does not answer within the
 * deadline is a failure. */
void device_wait(struct device *d);

/* Local. Zeroed memory where k's ops work. n = 0 gives a valid pointer. Owner: the caller,
 * mem_ops_free. Errors: STATUS_MEMORY names what. */
struct status mem_ops_alloc(const struct kern_table *k, void *out, size_t n, size_t elem_bytes,
                            const char *what);
void mem_ops_free(const struct kern_table *k, void *inout);

/* Local. Host memory into an array, ordered after all ops so far; `from` may be reused at once. */
void mem_ops_put(const struct kern_table *k, void *to, const void *from, size_t n_bytes);

/* Local. An array into host memory; returns when it is there. */
void mem_ops_get(const struct kern_table *k, void *to, const void *from, size_t n_bytes);

/* Local. The same, there when the next mem_ops_get, mem_ops_arrive or device_wait returns, so that
 * several results cost one wait; until then neither `to` nor the array may change. */
void mem_ops_get_later(const struct kern_table *k, void *to, const void *from, size_t n_bytes);
void mem_ops_arrive(const struct kern_table *k);

/* Local. Between arrays that do not overlap; and bytes set, from a multiple of 4 on. */
void mem_ops_copy(const struct kern_table *k, void *to, const void *from, size_t n_bytes);
void mem_ops_fill(const struct kern_table *k, void *p, int byte, size_t n_bytes);

#endif
