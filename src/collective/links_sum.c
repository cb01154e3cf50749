/* Row-parallel sums over a communicator: large ones as parts (each rank adds and rounds a part,
 * then all gather words of 4 bytes), small ones as one all-reduce of 8-byte sums. On the compute
 * stream or beside it. */
#include "collective/links_private.h"
#include "kernels/cuda/device_state.h"
#include "kernels/device_ops.h"

struct status links_side_open(struct device *d)
{
    struct link_side *side = &d->links->side;
    TRY(links_made(d, d->driver->stream_create(&side->stream), "making a stream"));
    TRY(links_made(d, d->driver->event_create(&side->computed), "making an event"));
    for (int i = 0; i < GRID_SUM_LANES; i++)
        TRY(links_made(d, d->driver->event_create(&side->done[i]), "making an event"));
    return status_ok();
}

void links_side_close(struct device *d)
{
    struct link_side *side = &d->links->side;
    for (int i = 0; i < GRID_SUM_LANES; i++)
        if (side->done[i] != NULL) (void)d->driver->event_destroy(side->done[i]);
    if (side->computed != NULL) (void)d->driver->event_destroy(side->computed);
    if (side->stream != NULL) (void)d->driver->stream_destroy(side->stream);
}

void links_side_settle(struct device *d)
{
    struct link_side *side = &d->links->side;
    if (side->last == NULL) return;
    (void)links_put_behind(d, device_compute(d), side->last);
    side->last = NULL;
}

static size_t n_of(const struct grid_sum *s)
{
    return s->n_rows * (s->n_out + 1);
}

/* True when the sums are added as parts. Parts save a quarter of an all-reduce's bytes but cost a
 * second call and a kernel, about 20 us. At 25 GB/s (a network port of 200 Gbit/s) that is the time
 * of 0.5 MB, a quarter of the 2 MB that an all-reduce of 1 MiB, the default limit, sends.
 * Calculated, not measured. */
static bool goes_as_parts(const struct device *d, const struct grid_sum *s)
{
    return n_of(s) * sizeof *s->sums >= d->links->parts_from;
}

static size_t links_sum_part_of(const struct link *l, const struct grid_sum *s)
{
    const size_t n_ranks = (size_t)l->n_ranks;
    return (n_of(s) + n_ranks - 1) / n_ranks;
}

/* Returns the array for the words, in the sums' memory: the first half, where a rank's words end
 * before its part of the sums; for rank 0 the second half. */
static uint32_t *links_sum_words_of(const struct link *l, const struct grid_sum *s)
{
    uint32_t *words = (uint32_t *)(void *)s->sums;
    return l->rank == 0 ? words + links_sum_part_of(l, s) * (size_t)l->n_ranks : words;
}

/* Returns the stream that carries a lane's sums. Ask for it at each use, and never keep it
 * (device_compute). */
static void *links_sum_stream_of(struct device *d, int lane)
{
    return lane != GRID_SUM_NOW ? d->links->side.stream : device_compute(d);
}

static void sum_parts(struct device *d, struct link *l, const struct grid_sum *s, int lane)
{
    const struct nccl_table *nccl = d->links->nccl;
    const size_t part = links_sum_part_of(l, s), first = part * (size_t)l->rank, n = n_of(s);
    uint32_t *words = links_sum_words_of(l, s);
    uint64_t since = links_begin(d, l, FLIGHT_REDUCE_SCATTER, n);
    links_asked(d, l,
                nccl->sum_part_i64(s->sums, part, l->rank, l->comm, links_sum_stream_of(d, lane)),
                since, part * sizeof *s->sums);
    const struct grid_words_args own = {.sums = s->sums + first,
                                        .first = first,
                                        .n = part,
                                        .n_out = s->n_out,
                                        .grid_bits = s->grid_bits,
                                        .words = words + first};
    device_ops_of(d)->grid_words(d, &own, lane != GRID_SUM_NOW ? d->links->side.stream : NULL);
    since = links_begin(d, l, FLIGHT_ALL_GATHER, part);
    links_asked(
        d, l,
        nccl->gather(words, part * sizeof *words, l->rank, l->comm, links_sum_stream_of(d, lane)),
        since, part * sizeof *words);
}

void links_sum_start(struct device *d, struct link *l, const struct grid_sum *s, int lane)
{
    struct link_side *side = &d->links->side;
    const bool beside = lane != GRID_SUM_NOW;
    if (device_is_lost(d) || s->n_rows == 0) return;
    if (!beside) links_side_settle(d);
    if (beside && (!links_record(d, side->computed, device_compute(d)) ||
                   !links_put_behind(d, side->stream, side->computed)))
        return;
    if (goes_as_parts(d, s)) {
        sum_parts(d, l, s, lane);
    } else {
        const uint64_t since = links_begin(d, l, FLIGHT_ALL_REDUCE, n_of(s));
        links_asked(
            d, l, d->links->nccl->sum_i64(s->sums, n_of(s), l->comm, links_sum_stream_of(d, lane)),
            since, n_of(s) * sizeof *s->sums);
    }
    if (!beside || device_is_lost(d)) return;
    side->last = side->done[lane];
    (void)links_record(d, side->last, side->stream);
}

void links_sum_finish(struct device *d, struct link *l, const struct grid_sum *s, int lane,
                      bool adds)
{
    struct link_side *side = &d->links->side;
    if (device_is_lost(d) || s->n_rows == 0) return;
    if (lane != GRID_SUM_NOW) {
        (void)links_put_behind(d, device_compute(d), side->done[lane]);
        if (side->last == side->done[lane]) side->last = NULL;
    }
    if (!goes_as_parts(d, s)) {
        grid_sum_round(s, adds);
        return;
    }
    const struct take_words_args take = {.words = links_sum_words_of(l, s),
                                         .n_rows = s->n_rows,
                                         .n_out = s->n_out,
                                         .adds = adds,
                                         .y = s->y,
                                         .bad = s->bad};
    device_ops_of(d)->take_words(d, &take);
}
