/* The operations of a device's communicators: collectives on its compute stream, and rows of a
 * pipeline on two streams of their own, so that they move while the device computes. */
#include "collective/links_private.h"
#include "kernels/cuda/device_state.h"

uint64_t links_begin(struct device *d, struct link *link, enum flight_op op, uint64_t count)
{
    link->last = flight_op_name(op);
    link->n_asked++;
    return comm_begin(d->links->comm, op, link->axis, count);
}

void links_asked(struct device *d, struct link *link, int error, uint64_t since, size_t n_bytes)
{
    if (!links_settle(d, link, error, STATUS_LOST)) links_leave(d);
    comm_account(d->links->comm, link->axis, since, n_bytes);
}

/* As links_begin, for operations on the compute stream: first makes that stream wait for the side
 * stream, so that all ranks run a communicator's operations in the same order. */
static uint64_t links_run_begin(struct device *d, struct link *link, enum flight_op op,
                                uint64_t count)
{
    links_side_settle(d);
    return links_begin(d, link, op, count);
}

void links_max_u32(struct device *d, struct link *l, uint32_t *buf, size_t n)
{
    if (device_is_lost(d) || n == 0) return;
    const uint64_t since = links_run_begin(d, l, FLIGHT_ALL_REDUCE, n);
    links_asked(d, l, d->links->nccl->max_u32(buf, n, l->comm, device_compute(d)), since,
                n * sizeof *buf);
}

/* True when all parts have the same size and follow each other without gaps. */
static bool is_even(const int *counts, const int *displs, int n)
{
    for (int r = 0; r < n; r++) {
        if (counts[r] != counts[0] || displs[r] != r * counts[0]) return false;
    }
    return true;
}

static int gather_pieces(struct device *d, const struct link *l, void *all, const int *counts,
                         const int *displs)
{
    const struct nccl_table *nccl = d->links->nccl;
    uint32_t *words = all;
    int error = nccl->group_begin();
    for (int r = 0; r < l->n_ranks; r++) {
        if (r == l->rank) continue;
        if (error == 0 && counts[l->rank] > 0)
            error = nccl->send(words + displs[l->rank], (size_t)counts[l->rank] * sizeof *words, r,
                               l->comm, device_compute(d));
        if (error == 0 && counts[r] > 0)
            error = nccl->receive(words + displs[r], (size_t)counts[r] * sizeof *words, r, l->comm,
                                  device_compute(d));
    }
    const int ended = nccl->group_end();
    return error != 0 ? error : ended;
}

void links_gather_words(struct device *d, struct link *l, void *all, const int *counts,
                        const int *displs)
{
    size_t n = 0;
    for (int r = 0; r < l->n_ranks; r++) n += (size_t)counts[r];
    if (device_is_lost(d) || n == 0) return;
    const size_t mine = (size_t)counts[l->rank] * sizeof(uint32_t);
    const uint64_t since = links_run_begin(d, l, FLIGHT_ALL_GATHER, (uint64_t)counts[l->rank]);
    const int error = is_even(counts, displs, l->n_ranks)
                          ? d->links->nccl->gather(all, mine, l->rank, l->comm, device_compute(d))
                          : gather_pieces(d, l, all, counts, displs);
    links_asked(d, l, error, since, mine);
}

static int exchange_pieces(struct device *d, const struct link *l, const struct comm_exchange *x)
{
    const struct nccl_table *nccl = d->links->nccl;
    const size_t row_bytes = x->row_words * 4;
    int error = nccl->group_begin();
    for (int r = 0; r < l->n_ranks; r++) {
        const char *from = (const char *)x->send + (size_t)x->send_displs[r] * row_bytes;
        char *to = (char *)x->recv + (size_t)x->recv_displs[r] * row_bytes;
        if (r == l->rank) continue;
        if (error == 0 && x->send_counts[r] > 0)
            error = nccl->send(from, (size_t)x->send_counts[r] * row_bytes, r, l->comm,
                               device_compute(d));
        if (error == 0 && x->recv_counts[r] > 0)
            error = nccl->receive(to, (size_t)x->recv_counts[r] * row_bytes, r, l->comm,
                                  device_compute(d));
    }
    const int ended = nccl->group_end();
    return error != 0 ? error : ended;
}

