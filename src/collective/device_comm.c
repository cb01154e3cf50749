/* Communication of device arrays: over NCCL where there is a communicator, else staged through host
 * memory. */
#include "collective/device_comm.h"

#include "base/mem.h"
#include "base/strbuf.h"
#include "collective/links_private.h"
#include "kernels/cuda/device_state.h"

#include <stdio.h>
#include <string.h>

/* Appends one line for the log: which axes and neighbours use NCCL, and why the others do not. */
static void device_comm_describe(const struct device *d, const struct comm *c, struct strbuf *out)
{
    static const enum comm_axis axes[] = {COMM_TP, COMM_EP, COMM_ETP};
    const struct links *l = d->links;
    char why[192] = "--device-comm staged";
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++) {
        if (comm_size(c, axes[i]) == 1) continue;
        const bool linked = l != NULL && l->axes[i].comm != NULL;
        if (!linked && l != NULL)
            (void)links_possible(l->members, l->axes[i].world, l->axes[i].n_ranks, why, sizeof why);
        strbuf_printf(out, "%s%s", out->n == 0 ? "" : ", ", comm_axis_name(axes[i]));
        if (linked) strbuf_printf(out, " over %s", l->nccl->name);
        if (!linked) strbuf_printf(out, " through host memory (%s)", why);
    }
    for (int i = 0; l != NULL && i < LINK_PAIRS; i++) {
        if (l->pairs[i].n_ranks < 2) continue;
        const bool linked = l->pairs[i].comm != NULL;
        if (!linked) (void)links_possible(l->members, l->pairs[i].world, 2, why, sizeof why);
        strbuf_printf(out, "%srows of the stage %s", out->n == 0 ? "" : ", ",
                      i == LINK_BEFORE ? "before" : "behind");
        if (linked) strbuf_printf(out, " over %s", l->nccl->name);
        if (!linked) strbuf_printf(out, " through host memory (%s)", why);
    }
}

/* **Collective (world)**. Counts the ranks of this host that opened this rank's device:
 * d->n_sharers. */
static struct status count_sharers(struct device *d, struct comm *c)
{
    enum { PCI_BYTES = sizeof d->facts.pci };
    const size_t n = (size_t)comm_size(c, COMM_HOST);
    char *all = NULL;
    const struct status st = mem_alloc(&all, n, PCI_BYTES, "GPUs");
    TRY(comm_agree(c, st));
    comm_gather_bytes(c, COMM_HOST, d->facts.pci, PCI_BYTES, all);
    d->n_sharers = 0;
    for (size_t r = 0; r < n; r++) d->n_sharers += strcmp(all + r * PCI_BYTES, d->facts.pci) == 0;
    mem_free(&all);
    return st;
}

struct status device_comm_open(const struct kern_table *k, struct comm *c,
                               const struct device_comm_options *o, char *said, size_t n)
{
    said[0] = '\0';
    if (k->device == NULL) return status_ok();
    TRY(count_sharers(k->device, c));
    TRY(links_open(k->device, c, o));
    struct strbuf text;
    strbuf_init(&text);
    device_comm_describe(k->device, c, &text);
    if (text.n > 0) snprintf(said, n, "between GPUs: %s", text.data);
    strbuf_fini(&text);
    return status_ok();
}

bool device_comm_overlaps(const struct kern_table *k)
{
    return k->device != NULL && links_of(k->device, COMM_TP) != NULL;
}

/* Returns n_bytes of pinned host memory, which the device keeps. If that fails, records the failure
 * as the device's and returns NULL. */
static void *wire(struct device *d, enum device_wire which, size_t n_bytes)
{
    const struct status st = device_wire_reserve(d, which, n_bytes);
    if (!status_failed(&st)) return d->wires[which].data;
    if (!device_is_lost(d)) d->failed = st;
    return NULL;
}

/* As wire, but ends the job on failure, because the other ranks would wait for this one. */
static void *wire_or_abort(struct device *d, struct comm *c, enum device_wire which, size_t n_bytes)
{
    void *p = wire(d, which, n_bytes);
    if (p == NULL) comm_abort(c, status_exit(STATUS_LOST));
    return p;
}

