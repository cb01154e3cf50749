/* Puts experts into shared memory of the host, and finds the addresses of the other ranks' experts.
 */
#include "weights/weights_private.h"

#include "base/mem.h"

#include <string.h>

void *weights_lend_memory(struct weights *w, size_t n_bytes)
{
    const size_t at = w->lent_bytes;
    size_t end;
    if (!mem_add(at, n_bytes, &end) || !mem_add(end, MEM_ALIGN - 1, &end)) return NULL;
    char *lane = comm_lane(w->lends_by, COMM_EP, COMM_LANE_EXPERTS, end);
    if (lane == NULL) return NULL;
    w->lent_bytes = end - end % MEM_ALIGN;
    return lane + at;
}

/* The exchange of one array of a layer's experts (gate, up or down) between ranks. */
struct exchange {
    struct comm *c;
    const struct layout *l;
    struct range own; /* places of this rank's experts (layout_experts) */
    uint32_t etp;     /* the part of an expert that this rank holds, and takes from other ranks */
    uint64_t *lanes;  /* [ranks] address of each rank's segment in that rank's process */
    int *counts, *displs; /* [ranks] words */
    struct packed *all;   /* [experts of all ranks] */
};

static const char *lane_of(const struct exchange *x, uint32_t rank)
{
    return comm_lane_of(x->c, COMM_EP, COMM_LANE_EXPERTS, (int)rank);
}

/* Translates an address in the process of `rank` to this process. */
static const void *here(const struct exchange *x, uint32_t rank, const void *there)
{
    return there == NULL ? NULL : lane_of(x, rank) + ((uintptr_t)there - x->lanes[rank]);
}

/* Writes the other ranks' experts at their places, before and after this rank's own (`experts`). */
static void take_others(const struct exchange *x, struct packed *experts)
{
    const uint32_t rank = (uint32_t)comm_rank(x->c, COMM_EP);
    const size_t words = sizeof *experts / sizeof(uint32_t);
    struct packed *mine = x->all + (size_t)x->displs[rank] / words;
    memcpy(mine, experts, range_count(x->own) * sizeof *mine);
    comm_gather_words(x->c, COMM_EP, x->all, x->counts, x->displs);
    for (uint32_t ep = 0; ep < x->l->ep; ep++) {
        const uint32_t from = ep * x->l->etp + x->etp;
        const struct range held = layout_experts(x->l, ep);
        const struct packed *theirs = x->all + (size_t)x->displs[from] / words;
        for (uint32_t e = held.begin; e < held.end && from != rank; e++) {
            struct packed p = theirs[e - held.begin];
            p.data = here(x, from, p.data);
            p.scales = here(x, from, p.scales);
            p.zeros = here(x, from, p.zeros);
            experts[(ptrdiff_t)e - (ptrdiff_t)x->own.begin] = p;
        }
    }
}

static bool weights_lend_in_lane(const struct weights *w, const struct packed *p)
{
    const uintptr_t lane = (uintptr_t)comm_lane(w->lends_by, COMM_EP, COMM_LANE_EXPERTS, 0);
    const bool scales = p->scales == NULL || (uintptr_t)p->scales - lane < w->lent_bytes;
    const bool zeros = p->zeros == NULL || (uintptr_t)p->zeros - lane < w->lent_bytes;
    return scales && zeros && (uintptr_t)p->data - lane < w->lent_bytes;
}

/* True when the other ranks can read a layer's experts; false when this rank holds none. */
static bool is_lent(const struct weights *w, const struct moe_weights *moe)
{
    return moe->down != NULL && weights_lend_in_lane(w, &moe->gate[0]) &&
           weights_lend_in_lane(w, &moe->up[0]) && weights_lend_in_lane(w, &moe->down[0]);
}

/* Allocates room for the arrays of all ranks and computes their sizes. */
static struct status weights_lend_prepare(const struct weights *w, const struct layout *l,
                                          struct exchange *x)
{
    const uint32_t n_ranks = (uint32_t)comm_size(w->lends_by, COMM_EP);
    *x = (struct exchange){.c = w->lends_by, .l = l, .own = w->experts, .etp = w->place.etp};
    TRY(mem_alloc(&x->lanes, n_ranks, sizeof *x->lanes, "lent experts"));
    TRY(mem_alloc(&x->counts, 2 * (size_t)n_ranks, sizeof *x->counts, "lent experts"));
    TRY(mem_alloc(&x->all, (size_t)layout_n_places(l) * l->etp, sizeof *x->all, "lent experts"));
    x->displs = x->counts + n_ranks;
    int at = 0;
    for (uint32_t r = 0; r < n_ranks; r++) {
        const uint32_t n = range_count(layout_experts(l, r / l->etp));
        x->counts[r] = (int)(n * sizeof *x->all / sizeof(uint32_t));
        x->displs[r] = at;
        at += x->counts[r];
    }
    return status_ok();
}

struct status weights_lend(struct weights *w, const struct layout *l)
{
    struct exchange x;
    struct status st = weights_lend_prepare(w, l, &x);
    uint64_t failed = status_failed(&st);
    comm_max_u64(w->lends_by, COMM_EP, &failed, 1);
    if (failed == 0) {
        const uint64_t lane = (uintptr_t)comm_lane(x.c, COMM_EP, COMM_LANE_EXPERTS, 0);
        comm_gather_bytes(x.c, COMM_EP, &lane, sizeof lane, x.lanes);
    }
    for (uint32_t i = 0; i < range_count(w->layers) && failed == 0; i++) {
        struct moe_weights *moe = &w->stage_layers[i].moe;
        uint64_t lent = w->stage_layers[i].is_moe && is_lent(w, moe);
        comm_min_u64(x.c, COMM_EP, &lent, 1);
        moe->has_others = lent != 0;
        if (lent == 0) continue;
        take_others(&x, moe->gate);
        if (moe->up != moe->gate) take_others(&x, moe->up);
        take_others(&x, moe->down);
    }
    mem_free(&x.all);
    mem_free(&x.counts);
    mem_free(&x.lanes);
    return st;
}
