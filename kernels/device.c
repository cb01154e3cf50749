/* The memory in which a kernel table's ops work: host memory, or device memory through the
 * functions of struct device_ops. */
#include "kernels/device.h"

#include "base/mem.h"
#include "kernels/device_ops.h"

#include <string.h>

struct status mem_ops_alloc(const struct kern_table *k, void *out, size_t n, size_t elem_bytes,
                            const char *what)
{
    if (k->device == NULL) return mem_alloc(out, n, elem_bytes, what);
    void *p = NULL;
    size_t n_bytes;
    if (!mem_mul(n, elem_bytes, &n_bytes))
        return status_make(STATUS_MEMORY, "%s: %zu x %zu bytes overflow", what, n, elem_bytes);
    TRY(device_ops_of(k->device)->alloc(k->device, &p, n_bytes, what));
    memcpy(out, &p, sizeof p);
    return status_ok();
}

void mem_ops_free(const struct kern_table *k, void *inout)
{
    if (k->device == NULL) {
        mem_free(inout);
        return;
    }
    void *p;
    memcpy(&p, inout, sizeof p);
    device_ops_of(k->device)->release(k->device, &p);
    memcpy(inout, &p, sizeof p);
}

void mem_ops_put(const struct kern_table *k, void *to, const void *from, size_t n_bytes)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->put(k->device, to, from, n_bytes);
    } else if (to != from) {
        memcpy(to, from, n_bytes);
    }
}

void mem_ops_get(const struct kern_table *k, void *to, const void *from, size_t n_bytes)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->get(k->device, to, from, n_bytes);
    } else if (to != from) {
        memcpy(to, from, n_bytes);
    }
}

void mem_ops_get_later(const struct kern_table *k, void *to, const void *from, size_t n_bytes)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->get_later(k->device, to, from, n_bytes);
    } else if (to != from) {
        memcpy(to, from, n_bytes);
    }
}

void mem_ops_arrive(const struct kern_table *k)
{
    if (k->device != NULL) device_ops_of(k->device)->arrive(k->device);
}

void mem_ops_copy(const struct kern_table *k, void *to, const void *from, size_t n_bytes)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->copy(k->device, to, from, n_bytes);
    } else {
        memcpy(to, from, n_bytes);
    }
}

void mem_ops_fill(const struct kern_table *k, void *p, int byte, size_t n_bytes)
{
    if (k->device != NULL) {
        device_ops_of(k->device)->fill(k->device, p, byte, n_bytes);
    } else {
        memset(p, byte, n_bytes);
    }
}
