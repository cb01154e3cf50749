/* A Mixture-of-Experts block over the ranks of a stage: router -> dispatch -> grouped expert FFN ->
 * combine at the source rank. How rows meet their experts is chosen once: one expert_exchange of
 * moe_private.h for "local", "in one host", "between hosts" or "of rows". Knows ranks and
 * layers, not requests. Each tp rank is the source of its slice of the replica's tokens. Order of
 * the sums: docs/numerics.md, "MoE combine" and "The sum over ranks". */
#ifndef SHOAL_MOE_MOE_H
#define SHOAL_MOE_MOE_H

#include "arch/arch.h"
#include "kernels/act.h"
#include "moe/capacity_flags.h"
#include "parallel/comm/comm.h"
#include "parallel/layout/layout.h"
#include "tensor/tap.h"
#include "weights/adapters.h"
#include "weights/layer.h"

/* All pointers are borrowed. */
struct moe_options {
    const struct arch *model;
    const struct layout *layout;
    const struct kern_table *kern;
    struct comm *comm;
    uint32_t rank; /* in the world */
    const struct capacity_flags *capacity;
    bool weight_only;                /* quantized weights times f32 activations */
    const struct tap *tap;           /* NULL: nothing is recorded */
    const struct adapters *adapters; /* NULL: none */
};

enum { MOE_LANES = 2 /* calls that may be under way together */ };

/* One call's rows. x is equal on all tp ranks. h, shared and the counters are equal on all tp
 * ranks, too, unless each rank has its slice of them (layout_split), as it may if moe_takes_slices.
 * T may be 0 and may differ between replicas. */
struct moe_rows {
    size_t n_tokens;          /* T */
    struct range own;         /* rows of h, shared and the counters: all, or this rank's slice */
    const float *x;           /* [T, D] normed */
    struct act_rows *in;      /* the same rows, perhaps already quantized; NULL: only x is given */
    const float *router_x;    /* [T, D] rows for the router, on every rank; NULL: x */
    const int32_t *tokens;    /* [T] ids; read if a table of the layer gives their experts */
    const uint32_t *adapters; /* [T] 1 + the number of each row's adapter, 0: none; NULL: no row
                                 has one */
    const float *shared;      /* [T, D] is added to the experts' sum; NULL: nothing is added */
    float *h;                 /* [T, D] */
    int32_t *bad, *dropped;   /* [T] the call adds to them */
    uint64_t *load;           /* [E] the call adds how often this rank's tokens chose each expert */
};

struct moe; /* the buffers grow to the size that the largest step needs */

/* Local. Errors: STATUS_MEMORY. destroy accepts NULL. */
struct status moe_create(const struct moe_options *options, struct moe **out);
void moe_destroy(struct moe **m);

/* Counts of this rank's MoE block since the start. The first three members are 0 unless the
 * exchange is "between hosts". One rank of a host may send for all its ranks and then counts all
 * bytes, so only sums over the ranks have a meaning. */
struct moe_traffic {
    uint64_t n_tokens; /* tokens that this rank routes, counted once in each layer */
    uint64_t dispatch_bytes, combine_bytes; /* sent to other hosts */
    uint64_t n_rows;       /* rows that this rank computed in the first 2^20 calls */
    uint64_t busiest_rows; /* the rows of each call's busiest rank of EP, summed over these calls; 0
                              before moe_count_busiest */
};

/* Local. */
struct moe_traffic moe_traffic_of(const struct moe *m);
/* **Collective (EP)**, between steps. Sets busiest_rows. */
void moe_count_busiest(struct moe *m);
/* Local, between steps, after the places of the layout's experts have changed. Computes again how
 * many rows the copies of experts are expected to get from other ranks. Errors: STATUS_MEMORY. */
struct status moe_expect_rows(struct moe *m);

/* Local. Returns the name of the exchange, for reports. */
const char *moe_exchange_name(const struct moe *m);

/* Local. Bytes that this rank has allocated for the rows of steps: buffers, and shared memory for
 * messages between hosts. */
uint64_t moe_memory_bytes(const struct moe *m);

/* Local. True when a call's rows may be slices: the exchange is "in one host". The same on all tp
 * ranks. */
bool moe_takes_slices(const struct moe *m);

/* Local. True when rows travel to other hosts between moe_start and moe_run, and their results
 * between moe_run and moe_finish, so that a caller who computes in between hides that time. The
 * same on all ranks of EP. */
bool moe_travels(const struct moe *m);

/* **Collective (EP, ETP, TP; with a capacity factor also STAGE)**. h += scale.residual * (the
 * experts' output for x + shared), in three calls with the same `lane` (0 or 1): moe_start routes
 * and sends rows, moe_run runs the experts and sends results, moe_finish combines them. Calls with
 * the other lane may come in between, in the same order on all ranks, but not with a capacity
 * factor, and only if moe_travels. rows is borrowed until moe_finish; if moe_travels, moe_start
 * alone reads x. The caller may set rows->shared until moe_run. Errors: STATUS_MEMORY
 * when a buffer cannot grow; the device's; those of reading streamed experts. */
struct status moe_start(struct moe *m, const struct layer *layer, const struct moe_rows *rows,
                        int lane);
struct status moe_run(struct moe *m, int lane);
struct status moe_finish(struct moe *m, int lane);

/* The same in one call, with lane 0. */
struct status moe_forward(struct moe *m, const struct layer *layer, const struct moe_rows *rows);

#endif
