/* Collectives over device arrays, staged through host memory. */
#include "kernels/device_comm.h"

#include "kernels/cuda/device_cuda.h"

/* Host memory for n bytes, kept by the device; NULL after a failure, which sticks. */
static void *wire(struct device *d, enum device_wire which, size_t n_bytes)
{
    const struct status st = device_wire_reserve(d, which, n_bytes);
    if (!status_failed(&st)) return d->wires[which].data;
    if (!device_is_lost(d)) d->failed = st;
    return NULL;
}

/* A rank that cannot take part would leave the others waiting: its job is over. */
static void *wire_or_abort(struct device *d, struct comm *c, enum device_wire which, size_t n_bytes)
{
    void *p = wire(d, which, n_bytes);
    if (p == NULL) comm_abort(c, status_exit(STATUS_LOST));
    return p;
}

void device_sum_i64(const struct kern_table *k, struct comm *c, enum comm_axis axis, int64_t *buf,
                    size_t n)
{
    struct device *d = k->device;
    if (comm_size(c, axis) == 1) return;
    if (d == NULL) {
        comm_sum_i64(c, axis, buf, n);
        return;
    }
    int64_t *host = wire_or_abort(d, c, DEVICE_WIRE_OUT, n * sizeof *host);
    device_get(d, host, buf, n * sizeof *host);
    comm_sum_i64(c, axis, host, n);
    device_put(d, buf, host, n * sizeof *host);
}

void device_or_u32(const struct kern_table *k, struct comm *c, enum comm_axis axis, uint32_t *buf,
                   size_t n)
{
    struct device *d = k->device;
    if (comm_size(c, axis) == 1) return;
    if (d == NULL) {
        comm_or_u32(c, axis, buf, n);
        return;
    }
    uint32_t *host = wire_or_abort(d, c, DEVICE_WIRE_OUT, n * sizeof *host);
    device_get(d, host, buf, n * sizeof *host);
    comm_or_u32(c, axis, host, n);
    device_put(d, buf, host, n * sizeof *host);
}

/* Words up to the end of the last part. */
static size_t words_of(const int *counts, const int *displs, int n_ranks, size_t row_words)
{
    size_t n = 0;
    for (int r = 0; r < n_ranks; r++) {
        const size_t end = ((size_t)displs[r] + (size_t)counts[r]) * row_words;
        if (counts[r] > 0 && end > n) n = end;
    }
    return n;
}

void device_gather_words(const struct kern_table *k, struct comm *c, enum comm_axis axis, void *all,
                         const int *counts, const int *displs)
{
    struct device *d = k->device;
    const int n_ranks = comm_size(c, axis), me = comm_rank(c, axis);
    if (n_ranks == 1) return;
    if (d == NULL) {
        comm_gather_words(c, axis, all, counts, displs);
        return;
    }
    const size_t n_bytes = words_of(counts, displs, n_ranks, 1) * sizeof(uint32_t);
    uint32_t *host = wire_or_abort(d, c, DEVICE_WIRE_OUT, n_bytes);
    device_get(d, host + displs[me], (uint32_t *)all + displs[me],
               (size_t)counts[me] * sizeof *host);
    comm_gather_words(c, axis, host, counts, displs);
    device_put(d, all, host, n_bytes);
}

void device_exchange_rows(const struct kern_table *k, struct comm *c, enum comm_axis axis,
                          const struct comm_exchange *x)
{
    struct device *d = k->device;
    const int n_ranks = comm_size(c, axis);
    if (d == NULL) {
        comm_exchange_rows(c, axis, x);
        return;
    }
    const size_t out_bytes = words_of(x->send_counts, x->send_displs, n_ranks, x->row_words) * 4;
    const size_t in_bytes = words_of(x->recv_counts, x->recv_displs, n_ranks, x->row_words) * 4;
    struct comm_exchange staged = *x;
    void *out = wire_or_abort(d, c, DEVICE_WIRE_OUT, out_bytes);
    staged.recv = wire_or_abort(d, c, DEVICE_WIRE_IN, in_bytes);
    device_get(d, out, x->send, out_bytes);
    staged.send = out;
    comm_exchange_rows(c, axis, &staged);
    device_put(d, x->recv, staged.recv, in_bytes);
}
