/* Moves rows from the rank that has the most work to the rank that has the least. */
#include "moe/balance.h"

#include <string.h>

static uint64_t cost(const struct expert_piece *p)
{
    return BALANCE_WEIGHT_ROWS + (uint64_t)p->n_rows;
}

/* The ranks with the most and the least work; the first of equal ones. */
struct extremes {
    uint32_t full, empty;
    uint64_t gap;
};

static struct extremes find_extremes(const uint64_t *load, uint32_t n_ranks)
{
    struct extremes x = {0, 0, 0};
    for (uint32_t r = 1; r < n_ranks; r++) {
        if (load[r] > load[x.full]) x.full = r;
        if (load[r] < load[x.empty]) x.empty = r;
    }
    x.gap = load[x.full] - load[x.empty];
    return x;
}

static uint64_t balance_distance(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

/* Returns the piece of the full rank whose move brings the two loads closest together; NULL when no
 * move brings them closer. */
static struct expert_piece *best_to_move(struct expert_piece *pieces, size_t n,
                                         const struct extremes *x)
{
    struct expert_piece *best = NULL;
    for (size_t i = 0; i < n; i++) {
        struct expert_piece *p = &pieces[i];
        if (p->rank != x->full || cost(p) >= x->gap) continue;
        if (best == NULL ||
            balance_distance(2 * cost(p), x->gap) < balance_distance(2 * cost(best), x->gap))
            best = p;
    }
    return best;
}

/* Returns the full rank's piece with the most rows; NULL: it has none. */
static struct expert_piece *piece_with_most_rows(struct expert_piece *pieces, size_t n,
                                                 const struct extremes *x)
{
    struct expert_piece *most = NULL;
    for (size_t i = 0; i < n; i++) {
        struct expert_piece *p = &pieces[i];
        if (p->rank != x->full) continue;
        if (most == NULL || p->n_rows > most->n_rows) most = p;
    }
    return most;
}

/* Returns how many of the piece's last rows the empty rank should take, a multiple of
 * BALANCE_LEAST_ROWS; 0 for none. */
static uint32_t rows_to_cut(const struct expert_piece *p, const struct extremes *x)
{
    if (p == NULL || x->gap < BALANCE_WEIGHT_ROWS + 2 * BALANCE_LEAST_ROWS) return 0;
    const uint64_t even = (x->gap - BALANCE_WEIGHT_ROWS) / 2;
    const uint32_t most = p->n_rows < BALANCE_LEAST_ROWS ? 0 : p->n_rows - BALANCE_LEAST_ROWS;
    const uint32_t n = even < most ? (uint32_t)even : most;
    return n / BALANCE_LEAST_ROWS * BALANCE_LEAST_ROWS;
}

/* Makes the last n rows of pieces[at] a piece of `rank`, which follows it in the list. */
static void balance_cut(struct expert_piece *pieces, size_t n_pieces, size_t at, uint32_t n,
                        uint32_t rank)
{
    struct expert_piece *p = &pieces[at];
    memmove(p + 2, p + 1, (n_pieces - at - 1) * sizeof *p);
    p->n_rows -= n;
    p[1] = *p;
    p[1].first += p->n_rows;
    p[1].n_rows = n;
    p[1].rank = rank;
}

size_t balance_pieces(struct expert_piece *pieces, size_t n, uint32_t n_ranks, uint64_t *load)
{
    const size_t room = n + n_ranks;
    memset(load, 0, n_ranks * sizeof *load);
    for (size_t i = 0; i < n; i++) load[pieces[i].rank] += cost(&pieces[i]);
    for (;;) {
        const struct extremes x = find_extremes(load, n_ranks);
        struct expert_piece *whole = best_to_move(pieces, n, &x);
        const uint64_t off = whole == NULL ? x.gap : balance_distance(2 * cost(whole), x.gap);
        struct expert_piece *most = n < room ? piece_with_most_rows(pieces, n, &x) : NULL;
        const uint32_t n_cut = rows_to_cut(most, &x);
        if (n_cut > 0 &&
            off > x.gap - BALANCE_WEIGHT_ROWS - 2 * (uint64_t)n_cut + BALANCE_LEAST_ROWS) {
            balance_cut(pieces, n++, (size_t)(most - pieces), n_cut, x.empty);
            load[x.full] -= n_cut;
            load[x.empty] += BALANCE_WEIGHT_ROWS + (uint64_t)n_cut;
        } else if (whole != NULL) {
            whole->rank = x.empty;
            load[x.full] -= cost(whole);
            load[x.empty] += cost(whole);
        } else {
            return n;
        }
    }
}