void links_exchange_rows(struct device *d, struct link *l, const struct comm_exchange *x)
{
    const size_t row_bytes = x->row_words * 4;
    const int me = l->rank;
    if (device_is_lost(d)) return;
    if (x->send_counts[me] > 0 &&
        device_failed(
            d,
            d->driver->copy((char *)x->recv + (size_t)x->recv_displs[me] * row_bytes,
                            (const char *)x->send + (size_t)x->send_displs[me] * row_bytes,
                            (size_t)x->send_counts[me] * row_bytes, CUDA_COPY_WITHIN,
                            device_compute(d)),
            "a copy"))
        return;
    size_t n_rows = 0, n_moved = 0;
    for (int r = 0; r < l->n_ranks; r++) {
        n_rows += (size_t)x->send_counts[r];
        if (r != me) n_moved += (size_t)x->send_counts[r] + (size_t)x->recv_counts[r];
    }
    if (n_moved == 0) return;
    const uint64_t since = links_run_begin(d, l, FLIGHT_ALL_TO_ALL, n_rows * x->row_words);
    links_asked(d, l, exchange_pieces(d, l, x), since, n_rows * row_bytes);
}

/* --- the pipeline --------------------------------------------------------------------------- */

struct status links_made(struct device *d, int error, const char *what)
{
    (void)device_failed(d, error, what);
    return d->failed;
}

struct status links_pipe_open(struct device *d)
{
    struct link_pipe *p = &d->links->pipe;
    TRY(links_made(d, d->driver->stream_create(&p->in), "making a stream"));
    TRY(links_made(d, d->driver->stream_create(&p->out), "making a stream"));
    TRY(links_made(d, d->driver->event_create(&p->computed), "making an event"));
    for (int i = 0; i < DEVICE_PIPE_SLOTS; i++) {
        TRY(links_made(d, d->driver->event_create(&p->arrived[i]), "making an event"));
        TRY(links_made(d, d->driver->event_create(&p->left[i]), "making an event"));
    }
    return status_ok();
}

void links_pipe_close(struct device *d)
{
    struct link_pipe *p = &d->links->pipe;
    for (int i = 0; i < DEVICE_PIPE_SLOTS; i++) {
        if (p->arrived[i] != NULL) (void)d->driver->event_destroy(p->arrived[i]);
        if (p->left[i] != NULL) (void)d->driver->event_destroy(p->left[i]);
    }
    if (p->computed != NULL) (void)d->driver->event_destroy(p->computed);
    if (p->in != NULL) (void)d->driver->stream_destroy(p->in);
    if (p->out != NULL) (void)d->driver->stream_destroy(p->out);
}

bool links_put_behind(struct device *d, void *stream, void *event)
{
    return !device_failed(d, d->driver->stream_await(stream, event), "waiting for an event");
}

bool links_record(struct device *d, void *event, void *stream)
{
    return !device_failed(d, d->driver->event_record(event, stream), "an event");
}

void links_receive(struct device *d, uint32_t slot, void *to, size_t n_bytes)
{
    struct link_pipe *p = &d->links->pipe;
    struct link *l = &d->links->pairs[LINK_BEFORE];
    if (device_is_lost(d) || !links_put_behind(d, p->in, p->left[slot])) return;
    const uint64_t since = links_begin(d, l, FLIGHT_RECEIVE, n_bytes);
    links_asked(d, l, d->links->nccl->receive(to, n_bytes, 0, l->comm, p->in), since, n_bytes);
    if (device_is_lost(d) || !links_record(d, p->arrived[slot], p->in)) return;
    (void)links_put_behind(d, device_compute(d), p->arrived[slot]);
}

void links_send(struct device *d, uint32_t slot, const void *from, size_t n_bytes)
{
    struct link_pipe *p = &d->links->pipe;
    struct link *l = &d->links->pairs[LINK_BEHIND];
    if (device_is_lost(d) || !links_record(d, p->computed, device_compute(d)) ||
        !links_put_behind(d, p->out, p->computed))
        return;
    const uint64_t since = links_begin(d, l, FLIGHT_SEND, n_bytes);
    links_asked(d, l, d->links->nccl->send(from, n_bytes, 1, l->comm, p->out), since, n_bytes);
    if (!device_is_lost(d)) (void)links_record(d, p->left[slot], p->out);
    p->last_sent = slot;
}

void links_release(struct device *d, uint32_t slot)
{
    if (!device_is_lost(d)) (void)links_record(d, d->links->pipe.left[slot], device_compute(d));
}

void links_claim(struct device *d, uint32_t slot)
{
    if (!device_is_lost(d)) (void)links_put_behind(d, device_compute(d), d->links->pipe.left[slot]);
}

bool links_all_sent(struct device *d)
{
    bool done = true;
    const struct link_pipe *p = &d->links->pipe;
    return d->links->pairs[LINK_BEHIND].n_asked == 0 ||
           (d->driver->event_query(p->left[p->last_sent], &done) == 0 && done);
}
