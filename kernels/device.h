/* The device that a kernel table's ops run on, and the memory that they work in. Without a device
 * (NULL) the functions below use host memory and memcpy, so the rooms above are written once.
 *
 * With a device (kernels/cuda), an op of ops.h takes device memory for every argument that is
 * called an array, puts its work on the compute stream and returns. The stream runs the work in
 * order. Arguments that are structures or lists (groups, sequences, slots) are host memory; the op
 * copies them. The host sees a result only through mem_ops_get or mem_ops_get_later. The first
 * failure is kept: later calls do nothing, and device_status returns it. Inside a step it means
 * that the rank is lost. */
#ifndef SHOAL_KERNELS_DEVICE_H
#define SHOAL_KERNELS_DEVICE_H

#include "kernels/kern.h"

struct device;
struct topo_node;

/* How the order of a device's floating-point sums is chosen. */
enum device_arithmetic {
    DEVICE_LAW,   /* fixed: on one device type, rows, batch and layout change no byte */
    DEVICE_EXACT, /* the CPU's order, and so the CPU's bytes (--exact-across-devices) */
    DEVICE_FREE, /* chosen by libraries: bytes may depend on batch and layout (--fast-reductions) */
};

struct device_options {
    const char *name;    /* "cuda" */
    uint32_t local_rank; /* among the ranks of this host */
    uint32_t n_local_ranks;
    const struct topo_node *node; /* this host and its GPUs */
    const int32_t *numas; /* [n_local_ranks] NUMA node of each rank of the host; -1: on several;
                             NULL: all -1 */
    uint32_t deadline_s;  /* a longer wait means that the device is lost; 0: 600 */
    enum device_arithmetic arithmetic;
    bool no_graphs; /* each kernel is launched by itself; no result changes */
};

/* A device that was found but is not open yet. */
struct device_found {
    char pci[32]; /* bus id, "0000:3b:00.0" */
    uint64_t memory_bytes;
};

/* Local. Finds the device that this rank will open: the only one that the rank sees, else the one
 * that gpu_place chooses (parallel/topology/gpu_place.h). Opens nothing. Errors: as device_open. */
struct status device_locate(const struct device_options *o, struct device_found *out);

/* Local. Opens this rank's device. Errors: STATUS_USAGE (shoal was built without devices, no
 * driver, no device, an architecture that was not built), STATUS_MEMORY. device_close accepts
 * NULL. */
struct status device_open(const struct device_options *o, struct device **out);
void device_close(struct device **d);

/* Local. Returns "cpu", or "cpu, cuda 13.0 (80 86 89 90 + PTX)", for --version. */
const char *device_backends(void);

/* Local. Writes one line for the log: the device, and how many ranks share it. */
void device_describe(const struct device *d, char *out, size_t n);

/* Local. Writes the order in which this device adds floats, for journals: "the CPU's" (also
 * without a device), else the device and the library that decide it: "NVIDIA H100 PCIe, cublasLt
 * 130002, attention in f16 scaled in the exponent, tensor cores". */
void device_sums(const struct device *d, char *out, size_t n);

/* Local. Returns the number of ranks that use the same device; 1 before device_comm_open. */
uint32_t device_n_sharers(const struct device *d);

/* Local. Returns the device's number among the devices that this rank sees. */
uint32_t device_index(const struct device *d);

/* Local. Returns the first failure, as a status of the error's class; OK without a device. */
struct status device_status(const struct device *d);

/* Local. Returns the free bytes of device memory for this rank: its share, if ranks share the
 * device. */
uint64_t device_free_bytes(const struct device *d);

/* Local. Waits until the device has done all its work; does nothing if d is NULL. If the wait takes
 * longer than the deadline, that is a failure. */
void device_wait(struct device *d);

/* Local. Allocates n zeroed elements for k's ops; n = 0 gives a valid pointer. The caller owns
 * them and frees them with mem_ops_free. Errors: STATUS_MEMORY, naming `what`; or the
 * device's first failure. */
struct status mem_ops_alloc(const struct kern_table *k, void *out, size_t n, size_t elem_bytes,
                            const char *what);
void mem_ops_free(const struct kern_table *k, void *inout);

/* Local. Copies host memory into an array, after all ops so far. `from` may be reused at once. */
void mem_ops_put(const struct kern_table *k, void *to, const void *from, size_t n_bytes);

/* Local. Copies an array into host memory; returns when the copy is done. */
void mem_ops_get(const struct kern_table *k, void *to, const void *from, size_t n_bytes);

/* Local. Copies like mem_ops_get, but the copy may be done only when the next mem_ops_get,
 * mem_ops_arrive or device_wait returns, so that several results cost one wait. Until then neither
 * `to` nor the array may change. */
void mem_ops_get_later(const struct kern_table *k, void *to, const void *from, size_t n_bytes);
void mem_ops_arrive(const struct kern_table *k);

/* Local. Copies between arrays that do not overlap. */
void mem_ops_copy(const struct kern_table *k, void *to, const void *from, size_t n_bytes);

/* Local. Sets n_bytes bytes from p on to `byte`; the address p must be a multiple of 4. */
void mem_ops_fill(const struct kern_table *k, void *p, int byte, size_t n_bytes);

#endif