/* Sums through host memory. Waits for the result, as no other work could run meanwhile. */
static void sum_staged(const struct grid_sum *s, struct comm *c, enum comm_axis axis)
{
    struct device *d = s->kern->device;
    const size_t n = s->n_rows * (s->n_out + 1);
    int64_t *host = wire_or_abort(d, c, DEVICE_WIRE_OUT, n * sizeof *host);
    device_get(d, host, s->sums, n * sizeof *host);
    comm_sum_i64(c, axis, host, n);
    device_put(d, s->sums, host, n * sizeof *host);
}

void device_sum_start(const struct grid_sum *s, struct comm *c, enum comm_axis axis, int lane)
{
    struct device *d = s->kern->device;
    struct link *link = links_of(d, axis);
    if (comm_size(c, axis) == 1) return;
    if (link != NULL) {
        links_sum_start(d, link, s, lane);
    } else {
        sum_staged(s, c, axis);
    }
}

void device_sum_finish(const struct grid_sum *s, struct comm *c, enum comm_axis axis, int lane,
                       bool adds)
{
    struct device *d = s->kern->device;
    struct link *link = comm_size(c, axis) == 1 ? NULL : links_of(d, axis);
    if (link != NULL) {
        links_sum_finish(d, link, s, lane, adds);
    } else {
        grid_sum_round(s, adds);
    }
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
    struct link *link = links_of(d, axis);
    if (link != NULL) {
        links_max_u32(d, link, buf, n);
        return;
    }
    uint32_t *host = wire_or_abort(d, c, DEVICE_WIRE_OUT, n * sizeof *host);
    device_get(d, host, buf, n * sizeof *host);
    comm_or_u32(c, axis, host, n);
    device_put(d, buf, host, n * sizeof *host);
}

/* Returns the number of words up to the end of the last part. */
static size_t device_comm_words_of(const int *counts, const int *displs, int n_ranks,
                                   size_t row_words)
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
    struct link *link = links_of(d, axis);
    if (link != NULL) {
        links_gather_words(d, link, all, counts, displs);
        return;
    }
    const size_t n_bytes = device_comm_words_of(counts, displs, n_ranks, 1) * sizeof(uint32_t);
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
    struct link *link = links_of(d, axis);
    if (link != NULL) {
        links_exchange_rows(d, link, x);
        return;
    }
    const size_t out_bytes =
        device_comm_words_of(x->send_counts, x->send_displs, n_ranks, x->row_words) * 4;
    const size_t in_bytes =
        device_comm_words_of(x->recv_counts, x->recv_displs, n_ranks, x->row_words) * 4;
    struct comm_exchange staged = *x;
    void *out = wire_or_abort(d, c, DEVICE_WIRE_OUT, out_bytes);
    staged.recv = wire_or_abort(d, c, DEVICE_WIRE_IN, in_bytes);
    device_get(d, out, x->send, out_bytes);
    staged.send = out;
    comm_exchange_rows(c, axis, &staged);
    device_put(d, x->recv, staged.recv, in_bytes);
}

static bool has_pair(const struct kern_table *k, int pair)
{
    return k->device != NULL && k->device->links != NULL &&
           k->device->links->pairs[pair].comm != NULL;
}

bool device_pipe_receives(const struct kern_table *k)
{
    return has_pair(k, LINK_BEFORE);
}

bool device_pipe_sends(const struct kern_table *k)
{
    return has_pair(k, LINK_BEHIND);
}

void device_pipe_receive(const struct kern_table *k, uint32_t slot, void *to, size_t n_bytes)
{
    links_receive(k->device, slot, to, n_bytes);
}

void device_pipe_send(const struct kern_table *k, uint32_t slot, const void *from, size_t n_bytes)
{
    links_send(k->device, slot, from, n_bytes);
}

void device_pipe_release(const struct kern_table *k, uint32_t slot)
{
    links_release(k->device, slot);
}

void device_pipe_claim(const struct kern_table *k, uint32_t slot)
{
    links_claim(k->device, slot);
}
